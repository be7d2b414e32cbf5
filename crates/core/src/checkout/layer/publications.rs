//! The publications of a store: files of links that depend on files of its layers. They are listed beside the commits.
//!
//! A publication counts as long as there is a file at its path. Until then the files of layers that it links to are not
//! removed: neither those of objects that are written again, nor those of a checkout to be discarded. The list is
//! changed under the lock for commits.

use std::collections::{BTreeMap, HashSet};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::checkout::records::form::Form;
use crate::checkout::records::record_log::{self, LogRecord};
use npyfs_base::error::Result;
use npyfs_io::dir::Dir;

/// The name of the list. No checkout can have this name.
pub const NAME: &str = ".published";

pub(in crate::checkout) const FORM: Form = Form {
    name: "npyfs published",
    version: 1,
};

/// A publication and the files that it depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicationRecord {
    /// The path, relative to the directory of the list.
    pub out: String,
    /// The time of its creation, in nanoseconds since 1970.
    pub time: i64,
    /// Numbers of the files that it links to, by the directory of the layer.
    pub layers: BTreeMap<String, Vec<u64>>,
    /// Fields of newer versions, preserved unchanged.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

impl LogRecord for PublicationRecord {
    fn parse(json: &str) -> serde_json::Result<Self> {
        serde_json::from_str(json)
    }

    fn print(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

impl PublicationRecord {
    /// Returns its absolute path.
    pub fn path(&self, dir: &Dir) -> PathBuf {
        dir.path().join(&self.out)
    }

    fn exists(&self, dir: &Dir) -> bool {
        self.path(dir).symlink_metadata().is_ok()
    }
}

/// Returns the publications in a directory of checkouts whose files exist. Of two with the same path, the later one
/// counts.
pub fn standing(dir: &Dir) -> Result<Vec<PublicationRecord>> {
    Ok(only_standing(
        dir,
        record_log::read(dir, NAME, FORM)?.unwrap_or_default(),
    ))
}

pub(in crate::checkout) fn only_standing(
    dir: &Dir,
    all: Vec<PublicationRecord>,
) -> Vec<PublicationRecord> {
    let by_path: BTreeMap<String, PublicationRecord> = all
        .into_iter()
        .map(|record| (record.out.clone(), record))
        .collect();
    let standing = by_path.into_values();
    standing.filter(|record| record.exists(dir)).collect()
}

/// Returns the numbers of the files of a layer that publications link to.
pub(in crate::checkout) fn published(layer: &Dir) -> Result<HashSet<u64>> {
    let Some(top) = layer.above() else {
        return Ok(HashSet::new());
    };
    let name = layer.name();
    let all = standing(top)?.into_iter();
    Ok(all
        .filter_map(|mut record| record.layers.remove(&name))
        .flatten()
        .collect())
}

/// Returns the paths of the publications that link to files of a layer.
pub(in crate::checkout) fn of_layer(layer: &Dir) -> Result<Vec<PathBuf>> {
    let Some(top) = layer.above() else {
        return Ok(Vec::new());
    };
    let name = layer.name();
    let all = standing(top)?.into_iter();
    let leading = all.filter(|record| record.layers.contains_key(&name));
    Ok(leading.map(|record| plain(&record.path(top))).collect())
}

/// Returns a path in which each `..` is resolved lexically.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            part => plain.push(part),
        }
    }
    plain
}
