//! Where each string or segment begins: stored, or found by looking for the ends of the strings.
//!
//! Arkouda writes one start per entry and no end behind the last (`src/HDF5Msg.chpl` lines 1014 to 1408); in
//! every file of a set they begin anew. They are never held in memory: one pass checks them and finds the
//! widest gap, and windows are read as they are needed.

use std::sync::Arc;

use super::marks::integer;
use super::recognition::scalar;
use super::rows::{Converted, words};
use crate::content::Content;
use crate::dtype::{DType, Kind, Order};
use crate::error::{Error, Result};
use crate::h5::Element;
use crate::store::array::ArrayFile;

/// Bytes that a pass reads at a time.
const STEP: usize = 1 << 20;

/// Strings between two starts that a scan keeps.
const EVERY: u64 = 4096;

/// The elements of an integer dataset as little-endian 64-bit integers. Unsigned ones beyond 2^63 - 1 become
/// negative, and are refused as such.
pub fn int64(array: &ArrayFile) -> Result<Arc<dyn Content>> {
    let payload: Arc<dyn Content> = Arc::new(array.payload()?);
    let Element::Fixed {
        dtype: DType::Scalar {
            kind, size, order, ..
        },
        ..
    } = &array.dataset.element
    else {
        return Err(Error::damaged("not integers").about(array.path()));
    };
    let (kind, size, order) = (*kind, *size, *order);
    if !matches!(
        scalar(&array.dataset),
        Some((Kind::Int | Kind::Uint, 1..=8))
    ) {
        return Err(Error::damaged("not integers").about(array.path()));
    }
    if size == 8 && order == Order::Little {
        return Ok(payload);
    }
    Ok(Arc::new(Converted::new(
        payload,
        size,
        8,
        move |from, to| {
            for (from, to) in from.chunks_exact(size).zip(to.chunks_exact_mut(8)) {
                let number = integer(from, kind, order).unwrap_or(-1);
                to.copy_from_slice(&number.to_le_bytes());
            }
        },
    )))
}

/// The same numbers with something added to each.
pub fn rebased(starts: Arc<dyn Content>, base: u64) -> Arc<dyn Content> {
    if base == 0 {
        return starts;
    }
    let base = base.cast_signed();
    Arc::new(Converted::new(starts, 8, 8, move |from, to| {
        for (number, to) in words(from).zip(to.as_chunks_mut::<8>().0) {
            *to = number.wrapping_add(base).to_le_bytes();
        }
    }))
}

/// What starts must obey.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// How many values there are to point at.
    pub values: u64,
    /// Every entry has at least one value: the zero byte behind a string.
    pub strict: bool,
}

/// Checks starts in one pass; the largest number of values that an entry has.
pub fn check(starts: &dyn Content, rule: Rule) -> Result<u64> {
    let limit = i64::try_from(rule.values).map_err(|_| Error::damaged("too many values"))?;
    let rows = starts.len() / 8;
    let least_gap = i64::from(rule.strict);
    let mut widest = 0;
    let mut before: Option<i64> = None;
    let mut buf = vec![0; STEP];
    let mut row = 0;
    while row < rows {
        let window = read_window(starts, row * 8, &mut buf)?;
        // Without one before it, the first start is as good as any.
        let first = words(window).next().unwrap_or(0);
        let mut last = before.unwrap_or(first.wrapping_sub(least_gap));
        let (mut low, mut high, mut least, mut most) = (i64::MAX, i64::MIN, i64::MAX, 0);
        for start in words(window) {
            // A difference of wrong numbers may wrap: then one of them is out of bounds.
            let gap = start.wrapping_sub(last);
            (low, high) = (low.min(start), high.max(start));
            (least, most) = (least.min(gap), most.max(gap));
            last = start;
        }
        if low < 0 || high > limit || least < least_gap {
            return Err(complain(window, row, before, rule));
        }
        widest = widest.max(most);
        before = Some(last);
        row += window.len() as u64 / 8;
    }
    if let Some(last) = before {
        let gap = limit - last;
        if rule.strict && gap < 1 {
            let why = format!("segment {} is {last}, there are {limit} values", rows - 1);
            return Err(Error::damaged(why));
        }
        widest = widest.max(gap);
    }
    Ok(widest.unsigned_abs())
}

/// Finds the first start in a window that breaks a rule.
fn complain(window: &[u8], row: u64, mut before: Option<i64>, rule: Rule) -> Error {
    let limit = rule.values.cast_signed();
    for (start, row) in words(window).zip(row..) {
        if start < 0 || start > limit {
            let why = format!("segment {row} is {start}, there are {limit} values");
            return Error::damaged(why);
        }
        if let Some(before) = before {
            if start < before {
                let why = format!("segment {row} is {start}, the one before it {before}");
                return Error::damaged(why);
            }
            if rule.strict && start == before {
                let why = format!(
                    "segments {} and {row} are both {start}: no room for the end of a string",
                    row - 1
                );
                return Error::damaged(why);
            }
        }
        before = Some(start);
    }
    Error::damaged("segments that contradict each other")
}

/// Strings found by their ends, where no segments are stored.
pub struct Scan {
    pub rows: u64,
    /// The most bytes of a string, its end included.
    pub widest: u64,
    /// The start of every `EVERY`th string.
    starts: Vec<u64>,
}

impl Scan {
    /// Looks at all values.
    pub fn of(values: &dyn Content) -> Result<Self> {
        let mut scan = Self {
            rows: 0,
            widest: 0,
            starts: Vec::new(),
        };
        let (mut start, mut at) = (0, 0);
        let mut buf = vec![0; STEP];
        while at < values.len() {
            let window = read_window(values, at, &mut buf)?;
            for (end, _) in (at + 1..).zip(window).filter(|(_, byte)| **byte == 0) {
                if scan.rows.is_multiple_of(EVERY) {
                    scan.starts.push(start);
                }
                scan.widest = scan.widest.max(end - start);
                scan.rows += 1;
                start = end;
            }
            at += window.len() as u64;
        }
        // What has no end is no string: the caller looks at the last byte.
        Ok(scan)
    }
}

/// The next bytes of a content, as many as `buf` holds or are left.
fn read_window<'a>(content: &dyn Content, at: u64, buf: &'a mut [u8]) -> Result<&'a [u8]> {
    let left = usize::try_from(content.len().saturating_sub(at)).unwrap_or(usize::MAX);
    let len = left.min(buf.len());
    let window = &mut buf[..len];
    content.read_at(at, window)?;
    Ok(window)
}

/// The starts that a scan found, as if they were stored.
pub struct ScannedStarts {
    pub scan: Arc<Scan>,
    pub values: Arc<dyn Content>,
}

impl Content for ScannedStarts {
    fn len(&self) -> u64 {
        self.scan.rows * 8
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        super::rows::in_rows(8, offset, buf, |first, rows| {
            let known = usize::try_from(first / EVERY).ok();
            let mut start = known
                .and_then(|at| self.scan.starts.get(at).copied())
                .ok_or_else(changed)?;
            let mut row = first / EVERY * EVERY;
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
    use crate::content::{Literal, read};
    use proptest::prelude::*;

    fn content(starts: &[i64]) -> Literal {
        Literal(starts.iter().flat_map(|n| n.to_le_bytes()).collect())
    }

    fn checked(starts: &[i64], values: u64, strict: bool) -> std::result::Result<u64, String> {
        check(&content(starts), Rule { values, strict }).map_err(|e| e.message)
    }

    #[test]
    fn starts_in_order_give_the_widest_entry() {
        assert_eq!(checked(&[0, 2, 7], 8, true), Ok(5));
        assert_eq!(checked(&[0, 2, 3], 9, true), Ok(6));
        assert_eq!(checked(&[0, 0, 3, 3], 3, false), Ok(3));
        assert_eq!(checked(&[], 5, true), Ok(0));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let says = |starts: &[i64], strict| checked(starts, 9, strict).unwrap_err();
        assert_eq!(
            says(&[0, 5, 4], false),
            "segment 2 is 4, the one before it 5"
        );
        assert_eq!(says(&[0, 10], false), "segment 1 is 10, there are 9 values");
        assert_eq!(says(&[-1, 3], false), "segment 0 is -1, there are 9 values");
        assert_eq!(
            says(&[0, i64::MIN], false).split(' ').next(),
            Some("segment")
        );
        assert_eq!(
            says(&[i64::MAX, i64::MIN], true).split(' ').next(),
            Some("segment")
        );
        assert!(says(&[0, 3, 3], true).starts_with("segments 1 and 2 are both 3"));
        assert_eq!(says(&[0, 9], true), "segment 1 is 9, there are 9 values");
    }

    #[test]
    fn an_offence_far_behind_is_found() {
        let mut starts: Vec<i64> = (0..300_000).collect();
        assert_eq!(checked(&starts, 300_000, true), Ok(1));
        starts[262_144] = 5;
        let says = checked(&starts, 300_000, true).unwrap_err();
        assert_eq!(says, "segment 262144 is 5, the one before it 262143");
    }

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
            let values: Arc<dyn Content> = Arc::new(Literal(values));
            let scan = Arc::new(Scan::of(&*values).unwrap());
            prop_assert_eq!(scan.rows, lengths.len() as u64);
            prop_assert_eq!(scan.widest, lengths.iter().max().map_or(0, |n| *n as u64 + 1));
            let found = ScannedStarts { scan, values };
            let want = content(&starts);
            prop_assert_eq!(found.len(), want.len());
            let (got, want) = (read(&found, at, len).unwrap(), read(&want, at, len).unwrap());
            prop_assert_eq!(got.as_ref(), want.as_ref());
        }
    }
}
