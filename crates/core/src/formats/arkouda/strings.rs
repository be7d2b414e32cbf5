//! Strings: `values` holds the concatenated strings, each followed by a zero byte; `segments` holds their starts. They
//! are shown at the width of the longest one, and padded while they are read.
//!
//! Source: Arkouda, `src/HDF5Msg.chpl` lines 1014 to 1126. A string is never split over two files, and in each file
//! segments begin at 0. Segments may be absent. The bytes should be UTF-8 but are not validated: `|S` preserves them.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::array::{ArraySource, Origin};
use super::object::{Joined, Object, is_bytes, is_integers, total};
use super::once::Once;
use super::padded::Padded;
use super::scan::{Scan, ScannedStarts};
use super::segments::{Rule, check, rebased};
use super::set::LocaleSet;
use crate::formats::plain::array::ArrayFile;
use crate::formats::plain::integers::{bounded, int64};
use npyfs_base::error::{Error, Result};
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_io::content::{Concat, Content};

/// The strings of all parts.
pub(super) struct Strings {
    set: Arc<LocaleSet>,
    parts: Vec<LocaleStrings>,
    measured: Once<Arc<Measure>>,
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
    pub(super) fn new(origin: &Origin, joined: &Joined) -> Result<Self> {
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
            measured: Once::default(),
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
