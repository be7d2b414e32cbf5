//! Strings: `values` holds them one after the other, each with a zero byte behind it; `segments` where they
//! begin. Shown at the width of the longest, made while they are read.
//!
//! Source: Arkouda, `src/HDF5Msg.chpl` lines 1014 to 1126. A string never lies in two files, and in each file
//! segments begin at 0. They may be left out. The bytes are UTF-8 that nobody checked: `|S` keeps them.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::array::{Array, Origin};
use super::object::{Joined, Object};
use super::once::Once;
use super::recognition::{is_bytes, is_integers};
use super::rows::words;
use super::segments::{Rule, Scan, ScannedStarts, check, int64, rebased};
use super::set::LocaleSet;
use crate::content::{Concat, Content};
use crate::dtype::{DType, Kind, Order};
use crate::error::{Error, Result};
use crate::store::array::ArrayFile;

/// The strings of all parts.
pub struct Strings {
    set: Arc<LocaleSet>,
    parts: Vec<Part>,
    measured: Once<Arc<Measure>>,
}

/// The strings of one part; a locale without any may have neither.
struct Part {
    values: Option<ArrayFile>,
    segments: Option<ArrayFile>,
}

/// What one pass found.
pub struct Measure {
    /// The most bytes of a string, at least 1.
    pub width: u64,
    /// Strings of each part.
    pub rows: Vec<u64>,
    /// Where the strings of a part without segments are.
    scans: Vec<Option<Arc<Scan>>>,
}

impl Part {
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
    /// The strings of an object whose parts are groups, or empty datasets where a locale has none.
    pub fn new(origin: &Origin, joined: &Joined) -> Result<Self> {
        let parts = joined.parts.iter().enumerate().map(|(number, object)| {
            let name = origin.set.name(number);
            let object = object.as_ref().filter(|object| object.is_group());
            let Some(object) = object else {
                return Ok(Part {
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
                    // An empty part may have anything that holds nothing.
                    member("values").filter(|values| values.dataset.shape == [0])
                })
                .ok_or_else(|| Error::damaged(format!("values are no 1-D bytes in {name}")))?;
            let segments = member("segments");
            let has_segments = object.member("segments").is_some();
            if has_segments && !segments.as_ref().is_some_and(|s| is_integers(&s.dataset)) {
                let why = format!("segments are no 1-D integers in {name}");
                return Err(Error::damaged(why));
            }
            Ok(Part {
                values: Some(values),
                segments,
            })
        });
        Ok(Self {
            set: origin.set.clone(),
            parts: parts.collect::<Result<_>>()?,
            measured: Once::default(),
        })
    }

    /// Strings in each part: known from the segments, or measured.
    pub fn rows(&self) -> Result<Vec<u64>> {
        match self.parts.iter().map(Part::stored_rows).collect() {
            Some(rows) => Ok(rows),
            None => Ok(self.measure()?.rows.clone()),
        }
    }

    /// Bytes of each part, those behind the strings included.
    pub fn bytes(&self) -> Vec<u64> {
        self.parts.iter().map(Part::bytes).collect()
    }

    /// The datasets of bytes.
    pub fn values(&self) -> impl Iterator<Item = &ArrayFile> {
        self.parts.iter().filter_map(|part| part.values.as_ref())
    }

    /// What is stored, in bytes.
    pub fn stored(&self) -> u64 {
        let segments = self.parts.iter().filter_map(Part::stored_rows);
        let bytes: u64 = self.bytes().iter().fold(0, |n, &b| n.saturating_add(b));
        segments.fold(bytes, |n, rows| n.saturating_add(rows.saturating_mul(8)))
    }

    /// Looks at all segments, or where there are none at all values.
    pub fn measure(&self) -> Result<Arc<Measure>> {
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

    /// Why there is no form of fixed width; `None` if there is one.
    ///
    /// Does not measure what cannot be too large: no string is longer than the bytes of its part.
    pub fn too_wide(&self) -> Result<Option<String>> {
        let stored = self.stored();
        let limit = self.set.context.options.strings_limit(stored);
        if let Ok(rows) = self.rows_if_stored().ok_or(()) {
            let longest = self.bytes().into_iter().max().unwrap_or(0);
            if rows.saturating_mul(longest) <= limit {
                return Ok(None);
            }
        }
        let measure = self.measure()?;
        let rows: u64 = measure.rows.iter().sum();
        let expanded = rows.saturating_mul(measure.width);
        Ok((expanded > limit).then(|| {
            format!(
                "{rows} strings take {expanded} bytes at the width of the longest, {}: more than text_limit allows ({limit} bytes)",
                measure.width
            )
        }))
    }

    fn rows_if_stored(&self) -> Option<u64> {
        self.parts.iter().map(Part::stored_rows).sum()
    }

    /// Where the strings of one part begin.
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

    /// The strings at fixed width.
    pub fn fixed_width(self: &Arc<Self>) -> Arc<dyn Array> {
        Arc::new(FixedWidth(self.clone()))
    }

    /// Where they begin in all values together.
    pub fn segments(self: &Arc<Self>) -> Arc<dyn Array> {
        Arc::new(JoinedStarts(self.clone()))
    }
}

/// The widest string with its end, the number of strings, and where they are if no segments say so.
fn measure(part: &Part) -> Result<(u64, u64, Option<Arc<Scan>>)> {
    let Some(values) = &part.values else {
        return Ok((0, 0, None));
    };
    let bytes = part.bytes();
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
        let scan = Scan::of(&payload)?;
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

impl Array for FixedWidth {
    fn form(&self) -> Result<(DType, Vec<u64>)> {
        let measure = self.0.measure()?;
        let width = usize::try_from(measure.width).unwrap_or(usize::MAX);
        Ok((DType::bytes(width), vec![measure.rows.iter().sum()]))
    }

    fn payload(&self) -> Result<Arc<dyn Content>> {
        let measure = self.0.measure()?;
        let parts = self.0.parts.iter().enumerate();
        let parts = parts
            .filter_map(|(number, part)| Some((number, part.values.as_ref()?)))
            .filter(|(number, _)| measure.rows[*number] > 0)
            .map(|(number, values)| {
                Ok(Arc::new(Padded {
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

impl Array for JoinedStarts {
    fn form(&self) -> Result<(DType, Vec<u64>)> {
        Ok((DType::int(8), vec![self.0.rows()?.iter().sum()]))
    }

    fn payload(&self) -> Result<Arc<dyn Content>> {
        let measure = self.0.measure()?;
        let mut base = 0;
        let mut parts = Vec::new();
        for (number, part) in self.0.parts.iter().enumerate() {
            if measure.rows[number] > 0 {
                parts.push(rebased(self.0.starts(&measure, number)?, base));
            }
            base += part.bytes();
        }
        Ok(Arc::new(Concat::new(parts)))
    }

    fn part(&self, number: usize) -> Json {
        self.0.part_info(number)
    }
}

/// The bytes of all strings, `|u1`.
pub fn values_dtype() -> DType {
    DType::scalar(Kind::Uint, 1, Order::None)
}

/// Strings in rows of `width` bytes, zeros behind each.
struct Padded {
    /// One 64-bit integer per row.
    starts: Arc<dyn Content>,
    values: Arc<dyn Content>,
    width: u64,
    rows: u64,
}

/// Rows whose starts are read together.
const ROWS: u64 = 16 << 10;

/// Bytes of values that are read together.
const SPAN: u64 = 1 << 20;

impl Padded {
    /// Where each row from `first` on begins, and where the last of them ends.
    fn starts(&self, first: u64, count: u64) -> Result<Vec<u64>> {
        let with_end = (count + 1).min(self.rows - first);
        let mut bytes = vec![0; usize::try_from(8 * with_end).unwrap_or(0)];
        self.starts.read_at(8 * first, &mut bytes)?;
        let mut starts: Vec<u64> = words(&bytes).map(i64::cast_unsigned).collect();
        if with_end == count {
            starts.push(self.values.len());
        }
        // They were checked when they were measured; the file may have changed since.
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

impl Content for Padded {
    fn len(&self) -> u64 {
        self.rows.saturating_mul(self.width)
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
                // As many rows as lie in one window of values; of a longer one only what is asked for.
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

/// Writes rows: `starts` has one more element than there are rows, `values` begins at the first of them.
/// `skip` bytes of the first row are left out. Answers how many bytes were written.
fn pad(
    values: &[u8],
    starts: &[u64],
    width: u64,
    skip: u64,
    out: &mut [u8],
    row: u64,
) -> Result<usize> {
    let base = starts.first().copied().unwrap_or(0);
    // Rows here lie in a buffer of at most SPAN bytes, but padding may be wide.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::{Literal, read};
    use proptest::prelude::*;

    fn padded(strings: &[Vec<u8>], width: u64) -> (Padded, Vec<u8>) {
        let (mut values, mut starts, mut want) = (Vec::new(), Vec::new(), Vec::new());
        for string in strings {
            starts.extend_from_slice(&(values.len() as i64).to_le_bytes());
            values.extend_from_slice(string);
            values.push(0);
            want.extend_from_slice(string);
            want.resize(want.len() + width as usize - string.len(), 0);
        }
        let padded = Padded {
            starts: Arc::new(Literal(starts)),
            values: Arc::new(Literal(values)),
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
            let got = read(&padded, at, len).unwrap();
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
            let got = read(&padded, at, len).unwrap();
            assert_eq!(got.as_ref(), &want[at as usize..at as usize + len]);
        }
    }

    #[test]
    fn a_string_without_its_end_is_refused() {
        let (mut padded, _) = padded(&[b"ab".to_vec(), b"c".to_vec()], 2);
        padded.values = Arc::new(Literal(b"abxc\0".to_vec()));
        let error = read(&padded, 0, 4).unwrap_err();
        assert_eq!(error.message, "no zero byte behind string 0 of its part");
        assert!(read(&padded, 2, 2).is_ok());
    }
}
