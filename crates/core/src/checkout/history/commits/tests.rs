//! Tests of commits in a directory.

mod model;
mod places;
mod simulation;

use super::place::{CommitPlace as _, Creation};
use super::*;
use crate::checkout::records::record_log::LogRecord as _;
use crate::store::against::digest;
use npyfs_io::storage::faulty::Faulty;

fn commit(layer: &str) -> LayerCommit {
    LayerCommit {
        layer: layer.into(),
        ..LayerCommit::default()
    }
}

/// Commits layers with these names, each like a separate process.
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
        assert_eq!(read(&dir).unwrap(), commits.all().read());
    }
    let read = read(&dir).unwrap();
    assert_eq!(read[0].subject(), "first");
    assert!(read[0].parents.is_empty());
    assert_eq!(read[1].parents, [read[0].id.clone()]);
    assert!(read[0].write != read[1].write && read[0].write.len() == 32);
    let text = std::fs::read_to_string(path(&dir, 1)).unwrap();
    let json = text.strip_suffix('\n').unwrap();
    let opening = format!(r#"{{"form":"npyfs commit 1","id":"{}","#, read[0].id);
    let rest = format!("{{{}", json.strip_prefix(&opening).unwrap());
    assert_eq!(record::id_of(json), Some(digest(rest.as_bytes())));
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
        // No commit can be made on top of it, either.
        assert!(Commits::lock(&dir, Arc::new(Disk)).is_err());
    };
    for number in 1..=3 {
        let whole = std::fs::read(path(&dir, number)).unwrap();
        let text = String::from_utf8(whole.clone()).unwrap();
        let layer = ["a", "b", "c"][number as usize - 1];
        let edited = text.replace(&format!("\"layer\":\"{layer}\""), "\"layer\":\"x\"");
        assert_ne!(text, edited);
        let form = r#"{"form":"npyfs commit 1","#;
        let without_form = format!("{{{}", text.strip_prefix(form).unwrap());
        let without_id = format!("{form}{}", &without_form[8 + 32 + 1..]);
        let newer = text.replacen("commit 1", "commit 2", 1);
        let own = |text: &str| -> Vec<u8> { text.into() };
        for (bytes, words) in [
            (own(&edited), "is not what its id says"),
            (own(&without_form), "does not begin with"),
            (own(&without_id), "has no id"),
            (own(&newer), "a newer npyfs: form 2"),
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
    // Another commit in place of the first one.
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
    std::fs::write(&hint, r#"{"form":"npyfs newest 2","number":999}"#).unwrap();
    assert_eq!(layers(&dir), names);
    std::fs::write(&hint, r#"{"form":"npyfs newest 1","number":220,"id":""}"#).unwrap();
    assert_eq!(layers(&dir), names);
    // The next committer creates them again.
    add(&dir, &["last"]);
    assert!(checkpoints.iter().all(|path| path.is_file()));
    // A checkpoint with other commits is ignored.
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
            numbered::useless(&name, newest).is_none()
        };
        let there = (1..=newest / 100).map(|hundreds| hundreds * 100);
        assert_eq!(there.filter(stays).collect::<Vec<_>>(), kept);
    }
    // A checkpoint of commits of which this reader does not know all yet.
    assert!(numbered::useless(&format!("{:020}.checkpoint", 500), 450).is_none());
    for name in [
        "newest",
        "100.checkpoint",
        "x.checkpoint",
        "notes",
        &numbered::object(1),
    ] {
        assert_eq!(numbered::useless(name, 5000), None, "{name}");
    }
    assert!(numbered::useless(".probe-1", 0).is_some());
}

#[test]
fn a_list_of_an_older_version_is_refused_by_name() {
    for old in ["npyfs commits 1\n", "npyfs commits 2\n", ""] {
        let top = tempfile::tempdir().unwrap();
        let dir = Dir::own(top.path());
        let list = dir.path().join(NAME);
        std::fs::write(&list, old).unwrap();
        let locked = Commits::lock(&dir, Arc::new(Disk)).map(drop);
        for refused in [
            read(&dir).map(drop),
            read_on(&dir, &mut CommitRecords::default()),
            locked,
        ] {
            let refused = refused.unwrap_err();
            let named = format!("{}: a list of commits", list.display());
            assert!(refused.message.starts_with(&named), "{refused}");
        }
        assert_eq!(std::fs::read_to_string(&list).unwrap(), old);
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
        // Only before the commit has its name is it too late.
        assert!(seen >= 7, "{seen}");
        assert_eq!(layers(&dir).len(), 1 + seen);
        let left = std::fs::read_dir(dir.path().join(NAME)).unwrap();
        let hidden = left.filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_string_lossy().starts_with('.')
        });
        // The temporary name may remain; the commit counts with both names.
        assert!(hidden.count() <= 1);
    }
}

#[test]
fn a_second_name_counts_only_beside_the_first() {
    let top = tempfile::tempdir().unwrap();
    let dir = Dir::own(&top.path().join("s.checkouts"));
    add(&dir, &["a"]);
    let own = path(&dir, 1);
    // The state after a process died between naming the file and removing its temporary name.
    let first = own.with_file_name(format!(".{}.0123", numbered::object(1)));
    std::fs::hard_link(&own, &first).unwrap();
    assert_eq!(layers(&dir), ["a"]);
    add(&dir, &["b"]);
    assert_eq!(layers(&dir), ["a", "b"]);
    // A day later the temporary name is removed.
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

#[test]
fn what_is_known_is_not_read_and_checkpoints_are_whole_nevertheless() {
    let top = tempfile::tempdir().unwrap();
    let dir = Dir::own(top.path());
    let mut last = None;
    for number in 1..=1000 {
        let mut commits = Commits::lock_from(&dir, Arc::new(Disk), last).unwrap();
        assert_eq!(commits.all().len(), number - 1);
        assert!(commits.all().read().len() <= 1, "{number}");
        assert!(commits.add(commit(&format!("l{number}"))).unwrap());
        let id = CommitId::parse(commits.all().last_id().unwrap());
        last = Some((number, id.unwrap()));
    }
    let checkpoint = dir
        .path()
        .join(NAME)
        .join("00000000000000001000.checkpoint");
    assert_eq!(
        std::fs::read_to_string(checkpoint).unwrap().lines().count(),
        1001
    );
    assert_eq!(read(&dir).unwrap().len(), 1000);
    // Of another history everything is read.
    for other in [
        (1000, CommitId::parse(&"0".repeat(32)).unwrap()),
        (1001, last.unwrap().1),
    ] {
        let commits = Commits::lock_from(&dir, Arc::new(Disk), Some(other)).unwrap();
        assert_eq!(commits.all().read().len(), 1000);
    }
    std::fs::remove_file(path(&dir, 1000)).unwrap();
    let gone = read_from(&dir, (999, last.unwrap().1));
    assert!(gone.unwrap().is_none());
}
