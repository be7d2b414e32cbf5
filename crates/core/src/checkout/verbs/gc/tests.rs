//! Tests of garbage collection: its clock, and the state after a failing disk.

use std::cell::RefCell;
use std::time::SystemTime;

use super::*;
use crate::checkout::verbs::commit::Wish;
use crate::checkout::verbs::commit::tests::{GOOD, commit_with, place as checkouts_of_nobody};
use crate::store::object::NewFile;
use npyfs_io::storage::Disk;
use npyfs_io::storage::faulty::Faulty;

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
        let wish = Wish::default();
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
    let wish = Wish::default();
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
