//! Strings: a group of `values`, the bytes with a NUL after each string, and `segments`, the start of each string.

use super::{Type, below, marks, vector};
use crate::store::base::{Base, invalid};
use crate::store::encode::array::NpyArray;
use crate::store::encode::integers::Integers;
use crate::store::encode::spooled_file::SpooledFile;
use crate::store::encode::text;
use crate::store::object::NewFile;
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_hdf5::NewDataset;

pub(super) fn bytes() -> DType {
    DType::scalar(Kind::Uint, 1, Order::None)
}

/// Adds `|S` or `<U`; `<U` becomes UTF-8. Returns the number of strings.
pub(super) fn add(
    new: &mut NewFile,
    base: &dyn Base,
    path: &[String],
    array: &NpyArray,
) -> Result<()> {
    let (mut values, mut segments) = (SpooledFile::new(base), SpooledFile::new(base));
    text::each(array, |number, text| {
        if text.contains(&0) {
            return Err(invalid(format!("string {number} holds a NUL")));
        }
        segments.push(&values.len().to_le_bytes())?;
        values.push(text)?;
        values.push(&[0])
    })?;
    let (bytes, strings) = (values.len(), array.elements());
    let (values, segments) = (values.finish()?, segments.finish()?);
    let group = [
        (bytes, values, self::bytes()),
        (strings, segments, DType::int(8)),
    ];
    put(new, path, group);
    Ok(())
}

pub(super) type MemberDataset = (u64, std::sync::Arc<dyn npyfs_io::content::Content>, DType);

/// Adds the group of strings with its two members.
pub(super) fn put(new: &mut NewFile, path: &[String], [values, segments]: [MemberDataset; 2]) {
    for (name, (len, data, dtype)) in [("values", values), ("segments", segments)] {
        let mut dataset = NewDataset::new(&below(path, name), dtype, &[len]);
        dataset.attributes = marks(Type::Pdarray);
        new.add(dataset, data);
    }
    new.mark(path, marks(Type::Strings));
}

/// Adds strings that are given as their two members.
pub(super) fn add_members(
    new: &mut NewFile,
    path: &[String],
    values: &NpyArray,
    segments: NpyArray,
) -> Result<u64> {
    let len = vector("values", values)?;
    let segments = Integers::new("segments", segments)?;
    check(values, &segments, len)?;
    let strings = segments.len();
    let values = (len, values.data.clone(), bytes());
    put(
        new,
        path,
        [values, (strings, segments.wide(), DType::int(8))],
    );
    Ok(strings)
}

/// Checks that each string begins where the previous one ends, right after its only NUL.
fn check(values: &NpyArray, segments: &Integers, len: u64) -> Result<()> {
    let mut ends = Vec::new();
    let mut at = 0;
    let mut string = 0;
    let mut start = 0;
    // The starts implied by the NULs, one block of bytes at a time.
    text::windows(values, 1, |block| {
        ends.clear();
        for &byte in block {
            at += 1;
            if byte == 0 {
                ends.push(start);
                start = at;
            }
        }
        let left = segments.len().saturating_sub(string);
        let count = (ends.len() as u64).min(left);
        let mut found = vec![0; usize::try_from(count).unwrap_or(0)];
        segments.read(string, &mut found)?;
        if count < ends.len() as u64 {
            return Err(invalid("more NULs in values than segments"));
        }
        for (i, (&found, &wanted)) in found.iter().zip(&ends).enumerate() {
            if found != wanted {
                let number = string + i as u64;
                return Err(invalid(format!(
                    "segment {number} is {found}, and string {number} starts at {wanted}"
                )));
            }
        }
        string += count;
        Ok(())
    })?;
    if u64::try_from(start) != Ok(len) || string != segments.len() {
        return Err(invalid("values do not end with a NUL for each segment"));
    }
    Ok(())
}
