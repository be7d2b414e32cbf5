//! Places in memory: a plain one that counts requests, one that fails and loses responses, and one that breaks its
//! promises.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::super::bucket::CommitBucket;
use super::super::numbered::Committer;
use super::super::place::CommitPlace;
use super::*;
use npyfs_io::remote::Prefix;

/// Objects in memory.
#[derive(Default)]
pub(super) struct Memory {
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    /// The number of read and list requests.
    pub(super) asked: AtomicU64,
    /// Whether it overwrites objects that exist.
    overwrites: bool,
}

impl CommitPlace for Memory {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(self.objects.lock().get(name).cloned())
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<Creation> {
        let mut objects = self.objects.lock();
        if !self.overwrites && objects.contains_key(name) {
            return Ok(Creation::Taken);
        }
        objects.insert(name.to_owned(), bytes.to_owned());
        Ok(Creation::Made)
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut objects = self.objects.lock();
        objects.insert(name.to_owned(), bytes.to_owned());
        Ok(())
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.objects.lock().remove(name);
        Ok(())
    }

    fn names_from(&self, name: &str) -> Result<Vec<String>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let objects = self.objects.lock();
        Ok(objects
            .range(name.to_owned()..)
            .map(|(name, _)| name.clone())
            .collect())
    }

    fn path(&self, name: &str) -> String {
        format!("memory/{name}")
    }
}

fn prefix() -> Prefix {
    let objects = Arc::new(object_store::memory::InMemory::new());
    let address = "s3://b/x".to_owned();
    let path = "x.checkouts/commits".into();
    Prefix::new(objects, path, address, Duration::from_secs(60))
}

/// A bucket in memory.
pub(super) fn bucket() -> Arc<dyn CommitPlace> {
    Arc::new(CommitBucket::new(prefix(), None))
}

/// Returns a committer that has read all commits.
pub(super) fn committer(place: &Arc<dyn CommitPlace>) -> Result<Committer> {
    let (numbered, all) = NumberedCommits::read(place.clone())?;
    Committer::new(numbered, all)
}

#[test]
fn a_hundred_thousand_commits_are_opened_in_a_few_requests() {
    let memory = Arc::new(Memory::default());
    let place: Arc<dyn CommitPlace> = memory.clone();
    let mut last = committer(&place).unwrap();
    let most = 100_000;
    for number in 1..=most {
        last.tried_again();
        assert!(last.add(commit(&format!("c{number}"))).unwrap());
        let few = match number {
            99_999 => 9 * 3 + 99,
            100_000 => 1,
            250 => 2 + 50,
            _ => continue,
        };
        let before = memory.asked.load(Ordering::Relaxed);
        let read = committer(&place).unwrap();
        let asked = memory.asked.load(Ordering::Relaxed) - before;
        // The hint first, and the next name at the end.
        assert_eq!(asked, few + 2, "{number}");
        assert_eq!(read.all(), last.all());
    }
    let objects = memory.objects.lock();
    let bytes = |ending: &str| -> usize {
        let named = objects.iter().filter(|(name, _)| name.ends_with(ending));
        named.map(|(_, bytes)| bytes.len()).sum()
    };
    assert!(bytes(".checkpoint") < 5 * bytes(".json"));
}

#[test]
fn a_bucket_creates_each_object_once() {
    let place = bucket();
    assert!(place.read("a").unwrap().is_none());
    assert!(matches!(place.create("a", b"1").unwrap(), Creation::Made));
    assert!(matches!(place.create("a", b"2").unwrap(), Creation::Taken));
    assert_eq!(place.read("a").unwrap().unwrap(), b"1");
    place.replace("b", b"3").unwrap();
    place.replace(".c", b"3").unwrap();
    assert_eq!(place.names_from("").unwrap(), ["a", "b"]);
    assert_eq!(place.names_from("b").unwrap(), ["b"]);
    place.remove("a").unwrap();
    place.remove("a").unwrap();
    assert!(place.read("a").unwrap().is_none());
    assert_eq!(place.path("a"), "s3://b/x/a");
    for layer in ["a", "b"] {
        assert!(committer(&place).unwrap().add(commit(layer)).unwrap());
    }
    let all = committer(&place).unwrap();
    assert_eq!(all.all().len(), 2);
    // Of two committers at the same number, the second reads the commit of the first.
    let (mut one, mut two) = (committer(&place).unwrap(), committer(&place).unwrap());
    assert!(one.add(commit("c")).unwrap());
    assert!(!two.add(commit("d")).unwrap());
    assert_eq!(two.all(), one.all());
    assert!(two.add(commit("d")).unwrap());
}

#[test]
fn what_is_fetched_of_a_bucket_is_in_the_copy() {
    let prefix = prefix();
    let far: Arc<dyn CommitPlace> = Arc::new(CommitBucket::new(prefix.clone(), None));
    let mut last = committer(&far).unwrap();
    for number in 1..=120 {
        last.tried_again();
        assert!(last.add(commit(&format!("c{number}"))).unwrap());
    }
    let name = numbered::object;
    let whole = prefix.read(&name(103)).unwrap().unwrap();
    prefix.put(&name(103), b"{}\n").unwrap();
    prefix.put("more", b"").unwrap();
    let top = tempfile::tempdir().unwrap();
    let copy = || CommitDirectory::new(Dir::own(top.path()), Arc::new(Disk));
    let place = CommitBucket::new(prefix.clone(), Some(copy()));
    let mut names: Vec<_> = (101..=130).map(name).collect();
    names.push("more".to_owned());
    place.fetch(&names);
    // Neither what is no commit, nor what is not numbered, nor what is not there.
    let mut there: Vec<_> = (101..=120).map(name).collect();
    there.remove(2);
    assert_eq!(copy().names_from("").unwrap(), there);
    prefix.remove(&name(101)).unwrap();
    assert!(place.read(&name(101)).unwrap().is_some());
    prefix.put(&name(103), &whole).unwrap();
    let place: Arc<dyn CommitPlace> = Arc::new(place);
    assert_eq!(committer(&place).unwrap().all(), last.all());
}

/// A place that creates an object twice for the first request, does not answer the first look at the object, and
/// refuses from then on to create any.
struct Twice {
    place: Memory,
    created: AtomicU64,
    looked: AtomicU64,
}

impl CommitPlace for Twice {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let is_first = self.created.load(Ordering::Relaxed) == 1
            && self.looked.fetch_add(1, Ordering::Relaxed) == 0;
        match is_first {
            true => Err(Error::new(ErrorKind::Os(libc::EIO), "503")),
            false => self.place.read(name),
        }
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<Creation> {
        match self.created.fetch_add(1, Ordering::Relaxed) {
            0 => {
                self.place.create(name, bytes)?;
                self.place.create(name, bytes)
            }
            _ => Err(Error::new(ErrorKind::Os(libc::EACCES), "403")),
        }
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.place.replace(name, bytes)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.place.remove(name)
    }

    fn names_from(&self, name: &str) -> Result<Vec<String>> {
        self.place.names_from(name)
    }

    fn wait(&self, _time: Duration) {}

    fn path(&self, name: &str) -> String {
        self.place.path(name)
    }
}

#[test]
fn a_name_that_is_taken_may_be_the_commits_own_whatever_is_said_later() {
    let place: Arc<dyn CommitPlace> = Arc::new(Twice {
        place: Memory::default(),
        created: AtomicU64::new(0),
        looked: AtomicU64::new(0),
    });
    let (numbered, all) = NumberedCommits::read(place.clone()).unwrap();
    let until = std::time::Instant::now() + Duration::from_secs(60);
    assert!(all.is_empty() && numbered.put(1, &commit("a"), until).unwrap());
    assert_eq!(committer(&place).unwrap().all().len(), 1);
}

#[test]
fn a_place_that_overwrites_is_refused_before_the_first_commit() {
    let memory = Arc::new(Memory {
        overwrites: true,
        ..Memory::default()
    });
    let place: Arc<dyn CommitPlace> = memory.clone();
    let refused = committer(&place).unwrap().add(commit("a")).unwrap_err();
    assert_eq!(refused.errno(), libc::EOPNOTSUPP);
    assert!(
        refused.message.contains("create only what is not there"),
        "{refused}"
    );
    assert!(memory.objects.lock().is_empty());
}
