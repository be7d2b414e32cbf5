//! The place of a store's checkouts: beside it, or in a directory of their own below one that is given.
//!
//! A given directory may have checkouts of many stores. Each store has a directory there, and a file in it says of
//! which store it is. Before that was so, checkouts lay in the given directory itself: such a one is the store's
//! whose files its checkouts were begun on.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::CWD;

use super::checkouts::{base_files, name_of};
use super::commits;
use super::format::Registry;
use super::index::IndexChanges;
use super::mirror::{BucketPlace, Mirror};
use crate::error::{Error, ErrorKind, Result};
use crate::io::dir::Dir;
use crate::io::remote::{Address, Scheme};
use crate::io::rights::Rights;
use crate::io::storage::Storage;
use crate::options::RemoteSettings;

/// Ending of the directory beside a store.
pub const SUFFIX: &str = ".checkouts";

/// The file that says whose checkouts a directory has: the path of the store, and a newline.
pub const OWNER: &str = ".store";

/// Longest path that is read.
const LONGEST: u64 = 1 << 16;

/// A directory of checkouts. It need not exist.
#[derive(Clone, Debug)]
pub struct CheckoutsPlace {
    pub(super) dir: PathBuf,
    /// The last name may be a link: the caller has said it.
    pub(super) follow: bool,
    /// The line that its file is to get about the store, if it lacks it.
    pub(super) mark: Option<Vec<u8>>,
    /// Directories of stores of the same name that are not where they were.
    pub(super) abandoned: Vec<PathBuf>,
    /// The bucket that they lie in.
    bucket: Option<Bucket>,
}

/// A place in a bucket; the directory is a copy of it.
#[derive(Clone, Debug)]
struct Bucket {
    address: Address,
    /// It is where the store is, and nobody has said so.
    is_beside: bool,
    /// What the copy itself says, if it was found by its path.
    copy: Option<BucketPlace>,
}

impl CheckoutsPlace {
    /// Beside the store.
    pub fn beside(store: &Path, formats: &Registry) -> Self {
        let mut dir = whole(store, formats).into_os_string();
        dir.push(SUFFIX);
        match Address::parse(Path::new(&dir)) {
            Some(Ok(address)) if address.scheme() != Scheme::Web => Self::in_bucket(address, true),
            _ => Self::of(dir.into(), false),
        }
    }

    fn of(dir: PathBuf, follow: bool) -> Self {
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
            ..Self::of(path, false)
        }
    }

    /// At an address: that of the directory itself, if it ends as such; else below it.
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

    /// Has a bucket asked for in this way, and returns in which way it is asked for then.
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

    /// Returns the address of the bucket that they lie in.
    pub fn bucket(&self) -> Option<&Address> {
        self.bucket.as_ref().map(|bucket| &bucket.address)
    }

    /// Returns whether they lie beside the store because nobody has said where.
    pub fn is_beside(&self) -> bool {
        self.bucket.as_ref().is_some_and(|bucket| bucket.is_beside)
    }

    /// In `dir` itself.
    pub fn at(dir: &Path) -> Self {
        let copy = Mirror::place_of(dir);
        let address = copy.as_ref().and_then(BucketPlace::address);
        let bucket = address.map(|address| Bucket {
            address,
            is_beside: false,
            copy,
        });
        Self {
            bucket,
            ..Self::of(dir.to_owned(), true)
        }
    }

    /// In the directory below `dir` that is the store's; a new one if there is none.
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
                    return Ok(Self::of(path, false));
                }
                Some(other) if is_gone(Path::new(OsStr::from_bytes(&other))) => {
                    abandoned.push(path);
                }
                _ => {}
            }
        }
        if let Some(old) = Self::old(&store, dir, rights)? {
            return Ok(old);
        }
        Ok(Self {
            mark: Some(own.to_vec()),
            abandoned,
            ..Self::of(free.unwrap_or_default(), false)
        })
    }

    /// `dir` itself, if checkouts of the store lie there.
    fn old(store: &Path, dir: &Path, rights: &Rights) -> Result<Option<Self>> {
        // Such directories are older than stores that lie elsewhere.
        if Address::parse(store).is_some() {
            return Ok(None);
        }
        let is_there = |name: &str| dir.join(name).symlink_metadata().is_ok();
        if !is_there(commits::LOCK) && !is_there(commits::NAME) {
            return Ok(None);
        }
        let own = store.as_os_str().as_bytes();
        let opened = Dir::open(dir, rights, true)?;
        let this = |mark| {
            Some(Self {
                mark,
                ..Self::of(dir.to_owned(), true)
            })
        };
        match owner(&opened)? {
            Some(other) => return Ok(this(None).filter(|_| other == own)),
            None if begun_on(&opened, store)? != Some(false) => {}
            None => {
                let (dir, store) = (dir.display(), store.display());
                let message = format!(
                    "{dir}: it has checkouts of a store that is not named, and the files of {store} are not those \
                     that they were begun on; if they are its own, write {store} into {dir}/{OWNER}"
                );
                return Err(Error::new(ErrorKind::Os(libc::EINVAL), message));
            }
        }
        Ok(this(Some(own.to_vec())))
    }

    /// Returns the path of the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Opens the directory; ENOENT if it is not there.
    pub fn open(&self, rights: &Rights) -> Result<Dir> {
        Dir::open(&self.dir, rights, self.follow)
    }

    /// Opens the directory, which is made if it is not there.
    pub fn make(&self, rights: &Rights, storage: &dyn Storage) -> Result<Dir> {
        let about = |e: std::io::Error| Error::from(e).about(self.dir.display());
        let Some(mark) = &self.mark else {
            // Until it has the lock file, nobody may have seen to it that the directory survives a loss of power.
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
                // Somebody was faster.
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

    /// Makes a directory that has its file from the beginning.
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
            // Nothing but an empty directory is replaced.
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

/// Returns true if there is no store at a path any more. Of what lies elsewhere that cannot be said.
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

/// A store's path; all files of a distributed set are one store.
fn whole(store: &Path, formats: &Registry) -> PathBuf {
    let name = store.file_name().unwrap_or_default().as_bytes();
    match formats.set_of(None, Path::new(""), name) {
        Some(set) => store.with_file_name(OsStr::from_bytes(&set.marked())),
        None => store.to_owned(),
    }
}

/// The store whose checkouts a directory has, if its file says it.
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

/// Returns whether a checkout in a directory was begun on the files of a store; `None`: nothing tells.
pub(super) fn begun_on(dir: &Dir, store: &Path) -> Result<Option<bool>> {
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
