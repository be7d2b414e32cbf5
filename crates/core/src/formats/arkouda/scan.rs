//! Finds strings by their terminators, if no segments record where they begin.

use std::sync::Arc;

use npyfs_base::error::{Error, Result};
use npyfs_io::content::Content;
use npyfs_io::rows::{STEP, in_rows, read_window};

/// The number of starts that a scan keeps: those of every `every`th string.
const KEPT: usize = 1 << 16;

/// The result of one pass over all values.
pub(super) struct Scan {
    pub rows: u64,
    /// The most bytes of a string, including its terminator.
    pub widest: u64,
    /// The start of every `every`th string.
    starts: Vec<u64>,
    every: u64,
    /// The most starts that are kept.
    kept: usize,
}

impl Scan {
    /// Scans all values.
    pub(super) fn of(values: &dyn Content) -> Result<Self> {
        Self::keeping(values, KEPT)
    }

    /// Scans, keeping at most `kept` starts, an even number.
    fn keeping(values: &dyn Content, kept: usize) -> Result<Self> {
        let mut scan = Self {
            kept,
            rows: 0,
            widest: 0,
            starts: Vec::new(),
            every: 256,
        };
        let (mut start, mut at) = (0, 0);
        let mut buf = vec![0; STEP];
        while at < values.len() {
            let window = read_window(values, at, &mut buf)?;
            for (end, _) in (at + 1..).zip(window).filter(|(_, byte)| **byte == 0) {
                if scan.rows.is_multiple_of(scan.every) {
                    scan.keep(start);
                }
                scan.widest = scan.widest.max(end - start);
                scan.rows += 1;
                start = end;
            }
            at += window.len() as u64;
        }
        // Unterminated bytes are not a string: the caller checks the last byte.
        Ok(scan)
    }

    /// Keeps a start; if there are too many, every second one is dropped.
    fn keep(&mut self, start: u64) {
        if self.starts.len() == self.kept {
            self.every *= 2;
            let mut at = 0;
            self.starts.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            // The present number is a multiple of both.
        }
        self.starts.push(start);
    }
}

/// The starts found by a scan, as if they were stored.
pub(super) struct ScannedStarts {
    pub scan: Arc<Scan>,
    pub values: Arc<dyn Content>,
}

impl Content for ScannedStarts {
    fn len(&self) -> u64 {
        self.scan.rows * 8
    }

    fn is_costly(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        in_rows(8, offset, buf, |first, rows| {
            let known = usize::try_from(first / self.scan.every).ok();
            let mut start = known
                .and_then(|at| self.scan.starts.get(at).copied())
                .ok_or_else(changed)?;
            let mut row = first / self.scan.every * self.scan.every;
            let mut out = rows.as_chunks_mut::<8>().0.iter_mut();
            let mut at = start;
            let mut buf = vec![0; 64 << 10];
            let mut wanted = out.next();
            loop {
                let window = read_window(&*self.values, at, &mut buf)?;
                if window.is_empty() {
                    return Err(changed());
                }
                for (end, _) in (at + 1..).zip(window).filter(|(_, byte)| **byte == 0) {
                    if row >= first {
                        let Some(place) = wanted else { return Ok(()) };
                        *place = start.to_le_bytes();
                        wanted = out.next();
                        if wanted.is_none() {
                            return Ok(());
                        }
                    }
                    row += 1;
                    start = end;
                }
                at += window.len() as u64;
            }
        })
    }
}

fn changed() -> Error {
    Error::damaged("values are not what they were when they were measured")
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_io::content::{InMemory, read};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn scanned_starts_are_those_of_the_strings(
            lengths in proptest::collection::vec(0_usize..9, 0..20_000),
            at in 0_u64..200_000,
            len in 0_usize..100_000,
        ) {
            let mut values = Vec::new();
            let mut starts = Vec::new();
            for &n in &lengths {
                starts.push(values.len() as i64);
                values.extend(std::iter::repeat_n(b'x', n));
                values.push(0);
            }
            let values: Arc<dyn Content> = Arc::new(InMemory(values));
            let scan = Arc::new(Scan::keeping(&*values, 8).unwrap());
            prop_assert_eq!(scan.rows, lengths.len() as u64);
            prop_assert_eq!(scan.widest, lengths.iter().max().map_or(0, |n| *n as u64 + 1));
            let found = ScannedStarts { scan, values };
            let want = InMemory(starts.iter().flat_map(|n| n.to_le_bytes()).collect());
            prop_assert_eq!(found.len(), want.len());
            let (got, want) = (read(&found, at, len, &Arc::default()).unwrap(), read(&want, at, len, &Arc::default()).unwrap());
            prop_assert_eq!(got.as_ref(), want.as_ref());
        }
    }
}
