//! Tests of `dir`.

use std::os::unix::fs::symlink;
use std::process::Command;

use super::*;

fn place() -> (tempfile::TempDir, Dir) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("in")).unwrap();
    std::fs::write(dir.path().join("victim"), "theirs").unwrap();
    let own = Dir::own(&dir.path().join("in"));
    (dir, own)
}

/// Asserts that every way to open a name refuses it, with the reason `why`.
fn refuses(dir: &Dir, name: &str, why: &str) {
    let opened = [
        dir.read(name).err(),
        dir.write(name).err(),
        dir.write_or_create(name).err(),
        dir.metadata(name).err(),
    ];
    for error in opened {
        let error = error.unwrap();
        let path = dir.path().join(name);
        assert!(error.message.contains(why), "{error}");
        assert!(error.message.contains(path.to_str().unwrap()), "{error}");
    }
    assert!(dir.create(name).is_err());
}

#[test]
fn links_fifos_and_second_names_are_refused() {
    let (top, dir) = place();
    let (victim, inside) = (top.path().join("victim"), dir.path());
    symlink(&victim, inside.join("link")).unwrap();
    symlink("../victim", inside.join("relative")).unwrap();
    symlink("/nowhere", inside.join("dangling")).unwrap();
    std::fs::hard_link(&victim, inside.join("hard")).unwrap();
    let fifo = Command::new("mkfifo").arg(inside.join("fifo")).status();
    assert!(fifo.unwrap().success());
    std::fs::create_dir(inside.join("folder")).unwrap();
    for name in ["link", "relative", "dangling"] {
        refuses(&dir, name, "a symbolic link");
    }
    refuses(&dir, "hard", "a hard link");
    refuses(&dir, "fifo", "no regular file");
    assert!(dir.read("folder").is_err() && dir.metadata("folder").is_err());
    assert_eq!(dir.read("none").unwrap_err().errno(), libc::ENOENT);
    assert_eq!(std::fs::read(&victim).unwrap(), b"theirs");
    // `remove` removes the link itself.
    dir.remove("link").unwrap();
    assert!(victim.is_file());
    for name in ["..", ".", "", "a/b", "../victim", "/etc/passwd"] {
        assert!(
            dir.read(name).is_err() && dir.create(name).is_err(),
            "{name:?}"
        );
        assert!(
            dir.remove(name).is_err() && dir.below(name).is_err(),
            "{name:?}"
        );
    }
}

#[test]
fn a_directory_that_is_a_link_is_not_entered_nor_emptied() {
    let (top, dir) = place();
    let away = top.path().join("away");
    std::fs::create_dir(&away).unwrap();
    std::fs::write(away.join("file"), "theirs").unwrap();
    symlink(&away, dir.path().join("layer")).unwrap();
    for refused in [
        dir.below("layer").map(drop),
        dir.make("layer").map(drop),
        dir.remove_all("layer"),
        Dir::open(&dir.path().join("layer"), dir.rights(), false).map(drop),
    ] {
        assert!(refused.unwrap_err().message.contains("a symbolic link"));
    }
    let (own, made) = dir.make("own").unwrap();
    assert!(made && !dir.make("own").unwrap().1 && own.is_in_place());
    symlink(&away, own.path().join("link")).unwrap();
    // The descriptor counts, wherever the path leads now.
    std::fs::rename(own.path(), dir.path().join("moved")).unwrap();
    symlink(&away, own.path()).unwrap();
    assert!(own.create("file").is_ok() && !own.is_in_place());
    dir.remove_all("moved").unwrap();
    assert_eq!(std::fs::read(away.join("file")).unwrap(), b"theirs");
}

#[test]
fn what_belongs_to_strangers_is_refused() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("NOT TESTED: needs root: only root can give files away");
        return;
    }
    let (_top, dir) = place();
    let give = |name: &str| {
        let path = dir.path().join(name);
        std::os::unix::fs::chown(path, Some(12345), Some(12345)).unwrap();
    };
    dir.create("file").unwrap();
    dir.make("layer").unwrap();
    give("file");
    give("layer");
    for error in [
        dir.read("file").err(),
        dir.metadata("file").err(),
        dir.below("layer").err(),
        dir.make("layer").err(),
    ] {
        let error = error.unwrap();
        assert_eq!(error.errno(), libc::EACCES);
        assert!(error.message.contains("user 12345"), "{error}");
    }
}

#[test]
fn one_that_is_not_held_is_checked_each_time() {
    let (_top, dir) = place();
    let (own, _) = dir.make("own").unwrap();
    own.create("file").unwrap();
    let unheld = dir.below_later("own");
    assert!(unheld.read("file").is_ok() && unheld.is_in_place());
    std::fs::rename(own.path(), dir.path().join("moved")).unwrap();
    symlink(dir.path().join("moved"), own.path()).unwrap();
    assert!(unheld.read("file").is_err());
}

#[test]
fn a_file_without_a_name_gets_one() {
    let (_top, dir) = place();
    let file = dir.unnamed().unwrap();
    assert!(dir.names().unwrap().is_empty());
    dir.link(&file, "named").unwrap();
    assert!(dir.leads_to("named", &file));
    assert_eq!(
        dir.names().unwrap(),
        [("named".into(), FileType::RegularFile)]
    );
}
