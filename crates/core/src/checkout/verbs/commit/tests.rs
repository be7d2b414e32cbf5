//! Tests of `commit`.

use super::*;
use crate::checkout::history::checkouts::OpenCheckout;
use crate::checkout::history::snapshot::KnownCommits;
use crate::checkout::records::entry::LayerEntry;
use crate::store::format::bare::registry;
use crate::store::object::NewFile;
use npyfs_io::dir::Dir;
use npyfs_io::storage::Disk;
use npyfs_io::storage::faulty::Faulty;
use std::time::SystemTime;

/// An outcome of a commit to a store that is never opened.
struct Told(Vec<Misfit>);

impl Outcome for Told {
    fn misfits(&self) -> Vec<Misfit> {
        self.0.clone()
    }

    fn broken(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// All objects fit, and no rule is broken.
pub(in crate::checkout) const GOOD: Laying<'_> = &|_| Ok(Box::new(Told(Vec::new())));

/// Returns a location of checkouts for a store that is never opened.
pub(in crate::checkout) fn place() -> (tempfile::TempDir, Checkouts) {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("x.h5");
    std::fs::write(&store, "base").unwrap();
    let checkouts = Checkouts::of_store(&store, None, &registry());
    (dir, checkouts)
}

fn open(checkouts: &Checkouts, name: &str) -> OpenCheckout {
    checkouts
        .open(name, Arc::new(Disk), |_| npyfs_worker::creator_here())
        .unwrap()
}

/// Commits the checkout `name`.
pub(in crate::checkout) fn commit_with(
    checkouts: &Checkouts,
    name: &str,
    wish: &CommitOptions,
    storage: Arc<dyn Storage>,
    is_group: IsGroup<'_>,
    lay: Laying<'_>,
) -> CommitResult {
    Candidate::find(checkouts, name, storage)?.commit(wish, is_group, lay)
}

pub(in crate::checkout) type CommitResult = std::result::Result<Committed, CommitRefusal>;

/// Writes objects in a checkout; a leading `-` deletes an object.
fn write(checkouts: &Checkouts, name: &str, keys: &[&str]) {
    let layer = open(checkouts, name).layer;
    for key in keys {
        if let Some(key) = key.strip_prefix('-') {
            layer.remove(key).unwrap();
            continue;
        }
        // The content of files does not matter here.
        layer
            .put(key, &NewFile::default(), SystemTime::now())
            .unwrap();
    }
}

fn wish(side: Option<Side>) -> CommitOptions {
    CommitOptions {
        side,
        ..CommitOptions::default()
    }
}

fn commit(checkouts: &Checkouts, name: &str, side: Option<Side>) -> CommitResult {
    commit_with(
        checkouts,
        name,
        &wish(side),
        Arc::new(Disk),
        &|_, _| false,
        GOOD,
    )
}

/// Returns the objects of each committed layer; a deleted one has a leading `-`.
fn committed(checkouts: &Checkouts) -> Vec<Vec<String>> {
    let layers = checkouts.committed().unwrap();
    let shown = |layer: &LayerFiles| {
        let entries = layer.entries.iter();
        let name = |(key, entry): (&String, &LayerEntry)| match entry.file(&layer.dir) {
            Some((dir, stored)) => {
                assert!(dir.metadata(&stored.name()).is_ok());
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
        let Err(CommitRefusal::Conflicts(met)) = commit(&checkouts, "b", None) else {
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
    let Err(CommitRefusal::Conflicts(met)) = commit(&checkouts, "b", None) else {
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
    let commit = |name, side| {
        commit_with(
            &checkouts,
            name,
            &wish(side),
            Arc::new(Disk),
            is_group,
            GOOD,
        )
    };
    commit("a", None).unwrap();
    let Err(CommitRefusal::Conflicts(met)) = commit("b", None) else {
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
    let Err(CommitRefusal::Failed(busy)) = commit(&checkouts, "a", None) else {
        panic!("committed");
    };
    let process = format!("process {} ", std::process::id());
    assert!(busy.message.contains(&process), "{busy}");
    assert_eq!(busy.errno(), libc::EBUSY);
    let busy = discard(&checkouts, "a", false, &Disk).unwrap_err();
    assert_eq!(busy.errno(), libc::EBUSY);
    drop(writer);
    discard(&checkouts, "a", false, &Disk).unwrap();
    let gone = discard(&checkouts, "a", false, &Disk).unwrap_err();
    assert_eq!(gone.errno(), libc::ENOENT);
    let left: Vec<_> = std::fs::read_dir(checkouts.dir())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| ![".lock", commits::NAME].contains(&name.to_str().unwrap()))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    // A new checkout of the name is empty.
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
        is_deletion: false,
        why: "why".into(),
    };
    let lay: Laying<'_> = &|layers| {
        assert_eq!(layers.len(), 2);
        let mut misfits = vec![misfit(0, "x"), misfit(1, "y")];
        misfits.retain(|misfit| layers[misfit.layer].entries.contains_key(&misfit.key));
        Ok(Box::new(Told(misfits)))
    };
    let commit = |leave_out| {
        let wish = CommitOptions {
            leave_out,
            message: "why not".into(),
            ..CommitOptions::default()
        };
        commit_with(&checkouts, "a", &wish, Arc::new(Disk), &|_, _| false, lay)
    };
    let Err(CommitRefusal::Misfits(refused)) = commit(false) else {
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

/// Every call that changes the disk fails once; the process continues or dies.
#[test]
fn whatever_fails_a_commit_happens_or_does_not() {
    let scenario = |storage: Arc<Faulty>| {
        let (dir, checkouts) = place();
        write(&checkouts, "a", &["x", "-y"]);
        write(&checkouts, "b", &["z"]);
        let mut done = Vec::new();
        for name in ["a", "b"] {
            done.push(
                commit_with(
                    &checkouts,
                    name,
                    &wish(None),
                    storage.clone(),
                    &|_, _| false,
                    GOOD,
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
            // If the process died, its last call may or may not have taken effect.
            assert!(has(what) == done || (dead && !done), "{at} {dead}: {now:?}");
        }
        // Further commits are possible.
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
        let failed = discard(&checkouts, "a", false, &Faulty::new(at, libc::EIO, dead));
        assert!(failed.is_err());
        let left = checkouts.find("a").map(|a| a.changes.entries.len());
        assert!(matches!(left, Ok(1) | Err(_)), "{at}");
        write(&checkouts, "b", &["x"]);
        discard(&checkouts, "b", false, &Disk).unwrap();
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
    // All changed the same object: the first wins, the others are refused.
    assert_eq!(done.iter().filter(|&&done| done).count(), 1);
    for (name, _) in names.iter().zip(done).filter(|(_, done)| !done) {
        commit(&checkouts, name, Some(Side::Theirs)).unwrap();
    }
    let layers = committed(&checkouts);
    assert_eq!(layers.len(), 8);
    assert_eq!(layers.concat().len(), 9);
}

/// Describes for each key the uppermost layer with an entry, and the entry.
fn shown(layers: &[LayerFiles]) -> BTreeMap<String, String> {
    let entries = layers.iter().enumerate().flat_map(|(at, layer)| {
        let entries = layer.entries.iter();
        entries.map(move |(key, entry)| {
            let file = entry.file(&layer.dir);
            let file = file.map(|(dir, stored)| (dir.path().to_owned(), stored.clone()));
            (
                key.clone(),
                format!("{at} {} {file:?}", entry.is_deletion()),
            )
        })
    });
    entries.collect()
}

#[test]
fn a_snapshot_says_what_all_layers_say() {
    let (_dir, checkouts) = place();
    let dir = || checkouts.opened().unwrap().unwrap();
    let mut folded = 0;
    let keys = ["a", "g", "g/x", "cell#", "cell#age", "-a", "-g", "b"];
    for number in 0..40_usize {
        let own: Vec<&str> = [number, number / 3 + 1, number * 7 + 2]
            .map(|at| keys[at % keys.len()])
            .into();
        write(&checkouts, "work", &own);
        let made = commit(&checkouts, "work", Some(Side::Ours)).unwrap();
        if made.number.is_none() {
            continue;
        }
        if number % 11 == 10 {
            let id = made.id;
            let _ =
                crate::checkout::verbs::revert::revert(&checkouts, &id, None, Arc::new(Disk), GOOD);
        }
        let (part, full) = (
            KnownCommits::with_layers(&dir()).unwrap(),
            KnownCommits::in_full(&dir()).unwrap(),
        );
        assert_eq!(shown(&part.layers), shown(&full.layers));
        let said = |layers: &[LayerFiles]| -> Vec<_> {
            let said = layers.iter();
            said.map(|layer| (layer.name.clone(), layer.commit, layer.stores.len()))
                .collect()
        };
        assert_eq!(said(&part.layers), said(&full.layers));
        assert_eq!(part.commits.len(), full.commits.len());
        // Of an axis all states are there.
        let axes = |layers: &[LayerFiles]| -> Vec<_> {
            layers
                .iter()
                .map(|layer| layer.entries.contains_key("cell#"))
                .collect()
        };
        assert_eq!(axes(&part.layers), axes(&full.layers));
        if snapshot::is_folded(&part.layers) {
            folded += 1;
            let count =
                |layers: &[LayerFiles]| layers.iter().map(|l| l.entries.len()).sum::<usize>();
            assert!(count(&part.layers) <= count(&full.layers));
            let first = part
                .layers
                .iter()
                .take_while(|layer| layer.is_folded)
                .count();
            let again = snapshot::unfolded(&part.layers[..first]).unwrap();
            assert_eq!(shown(&again), shown(&full.layers[..first]));
        }
    }
    assert!(folded > 20, "{folded}");
}
