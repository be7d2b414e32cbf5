//! Tests of commits in a directory.

mod model;
mod places;

use super::place::{CommitPlace as _, Creation};
use super::*;
use crate::checkout::against::digest;
use crate::checkout::record_log::LogRecord as _;
use crate::io::storage::faulty::Faulty;

fn commit(layer: &str) -> LayerCommit {
    LayerCommit {
        layer: layer.into(),
        ..LayerCommit::default()
    }
}

/// Commits layers of these names, each by a process of its own.
fn add(dir: &Dir, layers: &[&str]) {
    for layer in layers {
        let mut commits = Commits::lock(dir, Arc::new(Disk)).unwrap();
        assert!(commits.add(commit(layer)).unwrap());
    }
}

fn layers(dir: &Dir) -> Vec<String> {
    let all = read(dir).unwrap().into_iter();
    all.map(|commit| commit.layer).collect()
}

fn path(dir: &Dir, number: u64) -> std::path::PathBuf {
    dir.path().join(NAME).join(numbered::object(number))
}

#[test]
fn each_commit_names_the_one_before_and_is_what_its_id_says() {
    let top = tempfile::tempdir().unwrap();
    let dir = Dir::own(top.path());
    for (layer, message) in [("a", "first\nand more"), ("b", "\u{1b}[31m")] {
        let mut commits = Commits::lock(&dir, Arc::new(Disk)).unwrap();
        let message = message.to_owned();
        let is_made = commits.add(LayerCommit {
            message,
            ..commit(layer)
        });
        assert!(is_made.unwrap());
        assert_eq!(read(&dir).unwrap(), commits.all());
    }
    let read = read(&dir).unwrap();
    assert_eq!(read[0].subject(), "first");
    assert!(read[0].parents.is_empty());
    assert_eq!(read[1].parents, [read[0].id.clone()]);
    assert!(read[0].write != read[1].write && read[0].write.len() == 32);
    let text = std::fs::read_to_string(path(&dir, 1)).unwrap();
    let json = text.strip_suffix('\n').unwrap();
    let rest = json.replace(&format!("\"id\":\"{}\",", read[0].id), "");
    assert_eq!(record::id_of(json), Some(&*digest(rest.as_bytes())));
    let names = std::fs::read_dir(dir.path().join(NAME)).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    let (one, two) = (numbered::object(1), numbered::object(2));
    assert_eq!(names, [&*one, &two, "newest"]);
}

#[test]
fn what_is_edited_or_gone_is_named() {
    let top = tempfile::tempdir().unwrap();
    let dir = Dir::own(top.path());
    add(&dir, &["a", "b", "c"]);
    let refused = |number: u64, words: &str| {
        let error = read(&dir).unwrap_err();
        let named = path(&dir, number).display().to_string();
        assert!(
            error.message.starts_with(&named) && error.message.contains(words),
            "{error}"
        );
        // Nobody commits on top of it either.
        assert!(Commits::lock(&dir, Arc::new(Disk)).is_err());
    };
    for number in 1..=3 {
        let whole = std::fs::read(path(&dir, number)).unwrap();
        let text = String::from_utf8(whole.clone()).unwrap();
        let layer = ["a", "b", "c"][number as usize - 1];
        let edited = text.replace(&format!("\"layer\":\"{layer}\""), "\"layer\":\"x\"");
        assert_ne!(text, edited);
        let without_id = format!("{{{}", &text[8 + 32 + 1..]);
        let own = |text: &str| -> Vec<u8> { text.into() };
        for (bytes, words) in [
            (own(&edited), "is not what its id says"),
            (own(&without_id), "has no id"),
            (own(&text[..text.len() / 2]), "not the whole commit"),
            (Vec::new(), "not the whole commit"),
            (vec![0; 100], "not the whole commit"),
        ] {
            std::fs::write(path(&dir, number), bytes).unwrap();
            refused(number, words);
        }
        std::fs::remove_file(path(&dir, number)).unwrap();
        refused(number, "the commit is gone");
        std::fs::write(path(&dir, number), whole).unwrap();
    }
    // Another commit in its place.
    let other = tempfile::tempdir().unwrap();
    let other = Dir::own(other.path());
    add(&other, &["a", "b"]);
    std::fs::copy(path(&other, 2), path(&dir, 2)).unwrap();
    refused(2, "was made on");
}

#[test]
fn what_only_saves_time_may_be_missing_old_or_damaged() {
    let top = tempfile::tempdir().unwrap();
    let dir = Dir::own(top.path());
    let names: Vec<String> = (1..=250).map(|n| format!("c{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    add(&dir, &names);
    let own = dir.path().join(NAME);
    let checkpoints = [100, 200].map(|n| own.join(format!("{n:020}.checkpoint")));
    let hint = own.join("newest");
    for helper in checkpoints.iter().chain([&hint]) {
        let whole = std::fs::read(helper).unwrap();
        for bytes in [&b""[..], b"strange", &whole[..whole.len() / 2], &[0; 9]] {
            std::fs::write(helper, bytes).unwrap();
            assert_eq!(layers(&dir), names, "{}", helper.display());
        }
        std::fs::remove_file(helper).unwrap();
        assert_eq!(layers(&dir), names);
    }
    std::fs::write(&hint, r#"{"number":220,"id":""}"#).unwrap();
    assert_eq!(layers(&dir), names);
    // Whoever commits next makes them again.
    add(&dir, &["last"]);
    assert!(checkpoints.iter().all(|path| path.is_file()));
    // One with other commits counts for nothing.
    std::fs::copy(&checkpoints[0], &checkpoints[1]).unwrap();
    assert_eq!(layers(&dir).len(), 251);
}

#[test]
fn of_checkpoints_those_stay_that_are_read() {
    for (newest, kept) in [
        (99, vec![]),
        (250, vec![100, 200]),
        (1000, vec![1000]),
        (12_345, vec![10_000, 11_000, 12_000, 12_100, 12_200, 12_300]),
    ] {
        let stays = |number: &u64| {
            let name = format!("{number:020}.checkpoint");
            numbered::useless(&name, 0, newest).is_none()
        };
        let there = (1..=newest / 100).map(|hundreds| hundreds * 100);
        assert_eq!(there.filter(stays).collect::<Vec<_>>(), kept);
    }
    // Of commits behind a list, and of others that are faster than who looks.
    let behind = |number: u64| numbered::useless(&format!("{number:020}.checkpoint"), 150, 450);
    assert!(behind(200).is_none() && behind(400).is_none() && behind(500).is_none());
    assert!(behind(100).is_some());
    for name in [
        "newest",
        "100.checkpoint",
        "x.checkpoint",
        "notes",
        &numbered::object(1),
    ] {
        assert_eq!(numbered::useless(name, 0, 5000), None, "{name}");
    }
    assert!(numbered::useless(".probe-1", 0, 0).is_some());
}

fn line(json: &str) -> String {
    format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()))
}

#[test]
fn a_list_of_an_older_form_goes_on_in_numbered_commits() {
    let future = i64::MAX - 5;
    let first = format!(r#"{{"layer":"a","time":{future},"without":["x"]}}"#);
    let id = digest(first.as_bytes());
    let rest = format!(
        r#"{{"parents":["{id}"],"write":"","layer":"b","time":{},"author":"","message":"","tool":"","without":[]}}"#,
        future + 1
    );
    let second = format!("{{\"id\":\"{}\",{}", digest(rest.as_bytes()), &rest[1..]);
    for (old, sealed) in [
        (format!("npyfs commits 1\n{}", line(&first)), 1),
        (
            format!("npyfs commits 2\n{}{}", line(&first), line(&second)),
            2,
        ),
        ("npyfs commits 2\n".to_owned(), 0),
        (String::new(), 0),
    ] {
        let top = tempfile::tempdir().unwrap();
        let dir = Dir::own(top.path());
        std::fs::write(dir.path().join(NAME), &old).unwrap();
        let before = read(&dir).unwrap();
        assert_eq!(before.len(), sealed);
        if let Some(first) = before.first() {
            assert_eq!(first.id, id);
            assert!(first.without.contains("x"));
        }
        // Whoever reads changes nothing, and neither does who commits nothing.
        drop(Commits::lock(&dir, Arc::new(Disk)).unwrap());
        assert_eq!(std::fs::read_to_string(dir.path().join(NAME)).unwrap(), old);
        add(&dir, &["c"]);
        // An older version that saw no form adds to the list once more: that is found out.
        let list = std::fs::read_to_string(dir.path().join(NAME)).unwrap();
        std::fs::write(dir.path().join(NAME), list.clone() + &line(&first)).unwrap();
        let refused = read(&dir).unwrap_err();
        assert!(
            refused
                .message
                .contains("the list that older versions made"),
            "{refused}"
        );
        std::fs::write(dir.path().join(NAME), &list).unwrap();
        add(&dir, &["d"]);
        let now = read(&dir).unwrap();
        assert_eq!(now.len(), sealed + 2);
        assert_eq!(now[..sealed], before);
        let last = before.last().map(|last| last.id.clone());
        assert_eq!(now[sealed].parents, last.into_iter().collect::<Vec<_>>());
        if sealed == 1 {
            // The clock was ahead when the first was made.
            assert_eq!((now[1].time, now[2].time), (future + 1, future + 2));
        }
        // What older versions look at first tells them to refuse it, and nothing else of it changed.
        let list = std::fs::read_to_string(dir.path().join(NAME)).unwrap();
        assert!(list.starts_with("npyfs commits 3\n"));
        assert_eq!(list.get(16..), old.get(16..).or(Some("")));
    }
}

#[test]
fn of_an_answer_that_was_lost_the_commit_knows_that_it_happened() {
    for errno in [libc::EEXIST, libc::EIO, libc::ETIMEDOUT] {
        let top = tempfile::tempdir().unwrap();
        let dir = Dir::own(top.path());
        add(&dir, &["a"]);
        let mut seen = 0;
        for at in 0..10 {
            let faulty = Faulty::new(at, errno, false).answering();
            let layer = format!("b{at}");
            let mut commits = Commits::lock(&dir, Arc::new(faulty)).unwrap();
            let made = commits.add(commit(&layer));
            let is_there = layers(&dir).contains(&layer);
            match made {
                Ok(made) => assert!(made && is_there, "{at}"),
                Err(_) => assert!(!is_there, "{at}"),
            }
            seen += usize::from(is_there);
        }
        // Only before the name is given is it too late.
        assert!(seen >= 7, "{seen}");
        assert_eq!(layers(&dir).len(), 1 + seen);
        let left = std::fs::read_dir(dir.path().join(NAME)).unwrap();
        let hidden = left.filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_string_lossy().starts_with('.')
        });
        // The first name stays where it could not be removed, and the commit counts with both.
        assert!(hidden.count() <= 1);
    }
}

#[test]
fn a_second_name_counts_only_beside_the_first() {
    let top = tempfile::tempdir().unwrap();
    let dir = Dir::own(&top.path().join("s.checkouts"));
    add(&dir, &["a"]);
    let own = path(&dir, 1);
    // As it is when its process dies between naming it and removing the first name.
    let first = own.with_file_name(format!(".{}.0123", numbered::object(1)));
    std::fs::hard_link(&own, &first).unwrap();
    assert_eq!(layers(&dir), ["a"]);
    add(&dir, &["b"]);
    assert_eq!(layers(&dir), ["a", "b"]);
    // A day later it is removed.
    let place = CommitDirectory::new(dir.below(NAME).unwrap(), Arc::new(Disk));
    place.tidy();
    assert!(first.exists());
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(90_000);
    let file = std::fs::File::options().write(true).open(&first).unwrap();
    file.set_modified(old).unwrap();
    place.tidy();
    assert!(!first.exists() && own.exists());
    for elsewhere in [top.path().join("x"), own.with_file_name("x")] {
        std::fs::hard_link(&own, &elsewhere).unwrap();
        let refused = read(&dir).unwrap_err();
        assert!(refused.message.contains("not trusted"), "{refused}");
        std::fs::remove_file(elsewhere).unwrap();
    }
    assert_eq!(layers(&dir), ["a", "b"]);
}

#[test]
fn a_name_is_given_once() {
    let top = tempfile::tempdir().unwrap();
    let dir = Dir::own(top.path());
    let place = CommitDirectory::new(dir.clone(), Arc::new(Disk));
    assert!(matches!(place.create("a", b"1").unwrap(), Creation::Made));
    assert!(matches!(place.create("a", b"2").unwrap(), Creation::Taken));
    assert_eq!(place.read("a").unwrap().unwrap(), b"1");
    place.replace("a", b"3").unwrap();
    assert_eq!(place.read("a").unwrap().unwrap(), b"3");
    assert_eq!(place.names_from("").unwrap(), ["a"]);
    assert!(place.names_from("b").unwrap().is_empty());
    place.remove("a").unwrap();
    place.remove("a").unwrap();
    assert!(place.read("a").unwrap().is_none());
    assert_eq!(dir.names().unwrap().len(), 0);
}

#[test]
fn a_record_that_needs_what_is_unknown_is_refused() {
    let top = tempfile::tempdir().unwrap();
    let dir = Dir::own(top.path());
    add(&dir, &["a"]);
    let mut newer = commit("b");
    newer.parents = vec![read(&dir).unwrap()[0].id.clone()];
    newer.other.insert("needs".into(), vec!["wings"].into());
    std::fs::write(path(&dir, 2), newer.print().unwrap() + "\n").unwrap();
    let refused = read(&dir).unwrap_err();
    assert_eq!(refused.errno(), libc::EOPNOTSUPP);
    assert!(refused.message.contains("needs wings"), "{refused}");
}
