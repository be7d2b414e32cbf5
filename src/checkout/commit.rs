//! Commit and discard: how a layer that nobody writes in becomes part of the store, or is forgotten.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use super::checkouts::{Checkouts, LayerFiles, check_name};
use super::commits::{self, Commit, Commits};
use super::conflict::{Conflict, conflicts};
use super::holder::Holder;
use super::index::{Changes, Incomplete};
use super::layer::{nanoseconds, path_of_member};
use super::storage::Storage;
use crate::error::{Error, Result};

/// Beginning of the name of a layer that is being removed.
const DISCARDED: &str = ".discarded-";

/// Whose object stays where two commits changed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Those of the layer that is committed now.
    Ours,
    /// Those of the commits that came before it.
    Theirs,
}

/// What a commit did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Which commit it is, from 1 on; `None` if there was nothing to commit.
    pub number: Option<usize>,
    /// Objects of the layer that count.
    pub objects: usize,
    /// Objects of the layer that do not, since those of other commits were kept.
    pub dropped: Vec<String>,
    /// Those that were not complete.
    pub incomplete: Vec<Incomplete>,
}

/// Why nothing was committed.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("{} objects were changed by other commits since", .0.len())]
    Conflicts(Vec<Conflict>),
    #[error("{} objects are not complete", .0.len())]
    Incomplete(Vec<Incomplete>),
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Whether the object of a layer is an empty group: two of the same name are no conflict.
pub type IsGroup<'a> = &'a dyn Fn(&LayerFiles, &str) -> bool;

impl Checkouts {
    /// Puts the checkout `name` on top of the committed ones, for everybody who mounts the store from now on.
    ///
    /// Durable on success; on failure nothing is committed. EBUSY if somebody writes in it. Objects that another
    /// commit changed since are refused, unless `side` says which stay, and so are objects that are not complete,
    /// unless they are left out: then they are forgotten.
    pub fn commit(
        &self,
        name: &str,
        side: Option<Side>,
        leave_out: bool,
        storage: Arc<dyn Storage>,
        is_group: IsGroup<'_>,
    ) -> std::result::Result<Committed, Refusal> {
        self.find(name)?;
        let mut commits = Commits::lock(self.dir(), storage.clone())?;
        let dir = self.dir_of(name, commits.all());
        let _holder = Holder::take(&dir)?;
        let changes = Changes::read(&dir)?;
        let ours = LayerFiles {
            dir: dir.clone(),
            entries: changes.entries.clone(),
        };
        let incomplete: Vec<Incomplete> = changes.incomplete.values().cloned().collect();
        if !incomplete.is_empty() && !leave_out {
            return Err(Refusal::Incomplete(incomplete));
        }
        if ours.entries.is_empty() {
            return Ok(Committed {
                number: None,
                objects: 0,
                dropped: Vec::new(),
                incomplete: Vec::new(),
            });
        }
        check_files(&ours)?;
        let below = self.layers(commits.all())?;
        let (met, shared) = meet(&ours, &changes, &below, is_group);
        let dropped = match side {
            None if !met.is_empty() => return Err(Refusal::Conflicts(met)),
            Some(Side::Theirs) => met.into_iter().map(|conflict| conflict.ours).collect(),
            _ => BTreeSet::new(),
        };
        let without = dropped.iter().cloned().chain(shared).collect();
        let objects = ours.entries.len() - dropped.len();
        let layer = dir.file_name().unwrap_or_default();
        commits.add(Commit {
            layer: layer.to_string_lossy().into_owned(),
            time: nanoseconds(SystemTime::now()),
            without,
        })?;
        for member in incomplete.iter().flat_map(|object| &object.members) {
            // Nobody looks for it any more.
            let _ = storage.remove(&path_of_member(&dir, member));
        }
        Ok(Committed {
            number: Some(commits.all().len()),
            objects,
            dropped: dropped.into_iter().collect(),
            incomplete,
        })
    }

    /// Forgets the checkout `name`, all at once. EBUSY if somebody writes in it.
    pub fn discard(&self, name: &str, storage: &dyn Storage) -> Result<()> {
        check_name(name)?;
        let about = |e: std::io::Error| Error::from(e).about(self.dir().display());
        self.find(name)?;
        let lock = commits::lock(self.dir())?;
        let dir = self.dir_of(name, &commits::read(self.dir())?);
        let holder = Holder::take(&dir)?;
        let away = (0..)
            .map(|n| self.dir().join(format!("{DISCARDED}{name}-{n}")))
            .find(|path| !path.exists())
            .unwrap_or_default();
        storage.rename(&dir, &away).map_err(about)?;
        storage.sync_dir(self.dir()).map_err(about)?;
        drop((holder, lock));
        // It is forgotten already; what a process that died left of others goes, too.
        for entry in std::fs::read_dir(self.dir()).map_err(about)?.flatten() {
            let name = entry.file_name();
            if name.as_encoded_bytes().starts_with(DISCARDED.as_bytes()) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
        Ok(())
    }
}

/// An error if a file of the layer is gone: it would be missing for everybody.
fn check_files(layer: &LayerFiles) -> Result<()> {
    for (key, stored) in &layer.entries {
        let Some(path) = stored.as_ref().map(|stored| layer.path(stored)) else {
            continue;
        };
        let is_file = |path: &Path| std::fs::metadata(path).map(|meta| meta.is_file());
        if !is_file(&path).map_err(|e| Error::from(e).about(path.display()).about(key))? {
            return Err(Error::damaged("no file").about(path.display()).about(key));
        }
    }
    Ok(())
}

/// The conflicts with commits that the layer has not seen, and the empty groups that both made.
fn meet(
    ours: &LayerFiles,
    changes: &Changes,
    below: &[LayerFiles],
    is_group: IsGroup<'_>,
) -> (Vec<Conflict>, BTreeSet<String>) {
    let mut met = Vec::new();
    for (at, theirs) in below.iter().enumerate() {
        let unseen = |key: &str| changes.seen(key) <= at as u64;
        let found = conflicts(&ours.entries, &theirs.entries, at);
        met.extend(found.into_iter().filter(|conflict| unseen(&conflict.ours)));
    }
    let shared: BTreeSet<String> = met
        .iter()
        .filter(|c| c.ours == c.theirs && c.deleted == (false, false))
        .filter(|c| is_group(ours, &c.ours) && is_group(&below[c.commit], &c.theirs))
        .map(|c| c.ours.clone())
        .collect();
    // What is in a group that both made meets only what is in it on the other side.
    let is_shared = |c: &Conflict| {
        let ours_is = shared.contains(&c.ours) && (c.ours != c.theirs || !c.deleted.1);
        let theirs_is = shared.contains(&c.theirs) && !c.deleted.1;
        (ours_is && c.theirs.starts_with(&*c.ours)) || (theirs_is && c.ours.starts_with(&*c.theirs))
    };
    met.retain(|conflict| !is_shared(conflict));
    (met, shared)
}

#[cfg(test)]
mod tests {
    use super::super::checkouts::Opened;
    use super::super::object::NewFile;
    use super::super::storage::Disk;
    use super::super::storage::faulty::Faulty;
    use super::*;
    use crate::h5::Creator;

    /// A place for checkouts of a store that nobody opens.
    fn place() -> (tempfile::TempDir, Checkouts) {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("x.h5");
        std::fs::write(&store, "base").unwrap();
        let checkouts = Checkouts::of(&store, None);
        (dir, checkouts)
    }

    fn open(checkouts: &Checkouts, name: &str) -> Opened {
        checkouts
            .open(name, Arc::new(Disk), |_| Creator::Local)
            .unwrap()
    }

    type Outcome = std::result::Result<Committed, Refusal>;

    /// Writes objects in a checkout; those that begin with `-` are deleted.
    fn write(checkouts: &Checkouts, name: &str, keys: &[&str]) {
        let layer = open(checkouts, name).layer;
        for key in keys {
            if let Some(key) = key.strip_prefix('-') {
                layer.remove(key).unwrap();
                continue;
            }
            // What is in a file counts for nothing here.
            layer
                .put(key, &NewFile::default(), SystemTime::now())
                .unwrap();
        }
    }

    fn commit(checkouts: &Checkouts, name: &str, side: Option<Side>) -> Outcome {
        checkouts.commit(name, side, false, Arc::new(Disk), &|_, _| false)
    }

    /// The objects of each committed layer; a deleted one begins with `-`.
    fn committed(checkouts: &Checkouts) -> Vec<Vec<String>> {
        let layers = checkouts.committed().unwrap();
        let shown = |layer: &LayerFiles| {
            let entries = layer.entries.iter();
            let name = |(key, stored): (&String, &Option<_>)| match stored {
                Some(stored) => {
                    assert!(layer.path(stored).is_file());
                    key.clone()
                }
                None => format!("-{key}"),
            };
            entries.map(name).collect()
        };
        layers.iter().map(shown).collect()
    }

    #[test]
    fn a_commit_is_seen_and_its_name_can_be_used_again() {
        let (_dir, checkouts) = place();
        write(&checkouts, "a", &["x", "-y"]);
        assert_eq!(commit(&checkouts, "a", None).unwrap().number, Some(1));
        let again = commit(&checkouts, "a", None).unwrap_err();
        assert!(again.to_string().contains("is committed"), "{again}");
        write(&checkouts, "a", &["x"]);
        assert_eq!(open(&checkouts, "a").below.len(), 1);
        assert_eq!(commit(&checkouts, "a", None).unwrap().number, Some(2));
        assert_eq!(committed(&checkouts), [vec!["x", "-y"], vec!["x"]]);
        drop(open(&checkouts, "b"));
        assert_eq!(commit(&checkouts, "b", None).unwrap().number, None);
        let listed = checkouts.list().unwrap();
        let shown: Vec<_> = listed
            .iter()
            .map(|s| (s.name.as_str(), s.commit.as_ref().map(|(n, _)| *n)))
            .collect();
        assert_eq!(shown, [("a", Some(1)), ("a", Some(2)), ("b", None)]);
    }

    #[test]
    fn what_another_commit_changed_since_is_refused_until_somebody_decides() {
        for side in [Side::Ours, Side::Theirs] {
            let (_dir, checkouts) = place();
            write(&checkouts, "a", &["x", "y", "g/z"]);
            write(&checkouts, "b", &["x", "-g", "w"]);
            commit(&checkouts, "a", None).unwrap();
            let Err(Refusal::Conflicts(met)) = commit(&checkouts, "b", None) else {
                panic!("no conflict");
            };
            let met: Vec<_> = met
                .iter()
                .map(|c| (&*c.ours, &*c.theirs, c.deleted))
                .collect();
            assert_eq!(
                met,
                [("g", "g/z", (true, false)), ("x", "x", (false, false))]
            );
            assert_eq!(committed(&checkouts).len(), 1);
            let done = commit(&checkouts, "b", Some(side)).unwrap();
            assert_eq!(done.number, Some(2));
            match side {
                Side::Ours => assert_eq!(committed(&checkouts)[1], ["-g", "w", "x"]),
                Side::Theirs => assert_eq!(committed(&checkouts)[1], ["w"]),
            }
            assert_eq!(done.objects, committed(&checkouts)[1].len());
        }
    }

    #[test]
    fn what_was_seen_before_it_was_changed_is_no_conflict() {
        let (_dir, checkouts) = place();
        write(&checkouts, "b", &["w"]);
        write(&checkouts, "a", &["x", "w"]);
        commit(&checkouts, "a", None).unwrap();
        write(&checkouts, "b", &["x", "w"]);
        let Err(Refusal::Conflicts(met)) = commit(&checkouts, "b", None) else {
            panic!("no conflict");
        };
        assert_eq!(met.len(), 1);
        assert_eq!(met[0].ours, "w");
    }

    #[test]
    fn a_group_that_both_made_holds_the_objects_of_both() {
        let (_dir, checkouts) = place();
        write(&checkouts, "a", &["g", "g/x", "g/y"]);
        write(&checkouts, "b", &["g", "g/y", "g/z"]);
        let is_group: IsGroup<'_> = &|_, key| key == "g";
        let commit = |name, side| checkouts.commit(name, side, false, Arc::new(Disk), is_group);
        commit("a", None).unwrap();
        let Err(Refusal::Conflicts(met)) = commit("b", None) else {
            panic!("no conflict");
        };
        assert_eq!(met.len(), 1);
        assert_eq!(met[0].ours, "g/y");
        commit("b", Some(Side::Theirs)).unwrap();
        assert_eq!(committed(&checkouts)[1], ["g/z"]);
    }

    #[test]
    fn a_checkout_that_somebody_writes_in_is_neither_committed_nor_discarded() {
        let (_dir, checkouts) = place();
        write(&checkouts, "a", &["x"]);
        let writer = open(&checkouts, "a");
        let Err(Refusal::Failed(busy)) = commit(&checkouts, "a", None) else {
            panic!("committed");
        };
        let process = format!("process {} ", std::process::id());
        assert!(busy.message.contains(&process), "{busy}");
        assert_eq!(busy.errno(), libc::EBUSY);
        let busy = checkouts.discard("a", &Disk).unwrap_err();
        assert_eq!(busy.errno(), libc::EBUSY);
        drop(writer);
        checkouts.discard("a", &Disk).unwrap();
        let gone = checkouts.discard("a", &Disk).unwrap_err();
        assert_eq!(gone.errno(), libc::ENOENT);
        let left: Vec<_> = std::fs::read_dir(checkouts.dir())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| ![".lock", commits::NAME].contains(&name.to_str().unwrap()))
            .collect();
        assert!(left.is_empty(), "{left:?}");
        // Begun anew, nothing of it is left.
        assert!(open(&checkouts, "a").layer.entries().is_empty());
    }

    #[test]
    fn a_file_that_is_gone_is_not_committed() {
        let (_dir, checkouts) = place();
        write(&checkouts, "a", &["x"]);
        let layer = checkouts.find("a").unwrap();
        let stored = layer.changes.entries["x"].clone().unwrap();
        std::fs::remove_file(super::super::layer::path_in(&layer.dir, &stored)).unwrap();
        let refused = commit(&checkouts, "a", None).unwrap_err().to_string();
        assert!(refused.starts_with("x: "), "{refused}");
        assert!(committed(&checkouts).is_empty());
    }

    /// Every call that changes the disk fails once, with the process going on or dead.
    #[test]
    fn whatever_fails_a_commit_happens_or_does_not() {
        let scenario = |storage: Arc<Faulty>| {
            let (dir, checkouts) = place();
            write(&checkouts, "a", &["x", "-y"]);
            write(&checkouts, "b", &["z"]);
            let mut done = Vec::new();
            for name in ["a", "b"] {
                done.push(
                    checkouts
                        .commit(name, None, false, storage.clone(), &|_, _| false)
                        .is_ok(),
                );
            }
            (dir, checkouts, done)
        };
        let counted = Arc::new(Faulty::new(u64::MAX, 0, false));
        let (_dir, whole, _) = scenario(counted.clone());
        assert_eq!(committed(&whole), [vec!["x", "-y"], vec!["z"]]);
        assert!(counted.calls() > 6);
        for (at, dead) in (0..counted.calls()).flat_map(|at| [(at, false), (at, true)]) {
            let errno = if at % 2 == 0 { libc::ENOSPC } else { libc::EIO };
            let (_dir, checkouts, done) = scenario(Arc::new(Faulty::new(at, errno, dead)));
            let now = committed(&checkouts);
            let has = |what: &[&str]| now.iter().any(|layer| layer == what);
            for (done, what) in done.into_iter().zip([&["x", "-y"][..], &["z"]]) {
                // Of a process that died nobody knows whether its last call was done.
                assert!(has(what) == done || (dead && !done), "{at} {dead}: {now:?}");
            }
            // And it goes on from there.
            for name in ["a", "b"] {
                let _ = commit(&checkouts, name, None);
            }
            assert_eq!(committed(&checkouts).len(), 2, "{at} {dead}");
        }
    }

    #[test]
    fn whatever_fails_a_discard_happens_or_does_not() {
        for (at, dead) in (0..2).flat_map(|at| [(at, false), (at, true)]) {
            let (_dir, checkouts) = place();
            write(&checkouts, "a", &["x"]);
            let failed = checkouts.discard("a", &Faulty::new(at, libc::EIO, dead));
            assert!(failed.is_err());
            let left = checkouts.find("a").map(|a| a.changes.entries.len());
            assert!(matches!(left, Ok(1) | Err(_)), "{at}");
            write(&checkouts, "b", &["x"]);
            checkouts.discard("b", &Disk).unwrap();
            let hidden = std::fs::read_dir(checkouts.dir()).unwrap().filter(|entry| {
                let name = entry.as_ref().unwrap().file_name();
                name.to_string_lossy().starts_with(DISCARDED)
            });
            assert_eq!(hidden.count(), 0);
        }
    }

    #[test]
    fn of_many_that_commit_at_once_each_is_there() {
        let (_dir, checkouts) = place();
        let names: Vec<String> = (0..8).map(|n| format!("c{n}")).collect();
        for name in &names {
            write(&checkouts, name, &[&format!("own{name}"), "all"]);
        }
        let done: Vec<bool> = std::thread::scope(|scope| {
            let started: Vec<_> = names
                .iter()
                .map(|name| scope.spawn(|| commit(&checkouts, name, None).is_ok()))
                .collect();
            started.into_iter().map(|t| t.join().unwrap()).collect()
        });
        // All changed one object: the first wins, the others are told.
        assert_eq!(done.iter().filter(|&&done| done).count(), 1);
        for (name, _) in names.iter().zip(done).filter(|(_, done)| !done) {
            commit(&checkouts, name, Some(Side::Theirs)).unwrap();
        }
        let layers = committed(&checkouts);
        assert_eq!(layers.len(), 8);
        assert_eq!(layers.concat().len(), 9);
    }
}
