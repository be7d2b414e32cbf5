//! Reverts a commit: a new commit, whose layer restores each object that the other one changed.
//!
//! Nothing is copied: the layer names the earlier layer whose object is restored, or says that the store's own object
//! is. Restored objects have the time of the new commit. Changes by later commits are never lost: if there are any of
//! the same objects, the revert is refused.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::commit::{CommitRefusal, Laying, axes, base, check_files};
use super::conflict::{Conflict, conflicts};
use super::restore::{ObjectState, ObjectStates};
use crate::checkout::history::checkouts::Checkouts;
use crate::checkout::history::commits::{self, Commits, LayerCommit};
use crate::checkout::history::committed_layers::layers;
use crate::checkout::layer::lock::{self as layer_lock, LayerLock};
use crate::checkout::records::entry::LayerEntry;
use crate::checkout::records::fit::new_misfits;
use crate::checkout::records::holder;
use crate::checkout::records::index::{IndexChanges, LayerBase, RestoredObject};
use crate::checkout::records::layer_files::LayerFiles;
use crate::checkout::records::names::REVERT;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::dir::Dir;
use npyfs_io::storage::Storage;

/// Digits of the reverted commit's id in the message of the new one.
const SHORT_ID: usize = 12;

/// A possible revert.
pub struct RevertPlan {
    /// All committed layers, lowest first, and the reverting one on top.
    pub layers: Vec<LayerFiles>,
    /// The state of the store on which the reverted checkout was begun, if an object of the store itself is restored.
    pub base: Option<LayerBase>,
    commit: LayerCommit,
    changes: IndexChanges,
}

/// The result of a revert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reverted {
    /// The number, from 1; `None` if there was nothing to revert.
    pub number: Option<usize>,
    /// The id; empty if there was nothing to revert.
    pub id: String,
    /// The number of objects that it changed.
    pub objects: usize,
    /// As in [`RevertPlan`].
    pub base: Option<LayerBase>,
}

/// Returns the effect of a revert of the commit whose id begins with `id`. Writes nothing.
pub fn plan(
    checkouts: &Checkouts,
    id: &str,
    lay: Laying<'_>,
) -> std::result::Result<RevertPlan, CommitRefusal> {
    let top = committed_dir(checkouts)?;
    let plan = revert_of(checkouts, &top, &commits::read(&top)?, id)?;
    plan.check(lay)?;
    Ok(plan)
}

/// Reverts the commit whose id begins with `id`: all later mounts of the store show the result. Without a message the
/// new commit gets one from the old one's.
///
/// Durable on success; on failure nothing is committed. Refused if other commits have changed the same objects since,
/// if objects would no longer fit the store or each other, or if the store would violate the rules of its format.
pub fn revert(
    checkouts: &Checkouts,
    id: &str,
    message: Option<&str>,
    storage: Arc<dyn Storage>,
    lay: Laying<'_>,
) -> std::result::Result<Reverted, CommitRefusal> {
    let top = committed_dir(checkouts)?;
    let mut commits = Commits::lock(&top, storage.clone())?;
    sweep(&top, commits.all().read())?;
    loop {
        let plan = revert_of(checkouts, &top, commits.all().read(), id)?;
        plan.check(lay)?;
        let Some(new) = plan.layers.last().filter(|new| !new.entries.is_empty()) else {
            return Ok(Reverted {
                number: None,
                id: String::new(),
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
            base: base(new)?,
            changes: match upload {
                Some(_) => None,
                None => plan.changes.short()?,
            },
            content,
            ..LayerCommit::default()
        })?;
        if is_made {
            if let Some(upload) = &mut upload {
                upload.committed();
            }
            return Ok(Reverted {
                number: Some(commits.all().len()),
                id: commits.all().last_id().unwrap_or_default().to_owned(),
                objects: new.entries.len(),
                base: plan.base,
            });
        }
        // A process on another host was faster: the present state decides.
        if let Some(mut upload) = upload {
            upload.discard()?;
        }
        top.remove_all(&name)?;
    }
}

fn committed_dir(checkouts: &Checkouts) -> Result<Dir> {
    checkouts.opened()?.ok_or_else(|| {
        let message = format!("{}: nothing was ever committed", checkouts.shown());
        Error::new(ErrorKind::NotFound, message)
    })
}

/// Returns how to revert one of these commits; fails if later ones changed the same objects.
fn revert_of(
    checkouts: &Checkouts,
    top: &Dir,
    commits: &[LayerCommit],
    id: &str,
) -> std::result::Result<RevertPlan, CommitRefusal> {
    let number = commits::find(commits, id).map_err(|why| {
        let message = format!("{}: {why}", checkouts.shown());
        Error::new(ErrorKind::NotFound, message)
    })?;
    let commit = commits.get(number - 1).cloned().unwrap_or_default();
    let time = commits::next_time(commits);
    let mut changes = IndexChanges::begun_on(LayerBase {
        commits: commits.len() as u64,
        on: commits.last().map(|last| last.id.clone()),
        time,
        base: checkouts.base_files(),
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
            let entry = state.entry(&key, below, time)?;
            if let LayerEntry::Again(again) = &entry {
                for (store, identity) in below[again.layer].stores.iter() {
                    let known = Arc::make_mut(&mut new.stores).entry(store.clone());
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

impl RevertPlan {
    /// Creates the layer of the commit with this number, durably, and returns its name. An existing layer belongs to
    /// another host that is reverting a commit, too.
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
                // If this fails, the next revert removes it.
                let _ = top.remove_all(&name);
                Err(e)
            }
        }
    }

    /// Returns the message of a revert without a given one.
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

    /// Checks the result.
    fn check(&self, lay: Laying<'_>) -> std::result::Result<(), CommitRefusal> {
        let Some((new, before)) = self.layers.split_last() else {
            return Ok(());
        };
        check_files(new)?;
        let known = lay(before.to_vec())?.misfits();
        let laid = lay(self.layers.clone())?;
        let misfits = new_misfits(&known, laid.misfits());
        if !misfits.is_empty() {
            return Err(CommitRefusal::Misfits(misfits));
        }
        match laid.broken()? {
            broken if broken.is_empty() => Ok(()),
            broken => Err(CommitRefusal::Broken(broken)),
        }
    }
}

/// Returns the changes of later commits that would be lost, or that depend on the commit. `states` are those after the
/// commit, whose number is `number`; on return, those after all commits.
///
/// A change that was itself reverted does not count, and of several changes of an object the last is reported.
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
        // An object along an axis that was deleted no longer depends on the axis.
        let is_gone = now == ObjectState::Deleted && lies_along(&conflict.theirs, &conflict.ours);
        now != *before && !is_gone
    });
    let told = found.into_iter().map(|(_, conflict)| conflict);
    let last: BTreeMap<String, Conflict> = told
        .map(|conflict| (conflict.theirs.clone(), conflict))
        .collect();
    last.into_values().collect()
}

/// Returns whether two keys conflict because the first one lies along the second.
fn lies_along(key: &str, axis: &str) -> bool {
    let is_in = |key: &str, group: &str| {
        let rest = key.strip_prefix(group);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    axis.ends_with('#') && !is_in(key, axis) && !is_in(axis, key)
}

/// Removes layers of reverts that were never committed because their processes died. Those of other hosts stay: their
/// processes may still be running.
fn sweep(top: &Dir, commits: &[LayerCommit]) -> Result<()> {
    let about = |e: std::io::Error| Error::from(e).about(top.path().display());
    for (name, _) in top.names().map_err(about)? {
        let Some(name) = name.to_str().filter(|name| name.starts_with(REVERT)) else {
            continue;
        };
        if commits.iter().any(|commit| commit.layer == name) {
            continue;
        }
        // The creator of a layer records itself first.
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
mod tests {
    use super::super::commit::CommitOptions;
    use super::super::commit::tests::{GOOD, commit_with, place};
    use super::*;
    use crate::checkout::history::checkouts::OpenCheckout;
    use crate::checkout::records::index::nanoseconds;
    use crate::checkout::records::record_log::LogRecord;
    use crate::checkout::records::record_log::Unread;
    use crate::store::object::NewFile;
    use npyfs_io::storage::Disk;
    use npyfs_io::storage::faulty::Faulty;
    use std::time::{Duration, SystemTime};

    /// Commits objects; a leading `-` deletes an object. Returns the id of the commit.
    fn commit(checkouts: &Checkouts, name: &str, keys: &[&str]) -> String {
        let open = checkouts.open(name, Arc::new(Disk), |_| npyfs_worker::creator_here());
        let OpenCheckout { layer, .. } = open.unwrap();
        for key in keys {
            match key.strip_prefix('-') {
                Some(key) => layer.remove(key).unwrap(),
                // The content of files does not matter here.
                None => drop(
                    layer
                        .put(key, &NewFile::default(), SystemTime::now())
                        .unwrap(),
                ),
            }
        }
        drop(layer);
        let wish = CommitOptions::default();
        let done = commit_with(checkouts, name, &wish, Arc::new(Disk), &|_, _| false, GOOD);
        done.unwrap();
        all(checkouts).pop().unwrap().id
    }

    fn all(checkouts: &Checkouts) -> Vec<LayerCommit> {
        commits::read(&checkouts.opened().unwrap().unwrap()).unwrap()
    }

    fn revert(checkouts: &Checkouts, id: &str) -> std::result::Result<Reverted, CommitRefusal> {
        super::revert(checkouts, id, None, Arc::new(Disk), GOOD)
    }

    /// Describes the uppermost layer: `key` for an object of a layer, with the layer's index and the file, `-key` for a
    /// deleted one, `~key` for one of the store.
    fn said(checkouts: &Checkouts) -> Vec<String> {
        let layers = checkouts.committed().unwrap();
        let top = layers.last().unwrap();
        let shown = |(key, entry): (&String, &LayerEntry)| match entry {
            LayerEntry::Stored(stored) => format!("{key} own {}", stored.file),
            LayerEntry::Again(again) => {
                assert!(again.dir.metadata(&again.stored.name()).is_ok());
                format!("{key} {} {}", again.layer, again.stored.file)
            }
            LayerEntry::Deleted => format!("-{key}"),
            LayerEntry::Uncovered(_) => format!("~{key}"),
        };
        top.entries.iter().map(shown).collect()
    }

    #[test]
    fn each_object_is_what_it_was_before_with_all_that_was_hidden() {
        let (_dir, checkouts) = place();
        commit(&checkouts, "a", &["x", "g/y", "-old"]);
        let second = commit(&checkouts, "b", &["x", "new", "old", "g", "g/z"]);
        revert(&checkouts, &second).unwrap();
        assert_eq!(
            said(&checkouts),
            ["~g", "g/y 0 2", "~g/z", "~new", "-old", "x 0 1"]
        );
        let third = all(&checkouts).pop().unwrap();
        assert_eq!(
            (third.reverts, third.layer),
            (second.clone(), "revert+3".to_owned())
        );
        revert(&checkouts, &third.id).unwrap();
        let again = said(&checkouts);
        assert!(again.contains(&"new 1 2".to_owned()), "{again:?}");
        // An object restored by an earlier revert belongs to the layer that stored it.
        let fourth = all(&checkouts).pop().unwrap();
        revert(&checkouts, &fourth.id).unwrap();
        assert!(said(&checkouts).contains(&"x 0 1".to_owned()));
        assert_eq!(all(&checkouts).len(), 5);
    }

    #[test]
    fn what_was_changed_since_is_named_unless_it_was_changed_back() {
        let (_dir, checkouts) = place();
        let first = commit(&checkouts, "a", &["x", "cell#", "g"]);
        for later in [&["x"][..], &["-x"], &["cell#age"], &["g/in"], &["-g"]] {
            let id = commit(&checkouts, "b", later);
            match revert(&checkouts, &first) {
                Err(CommitRefusal::Conflicts(met)) => {
                    let key = later[0].trim_start_matches('-');
                    assert_eq!((met.len(), &*met[0].theirs), (1, key), "{later:?}");
                }
                other => panic!("{later:?}: {other:?}"),
            }
            revert(&checkouts, &id).unwrap();
        }
        commit(&checkouts, "c", &["other", "-cell#deleted"]);
        revert(&checkouts, &first).unwrap();
    }

    #[test]
    fn what_comes_back_has_the_time_of_the_commit_whatever_the_clock_says() {
        let (_dir, checkouts) = place();
        let first = commit(&checkouts, "a", &["x"]);
        let top = checkouts.opened().unwrap().unwrap();
        let ahead = nanoseconds(SystemTime::now() + Duration::from_secs(1000));
        // Another host's clock was ahead.
        let mut commits = Commits::lock(&top, Arc::new(Disk)).unwrap();
        top.make("other").unwrap();
        IndexChanges::default()
            .write(&top.below("other").unwrap(), Arc::new(Disk))
            .unwrap();
        let other = LayerCommit {
            layer: "other".into(),
            time: ahead,
            ..LayerCommit::default()
        };
        commits.add(other).unwrap();
        drop(commits);
        revert(&checkouts, &first).unwrap();
        let layers = checkouts.committed().unwrap();
        assert!(matches!(layers[2].entries["x"], LayerEntry::Uncovered(time) if time == ahead + 1));
        assert_eq!(all(&checkouts)[2].time, ahead + 1);
        let second = all(&checkouts)[2].id.clone();
        revert(&checkouts, &second).unwrap();
        let layers = checkouts.committed().unwrap();
        assert_eq!(layers[3].entries["x"].stored().unwrap().time, ahead + 2);
    }

    #[test]
    fn whatever_call_fails_it_happens_or_does_not() {
        let scenario = |storage: Arc<Faulty>| {
            let (dir, checkouts) = place();
            commit(&checkouts, "a", &["x"]);
            let second = commit(&checkouts, "b", &["x", "y"]);
            let done = super::revert(&checkouts, &second, None, storage, GOOD).is_ok();
            (dir, checkouts, second, done)
        };
        let counted = Arc::new(Faulty::new(u64::MAX, 0, false));
        let (_dir, _, _, done) = scenario(counted.clone());
        assert!(done && counted.calls() > 6);
        for (at, dead) in (0..counted.calls()).flat_map(|at| [(at, false), (at, true)]) {
            let errno = if at % 2 == 0 { libc::ENOSPC } else { libc::EIO };
            let (_dir, checkouts, second, done) = scenario(Arc::new(Faulty::new(at, errno, dead)));
            let now = all(&checkouts).len();
            // If the process died, its last call may or may not have taken effect.
            assert!((now == 3) == done || (dead && !done), "{at} {dead}: {now}");
            // Further commits are possible.
            if now == 2 {
                revert(&checkouts, &second).unwrap();
            }
            assert_eq!(said(&checkouts), ["x 0 1", "~y"], "{at} {dead}");
        }
    }

    #[test]
    fn a_list_that_names_what_is_not_there_is_refused() {
        let (_dir, checkouts) = place();
        let first = commit(&checkouts, "a", &["x", "-y"]);
        revert(&checkouts, &first).unwrap();
        let index = checkouts.dir().join("revert+2/index");
        let record = checkouts.dir().join("commits/00000000000000000002.json");
        let mut second = all(&checkouts).pop().unwrap();
        for (key, layer) in [("x", "b"), ("z", "a"), ("y", "a"), ("x", "revert+2")] {
            let json = format!(
                r#"{{"path":"{key}","restored":{{"time":1,"layer":"{layer}"}},"needs":["restored"]}}"#
            );
            let sum = crc32fast::hash(json.as_bytes());
            std::fs::write(&index, format!("npyfs checkout 2\n{sum:08x} {json}\n")).unwrap();
            // It is in the commit, or in the index alone.
            for changes in [Some(Unread::list(&[json]).unwrap()), None] {
                second.changes = changes;
                std::fs::write(&record, second.print().unwrap() + "\n").unwrap();
                let refused = checkouts.committed().unwrap_err();
                assert!(
                    refused.message.contains("is not there"),
                    "{key} {layer}: {refused}"
                );
            }
        }
    }

    #[test]
    fn what_another_host_is_making_stays_and_what_died_here_goes() {
        let (_dir, checkouts) = place();
        let first = commit(&checkouts, "a", &["x"]);
        let top = checkouts.opened().unwrap().unwrap();
        for (name, who) in [
            (
                "revert+2",
                Some("host elsewhere, process 7 (npyfs checkout)\n".to_owned()),
            ),
            ("revert+7", Some(format!("{}\n", holder::process_name()))),
            ("revert+8", Some(String::new())),
            ("revert+9", None),
        ] {
            top.make(name).unwrap();
            if let Some(who) = who {
                std::fs::write(checkouts.dir().join(name).join(layer_lock::NAME), who).unwrap();
            }
        }
        revert(&checkouts, &first).unwrap();
        assert_eq!(all(&checkouts)[1].layer, "revert+2~2");
        let names = top.names().unwrap().into_iter();
        let mut left: Vec<_> = names
            .filter_map(|(name, _)| name.into_string().ok())
            .filter(|name| name.starts_with(REVERT))
            .collect();
        left.sort();
        assert_eq!(left, ["revert+2", "revert+2~2"]);
        assert_eq!(said(&checkouts), ["~x"]);
    }
}
