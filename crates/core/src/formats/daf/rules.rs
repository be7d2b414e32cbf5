//! The rules of a daf store: the meaning of names, which objects must match, and what arrays may hold.
//!
//! Source: tanaylab daf 0.2.0-dev.1, `storage/h5fs.py`. A vector or matrix whose axis is missing makes the whole store
//! unreadable.

use xxhash_rust::xxh3::xxh3_128;

use crate::store::base::{invalid, unsupported};
use crate::store::encode::{NpyArray, text};
use npyfs_base::error::{Error, Result};
use npyfs_base::npy::dtype::Kind;

/// The dataset that marks a store; its attributes are the items.
pub const MARK: &str = "__daf__";

/// Attributes of the mark that are not items: notes of npyfs in exported files. Earlier versions wrote them here, too.
const NOTES: [&str; 2] = ["npyfs_time", "npyfs_times"];

/// Returns whether an attribute of the mark is such a note.
pub fn is_note(name: &[u8]) -> bool {
    NOTES.iter().any(|note| note.as_bytes() == name)
}

/// The meaning of a name.
#[derive(Debug, PartialEq, Eq)]
pub enum Meaning<'a> {
    /// An axis: its entries.
    Axis,
    /// A property along one or two axes.
    Property(Vec<&'a str>),
    /// A 0-D item.
    Item,
    /// An object that daf ignores.
    Other,
}

/// Returns the meaning of a name in daf.
pub fn meaning(name: &str) -> Meaning<'_> {
    let Some((left, property)) = name.split_once('#') else {
        return Meaning::Item;
    };
    let axes: Vec<&str> = left.split(',').collect();
    if axes.contains(&"") || axes.len() > 2 {
        return Meaning::Other;
    }
    match (property.is_empty(), axes.len()) {
        (true, 1) => Meaning::Axis,
        (true, _) => Meaning::Other,
        (false, _) => Meaning::Property(axes),
    }
}

/// Returns whether a directory of this name holds the parts of a sparse matrix.
pub fn is_matrix(name: &str) -> bool {
    matches!(meaning(name), Meaning::Property(axes) if axes.len() == 2)
}

/// Returns the names of an object's axes, each once: `cell#` and `gene#` for `cell,gene#UMIs`.
pub fn along(name: &str) -> Vec<String> {
    let Meaning::Property(axes) = meaning(name) else {
        return Vec::new();
    };
    let mut names: Vec<String> = axes.into_iter().map(|axis| format!("{axis}#")).collect();
    names.dedup();
    names
}

/// Checks that an array is a vector of strings, as an axis must be.
pub(super) fn check_text_vector(array: &NpyArray) -> Result<()> {
    if array.shape.len() != 1 || !text::is_text(array) {
        let (dtype, shape) = (array.dtype.name(), &array.shape);
        return Err(invalid(format!(
            "an axis is a vector of strings, this is {dtype} of shape {shape:?}"
        )));
    }
    Ok(())
}

/// Checks that the entries are unique.
pub(crate) fn check_entries(array: &NpyArray) -> Result<()> {
    let mut seen: Vec<u128> = Vec::new();
    text::each(array, |number, entry| {
        let hash = xxh3_128(entry);
        // Bounds the memory for a hole of any length.
        if seen.last() == Some(&hash) {
            return Err(twice_there(number, entry));
        }
        seen.push(hash);
        Ok(())
    })?;
    seen.sort_unstable();
    let Some(twice) = seen.windows(2).find(|pair| pair[0] == pair[1]) else {
        return Ok(());
    };
    text::each(array, |number, entry| {
        if xxh3_128(entry) == twice[0] {
            return Err(twice_there(number, entry));
        }
        Ok(())
    })
}

fn twice_there(number: u64, entry: &[u8]) -> Error {
    let entry = String::from_utf8_lossy(entry);
    invalid(format!(
        "the entry {entry:?} (number {number}) is there twice"
    ))
}

/// Checks that an array has the lengths of its axes.
pub(super) fn check_shape(array: &NpyArray, lengths: &[u64]) -> Result<()> {
    if array.shape == lengths {
        return Ok(());
    }
    let shape = &array.shape;
    Err(invalid(format!(
        "shape {shape:?} does not fit axes of length {lengths:?}"
    )))
}

/// Converts to a type in `typing/dtypes.py`: booleans, integers, and floats of 16, 32 and 64 bits, little-endian.
pub(super) fn numbers(array: &NpyArray) -> Result<NpyArray> {
    match array.scalar() {
        Some((Kind::Bool | Kind::Int | Kind::Uint, ..) | (Kind::Float, 2 | 4 | 8, _)) => {
            Ok(array.little())
        }
        _ => {
            let name = array.dtype.name();
            Err(unsupported(format!("daf has no elements of type {name}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_along_what() {
        assert_eq!(along("cell,gene#UMIs"), ["cell#", "gene#"]);
        assert_eq!(along("gene,gene#corr"), ["gene#"]);
        assert_eq!(along("cell#age"), ["cell#"]);
        assert!(along("cell#").is_empty() && along("title").is_empty());
    }

    #[test]
    fn names_mean_what_daf_takes_them_for() {
        assert_eq!(meaning("cell#"), Meaning::Axis);
        assert_eq!(meaning("cell#age"), Meaning::Property(vec!["cell"]));
        assert_eq!(
            meaning("cell,gene#a,b#c"),
            Meaning::Property(vec!["cell", "gene"])
        );
        assert_eq!(meaning("title"), Meaning::Item);
        for name in ["a,b,c#x", "#x", "a,#x", "a,b#", ",#"] {
            assert_eq!(meaning(name), Meaning::Other, "{name}");
        }
    }
}
