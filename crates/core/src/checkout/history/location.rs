//! The location of a store's checkouts: beside the store, or in a subdirectory of a given directory.
//!
//! A given directory may hold checkouts of many stores. Each store has a subdirectory with a file that names the store.
//! In an older layout the checkouts were in the given directory itself: it belongs to the store whose files its
//! checkouts were begun on.
//!
//! Checkouts are left behind when their store is moved or renamed within its directory (`LeftBehind`). The store is
//! then recognized by the files that it had when a checkout was begun: their sizes and times survive a move. Only the
//! indexes of checkouts are opened.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{DirBuilder, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::CWD;

use super::commits;
use crate::checkout::mirror::{BucketPlace, Mirror};
use crate::checkout::records::index::{BaseFile, IndexChanges};
use crate::checkout::records::names::name_of;
use crate::store::format::Registry;
use crate::store::{CHECKOUTS_SUFFIX, is_checkouts};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::options::RemoteSettings;
use npyfs_base::printable::shell_word;
use npyfs_io::dir::Dir;
use npyfs_io::file::Identity;
use npyfs_io::remote::{Address, RemoteObject, Scheme};
use npyfs_io::rights::Rights;
use npyfs_io::storage::Storage;

pub use crate::store::CHECKOUTS_SUFFIX as SUFFIX;

/// The file that names the store of a directory of checkouts: its path and a newline.
pub const OWNER: &str = ".store";

/// The longest path that is read.
const LONGEST: u64 = 1 << 16;

/// A directory of checkouts. It need not exist.
#[derive(Clone, Debug)]
pub struct CheckoutsPlace {
    dir: PathBuf,
    /// Whether the last component may be a symbolic link, because the user gave the path.
    follow: bool,
    /// The line about the store that its file still needs.
    mark: Option<Vec<u8>>,
    /// Directories of stores with the same name that no longer exist at their paths.
    abandoned: Vec<PathBuf>,
    /// The bucket that holds the checkouts.
    bucket: Option<Bucket>,
}

/// A location in a bucket; the directory is its local copy.
#[derive(Clone, Debug)]
struct Bucket {
    address: Address,
    /// Whether this is the default location beside the store.
    is_beside: bool,
    /// The settings stored in the copy, if it was found by its path.
    copy: Option<BucketPlace>,
}

impl CheckoutsPlace {
    /// Returns the location beside the store.
    pub fn beside(store: &Path, formats: &Registry) -> Self {
        let mut dir = whole(store, formats).into_os_string();
        dir.push(SUFFIX);
        match Address::parse(Path::new(&dir)) {
            Some(Ok(address)) if address.scheme() != Scheme::Web => Self::in_bucket(address, true),
            _ => Self::new(dir.into(), false),
        }
    }

    fn new(dir: PathBuf, follow: bool) -> Self {
        Self {
            dir,
            follow,
            mark: None,
            abandoned: Vec::new(),
            bucket: None,
        }
    }

    fn in_bucket(address: Address, is_beside: bool) -> Self {
        let path = Mirror::path(&address, &RemoteSettings::default());
        let bucket = Bucket {
            address,
            is_beside,
            copy: None,
        };
        Self {
            bucket: Some(bucket),
            ..Self::new(path, false)
        }
    }

    /// Returns the location at an address. An address that ends in the suffix of such directories is the directory
    /// itself; otherwise the directory is below it.
    fn at_address(store: &Path, address: Address, formats: &Registry) -> Self {
        let given = address.to_string();
        let given = given.trim_end_matches('/');
        if given.ends_with(SUFFIX) {
            return Self::in_bucket(address, false);
        }
        let whole = whole(store, formats);
        let name = whole.file_name().unwrap_or_default().to_string_lossy();
        let below = format!("{given}/{name}{SUFFIX}");
        match Address::parse(Path::new(&below)) {
            Some(Ok(address)) => Self::in_bucket(address, false),
            _ => Self::in_bucket(address, false),
        }
    }

    /// Sets the access settings of a bucket, and returns the resulting settings.
    pub fn asking(&mut self, settings: &Arc<RemoteSettings>) -> Arc<RemoteSettings> {
        match &self.bucket {
            None => settings.clone(),
            Some(Bucket {
                copy: Some(copy), ..
            }) => Arc::new(copy.fill(settings)),
            Some(Bucket { address, .. }) => {
                self.dir = Mirror::path(address, settings);
                settings.clone()
            }
        }
    }

    /// Returns the address of the bucket.
    pub fn bucket(&self) -> Option<&Address> {
        self.bucket.as_ref().map(|bucket| &bucket.address)
    }

    /// Returns whether this is the default location beside the store.
    pub fn is_beside(&self) -> bool {
        self.bucket.as_ref().is_some_and(|bucket| bucket.is_beside)
    }

    /// Returns `dir` itself as the location.
    pub fn at(dir: &Path) -> Self {
        // A copy of another form is refused when it is opened.
        let copy = Mirror::place_of(dir).unwrap_or_default();
        let address = copy.as_ref().and_then(BucketPlace::address);
        let bucket = address.map(|address| Bucket {
            address,
            is_beside: false,
            copy,
        });
        Self {
            bucket,
            ..Self::new(dir.to_owned(), true)
        }
    }

    /// Returns the store's directory below `dir`; a new one if there is none.
    pub fn below(store: &Path, dir: &Path, formats: &Registry, rights: &Rights) -> Result<Self> {
        if let Some(Ok(address)) = Address::parse(dir) {
            return Ok(Self::at_address(store, address, formats));
        }
        let store = whole(store, formats);
        let name = store.file_name().unwrap_or_default();
        let own = store.as_os_str().as_bytes();
        let mut free = None;
        let mut abandoned = Vec::new();
        for number in 1_u64.. {
            let mut name = name.to_owned();
            if number > 1 {
                name.push(format!("~{number}"));
            }
            name.push(SUFFIX);
            let path = dir.join(name);
            let found = match Dir::open(&path, rights, false) {
                Ok(found) => found,
                Err(e) if e.kind == ErrorKind::NotFound => {
                    free = Some(path);
                    break;
                }
                Err(e) => return Err(e),
            };
            match owner(&found)? {
                Some(owner) if owner == own => {
                    return Ok(Self::new(path, false));
                }
                Some(other) if is_gone(Path::new(OsStr::from_bytes(&other))) => {
                    abandoned.push(path);
                }
                _ => {}
            }
        }
        refuse_old(dir)?;
        Ok(Self {
            mark: Some(own.to_vec()),
            abandoned,
            ..Self::new(free.unwrap_or_default(), false)
        })
    }

    /// Returns the path of the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Opens the directory; ENOENT if it does not exist.
    pub fn open(&self, rights: &Rights) -> Result<Dir> {
        if self.follow {
            Mirror::place_of(&self.dir)?;
        }
        Dir::open(&self.dir, rights, self.follow)
    }

    /// Opens the directory, and creates it if it does not exist.
    pub fn make(&self, rights: &Rights, storage: &dyn Storage) -> Result<Dir> {
        let about = |e: std::io::Error| Error::from(e).about(self.dir.display());
        let Some(mark) = &self.mark else {
            // Without a lock file, the directory may not be durable yet.
            match self.open(rights) {
                Err(e) if e.kind == ErrorKind::NotFound => {}
                Ok(dir) if dir.metadata(commits::LOCK).is_err() => {}
                opened => return opened,
            }
            let (dir, _) = Dir::make_at(&self.dir, rights, self.follow)?;
            sync_parent(&self.dir).map_err(about)?;
            return Ok(dir);
        };
        let written = |dir: &Dir| -> std::io::Result<()> {
            let file = match storage.create(dir, OWNER) {
                // Another process created it in the meantime.
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => return Ok(()),
                file => file?,
            };
            let line = [mark, &b"\n"[..]].concat();
            rights.settle(&file)?;
            storage.write_at(&file, &line, 0)?;
            storage.sync(&file)?;
            storage.sync_dir(dir)
        };
        let opened = match self.open(rights) {
            Err(e) if e.kind == ErrorKind::NotFound => self.make_marked(rights, written)?,
            Ok(dir) => {
                written(&dir).map_err(about)?;
                dir
            }
            Err(e) => return Err(e),
        };
        match owner(&opened)? {
            Some(owner) if owner == *mark => Ok(opened),
            _ => {
                let message = "another store has just begun to use it: once more, please";
                let busy = ErrorKind::Os(libc::EBUSY);
                Err(Error::new(busy, message).about(self.dir.display()))
            }
        }
    }

    /// Creates a directory that has its file from the start.
    fn make_marked(
        &self,
        rights: &Rights,
        write: impl FnOnce(&Dir) -> std::io::Result<()>,
    ) -> Result<Dir> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let about = |e: std::io::Error| Error::from(e).about(self.dir.display());
        let above = self.dir.parent().unwrap_or(Path::new("/"));
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(rights.mode(true));
        builder.create(above).map_err(about)?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let new = above.join(format!(".new-{}-{number}", std::process::id()));
        let (dir, _) = Dir::make_at(&new, rights, false)?;
        let done = write(&dir).and_then(|()| {
            // Only an empty directory is replaced.
            Ok(rustix::fs::renameat(CWD, &new, CWD, &self.dir)?)
        });
        if let Err(e) = done {
            let _ = dir.remove(OWNER);
            let _ = std::fs::remove_dir(&new);
            if !matches!(e.raw_os_error(), Some(libc::EEXIST | libc::ENOTEMPTY)) {
                return Err(about(e));
            }
        }
        sync_parent(&self.dir).map_err(about)?;
        self.open(rights)
    }
}

/// Refuses a directory that holds checkouts itself, instead of a directory for each store.
fn refuse_old(dir: &Path) -> Result<()> {
    let is_there = |name: &str| dir.join(name).symlink_metadata().is_ok();
    if !is_there(commits::LOCK) && !is_there(commits::NAME) {
        return Ok(());
    }
    let why = "checkouts lie in it itself, as older versions of npyfs had it: rename it to STORE.checkouts beside their store, \
               where they are found without --checkouts";
    Err(Error::new(ErrorKind::Os(libc::EINVAL), why).about(dir.display()))
}

/// Returns true if there is no store at a path any more. Unknown for remote stores: false.
fn is_gone(store: &Path) -> bool {
    Address::parse(store).is_none() && store.symlink_metadata().is_err()
}

fn sync_parent(dir: &Path) -> std::io::Result<()> {
    let parent = match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
}

/// Returns the path of the whole store; all files of a distributed set are one store.
fn whole(store: &Path, formats: &Registry) -> PathBuf {
    let name = store.file_name().unwrap_or_default().as_bytes();
    match formats.set_of(None, Path::new(""), name) {
        Some(set) => store.with_file_name(OsStr::from_bytes(&set.marked())),
        None => store.to_owned(),
    }
}

/// Returns the store that a directory's file names, if it has one.
fn owner(dir: &Dir) -> Result<Option<Vec<u8>>> {
    let file = match dir.read(OWNER) {
        Err(e) if e.kind == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut path = Vec::new();
    let read = file.take(LONGEST).read_to_end(&mut path);
    read.map_err(|e| Error::from(e).about(dir.path().join(OWNER).display()))?;
    Ok(path.strip_suffix(b"\n").map(<[u8]>::to_vec).or(Some(path)))
}

/// Returns whether a checkout in a directory was begun on the files of a store; `None` if no checkout records it.
fn begun_on(dir: &Dir, store: &Path) -> Result<Option<bool>> {
    let now = base_files(store);
    let mut told = None;
    let about = |e: std::io::Error| Error::from(e).about(dir.path().display());
    for (name, kind) in dir.names().map_err(about)? {
        let layer = name
            .to_str()
            .filter(|name| kind.is_dir() && name_of(name).is_some());
        let Some(layer) = layer else {
            continue;
        };
        let begun = IndexChanges::read(&dir.below(layer)?)?.begun;
        let before = begun.and_then(|begun| begun.base).unwrap_or_default();
        if let Some(now) = &now
            && !before.is_empty()
        {
            if before.iter().any(|file| now.contains(file)) {
                return Ok(Some(true));
            }
            told = Some(false);
        }
    }
    Ok(told)
}

/// The most names that are read in the store's directory.
const MOST_NAMES: usize = 65_536;

/// The most directories of checkouts that are opened.
const MOST_LOOKS: usize = 64;

/// Checkouts that were left behind by their store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftBehind {
    /// The directory that they are in.
    dir: PathBuf,
    repair: Repair,
}

/// How to return the checkouts to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Repair {
    /// Rename the directory to this.
    Rename(PathBuf),
    /// Record the store in this file of the directory.
    Mark(PathBuf),
}

impl LeftBehind {
    /// Returns the error for writes: new checkouts would occupy the place that these need.
    pub fn refusal(&self) -> String {
        format!(
            "{} has the checkouts of this store, which was moved: before anything is written they go along, or out of that \
             directory: {}",
            self.dir.display(),
            self.command()
        )
    }

    /// Returns the command that returns the checkouts to the store.
    pub fn command(&self) -> String {
        match &self.repair {
            Repair::Rename(to) => format!("mv {} {}", shell_word(&self.dir), shell_word(to)),
            Repair::Mark(store) => {
                let file = self.dir.join(OWNER);
                format!("echo {} > {}", shell_word(store), shell_word(&file))
            }
        }
    }
}

impl fmt::Display for LeftBehind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} has the checkouts of this store, which was moved: they are not shown until {}",
            self.dir.display(),
            self.command()
        )
    }
}

impl CheckoutsPlace {
    /// Returns the checkouts that a store without any has left behind, if its files identify them.
    pub fn left_behind(&self, store: &Path, rights: &Rights) -> Option<LeftBehind> {
        if self.bucket().is_some() || self.dir.symlink_metadata().is_ok() {
            return None;
        }
        let is_its = |dir: &PathBuf| {
            let opened = Dir::open(dir, rights, false);
            opened.is_ok_and(|opened| matches!(begun_on(&opened, store), Ok(Some(true))))
        };
        let (candidates, repair) = match &self.mark {
            Some(own) => {
                let store = PathBuf::from(OsStr::from_bytes(own));
                (self.abandoned.clone(), Repair::Mark(store))
            }
            None if self.follow => return None,
            None => (
                orphans(self.dir.parent()?),
                Repair::Rename(self.dir.clone()),
            ),
        };
        let mut candidates = candidates.into_iter().take(MOST_LOOKS);
        let dir = candidates.find(is_its)?;
        Some(LeftBehind { dir, repair })
    }
}

/// Returns the directories of checkouts in a directory whose stores are not beside them.
fn orphans(dir: &Path) -> Vec<PathBuf> {
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let orphan = |path: PathBuf| {
        let store = path
            .as_os_str()
            .as_bytes()
            .strip_suffix(SUFFIX.as_bytes())?;
        let is_gone = Path::new(OsStr::from_bytes(store))
            .symlink_metadata()
            .is_err();
        (is_gone && is_checkouts(&path)).then_some(path)
    };
    let names = names.take(MOST_NAMES);
    let mut orphans: Vec<PathBuf> = names.filter_map(|entry| orphan(entry.path())).collect();
    orphans.sort();
    orphans
}

/// Returns the directory of checkouts of a store that no longer exists at its path.
pub fn orphaned_at(store: &Path) -> Option<PathBuf> {
    if store.symlink_metadata().is_ok() {
        return None;
    }
    let mut dir = store.as_os_str().to_owned();
    dir.push(SUFFIX);
    Some(PathBuf::from(dir)).filter(|dir| is_checkouts(dir))
}

/// The most files of a store that are recorded.
const MOST_BASE_FILES: usize = 10_000;

/// Returns the current state of the object at an address; `None` if it is not accessible.
pub(super) fn base_object(
    address: &Address,
    settings: &Arc<RemoteSettings>,
) -> Option<Vec<BaseFile>> {
    let version = RemoteObject::newest(address, settings).ok()?;
    let identity = Identity::elsewhere(0, version.size, version.modified);
    Some(vec![BaseFile {
        path: String::new(),
        size: version.size,
        modified: identity.modified(),
        version: version.etag,
    }])
}

/// Returns the files of the store at `path`; `None` if there are too many or they are not accessible.
pub(super) fn base_files(path: &Path) -> Option<Vec<BaseFile>> {
    fn walk(top: &Path, path: &Path, to: &mut Vec<BaseFile>) -> Option<()> {
        let meta = std::fs::symlink_metadata(path).ok()?;
        if meta.is_dir() {
            if path != top
                && path
                    .as_os_str()
                    .as_encoded_bytes()
                    .ends_with(CHECKOUTS_SUFFIX.as_bytes())
            {
                return Some(());
            }
            for entry in std::fs::read_dir(path).ok()? {
                walk(top, &entry.ok()?.path(), to)?;
            }
        } else if meta.is_file() {
            let identity = Identity::from_metadata(&meta);
            to.push(BaseFile {
                path: path.strip_prefix(top).ok()?.to_str()?.to_owned(),
                size: identity.size,
                modified: identity.modified(),
                version: None,
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
    use super::*;

    #[test]
    fn the_command_is_one_for_a_shell() {
        let left = |dir: &str, repair| LeftBehind {
            dir: dir.into(),
            repair,
        };
        let renamed = left(
            "/a/x.h5.checkouts",
            Repair::Rename("/a/it's.checkouts".into()),
        );
        assert_eq!(
            renamed.command(),
            r"mv /a/x.h5.checkouts '/a/it'\''s.checkouts'"
        );
        let marked = left("/all/x.h5.checkouts", Repair::Mark("/b c/x.h5".into()));
        assert_eq!(
            marked.command(),
            "echo '/b c/x.h5' > /all/x.h5.checkouts/.store"
        );
    }
}
