//! A file as MATLAB writes it, with a value of each kind.

use std::os::unix::fs::FileExt;
use std::path::Path;

use hdf5::types::FixedAscii;
use hdf5::{Dataset, File, Group, H5Type, Location, ObjectReference1, Result as H5Result};
use ndarray::{Array2, ArrayView1};

use crate::formats::demo::noise;
use npyfs_base::error::{Error, Result};

/// Bytes of the user block.
const USER_BLOCK: u64 = 512;

/// The user block: text, the version and the byte order.
const HEADER: &[u8] = b"MATLAB 7.3 MAT-file, Platform: npyfs, a demonstration";

/// The offset of the version in the user block.
const VERSION_AT: u64 = 124;

/// A complex number as MATLAB stores it.
#[derive(Clone, Copy, H5Type)]
#[repr(C)]
struct Complex {
    real: f64,
    imag: f64,
}

/// Writes the file.
pub(super) fn write(path: &Path) -> Result<()> {
    let file = File::with_options()
        .with_fcpl(|properties| properties.userblock(USER_BLOCK))
        .create_excl(path);
    let written = file.and_then(|file| {
        fill(&file)?;
        file.close()
    });
    written.map_err(|e| Error::damaged(e.to_string()))?;
    let file = std::fs::File::options().write(true).open(path)?;
    let mut text = HEADER.to_vec();
    text.resize(VERSION_AT as usize, b' ');
    file.write_all_at(&text, 0)?;
    file.write_all_at(b"\0\x02IM", VERSION_AT)?;
    Ok(())
}

fn fill(file: &File) -> H5Result<()> {
    let trials = |row: usize, column: usize| noise(100 * row + column);
    numbers(file, "trials", "double", (40, 6), trials)?;
    let valid = |row: usize, _: usize| u8::from(!row.is_multiple_of(7));
    let valid = numbers(file, "valid", "logical", (40, 1), valid)?;
    valid
        .new_attr::<i32>()
        .create("MATLAB_int_decode")?
        .write_scalar(&1)?;
    numbers(file, "spectrum", "double", (1, 5), |_, at| Complex {
        real: at as f64,
        imag: -0.5,
    })?;
    text(file, "title", "first session")?;
    let empty = file
        .new_dataset_builder()
        .with_data(&[0_u64, 3])
        .create("missed")?;
    mark(&empty, "double")?;
    empty
        .new_attr::<u8>()
        .create("MATLAB_empty")?
        .write_scalar(&1)?;
    let subject = file.create_group("subject")?;
    mark(&subject, "struct")?;
    text(&subject, "name", "Ada")?;
    numbers(&subject, "age", "double", (1, 1), |_, _| 36.0)?;
    weights(file)?;
    let references = file.create_group("#refs#")?;
    text(&references, "a", "calibrated")?;
    numbers(&references, "b", "double", (2, 2), |row, column| {
        (2 * row + column) as f64
    })?;
    let notes =
        ["a", "b"].map(|name| file.reference::<ObjectReference1>(&format!("#refs#/{name}")));
    let notes = notes.into_iter().collect::<H5Result<Vec<_>>>()?;
    let notes = Array2::from_shape_fn((2, 1), |(at, _)| notes[at]);
    let notes = file
        .new_dataset_builder()
        .with_data(&notes)
        .create("notes")?;
    mark(&notes, "cell")
}

/// Writes a sparse matrix of 5 rows and 3 columns.
fn weights(file: &File) -> H5Result<()> {
    let group = file.create_group("weights")?;
    mark(&group, "double")?;
    group
        .new_attr::<u64>()
        .create("MATLAB_sparse")?
        .write_scalar(&5)?;
    let vector = |name: &str, places: &[u64]| {
        let data = ArrayView1::from(places);
        group.new_dataset_builder().with_data(data).create(name)
    };
    vector("ir", &[0, 3, 1, 4])?;
    vector("jc", &[0, 2, 2, 4])?;
    group
        .new_dataset_builder()
        .with_data(&[0.5, 1.5, 2.5, 3.5])
        .create("data")?;
    Ok(())
}

/// Writes an array with its dimensions reversed, as MATLAB does.
fn numbers<T: H5Type>(
    group: &Group,
    name: &str,
    class: &str,
    (rows, columns): (usize, usize),
    element: impl Fn(usize, usize) -> T,
) -> H5Result<Dataset> {
    let stored = Array2::from_shape_fn((columns, rows), |(column, row)| element(row, column));
    let dataset = group
        .new_dataset_builder()
        .with_data(&stored)
        .create(name)?;
    mark(&dataset, class)?;
    Ok(dataset)
}

fn text(group: &Group, name: &str, text: &str) -> H5Result<()> {
    let units: Vec<u16> = text.encode_utf16().collect();
    let dataset = numbers(group, name, "char", (1, units.len()), |_, at| units[at])?;
    dataset
        .new_attr::<i32>()
        .create("MATLAB_int_decode")?
        .write_scalar(&2)
}

fn mark(object: &Location, class: &str) -> H5Result<()> {
    let class = FixedAscii::<8>::from_ascii(class).unwrap_or_default();
    let attribute = object.new_attr::<FixedAscii<8>>().create("MATLAB_class")?;
    attribute.write_scalar(&class)
}
