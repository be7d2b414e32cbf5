//! A simulation: many hosts commit at one bucket, which takes its time for each request and fails now and then.
//!
//! The protocol is the real one. The bucket is in memory, and its time is not that of the clock: a host that waits lets
//! the one go on whose time comes next, so that hours pass in seconds. Each host knows the last commit that it has
//! read, and reads those that follow. What a commit consists of is not simulated: neither the layers, nor their upload.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::super::place::CommitPlace;
use super::model::{Faulty, Random, Told, check};
use super::places::{Memory, committer};
use super::*;

const MILLISECOND: u64 = 1000;
const SECOND: u64 = 1000 * MILLISECOND;

/// The time, in microseconds, and who goes on at which time.
#[derive(Default)]
struct Time {
    now: u64,
    next: BinaryHeap<Reverse<(u64, usize)>>,
    threads: BTreeMap<usize, Thread>,
}

/// The clock of the simulation. One host runs at any moment.
#[derive(Default)]
struct Clock {
    time: Mutex<Time>,
    turn: AtomicUsize,
}

impl Clock {
    fn now(&self) -> u64 {
        self.time.lock().now
    }

    /// Returns whether all others have ended.
    fn is_alone(&self) -> bool {
        self.time.lock().next.is_empty()
    }

    /// Lets others run until `length` has passed.
    fn wait(&self, host: usize, length: u64) {
        let mut time = self.time.lock();
        let at = time.now + length;
        time.next.push(Reverse((at, host)));
        self.pass(time);
        self.await_turn(host);
    }

    fn await_turn(&self, host: usize) {
        while self.turn.load(Ordering::Acquire) != host {
            std::thread::park();
        }
    }

    /// Lets the host run whose time comes next.
    fn pass(&self, mut time: MutexGuard<'_, Time>) {
        let Some(Reverse((at, host))) = time.next.pop() else {
            return;
        };
        time.now = at;
        let thread = time.threads[&host].clone();
        drop(time);
        self.turn.store(host, Ordering::Release);
        thread.unpark();
    }
}

/// The turn of a host. Whatever ends the host, a failed test too, the others go on.
struct Turn(Arc<Clock>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.pass(self.0.time.lock());
    }
}

/// The bucket as one host sees it.
struct Far {
    place: Arc<dyn CommitPlace>,
    clock: Arc<Clock>,
    host: usize,
    random: Random,
    requests: Arc<AtomicU64>,
    /// What was fetched and not read yet.
    fetched: Mutex<BTreeMap<String, Vec<u8>>>,
}

impl Far {
    /// Returns how long a request takes: 15 to 35 ms, and 300 ms for one of a hundred.
    fn length(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed);
        match self.random.below(100) {
            0 => 300 * MILLISECOND,
            _ => 15 * MILLISECOND + self.random.below(20 * MILLISECOND),
        }
    }

    /// Makes a request.
    fn request<T>(&self, make: impl FnOnce() -> T) -> T {
        let length = self.length();
        self.clock.wait(self.host, length / 2);
        let made = make();
        self.clock.wait(self.host, length / 2);
        made
    }

    /// Makes a request that changes nothing, again and again where it fails, as requests to buckets are sent again.
    fn ask<T>(&self, make: impl Fn() -> Result<T>) -> Result<T> {
        loop {
            let answer = self.request(&make);
            if answer.is_ok() {
                return answer;
            }
            self.clock.wait(self.host, 100 * MILLISECOND);
        }
    }
}

impl CommitPlace for Far {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        if let Some(bytes) = self.fetched.lock().remove(name) {
            return Ok(Some(bytes));
        }
        self.ask(|| self.place.read(name))
    }

    fn fetch(&self, names: &[String]) {
        // As many at a time as of a bucket.
        for some in names.chunks(16) {
            let longest = some.iter().map(|_| self.length()).max();
            self.clock.wait(self.host, longest.unwrap_or(0));
            let mut fetched = self.fetched.lock();
            for name in some {
                if let Ok(Some(bytes)) = self.place.read(name) {
                    fetched.insert(name.clone(), bytes);
                }
            }
        }
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<Creation> {
        self.request(|| self.place.create(name, bytes))
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.request(|| self.place.replace(name, bytes))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.request(|| self.place.remove(name))
    }

    fn names_from(&self, name: &str) -> Result<Vec<String>> {
        self.ask(|| self.place.names_from(name))
    }

    fn wait(&self, time: Duration) {
        let length = u64::try_from(time.as_micros()).unwrap();
        self.clock.wait(self.host, length);
    }

    fn path(&self, name: &str) -> String {
        self.place.path(name)
    }
}

/// What is simulated.
#[derive(Clone, Copy, Debug)]
struct Scenario {
    hosts: usize,
    /// The commits of each host.
    each: usize,
    /// Commits that are begun in a second, by all hosts together; `None`: a host begins the next one at once.
    rate: Option<u64>,
    seed: u64,
}

/// What came of it; times in microseconds.
#[derive(Default)]
struct Outcome {
    told: BTreeMap<String, Told>,
    /// When a commit was begun, and how long it took.
    lengths: Vec<(u64, u64)>,
    /// How often another host was first.
    lost: u64,
    /// When each commit was made, by its number.
    made: BTreeMap<usize, u64>,
    /// By how much the reader is behind each commit that it sees.
    behind: Vec<u64>,
}

/// One host with its commits, one after the other.
fn commit_all(
    scenario: Scenario,
    far: &Arc<Far>,
    place: &Arc<dyn CommitPlace>,
    to: &Mutex<Outcome>,
) {
    let (clock, host) = (&far.clock, far.host);
    let mut own = committer(place).unwrap();
    for number in 0..scenario.each {
        if let Some(rate) = scenario.rate {
            let most = 2 * scenario.hosts as u64 * SECOND / rate;
            clock.wait(host, far.random.below(most));
        }
        let (begun, layer) = (clock.now(), format!("c{host}-{number}"));
        let mut lost = 0;
        let result = (|| {
            own.begin_again()?;
            while !own.add(commit(&layer))? {
                lost += 1;
            }
            Ok::<_, Error>(())
        })();
        let now = clock.now();
        let mut to = to.lock();
        to.lost += lost;
        to.lengths.push((begun, now - begun));
        let said = match result {
            Ok(()) => {
                to.made.insert(own.all().len(), now);
                Told::Done
            }
            Err(e) if e.message.contains("is not known") => Told::Unknown,
            Err(_) => Told::Not,
        };
        to.told.insert(layer, said);
    }
}

/// Reads once a second, as mounts with `follow=1` do.
fn follow(far: &Arc<Far>, place: &Arc<dyn CommitPlace>, to: &Mutex<Outcome>) {
    let mut all = CommitRecords::default();
    let mut seen = 0;
    loop {
        far.clock.wait(far.host, SECOND);
        let _ = NumberedCommits::new(place.clone()).extend(&mut all, 0);
        let now = far.clock.now();
        let mut to = to.lock();
        for number in seen + 1..=all.len() {
            // Its own host may not have heard yet that it was made.
            let made = to.made.get(&number).copied().unwrap_or(now);
            to.behind.push(now.saturating_sub(made));
        }
        seen = all.len();
        all.forget();
        if far.clock.is_alone() {
            return;
        }
    }
}

/// Returns the part of sorted values that `percent` of them are at most.
fn part(values: &[u64], percent: usize) -> f64 {
    let at = (values.len() * percent / 100).min(values.len() - 1);
    values[at] as f64 / SECOND as f64
}

/// Simulates, checks the commits and prints a line of the table of docs/scale.md.
fn simulate(scenario: Scenario) {
    let real = Instant::now();
    let memory: Arc<dyn CommitPlace> = Arc::new(Memory::default());
    // The first commit of a place tries it with threads of its own.
    assert!(committer(&memory).unwrap().add(commit("first")).unwrap());
    let (clock, requests) = (Arc::new(Clock::default()), Arc::new(AtomicU64::new(0)));
    clock.turn.store(usize::MAX, Ordering::Release);
    let to = Mutex::new(Outcome::default());
    let begin = Barrier::new(scenario.hosts + 2);
    std::thread::scope(|scope| {
        for host in 0..=scenario.hosts {
            let (to, begin, clock, memory) = (&to, &begin, clock.clone(), memory.clone());
            let random = |salt| {
                Random(AtomicU64::new(
                    scenario.seed * 1_000_000 + 2 * host as u64 + salt,
                ))
            };
            let is_reader = host == scenario.hosts;
            let far = Arc::new(Far {
                place: Arc::new(Faulty {
                    place: memory,
                    random: random(0),
                    rate: 1000,
                }),
                clock: clock.clone(),
                host,
                random: random(1),
                fetched: Mutex::default(),
                requests: match is_reader {
                    true => Arc::default(),
                    false => requests.clone(),
                },
            });
            let run = move || {
                {
                    let mut time = clock.time.lock();
                    time.threads.insert(host, std::thread::current());
                    time.next.push(Reverse((0, host)));
                }
                begin.wait();
                clock.await_turn(host);
                let _turn = Turn(clock);
                let place: Arc<dyn CommitPlace> = far.clone();
                match is_reader {
                    true => follow(&far, &place, to),
                    false => commit_all(scenario, &far, &place, to),
                }
            };
            let thread = std::thread::Builder::new().stack_size(1 << 20);
            thread.spawn_scoped(scope, run).unwrap();
        }
        begin.wait();
        clock.pass(clock.time.lock());
    });
    let mut outcome = to.into_inner();
    assert_eq!(outcome.told.len(), scenario.hosts * scenario.each);
    outcome.told.insert("first".to_owned(), Told::Done);
    check(&memory, scenario.seed, &outcome.told);
    outcome.told.remove("first");
    let done = outcome
        .told
        .values()
        .filter(|told| **told == Told::Done)
        .count();
    outcome.lengths.sort_unstable();
    let lengths = |from: usize, to: usize| {
        let all = &outcome.lengths;
        let some = &all[all.len() * from / 10..all.len() * to / 10];
        let mut lengths: Vec<u64> = some.iter().map(|(_, length)| *length).collect();
        lengths.sort_unstable();
        lengths
    };
    let (all, first, last) = (lengths(0, 10), lengths(0, 1), lengths(9, 10));
    outcome.behind.sort_unstable();
    let ended = outcome
        .lengths
        .iter()
        .map(|(begun, length)| begun + length)
        .max();
    println!(
        "| {} | {done} of {} | {} | {:.1} | {:.2}, {:.1}, {:.1} s | {:.2} to {:.2} s | {:.1} | {:.1} | {:.1}, {:.1} s | {:.0} s |",
        scenario.hosts,
        outcome.told.len(),
        scenario
            .rate
            .map_or("all at once".to_owned(), |rate| rate.to_string()),
        done as f64 * SECOND as f64 / ended.unwrap() as f64,
        part(&all, 50),
        part(&all, 99),
        part(&all, 100),
        part(&first, 50),
        part(&last, 50),
        outcome.lost as f64 / done as f64,
        requests.load(Ordering::Relaxed) as f64 / done as f64,
        part(&outcome.behind, 50),
        part(&outcome.behind, 99),
        real.elapsed().as_secs_f64(),
    );
}

#[test]
fn thirty_hosts_commit_in_one_order() {
    for (seed, rate) in [(1, None), (2, Some(2)), (3, Some(20))] {
        simulate(Scenario {
            hosts: 30,
            each: 10,
            rate,
            seed,
        });
    }
}

/// The table of docs/scale.md.
#[test]
#[ignore = "takes minutes"]
fn a_thousand_hosts_and_a_hundred_thousand_commits() {
    println!(
        "| hosts | committed | begun each second | made each second | time: median, 99 %, most | first to last tenth | lost | requests | reader behind: median, 99 % | took |"
    );
    for (hosts, each, rate) in [
        (10, 1000, Some(2)),
        (10, 1000, None),
        (100, 100, Some(2)),
        (100, 100, None),
        // Not all at once: a committer gives up after a minute, which is one of the clock and not of the simulation.
        (1000, 10, Some(2)),
        (1000, 100, Some(4)),
    ] {
        simulate(Scenario {
            hosts,
            each,
            rate,
            seed: 7,
        });
    }
}
