//! The layers of a publication, protected from changes until the publication has its name.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::checkout::history::checkouts::{Checkouts, dir_of, layer_below};
use crate::checkout::history::commits;
use crate::checkout::history::committed_layers::{layers, on_top};
use crate::checkout::layer::lock::LayerLock;
use crate::checkout::layer::publications::{FORM, NAME, PublicationRecord, only_standing};
use crate::checkout::mirror::Mirror;
use crate::checkout::records::index::{IndexChanges, KeptObject};
use crate::checkout::records::layer_files::LayerFiles;
use crate::checkout::records::record_log::RecordLog;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::dir::Dir;
use npyfs_io::storage::Storage;

/// The layers to be published. While this exists, no process can commit, discard or write in the checkout.
pub struct Published {
    /// The layers, lowest first.
    pub layers: Vec<LayerFiles>,
    /// Incomplete objects of the checkout.
    pub incomplete: Vec<KeptObject>,
    /// The id of the last commit.
    pub commit: Option<String>,
    dir: Option<Dir>,
    _lock: Option<File>,
    _held: Option<LayerLock>,
}

/// Returns the commits, with the checkout `name` on top if one is given, for a publication. EBUSY if a process writes
/// in the checkout.
pub fn to_publish(checkouts: &Checkouts, name: Option<&str>) -> Result<Published> {
    let mut published = Published {
        layers: Vec::new(),
        incomplete: Vec::new(),
        commit: None,
        dir: checkouts.opened()?,
        _lock: None,
        _held: None,
    };
    if let Some(name) = name {
        checkouts.find(name)?;
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
        let layer = on_top(&layer, changes, &published.layers)?;
        published.layers.push(layer);
    }
    Ok(published)
}

impl Published {
    /// Records a publication, durably, before it has its name; removes the records of publications that no longer
    /// exist.
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

/// Returns the relative path from a directory to a file; both are absolute and contain no symbolic links.
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
    use std::collections::HashSet;

    use super::*;
    use crate::checkout::layer::publications::{published as published_files, standing};
    use crate::checkout::records::record_log;
    use npyfs_io::storage::Disk;

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
        assert!(published_files(&layer).unwrap().is_empty());
        for name in ["a.h5", "b.h5"] {
            std::fs::write(top.join(name), "x").unwrap();
        }
        assert_eq!(published_files(&layer).unwrap(), HashSet::from([1, 2]));
        remember("b.h5", &[3]);
        let outs = |dir: &Dir| -> Vec<String> {
            let all = standing(dir).unwrap().into_iter();
            all.map(|record| record.out).collect()
        };
        assert_eq!(outs(&dir), ["../a.h5", "../b.h5"]);
        std::fs::remove_file(top.join("a.h5")).unwrap();
        remember("b.h5", &[4]);
        assert_eq!(published_files(&layer).unwrap(), HashSet::from([4]));
        let all: Vec<PublicationRecord> = record_log::read(&dir, NAME, FORM).unwrap().unwrap();
        assert_eq!(all.len(), 1);
    }
}
