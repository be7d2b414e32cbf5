//! A directory of checkouts in a bucket, and its copy in a local directory.
//!
//! All operations on checkouts work on the copy. Before it is read, it receives the commits (`ensure`) and uploads
//! (`pull`) of others; files of objects are fetched on demand (`fetch`). New data is completed in the copy and then
//! uploaded under names that are never reused (`upload`). Objects never change, except for leases, which record the
//! writer (`lease`). A file of the copy names its bucket (`BucketPlace`).
//!
//! Garbage is what no commit and no checkout refers to: parts, files and contents. Leases stay: their numbers are never
//! reused. A process that removes objects of an uncommitted layer holds its lease, so that a writer that was cut off
//! for long notices before it refers to a removed object.
//!
//! `docs/checkout-format.md` specifies the objects byte by byte.

mod lease;
mod part;
mod upload;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::DirBuilder;
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use super::records::form::Form;
use super::records::index::files_named;
use crate::store::against::{Digest, digest};
use lease::{LayerState, PriorState};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::options::RemoteSettings;
use npyfs_io::dir::{Dir, Original};
use npyfs_io::hex;
use npyfs_io::own_dir::state_home;
use npyfs_io::remote::{Address, ListedObject, Prefix};
use npyfs_io::rights::Rights;
use part::{FileSum, Part};
use upload::OwnLease;

pub use lease::Lease;
pub use part::LayerContent;
pub use upload::Upload;

/// The file of a copy with its address and access settings.
const ADDRESS: &str = ".address";

/// The file of a copy with its name in leases.
const ID: &str = ".id";

/// The file of a layer that records which of its files are in the bucket: a part.
const THERE: &str = "there";

/// The file of a layer that records the last lease of this copy.
const MINE: &str = "mine";

/// The prefix of directories with files that were not uploaded before another host took the checkout.
const LEFT: &str = ".left-";

/// The first commit, without which there are no others.
const FIRST: &str = "commits/00000000000000000001.json";

/// The index of a layer.
const INDEX: &str = crate::checkout::records::index::NAME;

/// The files of a layer that are in the bucket, by their names.
type Files = Arc<HashMap<String, FileSum>>;

/// The files in the bucket by layer: from a record with this time of change, or from the commit.
type KnownFiles = HashMap<String, (Option<SystemTime>, Files)>;

/// The copy of a directory of checkouts in a bucket.
pub struct Mirror {
    prefix: Prefix,
    id: String,
    /// Files that are being fetched.
    fetching: Mutex<HashSet<(String, String)>>,
    fetched: Condvar,
    /// The files of layers in the bucket, by the sum of the record that lists them.
    there: Mutex<KnownFiles>,
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Mirror").field(&self.prefix).finish()
    }
}

/// Returns a random name that is unique.
fn unique() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| Error::new(ErrorKind::Os(libc::EIO), e.to_string()))?;
    Ok(hex::encode(&bytes))
}

/// Returns whether a name is that of a finished file of a layer, which never changes.
fn is_finished(name: &str) -> bool {
    name.ends_with(".h5") || name.ends_with(".member")
}

/// Writes a file atomically; replaces an existing one.
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

/// Reads a file of a copy; `None` if it does not exist.
fn local(dir: &Dir, name: &str) -> Result<Option<Vec<u8>>> {
    if let Err(e) = dir.metadata_here(name) {
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

/// Returns the content of a file of a copy, which is created with `text` if it does not exist.
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

/// The state of a bucket in which a copy may be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredState {
    /// A commit. A reader needs no right to list the bucket.
    Commits,
    /// Any object.
    Anything,
    /// Nothing: it will be written.
    Place,
}

impl Mirror {
    /// Opens the copy at a path of the directory at an address, creating it if needed; `None` if the bucket does not
    /// contain what is `wanted`.
    pub fn open(
        path: &Path,
        address: &Address,
        settings: &RemoteSettings,
        wanted: RequiredState,
    ) -> Result<Option<Dir>> {
        let prefix = Prefix::open(address, settings)?;
        let is_there = match wanted {
            RequiredState::Commits => path.is_dir() || prefix.read(FIRST)?.is_some(),
            RequiredState::Anything => path.is_dir() || prefix.is_used()?,
            RequiredState::Place => true,
        };
        if !is_there {
            return Ok(None);
        }
        let about = |e: std::io::Error| Error::from(e).about(path.display());
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(path).map_err(about)?;
        let dir = Dir::open(path, &Rights::beside(path), false)?;
        let place = BucketPlace::new(address, settings);
        let text = once(&dir, ADDRESS, &place.print()?)?;
        BucketPlace::parse(&text).map_err(|e| e.about(path.join(ADDRESS).display()))?;
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

    /// Returns the copy that a directory is, or is in.
    pub fn find(dir: &Dir) -> Option<Arc<Self>> {
        dir.original()
    }

    /// Returns the prefix of the bucket.
    pub fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    fn id(&self) -> &str {
        &self.id
    }

    /// Returns the current time of the bucket.
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

    /// Returns the names of all layers in the bucket.
    pub fn layers(&self) -> Result<Vec<String>> {
        // Keys in buckets have no `~`.
        let names = self.prefix.list()?.1.into_iter();
        Ok(names.map(|name| name.replace("%7E", "~")).collect())
    }

    /// Returns the content of a committed layer, and the directory of its local files.
    ///
    /// # Errors
    ///
    /// The layer is gone, or its bytes differ from the commit.
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
            self.there.lock().insert(layer.to_owned(), known);
            return Ok((top.below_later(layer), part));
        }
        if name.is_empty() || name.contains('/') {
            let why = "its commit does not say what is in it";
            return Err(about(Error::damaged(why)));
        }
        let (dir, _) = top.make(layer)?;
        if let Some(there) = local(&dir, THERE)?
            && is_it(&there).is_ok()
            && dir.metadata_here(INDEX).is_ok()
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

    /// Sets the index of a layer to a part. The part's files can be fetched from then on.
    fn set(&self, dir: &Dir, part: &Part, bytes: &[u8]) -> Result<()> {
        replace(dir, INDEX, part.text.as_bytes())?;
        replace(dir, THERE, bytes)
    }

    /// Updates the copy to the uploaded state of an uncommitted layer. False if there is no such layer.
    pub fn pull(&self, top: &Dir, layer: &str) -> Result<bool> {
        let prefix = self.prefix.below(layer);
        let state = LayerState::read_state(&prefix)?;
        let found = match top.below(layer) {
            Err(e) if e.kind == ErrorKind::NotFound => None,
            found => Some(found?),
        };
        if let Some(dir) = found.filter(|_| self.has_newest(&state)) {
            return Ok(dir.metadata_here(INDEX).is_ok());
        }
        if state.parts.is_none() {
            return Ok(false);
        }
        let there = state.read(&prefix)?;
        let (dir, _) = top.make(layer)?;
        self.set(&dir, &there, &there.print()?)?;
        Ok(true)
    }

    /// Returns whether the copy of a layer is complete, because the last writer used this copy.
    fn has_newest(&self, state: &LayerState) -> bool {
        let last = state.lease.as_ref().map(|(_, last)| last);
        let last = state.writer.as_ref().or(last);
        let is_there = |last: &lease::LeaseRecord| last.state != lease::LeaseState::Discarded;
        last.is_some_and(|last| last.mirror == self.id && is_there(last))
    }

    /// Returns the name of the process of another host that writes in a layer.
    pub fn writer_elsewhere(&self, layer: &str) -> Result<Option<String>> {
        let state = LayerState::read_state(&self.prefix.below(layer))?;
        state.writer_elsewhere(self)
    }

    /// Takes the layer that `dir` is a copy of, and updates the copy to its uploaded state. ENOENT if there is no such
    /// layer, unless it may be begun.
    pub fn take(&self, dir: &Dir, may_begin: bool) -> Result<Lease> {
        let prefix = self.prefix.below(&dir.name());
        let is_here = dir.metadata_here(INDEX).is_ok();
        let follows = match OwnLease::take(dir) {
            Some(OwnLease { lease, files }) if is_here => PriorState::Own(
                lease,
                Part {
                    files,
                    ..Part::default()
                },
            ),
            None if may_begin && !is_here => PriorState::Own(0, Part::default()),
            _ => PriorState::Any,
        };
        if !may_begin && !is_here && LayerState::read_state(&prefix)?.parts.is_none() {
            let why = "no such checkout";
            return Err(Error::new(ErrorKind::NotFound, why).about(prefix.address("")));
        }
        let (lease, state) = Lease::take(self, prefix, self.id.clone(), follows)?;
        let Some(state) = state.filter(|state| !self.has_newest(state)) else {
            return Ok(lease);
        };
        // Local files are copies of others' files, or were never uploaded.
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

    /// Moves files out of the way that were not uploaded before another host took the layer, with the index that names
    /// them.
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
        crate::checkout::records::holder::tell_user(&format!(
            "{}: another host has written in this checkout before {} files of this one were uploaded; they are in {}",
            dir.path().display(),
            files.len(),
            aside.path().display()
        ));
        Ok(())
    }

    /// Returns the files of a layer that are in the bucket.
    fn files(&self, dir: &Dir) -> Result<Files> {
        let layer = dir.name();
        let known = self.there.lock().get(&layer).cloned();
        if let Some((None, files)) = known {
            return Ok(files);
        }
        let modified = match dir.metadata_here(THERE) {
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
        self.there
            .lock()
            .insert(layer, (Some(modified), files.clone()));
        Ok(files)
    }

    /// Copies a file of a layer from the bucket.
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
        let mut fetching = self.fetching.lock();
        self.fetched
            .wait_while(&mut fetching, |fetching| fetching.contains(&key));
        if dir.metadata_here(name).is_ok() {
            return Ok(true);
        }
        fetching.insert(key.clone());
        drop(fetching);
        let copied = self.copy(dir, &sum);
        let mut fetching = self.fetching.lock();
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

/// The form of a local copy, in its file with the address.
const FORM: Form = Form {
    name: "npyfs copy",
    version: 1,
};

/// An address in a bucket, and access settings that differ from the defaults.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BucketPlace {
    address: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    region: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    profile: Option<String>,
}

impl BucketPlace {
    fn new(address: &Address, settings: &RemoteSettings) -> Self {
        Self {
            address: address.to_string(),
            endpoint: settings.endpoint.clone(),
            region: settings.region.clone(),
            profile: settings.profile.clone(),
        }
    }

    /// Returns the content of the file of a copy.
    fn print(&self) -> Result<String> {
        FORM.print(self)
    }

    /// Parses the content of the file of a copy. A copy of another form is refused by its number.
    fn parse(text: &str) -> Result<Self> {
        FORM.parse(text)
    }

    /// Returns the address.
    pub fn address(&self) -> Option<Address> {
        Address::parse(Path::new(&self.address))?.ok()
    }

    /// Fills in settings that are not given.
    pub fn fill(&self, settings: &RemoteSettings) -> RemoteSettings {
        let mut settings = settings.clone();
        settings.endpoint = settings.endpoint.or_else(|| self.endpoint.clone());
        settings.region = settings.region.or_else(|| self.region.clone());
        settings.profile = settings.profile.or_else(|| self.profile.clone());
        settings
    }
}

impl Mirror {
    /// Returns the path of the local copy of the directory at an address.
    ///
    /// Several hosts may share one home directory: each has its own copy.
    pub fn path(address: &Address, settings: &RemoteSettings) -> PathBuf {
        let home = settings.cache_dir.clone().or_else(state_home);
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let shown = address.to_string();
        let key = format!("{} {:?}", shown.trim_end_matches('/'), settings.endpoint);
        let name = shown.trim_end_matches('/').rsplit('/').next();
        let name = format!(
            "{}-{}",
            name.unwrap_or_default(),
            digest(key.as_bytes()).get(..16).unwrap_or_default()
        );
        home.unwrap_or_else(std::env::temp_dir)
            .join("checkouts")
            .join(match host.trim() {
                "" => "localhost",
                host => host,
            })
            .join(name)
    }

    /// Returns the location that the directory at a path is a copy of; `None` if it is none.
    pub fn place_of(path: &Path) -> Result<Option<BucketPlace>> {
        let path = path.join(ADDRESS);
        let about = |e: Error| e.about(path.display());
        match std::fs::read_to_string(&path).map_err(Error::from) {
            Ok(text) => BucketPlace::parse(&text).map(Some).map_err(about),
            Err(e) if matches!(e.kind, ErrorKind::NotFound | ErrorKind::NotDirectory) => Ok(None),
            Err(e) => Err(about(e)),
        }
    }
}

/// Whether a layer is in use, with regard to garbage.
pub enum LayerUse {
    /// A process of this or another host writes in it.
    Written,
    /// The layer's unneeded objects.
    Garbage(LayerGarbage),
}

/// Unneeded objects of a layer.
pub struct LayerGarbage {
    /// The objects.
    pub objects: Vec<ListedObject>,
    /// A lease that excludes writers, if there can be any.
    lease: Option<Lease>,
}

impl Mirror {
    /// Returns the unneeded objects of a layer; `content` is that of its commit, if it is committed. With `alone`,
    /// writers are excluded while the result exists.
    pub fn garbage(
        &self,
        top: &Dir,
        layer: &str,
        content: Option<&LayerContent>,
        alone: bool,
    ) -> Result<LayerUse> {
        let prefix = self.prefix.below(layer);
        let mut state = LayerState::read_state(&prefix)?;
        if let Some(content) = content {
            let (_, part) = self.ensure(top, layer, content)?;
            let mut needed = files_named(&part.text, true)?;
            needed.extend(content.object.clone());
            return Ok(LayerUse::Garbage(LayerGarbage::find(&state, &needed, None)));
        }
        if state.writer_elsewhere(self)?.is_some() {
            return Ok(LayerUse::Written);
        }
        let mut needed = needed_now(&state, self, layer)?;
        let found = LayerGarbage::find(&state, &needed, None);
        if !alone || found.objects.is_empty() {
            return Ok(LayerUse::Garbage(found));
        }
        // Objects of earlier leases are not affected: this lease belongs to no copy.
        let taken = Lease::take(self, prefix.clone(), unique()?, PriorState::Any);
        let lease = match taken {
            Err(e) if e.errno() == libc::EBUSY => return Ok(LayerUse::Written),
            taken => {
                let (lease, seen) = taken?;
                state = seen.unwrap_or_default();
                lease
            }
        };
        needed = needed_now(&state, self, layer)?;
        let found = LayerGarbage::find(&state, &needed, Some(lease));
        Ok(LayerUse::Garbage(found))
    }

    /// Removes an object of a layer.
    pub fn remove_garbage(&self, layer: &str, object: &ListedObject) -> Result<()> {
        self.prefix.below(layer).remove(&object.name)
    }
}

/// Returns the names of the valid parts and of the objects that they refer to.
fn needed_now(state: &LayerState, mirror: &Mirror, layer: &str) -> Result<BTreeSet<String>> {
    let Some((lease, count)) = state.parts else {
        return Ok(BTreeSet::new());
    };
    let prefix = mirror.prefix.below(layer);
    let there = state.read(&prefix)?;
    let about = |e: Error| e.about(prefix.address(""));
    let mut needed = files_named(&there.text, true).map_err(about)?;
    needed.extend((1..=count).map(|number| lease::part_name(lease, number)));
    Ok(needed)
}

impl LayerGarbage {
    fn find(state: &LayerState, needed: &BTreeSet<String>, lease: Option<Lease>) -> Self {
        let is_known = |name: &str| {
            let begins = ["part.", "content."];
            is_finished(name) || begins.iter().any(|begin| name.starts_with(begin))
        };
        let objects = state.objects.iter().filter(|object| {
            let name = object.name.as_str();
            is_known(name) && !needed.contains(name)
        });
        Self {
            objects: objects.cloned().collect(),
            lease,
        }
    }

    /// Returns whether writers are excluded.
    pub fn is_alone(&self) -> bool {
        self.lease.is_some()
    }
}
