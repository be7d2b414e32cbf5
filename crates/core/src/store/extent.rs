//! The kind and the length of an object that another one took the place of.
//!
//! A DataFrame of a layer in which one column was written has all the others as they were then: over a store whose
//! DataFrame has another length since, it would show old rows under the name of new ones. What elements an object had says
//! nothing: its own programs may change them, and then the layer's still stand in their place.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::tree::{Directory, Node};
use npyfs_base::error::Result;
use npyfs_io::npy_file::header;

/// The kind of an array to which no format gives one.
const ARRAY: &str = "array";

/// The kind of an object, and its dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// `array`, or what the format calls it.
    pub kind: String,
    /// Size of an object that is no array: its elements, or rows.
    pub shape: Vec<u64>,
}

impl Extent {
    /// Returns that of the array which a directory shows by a name (without suffix); `None` if there is none.
    pub fn of_array(dir: &dyn Directory, shown: &[u8]) -> Result<Option<Self>> {
        let array = |shape| Self {
            kind: ARRAY.to_owned(),
            shape,
        };
        Ok(shape(dir, shown)?.map(array))
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, shape } = self;
        match (kind.as_str(), shape.as_slice()) {
            (ARRAY, shape) => write!(f, "an array of shape {shape:?}"),
            (kind, &[count]) => write!(f, "a {kind} with {count} elements"),
            (kind, _) => write!(f, "a {kind}"),
        }
    }
}

/// Returns the shape of the array that a directory shows by a name.
pub(crate) fn shape(dir: &dyn Directory, shown: &[u8]) -> Result<Option<Vec<u64>>> {
    match dir.lookup(&[shown, &b".npy"[..]].concat())? {
        Some(Node::File(file)) => Ok(Some(header(&*file.open()?)?.shape)),
        _ => Ok(None),
    }
}
