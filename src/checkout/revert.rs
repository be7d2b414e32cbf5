//! Taking a commit back: a new commit, whose layer says of each object that the other changed that it is as it was before.
//!
//! Nothing is copied: the layer names the earlier layer whose object is there again, or says that the store's own is. What it
//! brings back has the time of the new commit. What later commits made of the same objects is never lost: then the commit is
//! not taken back.

mod states;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::checkouts::{Checkouts, LayerFiles, layers};
use super::commit::{CommitRefusal, Fitting, RuleCheck, axes, check_files};
use super::commits::{self, Commits, LayerCommit};
use super::conflict::{Conflict, conflicts};
use super::entry::{LayerEntry, StoredAgain};
use super::fit::Misfit;
use super::holder;
use super::index::{IndexChanges, LayerBase, RestoredObject, StoredObject};
use super::layer_lock::{self, LayerLock};
use super::names::REVERT;
use crate::error::{Error, ErrorKind, Result};
use crate::io::dir::Dir;
use crate::io::storage::Storage;
use states::{ObjectState, ObjectStates};

/// Digits of the id of the commit that is taken back, in the message of the new one.
const SHORT_ID: usize = 12;

/// The checks of what is there when a commit is taken back.
#[derive(Clone, Copy)]
pub struct RevertChecks<'a> {
    /// Finds objects that do not fit the store.
    pub fitting: Fitting<'a>,
    /// Finds what breaks the rules of the store's format.
    pub broken: RuleCheck<'a>,
}

/// A commit that can be taken back.
pub struct RevertPlan {
    /// All committed layers, the lowest first, and the one that takes it back on top.
    pub layers: Vec<LayerFiles>,
    /// The state of the store that its checkout was begun on, if something of the store itself is there again.
    pub base: Option<LayerBase>,
    commit: LayerCommit,
    changes: IndexChanges,
}

/// The commit that took another back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reverted {
    /// Its number, from 1 on; `None` if there was nothing to take back.
    pub number: Option<usize>,
    /// The objects that it changed.
    pub objects: usize,
    /// As in [`RevertPlan`].
    pub base: Option<LayerBase>,
}

impl Checkouts {
    /// Returns what taking the commit back would do that has this id, or an id that begins so. Writes nothing.
    pub fn plan_revert(
        &self,
        id: &str,
        checks: RevertChecks<'_>,
    ) -> std::result::Result<RevertPlan, CommitRefusal> {
        let top = self.committed_dir()?;
        let plan = self.revert_of(&top, &commits::read(&top)?, id)?;
        plan.check(checks)?;
        Ok(plan)
    }

    /// Takes the commit back that has this id, or an id that begins so, for everybody who mounts the store from now on.
    /// Without a message the new commit has that of the old one.
    ///
    /// Durable on success; on failure nothing is committed. Refused if other commits changed the same objects since, if
    /// objects would not fit the store or each other any more, and if the store would break the rules of its format.
    pub fn revert(
        &self,
        id: &str,
        message: Option<&str>,
        storage: Arc<dyn Storage>,
        checks: RevertChecks<'_>,
    ) -> std::result::Result<Reverted, CommitRefusal> {
        let top = self.committed_dir()?;
        let mut commits = Commits::lock(&top, storage.clone())?;
        sweep(&top, commits.all())?;
        loop {
            let plan = self.revert_of(&top, commits.all(), id)?;
            plan.check(checks)?;
            let Some(new) = plan.layers.last().filter(|new| !new.entries.is_empty()) else {
                return Ok(Reverted {
                    number: None,
                    objects: 0,
                    base: None,
                });
            };
            let (name, mut lock) = plan.lay(&top, commits.all().len() + 1, &storage)?;
            let mut upload = lock.upload(&top.below(&name)?);
            let content = match &mut upload {
                Some(upload) => Some(upload.content()?),
                None => None,
            };
            let message = message.map_or_else(|| plan.message(), str::to_owned);
            let is_made = commits.add(LayerCommit {
                layer: name.clone(),
                message,
                time: plan.time(),
                reverts: plan.commit.id.clone(),
                axes: axes(new),
                base: new.stores.clone(),
                content,
                ..LayerCommit::default()
            })?;
            if is_made {
                if let Some(upload) = &mut upload {
                    upload.committed();
                }
                return Ok(Reverted {
                    number: Some(commits.all().len()),
                    objects: new.entries.len(),
                    base: plan.base,
                });
            }
            // On another host somebody was faster: what is there now decides.
            if let Some(mut upload) = upload {
                upload.discard()?;
            }
            top.remove_all(&name)?;
        }
    }

    fn committed_dir(&self) -> Result<Dir> {
        self.opened()?.ok_or_else(|| {
            let message = format!("{}: nothing was ever committed", self.shown());
            Error::new(ErrorKind::NotFound, message)
        })
    }

    /// Returns how one of these commits would be taken back, unless later ones changed the same objects.
    fn revert_of(
        &self,
        top: &Dir,
        commits: &[LayerCommit],
        id: &str,
    ) -> std::result::Result<RevertPlan, CommitRefusal> {
        let number = commits::find(commits, id).map_err(|why| {
            let message = format!("{}: {why}", self.shown());
            Error::new(ErrorKind::NotFound, message)
        })?;
        let commit = commits.get(number - 1).cloned().unwrap_or_default();
        let time = commits::next_time(commits);
        let mut changes = IndexChanges::begun_on(LayerBase {
            commits: commits.len() as u64,
            on: commits.last().map(|last| last.id.clone()),
            time,
            base: self.base_files(),
        });
        let mut layers = layers(top, commits)?;
        let (below, later) = layers.split_at(number - 1);
        let Some((reverted, later)) = later.split_first() else {
            return Err(Error::damaged("no such commit").into());
        };
        let mut states = ObjectStates::default();
        for (at, layer) in below.iter().enumerate() {
            states.add(at, layer);
        }
        let mut new = LayerFiles::bare(top, Default::default());
        new.stores.clone_from(&reverted.stores);
        for key in reverted.entries.keys() {
            let hidden = states
                .below(key)
                .map(|(key, state)| (key.to_owned(), state));
            let own = std::iter::once((key.clone(), states.at(key)));
            for (key, state) in own.chain(hidden) {
                let entry = restored(&key, state, below, time)?;
                if let LayerEntry::Again(again) = &entry {
                    for (store, identity) in &below[again.layer].stores {
                        let known = new.stores.entry(store.clone());
                        known.or_insert_with(|| identity.clone());
                    }
                }
                new.entries.insert(key, entry);
            }
        }
        states.add(number - 1, reverted);
        let met = met(reverted, &mut states, number, later);
        if !met.is_empty() {
            return Err(CommitRefusal::Conflicts(met));
        }
        for (key, entry) in &new.entries {
            let layer = match entry {
                LayerEntry::Again(again) => Some(again.dir.name()),
                LayerEntry::Uncovered(_) => None,
                LayerEntry::Deleted | LayerEntry::Stored(_) => {
                    changes.entries.insert(key.clone(), None);
                    continue;
                }
            };
            let restored = RestoredObject { time, layer };
            changes.restored.insert(key.clone(), restored);
        }
        changes.stores.clone_from(&new.stores);
        let mut own = new.entries.values();
        let base = match own.any(|entry| matches!(entry, LayerEntry::Uncovered(_))) {
            true => IndexChanges::read(&reverted.dir)?.begun,
            false => None,
        };
        layers.push(new);
        Ok(RevertPlan {
            layers,
            base,
            commit,
            changes,
        })
    }
}

impl RevertPlan {
    /// Makes the layer of the commit that is to have this number, durably, and returns its name. What is there already is of another
    /// host that is at it, too.
    fn lay(
        &self,
        top: &Dir,
        number: usize,
        storage: &Arc<dyn Storage>,
    ) -> Result<(String, LayerLock)> {
        let about = |e: std::io::Error| Error::from(e).about(top.path().display());
        let mut names = std::iter::once(format!("{REVERT}{number}"))
            .chain((2_u64..).map(|n| format!("{REVERT}{number}~{n}")));
        let (name, dir) = loop {
            let name = names.next().unwrap_or_default();
            if let (dir, true) = top.make(&name)? {
                break (name, dir);
            }
        };
        let written = LayerLock::take(&dir).and_then(|lock| {
            self.changes.write(&dir, storage.clone())?;
            storage.sync_dir(top).map_err(about)?;
            Ok(lock)
        });
        match written {
            Ok(lock) => Ok((name, lock)),
            Err(e) => {
                // What cannot be removed now is removed by the next one.
                let _ = top.remove_all(&name);
                Err(e)
            }
        }
    }

    /// Returns the message of a commit that has none of its own.
    fn message(&self) -> String {
        let id = self.commit.id.get(..SHORT_ID).unwrap_or(&self.commit.id);
        match self.commit.subject() {
            "" => format!("revert {id}"),
            subject => format!("revert {id}: {subject}"),
        }
    }

    /// Returns the time of the new commit.
    fn time(&self) -> i64 {
        let begun = self.changes.begun.as_ref();
        begun.map_or(0, |begun| begun.time)
    }

    /// Checks what there would be.
    fn check(&self, checks: RevertChecks<'_>) -> std::result::Result<(), CommitRefusal> {
        let Some((new, before)) = self.layers.split_last() else {
            return Ok(());
        };
        check_files(new)?;
        let known = (checks.fitting)(before)?;
        let is_known = |misfit: &Misfit| {
            let mut known = known.iter();
            known.any(|known| (known.layer, &known.key) == (misfit.layer, &misfit.key))
        };
        let mut misfits = (checks.fitting)(&self.layers)?;
        misfits.retain(|misfit| !is_known(misfit));
        if !misfits.is_empty() {
            return Err(CommitRefusal::Misfits(misfits));
        }
        match (checks.broken)(&self.layers)? {
            broken if broken.is_empty() => Ok(()),
            broken => Err(CommitRefusal::Broken(broken)),
        }
    }
}

/// Returns the entry that puts an object into a state that it had before.
fn restored(key: &str, state: ObjectState, below: &[LayerFiles], time: i64) -> Result<LayerEntry> {
    let ObjectState::Stored { layer, file } = state else {
        return Ok(match state {
            ObjectState::Deleted => LayerEntry::Deleted,
            _ => LayerEntry::Uncovered(time),
        });
    };
    let own = below.get(layer);
    match own.and_then(|own| Some((own, own.entries.get(key)?))) {
        Some((own, LayerEntry::Stored(stored))) if stored.file == file => {
            Ok(LayerEntry::Again(StoredAgain {
                layer,
                dir: own.dir.clone(),
                stored: StoredObject {
                    time,
                    ..stored.clone()
                },
            }))
        }
        _ => Err(Error::damaged("what it was before is not there").about(key)),
    }
}

/// The changes of later commits that would be lost, or that would miss what the commit brought. `states`: those after the commit,
/// whose number is `number`; afterwards those after all commits.
///
/// A change that was changed back counts for nothing, and of several changes of an object the last is told.
fn met(
    reverted: &LayerFiles,
    states: &mut ObjectStates,
    number: usize,
    later: &[LayerFiles],
) -> Vec<Conflict> {
    let mut found = Vec::new();
    for (at, layer) in (number..).zip(later) {
        let with_state = |conflict: Conflict| (states.at(&conflict.theirs), conflict);
        let met = conflicts(&reverted.entries, &layer.entries, at);
        found.extend(met.into_iter().map(with_state));
    }
    for (at, layer) in (number..).zip(later) {
        states.add(at, layer);
    }
    found.retain(|(before, conflict)| {
        let now = states.at(&conflict.theirs);
        // What lay along an axis and was deleted misses nothing.
        let is_gone = now == ObjectState::Deleted && lies_along(&conflict.theirs, &conflict.ours);
        now != *before && !is_gone
    });
    let told = found.into_iter().map(|(_, conflict)| conflict);
    let last: BTreeMap<String, Conflict> = told
        .map(|conflict| (conflict.theirs.clone(), conflict))
        .collect();
    last.into_values().collect()
}

/// Returns whether two keys that meet do so because the first lies along the second.
fn lies_along(key: &str, axis: &str) -> bool {
    let is_in = |key: &str, group: &str| {
        let rest = key.strip_prefix(group);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    axis.ends_with('#') && !is_in(key, axis) && !is_in(axis, key)
}

/// Removes layers of commits that took others back and never happened, as their processes died. Those of other hosts stay: their
/// processes may be at it.
fn sweep(top: &Dir, commits: &[LayerCommit]) -> Result<()> {
    let about = |e: std::io::Error| Error::from(e).about(top.path().display());
    for (name, _) in top.names().map_err(about)? {
        let Some(name) = name.to_str().filter(|name| name.starts_with(REVERT)) else {
            continue;
        };
        if commits.iter().any(|commit| commit.layer == name) {
            continue;
        }
        // Whoever makes one says first who that is.
        let was_here = match top.below(name)?.read(layer_lock::NAME) {
            Err(e) if e.kind == ErrorKind::NotFound => true,
            holder => holder::was_here(&holder?),
        };
        if was_here {
            top.remove_all(name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
