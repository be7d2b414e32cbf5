//! The kind and the length of Arkouda's objects.

use std::sync::Arc;

use super::kind::ArkoudaKind;
use crate::checkout::extent::{Extent, shape};
use crate::error::Result;
use crate::tree::{Directory, Node};

/// Members that say how many elements an object has, the first that is there.
const COUNTED: [&str; 6] = ["Index", "KEY_0", "IDX_0", "codes", "segments", "Limb_0"];

/// Members within members that are looked into, at most: a key of a GroupBy may be a Categorical.
const DEEPEST: usize = 3;

/// Returns that of the object which a directory shows by a name (without suffix); `None` if there is none, or it has no
/// dimensions, as a group.
pub(super) fn extent(dir: &dyn Directory, shown: &[u8]) -> Result<Option<Extent>> {
    let Some(Node::Directory(object)) = dir.lookup(shown)? else {
        return Extent::of_array(dir, shown);
    };
    let info = object.info()?;
    let kind = match info["type"].as_str().and_then(ArkoudaKind::named) {
        None | Some(ArkoudaKind::Group) => return Extent::of_array(dir, shown),
        Some(kind) => kind.name().to_owned(),
    };
    let count = match count(&object, DEEPEST)? {
        Some(count) => Some(count),
        None => shape(dir, shown)?.and_then(|shape| shape.first().copied()),
    };
    let shape = count.into_iter().collect();
    Ok(Some(Extent { kind, shape }))
}

/// Returns how many elements an object has whose members a directory shows.
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
