//! The checkouts of a store: a directory beside it, with a directory for each layer, and the commits of those that
//! are committed (`commits`).
//!
//! The layer of the checkout NAME is `NAME`, or `NAME~2` and so on if layers of that name were committed before.
//! The files of the store are looked at, never opened.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::commits::{self, LayerCommit};
use super::format::Registry;
use super::index::{self, BaseFile, IndexChanges, LayerBase};
use super::layer::{Layer, nanoseconds};
use super::layer_lock::{self, LayerLock};
use super::left_behind::LeftBehind;
use super::mirror::{Mirror, Wanted};
use super::place::{self, CheckoutsPlace};
use crate::error::{Error, ErrorKind, Result};
use crate::hdf5::Creator;
use crate::io::dir::Dir;
use crate::io::log_file;
use crate::io::remote::Address;
use crate::io::rights::Rights;
use crate::io::storage::{Disk, Storage};
use crate::options::RemoteSettings;

pub use crate::checkout::layer_files::LayerFiles;
pub(super) use crate::checkout::layer_files::{add_layers, committed, layers};
pub(super) use crate::checkout::names::base_files;
use crate::checkout::names::{base_object, is_name};
pub use crate::checkout::names::{check_name, checkout_of, is_checkouts, name_of};

/// Name of the log of a checkout's mounts, in its directory.
pub const LOG: &str = "log.jsonl";

/// A checkout that this process writes in, and the committed layers below it, lowest first.
pub struct OpenCheckout {
    /// The layer of the checkout.
    pub layer: Layer,
    /// The committed layers, lowest first.
    pub below: Vec<LayerFiles>,
}

/// A checkout that is only read, on top of what is committed.
pub struct ReadCheckout {
    /// The lowest first.
    pub layers: Vec<LayerFiles>,
    /// Keeps writers out; `None` if nobody ever wrote.
    pub held: Option<LayerLock>,
}

/// A checkout as `npyfs checkout ls` shows it.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Its name.
    pub name: String,
    /// The layer's directory.
    pub dir: Dir,
    /// The changes that its index names.
    pub changes: IndexChanges,
    /// The commit it became, and its number from 1 on.
    pub commit: Option<(usize, LayerCommit)>,
    /// The process that writes in it now.
    pub holder: Option<String>,
}

/// The checkouts of a store, and names of checkouts that are not shown, with the reasons.
pub type ListedCheckouts = (Vec<Summary>, Vec<Error>);

/// The directory of all checkouts of a store. It need not exist.
#[derive(Clone, Debug)]
pub struct Checkouts {
    store: PathBuf,
    place: CheckoutsPlace,
    rights: Rights,
    remote: Arc<RemoteSettings>,
}

impl Checkouts {
    /// Returns the checkouts of `store`, in `dir` or, if that is not said, beside the store.
    pub fn of(store: &Path, dir: Option<&Path>, formats: &Registry) -> Self {
        let place = match dir {
            Some(dir) => CheckoutsPlace::at(dir),
            None => CheckoutsPlace::beside(store, formats),
        };
        Self::in_place(store, place)
    }

    /// Returns the checkouts of `store` below `dir`, which may have those of other stores, too; or beside the store.
    pub fn below(store: &Path, dir: Option<&Path>, formats: &Registry) -> Result<Self> {
        let place = match dir {
            Some(dir) => CheckoutsPlace::below(store, dir, formats, &Rights::of(store))?,
            None => CheckoutsPlace::beside(store, formats),
        };
        Ok(Self::in_place(store, place))
    }

    fn in_place(store: &Path, place: CheckoutsPlace) -> Self {
        Self {
            store: store.to_owned(),
            place,
            rights: Rights::of(store),
            remote: Arc::default(),
        }
    }

    /// Has a store, and checkouts, that lie elsewhere asked for in this way.
    pub fn asking(mut self, remote: &Arc<RemoteSettings>) -> Self {
        self.remote = self.place.asking(remote);
        self
    }

    /// Returns how a store that lies elsewhere is asked for.
    pub fn remote(&self) -> &Arc<RemoteSettings> {
        &self.remote
    }

    /// Returns the files of the store as they are now; `None` if they are too many or cannot be looked at.
    pub fn base_files(&self) -> Option<Vec<BaseFile>> {
        match Address::parse(&self.store) {
            Some(address) => base_object(&address.ok()?, &self.remote),
            None => base_files(&self.store),
        }
    }

    /// Returns the path of the store.
    pub fn store(&self) -> &Path {
        &self.store
    }

    /// Returns whether they are on a file system, not in a bucket.
    pub(super) fn is_local(&self) -> bool {
        self.place.bucket().is_none()
    }

    /// Returns what the directory is called in messages: its path, or its address.
    pub fn shown(&self) -> String {
        match self.place.bucket() {
            Some(address) => address.to_string(),
            None => self.dir().display().to_string(),
        }
    }

    /// Returns the path of the directory, or of the copy of what lies in a bucket.
    pub fn dir(&self) -> &Path {
        self.place.dir()
    }

    /// Returns the owner, group and permissions that new files get.
    pub fn rights(&self) -> &Rights {
        &self.rights
    }

    /// Returns the checkouts that this store, which has none where they belong, has left behind where it was.
    pub fn left_behind(&self) -> Option<LeftBehind> {
        self.place.left_behind(&self.store, &self.rights)
    }

    /// The directory, opened; `None` if it is not there.
    pub(super) fn opened(&self) -> Result<Option<Dir>> {
        self.opened_for(Wanted::Anything)
    }

    /// The directory, opened to read what is committed; `None` if nothing is.
    pub(super) fn opened_to_read(&self) -> Result<Option<Dir>> {
        self.opened_for(Wanted::Commits)
    }

    fn opened_for(&self, wanted: Wanted) -> Result<Option<Dir>> {
        if let Some(address) = self.place.bucket() {
            let opened = Mirror::open(self.dir(), address, &self.remote, wanted);
            return match opened {
                // Of most stores that anyone may read only their owner may see what lies beside them.
                Err(e) if e.kind == ErrorKind::Denied && self.place.is_beside() => Ok(None),
                opened => opened,
            };
        }
        match self.place.open(&self.rights) {
            Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// The directory, which is made if it is not there.
    pub fn make(&self, storage: &dyn Storage) -> Result<Dir> {
        let Some(address) = self.place.bucket() else {
            return self.place.make(&self.rights, storage);
        };
        let made = Mirror::open(self.dir(), address, &self.remote, Wanted::Place)?;
        made.ok_or_else(|| Error::damaged("it was made just now, and is gone"))
    }

    /// The committed layers, lowest first. Takes no lock.
    pub fn committed(&self) -> Result<Vec<LayerFiles>> {
        match self.opened_to_read()? {
            Some(dir) => layers(&dir, &commits::read(&dir)?),
            None => Ok(Vec::new()),
        }
    }

    /// Opens the checkout `name` to write in it; a new one is begun if there is none. EBUSY, with the name
    /// of the holder, if another process writes in it.
    ///
    /// `creator` is asked for what makes files in the directory of the layer.
    pub fn open(
        &self,
        name: &str,
        storage: Arc<dyn Storage>,
        creator: impl Fn(&Dir) -> Creator,
    ) -> Result<OpenCheckout> {
        check_name(name)?;
        // Nobody of this host commits or discards between the choice of the directory and its lock.
        let (dir, lock) = self.locked(&*storage)?;
        let about = |e: std::io::Error| Error::from(e).about(dir.path().display());
        let (mut commits, mut below) = (Vec::new(), Vec::new());
        let layer = loop {
            let known = commits.len();
            commits = commits::read(&dir)?;
            add_layers(&dir, &commits, &mut below)?;
            let layer = dir.make(&dir_of(name, &commits))?.0;
            // Without an index nobody may have seen to it that its name survives a loss of power.
            if layer.metadata(index::NAME).is_err() {
                storage.sync_dir(&dir).map_err(about)?;
            }
            match Layer::open(&layer, storage.clone(), creator(&layer)) {
                // Another host has just committed it.
                Err(e) if e.kind == ErrorKind::Stale && commits.len() > known => {}
                layer => break layer?,
            }
        };
        drop(lock);
        layer.begin(LayerBase {
            commits: commits.len() as u64,
            on: commits.last().map(|last| last.id.clone()),
            time: nanoseconds(SystemTime::now()),
            base: self.base_files(),
        })?;
        Ok(OpenCheckout { layer, below })
    }

    /// Opens the checkout `name` to read it; ENOENT if there is none, EBUSY if a process writes in it. Writes nothing.
    pub fn open_to_read(&self, name: &str) -> Result<ReadCheckout> {
        let dir = self.find(name)?.dir;
        let held = LayerLock::share(&dir)?;
        let mut layers = self.committed()?;
        layers.push(LayerFiles::of(&dir, IndexChanges::read(&dir)?));
        Ok(ReadCheckout { layers, held })
    }

    /// The directory, which is made if it is not there, with the right to change which layers there are.
    fn locked(&self, storage: &dyn Storage) -> Result<(Dir, File)> {
        loop {
            let dir = self.make(storage)?;
            match commits::lock(&dir) {
                // Whoever made it has just taken it back.
                Err(e) if e.kind == ErrorKind::Stale => {}
                lock => return Ok((dir, lock?)),
            }
        }
    }

    /// Opens the directory of the checkout `name`, which is made if it is not there, for whoever keeps no layer in it.
    /// Nobody takes it away before `act` is done.
    pub fn in_directory<T>(&self, name: &str, act: impl FnOnce(&Dir) -> Result<T>) -> Result<T> {
        check_name(name)?;
        let (dir, _lock) = self.locked(&Disk)?;
        act(&dir.make(name)?.0)
    }

    /// Returns what of the checkout `name` is not there yet.
    pub fn missing(&self, name: &str) -> Result<MissingBefore> {
        // What is in a bucket, others may have looked at already.
        if self.place.bucket().is_some() {
            return Ok(MissingBefore::default());
        }
        let Some(dir) = self.opened()? else {
            let above = self.dir().parent();
            return Ok(MissingBefore {
                above: above.is_some_and(|above| above.symlink_metadata().is_err()),
                all: true,
                layer: true,
            });
        };
        let layer = match is_name(name) {
            true => dir.below(&dir_of(name, &commits::read(&dir)?)),
            false => return Ok(MissingBefore::default()),
        };
        Ok(MissingBefore {
            above: false,
            all: false,
            layer: matches!(layer, Err(e) if e.kind == ErrorKind::NotFound),
        })
    }

    /// Removes what was made of the checkout `name` since, if nothing was written in it and nobody has it.
    pub fn take_back(&self, name: &str, missing: &MissingBefore) -> Result<()> {
        if !(missing.above || missing.all || missing.layer) {
            return Ok(());
        }
        let Some(dir) = self.opened()? else {
            return Ok(());
        };
        if missing.layer && is_name(name) {
            let _lock = commits::lock(&dir)?;
            let layer = dir_of(name, &commits::read(&dir)?);
            match dir.below(&layer) {
                Err(e) if e.kind == ErrorKind::NotFound => {}
                opened => remove_unused(&opened?)?,
            }
        }
        if missing.all {
            remove_empty(&dir)?;
        }
        if missing.above
            && let Some(above) = self.dir().parent()
        {
            // Others may have begun to use it.
            let _ = std::fs::remove_dir(above);
        }
        Ok(())
    }

    /// The checkout `name` that is not committed; ENOENT if there is none.
    pub fn find(&self, name: &str) -> Result<Summary> {
        check_name(name)?;
        let missing = |why: String| {
            let message = format!("{}: {why}", self.shown());
            Error::new(ErrorKind::NotFound, message)
        };
        let Some(dir) = self.opened()? else {
            return Err(missing(format!("no checkout {name}")));
        };
        let commits = commits::read(&dir)?;
        match layer_below(&dir, &dir_of(name, &commits)) {
            Err(e) if e.kind == ErrorKind::NotFound => {
                let before = commits.iter().any(|c| name_of(&c.layer) == Some(name));
                Err(missing(match before {
                    true => format!("checkout {name} is committed, and none was begun since"),
                    false => format!("no checkout {name}"),
                }))
            }
            layer => summary(name, layer?),
        }
    }

    /// All checkouts: the committed ones in their order, then the others by name.
    pub fn list(&self) -> Result<ListedCheckouts> {
        let (mut all, mut refused) = (Vec::new(), Vec::new());
        let Some(dir) = self.opened()? else {
            return Ok((all, refused));
        };
        let commits = commits::read(&dir)?;
        let mirror = Mirror::of(&dir);
        for (at, commit) in commits.iter().enumerate() {
            let name = checkout_of(&commit.layer);
            let commit = Some((at + 1, commit.clone()));
            let (layer, changes) = committed(&dir, &commits[at], true)?;
            all.push(Summary {
                name: name.to_owned(),
                changes,
                holder: LayerLock::look_here(&layer)?,
                dir: layer,
                commit,
            });
        }
        let about = |e: std::io::Error| Error::from(e).about(dir.path().display());
        let there = dir.names().map_err(about)?;
        let there = there.into_iter().filter(|(_, kind)| !kind.is_file());
        let mut there: Vec<String> = there
            .filter_map(|(name, _)| name.into_string().ok())
            .collect();
        if let Some(mirror) = &mirror {
            there.extend(mirror.layers()?);
        }
        let names = there.iter().filter_map(|name| name_of(name));
        let names: BTreeSet<&str> = names.collect();
        for name in names {
            let layer = layer_below(&dir, &dir_of(name, &commits));
            match layer.and_then(|layer| summary(name, layer)) {
                Ok(summary) => all.push(summary),
                // It was committed, and none was begun since.
                Err(e) if e.kind == ErrorKind::NotFound => {}
                Err(e) if e.kind == ErrorKind::Denied => refused.push(e),
                Err(e) => return Err(e),
            }
        }
        Ok((all, refused))
    }
}

/// Files that were not there before a checkout was opened, to be removed again.
#[derive(Clone, Copy, Debug, Default)]
pub struct MissingBefore {
    /// The directory that it is in.
    above: bool,
    /// The directory of all checkouts.
    all: bool,
    layer: bool,
}

/// Removes the directory of a layer in which nothing was written and that nobody has; the caller has the lock.
fn remove_unused(layer: &Dir) -> Result<()> {
    let _holder = match LayerLock::take(layer) {
        Err(e) if e.errno() == libc::EBUSY => return Ok(()),
        holder => holder?,
    };
    let changes = IndexChanges::read(layer)?;
    if changes.entries.is_empty() && changes.incomplete.is_empty() {
        let old = format!("{LOG}{}", log_file::OLD);
        remove_with(layer, &[index::NAME, layer_lock::NAME, LOG, &old])?;
    }
    Ok(())
}

/// Removes the directory of a checkout, if there is nothing in it but `files`.
pub fn remove_with(layer: &Dir, files: &[&str]) -> Result<()> {
    let about = |e: std::io::Error| Error::from(e).about(layer.path().display());
    let Some(above) = layer.above() else {
        return Ok(());
    };
    let known = |name: &OsStr| files.iter().any(|&file| name == file);
    if !layer
        .names()
        .map_err(about)?
        .iter()
        .all(|(name, _)| known(name))
    {
        return Ok(());
    }
    for file in files {
        match layer.remove(file) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed.map_err(about)?,
        }
    }
    above.remove_dir(&layer.name()).map_err(about)
}

/// Removes a directory of checkouts that has none.
pub fn remove_empty(dir: &Dir) -> Result<()> {
    let about = |e: std::io::Error| Error::from(e).about(dir.path().display());
    // Whoever waits for the lock finds out that the directory is gone, and makes it anew.
    let _lock = commits::lock(dir)?;
    let known = |name: &OsStr| name == commits::LOCK || name == place::OWNER;
    if !dir
        .names()
        .map_err(about)?
        .iter()
        .all(|(name, _)| known(name))
    {
        return Ok(());
    }
    for file in [place::OWNER, commits::LOCK] {
        match dir.remove(file) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed.map_err(about)?,
        }
    }
    std::fs::remove_dir(dir.path()).map_err(about)
}

/// Opens the directory of a layer that is not committed; ENOENT if there is none.
pub(super) fn layer_below(dir: &Dir, layer: &str) -> Result<Dir> {
    if let Some(mirror) = Mirror::of(dir)
        && !mirror.pull(dir, layer)?
    {
        let why = "no such checkout";
        return Err(Error::new(ErrorKind::NotFound, why).about(mirror.prefix().address(layer)));
    }
    dir.below(layer)
}

/// The name of the layer that a checkout stands for: the first of that name that is not committed.
pub(super) fn dir_of(name: &str, commits: &[LayerCommit]) -> String {
    let taken: HashSet<&str> = commits.iter().map(|c| c.layer.as_str()).collect();
    let mut names =
        std::iter::once(name.to_owned()).chain((2_u64..).map(|n| format!("{name}~{n}")));
    let free = names.find(|name| !taken.contains(name.as_str()));
    free.unwrap_or_default()
}

/// Sums a checkout up that is not committed.
fn summary(name: &str, dir: Dir) -> Result<Summary> {
    Ok(Summary {
        name: name.to_owned(),
        changes: IndexChanges::read(&dir)?,
        holder: LayerLock::look(&dir)?,
        dir,
        commit: None,
    })
}

#[cfg(test)]
mod tests;
