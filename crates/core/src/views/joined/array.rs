//! An array in several stores.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use serde_json::{Value as Json, json};
use xxhash_rust::xxh3::Xxh3Default;

use super::Joining;
use super::compare::{self, Beginning};
use super::layout::{Layout, MOST, copy_rows};
use crate::tree::array::{ArrayDescription, Elements, Presence, StoredArray};
use crate::tree::{Directory, Listing};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy::dtype::DType;
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
        let len = usize::try_from(content.len().min(MOST + 1)).map_err(|_| too_large())?;
        if len as u64 > MOST {
            return Err(too_large());
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| too_large())?;
        bytes.resize(len, 0);
        content.give(&mut bytes)?;
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
            None if parts.len() > 1 => Some(Beginning::of(first)?),
            _ => None,
        };
        for (store, other) in parts.iter().enumerate().skip(1) {
            let judged = compare::same(first, other, axis, &joining.along);
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
