//! A directory of checkouts that lies in a bucket, and the directory of this machine that is a copy of it.
//!
//! All that is done with checkouts is done with the copy. Before it is looked at, it gets what others have committed (`ensure`) or
//! uploaded (`pull`); files of objects come when they are wanted (`fetch`). What is written is finished in the copy, and then uploaded
//! under names that are never used again (`upload`). Objects never change, but for leases, which say who writes (`lease`).
//!
//! `docs/checkout-format.md` has the objects byte by byte.

mod garbage;
mod lease;
mod part;
mod place;
mod state;
mod upload;

use std::collections::{HashMap, HashSet};
use std::fs::DirBuilder;
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::SystemTime;

use crate::checkout::against::{Digest, digest, hex};
use crate::error::{Error, ErrorKind, Result};
use crate::io::dir::{Dir, Original};
use crate::io::remote::{Address, Prefix};
use crate::io::rights::Rights;
use crate::options::RemoteSettings;

use self::lease::Follows;
use self::part::{FileSum, Part};
use self::state::LayerState;
use self::upload::OwnLease;

pub use garbage::LayerUse;
pub use lease::Lease;
pub use part::LayerContent;
pub use place::BucketPlace;
pub use upload::Upload;

/// The file of a copy that says of what, and how that is asked for.
const ADDRESS: &str = ".address";

/// The file of a copy with the name that leases know it by.
const ID: &str = ".id";

/// The file of a layer that says which files the bucket has of it: a part.
const THERE: &str = "there";

/// The file of a layer that says which lease this copy had last.
const MINE: &str = "mine";

/// Beginning of the name of a directory with what was not uploaded before others took the checkout over.
const LEFT: &str = ".left-";

/// The first commit: there is none without it.
const FIRST: &str = "commits/00000000000000000001.json";

/// The index of a layer.
const INDEX: &str = crate::checkout::index::NAME;

/// Files that the bucket has of a layer, by their names.
type Files = Arc<HashMap<String, FileSum>>;

/// Files that the bucket has, by layer: as a file said that was changed at this time, or as the commit says.
type KnownFiles = HashMap<String, (Option<SystemTime>, Files)>;

/// A copy of a directory of checkouts that lies in a bucket.
pub struct Mirror {
    prefix: Prefix,
    id: String,
    /// Files that are fetched now.
    fetching: Mutex<HashSet<(String, String)>>,
    fetched: Condvar,
    /// The files of layers that the bucket has, by the sum of what says so.
    there: Mutex<KnownFiles>,
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Mirror").field(&self.prefix).finish()
    }
}

/// Returns a name that nobody else makes up.
fn unique() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| Error::new(ErrorKind::Os(libc::EIO), e.to_string()))?;
    Ok(hex(&bytes))
}

/// Returns whether a name is that of a file of a layer, which never changes.
fn is_finished(name: &str) -> bool {
    name.ends_with(".h5") || name.ends_with(".member")
}

/// Writes a file in the place of one that may be there, all at once.
fn replace(dir: &Dir, name: &str, bytes: &[u8]) -> Result<()> {
    let about = |e: std::io::Error| Error::from(e).about(dir.path().join(name).display());
    let new = format!(".{name}.{}", unique()?);
    let written = dir.create(&new).and_then(|mut file| {
        dir.rights().settle(&file)?;
        file.write_all(bytes)?;
        dir.rename(&new, name)
    });
    written.map_err(|e| {
        let _ = dir.remove(&new);
        about(e)
    })
}

/// Reads a file of a copy; `None` if there is none.
fn local(dir: &Dir, name: &str) -> Result<Option<Vec<u8>>> {
    if let Err(e) = dir.look(name) {
        return match e.kind {
            ErrorKind::NotFound => Ok(None),
            _ => Err(e),
        };
    }
    let mut bytes = Vec::new();
    let read = dir.read(name)?.read_to_end(&mut bytes);
    read.map_err(|e| Error::from(e).about(dir.path().join(name).display()))?;
    Ok(Some(bytes))
}

/// Returns what a file of a copy says, which is made with a text if it is not there.
fn once(dir: &Dir, name: &str, text: &str) -> Result<String> {
    if local(dir, name)?.is_none() {
        let new = format!("{name}.{}", unique()?);
        replace(dir, &new, format!("{text}\n").as_bytes())?;
        let named = dir.name_once(&new, name);
        let _ = dir.remove(&new);
        match named {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(Error::from(e).about(dir.path().join(name).display()));
            }
            _ => {}
        }
    }
    let bytes = local(dir, name)?.unwrap_or_default();
    Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

/// What has to be in a bucket for a copy to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A commit: whoever only reads needs no right to list what is there.
    Commits,
    /// Anything.
    Anything,
    /// Nothing: it is going to be written.
    Place,
}

impl Mirror {
    /// Opens the copy at a path of what lies at an address. It is made if there is none; `None` if nothing is in the bucket
    /// either that is wanted.
    pub fn open(
        path: &Path,
        address: &Address,
        settings: &RemoteSettings,
        wanted: Wanted,
    ) -> Result<Option<Dir>> {
        let prefix = Prefix::open(address, settings)?;
        let is_there = match wanted {
            Wanted::Commits => path.is_dir() || prefix.read(FIRST)?.is_some(),
            Wanted::Anything => path.is_dir() || prefix.is_used()?,
            Wanted::Place => true,
        };
        if !is_there {
            return Ok(None);
        }
        let about = |e: std::io::Error| Error::from(e).about(path.display());
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(path).map_err(about)?;
        let dir = Dir::open(path, &Rights::of(path), false)?;
        let place = BucketPlace::of(address, settings);
        let place = serde_json::to_string(&place).map_err(|e| Error::damaged(e.to_string()))?;
        once(&dir, ADDRESS, &place)?;
        let id = once(&dir, ID, &unique()?)?;
        let mirror = Self {
            prefix,
            id,
            fetching: Mutex::default(),
            fetched: Condvar::new(),
            there: Mutex::default(),
        };
        dir.copy_of(Arc::new(mirror)).map(Some)
    }

    /// Returns what a directory is a copy of, or is in a copy of.
    pub fn of(dir: &Dir) -> Option<Arc<Self>> {
        dir.original()
    }

    /// Returns the prefix of the bucket.
    pub fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    fn id(&self) -> &str {
        &self.id
    }

    /// Returns the time of the bucket.
    pub fn now(&self) -> Result<SystemTime> {
        let name = format!(".now.{}", unique()?);
        self.prefix.put(&name, b"")?;
        let now = self.prefix.modified(&name);
        self.prefix.remove(&name)?;
        now?.ok_or_else(|| {
            let why = "it was written just now, and is gone";
            Error::damaged(why).about(self.prefix.address(&name))
        })
    }

    /// Returns the names of all layers of the bucket.
    pub fn layers(&self) -> Result<Vec<String>> {
        Ok(self.prefix.list()?.1)
    }

    /// Returns what a committed layer consists of, and the directory that its files come into.
    ///
    /// # Errors
    ///
    /// It is gone, or has other bytes than the commit says.
    pub fn ensure(&self, top: &Dir, layer: &str, content: &LayerContent) -> Result<(Dir, Part)> {
        let prefix = self.prefix.below(layer);
        let name = content.object.as_deref().unwrap_or_default();
        let about = |e: Error| e.about(prefix.address(name));
        let is_it = |bytes: &[u8]| match digest(bytes) == content.sum {
            true => Ok(()),
            false => {
                let why = "it has other bytes than the checksum in its commit says";
                Err(about(Error::damaged(why)))
            }
        };
        if let Some(part) = &content.part {
            is_it(part.as_bytes())?;
            let part = Part::parse(part.as_bytes()).map_err(about)?;
            let files = part.files.iter().map(|sum| (sum.file.clone(), sum.clone()));
            let known = (None, Arc::new(files.collect()));
            self.known().insert(layer.to_owned(), known);
            return Ok((top.below_later(layer), part));
        }
        if name.is_empty() || name.contains('/') {
            let why = "its commit does not say what is in it";
            return Err(about(Error::damaged(why)));
        }
        let (dir, _) = top.make(layer)?;
        if let Some(there) = local(&dir, THERE)?
            && is_it(&there).is_ok()
            && dir.look(INDEX).is_ok()
        {
            return Ok((dir, Part::parse(&there).map_err(about)?));
        }
        let bytes = prefix.read(name)?;
        let bytes =
            bytes.ok_or_else(|| about(Error::damaged("it is gone, and its commit names it")))?;
        is_it(&bytes)?;
        let part = Part::parse(&bytes).map_err(about)?;
        self.set(&dir, &part, &bytes)?;
        Ok((dir, part))
    }

    /// Makes the index of a layer what a part says. Files that the copy lacks are known from then on.
    fn set(&self, dir: &Dir, part: &Part, bytes: &[u8]) -> Result<()> {
        replace(dir, INDEX, part.text.as_bytes())?;
        replace(dir, THERE, bytes)
    }

    /// Sees to it that the copy has what was uploaded of a layer that is not committed. False if there is no such layer.
    pub fn pull(&self, top: &Dir, layer: &str) -> Result<bool> {
        let prefix = self.prefix.below(layer);
        let state = LayerState::look(&prefix)?;
        let found = match top.below(layer) {
            Err(e) if e.kind == ErrorKind::NotFound => None,
            found => Some(found?),
        };
        if let Some(dir) = found.filter(|_| self.has_newest(&state)) {
            return Ok(dir.look(INDEX).is_ok());
        }
        if state.parts.is_none() {
            return Ok(false);
        }
        let there = state.read(&prefix)?;
        let (dir, _) = top.make(layer)?;
        self.set(&dir, &there, &there.print()?)?;
        Ok(true)
    }

    /// Returns whether what the copy has of a layer is all that there is: whoever wrote last wrote here.
    fn has_newest(&self, state: &LayerState) -> bool {
        let last = state.lease.as_ref().map(|(_, last)| last);
        let last = state.writer.as_ref().or(last);
        let is_there = |last: &lease::LeaseRecord| last.state != lease::LeaseState::Discarded;
        last.is_some_and(|last| last.mirror == self.id && is_there(last))
    }

    /// Returns the name of the process of another host that writes in a layer.
    pub fn writer_elsewhere(&self, layer: &str) -> Result<Option<String>> {
        let state = LayerState::look(&self.prefix.below(layer))?;
        state.writer_elsewhere(self)
    }

    /// Takes the layer that `dir` is a copy of, and sees to it that the copy has what was uploaded of it. ENOENT if there is no such
    /// layer, unless it may be begun.
    pub fn take(&self, dir: &Dir, may_begin: bool) -> Result<Lease> {
        let prefix = self.prefix.below(&dir.name());
        let is_here = dir.look(INDEX).is_ok();
        let follows = match OwnLease::take(dir) {
            Some(OwnLease { lease, files }) if is_here => Follows::Own(
                lease,
                Part {
                    files,
                    ..Part::default()
                },
            ),
            None if may_begin && !is_here => Follows::Own(0, Part::default()),
            _ => Follows::Any,
        };
        if !may_begin && !is_here && LayerState::look(&prefix)?.parts.is_none() {
            let why = "no such checkout";
            return Err(Error::new(ErrorKind::NotFound, why).about(prefix.address("")));
        }
        let (lease, state) = Lease::take(self, prefix, self.id.clone(), follows)?;
        let Some(state) = state.filter(|state| !self.has_newest(state)) else {
            return Ok(lease);
        };
        // What is here is a copy of what others wrote, or was never uploaded.
        let known: HashSet<&str> = lease.there.files.iter().map(|f| f.file.as_str()).collect();
        let about = |e: std::io::Error| Error::from(e).about(dir.path().display());
        let names = dir.names().map_err(about)?;
        let unknown = names.iter().filter_map(|(name, _)| name.to_str());
        let unknown = unknown.filter(|name| is_finished(name) && !known.contains(name));
        let unknown: Vec<&str> = unknown.collect();
        let last = state.lease.as_ref().map(|(_, last)| last.state);
        match last == Some(lease::LeaseState::Discarded) {
            true => {
                for name in &unknown {
                    dir.remove(name).map_err(about)?;
                }
            }
            false if unknown.is_empty() => {}
            false => self.set_aside(dir, &unknown)?,
        }
        match state.parts {
            Some(_) => self.set(dir, &lease.there, &lease.there.print()?)?,
            None => {
                for name in [INDEX, THERE] {
                    match dir.remove(name) {
                        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(about(e)),
                        _ => {}
                    }
                }
            }
        }
        Ok(lease)
    }

    /// Moves files that were not uploaded before others took the layer over out of the way, with the index that names them.
    fn set_aside(&self, dir: &Dir, files: &[&str]) -> Result<()> {
        let Some(top) = dir.above() else {
            return Ok(());
        };
        let about = |e: std::io::Error| Error::from(e).about(dir.path().display());
        let (aside, _) = top.make(&format!("{LEFT}{}-{}", dir.name(), unique()?))?;
        for name in files.iter().copied().chain([INDEX]) {
            let from = dir.path_of_descriptor().join(name);
            match std::fs::rename(from, aside.path_of_descriptor().join(name)) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(about(e)),
                _ => {}
            }
        }
        crate::checkout::holder::tell(&format!(
            "{}: another host has written in this checkout before {} files of this one were uploaded; they are in {}",
            dir.path().display(),
            files.len(),
            aside.path().display()
        ));
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, KnownFiles> {
        self.there.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the files that the bucket has of a layer.
    fn files(&self, dir: &Dir) -> Result<Files> {
        let layer = dir.name();
        let known = self.known().get(&layer).cloned();
        if let Some((None, files)) = known {
            return Ok(files);
        }
        let modified = match dir.look(THERE) {
            Err(e) if e.kind == ErrorKind::NotFound => return Ok(Arc::default()),
            meta => meta?.modified().map_err(Error::from)?,
        };
        if let Some((when, files)) = known
            && when == Some(modified)
        {
            return Ok(files);
        }
        let bytes = local(dir, THERE)?.unwrap_or_default();
        let part = Part::parse(&bytes).map_err(|e| e.about(dir.path().join(THERE).display()))?;
        let files = part.files.into_iter().map(|sum| (sum.file.clone(), sum));
        let files: Files = Arc::new(files.collect());
        self.known().insert(layer, (Some(modified), files.clone()));
        Ok(files)
    }

    /// Copies a file of a layer out of the bucket.
    fn copy(&self, dir: &Dir, sum: &FileSum) -> Result<()> {
        let prefix = self.prefix.below(&dir.name());
        let about = |e: std::io::Error| Error::from(e).about(dir.path().join(&sum.file).display());
        if let Some(top) = dir.above() {
            top.make(&dir.name())?;
        }
        let new = format!(".{}.{}", sum.file, unique()?);
        let file = dir.create(&new).map_err(about)?;
        let mut hasher = Digest::default();
        let copied = prefix
            .fetch(&sum.file, sum.size, &file, |bytes| hasher.add(bytes))
            .and_then(|is_there| {
                let why = match (is_there, hasher.done() == sum.sum) {
                    (true, true) => {
                        dir.rights().settle(&file).map_err(about)?;
                        return dir.rename(&new, &sum.file).map_err(about);
                    }
                    (true, false) => "it has other bytes than its checksum says",
                    (false, _) => "it is gone",
                };
                Err(Error::damaged(why).about(prefix.address(&sum.file)))
            });
        if copied.is_err() {
            let _ = dir.remove(&new);
        }
        copied
    }
}

impl Original for Mirror {
    fn fetch(&self, dir: &Dir, name: &str) -> Result<bool> {
        let is_layer = dir.above().is_some() && is_finished(name);
        let Some(sum) = (match is_layer {
            true => self.files(dir)?.get(name).cloned(),
            false => None,
        }) else {
            return Ok(false);
        };
        let key = (dir.name(), name.to_owned());
        let fetching = self.fetching.lock().unwrap_or_else(|e| e.into_inner());
        let waited = self
            .fetched
            .wait_while(fetching, |fetching| fetching.contains(&key));
        let mut fetching = waited.unwrap_or_else(|e| e.into_inner());
        if dir.look(name).is_ok() {
            return Ok(true);
        }
        fetching.insert(key.clone());
        drop(fetching);
        let copied = self.copy(dir, &sum);
        let mut fetching = self.fetching.lock().unwrap_or_else(|e| e.into_inner());
        fetching.remove(&key);
        self.fetched.notify_all();
        copied.map(|()| true)
    }

    fn size(&self, dir: &Dir, name: &str) -> Result<Option<u64>> {
        match dir.above().is_some() && is_finished(name) {
            true => Ok(self.files(dir)?.get(name).map(|sum| sum.size)),
            false => Ok(None),
        }
    }
}
