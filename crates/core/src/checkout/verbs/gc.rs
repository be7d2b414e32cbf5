//! Garbage collection for the checkouts of a store: removes files to which no commit and no checkout refers, and
//! nothing else.
//!
//! The files that a commit or the index of its layer names stay, and so does every uncommitted checkout. The log,
//! reverts and earlier states need nothing more. Leftovers of dead processes are removed, and so are files of objects
//! that were written again.
//!
//! Writers are not disturbed. A layer with a writer is skipped, and the lock of the directory is held only briefly.
//! Nothing that is younger than the start of this run is removed. Where other hosts may write whose locks are not
//! visible here, nothing younger than a day is removed. Both times are taken from the clock of the file server.
//!
//! A directory is seen through a seam (`GcPlace`): a place has names with sizes and ages, and names can be removed. In
//! a bucket nothing depends on ages except the user's limit: leases tell whether a process writes. Local copies of a
//! bucket are not touched.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::commit::{DISCARDED, discard};
use crate::checkout::history::checkouts::{Checkouts, LOG, dir_of, layer_below};
use crate::checkout::history::commits::{self, LayerCommit, write_id};
use crate::checkout::history::committed_layers::recorded_changes;
use crate::checkout::layer::lock::{self as layer_lock, LayerLock};
use crate::checkout::layer::{self, FINISHED, MEMBER, publications};
use crate::checkout::mirror::{LayerUse, Mirror};
use crate::checkout::records::index::{self, IndexChanges};
use crate::checkout::records::names::{REVERT, name_of};
use crate::checkout::records::record_log::REWRITTEN;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::dir::{Dir, SCRATCH};
use npyfs_io::file::time;
use npyfs_io::storage::Storage;
use npyfs_io::{log_file, workplace};

/// The age at which an unfinished file is taken for abandoned although its writer's lock may not be visible.
const UNSEEN: Duration = Duration::from_secs(24 * 3600);

/// The most files that are removed while the directory is locked: commits and new checkouts wait meanwhile.
const SLICE: usize = 256;

/// A reason for removal.
const UNFINISHED: &str = "unfinished";

/// A reason for removal.
const NEVER_WRITTEN: &str = "never written in";

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct GcWish {
    /// Files that were changed more recently than this stay.
    pub older_than: Duration,
    /// Whether nothing is to be removed.
    pub dry_run: bool,
}

/// An unreferenced file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Garbage {
    /// The path, relative to the directory of the checkouts, or absolute.
    pub path: String,
    /// The size in bytes, including everything below it.
    pub bytes: u64,
    /// The reason why it is not needed, in a few words.
    pub why: &'static str,
}

/// The outcome.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// The files that were removed, or would be.
    pub garbage: Vec<Garbage>,
    /// Unreferenced files that are too young.
    pub young: Vec<Garbage>,
    /// Checkouts that were skipped because processes write in them. The writers remove their garbage themselves.
    pub in_use: Vec<String>,
    /// Files that could not be examined or removed, one line each.
    pub left: Vec<String>,
}

/// Removes unreferenced files. Fails if the commits cannot be read: then nothing is removed.
pub fn collect(
    checkouts: &Checkouts,
    wish: &GcWish,
    storage: &Arc<dyn Storage>,
) -> Result<Collected> {
    let Some(dir) = checkouts.opened()? else {
        return Ok(Collected::default());
    };
    if let Some(mirror) = Mirror::find(&dir) {
        return collect_in_bucket(checkouts, &dir, &mirror, wish, storage);
    }
    let mut collector = Collector::new(&place(&dir, storage), wish, storage)?;
    let layers = collector.top(&dir)?;
    for (name, commit) in layers {
        if let Err(e) = collector.layer(&dir, &name, commit.as_ref()) {
            collector.done.left.push(e.to_string());
        }
    }
    if let Some(parent) = checkouts.store().parent() {
        collector.workplaces(parent);
    }
    Ok(collector.done)
}

fn place(dir: &Dir, storage: &Arc<dyn Storage>) -> GcDirectory {
    GcDirectory {
        dir: dir.clone(),
        storage: storage.clone(),
    }
}

/// A run over one directory of checkouts.
struct Collector {
    dry_run: bool,
    /// Files that were changed later are too young.
    before: i128,
    storage: Arc<dyn Storage>,
    done: Collected,
}

impl Collector {
    /// Begins a run: files that are younger than its start stay.
    fn new(top: &dyn GcPlace, wish: &GcWish, storage: &Arc<dyn Storage>) -> Result<Self> {
        let now = match top.now() {
            // Without the right to write, the local clock is used.
            Err(_) if wish.dry_run => index::nanoseconds(std::time::SystemTime::now()),
            now => now?,
        };
        let older_than = match top.is_shared()? {
            true => wish.older_than.max(UNSEEN),
            false => wish.older_than,
        };
        let age = i128::try_from(older_than.as_nanos()).unwrap_or(i128::MAX);
        Ok(Self {
            dry_run: wish.dry_run,
            before: i128::from(now).saturating_sub(age),
            storage: storage.clone(),
            done: Collected::default(),
        })
    }

    /// Removes an unneeded name of a place if it is old enough; `of` is the path of the place.
    fn take(&mut self, place: &dyn GcPlace, of: &str, found: &FoundName, why: &'static str) {
        let looked = match found.is_dir {
            true => place
                .below(&found.name)
                .and_then(|below| whole(&*below, found)),
            false => Ok((found.bytes, found.changed)),
        };
        let path = match of {
            "" => found.name.clone(),
            of => format!("{of}/{}", found.name),
        };
        let (bytes, changed) = match looked {
            Ok(looked) => looked,
            Err(e) if e.kind == ErrorKind::NotFound => return,
            Err(e) => return self.done.left.push(e.to_string()),
        };
        let garbage = Garbage { path, bytes, why };
        if i128::from(changed) > self.before {
            return self.done.young.push(garbage);
        }
        if self.dry_run || place.remove(found).unwrap_or_else(|e| self.failed(&e)) {
            self.done.garbage.push(garbage);
        }
    }

    fn failed(&mut self, error: &Error) -> bool {
        self.done.left.push(error.to_string());
        false
    }

    /// Examines the names in the directory itself and the commits. Returns the names of the layers, with their commits.
    fn top(&mut self, dir: &Dir) -> Result<Vec<(String, Option<LayerCommit>)>> {
        let top = place(dir, &self.storage);
        // No process of this host commits or begins a checkout until all references are known.
        let lock = match self.dry_run {
            true => None,
            false => Some(commits::lock(dir)?),
        };
        let (all, numbered) = commits::with_place(dir)?;
        if let Some(numbered) = numbered {
            let name = numbered.name();
            let numbered = place(&numbered, &self.storage);
            for found in numbered.found()?.iter().filter(|found| !found.is_dir) {
                let why = commits::useless(&found.name, all.len() as u64);
                if let Some(why) = why {
                    self.take(&numbered, &name, found, why);
                }
            }
        }
        let by_layer = all.iter().map(|commit| (commit.layer.as_str(), commit));
        let committed: HashMap<&str, &LayerCommit> = by_layer.collect();
        let rewritten = format!("{}{REWRITTEN}", publications::NAME);
        let (mut layers, mut discarded) = (Vec::new(), Vec::new());
        for found in top.found()? {
            let name = found.name.as_str();
            if !found.is_dir {
                if name.starts_with(CLOCK) || name == rewritten {
                    self.take(&top, "", &found, UNFINISHED);
                }
            } else if let Some(&commit) = committed.get(name) {
                layers.push((found.name, Some(commit.clone())));
            } else if name.starts_with(DISCARDED) {
                discarded.push(found);
            } else if name.starts_with(REVERT) {
                self.take(&top, "", &found, "a commit that never happened");
            } else if let Err(e) = self.checkout(dir, &found, &all, &mut layers) {
                self.done.left.push(e.to_string());
            }
        }
        drop(lock);
        // Before its files are removed, it must be durable that the layer is discarded.
        if !discarded.is_empty() && !self.dry_run {
            let about = |e: std::io::Error| Error::from(e).about(dir.path().display());
            self.storage.sync_dir(dir).map_err(about)?;
        }
        for found in discarded {
            self.take(&top, "", &found, "discarded");
        }
        Ok(layers)
    }

    /// Examines a directory that may be that of an uncommitted checkout.
    fn checkout(
        &mut self,
        top: &Dir,
        found: &FoundName,
        commits: &[LayerCommit],
        layers: &mut Vec<(String, Option<LayerCommit>)>,
    ) -> Result<()> {
        let Some(checkout) = name_of(&found.name) else {
            return Ok(());
        };
        let dir = top.below(&found.name)?;
        let is_current = dir_of(checkout, commits) == found.name;
        let changes = IndexChanges::read(&dir)?;
        // A mount that committed went on in it, and nothing was written since.
        let is_left =
            found.name != checkout && changes.count_changed() == 0 && changes.incomplete.is_empty();
        let is_begun = !is_left && !says_nothing(&changes);
        let is_bare = |found: &FoundName| {
            let old = format!("{LOG}{}", log_file::OLD);
            let rewritten = format!("{}{REWRITTEN}", index::NAME);
            let known = [index::NAME, &rewritten, layer_lock::NAME, LOG, &old];
            known.contains(&found.name.as_str()) || found.name.starts_with(SCRATCH)
        };
        let is_bare = place(&dir, &self.storage).found()?.iter().all(is_bare);
        // A mount was to go on in it after a commit, and ended before the commit was made.
        let is_next = is_left && is_bare;
        if !(is_current || is_next) {
            let why = "no commit has it, and it is not what the checkout of this name is now: look what is in it";
            return Err(Error::new(ErrorKind::Stale, why).about(dir.path().display()));
        }
        if is_current && (is_begun || !is_bare) {
            layers.push((found.name.clone(), None));
            return Ok(());
        }
        let why = match is_current {
            true => NEVER_WRITTEN,
            false => "a commit that never happened",
        };
        if let Some(_held) = self.held(&dir, &found.name)? {
            self.take(&place(top, &self.storage), "", found, why);
        }
        Ok(())
    }

    /// Excludes writers from a layer; `None` if a process writes in it, which is recorded.
    fn held(&mut self, dir: &Dir, name: &str) -> Result<Option<Option<LayerLock>>> {
        match LayerLock::share(dir) {
            Err(e) if e.errno() == libc::EBUSY => {
                self.done.in_use.push(name.to_owned());
                Ok(None)
            }
            held => held.map(Some),
        }
    }

    /// Removes the files of a layer to which neither its index nor its commit refers.
    fn layer(&mut self, top: &Dir, name: &str, commit: Option<&LayerCommit>) -> Result<()> {
        let dir = match top.below(name) {
            // It was discarded in the meantime.
            Err(e) if e.kind == ErrorKind::NotFound => return Ok(()),
            dir => dir?,
        };
        let said = match commit {
            Some(commit) => recorded_changes(top, commit)?,
            None => None,
        };
        let said = said.map(|said| layer::named(&said.entries, &said.incomplete));
        let said = said.unwrap_or_default();
        let place = place(&dir, &self.storage);
        let mut last = String::new();
        while !unnamed(&place, &last, &said)?.is_empty() {
            let _lock = match self.dry_run {
                true => None,
                false => Some(commits::lock(top)?),
            };
            let Some(_held) = self.held(&dir, name)? else {
                return Ok(());
            };
            // The index in memory may be newer than the one on the disk: a file that only the latter names must stay.
            if !self.dry_run {
                let about = |e: std::io::Error| Error::from(e).about(dir.path().display());
                match dir.read(index::NAME) {
                    Err(e) if e.kind == ErrorKind::NotFound => {}
                    index => self.storage.sync(&index?).map_err(about)?,
                }
            }
            for (found, why) in unnamed(&place, &last, &said)?.into_iter().take(SLICE) {
                self.take(&place, name, &found, why);
                last = found.name;
            }
        }
        Ok(())
    }

    /// Removes leftovers of killed exports beside the store.
    fn workplaces(&mut self, parent: &Path) {
        for found in workplace::abandoned(parent) {
            let (bytes, changed) = found.size_and_change();
            let garbage = Garbage {
                path: found.path().display().to_string(),
                bytes,
                why: "an export that was killed",
            };
            if i128::from(changed) > self.before {
                self.done.young.push(garbage);
                continue;
            }
            if !self.dry_run {
                found.remove();
            }
            self.done.garbage.push(garbage);
        }
    }
}

/// Returns the size of everything below a name, and the time of the latest change.
fn whole(below: &dyn GcPlace, found: &FoundName) -> Result<(u64, i64)> {
    let (mut bytes, mut changed) = (0_u64, found.changed);
    for inner in below.found()? {
        let (more, at) = match inner.is_dir {
            true => whole(&*below.below(&inner.name)?, &inner)?,
            false => (inner.bytes, inner.changed),
        };
        bytes = bytes.saturating_add(more);
        changed = changed.max(at);
    }
    Ok((bytes, changed))
}

/// Returns whether an index is empty.
fn says_nothing(changes: &IndexChanges) -> bool {
    changes.begun.is_none()
        && changes.count_changed() == 0
        && changes.incomplete.is_empty()
        && changes.stores.is_empty()
}

/// Returns the files of a layer sorted after the name `last` to which its index does not refer and which are not in
/// `said`, and the reasons.
fn unnamed(
    place: &GcDirectory,
    last: &str,
    said: &HashSet<(u64, &'static str)>,
) -> Result<Vec<(FoundName, &'static str)>> {
    let dir = &place.dir;
    let found = place.found()?;
    let changes = IndexChanges::read(dir)?;
    let mut named = layer::named(&changes.entries, &changes.incomplete);
    named.extend(said);
    let published = publications::published(dir)?;
    let is_object = |file: &layer::NumberedFile| matches!(file.ending, FINISHED | MEMBER);
    let mut numbered = found
        .iter()
        .filter_map(|found| layer::numbered(&found.name));
    if says_nothing(&changes) && numbered.any(|file| is_object(&file)) {
        let why = "it is gone, but the files of the checkout are there";
        return Err(Error::damaged(why).about(dir.path().join(index::NAME).display()));
    }
    let rewritten = format!("{}{REWRITTEN}", index::NAME);
    let why = |name: &str| match layer::numbered(name) {
        Some(file) if named.contains(&(file.number, file.ending)) => None,
        Some(file) if file.ending == FINISHED && published.contains(&file.number) => None,
        Some(file) if is_object(&file) => Some("of no object"),
        Some(_) => Some(UNFINISHED),
        None => (name.starts_with(SCRATCH) || name == rewritten).then_some(UNFINISHED),
    };
    let files = found
        .into_iter()
        .filter(|found| !found.is_dir && *found.name > *last);
    Ok(files
        .filter_map(|found| Some((why(&found.name)?, found)))
        .map(|(why, found)| (found, why))
        .collect())
}

/// The prefix of files that are created to read the file server's clock.
const CLOCK: &str = ".gc-";

/// A name in a place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FoundName {
    name: String,
    /// Whether it has names below it.
    is_dir: bool,
    /// The bytes that its removal frees, without those of names below it.
    bytes: u64,
    /// The time of its last change, by the clock of the place, in nanoseconds since 1970.
    changed: i64,
}

/// A place with names.
trait GcPlace {
    /// Returns the time by the clock of the file server: that of this host may be hours ahead.
    fn now(&self) -> Result<i64>;

    /// Returns true if other hosts may write to it whose locks are not visible here.
    fn is_shared(&self) -> Result<bool>;

    /// Returns all names that npyfs may have created, in order.
    fn found(&self) -> Result<Vec<FoundName>>;

    /// Returns the place below a name.
    fn below(&self, name: &str) -> Result<Box<dyn GcPlace>>;

    /// Removes a name and everything below it. False if it is already gone.
    fn remove(&self, found: &FoundName) -> Result<bool>;
}

/// A directory as a place.
struct GcDirectory {
    dir: Dir,
    storage: Arc<dyn Storage>,
}

impl GcDirectory {
    fn about(&self, error: std::io::Error, name: &str) -> Error {
        Error::from(error).about(self.dir.path().join(name).display())
    }
}

impl GcPlace for GcDirectory {
    fn now(&self) -> Result<i64> {
        let name = format!("{CLOCK}{}", write_id()?);
        let made = self.storage.create(&self.dir, &name);
        let made: File = made.map_err(|e| self.about(e, ""))?;
        let meta = made.metadata().map_err(|e| self.about(e, &name));
        let _ = self.storage.remove(&self.dir, &name);
        Ok(changed(&meta?))
    }

    fn is_shared(&self) -> Result<bool> {
        self.dir.is_shared().map_err(|e| self.about(e, ""))
    }

    fn found(&self) -> Result<Vec<FoundName>> {
        let mut all = Vec::new();
        for (name, kind) in self.dir.names().map_err(|e| self.about(e, ""))? {
            let Ok(name) = name.into_string() else {
                continue;
            };
            if !kind.is_dir() && !kind.is_file() {
                continue;
            }
            match self.dir.size_and_change(&name) {
                // Its writer has removed it.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                looked => {
                    let (bytes, changed) = looked.map_err(|e| self.about(e, &name))?;
                    all.push(FoundName {
                        is_dir: kind.is_dir(),
                        bytes: if kind.is_dir() { 0 } else { bytes },
                        name,
                        changed,
                    });
                }
            }
        }
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    fn below(&self, name: &str) -> Result<Box<dyn GcPlace>> {
        Ok(Box::new(Self {
            dir: self.dir.below(name)?,
            storage: self.storage.clone(),
        }))
    }

    fn remove(&self, found: &FoundName) -> Result<bool> {
        let removed = match found.is_dir {
            true => self.dir.remove_all(&found.name),
            false => {
                let removed = self.storage.remove(&self.dir, &found.name);
                removed.map_err(|e| self.about(e, &found.name))
            }
        };
        match removed {
            Err(e) if e.kind == ErrorKind::NotFound => Ok(false),
            removed => removed.map(|()| true),
        }
    }
}

/// Returns the time of a file's last status change (ctime), which cannot be set.
fn changed(meta: &std::fs::Metadata) -> i64 {
    let seconds = meta.ctime().saturating_mul(1_000_000_000);
    seconds.saturating_add(meta.ctime_nsec())
}

/// Removes unreferenced objects from the bucket that `dir` is a copy of.
fn collect_in_bucket(
    checkouts: &Checkouts,
    dir: &Dir,
    mirror: &Mirror,
    wish: &GcWish,
    storage: &Arc<dyn Storage>,
) -> Result<Collected> {
    let now = match mirror.now() {
        // Without the right to write, the local clock is used.
        Err(_) if wish.dry_run => SystemTime::now(),
        now => now?,
    };
    let before = now
        .checked_sub(wish.older_than)
        .unwrap_or(SystemTime::UNIX_EPOCH);
    let mut done = Collected::default();
    let layers: BTreeSet<String> = mirror.layers()?.into_iter().collect();
    // A layer that is committed after the names were listed must be seen as committed.
    let all = commits::read(dir)?;
    let committed: HashMap<&str, _> = all
        .iter()
        .map(|commit| (commit.layer.as_str(), commit.content.as_ref()))
        .collect();
    for layer in &layers {
        let content = match committed.get(layer.as_str()) {
            Some(Some(content)) => Some(*content),
            // The commit does not list its content.
            Some(None) => continue,
            None if layer.starts_with(REVERT) || name_of(layer).is_some() => None,
            None => continue,
        };
        if content.is_none()
            && let Some((name, begun)) = left(dir, layer, &all)?
        {
            let garbage = Garbage {
                path: layer.clone(),
                bytes: 0,
                why: NEVER_WRITTEN,
            };
            if begun > before {
                done.young.push(garbage);
                continue;
            }
            let removed = match wish.dry_run {
                true => Ok(()),
                false => discard(checkouts, &name, false, &**storage).map(drop),
            };
            match removed {
                Ok(()) => done.garbage.push(garbage),
                Err(e) if e.errno() == libc::EBUSY => done.in_use.push(layer.clone()),
                Err(e) => done.left.push(e.to_string()),
            }
            continue;
        }
        match mirror.garbage(dir, layer, content, !wish.dry_run) {
            Err(e) => done.left.push(e.to_string()),
            Ok(LayerUse::Written) => done.in_use.push(layer.clone()),
            Ok(LayerUse::Garbage(found)) => {
                let may_remove = content.is_some() || found.is_alone();
                for object in &found.objects {
                    let garbage = Garbage {
                        path: format!("{layer}/{}", object.name),
                        bytes: object.size,
                        why: "of no object",
                    };
                    if object.modified > before {
                        done.young.push(garbage);
                        continue;
                    }
                    let removed = match wish.dry_run || !may_remove {
                        true => Ok(()),
                        false => mirror.remove_garbage(layer, object),
                    };
                    match removed {
                        Ok(()) => done.garbage.push(garbage),
                        Err(e) => done.left.push(e.to_string()),
                    }
                }
            }
        }
    }
    Ok(done)
}

/// Returns the name of a checkout in which a mount went on after its commit and nothing was written since, and when
/// that was; `None` if a layer is none, or is in use.
fn left(dir: &Dir, layer: &str, commits: &[LayerCommit]) -> Result<Option<(String, SystemTime)>> {
    let name = match name_of(layer) {
        Some(name) if name != layer && dir_of(name, commits) == layer => name,
        _ => return Ok(None),
    };
    let layer = match layer_below(dir, layer) {
        Err(e) if e.kind == ErrorKind::NotFound => return Ok(None),
        layer => layer?,
    };
    let changes = IndexChanges::read(&layer)?;
    let is_empty = changes.count_changed() == 0 && changes.incomplete.is_empty();
    let is_free = is_empty && LayerLock::holder(&layer)?.is_none();
    let begun = changes.begun.map(|begun| time(begun.time));
    Ok(is_free.then(|| (name.to_owned(), begun.unwrap_or(SystemTime::UNIX_EPOCH))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkout::verbs::commit::CommitOptions;
    use crate::checkout::verbs::commit::tests::{GOOD, commit_with, place as checkouts_of_nobody};
    use crate::store::object::NewFile;
    use npyfs_io::storage::Disk;
    use npyfs_io::storage::faulty::Faulty;
    use std::cell::RefCell;
    use std::time::SystemTime;

    const HOUR: i64 = 3600 * 1_000_000_000;

    /// A place with its own clock.
    #[derive(Default)]
    struct Elsewhere {
        now: i64,
        is_shared: bool,
        removed: RefCell<Vec<String>>,
    }

    impl GcPlace for Elsewhere {
        fn now(&self) -> Result<i64> {
            Ok(self.now)
        }

        fn is_shared(&self) -> Result<bool> {
            Ok(self.is_shared)
        }

        fn found(&self) -> Result<Vec<FoundName>> {
            Ok(vec![file("inside", self.now - 3 * HOUR)])
        }

        fn below(&self, _name: &str) -> Result<Box<dyn GcPlace>> {
            let now = self.now;
            Ok(Box::new(Self {
                now,
                ..Self::default()
            }))
        }

        fn remove(&self, found: &FoundName) -> Result<bool> {
            self.removed.borrow_mut().push(found.name.clone());
            Ok(true)
        }
    }

    fn file(name: &str, changed: i64) -> FoundName {
        FoundName {
            name: name.into(),
            is_dir: false,
            bytes: 10,
            changed,
        }
    }

    fn hours(hours: u64) -> GcWish {
        GcWish {
            older_than: Duration::from_secs(hours * 3600),
            dry_run: false,
        }
    }

    #[test]
    fn age_is_told_by_the_clock_of_the_place() {
        let here = index::nanoseconds(SystemTime::now());
        let disk: Arc<dyn Storage> = Arc::new(Disk);
        for now in [here, here - 900 * HOUR, here + 900 * HOUR, HOUR] {
            let names = [0, 1, 2, 5, 30].map(|age| file(&age.to_string(), now - age * HOUR));
            let of_later = file("later", now + 1);
            let dir = FoundName {
                is_dir: true,
                ..file("dir", now - 40 * HOUR)
            };
            for (wish, is_shared, expected) in [
                (hours(0), false, &["0", "1", "2", "5", "30", "dir"][..]),
                (hours(2), false, &["2", "5", "30", "dir"]),
                (hours(4), false, &["5", "30"]),
                (hours(0), true, &["30"]),
                (hours(31), true, &[]),
            ] {
                let place = Elsewhere {
                    now,
                    is_shared,
                    ..Elsewhere::default()
                };
                let mut run = Collector::new(&place, &wish, &disk).unwrap();
                for found in names.iter().chain([&of_later, &dir]) {
                    run.take(&place, "", found, UNFINISHED);
                }
                assert_eq!(*place.removed.borrow(), expected);
                assert_eq!(run.done.garbage.len(), expected.len());
                assert_eq!(run.done.young.len(), 7 - expected.len());
            }
        }
    }

    /// Returns all names below a directory.
    fn names(dir: &Path) -> Vec<String> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                all.extend(names(&path));
            }
            all.push(path.display().to_string());
        }
        all.sort();
        all
    }

    #[test]
    fn of_what_is_named_nothing_goes_whichever_call_fails() {
        let disk: Arc<dyn Storage> = Arc::new(Disk);
        for at in 0.. {
            let (_top, checkouts) = checkouts_of_nobody();
            for name in ["a", "b"] {
                let open = checkouts.open(name, disk.clone(), |_| npyfs_worker::creator_here());
                let layer = open.unwrap().layer;
                let now = SystemTime::now();
                layer.put("x", &NewFile::default(), now).unwrap();
            }
            let wish = CommitOptions::default();
            let done = commit_with(&checkouts, "a", &wish, disk.clone(), &|_, _| false, GOOD);
            done.unwrap();
            let before = names(checkouts.dir());
            for name in [
                "a/0000000000000009.h5",
                "b/0000000000000008.part",
                "b/0000000000000007.member",
                "commits/.00000000000000000002.json.1",
                ".published.new",
            ] {
                std::fs::write(checkouts.dir().join(name), "x").unwrap();
            }
            std::fs::create_dir(checkouts.dir().join(".discarded-c-0")).unwrap();
            std::fs::create_dir(checkouts.dir().join("revert+2")).unwrap();
            // A mount was to go on in it after a commit, and died while it wrote the index.
            std::fs::create_dir(checkouts.dir().join("b~2")).unwrap();
            std::fs::write(checkouts.dir().join("b~2/index.new"), "x").unwrap();
            let faulty = Arc::new(Faulty::new(at, libc::EIO, at % 2 == 0));
            let storage: Arc<dyn Storage> = faulty.clone();
            let done = collect(&checkouts, &hours(0), &storage);
            assert!(
                done.is_err() || !done.unwrap().left.is_empty() || faulty.calls() <= at || at < 2,
                "{at}"
            );
            let there = names(checkouts.dir());
            assert!(before.iter().all(|name| there.contains(name)), "{at}");
            let done = collect(&checkouts, &hours(0), &disk).unwrap();
            assert!(done.left.is_empty() && done.in_use.is_empty() && done.young.is_empty());
            assert_eq!(names(checkouts.dir()), before, "{at}");
            if faulty.calls() <= at {
                assert!(at > 8, "{at}");
                return;
            }
        }
    }

    #[test]
    fn what_a_commit_names_stays_though_the_index_lost_it() {
        let disk: Arc<dyn Storage> = Arc::new(Disk);
        let (_top, checkouts) = checkouts_of_nobody();
        let open = checkouts.open("a", disk.clone(), |_| npyfs_worker::creator_here());
        let layer = open.unwrap().layer;
        for name in ["x", "y"] {
            layer
                .put(name, &NewFile::default(), SystemTime::now())
                .unwrap();
        }
        drop(layer);
        let wish = CommitOptions::default();
        let done = commit_with(&checkouts, "a", &wish, disk.clone(), &|_, _| false, GOOD);
        done.unwrap();
        let index = checkouts.dir().join("a").join(index::NAME);
        let text = std::fs::read_to_string(&index).unwrap();
        let (shorter, lost) = text.trim_end().rsplit_once('\n').unwrap();
        assert!(lost.contains("\"y\""), "{lost}");
        std::fs::write(&index, format!("{shorter}\n")).unwrap();
        let before = names(checkouts.dir());
        let done = collect(&checkouts, &hours(0), &disk).unwrap();
        assert!(done.garbage.is_empty() && done.left.is_empty(), "{done:?}");
        assert_eq!(names(checkouts.dir()), before);
    }
}
