//! A table of flights as written by Arkouda: in one file, or divided into one file per locale.
//!
//! Follows Arkouda's `src/HDF5Msg.chpl`: attributes on every object, text as zero-separated bytes, segments that begin
//! at 0 in every file, each component divided by its own length.

use std::ops::Range;
use std::path::{Path, PathBuf};

use hdf5::types::FixedAscii;
use hdf5::{File, Group, H5Type, Location, Result};

use crate::formats::demo::{noise, write_file};
use npyfs_base::error;

const FLIGHTS: usize = 1000;
const CARRIERS: [&str; 4] = ["Adler", "Bussard", "Möwe", "N/A"];

/// Numbers of `ObjType`.
const PDARRAY: i64 = 1;
const STRINGS: i64 = 2;
const SEGARRAY: i64 = 3;
const CATEGORICAL: i64 = 4;
const DATETIME: i64 = 7;

/// A locale and the number of locales; `None`: everything in one file.
type Locale = Option<(usize, usize)>;

/// Returns which of `n` elements a locale owns: Chapel's block distribution.
fn owned_by(n: usize, locale: Locale) -> Range<usize> {
    let (i, count) = locale.unwrap_or((0, 1));
    (n * i).div_ceil(count)..(n * (i + 1)).div_ceil(count)
}

/// Writes the table in one file, and in three.
pub(super) fn write(dir: &Path) -> error::Result<Vec<(PathBuf, bool)>> {
    let mut written = vec![write_file(dir.join("flights.h5"), |file| fill(file, None))?];
    for locale in 0..3 {
        let path = dir.join(format!("trips_LOCALE{locale:04}.h5"));
        written.push(write_file(path, |file| fill(file, Some((locale, 3))))?);
    }
    Ok(written)
}

/// Fills one file.
fn fill(file: &File, locale: Locale) -> Result<()> {
    number(file, "File_Format", i64::from(locale.is_some()))?;
    let flights = owned_by(FLIGHTS, locale);
    let distance = flights.clone().map(|i| 200 + (9000.0 * noise(i)) as i64);
    array(file, "distance", &distance.collect::<Vec<_>>(), PDARRAY)?;
    let delayed = flights.clone().map(|i| u8::from(noise(i + 1) > 0.8));
    let delayed = array(file, "delayed", &delayed.collect::<Vec<_>>(), PDARRAY)?;
    number(&delayed, "isBool", 1)?;
    // Every ten minutes, beginning with 2026.
    let departure = flights
        .clone()
        .map(|i| 1_767_225_600_000_000_000 + i as i64 * 600_000_000_000);
    array(file, "departure", &departure.collect::<Vec<_>>(), DATETIME)?;

    let names: Vec<String> = flights
        .clone()
        .map(|i| format!("{}{}", ["AD", "BU", "MÖ"][i % 3], i * i % 977))
        .collect();
    strings(&object(file, "flight", STRINGS)?, &names)?;

    let carrier = object(file, "carrier", CATEGORICAL)?;
    let codes: Vec<i64> = flights.clone().map(|i| (i % 3) as i64).collect();
    array(&carrier, "codes", &codes, PDARRAY)?;
    let categories = &CARRIERS[owned_by(CARRIERS.len(), locale)];
    strings(&object(&carrier, "categories", STRINGS)?, categories)?;
    let missing = [CARRIERS.len() as i64 - 1];
    array(&carrier, "NA_Codes", &missing[owned_by(1, locale)], PDARRAY)?;

    let stops = object(file, "stops", SEGARRAY)?;
    let (mut starts, mut values) = (Vec::new(), Vec::new());
    for i in flights {
        starts.push(values.len() as i64);
        values.extend((0..i % 4).map(|k| ((i + k) % 50) as i64));
    }
    array(&stops, "segments", &starts, PDARRAY)?;
    array(&stops, "values", &values, PDARRAY)?;
    Ok(())
}

fn number(at: &Location, name: &str, value: i64) -> Result<()> {
    at.new_attr::<i64>().create(name)?.write_scalar(&value)
}

fn mark(at: &Location, object_type: i64) -> Result<()> {
    number(at, "ObjType", object_type)?;
    at.new_attr::<f32>()
        .create("file_version")?
        .write_scalar(&2.0_f32)?;
    let version = FixedAscii::<12>::from_ascii("v2025.12.16").unwrap_or_default();
    at.new_attr::<FixedAscii<12>>()
        .create("arkouda_version")?
        .write_scalar(&version)
}

fn object(group: &Group, name: &str, object_type: i64) -> Result<Group> {
    let made = group.create_group(name)?;
    mark(&made, object_type)?;
    Ok(made)
}

fn array<T: H5Type>(
    group: &Group,
    name: &str,
    data: &[T],
    object_type: i64,
) -> Result<hdf5::Dataset> {
    let dataset = group.new_dataset_builder().with_data(data).create(name)?;
    mark(&dataset, object_type)?;
    Ok(dataset)
}

fn strings<S: AsRef<str>>(group: &Group, texts: &[S]) -> Result<()> {
    let (mut starts, mut values) = (Vec::new(), Vec::new());
    for text in texts {
        starts.push(values.len() as i64);
        values.extend_from_slice(text.as_ref().as_bytes());
        values.push(0_u8);
    }
    array(group, "values", &values, PDARRAY)?;
    array(group, "segments", &starts, PDARRAY)?;
    Ok(())
}
