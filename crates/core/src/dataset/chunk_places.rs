//! The stored ranges of the chunks of a dataset: a whole table, or at first single chunks that were looked up.
//!
//! Reading the table of very many chunks takes long. So chunks are looked up in the index, those of a read together,
//! until so much of the array was read that the table is worth its time. Quick look-ups go on while a thread reads the
//! table. Looked-up chunks are checked as those of a table are: no two share a byte. The table must agree with them. If two look-ups, or a look-up and
//! the table, give different answers, all reads fail from then on. If the table is refused, libhdf5 reads the chunks.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::thread;
use npyfs_hdf5::{ChunkRun, ChunkTable, Slot};
use parking_lot::Mutex;

/// The largest number of chunks that are kept. They take less than `LOOKUP_ROOM` bytes.
const MOST_KNOWN: usize = 7000;

/// The largest number of chunks that are looked up together.
pub const TOGETHER: usize = 1024;

/// The table is read after one chunk in so many was read.
const PART_READ: u64 = 16;

/// The index of the chunks of a dataset.
pub trait LookUp: Send + Sync {
    /// Returns the chunks at places of the grid, with others that the same nodes of the index name.
    fn find(&self, places: Vec<u64>) -> Result<Vec<ChunkRun>>;

    /// Returns whether look-ups are so quick that they go on while a thread reads the table.
    fn is_quick(&self) -> bool;

    /// Returns for how many chunks of a table one look-up is made before the table is read: at least as many as take
    /// as long to read as the look-up.
    fn cost(&self) -> u64;

    /// Returns the whole table.
    fn whole(&self) -> Result<WholeTable>;
}

/// The outcome of a request for a whole table.
pub enum WholeTable {
    /// The table.
    Table(ChunkTable),
    /// There is no table at the moment: no memory for it, or no chunk was written.
    Missing,
    /// The table cannot be right, or cannot be read.
    Refused,
}

/// The places of the chunks of a dataset.
pub struct ChunkPlaces(Places);

enum Places {
    Whole(ChunkTable),
    LookedUp(Arc<LookedUp>),
}

/// Chunks that are looked up.
struct LookedUp {
    /// The whole table, once it is read.
    whole: OnceLock<ChunkTable>,
    /// An empty table: it holds the memory that is reserved for `known`.
    _table: ChunkTable,
    count: u64,
    look_up: Box<dyn LookUp>,
    known: Mutex<KnownChunks>,
    /// Held during a quick look-up, so that threads that want the same nodes read them once. Taken before `reading` and
    /// `known`.
    finding: Mutex<()>,
    /// Held while the table is being read.
    reading: Mutex<()>,
    /// A thread reads the table.
    is_read_beside: AtomicBool,
}

#[derive(Default)]
struct KnownChunks {
    /// Chunks by their places, and whether they were read.
    slots: HashMap<u64, (Slot, bool)>,
    /// The ends of the stored extents by their starts. No two share a byte.
    extents: BTreeMap<u64, u64>,
    /// The numbers of chunks that were read, and of look-ups of single ones, since the table was tried last.
    read: u64,
    look_ups: u64,
    /// How often the table could not be had: after each time twice as much must be read until it is tried again.
    tries: u32,
    state: State,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Good,
    /// The table was refused: libhdf5 reads the chunks.
    Refused,
    /// Two look-ups, or a look-up and the table, gave different answers.
    Contradicted,
}

fn outside() -> Error {
    Error::damaged("a chunk outside the table")
}

/// The reason why chunks that were found cannot be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contradiction {
    /// Chunks share bytes, or lie outside the grid. The table shows that, too.
    Impossible,
    /// An earlier look-up gave another answer.
    TwoAnswers,
}

fn two_answers() -> Error {
    Error::damaged("chunk table: look-ups in the chunk index contradict each other or the table")
}

impl KnownChunks {
    /// Adds chunks that were found. When too many are kept, it forgets the earlier ones.
    fn add(&mut self, runs: &[ChunkRun], count: u64) -> std::result::Result<(), Contradiction> {
        let new: usize = runs.iter().map(|run| run.slots.len()).sum();
        if new > MOST_KNOWN {
            return Err(Contradiction::Impossible);
        }
        if self.slots.len() + new > MOST_KNOWN {
            self.slots.clear();
            self.extents.clear();
        }
        // Chunks that lie one behind the other are one extent.
        let mut extent = 0..0;
        for run in runs {
            for (place, slot) in (run.first..).zip(&run.slots) {
                if place >= count {
                    return Err(Contradiction::Impossible);
                }
                if !self.insert(place, *slot)? || slot.size == 0 {
                    continue;
                }
                if slot.addr != extent.end {
                    self.add_extent(extent)?;
                    extent = slot.addr..slot.addr;
                }
                extent.end = slot.addr.saturating_add(slot.size.into());
            }
        }
        self.add_extent(extent)
    }

    /// Adds a chunk; returns whether it was not known.
    fn insert(&mut self, place: u64, slot: Slot) -> std::result::Result<bool, Contradiction> {
        // Impossible chunks are kept, too: a table is compared with them.
        match self.slots.entry(place) {
            Entry::Vacant(new) => {
                new.insert((slot, false));
                Ok(true)
            }
            Entry::Occupied(known) if known.get().0 == slot => Ok(false),
            Entry::Occupied(_) => Err(Contradiction::TwoAnswers),
        }
    }

    fn add_extent(&mut self, extent: Range<u64>) -> std::result::Result<(), Contradiction> {
        if extent.is_empty() {
            return Ok(());
        }
        let before = self.extents.range(..extent.end).next_back();
        if before.is_some_and(|(_, &known)| known > extent.start) {
            return Err(Contradiction::Impossible);
        }
        self.extents.insert(extent.start, extent.end);
        Ok(())
    }

    /// Returns a chunk if it is known, and counts it as read.
    fn get(&mut self, place: u64) -> Option<Slot> {
        let (slot, read) = self.slots.get_mut(&place)?;
        self.read += u64::from(!*read);
        *read = true;
        Some(*slot)
    }

    /// Counts anew until the table is worth its time.
    fn begin_again(&mut self) {
        (self.read, self.look_ups) = (0, 0);
        self.tries = self.tries.saturating_add(1);
    }

    fn check(&self) -> Result<()> {
        match self.state {
            State::Good => Ok(()),
            State::Refused => Err(Error::damaged("chunk table: refused")),
            State::Contradicted => Err(two_answers()),
        }
    }
}

impl ChunkPlaces {
    /// Makes the places of a whole table.
    pub fn whole(table: ChunkTable) -> Self {
        Self(Places::Whole(table))
    }

    /// Makes the places of `count` chunks that are looked up. `table` is empty, and has the memory for look-ups
    /// reserved.
    pub fn looked_up(table: ChunkTable, count: u64, look_up: Box<dyn LookUp>) -> Self {
        Self(Places::LookedUp(Arc::new(LookedUp {
            whole: OnceLock::new(),
            _table: table,
            count,
            look_up,
            known: Mutex::default(),
            finding: Mutex::default(),
            reading: Mutex::default(),
            is_read_beside: AtomicBool::new(false),
        })))
    }

    /// Returns the number of bytes of memory that the places can take.
    pub fn weight(&self) -> usize {
        let count = match &self.0 {
            Places::Whole(table) => table.slots.len(),
            Places::LookedUp(own) => usize::try_from(own.count).unwrap_or(usize::MAX),
        };
        count.saturating_mul(size_of::<Slot>())
    }

    /// Returns all chunks, if the table was read.
    pub fn table(&self) -> Option<&[Slot]> {
        let table = match &self.0 {
            Places::Whole(table) => Some(table),
            Places::LookedUp(own) => own.whole.get(),
        };
        table.map(|table| &*table.slots)
    }

    /// Returns whether libhdf5 must read the chunks, as the table was refused.
    pub fn is_refused(&self) -> bool {
        match &self.0 {
            Places::Whole(_) => false,
            Places::LookedUp(own) => own.known.lock().state == State::Refused,
        }
    }

    /// Returns the look-ups, unless the table was read.
    fn look_ups(&self) -> Option<&Arc<LookedUp>> {
        match &self.0 {
            Places::LookedUp(own) if own.whole.get().is_none() => Some(own),
            _ => None,
        }
    }

    /// Returns a chunk.
    pub fn get(&self, place: u64) -> Result<Slot> {
        if let Some(looked_up) = self.look_ups() {
            let mut known = looked_up.known.lock();
            known.check()?;
            if let Some(slot) = known.get(place) {
                return Ok(slot);
            }
            let much = looked_up.is_much(&known);
            drop(known);
            let has_table = much && looked_up.has_read_whole()?;
            if !has_table && let Some(slot) = looked_up.find(&[place], false)? {
                return Ok(slot);
            }
        }
        let table = self.table().ok_or_else(outside)?;
        let slot = usize::try_from(place).ok().and_then(|at| table.get(at));
        slot.copied().ok_or_else(outside)
    }

    /// Looks up chunks together, unless they are known: at most [`TOGETHER`] of them. A reader `in_order` needs few
    /// look-ups, which do not count: its chunks do.
    pub fn prepare(&self, places: impl Iterator<Item = u64>, in_order: bool) -> Result<()> {
        let Some(looked_up) = self.look_ups() else {
            return Ok(());
        };
        let mut known = looked_up.known.lock();
        known.check()?;
        let mut missing = Vec::new();
        for place in places {
            if known.get(place).is_none() {
                missing.push(place);
            }
            if missing.len() == TOGETHER {
                break;
            }
        }
        let much = looked_up.is_much(&known);
        drop(known);
        if much && looked_up.has_read_whole()? {
            return Ok(());
        }
        match missing.is_empty() {
            true => Ok(()),
            false => looked_up.find(&missing, in_order).map(drop),
        }
    }

    /// Reads the whole table.
    pub fn prepare_all(&self) -> Result<()> {
        match self.look_ups() {
            Some(looked_up) => looked_up.read_whole().map(drop),
            None => Ok(()),
        }
    }
}

impl LookedUp {
    /// Returns whether the table is worth its time.
    fn is_much(&self, known: &KnownChunks) -> bool {
        let most = |count: u64| count.saturating_mul(1 << known.tries.min(32));
        let look_ups = self.count / self.look_up.cost().max(1);
        known.read > most(self.count / PART_READ) || known.look_ups > most(look_ups)
    }

    /// Looks up chunks, and returns the first of them; `None` if the table was read instead.
    fn find(&self, places: &[u64], in_order: bool) -> Result<Option<Slot>> {
        let Some(&first) = places.first() else {
            return Ok(None);
        };
        if places.iter().any(|&place| place >= self.count) {
            return Err(outside());
        }
        let is_quick = self.look_up.is_quick();
        let _one = is_quick.then(|| self.finding.lock());
        if is_quick {
            // The thread before may have found them.
            let mut known = self.known.lock();
            known.check()?;
            if self.whole.get().is_some() {
                return Ok(None);
            }
            if places[1..].iter().all(|&place| known.get(place).is_some())
                && let Some(slot) = known.get(first)
            {
                return Ok(Some(slot));
            }
        }
        let found = match self.look_up.find(places.to_vec()) {
            Ok(found) => found,
            // Damage, or a form of the index that is unknown.
            Err(e) if e.kind == ErrorKind::Damaged => return self.settle(e),
            Err(e) => return Err(e),
        };
        let mut known = self.known.lock();
        known.check()?;
        if self.whole.get().is_some() {
            // Another thread read the table meanwhile, which was not compared with these chunks.
            return Ok(None);
        }
        known.look_ups += u64::from(!in_order);
        match known.add(&found, self.count) {
            Ok(()) => {}
            Err(Contradiction::TwoAnswers) => {
                known.state = State::Contradicted;
                return Err(two_answers());
            }
            Err(Contradiction::Impossible) => {
                drop(known);
                let why = "chunk table: chunks overlap, or lie outside the grid";
                return self.settle(Error::damaged(why));
            }
        }
        let mut slot = None;
        for &place in places {
            // Only chunks of earlier look-ups are forgotten.
            let found = known.get(place).ok_or_else(outside)?;
            slot = slot.or(Some(found).filter(|_| place == first));
        }
        Ok(slot)
    }

    /// Reads the table after a look-up that failed or cannot be right.
    fn settle(&self, e: Error) -> Result<Option<Slot>> {
        match self.read_whole()? {
            true => Ok(None),
            false => Err(self.refuse(e)),
        }
    }

    /// Leaves the chunks to libhdf5.
    fn refuse(&self, e: Error) -> Error {
        self.known.lock().state = State::Refused;
        e
    }

    /// Reads the whole table, or has a thread read it if look-ups are quick: reading the table takes as long as very many
    /// of them. Returns `false` if there is no table yet.
    fn has_read_whole(self: &Arc<Self>) -> Result<bool> {
        if !self.look_up.is_quick() {
            return self.read_whole();
        }
        if !self.is_read_beside.swap(true, Ordering::AcqRel) {
            let own = self.clone();
            let started = thread::spawn("chunk-table", move || {
                // Readers meet a failure that lasts in their look-ups, or in the state.
                if own.read_whole().is_err() {
                    own.known.lock().begin_again();
                }
                own.is_read_beside.store(false, Ordering::Release);
            });
            // Without a thread, look-ups go on.
            if started.is_err() {
                self.is_read_beside.store(false, Ordering::Release);
            }
        }
        Ok(self.whole.get().is_some())
    }

    /// Reads the whole table, and compares it with the chunks that are known. Returns `false` if there is no table at
    /// the moment.
    fn read_whole(&self) -> Result<bool> {
        let _one = self.reading.lock();
        self.known.lock().check()?;
        if self.whole.get().is_some() {
            return Ok(true);
        }
        let table = match self.look_up.whole()? {
            WholeTable::Table(table) => table,
            WholeTable::Missing => {
                self.known.lock().begin_again();
                return Ok(false);
            }
            WholeTable::Refused => {
                return Err(self.refuse(Error::damaged("chunk table: refused")));
            }
        };
        let mut known = self.known.lock();
        let agrees = |(&place, (slot, _)): (&u64, &(Slot, bool))| {
            let at = usize::try_from(place).ok();
            at.and_then(|at| table.slots.get(at)) == Some(slot)
        };
        let full = usize::try_from(self.count).is_ok_and(|count| count == table.slots.len());
        if !full || !known.slots.iter().all(agrees) {
            known.state = State::Contradicted;
            return Err(two_answers());
        }
        known.slots = HashMap::new();
        known.extents = BTreeMap::new();
        let _ = self.whole.set(table);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;

    const COUNT: u64 = 50_000;
    const COST: u64 = 128;

    /// An index of chunks of ten bytes, one behind the other; every third is not there.
    #[derive(Default)]
    struct Index {
        looked_up: Arc<AtomicUsize>,
        read: Arc<AtomicUsize>,
        /// A chunk about which look-ups lie, and what they say.
        lie: Option<(u64, Slot)>,
        /// Look-ups fail.
        fails: Option<ErrorKind>,
        refused: bool,
        missing: bool,
        /// Look-ups are quick, so that a thread reads the table, which takes as long as this is locked.
        quick: bool,
        held: Arc<Mutex<()>>,
        /// The table cannot be read at present.
        unreadable: bool,
    }

    fn slot(place: u64) -> Slot {
        match place % 3 {
            2 => Slot::default(),
            _ => Slot {
                addr: 100 + 10 * place,
                size: 10,
                mask: 0,
            },
        }
    }

    impl LookUp for Index {
        fn find(&self, places: Vec<u64>) -> Result<Vec<ChunkRun>> {
            self.looked_up.fetch_add(1, Ordering::Relaxed);
            if let Some(kind) = self.fails {
                return Err(Error::new(kind, "failed"));
            }
            let said = |place| match self.lie {
                Some((at, slot)) if at == place => slot,
                _ => slot(place),
            };
            // Another chunk is found beside each.
            let run = |place: u64| ChunkRun {
                first: place,
                slots: (place..(place + 2).min(COUNT)).map(said).collect(),
            };
            Ok(places.into_iter().map(run).collect())
        }

        fn is_quick(&self) -> bool {
            self.quick
        }

        fn cost(&self) -> u64 {
            COST
        }

        fn whole(&self) -> Result<WholeTable> {
            self.read.fetch_add(1, Ordering::Relaxed);
            let _held = self.held.lock();
            if self.unreadable {
                return Err(Error::new(ErrorKind::Os(libc::EIO), "failed"));
            }
            if self.refused {
                return Ok(WholeTable::Refused);
            }
            if self.missing {
                return Ok(WholeTable::Missing);
            }
            Ok(WholeTable::Table(ChunkTable {
                slots: (0..COUNT).map(slot).collect(),
                ..ChunkTable::default()
            }))
        }
    }

    fn places(index: Index) -> ChunkPlaces {
        ChunkPlaces::looked_up(ChunkTable::default(), COUNT, Box::new(index))
    }

    #[test]
    fn a_few_chunks_are_looked_up_and_many_read_the_table() {
        let index = Index::default();
        let (looked_up, read) = (index.looked_up.clone(), index.read.clone());
        let counts = || {
            (
                looked_up.load(Ordering::Relaxed),
                read.load(Ordering::Relaxed),
            )
        };
        let places = places(index);
        assert_eq!(places.get(7).unwrap(), slot(7));
        assert_eq!(places.get(8).unwrap(), Slot::default());
        assert_eq!(counts(), (1, 0));
        places.prepare(1000..1500, false).unwrap();
        assert!((1000..1500).all(|place| places.get(place).unwrap() == slot(place)));
        assert_eq!(counts(), (2, 0));
        assert!(places.get(COUNT).is_err() && places.table().is_none());
        assert_eq!(places.weight(), 16 * COUNT as usize);
        for start in (10_000..20_000).step_by(1000) {
            places.prepare(start..start + 1000, false).unwrap();
        }
        assert_eq!(counts().1, 1);
        assert!((0..COUNT).all(|place| places.get(place).unwrap() == slot(place)));
        assert!(places.get(COUNT).is_err());
        assert_eq!(counts().1, 1);
    }

    #[test]
    fn threads_that_want_one_chunk_look_it_up_once() {
        let index = Index {
            quick: true,
            ..Index::default()
        };
        let looked_up = index.looked_up.clone();
        let places = places(index);
        let together = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    together.wait();
                    assert_eq!(places.get(7).unwrap(), slot(7));
                    places.prepare(500..510, false).unwrap();
                });
            }
        });
        assert_eq!(looked_up.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn many_look_ups_of_single_chunks_read_the_table() {
        let index = Index::default();
        let (looked_up, read) = (index.looked_up.clone(), index.read.clone());
        let places = places(index);
        for place in (0..COUNT).step_by(50) {
            places.prepare(std::iter::once(place), false).unwrap();
            assert_eq!(places.get(place).unwrap(), slot(place));
        }
        assert_eq!(read.load(Ordering::Relaxed), 1);
        assert!(looked_up.load(Ordering::Relaxed) as u64 <= COUNT / COST + 1);
    }

    /// Looks up single chunks, from the `first` on, until a thread has begun to read the table.
    fn look_up_until_read(places: &ChunkPlaces, read: &AtomicUsize, first: u64) {
        let before = read.load(Ordering::Relaxed);
        for place in (first..COUNT).step_by(50) {
            assert_eq!(places.get(place).unwrap(), slot(place));
        }
        wait_for(|| read.load(Ordering::Relaxed) > before);
    }

    fn wait_for(mut what: impl FnMut() -> bool) {
        while !what() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn quick_look_ups_go_on_while_the_table_is_read() {
        let index = Index {
            quick: true,
            ..Index::default()
        };
        let (looked_up, read) = (index.looked_up.clone(), index.read.clone());
        let held = index.held.clone();
        let places = places(index);
        let reading = held.lock();
        look_up_until_read(&places, &read, 0);
        assert!(looked_up.load(Ordering::Relaxed) as u64 > COUNT / COST);
        for place in (7..COUNT).step_by(500) {
            places.prepare(std::iter::once(place), false).unwrap();
            assert_eq!(places.get(place).unwrap(), slot(place));
        }
        assert!(places.table().is_none());
        drop(reading);
        wait_for(|| places.table().is_some());
        let before = looked_up.load(Ordering::Relaxed);
        assert!((0..COUNT).all(|place| places.get(place).unwrap() == slot(place)));
        assert_eq!(looked_up.load(Ordering::Relaxed), before);
        assert_eq!(read.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_table_read_beside_must_agree_with_look_ups_made_meanwhile() {
        let lie = Slot {
            addr: 77,
            size: 10,
            mask: 0,
        };
        let index = Index {
            quick: true,
            lie: Some((301, lie)),
            ..Index::default()
        };
        let (read, held) = (index.read.clone(), index.held.clone());
        let places = places(index);
        let reading = held.lock();
        look_up_until_read(&places, &read, 0);
        assert_eq!(places.get(301).unwrap(), lie);
        drop(reading);
        wait_for(|| places.get(301).is_err());
        assert_eq!(places.get(0).unwrap_err().kind, ErrorKind::Damaged);
        assert!(places.table().is_none() && !places.is_refused());
    }

    #[test]
    fn a_table_that_cannot_be_read_beside_is_tried_again_later() {
        let index = Index {
            quick: true,
            unreadable: true,
            ..Index::default()
        };
        let read = index.read.clone();
        let places = places(index);
        for first in [0, 10] {
            look_up_until_read(&places, &read, first);
            let looked_up = places.look_ups().unwrap();
            wait_for(|| !looked_up.is_read_beside.load(Ordering::Acquire));
        }
        // Each time after twice as many look-ups.
        let looked_up = places.look_ups().unwrap();
        let mut known = looked_up.known.lock();
        known.look_ups = 4 * (COUNT / COST);
        assert!(!looked_up.is_much(&known));
        known.look_ups += 1;
        assert!(looked_up.is_much(&known));
        drop(known);
        let refused = self::places(Index {
            quick: true,
            refused: true,
            ..Index::default()
        });
        for place in (0..COUNT).step_by(50) {
            // The table may be refused at any moment.
            let _ = refused.get(place);
        }
        wait_for(|| refused.is_refused());
        assert!(refused.get(0).is_err());
    }

    #[test]
    fn a_table_that_says_something_else_is_an_error_from_then_on() {
        let lie = Slot {
            addr: 77,
            size: 10,
            mask: 0,
        };
        let index = Index {
            lie: Some((300, lie)),
            ..Index::default()
        };
        let places = places(index);
        assert_eq!(places.get(300).unwrap(), lie);
        assert_eq!(places.get(303).unwrap(), slot(303));
        assert!(places.prepare_all().is_err() && !places.is_refused());
        for place in [300, 303, 900] {
            assert_eq!(places.get(place).unwrap_err().kind, ErrorKind::Damaged);
            assert!(places.prepare(std::iter::once(place), false).is_err());
        }
    }

    #[test]
    fn chunks_that_share_bytes_or_have_two_answers_are_errors() {
        // The table is refused, too: libhdf5 reads.
        let overlapping = Slot {
            addr: slot(7).addr,
            ..slot(7)
        };
        let refused = places(Index {
            lie: Some((4000, overlapping)),
            refused: true,
            ..Index::default()
        });
        refused.get(7).unwrap();
        assert!(refused.get(4000).is_err() && refused.is_refused());
        // The table is a good one: it says something else.
        for addr in [slot(7).addr, slot(7).addr - 9, slot(7).addr + 9] {
            let overlapping = Slot { addr, ..slot(7) };
            let index = Index {
                lie: Some((4000, overlapping)),
                ..Index::default()
            };
            let places = places(index);
            places.get(7).unwrap();
            places.get(6).unwrap();
            assert!(places.get(4000).is_err());
            assert!(places.get(7).is_err(), "it was known before");
        }
        let mut known = KnownChunks::default();
        let run = |slot| ChunkRun {
            first: 5,
            slots: vec![slot],
        };
        known.add(&[run(slot(4))], COUNT).unwrap();
        known.add(&[run(slot(4))], COUNT).unwrap();
        assert!(known.add(&[run(slot(7))], COUNT).is_err());
        assert!(
            known
                .add(
                    &[ChunkRun {
                        first: COUNT,
                        ..run(slot(1))
                    }],
                    COUNT
                )
                .is_err()
        );
    }

    #[test]
    fn look_ups_that_fail_read_the_table_and_without_one_libhdf5_reads() {
        let places_of = |fails, refused, missing| {
            places(Index {
                fails: Some(fails),
                refused,
                missing,
                ..Index::default()
            })
        };
        let damaged = places_of(ErrorKind::Damaged, false, false);
        assert_eq!(damaged.get(4).unwrap(), slot(4));
        let refused = places_of(ErrorKind::Damaged, true, false);
        assert!(refused.get(4).is_err() && refused.is_refused());
        let crowded = places_of(ErrorKind::Damaged, false, true);
        assert!(crowded.get(4).is_err() && crowded.is_refused());
        let stale = places_of(ErrorKind::Stale, false, false);
        assert_eq!(stale.get(4).unwrap_err().kind, ErrorKind::Stale);
        assert!(!stale.is_refused() && stale.table().is_none());
    }

    #[test]
    fn without_room_for_the_table_look_ups_go_on_and_forget() {
        let places = places(Index {
            missing: true,
            ..Index::default()
        });
        for start in (0..COUNT - 1000).step_by(1000) {
            places.prepare(start..start + 1000, false).unwrap();
            assert!((start..start + 1000).all(|place| places.get(place).unwrap() == slot(place)));
            let known = places.look_ups().unwrap().known.lock();
            assert!(known.slots.len() <= MOST_KNOWN && known.extents.len() <= MOST_KNOWN);
        }
        assert!(!places.is_refused() && places.table().is_none());
    }
}
