//! What a layer's objects depend on, and the messages for when it has changed.
//!
//! An object along axes has no meaning without the axes' entries, and no object has a meaning in another store. So the
//! index records both: the entries as a digest that depends on nothing else, the store as some of its arrays. `view`
//! compares them with the present state.
//!
//! The identity of a store is recorded when the first object is written over it, to detect that another store has taken
//! its place. Stores are copied, moved and extended by other programs, so name, inode, time and length prove nothing. A
//! store is recognized by its content: by the entries of its axes if it has any, otherwise by type, shape and first
//! elements of some of its arrays.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::attribute;
use crate::store::against::{AxisEntries, digest};
use crate::store::base::invalid;
use crate::store::encode::array::NpyArray;
use crate::store::encode::text;
use crate::store::format::Registry;
use crate::tree::path::walk;
use crate::tree::{Directory, Node, VirtualFile};
use npyfs_base::error::{ErrorKind, Result};
use npyfs_io::content::{Content, Slice, complete_npy_header};

/// A change of a layer that has no effect, because it does not fit the present store: an object that is not shown, or a
/// deletion.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Misfit {
    /// The checkout that made the change.
    pub checkout: String,
    /// The index of its layer, from 0; the committed ones come first.
    pub layer: usize,
    /// The key of the object.
    pub key: String,
    /// Whether the change deletes the object.
    pub is_deletion: bool,
    /// The reason, for people.
    pub why: String,
}

/// Returns the misfits that are not among those of an earlier state.
pub(in crate::checkout) fn new_misfits(before: &[Misfit], mut now: Vec<Misfit>) -> Vec<Misfit> {
    now.retain(|misfit| {
        let mut known = before.iter();
        !known.any(|known| (known.layer, &known.key) == (misfit.layer, &misfit.key))
    });
    now
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            checkout, key, why, ..
        } = self;
        let key = attribute::shown(key);
        match self.is_deletion {
            true => write!(f, "{key}: not deleted, though {checkout} deletes it: {why}"),
            false => write!(f, "{key}: not shown, though it is in {checkout}: {why}"),
        }
    }
}

/// Returns why an object along an axis is not shown. `now` is the present state of the axis.
pub fn other_entries(axis: &str, before: &AxisEntries, now: Option<&AxisEntries>) -> String {
    let count = before.count();
    match now {
        None => format!(
            "it was written along {axis} with {count} entries, and there is no such axis now"
        ),
        Some(now) if now.count() != count => format!(
            "it was written along {axis} with {count} entries, which has {} now",
            now.count()
        ),
        Some(_) => format!(
            "it was written along {axis} with {count} entries, which are others now, or in another order"
        ),
    }
}

/// The most arrays and axes that are recorded.
const MOST_ARRAYS: usize = 16;
const MOST_AXES: usize = 64;

/// The most groups that are searched.
const MOST_GROUPS: usize = 64;

/// Bytes of the first elements that are recorded.
const START: u64 = 4096;

/// One of this many recorded arrays must be unchanged.
const ONE_OF: usize = 4;

/// The spelling of names: in keys, and as shown.
pub trait KeySpelling {
    /// Returns the key spelling of a shown name.
    fn key(&self, shown: &[u8]) -> Vec<u8>;

    /// Returns the shown spelling of a name in a key.
    fn shown(&self, key: &[u8]) -> Vec<u8>;
}

/// The identity of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreIdentity {
    /// The name of the format in which it is shown. For people.
    pub kind: String,
    /// The axes of the store.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub axes: Vec<KnownAxis>,
    /// Some arrays of the store.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arrays: Vec<KnownArray>,
    /// Fields of newer versions, preserved unchanged.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

/// An axis of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownAxis {
    /// Its key, relative to the store's.
    pub path: String,
    /// Its entries.
    pub entries: AxisEntries,
}

/// An array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownArray {
    /// Its key, relative to the store's.
    pub path: String,
    /// The name of its type.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// The number of bytes of its elements, in C order, that `start` is the digest of.
    pub bytes: u64,
    /// The digest of its first bytes.
    pub start: String,
}

impl StoreIdentity {
    /// Computes the identity of the store in `dir`, which has no layers on top.
    pub fn compute(
        dir: &Arc<dyn Directory>,
        spelling: &dyn KeySpelling,
        formats: &Registry,
    ) -> Result<Self> {
        let mut identity = Self {
            kind: dir.format()?.to_owned(),
            ..Self::default()
        };
        let mut scalars = Vec::new();
        let mut groups = VecDeque::from([(String::new(), dir.clone())]);
        for _ in 0..MOST_GROUPS {
            let Some((above, dir)) = groups.pop_front() else {
                break;
            };
            let format = formats.format_of(&*dir)?;
            for (name, node) in dir.list()?.iter() {
                let Ok(own) = String::from_utf8(spelling.key(&name)) else {
                    continue;
                };
                let path = |own: &str| match above.as_str() {
                    "" => own.to_owned(),
                    above => format!("{above}/{own}"),
                };
                match &*node {
                    Node::Directory(dir) => {
                        if groups.len() < MOST_GROUPS {
                            groups.push_back((path(&own), dir.clone()));
                        }
                    }
                    Node::File(file) => {
                        let Some(own) = own.strip_suffix(".npy") else {
                            continue;
                        };
                        if format.objects().is_axis(own) {
                            if identity.axes.len() < MOST_AXES
                                && let Ok(entries) =
                                    file.open().and_then(|file| read_entries(&file))
                            {
                                let path = path(own);
                                identity.axes.push(KnownAxis { path, entries });
                            }
                        } else if identity.arrays.len() < MOST_ARRAYS
                            // An array that cannot be read does not identify the store.
                            && let Ok(array) = KnownArray::read(path(own), &**file)
                        {
                            match array.shape.iter().all(|&n| n < 2) {
                                true => scalars.push(array),
                                false => identity.arrays.push(array),
                            }
                        }
                    }
                    Node::Symlink(_) => {}
                }
                if identity.arrays.len() >= MOST_ARRAYS && !format.objects().has_axes() {
                    break;
                }
            }
        }
        if identity.arrays.is_empty() {
            scalars.truncate(MOST_ARRAYS);
            identity.arrays = scalars;
        }
        if !identity.axes.is_empty() {
            identity.arrays.clear();
        }
        Ok(identity)
    }

    /// Returns whether the store in `dir` is this one, as far as can be known. Arrays that are hidden by layers
    /// (`is_hidden`) or unreadable are ignored.
    pub fn is_still(
        &self,
        dir: &Arc<dyn Directory>,
        spelling: &dyn KeySpelling,
        is_hidden: &dyn Fn(&str) -> bool,
    ) -> bool {
        let find = |path: &str| -> Result<Option<Arc<dyn VirtualFile>>> {
            let (above, last) = path.rsplit_once('/').unwrap_or(("", path));
            let above = above.split('/').filter(|name| !name.is_empty());
            let above = above.map(|name| spelling.shown(name.as_bytes()));
            let last = [&spelling.shown(last.as_bytes()), &b".npy"[..]].concat();
            let node = walk(dir.clone(), above.chain([last]))?;
            Ok(node.and_then(Node::file))
        };
        let known = |found: Result<bool>| match found {
            Ok(same) => Some(same),
            Err(e) if e.kind == ErrorKind::NotFound => Some(false),
            Err(_) => None,
        };
        let same_axis = |axis: &KnownAxis| {
            let Some(file) = find(&axis.path)? else {
                return Ok(false);
            };
            // An axis that is no longer an axis counts as changed.
            Ok(read_entries(&file.open()?).is_ok_and(|now| now == axis.entries))
        };
        let axes = self.axes.iter().filter(|axis| !is_hidden(&axis.path));
        let axes: Vec<bool> = axes.filter_map(|axis| known(same_axis(axis))).collect();
        if !axes.is_empty() {
            return axes.contains(&true);
        }
        let same_array = |array: &KnownArray| match find(&array.path)? {
            Some(file) => array.is_start_of(&*file),
            None => Ok(false),
        };
        let arrays = self.arrays.iter().filter(|array| !is_hidden(&array.path));
        let arrays: Vec<bool> = arrays
            .filter_map(|array| known(same_array(array)))
            .collect();
        let same = arrays.iter().filter(|&&same| same).count();
        same * ONE_OF >= arrays.len()
    }
}

impl KnownArray {
    fn read(path: String, file: &dyn VirtualFile) -> Result<Self> {
        let file = file.open()?;
        let header = complete_npy_header(&*file)?;
        let bytes = header.len.min(START);
        Ok(Self {
            path,
            dtype: header.dtype.name(),
            start: start(&*file, header.start, bytes)?,
            shape: header.shape,
            bytes,
        })
    }

    /// Returns whether a file begins with these elements; it may have been extended along the first dimension.
    fn is_start_of(&self, file: &dyn VirtualFile) -> Result<bool> {
        let file = file.open()?;
        let header = complete_npy_header(&*file)?;
        let fits = match (header.shape.split_first(), self.shape.split_first()) {
            (Some((now, rest)), Some((before, inner))) => now >= before && rest == inner,
            (now, before) => now.is_none() && before.is_none(),
        };
        Ok(fits
            && header.dtype.name() == self.dtype
            && header.len >= self.bytes
            && start(&*file, header.start, self.bytes)? == self.start)
    }
}

/// Returns the digest of the first bytes of elements.
fn start(file: &dyn Content, at: u64, bytes: u64) -> Result<String> {
    let mut start = vec![0; usize::try_from(bytes.min(START)).unwrap_or(0)];
    file.read_at(at, &mut start)?;
    Ok(digest(&start))
}

/// Reads the entries in the `.npy` file of an axis.
pub fn read_entries(file: &Arc<dyn Content>) -> Result<AxisEntries> {
    let header = complete_npy_header(&**file)?;
    if header.shape.len() != 1 {
        return Err(invalid("an axis is a vector"));
    }
    let array = NpyArray {
        dtype: header.dtype,
        shape: header.shape,
        data: Arc::new(Slice::new(file.clone(), header.start, header.len)),
    };
    AxisEntries::digest(|see| {
        text::each(&array, |_, entry| {
            see(entry);
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::encode::store::saved;
    use npyfs_base::npy::dtype::DType;
    use npyfs_io::content::InMemory;

    fn content(bytes: Vec<u8>) -> Arc<dyn Content> {
        Arc::new(InMemory(bytes))
    }

    #[test]
    fn entries_are_the_same_however_they_are_stored() {
        let letters = |text: &str, width: usize| -> Vec<u8> {
            let mut codes: Vec<u32> = text.chars().map(u32::from).collect();
            codes.resize(width, 0);
            codes.into_iter().flat_map(u32::to_le_bytes).collect()
        };
        let narrow = read_entries(&content(saved(&DType::bytes(2), &[2], b"a\0bc"))).unwrap();
        let wide = read_entries(&content(saved(&DType::bytes(4), &[2], b"a\0\0\0bc\0\0"))).unwrap();
        let payload = [letters("a", 3), letters("bc", 3)].concat();
        let text = read_entries(&content(saved(&DType::text(3), &[2], &payload))).unwrap();
        assert_eq!((&narrow, &narrow), (&wide, &text));
        let other = read_entries(&content(saved(&DType::bytes(2), &[2], b"bca\0"))).unwrap();
        assert_ne!(narrow, other);
        assert!(read_entries(&content(saved(&DType::int(1), &[2], b"ab"))).is_err());
    }
}
