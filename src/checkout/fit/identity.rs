//! The identity of a store: what it was when the first object was written over it, to tell whether it is still that store.
//!
//! Stores are copied, moved, and extended by the programs that own them, so neither name, inode, time nor length say
//! anything. A store is known again by what is in it: by the entries of its axes if it has any, else by type,
//! shape and first elements of a few of its arrays.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::read_entries;
use crate::checkout::against::{AxisEntries, digest};
use crate::checkout::encode::header;
use crate::checkout::format::Registry;
use crate::error::{ErrorKind, Result};
use crate::io::content::Content;
use crate::tree::{Directory, Node, VirtualFile};

/// Arrays and axes that are remembered, at most.
const MOST_ARRAYS: usize = 16;
const MOST_AXES: usize = 64;

/// Groups that are looked into, at most.
const MOST_GROUPS: usize = 64;

/// Bytes of the first elements that are remembered.
const START: u64 = 4096;

/// Of so many arrays that a store had, one must be what it was.
const ONE_OF: usize = 4;

/// The spelling of names: in keys, and as the store shows them.
pub trait KeySpelling {
    /// Returns a shown name as keys spell it.
    fn key(&self, shown: &[u8]) -> Vec<u8>;

    /// Returns a name of a key as the store shows it.
    fn shown(&self, key: &[u8]) -> Vec<u8>;
}

/// The identity of a store: what it is known again by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreIdentity {
    /// Name of the format by whose rules it is shown. For people.
    pub kind: String,
    /// The axes of the store.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub axes: Vec<KnownAxis>,
    /// Some arrays of the store.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arrays: Vec<KnownArray>,
    /// Fields of newer versions, kept as they are.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

/// An axis of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownAxis {
    /// Its key below that of the store.
    pub path: String,
    pub entries: AxisEntries,
}

/// An array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownArray {
    /// Its key below that of the store.
    pub path: String,
    pub dtype: String,
    pub shape: Vec<u64>,
    /// The number of bytes of its elements, in C order, that were looked at; `start` is their digest.
    pub bytes: u64,
    pub start: String,
}

impl StoreIdentity {
    /// Looks at the store in `dir`, whose layers are not shown.
    pub fn of(
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
            let format = formats.of(&*dir)?;
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
                        if format.is_axis(own) {
                            if identity.axes.len() < MOST_AXES
                                && let Ok(entries) =
                                    file.open().and_then(|file| read_entries(&file))
                            {
                                let path = path(own);
                                identity.axes.push(KnownAxis { path, entries });
                            }
                        } else if identity.arrays.len() < MOST_ARRAYS
                            // What cannot be read is nothing to know the store by.
                            && let Ok(array) = KnownArray::of(path(own), &**file)
                        {
                            match array.shape.iter().all(|&n| n < 2) {
                                true => scalars.push(array),
                                false => identity.arrays.push(array),
                            }
                        }
                    }
                    Node::Symlink(_) => {}
                }
                if identity.arrays.len() >= MOST_ARRAYS && !format.has_axes() {
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

    /// Returns whether the store in `dir` is this one, as far as can be told: arrays that `is_hidden` below layers, and what
    /// cannot be read now, say nothing.
    pub fn is_still(
        &self,
        dir: &Arc<dyn Directory>,
        spelling: &dyn KeySpelling,
        is_hidden: &dyn Fn(&str) -> bool,
    ) -> bool {
        let find = |path: &str| -> Result<Option<Arc<dyn VirtualFile>>> {
            let (above, last) = path.rsplit_once('/').unwrap_or(("", path));
            let mut dir = dir.clone();
            for name in above.split('/').filter(|name| !name.is_empty()) {
                match dir.lookup(&spelling.shown(name.as_bytes()))? {
                    Some(Node::Directory(below)) => dir = below,
                    _ => return Ok(None),
                }
            }
            let name = [&spelling.shown(last.as_bytes()), &b".npy"[..]].concat();
            match dir.lookup(&name)? {
                Some(Node::File(file)) => Ok(Some(file)),
                _ => Ok(None),
            }
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
            // What is no axis any more is another one.
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
    fn of(path: String, file: &dyn VirtualFile) -> Result<Self> {
        let file = file.open()?;
        let header = header(&*file)?;
        let bytes = header.len.min(START);
        Ok(Self {
            path,
            dtype: header.dtype.name(),
            start: start(&*file, header.start, bytes)?,
            shape: header.shape,
            bytes,
        })
    }

    /// Returns whether a file has these elements; there may be more of them behind along the first dimension.
    fn is_start_of(&self, file: &dyn VirtualFile) -> Result<bool> {
        let file = file.open()?;
        let header = header(&*file)?;
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

/// The digest of the first bytes of elements.
fn start(file: &dyn Content, at: u64, bytes: u64) -> Result<String> {
    let mut start = vec![0; usize::try_from(bytes.min(START)).unwrap_or(0)];
    file.read_at(at, &mut start)?;
    Ok(digest(&start))
}
