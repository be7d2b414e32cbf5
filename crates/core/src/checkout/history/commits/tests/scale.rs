//! Many hosts and a long history: the real protocol over objects in memory that answer late and fail. By hand:
//!
//!     cargo test --release -p npyfs-core a_thousand_hosts -- --ignored --nocapture
//!
//! NPYFS_SCALE = hosts, commits, hosts at work at the same time, and milliseconds of an answer: `1000 100000 16 1`.
//! A host reads all commits, makes its share of new ones, and ends; another one begins in its place.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::super::commit_place::CommitPlace;
use super::places::{Memory, committer};
use super::*;

/// One of this many requests fails, half of them after they took effect.
const FAILS: u64 = 500;

/// Objects that answer after a while.
struct Far {
    memory: Memory,
    answers: Duration,
    asked: AtomicU64,
}

impl Far {
    fn wait(&self) -> u64 {
        std::thread::sleep(self.answers);
        self.asked.fetch_add(1, Ordering::Relaxed) % FAILS
    }
}

fn unavailable() -> Error {
    Error::new(ErrorKind::Os(libc::EIO), "503")
}

impl CommitPlace for Far {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        // The client of a bucket asks again by itself.
        self.wait();
        self.memory.read(name)
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<Creation> {
        match self.wait() {
            0 => Ok(Creation::Unclear(unavailable())),
            1 => self
                .memory
                .create(name, bytes)
                .map(|_| Creation::Unclear(unavailable())),
            _ => self.memory.create(name, bytes),
        }
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        match self.wait() {
            0 => Err(unavailable()),
            _ => self.memory.replace(name, bytes),
        }
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.wait();
        self.memory.remove(name)
    }

    fn names_from(&self, name: &str) -> Result<Vec<String>> {
        self.wait();
        self.memory.names_from(name)
    }

    fn path(&self, name: &str) -> String {
        self.memory.path(name)
    }
}

/// What one commit took, and what it was on top of.
struct Taken {
    number: usize,
    seconds: f64,
    tries: usize,
}

fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() - 1) * percent / 100]
}

#[test]
#[ignore = "by hand: minutes"]
fn a_thousand_hosts_make_a_hundred_thousand_commits() {
    let wanted = std::env::var("NPYFS_SCALE").unwrap_or_else(|_| "1000 100000 16 1".into());
    let numbers: Vec<usize> = wanted.split(' ').map(|n| n.parse().unwrap()).collect();
    let [hosts, commits, at_once, milliseconds] = numbers[..] else {
        panic!("NPYFS_SCALE has four numbers");
    };
    let each = commits / hosts;
    let far = Arc::new(Far {
        memory: Memory::default(),
        answers: Duration::from_millis(milliseconds as u64),
        asked: AtomicU64::new(0),
    });
    let place: Arc<dyn CommitPlace> = far.clone();
    let (next, taken, begun) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let host = next.fetch_add(1, Ordering::Relaxed);
                    if host >= hosts {
                        return;
                    }
                    let now = Instant::now();
                    let mut own = committer(&place).unwrap();
                    let read = (own.all().len(), now.elapsed().as_secs_f64());
                    begun.lock().unwrap().push(read);
                    for number in 0..each {
                        own.tried_again();
                        let (now, mut tries) = (Instant::now(), 1);
                        while !own.add(commit(&format!("h{host}-{number}"))).unwrap() {
                            tries += 1;
                        }
                        taken.lock().unwrap().push(Taken {
                            number: own.all().len(),
                            seconds: now.elapsed().as_secs_f64(),
                            tries,
                        });
                    }
                }
            });
        }
    });
    let whole = start.elapsed().as_secs_f64();
    let (mut taken, begun) = (taken.into_inner().unwrap(), begun.into_inner().unwrap());
    let all = committer(&place).unwrap();
    let mut layers: Vec<&str> = all.all().iter().map(|c| c.layer.as_str()).collect();
    assert_eq!(layers.len(), hosts * each);
    layers.sort_unstable();
    layers.dedup();
    assert_eq!(layers.len(), hosts * each, "a commit is there twice");
    taken.sort_by_key(|one| one.number);
    assert!(taken.iter().map(|one| one.number).eq(1..=hosts * each));
    println!(
        "{hosts} hosts, {} commits, {at_once} at once, {milliseconds} ms an answer: {whole:.0} s, {} requests",
        layers.len(),
        far.asked.load(Ordering::Relaxed)
    );
    println!("| commits | median | 99th percentile | tries | a host begins |");
    println!("|---|---|---|---|---|");
    for part in taken.chunks(taken.len().div_ceil(10)) {
        let mut seconds: Vec<f64> = part.iter().map(|one| one.seconds).collect();
        seconds.sort_by(f64::total_cmp);
        let tries = part.iter().map(|one| one.tries).sum::<usize>() as f64 / part.len() as f64;
        let (first, last) = (part[0].number, part[part.len() - 1].number);
        let reads = begun.iter().filter(|(at, _)| (first..=last).contains(at));
        let mut reads: Vec<f64> = reads.map(|(_, seconds)| *seconds).collect();
        reads.sort_by(f64::total_cmp);
        let read = reads.get(reads.len() / 2).copied().unwrap_or_default();
        println!(
            "| {last} | {:.1} ms | {:.1} ms | {tries:.2} | {:.0} ms |",
            percentile(&seconds, 50) * 1e3,
            percentile(&seconds, 99) * 1e3,
            read * 1e3
        );
    }
}
