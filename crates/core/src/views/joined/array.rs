//! An array in several stores: whether its parts can be joined, and how its chunks come from the chunks of the stores.
//!
//! Parts are joined only if their types, their meaning and all other dimensions are the same. An array without the
//! dimension must begin with the same elements in all stores. A chunk of the joined array is one of a store where the
//! chunk boundaries allow it, and is assembled from several otherwise.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use serde_json::{Value as Json, json};
use xxhash_rust::xxh3::Xxh3Default;

use super::Joining;
use crate::tree::array::{ArrayDescription, Elements, Presence, StoredArray, place_of};
use crate::tree::{Directory, Listing, info};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::{Attribute, Value};
use npyfs_io::content::{Content, InMemory};
use npyfs_io::file::Ownership;

/// The array in one store.
pub(super) struct Part {
    pub(super) array: Arc<dyn StoredArray>,
    pub(super) of: ArrayDescription,
    presence: OnceLock<Presence>,
}

impl Part {
    pub(super) fn new(array: Arc<dyn StoredArray>) -> Result<Self> {
        Ok(Self {
            of: array.describe()?,
            array,
            presence: OnceLock::new(),
        })
    }

    /// Returns whether a chunk was ever written. If this is unknown, the chunk is read, and the read fails.
    fn has_written(&self, place: &[u64]) -> bool {
        let presence = match self.presence.get() {
            Some(known) => known,
            None => {
                let made = self.array.presence(&self.of).unwrap_or(Presence::All);
                self.presence.get_or_init(|| made)
            }
        };
        match presence {
            Presence::All => true,
            Presence::Nothing => false,
            Presence::Some(is_written) => is_written(place),
        }
    }

    /// Returns the bytes of a chunk.
    pub(super) fn chunk(&self, place: &[u64]) -> Result<Vec<u8>> {
        let content = self.array.chunk(&self.of, place)?;
        let too_large = || Error::new(ErrorKind::TooLarge, "a chunk of more than 256 MiB");
        let len =
            usize::try_from(content.len().min(MOST_ASSEMBLED + 1)).map_err(|_| too_large())?;
        if len as u64 > MOST_ASSEMBLED {
            return Err(too_large());
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| too_large())?;
        bytes.resize(len, 0);
        content.read_whole(&mut bytes)?;
        Ok(bytes)
    }
}

/// An array joined over all stores.
pub(super) struct JoinedArray {
    /// The parts that have elements, or only the first one if the array does not have the dimension.
    parts: Arc<Vec<Part>>,
    of: ArrayDescription,
    /// `None` if every store has the same array.
    layout: Option<Arc<Layout>>,
    version: u64,
    /// Shared with the group of the array: whether one of its stores has another version now.
    is_outdated: Arc<AtomicBool>,
}

/// Returns the index of the dimension with this name.
fn axis(of: &ArrayDescription, name: &str) -> Option<usize> {
    let named = of.details.dimensions.as_ref().ok()?;
    let is_it = |name_of: Option<&[u8]>| name_of == Some(name.as_bytes());
    let at = named.dimensions.iter().position(|one| is_it(one.name()))?;
    (at < of.shape.len()).then_some(at)
}

impl JoinedArray {
    /// Joins the arrays of all stores, whose names `name` returns; fails with the reason why they cannot be joined.
    pub(super) fn new(
        joining: &Joining,
        mut parts: Vec<Part>,
        is_outdated: Arc<AtomicBool>,
        name: impl Fn(usize) -> String,
    ) -> std::result::Result<Self, String> {
        let Some(first) = parts.first() else {
            return Err("in no store".to_owned());
        };
        let axis = axis(&first.of, &joining.along);
        // The beginning of the first array is read once, whatever the number of stores.
        let beginning = match axis {
            None if parts.len() > 1 => Some(Beginning::read(first)?),
            _ => None,
        };
        for (store, other) in parts.iter().enumerate().skip(1) {
            let judged = check_same(first, other, axis, &joining.along);
            let begins = |()| match &beginning {
                Some(beginning) => beginning.is_that_of(first, other),
                None => Ok(()),
            };
            judged
                .and_then(begins)
                .map_err(|why| format!("{} differs from {}: {why}", name(store), name(0)))?;
        }
        let mut hash = Xxh3Default::new();
        for part in &parts {
            hash.update(&part.array.version().to_le_bytes());
        }
        let mut of = first.of.clone();
        let layout = match axis {
            None => {
                parts.truncate(1);
                None
            }
            Some(axis) => {
                if parts.iter().any(|part| part.of.shape[axis] > 0) {
                    parts.retain(|part| part.of.shape[axis] > 0);
                } else {
                    parts.truncate(1);
                }
                let shapes: Vec<_> = parts.iter().map(|part| &part.of).collect();
                let layout = Layout::new(axis, &shapes)?;
                of.shape[axis] = layout.len();
                of.chunk = layout.chunk().to_vec();
                Some(Arc::new(layout))
            }
        };
        Ok(Self {
            parts: Arc::new(parts),
            of,
            layout,
            version: hash.digest(),
            is_outdated,
        })
    }

    /// Returns a part whose store still has the version that the array was made from; otherwise ESTALE.
    fn part(&self, part: usize) -> Result<&Part> {
        let none = || Error::new(ErrorKind::NotFound, "no such chunk");
        let part = self.parts.get(part).ok_or_else(none)?;
        if !part.array.is_current() {
            // The group is then rebuilt, so that the next attempt finds the new version.
            self.is_outdated.store(true, Ordering::Relaxed);
            return Err(Error::new(ErrorKind::Stale, "a joined store has changed"));
        }
        Ok(part)
    }

    /// Returns the elements of a chunk that overlaps several chunks of the stores.
    fn assembled(&self, layout: &Layout, dtype: &DType, place: &[u64]) -> Result<Vec<u8>> {
        let outside = || Error::new(ErrorKind::NotFound, "no such chunk");
        let len = layout.chunk_len(dtype.size()).ok_or_else(outside)?;
        let fill = &self.of.details.fill;
        let fill = fill.as_ref().filter(|fill| fill.len() == dtype.size());
        let mut bytes = match fill {
            Some(fill) if fill.iter().any(|&byte| byte != 0) => {
                fill.repeat(len / fill.len().max(1))
            }
            _ => vec![0; len],
        };
        for piece in layout.pieces(place).ok_or_else(outside)? {
            let part = self.part(piece.part)?;
            let from = part.chunk(&piece.place)?;
            let copied = copy_rows(&from, &mut bytes, layout, dtype.size(), &piece);
            copied.ok_or_else(|| Error::damaged("a chunk shorter than it should be"))?;
        }
        Ok(bytes)
    }
}

impl StoredArray for JoinedArray {
    fn name(&self) -> &[u8] {
        self.parts.first().map_or(b"", |part| part.array.name())
    }

    fn dtype(&self) -> Option<&DType> {
        self.parts.first()?.array.dtype()
    }

    fn shape(&self) -> &[u64] {
        &self.of.shape
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn is_current(&self) -> bool {
        // The group in which it was found checks all stores.
        let first = self.parts.first();
        !self.is_outdated.load(Ordering::Relaxed)
            && first.is_some_and(|part| part.array.is_current())
    }

    fn describe(&self) -> Result<ArrayDescription> {
        Ok(self.of.clone())
    }

    fn presence(&self, of: &ArrayDescription) -> Result<Presence> {
        let Some(layout) = &self.layout else {
            return self.part(0)?.array.presence(of);
        };
        if !layout.is_aligned() || of.shape.contains(&0) {
            return Ok(Presence::All);
        }
        let (parts, layout) = (self.parts.clone(), layout.clone());
        Ok(Presence::Some(Box::new(move |place| {
            let found = layout.part(place);
            found.is_none_or(|(part, place)| {
                parts.get(part).is_none_or(|part| part.has_written(&place))
            })
        })))
    }

    fn chunk_len(&self, of: &ArrayDescription, place: &[u64]) -> Result<u64> {
        let outside = || Error::new(ErrorKind::NotFound, "no such chunk");
        let Some(layout) = &self.layout else {
            return self.part(0)?.array.chunk_len(of, place);
        };
        if layout.is_aligned() {
            let (part, place) = layout.part(place).ok_or_else(outside)?;
            let part = self.part(part)?;
            return part.array.chunk_len(&part.of, &place);
        }
        let Elements::Fixed(dtype) = &of.elements else {
            return Err(outside());
        };
        let len = layout.chunk_len(dtype.size()).ok_or_else(outside)?;
        Ok(len as u64)
    }

    fn chunk(&self, of: &ArrayDescription, place: &[u64]) -> Result<Arc<dyn Content>> {
        let outside = || Error::new(ErrorKind::NotFound, "no such chunk");
        let Some(layout) = &self.layout else {
            return self.part(0)?.array.chunk(of, place);
        };
        if layout.is_aligned() {
            let (part, place) = layout.part(place).ok_or_else(outside)?;
            let part = self.part(part)?;
            return part.array.chunk(&part.of, &place);
        }
        let Elements::Fixed(dtype) = &of.elements else {
            return Err(outside());
        };
        Ok(Arc::new(InMemory(self.assembled(layout, dtype, place)?)))
    }
}

/// The entry of a joined array: a directory that contains only the array.
pub(super) struct JoinedDirectory {
    array: Arc<JoinedArray>,
    ownership: Ownership,
}

impl JoinedDirectory {
    pub(super) fn new(array: Arc<JoinedArray>, ownership: Ownership) -> Self {
        Self { array, ownership }
    }
}

impl Directory for JoinedDirectory {
    fn ownership(&self) -> Ownership {
        self.ownership
    }

    fn list(&self) -> Result<Arc<Listing>> {
        Ok(Arc::new(Listing::default()))
    }

    fn is_current(&self) -> bool {
        self.array.is_current()
    }

    fn is_object(&self) -> bool {
        true
    }

    fn info(&self) -> Result<Json> {
        Ok(
            json!({ "kind": "array", "shape": self.array.of.shape, "joined": self.array.layout.is_some() }),
        )
    }

    fn array(self: Arc<Self>) -> Result<Option<Arc<dyn StoredArray>>> {
        Ok(Some(self.array.clone()))
    }
}

/// Attributes that affect the meaning of elements: with other `units`, the same numbers would be other times.
const CODING: [&str; 12] = [
    "_FillValue",
    "_Unsigned",
    "add_offset",
    "bounds",
    "calendar",
    "coordinates",
    "flag_meanings",
    "flag_values",
    "grid_mapping",
    "missing_value",
    "scale_factor",
    "units",
];

/// Arrays without the dimension are compared up to this many bytes.
const COMPARED: u64 = 1 << 20;

fn coding<'a>(
    attributes: &'a [Attribute],
    name: &str,
) -> Option<&'a std::result::Result<Value, String>> {
    let mut named = attributes.iter().filter(|one| one.name == name.as_bytes());
    named.next().map(|one| &one.value)
}

fn equal(
    a: Option<&std::result::Result<Value, String>>,
    b: Option<&std::result::Result<Value, String>>,
) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(Ok(a)), Some(Ok(b))) => a.dtype == b.dtype && a.shape == b.shape && a.data == b.data,
        (Some(Err(a)), Some(Err(b))) => a == b,
        _ => false,
    }
}

/// Returns the value of an attribute in words.
fn value_of(value: Option<&std::result::Result<Value, String>>) -> String {
    match value {
        None => "missing".to_owned(),
        Some(Ok(value)) => info::value(value).to_string(),
        Some(Err(why)) => why.clone(),
    }
}

/// Checks that two arrays have the same type, meaning and dimensions, except for the length of dimension `axis`.
fn check_same(
    first: &Part,
    other: &Part,
    axis: Option<usize>,
    along: &str,
) -> std::result::Result<(), String> {
    let (a, b) = (&first.of, &other.of);
    if a.elements != b.elements {
        return Err("another type".to_owned());
    }
    let dimensions = |of: &ArrayDescription| -> Option<Vec<Vec<u8>>> {
        let named = of.details.dimensions.as_ref().ok()?;
        let names = named.dimensions.iter();
        Some(
            names
                .map(|one| one.name().unwrap_or_default().to_vec())
                .collect(),
        )
    };
    if dimensions(a) != dimensions(b) {
        return Err(format!("dimensions of other names (joined along {along})"));
    }
    let is_same = |k: usize| Some(k) == axis || a.shape[k] == b.shape[k];
    if a.shape.len() != b.shape.len() || !(0..a.shape.len()).all(is_same) {
        return Err(format!("shape {:?}, not {:?}", b.shape, a.shape));
    }
    if a.details.fill != b.details.fill {
        return Err("another fill value".to_owned());
    }
    for name in CODING {
        if !equal(
            coding(&a.details.attributes, name),
            coding(&b.details.attributes, name),
        ) {
            let text = |part: &Part| value_of(coding(&part.of.details.attributes, name));
            return Err(format!("{name} {}, not {}", text(other), text(first)));
        }
    }
    Ok(())
}

/// The beginning of an array, which must be the same in all stores: the first MiB of chunks, and at least one chunk.
struct Beginning(Vec<(Vec<u64>, Vec<u8>)>);

impl Beginning {
    /// Reads the beginning of an array.
    fn read(first: &Part) -> std::result::Result<Self, String> {
        let counts = first.of.counts();
        let all = counts
            .iter()
            .try_fold(1_u64, |n, &count| n.checked_mul(count));
        let all = all.ok_or("more chunks than can be read")?;
        let size = match &first.of.elements {
            Elements::Fixed(dtype) => dtype.size() as u64,
            Elements::Text => 16,
        };
        let chunk = first
            .of
            .chunk
            .iter()
            .fold(size, |n, &d| n.saturating_mul(d));
        let numbers = 0..all.min((COMPARED / chunk.max(1)).max(1));
        let read = numbers.map(|number| {
            let place = place_of(number, &counts);
            let bytes = first.chunk(&place).map_err(|e| e.message)?;
            Ok((place, bytes))
        });
        read.collect::<std::result::Result<_, String>>().map(Self)
    }

    /// Checks that an array of the same shape and type begins with the same elements.
    fn is_that_of(&self, first: &Part, other: &Part) -> std::result::Result<(), String> {
        if first.of.chunk != other.of.chunk {
            return Err("another shape of chunks".to_owned());
        }
        for (place, bytes) in &self.0 {
            if other.chunk(place).map_err(|e| e.message)? != *bytes {
                return Err("other elements".to_owned());
            }
        }
        Ok(())
    }
}

/// Chunks smaller than this are assembled from several stores: each chunk costs a reader a request.
const SMALL_CHUNK: u64 = 64 << 10;

/// The approximate bytes of an assembled chunk.
const WANTED_CHUNK: u64 = 256 << 10;

/// The most bytes of an assembled chunk, or of a chunk that is a source of one.
const MOST_ASSEMBLED: u64 = 256 << 20;

/// The mapping from chunks of the joined array to chunks of the stores.
#[derive(Debug)]
struct Layout {
    axis: usize,
    /// The first row of each part along the dimension, and the total number of rows.
    starts: Vec<u64>,
    /// The shape of a chunk.
    chunk: Vec<u64>,
    /// Rows of a chunk of each part; empty if each joined chunk is a chunk of a part.
    rows: Vec<u64>,
    /// The number of chunks along the other dimensions.
    counts: Vec<u64>,
}

/// A piece of an assembled chunk.
#[derive(Debug, PartialEq, Eq)]
struct Piece {
    part: usize,
    /// The position of its source chunk in the part.
    place: Vec<u64>,
    /// The rows of the source chunk.
    rows: u64,
    /// The first row in the source chunk, the first row in the assembled chunk, and the number of rows.
    from: u64,
    to: u64,
    count: u64,
}

impl Layout {
    /// Returns the layout of parts that differ along `axis` only; fails with the reason why they cannot be joined.
    fn new(axis: usize, parts: &[&ArrayDescription]) -> std::result::Result<Self, String> {
        let first = parts.first().ok_or("in no store")?;
        let mut starts = vec![0_u64];
        let mut len = 0_u64;
        for part in parts {
            let extent = part.shape.get(axis).ok_or("no such dimension")?;
            len = len
                .checked_add(*extent)
                .ok_or("longer than an array can be")?;
            starts.push(len);
        }
        let beside = |of: &ArrayDescription| -> Vec<u64> {
            let mut chunk = of.chunk.clone();
            chunk[axis] = 0;
            chunk
        };
        if let Some(other) = parts.iter().find(|part| beside(part) != beside(first)) {
            return Err(format!(
                "chunks of {:?} and {:?} do not meet",
                first.chunk, other.chunk
            ));
        }
        let rows = first.chunk[axis].max(1);
        let extents = || parts.iter().map(|part| part.shape[axis]);
        let is_aligned = parts.iter().all(|part| part.chunk[axis] == rows)
            && extents().rev().skip(1).all(|extent| extent % rows == 0);
        let size = match &first.elements {
            Elements::Fixed(dtype) => Some(dtype.size() as u64),
            Elements::Text => None,
        };
        let row = size.and_then(|size| {
            let beside = first.chunk.iter().enumerate().filter(|(k, _)| *k != axis);
            beside
                .map(|(_, &d)| d.max(1))
                .try_fold(size, u64::checked_mul)
        });
        let mut layout = Self {
            axis,
            starts,
            chunk: first.chunk.clone(),
            rows: Vec::new(),
            counts: first.counts(),
        };
        let is_small = row.is_some_and(|row| row.saturating_mul(rows) < SMALL_CHUNK);
        if is_aligned && !(is_small && parts.len() > 1) {
            return Ok(layout);
        }
        let Some(row) = row else {
            return match is_aligned {
                true => Ok(layout),
                false => Err("chunks of text that do not end where a store ends".to_owned()),
            };
        };
        // A chunk covers whole stores if all have the same length, so that each chunk of a store belongs to a single
        // one.
        let longest = extents().max().unwrap_or(1).max(1);
        let is_even = extents().rev().skip(1).all(|extent| extent == longest);
        let wanted = (WANTED_CHUNK / row.max(1)).max(rows.min(longest));
        let made = match is_even {
            true => (wanted / longest).max(1).saturating_mul(longest),
            false => wanted.max(1),
        };
        // However short the array is: it may grow for a reader that opened it before another store was added.
        layout.chunk[axis] = made;
        if row.saturating_mul(layout.chunk[axis]) > MOST_ASSEMBLED {
            layout.chunk[axis] = (WANTED_CHUNK / row.max(1)).max(rows.min(longest));
        }
        if row.saturating_mul(layout.chunk[axis]) > MOST_ASSEMBLED {
            return Err("chunks too large that do not end where a store ends".to_owned());
        }
        layout.rows = parts.iter().map(|part| part.chunk[axis].max(1)).collect();
        Ok(layout)
    }

    /// Returns the number of rows along the dimension.
    fn len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Returns the shape of a chunk.
    fn chunk(&self) -> &[u64] {
        &self.chunk
    }

    /// Returns whether each chunk is a chunk of a store.
    fn is_aligned(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the bytes of an assembled chunk.
    fn chunk_len(&self, size: usize) -> Option<usize> {
        let dims = self.chunk.iter();
        dims.map(|&d| usize::try_from(d).ok())
            .try_fold(size, |n, d| n.checked_mul(d?))
    }

    /// Returns the part that contains a row.
    fn part_of(&self, row: u64) -> Option<usize> {
        (row < self.len()).then(|| self.starts.partition_point(|&start| start <= row) - 1)
    }

    fn is_place(&self, place: &[u64]) -> bool {
        let beside = place.iter().zip(&self.counts).enumerate();
        place.len() == self.chunk.len()
            && beside
                .into_iter()
                .all(|(k, (at, n))| k == self.axis || at < n)
    }

    /// Returns the part that contains a chunk, and the chunk's position there.
    fn part(&self, place: &[u64]) -> Option<(usize, Vec<u64>)> {
        if !self.is_place(place) {
            return None;
        }
        let rows = self.chunk[self.axis];
        let row = place[self.axis].checked_mul(rows)?;
        let part = self.part_of(row)?;
        let mut own = place.to_vec();
        own[self.axis] = (row - self.starts[part]) / rows;
        Some((part, own))
    }

    /// Returns the pieces of an assembled chunk.
    fn pieces(&self, place: &[u64]) -> Option<Vec<Piece>> {
        if !self.is_place(place) {
            return None;
        }
        let all = self.chunk[self.axis];
        let first = place[self.axis].checked_mul(all)?;
        let end = first.checked_add(all)?.min(self.len());
        let mut part = self.part_of(first)?;
        let (mut row, mut pieces) = (first, Vec::new());
        while row < end {
            let rows = *self.rows.get(part)?;
            let (start, stop) = (self.starts[part], self.starts[part + 1]);
            let own = row - start;
            let number = own / rows;
            let last = stop.min(start + (number + 1).saturating_mul(rows)).min(end);
            let mut at = place.to_vec();
            at[self.axis] = number;
            pieces.push(Piece {
                part,
                place: at,
                rows,
                from: own - number * rows,
                to: row - first,
                count: last - row,
            });
            row = last;
            while part + 2 < self.starts.len() && self.starts[part + 1] <= row {
                part += 1;
            }
        }
        Some(pieces)
    }
}

/// Copies a piece into an assembled chunk; `None` if it is incomplete.
fn copy_rows(
    from: &[u8],
    to: &mut [u8],
    layout: &Layout,
    size: usize,
    piece: &Piece,
) -> Option<()> {
    let product = |dims: &[u64]| -> Option<usize> {
        let dims = dims.iter().map(|&d| usize::try_from(d).ok());
        dims.into_iter().try_fold(1_usize, |n, d| n.checked_mul(d?))
    };
    let (outer, inner) = layout.chunk.split_at(layout.axis);
    let outer = product(outer)?;
    let row = product(inner.get(1..)?)?.checked_mul(size)?;
    let number = |n: u64| usize::try_from(n).ok();
    let (rows, all) = (number(piece.rows)?, number(layout.chunk[layout.axis])?);
    let len = number(piece.count)?.checked_mul(row)?;
    for block in 0..outer {
        let source = block
            .checked_mul(rows)?
            .checked_add(number(piece.from)?)?
            .checked_mul(row)?;
        let target = block
            .checked_mul(all)?
            .checked_add(number(piece.to)?)?
            .checked_mul(row)?;
        let source = from.get(source..source.checked_add(len)?)?;
        to.get_mut(target..target.checked_add(len)?)?
            .copy_from_slice(source);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use npyfs_hdf5::Details;

    fn array(shape: &[u64], chunk: &[u64]) -> ArrayDescription {
        ArrayDescription {
            elements: Elements::Fixed(DType::int(1)),
            shape: shape.to_vec(),
            chunk: chunk.to_vec(),
            details: Details {
                chunks: Some(chunk.to_vec()),
                ..Details::of_group(Vec::new())
            },
        }
    }

    fn layout(axis: usize, parts: &[ArrayDescription]) -> std::result::Result<Layout, String> {
        Layout::new(axis, &parts.iter().collect::<Vec<_>>())
    }

    #[test]
    fn chunks_that_meet_where_stores_do_stay_what_they_are() {
        let chunk = [2, 1 << 16];
        let parts = [4, 2, 3].map(|rows| array(&[rows, 1 << 16], &chunk));
        let layout = layout(0, &parts).unwrap();
        assert!(layout.is_aligned());
        assert_eq!((layout.len(), layout.chunk()), (9, &chunk[..]));
        assert_eq!(layout.part(&[1, 0]), Some((0, vec![1, 0])));
        assert_eq!(layout.part(&[2, 0]), Some((1, vec![0, 0])));
        assert_eq!(layout.part(&[4, 0]), Some((2, vec![1, 0])));
        assert_eq!(layout.part(&[5, 0]), None);
        assert_eq!(layout.part(&[0, 1]), None);
    }

    #[test]
    fn small_chunks_are_put_together() {
        let parts = [1; 500].map(|rows| array(&[rows], &[1024]));
        let layout = layout(0, &parts).unwrap();
        assert_eq!(layout.chunk(), [WANTED_CHUNK]);
        assert_eq!(layout.pieces(&[0]).unwrap().len(), 500);
    }

    #[test]
    fn chunks_that_never_meet_are_refused() {
        let parts = [array(&[4, 6], &[2, 3]), array(&[4, 6], &[2, 2])];
        assert!(layout(0, &parts).unwrap_err().contains("do not meet"));
        let large = [3, 4].map(|rows| array(&[rows, 1 << 29], &[2, 1 << 29]));
        assert!(layout(0, &large).unwrap_err().contains("too large"));
    }

    /// Returns a chunk of an array whose elements are their row numbers, with 255 past its end.
    fn chunk_of(first: u64, part: &ArrayDescription, axis: usize, place: &[u64]) -> Vec<u8> {
        let all: u64 = part.chunk.iter().product();
        let beside: u64 = part.chunk[axis + 1..].iter().product();
        let numbers =
            (0..all).map(|at| at / beside % part.chunk[axis] + place[axis] * part.chunk[axis]);
        numbers
            .map(|row| match row < part.shape[axis] {
                true => (first + row) as u8,
                false => 255,
            })
            .collect()
    }

    proptest! {
        #[test]
        fn rows_come_from_where_they_lie(
            axis in 0..2_usize,
            extents in proptest::collection::vec(1..9_u64, 1..9),
            rows in 1..9_u64,
        ) {
            let shape = |extent| if axis == 0 { [extent, 3] } else { [3, extent] };
            let parts: Vec<_> = extents.iter().map(|&extent| array(&shape(extent), &shape(rows))).collect();
            let layout = layout(axis, &parts).unwrap();
            let mut firsts = vec![0];
            firsts.extend(extents.iter().scan(0, |sum, extent| { *sum += extent; Some(*sum) }));
            let count = layout.len().div_ceil(layout.chunk()[axis]);
            for number in 0..count {
                let place = if axis == 0 { [number, 0] } else { [0, number] };
                let mut made = vec![255; layout.chunk_len(1).unwrap()];
                if layout.is_aligned() {
                    let (part, own) = layout.part(&place).unwrap();
                    made = chunk_of(firsts[part], &parts[part], axis, &own);
                } else {
                    for piece in layout.pieces(&place).unwrap() {
                        let from = chunk_of(firsts[piece.part], &parts[piece.part], axis, &piece.place);
                        copy_rows(&from, &mut made, &layout, 1, &piece).unwrap();
                    }
                }
                let mut whole = array(&shape(layout.len()), layout.chunk());
                whole.chunk = layout.chunk().to_vec();
                prop_assert_eq!(made, chunk_of(0, &whole, axis, &place));
            }
        }
    }
}
