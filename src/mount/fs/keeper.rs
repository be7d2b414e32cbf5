//! Kept copies of arrays: the choice of arrays worth a copy, the thread that makes copies, and the reads that copies
//! serve.
//!
//! An array is kept once the number of its bytes that were read reaches its size. Readers never wait for a copy, nor
//! for a part of one to be written. Bytes that a reader was given are parts that are handed on to the copy, so that
//! little is decoded a second time. There is room for a few parts; a part that finds no room is dropped, and the
//! copying thread reads it later. Only parts of a version that cannot change without a trace are taken.
//!
//! The copying thread reads the rest with a low priority, and checks copies that other processes made. While other
//! threads read through the mount, it works in turns: a stretch without a pause, then a longer rest. A failure of a
//! copy costs speed alone.

use std::collections::{HashSet, VecDeque};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::{Condvar, Mutex};
use serde_json::{Value as Json, json};

use npyfs_base::buffer::Buffer;
use npyfs_base::thread;
use npyfs_core::dataset::context::Context;
use npyfs_core::tree::VirtualFile;
use npyfs_io::content::{Content, Data};
use npyfs_io::kept::{
    About, CheckedBlocks, KeptContent, KeptCopy, KeptDir, Making, NotKept, OnSpoiled, fill,
};
use npyfs_io::provenance::Provenance;

/// Size in bytes of the smallest array that is kept: a shorter file is given to the kernel as a whole.
const LEAST: u64 = 128 << 10;

/// The number of arrays whose reads are counted, and the number of copies whose checked parts are remembered.
const MOST: NonZeroUsize = match NonZeroUsize::new(4096) {
    Some(many) => many,
    None => NonZeroUsize::MIN,
};

/// The number of arrays that may wait to be copied.
const MOST_JOBS: usize = 64;

/// The rest of the copying thread, as a multiple of its working time, while other threads read: on one processor, and
/// at most on several.
const REST: (u32, u32) = (18, 9);

/// The priority of the copying thread: with the lowest priority it would never run beside threads that poll for work.
const NICE: i32 = 10;

/// The number of processors on which threads share a chunk that a reader waits for.
const SAMPLED_ON: u32 = 4;

/// The least number of bytes that a request counts for if its chunks must be decoded.
const LEAST_READ: u64 = 64 << 10;

/// The bytes of an array that were read through a mount.
pub(super) struct Reads {
    key: String,
    len: u64,
    path: String,
    file: Arc<dyn VirtualFile>,
    read: AtomicU64,
    wanted: AtomicBool,
    /// The least number of bytes that a request counts for.
    least: u64,
    /// Every change of the source of the array is detectable.
    settled: AtomicBool,
    /// The end of the range that was handed on last.
    last: AtomicU64,
    /// The copy that takes parts; its file is created and removed under this lock.
    making: Mutex<Option<Arc<Making>>>,
    /// The array takes no more parts: its copy is finished, or could not be begun.
    closed: AtomicBool,
}

impl Reads {
    /// Returns true if a copy takes parts, or if another thread holds its lock: that thread may take long, and is not
    /// waited for.
    fn takes_parts(&self) -> bool {
        self.making.try_lock().is_none_or(|making| making.is_some())
    }

    /// Returns the copy that takes parts, and begins it if necessary.
    fn begin(&self, dir: &Arc<KeptDir>) -> Result<Arc<Making>, NotKept> {
        let mut making = self.making.lock();
        if let Some(begun) = &*making {
            return Ok(begun.clone());
        }
        let begun = Arc::new(dir.begin(&self.key, self.len)?);
        *making = Some(begun.clone());
        Ok(begun)
    }

    /// Stops taking parts and discards an unfinished copy.
    fn close(&self) {
        self.closed.store(true, Relaxed);
        let _ = self.making.lock().take();
    }

    fn is_wanted(&self) -> bool {
        self.wanted.load(Relaxed)
    }
}

/// The source that serves an open file of an array that may be kept.
#[derive(Clone)]
pub(super) enum KeptSource {
    /// A copy.
    Copy(Arc<KeptCopy>),
    /// The store.
    Counted(Arc<Reads>),
}

enum Job {
    Keep(Arc<Reads>),
    Check(Arc<KeptCopy>),
}

struct State {
    reads: LruCache<u64, Arc<Reads>>,
    checked: LruCache<String, Arc<CheckedBlocks>>,
    jobs: VecDeque<Job>,
    /// Copies that are being checked.
    looked: HashSet<String>,
    /// The copying thread was started.
    started: bool,
    over: bool,
}

#[derive(Default)]
struct Counters {
    kept: AtomicU64,
    kept_bytes: AtomicU64,
    opened: AtomicU64,
    passed_through: AtomicU64,
    spoiled: AtomicU64,
}

/// The copies of a mount.
pub(super) struct Keeper(Arc<Shared>);

struct Shared {
    dir: Arc<KeptDir>,
    parts: Arc<Parts>,
    /// The store lies in a bucket or on a web server.
    elsewhere: bool,
    /// The rest of the copying thread, as a multiple of its working time, while other threads read.
    rest: u32,
    /// There are more processors than those that decode a sample.
    has_processors: bool,
    context: Arc<Context>,
    store: String,
    state: Mutex<State>,
    wake: Condvar,
    begun: Instant,
    /// The time of the last read, in milliseconds since the keeper was created.
    last_read: AtomicU64,
    counters: Counters,
    /// The reason why the last array was not kept.
    refused: Mutex<Option<String>>,
    /// The result of serving copies through the kernel itself, or the reason why that is not possible.
    passthrough: OnceLock<Result<(), String>>,
}

impl Keeper {
    /// Keeps arrays of a store in a directory.
    pub(super) fn new(
        dir: KeptDir,
        context: &Arc<Context>,
        store: String,
        elsewhere: bool,
    ) -> Self {
        let dir = Arc::new(dir);
        let processors = std::thread::available_parallelism().map_or(1, |many| many.get());
        let processors = u32::try_from(processors).unwrap_or(u32::MAX);
        let rest = (REST.0 / processors).clamp(1, REST.1);
        let shared = Arc::new(Shared {
            parts: Parts::new(&dir, rest),
            elsewhere,
            rest,
            has_processors: processors > SAMPLED_ON,
            dir,
            context: context.clone(),
            store,
            state: Mutex::new(State {
                reads: LruCache::new(MOST),
                checked: LruCache::new(MOST),
                jobs: VecDeque::new(),
                looked: HashSet::new(),
                started: false,
                over: false,
            }),
            wake: Condvar::new(),
            begun: Instant::now(),
            last_read: AtomicU64::new(0),
            counters: Counters::default(),
            refused: Mutex::default(),
            passthrough: OnceLock::new(),
        });
        let about = Arc::downgrade(&shared);
        // Each mount has one keeper.
        let _ = context.keeping.set(Box::new(move || {
            about.upgrade().map_or(Json::Null, |shared| shared.status())
        }));
        Self(shared)
    }

    /// Returns true if the copies lie on a stacked file system.
    pub(super) fn is_overlay(&self) -> bool {
        self.0.dir.is_overlay()
    }

    /// Notes whether the kernel serves copies by itself.
    pub(super) fn note_passthrough(&self, outcome: Result<(), String>) {
        // The first outcome stands.
        let _ = self.0.passthrough.set(outcome);
    }

    /// Notes that the kernel serves an open file by itself.
    pub(super) fn note_passed(&self) {
        self.0.counters.passed_through.fetch_add(1, Relaxed);
    }

    /// Handles the opening of a file: returns its content and the source that serves it.
    pub(super) fn opened(
        &self,
        ino: u64,
        path: impl FnOnce() -> String,
        file: &Arc<dyn VirtualFile>,
        content: Arc<dyn Content>,
    ) -> (Arc<dyn Content>, Option<KeptSource>) {
        let shared = &self.0;
        let len = content.len();
        if len < LEAST || len > shared.dir.limit() || file.volatile() {
            return (content, None);
        }
        let mut provenance = Provenance::new();
        if !content.tell_provenance(&mut provenance) {
            return (content, None);
        }
        let key = provenance.key();
        let known = shared.state.lock().checked.get(&key).cloned();
        let Some(copy) = shared.dir.find(&key, len, known.as_ref()) else {
            let mut state = shared.state.lock();
            let reads = state.reads.get(&ino).filter(|reads| reads.key == key);
            let reads = reads.cloned().unwrap_or_else(|| {
                let counts = content.is_costly() && !shared.elsewhere;
                let least = if counts { LEAST_READ } else { 0 };
                let reads = Arc::new(Reads {
                    key,
                    len,
                    path: path(),
                    file: file.clone(),
                    read: AtomicU64::new(0),
                    wanted: AtomicBool::new(false),
                    least,
                    settled: AtomicBool::new(false),
                    last: AtomicU64::new(u64::MAX),
                    making: Mutex::default(),
                    closed: AtomicBool::new(false),
                });
                state.reads.put(ino, reads.clone());
                reads
            });
            reads.settled.store(provenance.is_settled(), Relaxed);
            return (content, Some(KeptSource::Counted(reads)));
        };
        if copy.is_spoiled() {
            shared.drop_copy(&copy);
            return (content, None);
        }
        shared.counters.opened.fetch_add(1, Relaxed);
        shared.dir.touch(&key);
        let copy = Arc::new(copy);
        shared.known(&copy, path);
        let weak = Arc::downgrade(shared);
        let on_spoiled: OnSpoiled = Arc::new(move |copy| {
            if let Some(shared) = weak.upgrade() {
                shared.drop_copy(copy);
            }
        });
        let content = KeptContent::new(copy.clone(), content, on_spoiled);
        (Arc::new(content), Some(KeptSource::Copy(copy)))
    }

    /// Counts bytes that were read from an open file at an offset; `direct` says that a program waits for exactly these
    /// bytes, a sample.
    pub(super) fn read(&self, kept: &KeptSource, (offset, direct): (u64, bool), data: &mut Data) {
        let shared = &self.0;
        let now = shared.begun.elapsed().as_millis();
        shared
            .last_read
            .store(u64::try_from(now).unwrap_or(u64::MAX), Relaxed);
        let KeptSource::Counted(reads) = kept else {
            return;
        };
        let bytes = (data.as_ref().len() as u64).max(reads.least);
        let read = reads.read.fetch_add(bytes, Relaxed).saturating_add(bytes);
        let room = !direct || shared.has_processors;
        if room && read >= reads.len / SHARE && reads.settled.load(Relaxed) {
            shared.parts.take(reads, offset, data);
        }
        if read >= reads.len && !reads.wanted.swap(true, Relaxed) {
            self.push(Job::Keep(reads.clone()));
        }
    }

    fn push(&self, job: Job) {
        Shared::push(&self.0, job);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.state.lock().over = true;
        self.0.wake.notify_all();
        self.0.parts.end();
    }
}

impl Shared {
    fn push(shared: &Arc<Self>, job: Job) {
        let mut state = shared.state.lock();
        if state.over || state.jobs.len() >= MOST_JOBS {
            if let Job::Keep(reads) = job {
                reads.wanted.store(false, Relaxed);
                reads.read.store(0, Relaxed);
            }
            return;
        }
        state.jobs.push_back(job);
        if !state.started {
            let own = shared.clone();
            state.started = thread::spawn_behind("keep", NICE, move || own.work()).is_ok();
        }
        shared.wake.notify_one();
    }

    /// Remembers the checked parts of a copy and schedules a check of the rest, so that the next open can pass the copy
    /// through.
    fn known(self: &Arc<Self>, copy: &Arc<KeptCopy>, path: impl FnOnce() -> String) {
        let mut state = self.state.lock();
        let before = state
            .checked
            .put(copy.key().to_owned(), copy.checked().clone());
        let is_new = before.is_none_or(|before| !Arc::ptr_eq(&before, copy.checked()));
        if !is_new {
            return;
        }
        let looks = !copy.is_whole() && state.looked.insert(copy.key().to_owned());
        drop(state);
        let path = path();
        self.context.journal.add(&format!(
            "{}: {path}: served from its kept copy",
            self.store
        ));
        if looks {
            Self::push(self, Job::Check(copy.clone()));
        }
    }

    /// Removes a copy that does not match what was kept.
    fn drop_copy(&self, copy: &KeptCopy) {
        let known = self.state.lock().checked.pop(copy.key());
        if known.is_some_and(|known| Arc::ptr_eq(&known, copy.checked())) {
            self.counters.spoiled.fetch_add(1, Relaxed);
            let copy = self.dir.path().join(copy.key());
            let copy = copy.display();
            self.context.journal.add(&format!(
                "{}: {copy}.npy is not what was kept: removed, and served from the store",
                self.store
            ));
        }
        self.dir.discard(copy.key());
    }

    /// Returns the entry for `status.json`.
    fn status(&self) -> Json {
        let copies = self.dir.list().unwrap_or_default();
        let room: u64 = copies.iter().map(|copy| copy.room).sum();
        let counters = &self.counters;
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        json!({
            "dir": self.dir.path().to_string_lossy(),
            "limit": self.dir.limit(),
            "copies": copies.len(),
            "bytes": room,
            "made": get(&counters.kept),
            "made_bytes": get(&counters.kept_bytes),
            "handed_on": get(&self.parts.written),
            "served": get(&counters.opened),
            "passed_through": get(&counters.passed_through),
            "spoiled": get(&counters.spoiled),
            "waiting": self.state.lock().jobs.len(),
            "passthrough": match self.passthrough.get() {
                Some(Ok(())) => json!(true),
                Some(Err(why)) => json!(why),
                None => Json::Null,
            },
            "not_kept": *self.refused.lock(),
        })
    }
}

/// The time after a read for which the mount counts as being read.
const READING: Duration = Duration::from_millis(50);

/// The working time before a rest. Threads that share a chunk are delayed by any thread that runs in between, and the
/// delay lasts a little longer than the work, so fewer and longer interruptions are better.
const WORK: Duration = Duration::from_millis(100);

/// The longest rest.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// The delay before recently changed files are looked at again, and the number of attempts.
const SETTLING: (Duration, u32) = (Duration::from_millis(500), 20);

/// The number of blocks after which the thread checks that the store is still the version that it copies.
const LOOK: u64 = 64;

impl Shared {
    /// The loop of the thread.
    fn work(&self) {
        loop {
            let mut state = self.state.lock();
            while state.jobs.is_empty() && !state.over {
                self.wake.wait(&mut state);
            }
            if state.over {
                return;
            }
            let job = state.jobs.pop_front();
            drop(state);
            match job {
                Some(Job::Keep(reads)) => self.keep(&reads),
                Some(Job::Check(copy)) => self.check(&copy),
                None => {}
            }
        }
    }

    fn is_over(&self) -> bool {
        self.state.lock().over
    }

    /// Rests if enough work was done since `since` and other threads are reading. Returns the time at which work begins
    /// again.
    fn rest(&self, since: Instant) -> Instant {
        if since.elapsed() < WORK {
            return since;
        }
        let last = Duration::from_millis(self.last_read.load(Relaxed));
        if self.begun.elapsed().saturating_sub(last) < READING {
            std::thread::sleep((since.elapsed() * self.rest).min(LONGEST_REST));
        }
        Instant::now()
    }

    fn check(&self, copy: &KeptCopy) {
        let (mut buf, mut at, mut since) = (Vec::new(), 0, Instant::now());
        loop {
            match copy.check_next(at, &mut buf) {
                Ok(Some(next)) => at = next,
                Ok(None) => break,
                Err(_) => {
                    self.drop_copy(copy);
                    break;
                }
            }
            if self.is_over() {
                return;
            }
            since = self.rest(since);
        }
        self.state.lock().looked.remove(copy.key());
    }

    fn keep(&self, reads: &Reads) {
        let about = || format!("{}: {}", self.store, reads.path);
        // A copy is not worth network traffic: the bytes that readers fetched complete it, or readers go on handing
        // parts to it.
        if self.elsewhere && !reads.file.open().is_ok_and(|content| content.is_at_hand()) {
            return self.restart_count(reads);
        }
        let outcome = self.copied(reads);
        // Another full read of the array tries again if there is no copy by then.
        reads.closed.store(matches!(outcome, Ok(true)), Relaxed);
        let _ = reads.making.lock().take();
        match outcome {
            Ok(true) => {
                self.counters.kept.fetch_add(1, Relaxed);
                self.counters.kept_bytes.fetch_add(reads.len, Relaxed);
                self.context
                    .journal
                    .add(&format!("{}: kept, {} bytes", about(), reads.len));
            }
            Ok(false) => {}
            Err(why) => {
                let why = format!("{}: not kept: {why}", about());
                self.context.journal.add(&why);
                *self.refused.lock() = Some(why);
            }
        }
        self.restart_count(reads);
    }

    /// Restarts the count of bytes read.
    fn restart_count(&self, reads: &Reads) {
        reads.read.store(0, Relaxed);
        reads.wanted.store(false, Relaxed);
    }

    /// Returns true unless the store has changed. A remote version never changes, and no server is asked for a newer
    /// one for the sake of a copy.
    fn is_current(&self, reads: &Reads) -> bool {
        self.elsewhere || reads.file.is_current()
    }

    /// Returns the content of an array if its provenance is unchanged, and `None` otherwise.
    fn if_unchanged(&self, reads: &Reads) -> Option<(Arc<dyn Content>, bool)> {
        if !self.is_current(reads) {
            return None;
        }
        let content = reads.file.open().ok()?;
        let mut provenance = Provenance::new();
        let told = content.tell_provenance(&mut provenance);
        let same = told && provenance.key() == reads.key;
        same.then(|| (content, provenance.is_settled()))
    }

    /// Makes a copy. Returns false if there is one already or the store changed.
    fn copied(&self, reads: &Reads) -> Result<bool, String> {
        let mut found = self.if_unchanged(reads);
        for _ in 0..SETTLING.1 {
            if !matches!(found, Some((_, false))) {
                break;
            }
            std::thread::sleep(SETTLING.0);
            if self.is_over() {
                return Ok(false);
            }
            found = self.if_unchanged(reads);
        }
        let Some((content, true)) = found else {
            return Ok(false);
        };
        let making = match reads.begin(&self.dir) {
            Ok(making) => making,
            Err(NotKept::Taken) => return Ok(false),
            Err(why) => return Err(why.to_string()),
        };
        let (mut since, mut blocks) = (Instant::now(), 0);
        let whole = fill(&making, &*content, |_| {
            since = self.rest(since);
            blocks += 1;
            !self.is_over() && (blocks % LOOK != 0 || self.is_current(reads))
        });
        if !whole.map_err(|e| e.message)? || self.if_unchanged(reads).is_none() {
            return Ok(false);
        }
        let about = About {
            store: self.store.clone(),
            path: reads.path.clone(),
        };
        let copy = making.finish(about).map_err(|e| e.to_string())?;
        let checked = copy.checked().clone();
        self.state.lock().checked.put(reads.key.clone(), checked);
        Ok(true)
    }
}

/// Total size in bytes of the parts that wait to be written: a share of the readers' buffers.
const MOST_BYTES: usize = 4 << 20;

/// Size in bytes of the smallest part, unless it continues the previous part: the kernel splits the requests of
/// programs.
const LEAST_PART: usize = 64 << 10;

/// The longest rest of the thread, as a multiple of its working time: it writes to the disk that others read from.
const PARTS_REST: u32 = 3;

/// The divisor of the share of an array that must have been read before its parts are taken.
const SHARE: u64 = 8;

/// The number of copies that are made of parts at the same time: each takes up the size of its array.
const AT_ONCE: usize = 4;

/// The time after which a copy whose array is no longer read makes way for another copy.
const IDLE: Duration = Duration::from_secs(10);

/// The time after which a copy whose array is no longer read gives back its space.
const GIVEN_UP: Duration = Duration::from_secs(60);

struct Part {
    reads: Arc<Reads>,
    offset: u64,
    bytes: Arc<Buffer>,
    range: Range<usize>,
}

#[derive(Default)]
struct PartsState {
    waiting: VecDeque<Part>,
    bytes: usize,
    /// Arrays whose copies take parts, and the time of the last part of each.
    open: Vec<(Arc<Reads>, Instant)>,
    started: bool,
    over: bool,
}

/// The parts of a mount that wait to be written.
struct Parts {
    dir: Arc<KeptDir>,
    /// The rest of the thread, as a multiple of its working time.
    rest: u32,
    state: Mutex<PartsState>,
    wake: Condvar,
    /// The number of bytes written.
    written: AtomicU64,
}

impl Parts {
    fn new(dir: &Arc<KeptDir>, rest: u32) -> Arc<Self> {
        Arc::new(Self {
            dir: dir.clone(),
            rest: rest.min(PARTS_REST),
            state: Mutex::default(),
            wake: Condvar::new(),
            written: AtomicU64::new(0),
        })
    }

    /// Takes bytes that were read at an offset, if there is room; the reader keeps its reference to them.
    fn take(self: &Arc<Self>, reads: &Arc<Reads>, offset: u64, data: &mut Data) {
        let len = data.as_ref().len();
        let end = offset.saturating_add(len as u64);
        if len < LEAST_PART && reads.last.load(Relaxed) != offset {
            return;
        }
        // This does not take the lock of the copy, under which files are created and removed.
        if reads.closed.load(Relaxed) {
            return;
        }
        let mut state = self.state.lock();
        if state.over || state.bytes.saturating_add(len) > MOST_BYTES {
            return;
        }
        let (bytes, range) = data.shared();
        state.bytes += len;
        state.waiting.push_back(Part {
            reads: reads.clone(),
            offset,
            bytes,
            range,
        });
        reads.last.store(end, Relaxed);
        if !state.started {
            let own = self.clone();
            state.started = thread::spawn_background("keep parts", move || own.work()).is_ok();
        }
        self.wake.notify_one();
    }

    /// Ends the thread and discards all unfinished copies.
    fn end(&self) {
        let mut state = self.state.lock();
        state.over = true;
        state.waiting.clear();
        let open = std::mem::take(&mut state.open);
        drop(state);
        for (reads, _) in open {
            reads.close();
        }
        self.wake.notify_all();
    }

    /// The loop of the thread.
    fn work(&self) {
        loop {
            let mut state = self.state.lock();
            while state.waiting.is_empty() && !state.over {
                if self.wake.wait_for(&mut state, IDLE).timed_out() {
                    drop(state);
                    self.give_up(GIVEN_UP, 0);
                    state = self.state.lock();
                }
            }
            if state.over {
                return;
            }
            let Some(part) = state.waiting.pop_front() else {
                continue;
            };
            drop(state);
            let since = Instant::now();
            self.write(&part);
            let worked = since.elapsed();
            // The buffer is freed now; its room is given to another part only after the rest.
            drop(part.bytes);
            std::thread::sleep(worked * self.rest);
            let mut state = self.state.lock();
            state.bytes = state.bytes.saturating_sub(part.range.len());
        }
    }

    fn write(&self, part: &Part) {
        let Some(making) = self.making(&part.reads) else {
            return;
        };
        let bytes = part.bytes.get(part.range.clone()).unwrap_or_default();
        match making.add(part.offset, bytes) {
            Ok(written) => {
                self.written.fetch_add(written, Relaxed);
            }
            // The copying thread meets the same error and reports it.
            Err(_) => part.reads.close(),
        }
    }

    /// Returns the copy of an array that takes parts. Begins it if necessary and if there is room for another copy.
    fn making(&self, reads: &Arc<Reads>) -> Option<Arc<Making>> {
        if reads.closed.load(Relaxed) {
            return None;
        }
        let known = reads.making.lock().clone();
        let making = match known {
            Some(making) => making,
            None => {
                self.give_up(IDLE, AT_ONCE - 1);
                if self.state.lock().open.len() >= AT_ONCE {
                    return None;
                }
                let begun = reads.begin(&self.dir);
                if begun.is_err() {
                    reads.close();
                }
                begun.ok()?
            }
        };
        let mut state = self.state.lock();
        let now = Instant::now();
        match state
            .open
            .iter_mut()
            .find(|(own, _)| Arc::ptr_eq(own, reads))
        {
            Some((_, last)) => *last = now,
            None => state.open.push((reads.clone(), now)),
        }
        Some(making)
    }

    /// Discards copies that received no part for `after`, the oldest first, until `left` of them remain. The caller
    /// holds no lock of an array.
    fn give_up(&self, after: Duration, left: usize) {
        let mut state = self.state.lock();
        state.open.retain(|(reads, _)| reads.takes_parts());
        state.open.sort_by_key(|(_, last)| *last);
        let more = state.open.len().saturating_sub(left);
        let idle =
            |(reads, last): &(Arc<Reads>, Instant)| last.elapsed() > after && !reads.is_wanted();
        let (gone, stay) = std::mem::take(&mut state.open)
            .into_iter()
            .partition::<Vec<_>, _>(idle);
        let (gone, spared) = gone.split_at(gone.len().min(more));
        state.open = [spared, &stay].concat();
        drop(state);
        for (reads, _) in gone {
            // Removing an unfinished copy takes time in proportion to its size.
            let _ = reads.making.lock().take();
        }
    }
}
