//! Chunks that are read from the store file and decoded in this process, without libhdf5.

use std::ops::Range;
use std::sync::Arc;

use super::chunk_places::{ChunkPlaces, LookUp, TOGETHER};
use super::elements::{SlabPlace, copy_hyperslab, repeat, short, slice};
use crate::dataset::cache::Need;
use npyfs_base::buffer::{Buffer, Pool, SMALLEST};
use npyfs_base::error::{Error, Result};
use npyfs_codec::Pipeline;
use npyfs_hdf5::{DirectChunks, EncodedChunk, Request, Slot, largest_stored};
use npyfs_io::file::StoreFile;

/// The largest size of a chunk in bytes.
pub const LARGEST: u64 = 1 << 30;

/// The smallest stored size in bytes for which a separate read is worthwhile: smaller chunks lie close to others that
/// may also be wanted.
const LARGE: u64 = 128 << 10;

/// The most bytes between chunks that are read with them.
const GAP: u64 = 16 << 10;

/// The most bytes that are read for chunks together: the file says how long a stored chunk is.
const MOST_TOGETHER: u64 = 2 << 20;

/// The most bytes that are read together for a block, if no chunk of the block is larger.
const MOST_OF_A_BLOCK: usize = 512 << 10;

/// The chunks of one dataset.
pub struct Chunks {
    /// The shapes of the dataset and of a chunk, followed by the dimensions of an array datatype.
    shape: Vec<u64>,
    chunk: Vec<u64>,
    element: u64,
    chunk_len: usize,
    /// The stored size of the largest chunk, and of all chunks, in bytes.
    largest: usize,
    stored: Option<u64>,
    pipeline: Pipeline,
    /// The element that stands where no chunk is stored.
    fill: Vec<u8>,
    places: ChunkPlaces,
}

/// The file and the resources for reading chunks.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The store file.
    pub file: &'a StoreFile,
    /// The buffer pool for decoding.
    pub pool: &'a Arc<Pool>,
    /// Whether the reader is sequential and wants the bytes once: bypass the kernel's page cache.
    pub streaming: bool,
    /// True if another process may be adding to the file: stored bytes then stay unchanged even if the file's identity
    /// changes.
    pub growing: bool,
}

impl Source<'_> {
    /// Returns the stored bytes that must come from the disk, if that is worth checking.
    fn missing(&self, stored: &Range<u64>) -> Option<Range<u64>> {
        // A smaller buffer need not be aligned, and a smaller read is not worthwhile.
        let size = stored.end - stored.start;
        let worth_it = size >= LARGE || (self.streaming && size >= SMALLEST as u64);
        let worth_it = worth_it && !self.growing;
        worth_it
            .then(|| self.file.direct_range(stored.start, size))
            .flatten()
    }

    /// Reads stored bytes through the page cache.
    fn cached(&self, stored: &Range<u64>) -> Result<Buffer> {
        let mut buffer = self.pool.take(usize_of(stored.end - stored.start)?);
        match self.growing {
            true => self.file.read_growing_at(&mut buffer, stored.start)?,
            false => self.file.read_exact_at(&mut buffer, stored.start)?,
        }
        Ok(buffer)
    }

    /// Reads the stored bytes of a chunk for `use_`, past the page cache where that is quicker.
    fn stored<T>(&self, stored: Range<u64>, use_: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        if self.growing {
            return use_(&self.cached(&stored)?);
        }
        let (addr, len) = (stored.start, usize_of(stored.end - stored.start)?);
        let missing = self.missing(&stored);
        let large = len as u64 >= LARGE;
        let cold = missing.is_some();
        // The second read puts the bytes into the page cache, for the third.
        let range = missing.filter(|_| self.streaming || self.file.reads_once_directly(addr));
        if let Some(range) = range {
            let skip = usize_of(addr - range.start)?;
            let mut buffer = self.pool.take(usize_of(range.end - range.start)?);
            let end = skip + len;
            // A file system may fail to do what it claims to support: the normal path remains.
            if let Ok(got) = self.file.read_direct(&mut buffer, range.start)
                && end <= got
            {
                return use_(&buffer[skip..end]);
            }
        }
        if !(large && cold) {
            return use_(&self.cached(&stored)?);
        }
        let mut buffer = self.pool.take(len);
        self.file.read_alone_at(&mut buffer, addr)?;
        use_(&buffer)
    }
}

/// The stored bytes of some chunks of one dataset.
pub struct StoredChunks<'a> {
    chunks: &'a Chunks,
    pool: &'a Arc<Pool>,
    /// Bytes of the file from `at` on.
    bytes: Buffer,
    at: u64,
    slots: Vec<Slot>,
}

impl StoredChunks<'_> {
    /// Decodes the chunk with an index among these into `out`; a chunk that is not stored yields the fill value.
    pub fn decode(&self, index: usize, out: &mut [u8]) -> Result<()> {
        let slot = self.slots.get(index).ok_or_else(short)?;
        if slot.size == 0 {
            repeat(&self.chunks.fill, 0, out);
            return Ok(());
        }
        let stored = slice(&self.bytes, slot.addr - self.at, slot.size as usize)?;
        self.chunks.decode(self.pool, stored, slot.mask, out)
    }
}

/// Returns the stored range of the chunk of a slot.
fn range_of(slot: Slot) -> Range<u64> {
    slot.addr..slot.addr.saturating_add(u64::from(slot.size))
}

/// Returns how many of the first chunks are stored close together, in any order and in at most `most` bytes, and where. A
/// first chunk counts, however large.
fn together(slots: &[Slot], most: u64) -> (usize, Range<u64>) {
    let (mut all, mut sum) = (0..0, 0_u64);
    for (count, slot) in slots.iter().enumerate().filter(|(_, slot)| slot.size != 0) {
        let range = range_of(*slot);
        let next = match all.is_empty() {
            true => range,
            false => range.start.min(all.start)..range.end.max(all.end),
        };
        sum = sum.saturating_add(slot.size.into());
        let bytes = next.end - next.start;
        if count > 0 && bytes > sum.saturating_add(GAP).min(most) {
            return (count, all);
        }
        all = next;
    }
    (slots.len(), all)
}

fn usize_of(n: u64) -> Result<usize> {
    usize::try_from(n).map_err(|_| Error::damaged("too large for this machine"))
}

impl Chunks {
    /// Creates the chunks of a dataset of `shape`. Returns `None` if a chunk is too large to hold in memory: libhdf5
    /// then reads it in parts.
    pub fn new(shape: &[u64], chunk: &[u64], element: u64, direct: DirectChunks) -> Option<Self> {
        Self::with(shape, chunk, element, direct, None)
    }

    /// Creates the chunks of a dataset. If its map has no table, `look_up` looks them up; without it there are none.
    pub fn with(
        shape: &[u64],
        chunk: &[u64],
        element: u64,
        direct: DirectChunks,
        look_up: Option<Box<dyn LookUp>>,
    ) -> Option<Self> {
        let len = chunk
            .iter()
            .try_fold(element, |n, &d| n.checked_mul(d))
            .filter(|&n| n <= LARGEST)?;
        let chunk_len = usize::try_from(len).ok()?;
        let DirectChunks {
            pipeline,
            table,
            fill,
        } = direct;
        let (largest, stored, places) = if table.looked_up.is_some() {
            let counts = shape.iter().zip(chunk).map(|(d, c)| d.div_ceil(*c));
            let count = counts.fold(1_u64, u64::saturating_mul);
            let largest = usize::try_from(largest_stored(len)).ok()?;
            let places = ChunkPlaces::looked_up(table, count, look_up?);
            (largest, None, places)
        } else {
            let sizes = || table.slots.iter().map(|slot| slot.size);
            let largest = usize::try_from(sizes().max().unwrap_or(0)).ok()?;
            let stored = sizes().map(u64::from).fold(0, u64::saturating_add);
            (largest, Some(stored), ChunkPlaces::whole(table))
        };
        Some(Self {
            largest,
            stored,
            shape: shape.to_vec(),
            chunk: chunk.to_vec(),
            element,
            chunk_len,
            pipeline,
            fill,
            places,
        })
    }

    /// Returns the bytes of memory that the table takes.
    pub fn weight(&self) -> usize {
        self.places.weight()
    }

    /// Returns the memory needed to decode a block of `len` bytes.
    pub fn need(&self, start: &[u64], shape: &[u64], len: usize) -> Need {
        let one = shape.iter().zip(&self.chunk).all(|(n, c)| n <= c);
        // Any chunk of the block may be the largest stored one.
        let stored = match one && self.places.table().is_some() {
            true => self
                .slot(&self.first(start))
                .map_or(0, |slot| slot.size as usize),
            // Chunks of a block are read together.
            false if !one => self.largest.max(len.min(MOST_OF_A_BLOCK)),
            // The size of a chunk that would have to be looked up is not waited for.
            false => self.largest,
        };
        let steps = self
            .pipeline
            .buffers()
            .max(usize::from(len != self.chunk_len));
        Need {
            len,
            beside: stored.saturating_add(self.chunk_len.saturating_mul(steps)),
            ..Need::default()
        }
    }

    /// Returns true if any chunk of a part of the dataset is stored.
    pub fn has_any(&self, start: &[u64], shape: &[u64]) -> bool {
        // Reading reports the error of a place that is not in the table.
        let _ = self.prepare(start, shape);
        let is_stored = |place: Vec<u64>| self.slot(&place).map_or(true, |slot| slot.size != 0);
        self.touched(start, shape).any(is_stored)
    }

    /// Returns true if all chunks of a part of the dataset are stored.
    pub fn has_all(&self, start: &[u64], shape: &[u64]) -> bool {
        let _ = self.prepare(start, shape);
        let is_stored = |place: Vec<u64>| self.slot(&place).is_ok_and(|slot| slot.size != 0);
        self.touched(start, shape).all(is_stored)
    }

    /// Returns the stored ranges of the chunks of a part of the dataset.
    pub fn stored(&self, start: &[u64], shape: &[u64]) -> Vec<Range<u64>> {
        // Reading reports the error.
        let _ = self.prepare(start, shape);
        let slots = self
            .touched(start, shape)
            .filter_map(|place| self.slot(&place).ok());
        slots.filter(|slot| slot.size != 0).map(range_of).collect()
    }

    /// Returns the location of a part of the dataset that is exactly one chunk.
    pub fn alone(&self, start: &[u64], shape: &[u64]) -> Option<Slot> {
        let slot = self
            .is_chunk(start, shape)
            .then(|| self.slot(&self.first(start)));
        slot?.ok().filter(|slot| slot.size != 0)
    }

    /// Returns the address of a part of the dataset that is one chunk and stored as it is served.
    pub fn plain(&self, start: &[u64], shape: &[u64]) -> Option<u64> {
        if !self.pipeline.is_empty() {
            return None;
        }
        let slot = self.alone(start, shape)?;
        (slot.size as usize == self.chunk_len).then_some(slot.addr)
    }

    /// Reads whole chunks that begin at these elements and are stored close together, with one read. `None` if one is
    /// clipped by the array's end, or if they are stored apart or in very many bytes.
    pub fn read_together<'a>(
        &'a self,
        source: Source<'a>,
        bounds: &[(Vec<u64>, Vec<u64>)],
    ) -> Result<Option<StoredChunks<'a>>> {
        if !bounds
            .iter()
            .all(|(start, shape)| self.is_chunk(start, shape))
        {
            return Ok(None);
        }
        let places = || bounds.iter().map(|(start, _)| self.first(start));
        self.places
            .prepare(places().map(|place| self.number(&place)), false)?;
        let slots: Vec<Slot> = places()
            .map(|place| self.slot(&place))
            .collect::<Result<_>>()?;
        let (count, range) = together(&slots, MOST_TOGETHER);
        if count < slots.len() || range.end - range.start > MOST_TOGETHER {
            return Ok(None);
        }
        self.read_slots(source, slots, range).map(Some)
    }

    /// Reads chunks that are stored in a range.
    fn read_slots<'a>(
        &'a self,
        source: Source<'a>,
        slots: Vec<Slot>,
        range: Range<u64>,
    ) -> Result<StoredChunks<'a>> {
        Ok(StoredChunks {
            chunks: self,
            pool: source.pool,
            bytes: source.cached(&range)?,
            at: range.start,
            slots,
        })
    }

    /// Looks up the chunks of a part of the dataset together, unless they are known.
    fn prepare(&self, start: &[u64], shape: &[u64]) -> Result<()> {
        let places = self.touched(start, shape);
        self.places
            .prepare(places.map(|place| self.number(&place)), false)
    }

    /// Reads the places of all chunks.
    pub fn prepare_all(&self) -> Result<()> {
        self.places.prepare_all()
    }

    /// Returns whether libhdf5 must read the chunks, as their table was refused.
    pub fn is_refused(&self) -> bool {
        self.places.is_refused()
    }

    /// Returns the stored ranges of all chunks, if they are known.
    pub fn places(&self) -> Option<Vec<Range<u64>>> {
        let slots = self.places.table()?.iter().filter(|slot| slot.size != 0);
        Some(slots.copied().map(range_of).collect())
    }

    /// Returns the total stored bytes of all chunks, if they are known.
    pub fn stored_bytes(&self) -> Option<u64> {
        self.stored
    }

    /// Returns the element that fills chunks that were never written.
    pub fn fill_value(&self) -> &[u8] {
        &self.fill
    }

    fn first(&self, start: &[u64]) -> Vec<u64> {
        start.iter().zip(&self.chunk).map(|(s, c)| s / c).collect()
    }

    fn is_chunk(&self, start: &[u64], shape: &[u64]) -> bool {
        shape == self.chunk && start.iter().zip(&self.chunk).all(|(s, c)| s % c == 0)
    }

    /// Returns the grid places, in order, of the chunks that a part of the dataset touches.
    fn touched(&self, start: &[u64], shape: &[u64]) -> impl Iterator<Item = Vec<u64>> + use<> {
        let first = self.first(start);
        let ends = start.iter().zip(shape).zip(&self.chunk);
        let last: Vec<u64> = ends.map(|((s, n), c)| (s + n).div_ceil(*c)).collect();
        let mut next = (!shape.contains(&0)).then(|| first.clone());
        std::iter::from_fn(move || {
            let place = next.take()?;
            if let Some(k) = (0..place.len()).rev().find(|&k| place[k] + 1 < last[k]) {
                let mut after = place.clone();
                after[k] += 1;
                after[k + 1..].copy_from_slice(&first[k + 1..]);
                next = Some(after);
            }
            Some(place)
        })
    }

    /// Returns the request for the one chunk at `start`, clipped to `count`, for another process to decode.
    pub fn request(&self, object: u64, start: &[u64], count: &[u64]) -> Result<Request> {
        Ok(Request::Chunk {
            dataset: object,
            stored: Box::new(EncodedChunk {
                slot: self.slot(&self.first(start))?,
                pipeline: self.pipeline.clone(),
                fill: self.fill.clone(),
                chunk: self.chunk.clone(),
                count: count.to_vec(),
                element: self.element,
            }),
        })
    }

    /// Fills `out` with the part of the dataset of this shape that begins at `start`.
    pub fn block(
        &self,
        source: Source<'_>,
        start: &[u64],
        shape: &[u64],
        out: &mut [u8],
    ) -> Result<()> {
        if self.is_chunk(start, shape) {
            let place = self.first(start);
            return self.chunk(source, &place, self.slot(&place)?, out);
        }
        let rank = shape.len();
        let (mut from, mut to, mut count) = (vec![0; rank], vec![0; rank], vec![0; rank]);
        let mut whole = source.pool.take(self.chunk_len);
        let mut touched = self.touched(start, shape);
        loop {
            let part: Vec<Vec<u64>> = touched.by_ref().take(TOGETHER).collect();
            if part.is_empty() {
                return Ok(());
            }
            self.places
                .prepare(part.iter().map(|place| self.number(place)), true)?;
            self.chunks(source, &part, out.len(), &mut whole, |place, whole| {
                for k in 0..rank {
                    let corner = place[k] * self.chunk[k];
                    from[k] = start[k].saturating_sub(corner);
                    to[k] = corner.saturating_sub(start[k]);
                    count[k] = (self.chunk[k] - from[k]).min(shape[k] - to[k]);
                }
                let from = SlabPlace {
                    shape: &self.chunk,
                    start: &from,
                };
                let to = SlabPlace { shape, start: &to };
                copy_hyperslab(whole, from, out, to, &count, self.element)
                    .ok_or_else(|| Error::damaged("a chunk does not fit the shape"))
            })?;
        }
    }

    /// Decodes the stored bytes of a chunk into `out`.
    pub fn decode(&self, pool: &Arc<Pool>, stored: &[u8], mask: u32, out: &mut [u8]) -> Result<()> {
        let decoded = self.pipeline.decode(pool, stored, mask, out);
        decoded.map_err(|e| Error::damaged(e.to_string()))
    }

    /// Returns the number of a place of the grid.
    fn number(&self, place: &[u64]) -> u64 {
        place.iter().enumerate().fold(0, |at, (k, p)| {
            at * self.shape[k].div_ceil(self.chunk[k]) + p
        })
    }

    fn slot(&self, place: &[u64]) -> Result<Slot> {
        self.places.get(self.number(place))
    }

    /// Decodes whole chunks into `whole` for `use_`, one after the other. Chunks that are stored close together are read
    /// together: at most `most` bytes.
    fn chunks(
        &self,
        source: Source<'_>,
        places: &[Vec<u64>],
        most: usize,
        whole: &mut [u8],
        mut use_: impl FnMut(&[u64], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let slots: Vec<Slot> = places
            .iter()
            .map(|place| self.slot(place))
            .collect::<Result<_>>()?;
        let most = most.min(MOST_OF_A_BLOCK) as u64;
        let (mut places, mut slots) = (places, &*slots);
        while !places.is_empty() {
            let (count, range) = match source.file.far() {
                // Remote bytes have been fetched already.
                Some(_) => (1, 0..0),
                None => together(slots, most),
            };
            let (now, rest) = places.split_at(count);
            if count == 1 {
                self.chunk(source, &now[0], slots[0], whole)?;
                use_(&now[0], whole)?;
            } else {
                let stored = self.read_slots(source, slots[..count].to_vec(), range)?;
                for (index, place) in now.iter().enumerate() {
                    stored
                        .decode(index, whole)
                        .map_err(|e| e.about(format!("chunk {place:?}")))?;
                    use_(place, whole)?;
                }
            }
            (places, slots) = (rest, &slots[count..]);
        }
        Ok(())
    }

    /// Decodes one whole chunk into `out`; a chunk that is not stored yields the fill value.
    fn chunk(&self, source: Source<'_>, place: &[u64], slot: Slot, out: &mut [u8]) -> Result<()> {
        if slot.size == 0 {
            repeat(&self.fill, 0, out);
            return Ok(());
        }
        if u64::from(slot.size) > LARGEST {
            return Err(Error::damaged("a stored chunk of more than 1 GiB"));
        }
        if let Some(far) = source.file.far().filter(|_| u64::from(slot.size) >= LARGE) {
            // The bytes are fetched in one request before other threads are asked to help: those must not wait for a
            // network.
            let stored = range_of(slot);
            let stored = std::slice::from_ref(&stored);
            if !far.has(stored) {
                far.fetch(stored)?;
            }
        }
        source.stored(range_of(slot), |stored| {
            self.decode(source.pool, stored, slot.mask, out)
                .map_err(|e| e.about(format!("chunk {place:?}")))
        })
    }
}

/// Decodes a chunk described by `Chunks::request`; called in the other process.
pub fn decode(file: &StoreFile, stored: &EncodedChunk) -> Result<Vec<u8>> {
    let chunks = Chunks::new(
        &stored.chunk,
        &stored.chunk,
        stored.element,
        DirectChunks {
            pipeline: stored.pipeline.clone(),
            table: npyfs_hdf5::ChunkTable {
                slots: vec![stored.slot],
                ..Default::default()
            },
            fill: stored.fill.clone(),
        },
    )
    .ok_or_else(|| Error::damaged("a chunk of more than 1 GiB"))?;
    let fits = stored.count.len() == stored.chunk.len()
        && stored.count.iter().zip(&stored.chunk).all(|(n, c)| n <= c);
    if !fits {
        return Err(Error::damaged("a block larger than its chunk"));
    }
    let len = stored.count.iter().product::<u64>() * stored.element;
    let mut out = vec![0; usize_of(len)?];
    let source = Source {
        file,
        pool: &Arc::default(),
        streaming: false,
        growing: false,
    };
    let origin = vec![0; stored.count.len()];
    chunks.block(source, &origin, &stored.count, &mut out)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use npyfs_hdf5::protocol::Bounds;
    use npyfs_hdf5::{ChunkTable, IndexedChunks};

    use super::*;

    #[test]
    fn without_a_table_and_look_ups_there_are_no_chunks() {
        let shape = || vec![20_000];
        let chunks = IndexedChunks {
            dataset: 800,
            shape: shape(),
            max: shape(),
            chunk: vec![1],
            bounds: Bounds {
                chunk: 4,
                filters: Vec::new(),
                file: 0..1 << 20,
            },
        };
        let direct = |looked_up| DirectChunks {
            pipeline: Pipeline::new(&[]).unwrap(),
            table: ChunkTable {
                looked_up,
                ..ChunkTable::default()
            },
            fill: vec![0; 4],
        };
        assert!(Chunks::new(&[20_000], &[1], 4, direct(Some(Box::new(chunks)))).is_none());
        assert!(Chunks::new(&[0], &[1], 4, direct(None)).is_some());
    }

    #[test]
    fn chunks_that_lie_together_are_read_together() {
        let slot = |addr, size| Slot {
            addr,
            size,
            mask: 0,
        };
        let none = Slot::default();
        let found = |slots: &[Slot]| together(slots, 1000);
        let line = [slot(100, 10), slot(110, 10), none, slot(120, 5)];
        assert_eq!(found(&line), (4, 100..125));
        assert_eq!(found(&[none, slot(100, 10), none]), (3, 100..110));
        assert_eq!(found(&[none; 3]), (3, 0..0));
        // A gap, another order, and chunks that are too far apart.
        assert_eq!(found(&[slot(100, 10), slot(200, 10)]), (2, 100..210));
        assert_eq!(found(&[slot(100, 10), slot(1095, 10)]), (1, 100..110));
        assert_eq!(found(&[slot(110, 10), slot(100, 10)]), (2, 100..120));
        assert_eq!(found(&[slot(2000, 10), slot(100, 10)]), (1, 2000..2010));
        let gaps = [slot(0, 10), slot(GAP, 10), slot(2 * GAP, 10)];
        assert_eq!(together(&gaps, 4 * GAP), (2, 0..GAP + 10));
        // What is larger is read alone, and never more than `most` bytes otherwise.
        assert_eq!(found(&[slot(100, 2000), slot(2100, 10)]), (1, 100..2100));
        assert_eq!(found(&[slot(0, 600), slot(600, 600)]), (1, 0..600));
        let end = [slot(u64::MAX - 5, 10), slot(u64::MAX, 10)];
        assert_eq!(found(&end), (2, u64::MAX - 5..u64::MAX));
    }
}
