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

mod bucket;
mod directory;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use directory::{CLOCK, FoundName, GcDirectory, GcPlace};

use super::commit::DISCARDED;
use crate::checkout::history::checkouts::{Checkouts, LOG, dir_of};
use crate::checkout::history::commits::{self, LayerCommit};
use crate::checkout::history::committed_layers::said;
use crate::checkout::layer::lock::{self as layer_lock, LayerLock};
use crate::checkout::layer::publications;
use crate::checkout::layer::{self, FINISHED, MEMBER};
use crate::checkout::mirror::Mirror;
use crate::checkout::records::index::{self, IndexChanges};
use crate::checkout::records::names::{REVERT, name_of};
use crate::checkout::records::record_log::REWRITTEN;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::dir::{Dir, SCRATCH};
use npyfs_io::log_file;
use npyfs_io::storage::Storage;
use npyfs_io::workplace;

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
    if let Some(mirror) = Mirror::of(&dir) {
        return bucket::collect(checkouts, &dir, &mirror, wish, storage);
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
            Some(commit) => said(top, commit)?,
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

#[cfg(test)]
mod tests;
