//! Tests of `index`.

use std::path::Path;

use super::*;
use npyfs_io::storage::Disk;

fn record(path: &str, file: Option<u64>) -> ObjectChange {
    let stored = file.map(|file| {
        Arc::new(StoredObject {
            file,
            time: -5,
            ..StoredObject::default()
        })
    });
    ObjectChange::new(path, stored)
}

fn open(dir: &Path) -> Result<Index> {
    Index::open(&Dir::own(dir), Arc::new(Disk), false)
}

#[test]
fn the_last_record_of_an_object_counts() {
    let dir = tempfile::tempdir().unwrap();
    let mut index = open(dir.path()).unwrap();
    for (path, file) in [("a\nb", Some(1)), ("c", Some(2)), ("c", None)] {
        index.add_all(vec![record(path, file)]).unwrap();
    }
    let entries = index.entries().clone();
    drop(index);
    let again = open(dir.path()).unwrap();
    assert_eq!(again.entries(), &entries);
    assert_eq!(again.entries()["a\nb"].as_ref().unwrap().file, 1);
    assert_eq!(again.entries()["c"], None);
}

#[test]
fn what_an_object_was_first_changed_on_is_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let begun = |commits| LayerBase {
        commits,
        ..LayerBase::default()
    };
    for (commits, names) in [(2, ["a", "b"]), (5, ["b", "c"])] {
        let mut index = open(dir.path()).unwrap();
        index.begin(begun(commits)).unwrap();
        for name in names {
            index.add_all(vec![record(name, None)]).unwrap();
        }
    }
    let changes = IndexChanges::read(&Dir::own(dir.path())).unwrap();
    let seen = ["a", "b", "c", "d"].map(|name| changes.seen(name));
    assert_eq!(seen, [2, 2, 5, 5]);
    assert_eq!(changes.begun, Some(begun(2)));
}

#[test]
fn members_count_until_their_object_is_stored_or_deleted() {
    let kept = |files: &[u64]| KeptObject {
        object: "a".into(),
        members: files
            .iter()
            .map(|&file| KeptMember {
                name: format!("{file}.npy"),
                file,
                time: 1,
            })
            .collect(),
        missing: vec!["x".into()],
        why: None,
    };
    for change in [Some(9), None] {
        let dir = tempfile::tempdir().unwrap();
        let mut index = open(dir.path()).unwrap();
        index.add_all(vec![record("a", Some(1))]).unwrap();
        assert!(index.keep(kept(&[2, 3])).unwrap().is_empty());
        assert_eq!(index.keep(kept(&[3, 4])).unwrap(), [2]);
        // One change sets a time, the other stores another object.
        let others = vec![record("a", Some(1)), record("b", Some(5))];
        assert!(index.add_all(others).unwrap().is_empty());
        let read = IndexChanges::read(&Dir::own(dir.path())).unwrap();
        assert_eq!(read.incomplete["a"], kept(&[3, 4]));
        assert_eq!(index.add_all(vec![record("a", change)]).unwrap(), [3, 4]);
        assert!(
            IndexChanges::read(&Dir::own(dir.path()))
                .unwrap()
                .incomplete
                .is_empty()
        );
        assert!(index.keep(kept(&[6])).unwrap().is_empty());
        assert_eq!(index.keep(kept(&[])).unwrap(), [6]);
        drop(index);
        assert!(open(dir.path()).unwrap().incomplete().is_empty());
    }
}

#[test]
fn one_that_grows_is_written_anew_and_says_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let own = Dir::own(dir.path());
    let length = || std::fs::metadata(dir.path().join(NAME)).unwrap().len();
    let same = |a: &IndexChanges, b: &IndexChanges| {
        assert_eq!(format!("{a:?}"), format!("{b:?}"));
    };
    // A long file that was only appended to is read as it is.
    let mut long = Vec::new();
    let mut index = open(dir.path()).unwrap();
    let mut add = |index: &mut Index, line: fn(u64) -> IndexLine, n: u64| {
        long.push(line(n));
        index.add(vec![line(n)]).unwrap();
        let all: Vec<IndexLine> =
            serde_json::from_str(&serde_json::to_string(&long).unwrap()).unwrap();
        let all = IndexChanges::of(all);
        same(&index.changes, &all);
        same(&IndexChanges::read(&own).unwrap(), &all);
    };
    for commits in [2, 2, 5, 9] {
        add(
            &mut index,
            |commits| {
                IndexLine::Begun(LayerBase {
                    commits,
                    time: 7,
                    on: Some(format!("id{commits}")),
                    base: Some(Vec::new()),
                })
            },
            commits,
        );
        let store = |n| {
            IndexLine::Store(StoreEntry {
                store: format!("s{n}"),
                identity: StoreIdentity {
                    kind: "daf".into(),
                    ..StoreIdentity::default()
                },
            })
        };
        add(&mut index, store, commits);
        for n in 0..30 {
            let change =
                |n| IndexLine::Change(record(&format!("o{}", n % 4), (n % 3 > 0).then_some(n)));
            add(&mut index, change, n + commits);
        }
        let kept = |n| {
            IndexLine::Incomplete(KeptObject {
                object: format!("m{n}"),
                members: vec![KeptMember {
                    name: "x.npy".into(),
                    file: 1000 + n,
                    time: 1,
                }],
                missing: Vec::new(),
                why: None,
            })
        };
        add(&mut index, kept, commits);
    }
    assert!(index.count < 60, "{}", index.count);
    let short = length();
    // It is shortened when it is opened.
    drop(index);
    let again = open(dir.path()).unwrap();
    assert!(length() <= short && again.count < 60);
}

#[test]
fn an_index_of_the_first_form_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(NAME), "npyfs checkout 1\n").unwrap();
    let read = IndexChanges::read(&Dir::own(dir.path())).unwrap_err();
    let opened = open(dir.path()).err().unwrap();
    for refused in [read, opened] {
        assert!(
            refused.message.contains("an older npyfs: form 1"),
            "{refused}"
        );
    }
}

#[test]
fn what_newer_versions_say_of_an_object_is_kept() {
    let json = r#"{"path":"a","stored":{"file":1,"time":3,"colour":"red"}}"#;
    let line: IndexLine = serde_json::from_str(json).unwrap();
    assert_eq!(serde_json::to_string(&line).unwrap(), json);
    // Neither is a record, nor the deletion of an object.
    for json in [r#"{"path":"a"}"#, r#"{"path":"a","moved":"b"}"#] {
        assert!(serde_json::from_str::<IndexLine>(json).is_err(), "{json}");
    }
}

#[test]
fn an_index_that_is_gone_is_not_made_again_over_objects() {
    let dir = tempfile::tempdir().unwrap();
    assert!(Index::open(&Dir::own(dir.path()), Arc::new(Disk), true).is_err());
}
