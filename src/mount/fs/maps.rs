//! Reads through memory maps: which files are mapped, and which bytes the kernel is given beside the page that a
//! program touched.
//!
//! The kernel reads *around* a page that is touched in a map, by as much as it reads ahead in a file: 2 MiB of which a
//! sample is 12 KiB. So a file that is probably mapped is opened with the least read-ahead, a page; the kernel then
//! asks for the page that was touched and nothing else, and is given the rest of the row of the first axis with it. A
//! reader that goes on in order is given more each time, in either direction: glibc copies memory from its end where
//! the source and the target begin almost alike in their pages.
//!
//! Tables have extents, their columns, and are mapped: every open of one is by page, and a page that is touched brings
//! its window of the column.
//!
//! The kernel does not tell whether an array is mapped. `np.load(mmap_mode="r")` opens a file twice: it reads the
//! header through the first handle and maps the second. A wrong guess affects speed only.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use lru::LruCache;
use parking_lot::Mutex;

use npyfs_base::tuning::Tuning;
use npyfs_core::dataset::access_pattern::AccessPattern;
use npyfs_io::content::{self, Content};

/// The most bytes that are read at once for a page: they are copied into the page cache for nothing if the program
/// wants that page only.
const LARGEST: u64 = 1 << 20;

/// The same for bytes that need not be decoded, and would not be read otherwise.
const LARGEST_STORED: u64 = 128 << 10;

/// The same for a page of a table, which is decoded on several processors.
const WINDOW: u64 = 2 << 20;

/// Bytes of a request that shows a program which reads, and for which the kernel asks for the next bytes by itself.
const LONG: u64 = 128 << 10;

/// The end of what is read for a header, with what the kernel reads ahead.
const HEADER: u64 = 512 << 10;

/// What was read through the handles that were opened last, by inode and by the thread that opened them.
pub(super) struct MappedFiles(Mutex<LruCache<(u64, u32), Arc<AccessPattern>>>);

impl MappedFiles {
    /// Creates an empty table.
    pub(super) fn new(tuning: &Tuning) -> Self {
        let size = NonZeroUsize::new(tuning.sampled_files).unwrap_or(NonZeroUsize::MIN);
        Self(Mutex::new(LruCache::new(size)))
    }

    /// Notes that a thread opens a file. Returns true if it will probably map the file: it has opened the file before
    /// and read no more than the header.
    pub(super) fn opened(&self, ino: u64, thread: u32, pattern: &Arc<AccessPattern>) -> bool {
        let mut files = self.0.lock();
        let before = files.put((ino, thread), pattern.clone());
        before.is_some_and(|before| {
            let span = before.span();
            span.is_none_or(|span| span.start == 0 && span.end <= HEADER)
        })
    }
}

/// Bytes that the kernel should be given for a request, around those that it asked for.
pub struct WantedBytes {
    /// The bytes, as a range of the file.
    pub range: Range<u64>,
    /// The request is for a page that was touched in a map, as far as can be told.
    pub is_mapped: bool,
}

/// The reads of one handle for which the kernel asks page by page.
pub(super) struct PageReads {
    /// The first byte and the length of the rows of the outermost axis; `None`: no array.
    rows: OnceLock<Option<(u64, u64)>>,
    last: Mutex<LastGiven>,
    /// A request was for more than a page.
    is_read: AtomicBool,
}

/// The bytes that the kernel was given last.
#[derive(Default)]
struct LastGiven {
    range: Range<u64>,
    run: Run,
}

/// The number of runs that are given what is expected of them before one is measured again.
const EXPECTED: u32 = 8;

/// What a reader goes through in order before it goes on elsewhere: `a[i:i+8]`, again and again. The kernel asks for
/// nothing that it has been given, so a run is measured by giving it little at first.
#[derive(Default)]
struct Run {
    /// The bytes that this run was given, at first and until now.
    first: u64,
    given: u64,
    /// What the run that was measured last was given; 0 if that was one row.
    measured: u64,
    /// What runs are given at first, and for how many of them this holds.
    expected: u64,
    left: u32,
    /// The last run that went on did so towards the beginning of the file.
    is_backward: bool,
}

impl Run {
    /// Begins a run whose first row has `row` bytes. Returns the bytes to give.
    fn begin(&mut self, row: u64) -> u64 {
        let went_on = self.given > self.first;
        if self.left > 0 && !went_on {
            self.left -= 1;
        } else {
            // Two runs show what to expect of others.
            let taken = if went_on { self.given } else { 0 };
            self.expected = taken.min(self.measured).min(LARGEST);
            self.measured = taken;
            self.left = if self.expected > 0 { EXPECTED } else { 0 };
        }
        let expected = if self.left > 0 { self.expected } else { 0 };
        self.first = expected.max(row);
        self.given = self.first;
        self.first
    }

    /// Notes that the run is given more.
    fn goes_on(&mut self, len: u64, is_backward: bool) {
        self.given = self.given.saturating_add(len);
        self.is_backward = is_backward;
    }
}

impl PageReads {
    /// Creates the reads of a handle that has read nothing.
    pub(super) fn new() -> Self {
        Self {
            rows: OnceLock::new(),
            last: Mutex::default(),
            is_read: AtomicBool::new(false),
        }
    }

    /// Returns the bytes to read for a request of the kernel, which come in pages of `page` bytes: those that are asked
    /// for, and others that the program will probably touch.
    pub(super) fn wanted(
        &self,
        content: &dyn Content,
        page: u64,
        asked: Range<u64>,
    ) -> WantedBytes {
        let size = asked.end.saturating_sub(asked.start);
        if let Some(extent) = content.extent(asked.start) {
            // Programs announce (`MADV_WILLNEED`) more than a page of what they map.
            let is_mapped = size == page;
            let range = match is_mapped {
                true => window(content, page, &asked, &extent),
                false => asked,
            };
            return WantedBytes { range, is_mapped };
        }
        if size > page {
            self.is_read.store(true, Ordering::Relaxed);
        }
        WantedBytes {
            range: self.in_rows(content, page, asked, size),
            is_mapped: !self.is_read.load(Ordering::Relaxed),
        }
    }

    /// Returns the same for an array, `size` bytes of which are asked for.
    fn in_rows(
        &self,
        content: &dyn Content,
        page: u64,
        asked: Range<u64>,
        size: u64,
    ) -> Range<u64> {
        // May read the header: not with the lock held.
        let row = (size == page).then(|| self.row(content, page, &asked));
        let mut last = self.last.lock();
        let Range { start, end } = last.range;
        let len = end - start;
        let is_next = len > 0 && (end..=end.saturating_add(len)).contains(&asked.start);
        let is_before = len > 0 && (start.saturating_sub(len)..=start).contains(&asked.end);
        let wanted = if !asked.start.is_multiple_of(page) || size >= LONG {
            asked
        } else if is_next || is_before {
            let factor = if content.is_costly() { 2 } else { 8 };
            let len = (factor * len).clamp(size, LARGEST) / page * page;
            last.run.goes_on(len, is_before);
            match is_before {
                true => asked.end.saturating_sub(len).min(asked.start)..asked.end,
                false => asked.start..asked.start.saturating_add(len).max(asked.end),
            }
        } else if let Some(row) = row {
            let given = last.run.begin(row.end - row.start) / page * page;
            match last.run.is_backward {
                true => row.end.saturating_sub(given).min(row.start)..row.end,
                false => {
                    let end = row.start.saturating_add(given).min(content.len());
                    row.start..end.next_multiple_of(page).max(row.end)
                }
            }
        } else {
            asked
        };
        last.range = wanted.clone();
        wanted
    }

    /// Returns the pages of the last row that begins in the page `asked`, or of the row that the page lies in.
    fn row(&self, content: &dyn Content, page: u64, asked: &Range<u64>) -> Range<u64> {
        let most = match content.is_costly() {
            true => LARGEST,
            false => LARGEST_STORED,
        };
        let rows = self.rows.get_or_init(|| rows(content));
        let Some((first, row)) = *rows else {
            return asked.clone();
        };
        if row <= page || row > most || asked.end <= first {
            return asked.clone();
        }
        let begin = first + (asked.end - 1 - first) / row * row;
        let end = begin.saturating_add(row).min(content.len());
        let from = begin.min(asked.start) / page * page;
        from..end.next_multiple_of(page).max(asked.end)
    }
}

/// Returns the pages of the window of an extent that the page `asked` lies in. Windows do not depend on what was asked
/// for before: programs go through an extent with several threads, and backwards.
fn window(content: &dyn Content, page: u64, asked: &Range<u64>, extent: &Range<u64>) -> Range<u64> {
    let size = match content.is_costly() {
        true => WINDOW,
        false => LARGEST_STORED,
    };
    let first = extent.start / page * page;
    let before = asked.start.saturating_sub(first) / size * size;
    let start = first.saturating_add(before);
    let end = start.saturating_add(size).min(extent.end);
    start..end.next_multiple_of(page).max(asked.end)
}

/// Returns the first byte and the length of the rows of an array's outermost axis in memory.
fn rows(content: &dyn Content) -> Option<(u64, u64)> {
    let header = content::npy_header(content).ok()?.ok()?;
    let count = match header.fortran_order {
        true => header.shape.last(),
        false => header.shape.first(),
    };
    let row = header.len.checked_div(*count?)?;
    (row > 0).then_some((header.start, row))
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_io::content::{Concat, InMemory};

    const PAGE: u64 = 4096;

    /// An array of `count` rows of `row` bytes.
    fn array(count: usize, row: usize) -> InMemory {
        let head =
            format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({count}, {row}), }}");
        let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        bytes.extend(head.as_bytes());
        bytes.resize(127, b' ');
        bytes.push(b'\n');
        bytes.resize(128 + count * row, 0);
        InMemory(bytes)
    }

    fn page(number: u64) -> Range<u64> {
        number * PAGE..(number + 1) * PAGE
    }

    #[test]
    fn a_touched_page_brings_its_row() {
        let rows = array(100, 12288);
        let wanted = |number| PageReads::new().wanted(&rows, PAGE, page(number)).range;
        // Row 10 is bytes 128..12416 of pages 30 to 33.
        assert_eq!(wanted(30), 30 * PAGE..34 * PAGE);
        assert_eq!(wanted(31), 30 * PAGE..34 * PAGE);
        assert_eq!(wanted(33), 33 * PAGE..37 * PAGE);
        assert_eq!(wanted(0), 0..4 * PAGE);
        // Of short rows a page has several.
        let wanted = PageReads::new().wanted(&array(1000, 1200), PAGE, page(30));
        assert_eq!((wanted.range, wanted.is_mapped), (page(30), true));
        // Nothing is read beyond the end of the file but the rest of its page.
        let wanted = PageReads::new().wanted(&rows, PAGE, page(299));
        assert_eq!(wanted.range, 297 * PAGE..301 * PAGE);
    }

    #[test]
    fn a_reader_in_order_is_given_more_each_time() {
        let rows = array(10_000, 12288);
        let reads = PageReads::new();
        let (mut at, mut lens) = (30, Vec::new());
        for _ in 0..10 {
            let wanted = reads.wanted(&rows, PAGE, page(at)).range;
            lens.push((wanted.end - wanted.start) / PAGE);
            at = wanted.end / PAGE;
        }
        assert_eq!(lens, [4, 32, 256, 256, 256, 256, 256, 256, 256, 256]);
        let wanted = reads.wanted(&rows, PAGE, page(9000)).range;
        assert_eq!(wanted, 9000 * PAGE..9004 * PAGE);
        // By short reads, too; of others nothing is given but what they ask for.
        let wanted = |from, to| reads.wanted(&rows, PAGE, from * PAGE..to * PAGE).range;
        assert_eq!(wanted(9004, 9006), 9004 * PAGE..9036 * PAGE);
        assert_eq!(wanted(100, 102), 100 * PAGE..102 * PAGE);
        assert_eq!(wanted(102, 134), 102 * PAGE..134 * PAGE);
    }

    #[test]
    fn so_is_a_reader_from_the_end() {
        let rows = array(10_000, 12288);
        let reads = PageReads::new();
        // Touches some pages from the last one on, and returns how many each request is given.
        let run = |end: u64, pages: u64| {
            let (mut at, mut given) = (end, Vec::new());
            while at > end - pages {
                let wanted = reads.wanted(&rows, PAGE, page(at - 1)).range;
                given.push((wanted.end - wanted.start) / PAGE);
                assert!(wanted.contains(&((at - 1) * PAGE)));
                at = wanted.start / PAGE;
            }
            given
        };
        // Row 999 ends in page 3000.
        assert_eq!(run(3000, 1000), [4, 32, 256, 256, 256, 256]);
        assert_eq!(run(6000, 25), [4, 32]);
        for end in [9000, 12_000, 15_000] {
            assert_eq!(run(end, 25), [36], "{end}");
        }
        // Nothing lies before the first page.
        assert_eq!(run(6, 6), [7]);
    }

    #[test]
    fn runs_are_given_what_runs_before_took() {
        let rows = array(10_000, 12288);
        let reads = PageReads::new();
        // Touches some pages in order, and returns how many each request is given.
        let run = |number: u64, pages: u64| {
            let (mut at, mut given) = (number * 300, Vec::new());
            let end = at + pages;
            while at < end {
                let wanted = reads.wanted(&rows, PAGE, page(at)).range;
                given.push((wanted.end - wanted.start) / PAGE);
                at = wanted.end / PAGE;
            }
            given
        };
        assert_eq!(run(1, 25), [4, 32]);
        assert_eq!(run(2, 25), [4, 32]);
        for number in 3..11 {
            assert_eq!(run(number, 25), [36], "{number}");
        }
        // One is measured now and then.
        assert_eq!(run(11, 25), [4, 32]);
        assert_eq!(run(12, 25), [36]);
        // A reader of single rows is given too much eight times.
        for number in 13..20 {
            assert_eq!(run(number, 4), [36], "{number}");
        }
        for number in 20..30 {
            assert_eq!(run(number, 4), [4], "{number}");
        }
        // One run alone shows nothing.
        assert_eq!(run(30, 25), [4, 32]);
        assert_eq!(run(31, 4), [4]);
        assert_eq!(run(32, 25), [4, 32]);
    }

    #[test]
    fn a_touched_page_of_a_table_brings_its_window() {
        let part = |len: u64| Arc::new(InMemory(vec![0; len as usize])) as Arc<dyn Content>;
        // A message, a column of 300 KiB that ends in a page of its own, and another column.
        let table = Concat::of_extents([part(PAGE), part(300 << 10), part(PAGE), part(1 << 20)]);
        let reads = PageReads::new();
        let wanted = |from, to| {
            let wanted = reads.wanted(&table, PAGE, from * PAGE..to * PAGE);
            let range = wanted.range;
            (range.start / PAGE, range.end / PAGE, wanted.is_mapped)
        };
        assert_eq!(wanted(0, 1), (0, 1, true));
        assert_eq!(wanted(1, 2), (1, 33, true));
        assert_eq!(wanted(40, 41), (33, 65, true));
        assert_eq!(wanted(75, 76), (65, 76, true));
        assert_eq!(wanted(77, 78), (77, 109, true));
        // What is announced is given as it was asked for, and says nothing of the pages that are touched then.
        assert_eq!(wanted(33, 65), (33, 65, false));
        assert_eq!(wanted(33, 34), (33, 65, true));
    }

    #[test]
    fn a_thread_that_read_the_header_maps_the_file() {
        let files = MappedFiles::new(&Tuning::default());
        let open = |thread, reads: &[(u64, u64)]| {
            let pattern = Arc::default();
            let is_mapped = files.opened(7, thread, &pattern);
            for &(offset, len) in reads {
                pattern.note(offset, len);
            }
            is_mapped
        };
        assert!(!open(1, &[(0, 32 << 10)]));
        assert!(open(1, &[(40 << 20, 4096)]));
        assert!(!open(1, &[(0, 32 << 10)]));
        // Whatever other threads do in between.
        assert!(!open(2, &[]));
        assert!(!open(3, &[(0, 32 << 10)]));
        assert!(open(2, &[(0, 8 << 20)]));
        assert!(open(3, &[]));
        assert!(!open(2, &[]));
    }
}
