//! Housekeeping of the checkouts of a store: removes what no commit and no checkout names, and nothing else.
//!
//! A layer that a commit names stays as its index says it, and so does every checkout that is not committed, whoever began it: the log,
//! commits that are taken back and states as they were need nothing more. What goes are remains of processes that died, and
//! files of objects that were written again.
//!
//! Writers are not disturbed. A layer that a process has is left to it, and the lock of the directory is held only for
//! moments. Of what is younger than this run began nothing goes, nor, where other hosts may write whose locks are not seen here, of
//! what is younger than a day. Both times are of the clock of whoever keeps the files.

mod bucket;
mod place;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use place::{CLOCK, FoundName, GcDirectory, GcPlace};

use super::checkouts::{Checkouts, LOG, dir_of};
use super::commit::DISCARDED;
use super::commits::{self, LayerCommit};
use super::index::{self, IndexChanges};
use super::layer::{self, FINISHED, MEMBER};
use super::layer_lock::{self, LayerLock};
use super::mirror::Mirror;
use super::names::{REVERT, name_of};
use super::record_log::REWRITTEN;
use super::{publications, workplace};
use crate::error::{Error, ErrorKind, Result};
use crate::io::dir::{Dir, SCRATCH};
use crate::io::log_file;
use crate::io::storage::Storage;

/// The age from which on nobody is still at it whose locks are not seen.
const UNSEEN: Duration = Duration::from_secs(24 * 3600);

/// Files that are removed while the directory is locked, at most: who begins a checkout or commits waits for that long.
const SLICE: usize = 256;

/// Why a name goes.
const UNFINISHED: &str = "unfinished";

/// The wishes of who frees room.
#[derive(Clone, Copy, Debug)]
pub struct GcWish {
    /// What was changed in this time stays.
    pub older_than: Duration,
    /// Nothing is removed.
    pub dry_run: bool,
}

/// Something that nobody names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Garbage {
    /// Its path from the directory of the checkouts, or from the root.
    pub path: String,
    /// Its size, with all that is below it.
    pub bytes: u64,
    /// The reason why nobody needs it, in a few words.
    pub why: &'static str,
}

/// The outcome.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    /// What was removed, or would be.
    pub garbage: Vec<Garbage>,
    /// What nobody names either, and is too young.
    pub young: Vec<Garbage>,
    /// Checkouts that were left to the processes that write in them, which clear them up themselves.
    pub in_use: Vec<String>,
    /// What could not be judged or removed, a line for each.
    pub left: Vec<String>,
}

impl Checkouts {
    /// Removes what no commit and no checkout names. An error if the commits cannot be read: then nothing is.
    pub fn collect_garbage(&self, wish: &GcWish, storage: &Arc<dyn Storage>) -> Result<Collected> {
        let Some(dir) = self.opened()? else {
            return Ok(Collected::default());
        };
        if let Some(mirror) = Mirror::of(&dir) {
            return bucket::collect(&dir, &mirror, wish);
        }
        let mut collector = Collector::new(&place(&dir, storage), wish, storage)?;
        let layers = collector.top(&dir)?;
        for name in layers {
            if let Err(e) = collector.layer(&dir, &name) {
                collector.done.left.push(e.to_string());
            }
        }
        if let Some(parent) = self.store().parent() {
            collector.workplaces(parent);
        }
        Ok(collector.done)
    }
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
    /// What was changed later is too young.
    before: i128,
    storage: Arc<dyn Storage>,
    done: Collected,
}

impl Collector {
    /// Begins a run: what is younger than it stays.
    fn new(top: &dyn GcPlace, wish: &GcWish, storage: &Arc<dyn Storage>) -> Result<Self> {
        let now = match top.now() {
            // Whoever may only look has no other clock.
            Err(_) if wish.dry_run => layer::nanoseconds(std::time::SystemTime::now()),
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

    /// Removes names of a place that nobody needs, if they are old enough; `of` is where the place is.
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

    /// Looks at the names in the directory itself and at the commits, and returns the names of the layers.
    fn top(&mut self, dir: &Dir) -> Result<Vec<String>> {
        let top = place(dir, &self.storage);
        // Neither commits nor begins anybody of this host until it is known what is named.
        let lock = match self.dry_run {
            true => None,
            false => Some(commits::lock(dir)?),
        };
        let (all, numbered, first) = commits::with_place(dir)?;
        if let Some(numbered) = numbered {
            let name = numbered.name();
            let numbered = place(&numbered, &self.storage);
            for found in numbered.found()?.iter().filter(|found| !found.is_dir) {
                let why = commits::useless(&found.name, first, all.len() as u64);
                if let Some(why) = why {
                    self.take(&numbered, &name, found, why);
                }
            }
        }
        let committed: HashSet<&str> = all.iter().map(|commit| commit.layer.as_str()).collect();
        let rewritten =
            [publications::NAME, commits::NAME].map(|name| format!("{name}{REWRITTEN}"));
        let (mut layers, mut discarded) = (Vec::new(), Vec::new());
        for found in top.found()? {
            let name = found.name.as_str();
            if !found.is_dir {
                if name.starts_with(CLOCK) || rewritten.iter().any(|known| known == name) {
                    self.take(&top, "", &found, UNFINISHED);
                }
            } else if committed.contains(name) {
                layers.push(found.name);
            } else if name.starts_with(DISCARDED) {
                discarded.push(found);
            } else if name.starts_with(REVERT) {
                self.take(&top, "", &found, "a commit that never happened");
            } else if let Err(e) = self.checkout(dir, &found, &all, &mut layers) {
                self.done.left.push(e.to_string());
            }
        }
        drop(lock);
        // Before its files go, it is sure that it stays discarded.
        if !discarded.is_empty() && !self.dry_run {
            let about = |e: std::io::Error| Error::from(e).about(dir.path().display());
            self.storage.sync_dir(dir).map_err(about)?;
        }
        for found in discarded {
            self.take(&top, "", &found, "discarded");
        }
        Ok(layers)
    }

    /// Looks at a directory that could be that of a checkout which is not committed.
    fn checkout(
        &mut self,
        top: &Dir,
        found: &FoundName,
        commits: &[LayerCommit],
        layers: &mut Vec<String>,
    ) -> Result<()> {
        let Some(checkout) = name_of(&found.name) else {
            return Ok(());
        };
        let dir = top.below(&found.name)?;
        if dir_of(checkout, commits) != found.name {
            let why = "no commit has it, and it is not what the checkout of this name is now: look what is in it";
            return Err(Error::new(ErrorKind::Stale, why).about(dir.path().display()));
        }
        let is_begun = !says_nothing(&IndexChanges::read(&dir)?);
        let is_bare = |found: &FoundName| {
            let old = format!("{LOG}{}", log_file::OLD);
            let known = [index::NAME, layer_lock::NAME, LOG, &old];
            known.contains(&found.name.as_str()) || found.name.starts_with(SCRATCH)
        };
        if is_begun || !place(&dir, &self.storage).found()?.iter().all(is_bare) {
            layers.push(found.name.clone());
            return Ok(());
        }
        if let Some(_held) = self.held(&dir, &found.name)? {
            self.take(&place(top, &self.storage), "", found, "never begun");
        }
        Ok(())
    }

    /// Keeps writers out of a layer; `None` if one is in it, which is noted.
    fn held(&mut self, dir: &Dir, name: &str) -> Result<Option<Option<LayerLock>>> {
        match LayerLock::share(dir) {
            Err(e) if e.errno() == libc::EBUSY => {
                self.done.in_use.push(name.to_owned());
                Ok(None)
            }
            held => held.map(Some),
        }
    }

    /// Removes the files of a layer that its index does not name.
    fn layer(&mut self, top: &Dir, name: &str) -> Result<()> {
        let dir = match top.below(name) {
            // It was discarded meanwhile.
            Err(e) if e.kind == ErrorKind::NotFound => return Ok(()),
            dir => dir?,
        };
        let place = place(&dir, &self.storage);
        let mut last = String::new();
        while !unnamed(&place, &last)?.is_empty() {
            let _lock = match self.dry_run {
                true => None,
                false => Some(commits::lock(top)?),
            };
            let Some(_held) = self.held(&dir, name)? else {
                return Ok(());
            };
            // What it says in memory may not be on the disk: then a file that it does not name any more is the newest there.
            if !self.dry_run {
                let about = |e: std::io::Error| Error::from(e).about(dir.path().display());
                match dir.read(index::NAME) {
                    Err(e) if e.kind == ErrorKind::NotFound => {}
                    index => self.storage.sync(&index?).map_err(about)?,
                }
            }
            for (found, why) in unnamed(&place, &last)?.into_iter().take(SLICE) {
                self.take(&place, name, &found, why);
                last = found.name;
            }
        }
        Ok(())
    }

    /// Removes what exports that were killed have left beside the store.
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

/// Returns the size of what is below a name, and when any of it was changed last.
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

/// Returns whether nothing was ever written to an index.
fn says_nothing(changes: &IndexChanges) -> bool {
    changes.begun.is_none()
        && changes.entries.is_empty()
        && changes.restored.is_empty()
        && changes.incomplete.is_empty()
        && changes.stores.is_empty()
}

/// Returns the files of a layer behind the name `last` that its index does not name, and why they are there.
fn unnamed(place: &GcDirectory, last: &str) -> Result<Vec<(FoundName, &'static str)>> {
    let dir = &place.dir;
    let found = place.found()?;
    let changes = IndexChanges::read(dir)?;
    let named = layer::named(&changes.entries, &changes.incomplete);
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
