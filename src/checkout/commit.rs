//! Commit and discard: how a layer that nobody writes in becomes part of the store, or is forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::checkouts::{Checkouts, LayerFiles, check_name, dir_of, layers};
use super::commits::{self, Commit, Commits};
use super::conflict::{Conflict, conflicts};
use super::fit::Misfit;
use super::holder::Holder;
use super::index::{Changes, Incomplete};
use super::layer::name_of_member;
use crate::checkout::against::Entries;
use crate::error::{Error, Result};
use crate::io::storage::Storage;

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

/// What is to be committed, and how.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    pub side: Option<Side>,
    /// Objects that are not complete are forgotten, and those that do not fit the store any more do not count.
    pub leave_out: bool,
    pub message: String,
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
    /// Those that do not fit the store any more, and do not count either.
    pub misfits: Vec<Misfit>,
}

/// Why nothing was committed.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("{} objects were changed by other commits since", .0.len())]
    Conflicts(Vec<Conflict>),
    #[error("{} objects are not complete", .0.len())]
    Incomplete(Vec<Incomplete>),
    #[error("the store would break the rules of its format: {}", .0.join("; "))]
    Broken(Vec<String>),
    #[error("{} objects do not fit the store", .0.len())]
    Misfits(Vec<Misfit>),
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Whether the object of a layer is an empty group: two of the same name are no conflict.
pub type IsGroup<'a> = &'a dyn Fn(&LayerFiles, &str) -> bool;

/// What would break the rules of the store's format if these layers were all that is on top of it, the last of them new;
/// a line for each object.
pub type Broken<'a> = &'a dyn Fn(&[LayerFiles]) -> Result<Vec<String>>;
/// Which objects of layers, the lowest first, do not fit the store as it is now.
pub type Fitting<'a> = &'a dyn Fn(&[LayerFiles]) -> Result<Vec<Misfit>>;

impl Checkouts {
    /// Puts the checkout `name` on top of the committed ones, for everybody who mounts the store from now on.
    ///
    /// Durable on success; on failure nothing is committed. EBUSY if somebody writes in it. Objects that another
    /// commit changed since are refused, unless `side` says which stay, and so are objects that are not complete or
    /// do not fit the store any more, unless they are left out.
    pub fn commit(
        &self,
        name: &str,
        wish: &Wish,
        storage: Arc<dyn Storage>,
        is_group: IsGroup<'_>,
        fitting: Fitting<'_>,
        broken: Broken<'_>,
    ) -> std::result::Result<Committed, Refusal> {
        self.find(name)?;
        let top = self.make(&*storage)?;
        let mut commits = Commits::lock(&top, storage.clone())?;
        let dir = top.below(&dir_of(name, commits.all()))?;
        let _holder = Holder::take(&dir)?;
        let changes = Changes::read(&dir)?;
        let mut ours = LayerFiles::of(&dir, changes.clone());
        let incomplete: Vec<Incomplete> = changes.incomplete.values().cloned().collect();
        if !incomplete.is_empty() && !wish.leave_out {
            return Err(Refusal::Incomplete(incomplete));
        }
        if ours.entries.is_empty() {
            return Ok(Committed {
                number: None,
                objects: 0,
                dropped: Vec::new(),
                incomplete: Vec::new(),
                misfits: Vec::new(),
            });
        }
        check_files(&ours)?;
        let below = layers(&top, commits.all())?;
        let (met, shared) = meet(&ours, &changes, &below, is_group);
        let dropped = match wish.side {
            None if !met.is_empty() => return Err(Refusal::Conflicts(met)),
            Some(Side::Theirs) => met.into_iter().map(|conflict| conflict.ours).collect(),
            _ => BTreeSet::new(),
        };
        ours.entries.retain(|key, _| !dropped.contains(key));
        let mut without: BTreeSet<String> = dropped.iter().cloned().chain(shared).collect();
        // What does not count in any case need not fit.
        let counting = |without: &BTreeSet<String>| {
            let mut new = ours.clone();
            new.entries.retain(|key, _| !without.contains(key));
            let mut all = below.clone();
            all.push(new);
            all
        };
        let mut misfits = fitting(&counting(&without))?;
        misfits.retain(|misfit| misfit.layer == below.len());
        if !misfits.is_empty() && !wish.leave_out {
            return Err(Refusal::Misfits(misfits));
        }
        without.extend(misfits.iter().map(|misfit| misfit.key.clone()));
        let broken = broken(&counting(&without))?;
        if !broken.is_empty() {
            return Err(Refusal::Broken(broken));
        }
        for misfit in &misfits {
            ours.entries.remove(&misfit.key);
        }
        let objects = ours.entries.len();
        commits.add(Commit {
            layer: dir.name(),
            message: wish.message.clone(),
            without,
            axes: axes(&ours),
            base: ours.stores,
            ..Commit::default()
        })?;
        for member in incomplete.iter().flat_map(|object| &object.members) {
            // Nobody looks for it any more.
            let _ = storage.remove(&dir, &name_of_member(member));
        }
        Ok(Committed {
            number: Some(commits.all().len()),
            objects,
            dropped: dropped.into_iter().collect(),
            incomplete,
            misfits,
        })
    }

    /// Forgets the checkout `name`, all at once. EBUSY if somebody writes in it.
    pub fn discard(&self, name: &str, storage: &dyn Storage) -> Result<()> {
        check_name(name)?;
        let about = |e: std::io::Error| Error::from(e).about(self.dir().display());
        self.find(name)?;
        let top = self.make(storage)?;
        let lock = commits::lock(&top)?;
        let layer = dir_of(name, &commits::read(&top)?);
        let dir = top.below(&layer)?;
        let holder = Holder::take(&dir)?;
        let hidden = |name: &std::ffi::OsStr| {
            let name = name.to_str().filter(|name| name.starts_with(DISCARDED));
            name.map(str::to_owned)
        };
        let there = top.names().map_err(about)?;
        let there: BTreeSet<String> = there.iter().filter_map(|(name, _)| hidden(name)).collect();
        let mut free = (0..).map(|n| format!("{DISCARDED}{name}-{n}"));
        let away = free.find(|away| !there.contains(away)).unwrap_or_default();
        storage.rename(&top, &layer, &away).map_err(about)?;
        storage.sync_dir(&top).map_err(about)?;
        drop((holder, lock));
        // It is forgotten already; what a process that died left of others goes, too.
        for (name, _) in top.names().map_err(about)? {
            if let Some(name) = hidden(&name) {
                let _ = top.remove_all(&name);
            }
        }
        Ok(())
    }
}

/// The axes that objects of a layer lie along, by key.
fn axes(layer: &LayerFiles) -> BTreeMap<String, BTreeSet<Entries>> {
    let mut axes: BTreeMap<String, BTreeSet<Entries>> = BTreeMap::new();
    for (key, stored) in &layer.entries {
        let above = key.rfind('/').map_or("", |at| &key[..=at]);
        let against = stored.as_ref().and_then(|stored| stored.against.as_ref());
        for (axis, entries) in against.iter().flat_map(|against| &against.along) {
            let states = axes.entry(format!("{above}{axis}")).or_default();
            states.insert(entries.clone());
        }
    }
    axes
}

/// An error if a file of the layer is gone: it would be missing for everybody.
fn check_files(layer: &LayerFiles) -> Result<()> {
    for (key, stored) in &layer.entries {
        if let Some(stored) = stored {
            let file = layer.dir.metadata(&stored.name());
            file.map_err(|e| e.about(key))?;
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
    use super::*;
    use crate::checkout::format::bare::registry;
    use crate::hdf5::Creator;
    use crate::io::dir::Dir;
    use crate::io::storage::Disk;
    use crate::io::storage::faulty::Faulty;
    use std::time::SystemTime;

    const FITS: Fitting<'_> = &|_| Ok(Vec::new());
    const WHOLE: Broken<'_> = &|_| Ok(Vec::new());

    /// A place for checkouts of a store that nobody opens.
    fn place() -> (tempfile::TempDir, Checkouts) {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("x.h5");
        std::fs::write(&store, "base").unwrap();
        let checkouts = Checkouts::of(&store, None, &registry());
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

    fn wish(side: Option<Side>) -> Wish {
        Wish {
            side,
            ..Wish::default()
        }
    }

    fn commit(checkouts: &Checkouts, name: &str, side: Option<Side>) -> Outcome {
        checkouts.commit(
            name,
            &wish(side),
            Arc::new(Disk),
            &|_, _| false,
            FITS,
            WHOLE,
        )
    }

    /// The objects of each committed layer; a deleted one begins with `-`.
    fn committed(checkouts: &Checkouts) -> Vec<Vec<String>> {
        let layers = checkouts.committed().unwrap();
        let shown = |layer: &LayerFiles| {
            let entries = layer.entries.iter();
            let name = |(key, stored): (&String, &Option<super::super::index::Stored>)| match stored
            {
                Some(stored) => {
                    assert!(layer.dir.metadata(&stored.name()).is_ok());
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
            .0
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
        let commit =
            |name, side| checkouts.commit(name, &wish(side), Arc::new(Disk), is_group, FITS, WHOLE);
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
    fn what_does_not_fit_is_refused_or_left_out() {
        let (_dir, checkouts) = place();
        write(&checkouts, "below", &["x"]);
        commit(&checkouts, "below", None).unwrap();
        write(&checkouts, "a", &["x", "y", "z"]);
        let misfit = |layer, key: &str| Misfit {
            checkout: "a".into(),
            layer,
            key: key.into(),
            why: "why".into(),
        };
        let fitting: Fitting<'_> = &|layers| {
            assert_eq!(layers.len(), 2);
            Ok(vec![misfit(0, "x"), misfit(1, "y")])
        };
        let commit = |leave_out| {
            let wish = Wish {
                leave_out,
                message: "why not".into(),
                ..Wish::default()
            };
            checkouts.commit("a", &wish, Arc::new(Disk), &|_, _| false, fitting, WHOLE)
        };
        let Err(Refusal::Misfits(refused)) = commit(false) else {
            panic!("committed");
        };
        assert_eq!(refused, [misfit(1, "y")]);
        let done = commit(true).unwrap();
        assert_eq!((done.objects, done.misfits.len()), (2, 1));
        assert_eq!(committed(&checkouts)[1], ["x", "z"]);
        let last = commits::read(&Dir::own(checkouts.dir()))
            .unwrap()
            .pop()
            .unwrap();
        assert_eq!(last.message, "why not");
    }

    #[test]
    fn a_file_that_is_gone_is_not_committed() {
        let (_dir, checkouts) = place();
        write(&checkouts, "a", &["x"]);
        let layer = checkouts.find("a").unwrap();
        let stored = layer.changes.entries["x"].clone().unwrap();
        layer.dir.remove(&stored.name()).unwrap();
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
                        .commit(
                            name,
                            &wish(None),
                            storage.clone(),
                            &|_, _| false,
                            FITS,
                            WHOLE,
                        )
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
