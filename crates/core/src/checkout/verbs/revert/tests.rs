//! Tests of `revert`.

use std::time::{Duration, SystemTime};

use super::super::commit::Wish;
use super::super::commit::tests::{GOOD, commit_with, place};
use super::*;
use crate::checkout::history::checkouts::OpenCheckout;
use crate::checkout::records::index::nanoseconds;
use crate::checkout::records::record_log::LogRecord;
use crate::checkout::records::record_log::Unread;
use crate::store::object::NewFile;
use npyfs_io::storage::Disk;
use npyfs_io::storage::faulty::Faulty;

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
    let wish = Wish::default();
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
        ("revert+7", Some(format!("{}\n", holder::own()))),
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
