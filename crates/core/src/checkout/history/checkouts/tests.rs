//! Tests of `checkouts`.

use super::*;
use crate::checkout::records::names::LONGEST_NAME;
use crate::store::format::bare::registry;

fn open(checkouts: &Checkouts, name: &str) -> Result<OpenCheckout> {
    checkouts.open(name, Arc::new(Disk), |_| npyfs_worker::creator_here())
}

fn names(checkouts: &Checkouts) -> Vec<String> {
    let (all, refused) = checkouts.list().unwrap();
    assert!(refused.is_empty());
    all.into_iter().map(|summary| summary.name).collect()
}

#[test]
fn two_checkouts_can_be_open_and_one_cannot_twice() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("x.h5");
    std::fs::write(&store, "123").unwrap();
    let checkouts = Checkouts::of(&store, None, &registry());
    assert!(names(&checkouts).is_empty() && checkouts.committed().unwrap().is_empty());
    assert_eq!(checkouts.find("a").unwrap_err().errno(), libc::ENOENT);
    let a = open(&checkouts, "a").unwrap();
    let _b = open(&checkouts, "b").unwrap();
    assert_eq!(open(&checkouts, "a").err().unwrap().errno(), libc::EBUSY);
    assert!(checkouts.find("a").unwrap().holder.is_some());
    drop(a);
    let found = checkouts.find("a").unwrap();
    assert_eq!(found.holder, None);
    assert_eq!(found.dir.path(), dir.path().join("x.h5.checkouts/a"));
    let begun = found.changes.begun.unwrap();
    assert_eq!(begun.commits, 0);
    assert_eq!(begun.base, base_files(&store));
    assert_eq!(begun.base.unwrap()[0].size, 3);
    assert_eq!(names(&checkouts), ["a", "b"]);
}

#[test]
fn names_that_could_lead_elsewhere_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let checkouts = Checkouts::of(&dir.path().join("x.h5"), Some(dir.path()), &registry());
    let long = "a".repeat(LONGEST_NAME + 1);
    for name in [
        "", ".", "..", ".a", "a/b", "a~2", "commits", "a b", "\u{e9}", &long,
    ] {
        let refused = open(&checkouts, name).err().unwrap();
        assert_eq!(refused.errno(), libc::EINVAL, "{name:?}");
    }
    assert_eq!(name_of("a-1.b~12"), Some("a-1.b"));
    assert_eq!(name_of("a~b"), None);
    assert_eq!(name_of("commits"), None);
    let formats = crate::formats::registry();
    for (store, want) in [
        ("/d/x.h5", "/d/x.h5.checkouts"),
        ("/d/x_LOCALE0003.h5", "/d/x_LOCALE.h5.checkouts"),
        ("/d", "/d.checkouts"),
    ] {
        let checkouts = Checkouts::of(Path::new(store), None, &formats);
        assert_eq!(checkouts.dir(), Path::new(want));
    }
}

#[test]
fn files_of_a_directory_are_remembered_but_not_its_checkouts() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("sub/x.h5.checkouts")).unwrap();
    for name in ["b.h5", "a.h5", "sub/x.h5", "sub/x.h5.checkouts/.lock"] {
        std::fs::write(dir.path().join(name), name).unwrap();
    }
    let files = base_files(dir.path()).unwrap();
    let paths: Vec<_> = files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["a.h5", "b.h5", "sub/x.h5"]);
    assert_eq!(base_files(&dir.path().join("none")), None);
}
