//! Many committers at places that fail, lose responses and die: no commit is lost, duplicated or incomplete.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::super::place::CommitPlace;
use super::places::{Memory, bucket, committer};
use super::*;

/// Random numbers that repeat for the same seed.
pub(super) struct Random(pub(super) AtomicU64);

impl Random {
    pub(super) fn below(&self, most: u64) -> u64 {
        let step = |state: u64| {
            state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407)
        };
        let old = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |state| {
                Some(step(state))
            });
        (step(old.unwrap()) >> 33) % most
    }
}

/// A place that fails now and then; the failed request may or may not have taken effect.
pub(super) struct Faulty {
    pub(super) place: Arc<dyn CommitPlace>,
    pub(super) random: Random,
    /// One of this many requests fails.
    pub(super) rate: u64,
}

impl Faulty {
    fn fails(&self) -> bool {
        self.random.below(self.rate) == 0
    }

    fn error() -> Error {
        Error::new(ErrorKind::Os(libc::EIO), "503")
    }
}

impl CommitPlace for Faulty {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match self.fails() {
            true => Err(Self::error()),
            false => self.place.read(name),
        }
    }

    fn fetch(&self, names: &[String]) {
        if !self.fails() {
            self.place.fetch(names);
        }
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<Creation> {
        if !self.fails() {
            return self.place.create(name, bytes);
        }
        match self.random.below(4) {
            // 503, and the request had no effect.
            0 => Ok(Creation::Unclear(Self::error())),
            // The disk is full, permanently.
            1 => Err(Self::error()),
            // The request took effect, and its response was lost.
            2 => self
                .place
                .create(name, bytes)
                .map(|_| Creation::Unclear(Self::error())),
            // The request was repeated on the way and took effect twice.
            _ => {
                self.place.create(name, bytes)?;
                self.place.create(name, bytes)
            }
        }
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        match (self.fails(), self.random.below(3)) {
            (true, 0) => Err(Self::error()),
            (true, 1) => self.place.replace(name, bytes).and(Err(Self::error())),
            (true, _) => self.place.replace(name, &bytes[..bytes.len() / 2]),
            (false, _) => self.place.replace(name, bytes),
        }
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.place.remove(name)
    }

    fn names_from(&self, name: &str) -> Result<Vec<String>> {
        match self.fails() {
            true => Err(Self::error()),
            false => self.place.names_from(name),
        }
    }

    fn wait(&self, time: Duration) {
        self.place.wait(time);
    }

    fn path(&self, name: &str) -> String {
        self.place.path(name)
    }
}

/// The outcome of each layer that a committer tried to commit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Told {
    Done,
    Not,
    Unknown,
}

/// Commits layers in sequence, each until it is committed or fails.
fn commit_all(
    place: &Arc<dyn CommitPlace>,
    names: &[String],
    told: &Mutex<BTreeMap<String, Told>>,
) {
    for name in names {
        let result = (|| {
            let mut own = committer(place)?;
            while !own.add(commit(name))? {}
            Ok::<_, Error>(())
        })();
        let said = match result {
            Ok(()) => Told::Done,
            Err(e) if e.message.contains("is not known") => Told::Unknown,
            Err(_) => Told::Not,
        };
        told.lock().insert(name.clone(), said);
    }
}

/// Runs several committers at once, and compares the commits with the outcomes reported to the committers.
fn run(place: &Arc<dyn CommitPlace>, seed: u64, rate: u64, count: usize, each: usize) {
    let told = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for who in 0..count {
            let (told, inner) = (&told, place.clone());
            let faulty: Arc<dyn CommitPlace> = Arc::new(Faulty {
                place: inner,
                random: Random(AtomicU64::new(seed * 1000 + who as u64)),
                rate,
            });
            let names: Vec<String> = (0..each).map(|n| format!("c{who}-{n}")).collect();
            scope.spawn(move || commit_all(&faulty, &names, told));
        }
    });
    let told = told.into_inner();
    assert_eq!(told.len(), count * each);
    check(place, seed, &told);
    if rate > 1000 {
        assert!(told.values().all(|&told| told == Told::Done), "{told:?}");
    }
}

/// Compares the commits of a place with the outcomes reported to the committers.
pub(super) fn check(place: &Arc<dyn CommitPlace>, seed: u64, told: &BTreeMap<String, Told>) {
    let all = committer(place).unwrap();
    let all = all.all().read();
    let mut found = BTreeMap::new();
    for commit in all {
        *found.entry(commit.layer.clone()).or_insert(0) += 1;
    }
    for (name, told) in told {
        let times = found.remove(name).unwrap_or(0);
        match told {
            Told::Done => assert_eq!(times, 1, "seed {seed}: {name}"),
            Told::Not => assert_eq!(times, 0, "seed {seed}: {name}"),
            Told::Unknown => assert!(times <= 1, "seed {seed}: {name}"),
        }
    }
    assert!(found.is_empty(), "seed {seed}: {found:?}");
    assert!(all.windows(2).all(|two| two[0].time < two[1].time));
}

#[test]
fn whatever_a_place_does_each_commit_is_there_as_often_as_was_said() {
    for seed in 0..30 {
        let rate = [4, 10, 50][seed as usize % 3];
        run(
            &(Arc::new(Memory::default()) as Arc<dyn CommitPlace>),
            seed,
            rate,
            4,
            20,
        );
    }
}

#[test]
fn in_a_bucket_each_commit_is_there_as_often_as_was_said() {
    for seed in 0..4 {
        run(&bucket(), seed, [4, 10, 50, 1 << 40][seed as usize], 8, 15);
    }
}

#[test]
fn in_a_directory_each_commit_is_there_as_often_as_was_said() {
    for seed in 0..4 {
        let top = tempfile::tempdir().unwrap();
        let dir = CommitDirectory::new(Dir::own(top.path()), Arc::new(Disk));
        run(
            &(Arc::new(dir) as Arc<dyn CommitPlace>),
            seed,
            [4, 10, 50, 1 << 40][seed as usize],
            4,
            25,
        );
    }
}

#[test]
fn clocks_that_disagree_by_hours_leave_times_in_order() {
    let place: Arc<dyn CommitPlace> = Arc::new(Memory::default());
    let now = crate::checkout::records::index::nanoseconds(std::time::SystemTime::now());
    let hours = 5 * 3600 * 1_000_000_000;
    for time in [now + hours, 0, 0, now + 2 * hours, 0] {
        let mut own = committer(&place).unwrap();
        let new = LayerCommit {
            time,
            ..commit("a")
        };
        assert!(own.add(new).unwrap());
    }
    let all = committer(&place).unwrap();
    let times: Vec<i64> = all.all().read().iter().map(|commit| commit.time).collect();
    let wanted = [
        now + hours,
        now + hours + 1,
        now + hours + 2,
        now + 2 * hours,
        now + 2 * hours + 1,
    ];
    assert_eq!(times, wanted);
}
