//! Strings: `values` holds the concatenated strings, each followed by a zero byte; `segments` holds their starts. They
//! are shown at the width of the longest one, and padded while they are read.
//!
//! Source: Arkouda, `src/HDF5Msg.chpl` lines 1014 to 1126. A string is never split over two files, and in each file
//! segments begin at 0. Segments may be absent: then a `Scan` finds the strings by their terminators. The bytes should
//! be UTF-8 but are not validated: `|S` preserves them.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::array::{ArraySource, Origin};
use super::object::{JoinedObject, Object, is_bytes, is_integers, total};
use super::segments::{OnceResult, Rule, check, rebased};
use super::set::LocaleSet;
use crate::formats::plain::array::ArrayFile;
use crate::formats::plain::integers::{bounded, int64};
use npyfs_base::error::{Error, Result};
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_io::content::{Concat, Content};
use npyfs_io::provenance::Provenance;
use npyfs_io::rows::{STEP, in_rows, read_window, words};

/// The strings of all parts.
pub(super) struct Strings {
    set: Arc<LocaleSet>,
    parts: Vec<LocaleStrings>,
    measured: OnceResult<Arc<Measure>>,
}

/// The strings of one part; a locale without strings may have neither dataset.
struct LocaleStrings {
    values: Option<ArrayFile>,
    segments: Option<ArrayFile>,
}

/// The result of a pass over the strings.
pub(super) struct Measure {
    /// The most bytes of a string, at least 1.
    pub width: u64,
    /// The number of strings in each part.
    pub rows: Vec<u64>,
    /// The starts of strings in parts without segments.
    scans: Vec<Option<Arc<Scan>>>,
}

impl LocaleStrings {
    fn bytes(&self) -> u64 {
        self.values
            .as_ref()
            .map_or(0, |values| values.dataset.shape[0])
    }

    fn stored_rows(&self) -> Option<u64> {
        match (&self.segments, &self.values) {
            (Some(segments), _) => Some(segments.dataset.shape[0]),
            (None, None) => Some(0),
            (None, Some(_)) => None,
        }
    }
}

impl Strings {
    /// Joins the strings of an object whose parts are groups, or empty datasets for a locale without strings.
    pub(super) fn new(origin: &Origin, joined: &JoinedObject) -> Result<Self> {
        let parts = joined.parts.iter().enumerate().map(|(number, object)| {
            let name = origin.set.name(number);
            let object = object.as_ref().filter(|object| object.is_group());
            let Some(object) = object else {
                return Ok(LocaleStrings {
                    values: None,
                    segments: None,
                });
            };
            let member = |name: &str| {
                let joined = joined.member(name)?;
                let object: &Arc<Object> = joined.parts.get(number)?.as_ref()?;
                origin.dataset(number, object, &joined)
            };
            if object.member("values").is_none() {
                return Err(Error::damaged(format!("no values in {name}")));
            }
            let values = member("values")
                .filter(|values| is_bytes(&values.dataset))
                .or_else(|| {
                    // An empty part may hold any empty object.
                    member("values").filter(|values| values.dataset.shape == [0])
                })
                .ok_or_else(|| Error::damaged(format!("values are no 1-D bytes in {name}")))?;
            let segments = member("segments");
            let has_segments = object.member("segments").is_some();
            if has_segments && !segments.as_ref().is_some_and(|s| is_integers(&s.dataset)) {
                let why = format!("segments are no 1-D integers in {name}");
                return Err(Error::damaged(why));
            }
            Ok(LocaleStrings {
                values: Some(values),
                segments,
            })
        });
        Ok(Self {
            set: origin.set.clone(),
            parts: parts.collect::<Result<_>>()?,
            measured: OnceResult::default(),
        })
    }

    /// Returns the number of strings in each part: known from the segments, or measured.
    pub(super) fn rows(&self) -> Result<Vec<u64>> {
        match self.parts.iter().map(LocaleStrings::stored_rows).collect() {
            Some(rows) => Ok(rows),
            None => Ok(self.measure()?.rows.clone()),
        }
    }

    /// Returns the bytes of each part, including terminators.
    pub(super) fn bytes(&self) -> Vec<u64> {
        self.parts.iter().map(LocaleStrings::bytes).collect()
    }

    /// Returns whether segments are stored; fails if only some of the parts with strings have them.
    pub(super) fn has_segments(&self) -> Result<bool> {
        let with_values = self.parts.iter().filter(|part| part.bytes() > 0);
        let mut has = with_values.map(|part| part.segments.is_some());
        let first = has.next().unwrap_or(true);
        match has.all(|here| here == first) {
            true => Ok(first),
            false => Err(Error::damaged("segments are missing in some of the files")),
        }
    }

    /// Returns the datasets of bytes.
    pub(super) fn values(&self) -> impl Iterator<Item = &ArrayFile> {
        self.parts.iter().filter_map(|part| part.values.as_ref())
    }

    /// Returns the stored size in bytes.
    pub(super) fn stored(&self) -> u64 {
        let segments = self.parts.iter().filter_map(LocaleStrings::stored_rows);
        let bytes = total(self.bytes());
        segments.fold(bytes, |n, rows| n.saturating_add(rows.saturating_mul(8)))
    }

    /// Makes a pass over all segments, or over all values if there are none.
    pub(super) fn measure(&self) -> Result<Arc<Measure>> {
        self.measured.get(|| {
            let (mut widest, mut rows, mut scans) = (0, Vec::new(), Vec::new());
            for (number, part) in self.parts.iter().enumerate() {
                let about = |e: Error| e.about(self.set.name(number));
                let (w, n, scan) = measure(part).map_err(about)?;
                widest = widest.max(w);
                rows.push(n);
                scans.push(scan);
            }
            Ok(Arc::new(Measure {
                // Without the zero byte.
                width: widest.saturating_sub(1).max(1),
                rows,
                scans,
            }))
        })
    }

    /// Returns why the strings are not shown at a fixed width; `None` if they are.
    ///
    /// Makes no pass if they cannot be too large: no string is longer than the bytes of its part.
    pub(super) fn too_wide(&self) -> Result<Option<String>> {
        let stored = self.stored();
        let limit = self.set.context.options.strings_limit(stored);
        if let Some(rows) = self.rows_if_stored() {
            let longest = self.bytes().into_iter().max().unwrap_or(0);
            if rows.saturating_mul(longest) <= limit {
                return Ok(None);
            }
        }
        let measure = self.measure()?;
        let rows = total(measure.rows.iter().copied());
        let expanded = rows.saturating_mul(measure.width);
        Ok((expanded > limit).then(|| {
            format!(
                "{rows} strings take {expanded} bytes at the width of the longest, {}: more than text_limit allows ({limit} bytes)",
                measure.width
            )
        }))
    }

    fn rows_if_stored(&self) -> Option<u64> {
        let rows: Option<Vec<u64>> = self.parts.iter().map(LocaleStrings::stored_rows).collect();
        rows.map(total)
    }

    /// Returns the starts of the strings of one part.
    fn starts(&self, measure: &Measure, number: usize) -> Result<Arc<dyn Content>> {
        let part = &self.parts[number];
        if let Some(segments) = &part.segments {
            return int64(segments);
        }
        match (&measure.scans[number], &part.values) {
            (Some(scan), Some(values)) => Ok(Arc::new(ScannedStarts {
                scan: scan.clone(),
                values: Arc::new(values.payload()?),
            })),
            _ => Ok(Arc::new(Concat::new([]))),
        }
    }

    fn part_info(&self, number: usize) -> Json {
        let part = &self.parts[number];
        let measured = || {
            let measure = self.measure().ok()?;
            measure.rows.get(number).copied()
        };
        json!({
            "strings": part.stored_rows().or_else(measured),
            "bytes": part.bytes(),
            "segments": part.segments.is_some(),
        })
    }

    /// Returns the strings at a fixed width.
    pub(super) fn fixed_width(self: &Arc<Self>) -> Arc<dyn ArraySource> {
        Arc::new(FixedWidth(self.clone()))
    }

    /// Returns their starts in the concatenation of all values.
    pub(super) fn segments(self: &Arc<Self>) -> Arc<dyn ArraySource> {
        Arc::new(JoinedStarts(self.clone()))
    }
}

/// Returns the widest string with its terminator, the number of strings, and their starts if there are no segments.
fn measure(part: &LocaleStrings) -> Result<(u64, u64, Option<Arc<Scan>>)> {
    let Some(values) = &part.values else {
        return Ok((0, 0, None));
    };
    let bytes = part.bytes();
    bounded(values, bytes)?;
    let payload = values.payload()?;
    if bytes > 0 {
        let mut last = [0];
        payload.read_at(bytes - 1, &mut last)?;
        if last != [0] {
            return Err(Error::damaged(
                "the last string has no zero byte behind it: values are cut off",
            ));
        }
    }
    let Some(segments) = &part.segments else {
        let scan = Scan::new(&payload)?;
        return Ok((scan.widest, scan.rows, Some(Arc::new(scan))));
    };
    let rows = segments.dataset.shape[0];
    if rows == 0 && bytes > 0 {
        let why = format!("{bytes} bytes of values and no segments");
        return Err(Error::damaged(why));
    }
    let rule = Rule {
        values: bytes,
        strict: true,
    };
    Ok((check(&*int64(segments)?, rule)?, rows, None))
}

/// `|S<width>`, one element per string.
struct FixedWidth(Arc<Strings>);

impl ArraySource for FixedWidth {
    fn form(&self) -> Result<(DType, Vec<u64>)> {
        let measure = self.0.measure()?;
        let width = usize::try_from(measure.width).unwrap_or(usize::MAX);
        Ok((
            DType::bytes(width),
            vec![total(measure.rows.iter().copied())],
        ))
    }

    fn payload(&self) -> Result<Arc<dyn Content>> {
        let measure = self.0.measure()?;
        let parts = self.0.parts.iter().enumerate();
        let parts = parts
            .filter_map(|(number, part)| Some((number, part.values.as_ref()?)))
            .filter(|(number, _)| measure.rows[*number] > 0)
            .map(|(number, values)| {
                Ok(Arc::new(PaddedStrings {
                    starts: self.0.starts(&measure, number)?,
                    values: Arc::new(values.payload()?),
                    width: measure.width,
                    rows: measure.rows[number],
                }) as Arc<dyn Content>)
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Arc::new(Concat::new(parts)))
    }

    fn part(&self, number: usize) -> Json {
        self.0.part_info(number)
    }
}

/// `<i8`, rebased.
struct JoinedStarts(Arc<Strings>);

impl ArraySource for JoinedStarts {
    fn form(&self) -> Result<(DType, Vec<u64>)> {
        Ok((DType::int(8), vec![total(self.0.rows()?)]))
    }

    fn payload(&self) -> Result<Arc<dyn Content>> {
        let measure = self.0.measure()?;
        let mut base = 0;
        let mut parts = Vec::new();
        for (number, part) in self.0.parts.iter().enumerate() {
            if measure.rows[number] > 0 {
                parts.push(rebased(self.0.starts(&measure, number)?, base));
            }
            base = total([base, part.bytes()]);
        }
        Ok(Arc::new(Concat::new(parts)))
    }

    fn part(&self, number: usize) -> Json {
        self.0.part_info(number)
    }
}

/// The bytes of all strings, `|u1`.
pub(super) fn values_dtype() -> DType {
    DType::scalar(Kind::Uint, 1, Order::None)
}

/// Strings in rows of `width` bytes, padded with zeros.
struct PaddedStrings {
    /// One 64-bit integer per row.
    pub starts: Arc<dyn Content>,
    pub values: Arc<dyn Content>,
    pub width: u64,
    pub rows: u64,
}

/// The number of rows whose starts are read together.
const ROWS: u64 = 16 << 10;

/// Bytes of values that are read together.
const SPAN: u64 = 1 << 20;

impl PaddedStrings {
    /// Returns the start of each row from `first` on, and the end of the last one.
    fn starts(&self, first: u64, count: u64) -> Result<Vec<u64>> {
        let with_end = (count + 1).min(self.rows - first);
        let mut bytes = vec![0; usize::try_from(8 * with_end).unwrap_or(0)];
        self.starts.read_at(8 * first, &mut bytes)?;
        let mut starts: Vec<u64> = words(&bytes).map(i64::cast_unsigned).collect();
        if with_end == count {
            starts.push(self.values.len());
        }
        // They were checked by the measuring pass, but the file may have changed since.
        let in_order = starts.windows(2).all(|pair| pair[0] < pair[1])
            && starts.last().is_none_or(|&end| end <= self.values.len())
            && starts
                .windows(2)
                .all(|pair| pair[1] - pair[0] - 1 <= self.width);
        if !in_order {
            return Err(Error::damaged(
                "segments are not what they were when they were measured",
            ));
        }
        Ok(starts)
    }
}

impl Content for PaddedStrings {
    fn len(&self) -> u64 {
        self.rows.saturating_mul(self.width)
    }

    fn is_costly(&self) -> bool {
        self.starts.is_costly() || self.values.is_costly()
    }

    fn tell_provenance(&self, to: &mut Provenance) -> bool {
        to.numbers("padded", &[self.rows, self.width]);
        self.starts.tell_provenance(to) && self.values.tell_provenance(to)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut values = Vec::new();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let row = at / self.width;
            let end = (offset + buf.len() as u64)
                .div_ceil(self.width)
                .min(self.rows);
            let starts = self.starts(row, (end - row).min(ROWS))?;
            let mut skip = at % self.width;
            let mut i = 0;
            while i + 1 < starts.len() && done < buf.len() {
                // As many rows as fit into one window of values; of a longer row only the requested part.
                let from = starts[i];
                let n = starts[i + 1..]
                    .partition_point(|&end| end - from <= SPAN)
                    .max(1);
                let last = starts[i + n];
                if last - from > SPAN {
                    let len = last - 1 - from;
                    let room = usize::try_from(self.width - skip).unwrap_or(usize::MAX);
                    let out = &mut buf[done..];
                    let room = room.min(out.len());
                    let out = &mut out[..room];
                    let there = usize::try_from(len.saturating_sub(skip)).unwrap_or(usize::MAX);
                    let (text, rest) = out.split_at_mut(there.min(room));
                    if !text.is_empty() {
                        self.values.read_at(from + skip, text)?;
                    }
                    rest.fill(0);
                    done += room;
                } else {
                    // At most SPAN.
                    values.resize((last - from) as usize, 0);
                    self.values.read_at(from, &mut values)?;
                    done += pad(
                        &values,
                        &starts[i..=i + n],
                        self.width,
                        skip,
                        &mut buf[done..],
                        row + i as u64,
                    )?;
                }
                skip = 0;
                i += n;
            }
        }
        Ok(())
    }
}

/// Writes rows: `starts` has one more element than there are rows, and `values` begins at the first row. The first
/// `skip` bytes of the first row are left out. Returns the number of bytes written.
fn pad(
    values: &[u8],
    starts: &[u64],
    width: u64,
    skip: u64,
    out: &mut [u8],
    row: u64,
) -> Result<usize> {
    let base = starts.first().copied().unwrap_or(0);
    // Rows are in a buffer of at most SPAN bytes, but padding may be wide.
    let width = usize::try_from(width).unwrap_or(usize::MAX);
    let mut skip = usize::try_from(skip).unwrap_or(0);
    let mut done = 0;
    for (pair, row) in starts.windows(2).zip(row..) {
        if done == out.len() {
            break;
        }
        let (from, end) = ((pair[0] - base) as usize, (pair[1] - base) as usize);
        let text = values.get(from..end).unwrap_or_default();
        let Some((0, text)) = text.split_last() else {
            return Err(Error::damaged(format!(
                "no zero byte behind string {row} of its part"
            )));
        };
        let room = (width - skip).min(out.len() - done);
        let (place, text) = (
            &mut out[done..done + room],
            text.get(skip..).unwrap_or_default(),
        );
        let n = text.len().min(room);
        place[..n].copy_from_slice(&text[..n]);
        place[n..].fill(0);
        done += room;
        skip = 0;
    }
    Ok(done)
}

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
    pub(super) fn new(values: &dyn Content) -> Result<Self> {
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
struct ScannedStarts {
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
    use proptest::prelude::*;

    use super::*;
    use npyfs_io::content::{InMemory, read};

    fn padded(strings: &[Vec<u8>], width: u64) -> (PaddedStrings, Vec<u8>) {
        let (mut values, mut starts, mut want) = (Vec::new(), Vec::new(), Vec::new());
        for string in strings {
            starts.extend_from_slice(&(values.len() as i64).to_le_bytes());
            values.extend_from_slice(string);
            values.push(0);
            want.extend_from_slice(string);
            want.resize(want.len() + width as usize - string.len(), 0);
        }
        let padded = PaddedStrings {
            starts: Arc::new(InMemory(starts)),
            values: Arc::new(InMemory(values)),
            width,
            rows: strings.len() as u64,
        };
        (padded, want)
    }

    proptest! {
        #[test]
        fn any_range_of_bytes_is_that_of_the_padded_strings(
            strings in proptest::collection::vec(proptest::collection::vec(1_u8..255, 0..9), 0..300),
            spare in 0_u64..3,
            at in 0_u64..3000,
            len in 0_usize..3000,
        ) {
            let longest = strings.iter().map(Vec::len).max().unwrap_or(0) as u64;
            let (padded, want) = padded(&strings, longest.max(1) + spare);
            prop_assert_eq!(padded.len(), want.len() as u64);
            let got = read(&padded, at, len, &Arc::default()).unwrap();
            let from = (at as usize).min(want.len());
            prop_assert_eq!(got.as_ref(), &want[from..(from + len).min(want.len())]);
        }
    }

    #[test]
    fn strings_longer_than_a_window_are_read_in_part() {
        let long: Vec<u8> = (0..3 << 20).map(|i| (i % 255) as u8 + 1).collect();
        let strings = [b"ab".to_vec(), long, b"c".to_vec(), vec![b'x'; 2 << 20]];
        let (padded, want) = padded(&strings, 3 << 20);
        for (at, len) in [
            (0, 10),
            (3 << 20, 100),
            ((3 << 20) - 7, 5 << 20),
            ((6 << 20) - 3, 9),
            ((11 << 20) - 9, 1 << 20),
        ] {
            let got = read(&padded, at, len, &Arc::default()).unwrap();
            assert_eq!(got.as_ref(), &want[at as usize..at as usize + len]);
        }
    }

    #[test]
    fn a_string_without_its_end_is_refused() {
        let (mut padded, _) = padded(&[b"ab".to_vec(), b"c".to_vec()], 2);
        padded.values = Arc::new(InMemory(b"abxc\0".to_vec()));
        let error = read(&padded, 0, 4, &Arc::default()).unwrap_err();
        assert_eq!(error.message, "no zero byte behind string 0 of its part");
        assert!(read(&padded, 2, 2, &Arc::default()).is_ok());
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
