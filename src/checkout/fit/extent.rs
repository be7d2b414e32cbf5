//! The kind and the length of an object that another one took the place of.
//!
//! A DataFrame of a layer in which one column was written has all the others as they were then: over a store whose
//! DataFrame has another length since, it would show old rows under the name of new ones. What elements an object had says
//! nothing: its own programs may change them, and then the layer's still stand in their place.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::checkout::encode::header;
use crate::error::Result;
use crate::formats::arkouda::kind::Kind;
use crate::options::StoreKind;
use crate::tree::{Directory, Node};

/// What an array is called that no format gives a kind.
const ARRAY: &str = "array";

/// Members that say how many elements an object has, the first that is there.
const COUNTED: [&str; 6] = ["Index", "KEY_0", "IDX_0", "codes", "segments", "Limb_0"];

/// Members within members that are looked into, at most: a key of a GroupBy may be a Categorical.
const DEEPEST: usize = 3;

/// What an object is, and its dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// `array`, or what Arkouda calls it.
    pub kind: String,
    /// Of an object that is no array: its elements, or rows.
    pub shape: Vec<u64>,
}

impl Extent {
    /// Returns that of the object which a directory shows by a name (without suffix); `None` if there is none, or it has no
    /// dimensions, as a group.
    pub fn of(dir: &dyn Directory, shown: &[u8]) -> Result<Option<Self>> {
        let array = shape(dir, shown)?;
        let plain = |array: Option<Vec<u64>>| {
            let kind = ARRAY.to_owned();
            array.map(|shape| Self { kind, shape })
        };
        let object = match dir.lookup(shown)? {
            Some(Node::Directory(object)) if dir.kind()? == StoreKind::Arkouda => object,
            _ => return Ok(plain(array)),
        };
        let info = object.info()?;
        let kind = match info["type"].as_str().and_then(Kind::named) {
            None | Some(Kind::Group) => return Ok(plain(array)),
            Some(kind) => kind.name().to_owned(),
        };
        let count = count(&object, DEEPEST)?.or_else(|| array?.first().copied());
        let shape = count.into_iter().collect();
        Ok(Some(Self { kind, shape }))
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

/// How many elements an object has whose members a directory shows.
fn count(object: &Arc<dyn Directory>, deepest: usize) -> Result<Option<u64>> {
    for name in COUNTED {
        if let Some(shape) = shape(&**object, name.as_bytes())? {
            return Ok(shape.first().copied());
        }
        if let Some(Node::Directory(below)) = object.lookup(name.as_bytes())?
            && deepest > 0
        {
            return count(&below, deepest - 1);
        }
    }
    Ok(None)
}

/// The shape of the array that a directory shows by a name.
fn shape(dir: &dyn Directory, shown: &[u8]) -> Result<Option<Vec<u64>>> {
    match dir.lookup(&[shown, &b".npy"[..]].concat())? {
        Some(Node::File(file)) => Ok(Some(header(&*file.open()?)?.shape)),
        _ => Ok(None),
    }
}
