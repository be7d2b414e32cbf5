//! The publications of a store: files of links that depend on files of its layers, in a list beside that of the commits.
//!
//! A publication counts as long as something stands at its path. Until then the files of layers that it leads to stay: those of
//! objects that are written again, and those of a checkout that is to be discarded. The list is changed under the lock under
//! which commits are made.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::checkouts::{Checkouts, LayerFiles, dir_of, layer_below, layers};
use super::commits;
use super::index::{IndexChanges, KeptObject};
use super::layer_lock::LayerLock;
use super::mirror::Mirror;
use super::record_log::{self, LogForm, LogRecord, RecordLog};
use crate::error::{Error, ErrorKind, Result};
use crate::io::dir::Dir;
use crate::io::storage::Storage;

/// The name of the list; no checkout has this name.
pub const NAME: &str = ".published";

const FORM: LogForm = LogForm {
    name: "npyfs published",
    version: 1,
};

/// A publication, and what it depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicationRecord {
    /// Its path from the directory of the list.
    pub out: String,
    /// When it was made, in nanoseconds since 1970.
    pub time: i64,
    /// Numbers of the files that it leads to, by the directory of the layer.
    pub layers: BTreeMap<String, Vec<u64>>,
    /// Fields of newer versions, kept as they are.
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
    /// Returns its path.
    pub fn path(&self, dir: &Dir) -> PathBuf {
        dir.path().join(&self.out)
    }

    fn stands(&self, dir: &Dir) -> bool {
        self.path(dir).symlink_metadata().is_ok()
    }
}

/// Returns the publications in a directory of checkouts at whose paths there is something. Of two with one path the later counts.
pub fn standing(dir: &Dir) -> Result<Vec<PublicationRecord>> {
    Ok(only_standing(dir, record_log::read(dir, NAME, FORM)?))
}

fn only_standing(dir: &Dir, all: Vec<PublicationRecord>) -> Vec<PublicationRecord> {
    let by_path: BTreeMap<String, PublicationRecord> = all
        .into_iter()
        .map(|record| (record.out.clone(), record))
        .collect();
    let standing = by_path.into_values();
    standing.filter(|record| record.stands(dir)).collect()
}

/// Returns the numbers of the files of a layer that publications lead to.
pub(super) fn published(layer: &Dir) -> Result<HashSet<u64>> {
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

/// Returns the paths of the publications that lead to files of a layer.
pub(super) fn of_layer(layer: &Dir) -> Result<Vec<PathBuf>> {
    let Some(top) = layer.above() else {
        return Ok(Vec::new());
    };
    let name = layer.name();
    let all = standing(top)?.into_iter();
    let leading = all.filter(|record| record.layers.contains_key(&name));
    Ok(leading.map(|record| plain(&record.path(top))).collect())
}

/// Returns a path without names that the `..` behind them take back.
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

/// What is to be published, kept as it is: nobody commits, discards, or writes in the checkout meanwhile.
pub struct Published {
    /// The layers, lowest first.
    pub layers: Vec<LayerFiles>,
    /// Objects of the checkout that are not complete.
    pub incomplete: Vec<KeptObject>,
    /// The id of the last commit.
    pub commit: Option<String>,
    dir: Option<Dir>,
    _lock: Option<File>,
    _held: Option<LayerLock>,
}

impl Checkouts {
    /// Returns what is committed, with the checkout `name` on top if one is named, to be published. EBUSY if somebody writes in
    /// it.
    pub fn to_publish(&self, name: Option<&str>) -> Result<Published> {
        let mut published = Published {
            layers: Vec::new(),
            incomplete: Vec::new(),
            commit: None,
            dir: self.opened()?,
            _lock: None,
            _held: None,
        };
        if let Some(name) = name {
            self.find(name)?;
        }
        let Some(dir) = &published.dir else {
            return Ok(published);
        };
        published._lock = Some(commits::lock(dir)?);
        let commits = commits::read(dir)?;
        if let (Some(mirror), true) = (Mirror::of(dir), name.is_some() || !commits.is_empty()) {
            let why = "what lies in a bucket cannot be linked to; export copies it";
            let message = format!("{}: {why}", mirror.prefix().address(""));
            return Err(Error::new(ErrorKind::Os(libc::EOPNOTSUPP), message));
        }
        published.commit = commits.last().map(|last| last.id.clone());
        published.layers = layers(dir, &commits)?;
        if let Some(name) = name {
            let layer = layer_below(dir, &dir_of(name, &commits))?;
            published._held = LayerLock::share(&layer)?;
            let changes = IndexChanges::read(&layer)?;
            published.incomplete = changes.incomplete.values().cloned().collect();
            published.layers.push(LayerFiles::of(&layer, changes));
        }
        Ok(published)
    }
}

impl Published {
    /// Remembers a publication, durably, before it has its name; forgets those that are gone.
    pub fn remember(
        &self,
        out: &Path,
        time: i64,
        files: BTreeMap<String, Vec<u64>>,
        storage: Arc<dyn Storage>,
    ) -> Result<()> {
        let Some(dir) = self.dir.as_ref().filter(|_| !files.is_empty()) else {
            return Ok(());
        };
        let from = dir.path().canonicalize()?;
        let record = PublicationRecord {
            out: relative(&from, out).to_string_lossy().into_owned(),
            time,
            layers: files,
            ..PublicationRecord::default()
        };
        let (mut list, mut all) = RecordLog::open((dir, NAME), FORM, storage, || Ok(()))?;
        let known = all.len();
        all.retain(|other: &PublicationRecord| other.out != record.out);
        let mut all = only_standing(dir, all);
        if all.len() == known {
            return list.add(&record);
        }
        all.push(record);
        list.rewrite(&all)
    }
}

/// Returns the path that leads from a directory to a file; both are absolute and without links.
pub fn relative(from: &Path, to: &Path) -> PathBuf {
    let shared = from
        .components()
        .zip(to.components())
        .take_while(|(from, to)| from == to)
        .count();
    let up = from.components().skip(shared).map(|_| Component::ParentDir);
    up.chain(to.components().skip(shared)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::storage::Disk;

    #[test]
    fn paths_lead_from_a_directory_to_a_file() {
        for (from, to, want) in [
            ("/a", "/a/x.h5", "x.h5"),
            ("/a/b/c", "/a/x.h5", "../../x.h5"),
            ("/a/b", "/a/bc/x.h5", "../bc/x.h5"),
            ("/", "/x.h5", "x.h5"),
        ] {
            let found = relative(Path::new(from), Path::new(to));
            assert_eq!(found, Path::new(want), "{from} {to}");
        }
    }

    #[test]
    fn a_publication_counts_as_long_as_its_file_is_there() {
        let top = tempfile::tempdir().unwrap();
        let top = top.path().canonicalize().unwrap();
        let dir = Dir::own(&top.join("s.checkouts"));
        let published = Published {
            layers: Vec::new(),
            incomplete: Vec::new(),
            commit: None,
            dir: Some(dir.clone()),
            _lock: None,
            _held: None,
        };
        let layer = dir.make("work").unwrap().0;
        let remember = |name: &str, files: &[u64]| {
            let files = BTreeMap::from([("work".to_owned(), files.to_vec())]);
            let out = top.join(name);
            published.remember(&out, 1, files, Arc::new(Disk)).unwrap();
        };
        remember("a.h5", &[1, 2]);
        assert!(super::published(&layer).unwrap().is_empty());
        for name in ["a.h5", "b.h5"] {
            std::fs::write(top.join(name), "x").unwrap();
        }
        assert_eq!(super::published(&layer).unwrap(), HashSet::from([1, 2]));
        remember("b.h5", &[3]);
        let outs = |dir: &Dir| -> Vec<String> {
            let all = standing(dir).unwrap().into_iter();
            all.map(|record| record.out).collect()
        };
        assert_eq!(outs(&dir), ["../a.h5", "../b.h5"]);
        std::fs::remove_file(top.join("a.h5")).unwrap();
        remember("b.h5", &[4]);
        assert_eq!(super::published(&layer).unwrap(), HashSet::from([4]));
        let all: Vec<PublicationRecord> = record_log::read(&dir, NAME, FORM).unwrap();
        assert_eq!(all.len(), 1);
    }
}
