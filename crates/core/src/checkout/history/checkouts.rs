//! The checkouts of a store: a directory beside it with one directory for each layer, and the commits (`commits`).
//!
//! The layer of the checkout NAME is `NAME`, or `NAME~2` and so on if layers of that name were committed before. The
//! metadata of the store's files are read; the files are never opened.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::commits::{self, CommitRecords, LayerCommit};
use super::committed_layers::{committed, layers, on_top, recorded_changes};
use super::location::{self, CheckoutsPlace, LeftBehind, base_files, base_object};
use super::snapshot::{self, KnownCommits};
use crate::checkout::layer::Layer;
use crate::checkout::layer::lock::{self as layer_lock, LayerLock};
use crate::checkout::mirror::{Mirror, RequiredState};
use crate::checkout::records::index::{self, BaseFile, IndexChanges, LayerBase, nanoseconds};
use crate::checkout::records::layer_files::LayerFiles;
use crate::checkout::records::names::{check_name, checkout_of, is_name, name_of};
use crate::store::format::Registry;
use crate::store::target::CheckoutDirectory;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::options::RemoteSettings;
use npyfs_hdf5::Creator;
use npyfs_io::dir::Dir;
use npyfs_io::log_file;
use npyfs_io::remote::Address;
use npyfs_io::rights::Rights;
use npyfs_io::storage::{Disk, Storage};

/// The name of the log of a checkout's mounts, in its directory.
pub const LOG: &str = "log.jsonl";

/// A checkout that this process writes in, and the committed layers below it.
pub struct OpenCheckout {
    /// The layer of the checkout.
    pub layer: Layer,
    /// The committed layers, lowest first.
    pub below: Vec<LayerFiles>,
}

/// A read-only checkout on top of the commits.
pub struct ReadCheckout {
    /// The layers, lowest first.
    pub layers: Vec<LayerFiles>,
    /// A lock that keeps writers out; `None` if the checkout was never written to.
    pub held: Option<LayerLock>,
}

/// A checkout as shown by `npyfs checkout ls`.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The name.
    pub name: String,
    /// The layer's directory.
    pub dir: Dir,
    /// The changes in its index.
    pub changes: IndexChanges,
    /// The commit that it became, and the commit's number, from 1.
    pub commit: Option<(usize, LayerCommit)>,
    /// The process that currently writes in it.
    pub holder: Option<String>,
}

/// The checkouts of a store, and the errors of those that cannot be shown.
pub type ListedCheckouts = (Vec<Summary>, Vec<Error>);

/// The directory of all checkouts of a store. It need not exist.
#[derive(Clone, Debug)]
pub struct Checkouts {
    store: PathBuf,
    place: CheckoutsPlace,
    rights: Rights,
    remote: Arc<RemoteSettings>,
}

impl Summary {
    /// Returns the layer of a checkout that is not committed, as it is on top of the commits.
    pub fn on_top(&self, below: &[LayerFiles]) -> Result<LayerFiles> {
        on_top(&self.dir, self.changes.clone(), below)
    }

    /// Returns whether it holds nothing that is not committed.
    pub fn is_empty(&self) -> bool {
        self.changes.count_changed() == 0 && self.changes.incomplete.is_empty()
    }

    /// Returns whether a mount that committed went on in it, and ended before anything was written.
    fn is_bare_continuation(&self) -> bool {
        self.is_empty() && self.holder.is_none() && self.dir.name() != self.name
    }
}

impl Checkouts {
    /// Returns the checkouts of `store` in `dir`, by default beside the store.
    pub fn of_store(store: &Path, dir: Option<&Path>, formats: &Registry) -> Self {
        let place = match dir {
            Some(dir) => CheckoutsPlace::at(dir),
            None => CheckoutsPlace::beside(store, formats),
        };
        Self::in_place(store, place)
    }

    /// Returns the checkouts of `store` below `dir`, which may hold those of other stores, too; by default beside the
    /// store.
    pub fn below(store: &Path, dir: Option<&Path>, formats: &Registry) -> Result<Self> {
        let place = match dir {
            Some(dir) => CheckoutsPlace::below(store, dir, formats, &Rights::beside(store))?,
            None => CheckoutsPlace::beside(store, formats),
        };
        Ok(Self::in_place(store, place))
    }

    fn in_place(store: &Path, place: CheckoutsPlace) -> Self {
        Self {
            store: store.to_owned(),
            place,
            rights: Rights::beside(store),
            remote: Arc::default(),
        }
    }

    /// Sets the access settings of a remote store and of remote checkouts.
    pub fn asking(mut self, remote: &Arc<RemoteSettings>) -> Self {
        self.remote = self.place.asking(remote);
        self
    }

    /// Returns the access settings of a remote store.
    pub fn remote(&self) -> &Arc<RemoteSettings> {
        &self.remote
    }

    /// Returns the current files of the store; `None` if there are too many or they are not accessible.
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

    /// Returns whether the checkouts are on a file system, not in a bucket.
    pub(in crate::checkout) fn is_local(&self) -> bool {
        self.place.bucket().is_none()
    }

    /// Returns the name of the directory in messages: its path or address.
    pub fn shown(&self) -> String {
        match self.place.bucket() {
            Some(address) => address.to_string(),
            None => self.dir().display().to_string(),
        }
    }

    /// Returns the path of the directory, or of the local copy of a bucket's directory.
    pub fn dir(&self) -> &Path {
        self.place.dir()
    }

    /// Returns the owner, group and permissions of new files.
    pub fn rights(&self) -> &Rights {
        &self.rights
    }

    /// Returns the checkouts at a previous location of the store, if it has none at its current one.
    pub fn left_behind(&self) -> Option<LeftBehind> {
        self.place.left_behind(&self.store, &self.rights)
    }

    /// Opens the directory; `None` if it does not exist.
    pub(in crate::checkout) fn opened(&self) -> Result<Option<Dir>> {
        self.opened_for(RequiredState::Anything)
    }

    /// Opens the directory to read the commits; `None` if there are none.
    pub(in crate::checkout) fn opened_to_read(&self) -> Result<Option<Dir>> {
        self.opened_for(RequiredState::Commits)
    }

    fn opened_for(&self, wanted: RequiredState) -> Result<Option<Dir>> {
        if let Some(address) = self.place.bucket() {
            let opened = Mirror::open(self.dir(), address, &self.remote, wanted);
            return match opened {
                // A store may be readable by all users while only its owner may look into the directory beside it.
                Err(e) if e.kind == ErrorKind::Denied && self.place.is_beside() => Ok(None),
                opened => opened,
            };
        }
        match self.place.open(&self.rights) {
            Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Opens the directory, and creates it if it does not exist.
    pub fn make(&self, storage: &dyn Storage) -> Result<Dir> {
        let Some(address) = self.place.bucket() else {
            return self.place.make(&self.rights, storage);
        };
        let made = Mirror::open(self.dir(), address, &self.remote, RequiredState::Place)?;
        made.ok_or_else(|| Error::damaged("it was made just now, and is gone"))
    }

    /// Returns the committed layers, lowest first. Takes no lock.
    pub fn committed(&self) -> Result<Vec<LayerFiles>> {
        match self.opened_to_read()? {
            Some(dir) => layers(&dir, &commits::read(&dir)?),
            None => Ok(Vec::new()),
        }
    }

    /// Returns the committed layers, lowest first, for a view: entries may be missing that no view shows. Takes no
    /// lock.
    pub(in crate::checkout) fn committed_to_show(&self) -> Result<Vec<LayerFiles>> {
        match self.opened_to_read()? {
            Some(dir) => Ok(KnownCommits::with_layers(&dir)?.layers),
            None => Ok(Vec::new()),
        }
    }

    /// Opens the checkout `name` for writing; begins a new one if it does not exist. EBUSY, with the name of the
    /// holder, if another process writes in it.
    ///
    /// `creator` is asked for the object that creates files in the directory of the layer.
    pub fn open(
        &self,
        name: &str,
        storage: Arc<dyn Storage>,
        creator: impl Fn(&Dir) -> Creator,
    ) -> Result<OpenCheckout> {
        self.open_on(KnownCommits::in_full, name, storage, creator)
    }

    /// Opens the checkout `name` as `open` does, for a view: entries of the layers below may be missing that no view
    /// shows.
    pub(in crate::checkout) fn open_to_show(
        &self,
        name: &str,
        storage: Arc<dyn Storage>,
        creator: impl Fn(&Dir) -> Creator,
    ) -> Result<OpenCheckout> {
        self.open_on(KnownCommits::with_layers, name, storage, creator)
    }

    fn open_on(
        &self,
        read: fn(&Dir) -> Result<KnownCommits>,
        name: &str,
        storage: Arc<dyn Storage>,
        creator: impl Fn(&Dir) -> Creator,
    ) -> Result<OpenCheckout> {
        check_name(name)?;
        // No process of this host commits or discards while the directory is chosen and locked.
        let (dir, lock) = self.locked(&*storage)?;
        let about = |e: std::io::Error| Error::from(e).about(dir.path().display());
        let mut known = 0;
        let (layer, commits, mut below) = loop {
            let all = read(&dir)?;
            let layer = dir.make(&free_layer(name, all.names()))?.0;
            let KnownCommits { commits, layers } = all;
            // If there is no index, the name of the directory may not be durable yet.
            if layer.metadata(index::NAME).is_err() {
                storage.sync_dir(&dir).map_err(about)?;
            }
            match Layer::open(&layer, storage.clone(), creator(&layer)) {
                // Another host has just committed it.
                Err(e) if e.kind == ErrorKind::Stale && commits.len() > known => {
                    known = commits.len();
                }
                layer => break (layer?, commits, layers),
            }
        };
        // What it restores may be missing.
        if snapshot::is_folded(&below) && !layer.recorded().restored.is_empty() {
            below = KnownCommits::in_full(&dir)?.layers;
            below.truncate(commits.len());
        }
        drop(lock);
        layer.begin(LayerBase {
            commits: commits.len() as u64,
            on: commits.last_id().map(str::to_owned),
            time: nanoseconds(SystemTime::now()),
            base: self.base_files(),
        })?;
        Ok(OpenCheckout { layer, below })
    }

    /// Opens the checkout `name` for reading; ENOENT if it does not exist, EBUSY if a process writes in it. Writes
    /// nothing.
    pub fn open_to_read(&self, name: &str) -> Result<ReadCheckout> {
        let dir = self.find(name)?.dir;
        let held = LayerLock::share(&dir)?;
        let mut layers = self.committed()?;
        layers.push(on_top(&dir, IndexChanges::read(&dir)?, &layers)?);
        Ok(ReadCheckout { layers, held })
    }

    /// Opens the directory, creating it if needed, with the lock for adding and removing layers.
    fn locked(&self, storage: &dyn Storage) -> Result<(Dir, File)> {
        loop {
            let dir = self.make(storage)?;
            match commits::lock(&dir) {
                // The process that created the directory has just removed it again.
                Err(e) if e.kind == ErrorKind::Stale => {}
                lock => return Ok((dir, lock?)),
            }
        }
    }

    /// Opens the directory of the checkout `name` for a store that manages its changes itself; creates it if needed.
    /// EBUSY if another process holds it.
    pub fn hold(&self, name: &str) -> Result<Box<dyn CheckoutDirectory>> {
        check_name(name)?;
        let (all, _lock) = self.locked(&Disk)?;
        let dir = all.make(name)?.0;
        let lock = LayerLock::take(&dir)?;
        Ok(Box::new(HeldDirectory { dir, _lock: lock }))
    }

    /// Returns which files of the checkout `name` do not exist yet.
    pub fn missing(&self, name: &str) -> Result<MissingBefore> {
        // Other processes may already have seen files in a bucket.
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
            true => dir.below(&free_layer(name, KnownCommits::read(&dir)?.names())),
            false => return Ok(MissingBefore::default()),
        };
        Ok(MissingBefore {
            above: false,
            all: false,
            layer: matches!(layer, Err(e) if e.kind == ErrorKind::NotFound),
        })
    }

    /// Removes the files of the checkout `name` that were created since, if nothing was written in it and no process
    /// holds it.
    pub fn take_back(&self, name: &str, missing: &MissingBefore) -> Result<()> {
        if !(missing.above || missing.all || missing.layer) {
            return Ok(());
        }
        let Some(dir) = self.opened()? else {
            return Ok(());
        };
        if missing.layer && is_name(name) {
            let _lock = commits::lock(&dir)?;
            let layer = free_layer(name, KnownCommits::read(&dir)?.names());
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
            // Other processes may have begun to use it.
            let _ = std::fs::remove_dir(above);
        }
        Ok(())
    }

    /// Returns the uncommitted checkout `name`; ENOENT if it does not exist.
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

    /// Returns all checkouts: the committed ones in order, then the others by name.
    pub fn list(&self) -> Result<ListedCheckouts> {
        let (mut all, mut refused) = (Vec::new(), Vec::new());
        let Some(dir) = self.opened()? else {
            return Ok((all, refused));
        };
        let commits = commits::read(&dir)?;
        let mirror = Mirror::find(&dir);
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
        let taken = commits.iter().map(|commit| commit.layer.as_str()).collect();
        for name in names {
            let layer = layer_below(&dir, &first_free(name, &taken));
            match layer.and_then(|layer| summary(name, layer)) {
                Ok(summary) if summary.is_bare_continuation() => {}
                Ok(summary) => all.push(summary),
                // It was committed, and no other was begun since.
                Err(e) if e.kind == ErrorKind::NotFound => {}
                Err(e) if e.kind == ErrorKind::Denied => refused.push(e),
                Err(e) => return Err(e),
            }
        }
        Ok((all, refused))
    }

    /// Returns the commits, oldest first, and the objects that their layers changed. What a layer was begun on may be
    /// missing.
    pub fn history(&self) -> Result<Vec<(LayerCommit, IndexChanges)>> {
        let Some(dir) = self.opened_to_read()? else {
            return Ok(Vec::new());
        };
        let commits = commits::read(&dir)?.into_iter();
        let with_changes = commits.map(|commit| {
            let changes = match recorded_changes(&dir, &commit)? {
                Some(changes) => changes,
                None => committed(&dir, &commit, false)?.1,
            };
            Ok((commit, changes))
        });
        with_changes.collect()
    }

    /// Returns the layers that were committed up to the commit `at`, lowest first. `at` is its number, id, the
    /// beginning of that, or HEAD~N; ENOENT if it does not exist.
    pub fn committed_at(&self, at: &str) -> Result<Vec<LayerFiles>> {
        let (dir, commits) = self.commits_until(at)?;
        layers(&dir, &commits)
    }

    /// Returns the number of the commit that is called so; ENOENT if it does not exist.
    pub fn number_of(&self, name: &str) -> Result<usize> {
        Ok(self.commits_until(name)?.1.len())
    }

    /// Returns the commits up to one, oldest first, and their directory.
    fn commits_until(&self, at: &str) -> Result<(Dir, Vec<LayerCommit>)> {
        let none = |why: String| {
            let message = format!("{}: {why}", self.shown());
            Error::new(ErrorKind::NotFound, message)
        };
        let dir = self.opened_to_read()?;
        let dir = dir.ok_or_else(|| none("nothing was ever committed".to_owned()))?;
        let mut commits = commits::read(&dir)?;
        let number = commits::find(&commits, at).map_err(none)?;
        commits.truncate(number);
        Ok((dir, commits))
    }

    /// Returns all commits and their layers, lowest first.
    pub(in crate::checkout) fn committed_until_now(
        &self,
    ) -> Result<(CommitRecords, Vec<LayerFiles>)> {
        let Some(dir) = self.opened_to_read()? else {
            return Ok((CommitRecords::default(), Vec::new()));
        };
        let KnownCommits { commits, layers } = KnownCommits::in_full(&dir)?;
        Ok((commits, layers))
    }

    /// Adds the commits made since. If one cannot be read, those before it are still added. `dir` is the directory as
    /// last opened.
    pub(in crate::checkout) fn read_on(
        &self,
        dir: &mut Option<Dir>,
        commits: &mut CommitRecords,
    ) -> Result<()> {
        if !dir.as_ref().is_some_and(Dir::is_in_place) {
            *dir = self.opened_to_read()?;
        }
        match dir {
            Some(dir) => commits::read_on(dir, commits),
            None if commits.is_empty() => Ok(()),
            None => {
                let why = "the checkouts are gone";
                Err(Error::damaged(why).about(self.shown()))
            }
        }
    }

    /// Opens the directories of the checkout `name`, in which the logs of its mounts are, oldest first; ENOENT if there
    /// is none. A mount that commits goes on in a new directory.
    pub fn directories(&self, name: &str) -> Result<Vec<Dir>> {
        check_name(name)?;
        let none = || {
            let message = format!("{}: no checkout {name}", self.shown());
            Error::new(ErrorKind::NotFound, message)
        };
        let dir = self.opened()?.ok_or_else(none)?;
        let commits = commits::read(&dir)?;
        let of_name = commits.iter().map(|commit| commit.layer.clone());
        let of_name = of_name.filter(|layer| name_of(layer) == Some(name));
        let mut found = Vec::new();
        for layer in of_name.chain([dir_of(name, &commits)]) {
            match dir.below(&layer) {
                Err(e) if e.kind == ErrorKind::NotFound => {}
                layer => found.push(layer?),
            }
        }
        (!found.is_empty()).then_some(found).ok_or_else(none)
    }
}

/// The files that did not exist before a checkout was opened, to be removed again.
#[derive(Clone, Copy, Debug, Default)]
pub struct MissingBefore {
    /// Whether the directory above was missing.
    above: bool,
    /// Whether the directory of all checkouts was missing.
    all: bool,
    layer: bool,
}

/// Removes the directory of a layer that is empty and that no process holds. The caller holds the lock.
fn remove_unused(layer: &Dir) -> Result<()> {
    let _holder = match LayerLock::take(layer) {
        Err(e) if e.errno() == libc::EBUSY => return Ok(()),
        holder => holder?,
    };
    let changes = IndexChanges::read(layer)?;
    if changes.count_changed() == 0 && changes.incomplete.is_empty() {
        let old = format!("{LOG}{}", log_file::OLD);
        remove_with(layer, &[index::NAME, layer_lock::NAME, LOG, &old])?;
    }
    Ok(())
}

/// The directory of a checkout without a layer, and the right to write in it.
struct HeldDirectory {
    dir: Dir,
    _lock: LayerLock,
}

impl CheckoutDirectory for HeldDirectory {
    fn dir(&self) -> &Dir {
        &self.dir
    }

    fn remove(&self, files: &[&str]) -> Result<()> {
        remove_with(&self.dir, &[files, &[layer_lock::NAME]].concat())?;
        self.dir.above().map_or(Ok(()), remove_empty)
    }
}

/// Removes the directory of a checkout, if it contains nothing but `files`.
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

/// Removes a directory of checkouts that is empty.
pub fn remove_empty(dir: &Dir) -> Result<()> {
    let about = |e: std::io::Error| Error::from(e).about(dir.path().display());
    // A process that waits for the lock then finds that the directory is gone and creates it again.
    let _lock = commits::lock(dir)?;
    let known = |name: &OsStr| name == commits::LOCK || name == location::OWNER;
    if !dir
        .names()
        .map_err(about)?
        .iter()
        .all(|(name, _)| known(name))
    {
        return Ok(());
    }
    for file in [location::OWNER, commits::LOCK] {
        match dir.remove(file) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed.map_err(about)?,
        }
    }
    std::fs::remove_dir(dir.path()).map_err(about)
}

/// Opens the directory of an uncommitted layer; ENOENT if it does not exist.
pub(in crate::checkout) fn layer_below(dir: &Dir, layer: &str) -> Result<Dir> {
    if let Some(mirror) = Mirror::find(dir)
        && !mirror.pull(dir, layer)?
    {
        let why = "no such checkout";
        return Err(Error::new(ErrorKind::NotFound, why).about(mirror.prefix().address(layer)));
    }
    dir.below(layer)
}

/// Returns the name of the layer of a checkout: the first of that name that is not committed.
pub(in crate::checkout) fn dir_of(name: &str, commits: &[LayerCommit]) -> String {
    free_layer(name, commits.iter().map(|commit| commit.layer.as_str()))
}

/// Returns the first name of a layer of the checkout `name` that is not taken.
pub(in crate::checkout) fn free_layer<'a>(
    name: &str,
    taken: impl Iterator<Item = &'a str>,
) -> String {
    let taken = taken.filter(|layer| layer.starts_with(name));
    first_free(name, &taken.collect())
}

fn first_free(name: &str, taken: &HashSet<&str>) -> String {
    let mut names =
        std::iter::once(name.to_owned()).chain((2_u64..).map(|n| format!("{name}~{n}")));
    let free = names.find(|name| !taken.contains(name.as_str()));
    free.unwrap_or_default()
}

/// Summarizes an uncommitted checkout.
fn summary(name: &str, dir: Dir) -> Result<Summary> {
    Ok(Summary {
        name: name.to_owned(),
        changes: IndexChanges::read(&dir)?,
        holder: LayerLock::holder(&dir)?,
        dir,
        commit: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkout::records::names::LONGEST_NAME;
    use crate::store::format::bare::registry;

    fn open(checkouts: &Checkouts, name: &str) -> Result<OpenCheckout> {
        checkouts.open(name, Arc::new(Disk), |_| npyfs_worker::creator_here())
    }

    fn names(checkouts: &Checkouts) -> Vec<String> {
        let (all, refused) = checkouts.list().unwrap();
        assert!(refused.is_empty());
        all.into_iter().map(|summary| summary.name).collect()
    }

    #[test]
    fn two_checkouts_can_be_open_and_one_cannot_twice() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("x.h5");
        std::fs::write(&store, "123").unwrap();
        let checkouts = Checkouts::of_store(&store, None, &registry());
        assert!(names(&checkouts).is_empty() && checkouts.committed().unwrap().is_empty());
        assert_eq!(checkouts.find("a").unwrap_err().errno(), libc::ENOENT);
        let a = open(&checkouts, "a").unwrap();
        let _b = open(&checkouts, "b").unwrap();
        assert_eq!(open(&checkouts, "a").err().unwrap().errno(), libc::EBUSY);
        assert!(checkouts.find("a").unwrap().holder.is_some());
        drop(a);
        let found = checkouts.find("a").unwrap();
        assert_eq!(found.holder, None);
        assert_eq!(found.dir.path(), dir.path().join("x.h5.checkouts/a"));
        let begun = found.changes.begun.unwrap();
        assert_eq!(begun.commits, 0);
        assert_eq!(begun.base, base_files(&store));
        assert_eq!(begun.base.unwrap()[0].size, 3);
        assert_eq!(names(&checkouts), ["a", "b"]);
    }

    #[test]
    fn names_that_could_lead_elsewhere_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let checkouts =
            Checkouts::of_store(&dir.path().join("x.h5"), Some(dir.path()), &registry());
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
        let formats = crate::formats::registry();
        for (store, want) in [
            ("/d/x.h5", "/d/x.h5.checkouts"),
            ("/d/x_LOCALE0003.h5", "/d/x_LOCALE.h5.checkouts"),
            ("/d", "/d.checkouts"),
        ] {
            let checkouts = Checkouts::of_store(Path::new(store), None, &formats);
            assert_eq!(checkouts.dir(), Path::new(want));
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
