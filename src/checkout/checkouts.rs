//! The checkouts of a store: a directory beside it, with a directory for each layer and the list of
//! those that are committed (`commits`).
//!
//! The layer of the checkout NAME is `NAME`, or `NAME~2` and so on if layers of that name were committed before.
//! The files of the store are looked at, never opened.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::commits::{self, Commit};
use super::holder::Holder;
use super::index::{BaseFile, Begun, Changes, Stored};
use super::layer::{self, Layer, nanoseconds};
use super::storage::Storage;
use crate::error::{Error, ErrorKind, Result};
use crate::h5::Creator;
use crate::raw::Identity;
use crate::store::arkouda::PartName;

/// Ending of the directory beside a store.
pub const SUFFIX: &str = ".checkouts";

/// Longest name of a checkout.
const LONGEST_NAME: usize = 200;

/// Files of a base that are remembered, at most.
const MOST_BASE_FILES: usize = 10_000;

/// The files of a layer and what they are.
#[derive(Clone, Debug)]
pub struct LayerFiles {
    pub dir: PathBuf,
    /// Every object that was changed; `None`: it was deleted.
    pub entries: BTreeMap<String, Option<Stored>>,
}

impl LayerFiles {
    /// Where the file of an object is.
    pub fn path(&self, stored: &Stored) -> PathBuf {
        layer::path_in(&self.dir, stored)
    }
}

/// A checkout that this process writes in, and the committed layers below it, lowest first.
pub struct Opened {
    pub layer: Layer,
    pub below: Vec<LayerFiles>,
}

/// A checkout as `npyfs checkout ls` shows it.
#[derive(Clone, Debug)]
pub struct Summary {
    pub name: String,
    pub dir: PathBuf,
    pub changes: Changes,
    /// The commit it became, and its number from 1 on.
    pub commit: Option<(usize, Commit)>,
    /// Who writes in it now.
    pub holder: Option<String>,
}

impl Summary {
    /// Where the file of an object is.
    pub fn path(&self, stored: &Stored) -> PathBuf {
        layer::path_in(&self.dir, stored)
    }
}

/// The directory of all checkouts of a store. It need not exist.
#[derive(Clone, Debug)]
pub struct Checkouts {
    store: PathBuf,
    dir: PathBuf,
}

impl Checkouts {
    /// Those of `store`, in `dir` or, if that is not said, beside the store.
    pub fn of(store: &Path, dir: Option<&Path>) -> Self {
        let beside = || {
            let name = store.file_name().unwrap_or_default().as_bytes();
            // All files of a distributed set are one store.
            let mut name = match PartName::parse(name) {
                Some(part) => [part.prefix, b"_LOCALE", part.extension].concat(),
                None => name.to_vec(),
            };
            name.extend_from_slice(SUFFIX.as_bytes());
            store.with_file_name(OsStr::from_bytes(&name))
        };
        Self {
            store: store.to_owned(),
            dir: dir.map_or_else(beside, Path::to_owned),
        }
    }

    pub fn store(&self) -> &Path {
        &self.store
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The committed layers, lowest first. Takes no lock.
    pub fn committed(&self) -> Result<Vec<LayerFiles>> {
        self.layers(&commits::read(&self.dir)?)
    }

    /// The layers of `commits`.
    pub(super) fn layers(&self, commits: &[Commit]) -> Result<Vec<LayerFiles>> {
        let files = |commit: &Commit| {
            let dir = self.dir.join(&commit.layer);
            if !dir.join(super::index::NAME).is_file() {
                let message = "the index of a committed checkout is gone";
                return Err(Error::damaged(message).about(dir.display()));
            }
            let mut entries = Changes::read(&dir)?.entries;
            entries.retain(|path, _| !commit.without.contains(path));
            Ok(LayerFiles { dir, entries })
        };
        commits.iter().map(files).collect()
    }

    /// Opens the checkout `name` to write in it; a new one is begun if there is none. EBUSY, with the name
    /// of the holder, if another process writes in it.
    ///
    /// `creator` is asked for what makes files in the directory of the layer.
    pub fn open(
        &self,
        name: &str,
        storage: Arc<dyn Storage>,
        creator: impl FnOnce(&Path) -> Creator,
    ) -> Result<Opened> {
        check_name(name)?;
        // Until it has the lock file, nobody may have seen to it that the directory survives a loss of power.
        if !self.dir.join(commits::LOCK).is_file() {
            let about = |e: std::io::Error| Error::from(e).about(self.dir.display());
            std::fs::create_dir_all(&self.dir).map_err(about)?;
            if let Some(parent) = self.dir.parent().filter(|parent| parent.is_dir()) {
                storage.sync_dir(parent).map_err(about)?;
            }
        }
        // Nobody commits or discards between the choice of the directory and its lock.
        let lock = commits::lock(&self.dir)?;
        let commits = commits::read(&self.dir)?;
        let below = self.layers(&commits)?;
        let dir = self.dir_of(name, &commits);
        let layer = Layer::open(&dir, storage, creator(&dir))?;
        drop(lock);
        layer.begin(Begun {
            commits: commits.len() as u64,
            time: nanoseconds(SystemTime::now()),
            base: base_files(&self.store),
        })?;
        Ok(Opened { layer, below })
    }

    /// The layer that a name stands for: the first of that name that is not committed.
    pub(super) fn dir_of(&self, name: &str, commits: &[Commit]) -> PathBuf {
        let taken: HashSet<&str> = commits.iter().map(|c| c.layer.as_str()).collect();
        let names =
            std::iter::once(name.to_owned()).chain((2_u64..).map(|n| format!("{name}~{n}")));
        let free = names
            .into_iter()
            .find(|name| !taken.contains(name.as_str()));
        self.dir.join(free.unwrap_or_default())
    }

    /// The checkout `name` that is not committed; ENOENT if there is none.
    pub fn find(&self, name: &str) -> Result<Summary> {
        check_name(name)?;
        let commits = commits::read(&self.dir)?;
        let dir = self.dir_of(name, &commits);
        if !dir.is_dir() {
            let place = self.dir.display();
            let before = commits.iter().any(|c| name_of(&c.layer) == Some(name));
            let message = match before {
                true => format!("{place}: checkout {name} is committed, and none was begun since"),
                false => format!("{place}: no checkout {name}"),
            };
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        self.summary(name, dir, None)
    }

    fn summary(
        &self,
        name: &str,
        dir: PathBuf,
        commit: Option<(usize, Commit)>,
    ) -> Result<Summary> {
        Ok(Summary {
            name: name.to_owned(),
            changes: Changes::read(&dir)?,
            holder: Holder::look(&dir)?,
            dir,
            commit,
        })
    }

    /// All checkouts: the committed ones in their order, then the others by name.
    pub fn list(&self) -> Result<Vec<Summary>> {
        let commits = commits::read(&self.dir)?;
        let mut all = Vec::new();
        for (at, commit) in commits.iter().enumerate() {
            let name = name_of(&commit.layer).unwrap_or(&commit.layer);
            let dir = self.dir.join(&commit.layer);
            all.push(self.summary(name, dir, Some((at + 1, commit.clone())))?);
        }
        let about = |e: std::io::Error| Error::from(e).about(self.dir.display());
        let entries = match std::fs::read_dir(&self.dir) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(all),
            entries => entries.map_err(about)?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry.map_err(about)?.file_name();
            if let Some(name) = name.to_str().and_then(name_of)
                && !names.iter().any(|known| known == name)
            {
                names.push(name.to_owned());
            }
        }
        names.sort();
        for name in names {
            let dir = self.dir_of(&name, &commits);
            if dir.is_dir() {
                all.push(self.summary(&name, dir, None)?);
            }
        }
        Ok(all)
    }
}

/// EINVAL for what cannot be the name of a checkout.
pub fn check_name(name: &str) -> Result<()> {
    if is_name(name) {
        return Ok(());
    }
    let message = format!(
        "{name:?} cannot be the name of a checkout: letters, digits, . _ and - are allowed, \
         no . at the beginning, at most {LONGEST_NAME} in all, and not {:?}",
        commits::NAME
    );
    Err(Error::new(ErrorKind::Os(libc::EINVAL), message))
}

fn is_name(name: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    !name.is_empty()
        && name.len() <= LONGEST_NAME
        && !name.starts_with('.')
        && name != commits::NAME
        && name.bytes().all(known)
}

/// The name of the checkout that a directory belongs to, if it is one.
pub fn name_of(dir: &str) -> Option<&str> {
    let name = match dir.split_once('~') {
        Some((name, number)) => number.parse::<u64>().ok().map(|_| name)?,
        None => dir,
    };
    is_name(name).then_some(name)
}

/// Whether a directory is one of checkouts: no part of a directory of stores that is mounted.
pub fn is_checkouts(dir: &Path) -> bool {
    dir.as_os_str()
        .as_encoded_bytes()
        .ends_with(SUFFIX.as_bytes())
        && dir.join(commits::LOCK).is_file()
}

/// The files of the store at `path`; `None` if they are too many or cannot be looked at.
pub fn base_files(path: &Path) -> Option<Vec<BaseFile>> {
    fn walk(top: &Path, path: &Path, to: &mut Vec<BaseFile>) -> Option<()> {
        let meta = std::fs::symlink_metadata(path).ok()?;
        if meta.is_dir() {
            if path != top
                && path
                    .as_os_str()
                    .as_encoded_bytes()
                    .ends_with(SUFFIX.as_bytes())
            {
                return Some(());
            }
            for entry in std::fs::read_dir(path).ok()? {
                walk(top, &entry.ok()?.path(), to)?;
            }
        } else if meta.is_file() {
            let identity = Identity::of(&meta);
            to.push(BaseFile {
                path: path.strip_prefix(top).ok()?.to_str()?.to_owned(),
                size: identity.size,
                modified: identity.modified(),
            });
        }
        (to.len() <= MOST_BASE_FILES).then_some(())
    }
    let mut files = Vec::new();
    walk(path, path, &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Some(files)
}

#[cfg(test)]
mod tests {
    use super::super::storage::Disk;
    use super::*;

    fn open(checkouts: &Checkouts, name: &str) -> Result<Opened> {
        checkouts.open(name, Arc::new(Disk), |_| Creator::Local)
    }

    fn names(checkouts: &Checkouts) -> Vec<String> {
        let all = checkouts.list().unwrap();
        all.into_iter().map(|summary| summary.name).collect()
    }

    #[test]
    fn two_checkouts_can_be_open_and_one_cannot_twice() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("x.h5");
        std::fs::write(&store, "123").unwrap();
        let checkouts = Checkouts::of(&store, None);
        assert!(names(&checkouts).is_empty() && checkouts.committed().unwrap().is_empty());
        assert_eq!(checkouts.find("a").unwrap_err().errno(), libc::ENOENT);
        let a = open(&checkouts, "a").unwrap();
        let _b = open(&checkouts, "b").unwrap();
        assert_eq!(open(&checkouts, "a").err().unwrap().errno(), libc::EBUSY);
        assert!(checkouts.find("a").unwrap().holder.is_some());
        drop(a);
        let found = checkouts.find("a").unwrap();
        assert_eq!(found.holder, None);
        assert_eq!(found.dir, dir.path().join("x.h5.checkouts/a"));
        let begun = found.changes.begun.unwrap();
        assert_eq!(begun.commits, 0);
        assert_eq!(begun.base, base_files(&store));
        assert_eq!(begun.base.unwrap()[0].size, 3);
        assert_eq!(names(&checkouts), ["a", "b"]);
    }

    #[test]
    fn names_that_could_lead_elsewhere_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let checkouts = Checkouts::of(&dir.path().join("x.h5"), Some(dir.path()));
        let long = "a".repeat(LONGEST_NAME + 1);
        for name in [
            "", ".", "..", ".a", "a/b", "a~2", "commits", "a b", "\u{e9}", &long,
        ] {
            let refused = open(&checkouts, name).err().unwrap();
            assert_eq!(refused.errno(), libc::EINVAL, "{name:?}");
        }
        assert_eq!(name_of("a-1.b~12"), Some("a-1.b"));
        assert_eq!(name_of("a~b"), None);
        assert_eq!(name_of("commits"), None);
        for (store, want) in [
            ("/d/x.h5", "/d/x.h5.checkouts"),
            ("/d/x_LOCALE0003.h5", "/d/x_LOCALE.h5.checkouts"),
            ("/d", "/d.checkouts"),
        ] {
            assert_eq!(Checkouts::of(Path::new(store), None).dir(), Path::new(want));
        }
    }

    #[test]
    fn files_of_a_directory_are_remembered_but_not_its_checkouts() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("sub/x.h5.checkouts")).unwrap();
        for name in ["b.h5", "a.h5", "sub/x.h5", "sub/x.h5.checkouts/.lock"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        let files = base_files(dir.path()).unwrap();
        let paths: Vec<_> = files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["a.h5", "b.h5", "sub/x.h5"]);
        assert_eq!(base_files(&dir.path().join("none")), None);
    }
}
