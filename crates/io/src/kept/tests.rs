use std::os::unix::fs::{FileExt, PermissionsExt};

use super::copy::{BLOCK, Spoiled};
use super::*;
use crate::content::{Content, InMemory};

const LEN: u64 = 2 * BLOCK + 77;

fn content() -> Arc<dyn Content> {
    Arc::new(InMemory((0..LEN).map(|n| (n % 251) as u8).collect()))
}

fn about() -> About {
    About {
        store: "s.h5".to_owned(),
        path: "a.npy".to_owned(),
    }
}

fn dir(limit: u64) -> (tempfile::TempDir, Arc<KeptDir>) {
    let parent = tempfile::tempdir().unwrap();
    let dir = KeptDir::open(&parent.path().join("kept"), limit).unwrap();
    (parent, Arc::new(dir))
}

fn keep(dir: &Arc<KeptDir>, key: &str) -> KeptCopy {
    let making = dir.begin(key, LEN).unwrap();
    assert!(fill(&making, &*content(), |_| true).unwrap());
    making.finish(about()).unwrap()
}

fn names(dir: &KeptDir) -> Vec<String> {
    let mut names = dir.blobs.dir.names().unwrap();
    names.retain(|name| !name.starts_with('.') && name != "lock");
    names.sort();
    names
}

fn bytes(copy: &KeptCopy) -> Result<Vec<u8>, Spoiled> {
    let mut all = vec![0; LEN as usize];
    copy.read_at(0, &mut all).map(|()| all)
}

#[test]
fn a_copy_is_found_and_read_by_others() {
    let (_parent, dir) = dir(1 << 30);
    assert!(dir.find("k", LEN, None).is_none());
    let made = keep(&dir, "k");
    assert!(made.is_whole() && names(&dir) == ["k.npy", "k.sums"]);
    assert!(matches!(dir.begin("k", LEN), Err(NotKept::Taken)));
    assert_eq!(names(&dir), ["k.npy", "k.sums"]);
    let mut want = vec![0; LEN as usize];
    content().read_at(0, &mut want).unwrap();
    assert_eq!(bytes(&made).unwrap(), want);
    // The handle that made the copy knows it as checked; another handle does not.
    let found = dir.find("k", LEN, None).unwrap();
    assert!(!found.is_whole());
    let mut part = [0; 100];
    found.read_at(BLOCK - 50, &mut part).unwrap();
    assert_eq!(part, want[BLOCK as usize - 50..][..100]);
    assert!(!found.is_whole());
    let again = dir.find("k", LEN, Some(found.checked())).unwrap();
    assert_eq!(again.check_next(0, &mut Vec::new()).unwrap(), Some(3));
    assert!(again.is_whole() && found.is_whole());
    assert!(dir.find("k", LEN + 1, None).is_none());
    let path = dir.path().join("k.npy");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn what_was_read_is_handed_on_in_parts() {
    let (_parent, dir) = dir(1 << 30);
    let mut want = vec![0; LEN as usize];
    content().read_at(0, &mut want).unwrap();
    let making = dir.begin("k", LEN).unwrap();
    let add = |from: u64, to: u64| {
        let (start, end) = (from as usize, to as usize);
        making.add(from, &want[start..end]).unwrap()
    };
    // Across the end of a block, twice, and with a hole.
    assert_eq!(add(BLOCK - 10, BLOCK + 90), 100);
    assert_eq!(add(BLOCK - 10, BLOCK + 90), 0);
    assert_eq!(add(BLOCK + 100, 2 * BLOCK), BLOCK - 100);
    assert_eq!(making.missing(0), Some(0));
    assert_eq!(making.missing(1), Some(1));
    assert!(making.finish(about()).is_err());
    assert_eq!(add(BLOCK + 80, BLOCK + 100), 20);
    assert_eq!(making.missing(1), Some(2));
    // Existing bytes are not written again, and nothing is written past the end.
    assert_eq!(add(0, 2 * BLOCK), BLOCK);
    assert_eq!(
        making
            .add(2 * BLOCK, &[&want[2 * BLOCK as usize..], b"more"].concat())
            .unwrap(),
        77
    );
    assert_eq!(making.missing(0), None);
    assert_eq!(making.add(LEN, b"more").unwrap(), 0);
    let copy = making.finish(about()).unwrap();
    assert_eq!(bytes(&copy).unwrap(), want);
    let found = dir.find("k", LEN, None).unwrap();
    assert_eq!(bytes(&found).unwrap(), want);
}

#[test]
fn a_copy_that_was_changed_or_cut_is_never_read() {
    let (_parent, dir) = dir(1 << 30);
    let checked = keep(&dir, "k").checked().clone();
    let file = File::options()
        .write(true)
        .open(dir.path().join("k.npy"))
        .unwrap();
    file.write_all_at(&[255], LEN - 1).unwrap();
    let found = dir.find("k", LEN, Some(&checked)).unwrap();
    assert!(!found.is_whole());
    let mut first = [0; 10];
    found.read_at(0, &mut first).unwrap();
    assert!(bytes(&found).is_err() && found.is_spoiled());
    assert!(found.read_at(0, &mut first).is_err());
    file.set_len(LEN - 1).unwrap();
    assert!(dir.find("k", LEN, None).is_none());
    // It is made again.
    keep(&dir, "k");
    assert!(dir.find("k", LEN, None).is_some());
    std::fs::write(dir.path().join("k.sums"), b"x").unwrap();
    assert!(dir.find("k", LEN, None).is_none());
    keep(&dir, "k");
}

#[test]
fn what_is_half_made_goes() {
    let (_parent, dir) = dir(1 << 30);
    let making = dir.begin("k", LEN).unwrap();
    assert!(matches!(dir.begin("k", LEN), Err(NotKept::Taken)));
    let other = KeptDir::open(dir.path(), 1 << 30).unwrap();
    assert_eq!(names(&other), ["k.part"]);
    assert!(making.finish(about()).is_err());
    drop(making);
    assert_eq!(names(&dir), Vec::<String>::new());
    // Left by processes that were killed.
    for name in ["a.part", "b.sums", "c.sums.part"] {
        std::fs::write(dir.path().join(name), b"x").unwrap();
    }
    keep(&dir, "a");
    KeptDir::open(dir.path(), 1 << 30).unwrap();
    assert_eq!(names(&dir), ["a.npy", "a.sums"]);
}

#[test]
fn what_was_used_least_goes_first() {
    let (_parent, dir) = dir(8 * BLOCK);
    for key in ["a", "b", "c"] {
        keep(&dir, key);
    }
    for (key, ago) in [("a", 100), ("b", 300), ("c", 200)] {
        let sums = File::options()
            .write(true)
            .open(dir.path().join(format!("{key}.sums")));
        let used = SystemTime::now() - Duration::from_secs(ago);
        sums.unwrap().set_modified(used).unwrap();
    }
    let open = dir.find("c", LEN, None).unwrap();
    dir.touch("b");
    keep(&dir, "d");
    assert_eq!(
        names(&dir),
        ["b.npy", "b.sums", "c.npy", "c.sums", "d.npy", "d.sums"]
    );
    drop(open);
    let all = dir.begin("e", 9 * BLOCK);
    assert!(matches!(all, Err(NotKept::NoRoom { .. })));
    assert_eq!(dir.list().unwrap().len(), 3);
    let listed = dir.list().unwrap();
    assert!(
        listed
            .iter()
            .all(|copy| copy.about == Some(about()) && !copy.in_use)
    );
}
