//! Demonstration stores: a daf store as daf itself would write it, Arkouda's in one file and in three, and
//! a plain HDF5 file.
//!
//! Everything is computed, so that two runs write the same data. Nothing is overwritten.

use crate::formats::arkouda::demo;
use std::path::{Path, PathBuf};

use hdf5::types::{FixedAscii, VarLenUnicode};
use hdf5::{File, Group, Result};

const CELLS: usize = 1000;
const GENES: usize = 200;

/// Why a demonstration could not be written.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Hdf5(#[from] hdf5::Error),
}

/// Writes the stores that are not there yet; each path, and whether it was written.
pub fn write(dir: &Path) -> std::result::Result<Vec<(PathBuf, bool)>, DemoError> {
    std::fs::create_dir_all(dir)?;
    let mut written = Vec::new();
    type Fill = fn(&File) -> Result<()>;
    let stores: [(&str, Fill); 6] = [
        ("cells.h5df", daf),
        ("flights.h5", |file| demo::write(file, None)),
        ("trips_LOCALE0000.h5", |file| {
            demo::write(file, Some((0, 3)))
        }),
        ("trips_LOCALE0001.h5", |file| {
            demo::write(file, Some((1, 3)))
        }),
        ("trips_LOCALE0002.h5", |file| {
            demo::write(file, Some((2, 3)))
        }),
        ("plain.h5", plain),
    ];
    for (name, fill) in stores {
        let path = dir.join(name);
        if path.symlink_metadata().is_ok() {
            written.push((path, false));
            continue;
        }
        // Under another name until it is complete.
        let unfinished = dir.join(format!(".{name}.{}", std::process::id()));
        let made = File::create_excl(&unfinished)
            .and_then(|file| {
                fill(&file)?;
                file.close()
            })
            .map_err(DemoError::from)
            .and_then(|()| Ok(std::fs::hard_link(&unfinished, &path)?));
        std::fs::remove_file(&unfinished)?;
        made?;
        written.push((path, true));
    }
    Ok(written)
}

/// Numbers that look random and are the same each time (splitmix64).
pub(crate) fn noise(n: usize) -> f64 {
    let mut z = (n as u64)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z >> 11) as f64 / (1_u64 << 53) as f64
}

fn text<const N: usize>(value: &str) -> FixedAscii<N> {
    // All texts here are ASCII and fit; what did not would be cut.
    FixedAscii::from_ascii(value).unwrap_or_default()
}

fn vector<T: hdf5::H5Type>(group: &Group, name: &str, data: &[T]) -> Result<()> {
    group.new_dataset_builder().with_data(data).create(name)?;
    Ok(())
}

fn matrix<T: hdf5::H5Type>(group: &Group, name: &str, rows: usize, data: Vec<T>) -> Result<()> {
    let columns = data.len() / rows.max(1);
    let dataset = group
        .new_dataset::<T>()
        .shape((rows, columns))
        .create(name)?;
    dataset.write_raw(&data)
}

fn daf(file: &File) -> Result<()> {
    let mark = file.new_dataset::<i8>().shape(2).create("__daf__")?;
    mark.write_raw(&[1_i8, 0])?;
    let title: VarLenUnicode = "A demonstration of npyfs".parse().unwrap_or_default();
    mark.new_attr::<VarLenUnicode>()
        .create("title")?
        .write_scalar(&title)?;
    mark.new_attr::<i64>()
        .create("seed")?
        .write_scalar(&1_i64)?;
    mark.new_attr::<bool>()
        .create("is_real")?
        .write_scalar(&false)?;

    let cells: Vec<_> = (0..CELLS)
        .map(|i| text::<7>(&format!("cell{i:03}")))
        .collect();
    let genes: Vec<_> = (0..GENES)
        .map(|i| text::<7>(&format!("gene{i:03}")))
        .collect();
    vector(file, "cell#", &cells)?;
    vector(file, "gene#", &genes)?;
    let age: Vec<i32> = (0..CELLS)
        .map(|i| (20.0 + 60.0 * noise(i)) as i32)
        .collect();
    vector(file, "cell#age", &age)?;
    let batch: Vec<_> = (0..CELLS)
        .map(|i| text::<6>(["first", "second"][i % 2]))
        .collect();
    vector(file, "cell#batch", &batch)?;
    let marked: Vec<bool> = (0..GENES).map(|i| i % 7 == 0).collect();
    vector(file, "gene#is_marker", &marked)?;
    let score: Vec<f32> = (0..CELLS * GENES).map(|i| noise(i) as f32).collect();
    matrix(file, "cell,gene#score", CELLS, score)?;

    let (mut data, mut indices, mut indptr) = (Vec::new(), Vec::new(), vec![0_i32]);
    for cell in 0..CELLS {
        for gene in 0..GENES {
            let value = noise(cell * GENES + gene + 7_777_777);
            if value > 0.9 {
                data.push((1.0 + 100.0 * (value - 0.9)) as u16);
                indices.push(gene as i32);
            }
        }
        indptr.push(data.len() as i32);
    }
    let sparse = file.create_group("cell,gene#UMIs")?;
    vector(&sparse, "data", &data)?;
    vector(&sparse, "indices", &indices)?;
    vector(&sparse, "indptr", &indptr)?;
    let shape = sparse.new_attr::<i64>().shape(2).create("shape")?;
    shape.write_raw(&[CELLS as i64, GENES as i64])
}

fn plain(file: &File) -> Result<()> {
    let images = file.create_group("images")?;
    let stack = images
        .new_dataset::<u8>()
        .shape((64, 128, 128))
        .chunk((1, 128, 128))
        .shuffle()
        .deflate(4)
        .create("stack")?;
    let pixels: Vec<u8> = (0..64 * 128 * 128)
        .map(|i| ((i % 128) + (i / 128 % 128) + i / (128 * 128)) as u8)
        .collect();
    stack.write_raw(&pixels)?;
    let units: VarLenUnicode = "counts".parse().unwrap_or_default();
    stack
        .new_attr::<VarLenUnicode>()
        .create("units")?
        .write_scalar(&units)?;
    let names: Vec<VarLenUnicode> = ["alpha", "beta", "gamma"]
        .iter()
        .map(|name| name.parse().unwrap_or_default())
        .collect();
    vector(file, "names", &names)?;
    file.new_dataset::<f64>()
        .create("pi")?
        .write_scalar(&std::f64::consts::PI)?;
    file.link_soft("/images/stack", "latest")
}
