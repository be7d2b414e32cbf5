//! The payload of one dataset: its elements in C order, as `np.save` writes them.
//!
//! Bytes come from the file itself where they lie there as they are served, else from decoded blocks.

use std::ops::Range;
use std::sync::Arc;

use crate::dataset::access_pattern::AccessPattern;
use crate::dataset::backing::{Backing, BlockLayout, read_raw};
use crate::dataset::blocks::{BlockReader, BlockSource, FarRanges};
use crate::dataset::cache::{Key, Need};
use crate::dataset::chunked::{Chunks, Source, StoredChunks};
use crate::dataset::elements::{repeat, short};
use crate::dataset::grid::Grid;
use crate::dataset::opened::OpenStore;
use crate::dataset::stored;
use npyfs_base::error::Result;
use npyfs_hdf5::Sink;
use npyfs_io::content::{Content, Data};
use npyfs_io::provenance::Provenance;

/// The most bytes of the file that are read at once for chunks which may lie apart.
const MOST_NEEDED: u64 = 256 << 10;

/// The elements of a dataset as bytes, for one open file.
#[derive(Clone)]
pub struct Payload {
    store: Arc<OpenStore>,
    /// Address of the dataset.
    object: u64,
    len: u64,
    backing: Arc<Backing>,
    pattern: Arc<AccessPattern>,
    /// The reader of the blocks, if there are any.
    pub(super) blocks: Option<Arc<BlockReader>>,
}

impl Payload {
    /// Creates the payload of an open dataset. `rank` is the dataset's own; dimensions of an array datatype follow in
    /// the grid. The pattern is new, or shared with other handles that read the dataset in parts.
    pub fn new(
        store: Arc<OpenStore>,
        object: u64,
        rank: usize,
        len: u64,
        (backing, pattern): (Arc<Backing>, Arc<AccessPattern>),
    ) -> Self {
        let blocks = match &*backing {
            Backing::Blocks(layout) => {
                let source = DatasetBlocks {
                    store: store.clone(),
                    object,
                    rank,
                    layout: layout.clone(),
                };
                let source = Arc::new(source);
                Some(BlockReader::new(
                    &store.context,
                    source,
                    len,
                    pattern.clone(),
                ))
            }
            _ => None,
        };
        Self {
            store,
            object,
            len,
            backing,
            pattern,
            blocks,
        }
    }

    /// Returns whether no element was ever written.
    pub fn is_unwritten(&self) -> bool {
        matches!(&*self.backing, Backing::Fill(_))
    }

    /// Returns whether any element was ever written in a block of the dataset, which begins at the corner of a chunk;
    /// `None` if the answer requires a read.
    pub fn has_written(&self, start: &[u64], shape: &[u64]) -> Option<bool> {
        match &*self.backing {
            Backing::Fill(_) => Some(false),
            Backing::Blocks(layout) => Some(layout.direct()?.has_any(start, shape)),
            _ => None,
        }
    }

    /// Returns where contiguous elements lie that begin at an address.
    fn stored_at(&self, addr: u64) -> Range<u64> {
        addr..addr.saturating_add(self.len)
    }
}

/// The blocks of a dataset.
struct DatasetBlocks {
    store: Arc<OpenStore>,
    object: u64,
    rank: usize,
    layout: Arc<BlockLayout>,
}

impl BlockSource for DatasetBlocks {
    fn grid(&self) -> &Grid {
        &self.layout.grid
    }

    fn chunks(&self) -> Option<&Grid> {
        self.layout.chunks.as_ref()
    }

    fn key(&self) -> Key {
        Key {
            file: self.store.file.serial,
            object: self.object,
            form: self.layout.form.number(),
            block: 0,
        }
    }

    fn name(&self) -> String {
        self.store.file.path.display().to_string()
    }

    fn need(&self, grid: &Grid, number: u64, len: usize) -> Need {
        match self.layout.direct() {
            Some(chunks) => {
                let (start, shape) = grid.bounds(number);
                chunks.need(&start, &shape, len)
            }
            // The answer of a worker.
            None => Need {
                len,
                beside: len,
                ..Need::default()
            },
        }
    }

    fn fill(&self, grid: &Grid, number: u64, streaming: bool, out: &mut [u8]) -> Result<()> {
        let (start, shape) = grid.bounds(number);
        let store = &self.store;
        if let Some(chunks) = self.layout.direct() {
            let source = Source {
                file: &store.file,
                pool: store.context.cache.pool(),
                streaming,
                growing: false,
            };
            match chunks.block(source, &start, &shape, out) {
                // The chunk table was refused meanwhile: libhdf5 reads.
                Err(_) if chunks.is_refused() => {}
                outcome => return outcome,
            }
        }
        let (start, shape) = (&start[..self.rank], &shape[..self.rank]);
        let bytes = store.block(self.object, start, shape, self.layout.form)?;
        if bytes.len() != out.len() {
            return Err(short());
        }
        out.copy_from_slice(&bytes);
        Ok(())
    }

    fn plain(&self, grid: &Grid, number: u64) -> Option<u64> {
        let (start, shape) = grid.bounds(number);
        self.layout.direct()?.plain(&start, &shape)
    }

    fn read_plain(&self, address: u64, out: &mut [u8]) -> Result<()> {
        Ok(self.store.file.read_exact_at(out, address)?)
    }

    fn read_together(&self, grid: &Grid, numbers: Range<u64>) -> Result<Option<StoredChunks<'_>>> {
        let Some(chunks) = self.layout.direct() else {
            return Ok(None);
        };
        let source = Source {
            file: &self.store.file,
            pool: self.store.context.cache.pool(),
            streaming: false,
            growing: false,
        };
        let bounds: Vec<_> = numbers.map(|number| grid.bounds(number)).collect();
        chunks.read_together(source, &bounds)
    }

    fn will_need(&self, grid: &Grid, numbers: Range<u64>) {
        let Some(chunks) = self.layout.direct() else {
            return;
        };
        let stored = |number| {
            let (start, shape) = grid.bounds(number);
            chunks.stored(&start, &shape)
        };
        let all = numbers.flat_map(stored);
        let all = all.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end));
        if let Some(range) = all.filter(|range| range.end - range.start <= MOST_NEEDED) {
            self.store.file.will_need(&range);
        }
    }

    fn stream(&self, grid: &Grid, number: u64, sink: &mut Sink<'_>) -> Result<()> {
        let (start, shape) = grid.bounds(number);
        let chunk = match self.layout.direct() {
            Some(chunks) => match chunks.request(self.object, &start, &shape) {
                Err(_) if chunks.is_refused() => None,
                request => Some(request?),
            },
            None => None,
        };
        let request = match chunk {
            Some(request) => request,
            None => OpenStore::block_request(
                self.object,
                &start[..self.rank],
                &shape[..self.rank],
                self.layout.form,
            ),
        };
        let store = &self.store;
        Ok(store.context.h5.stream(&store.file, request, sink)?)
    }

    /// The layout is held by its backing and by every open file.
    fn keeps(&self, small: bool) -> bool {
        small || Arc::strong_count(&self.layout) > 2
    }

    fn is_far(&self) -> bool {
        self.store.file.far().is_some() && self.layout.direct().is_some()
    }

    fn stored(&self, grid: &Grid, numbers: &[u64]) -> Vec<FarRanges> {
        let Some((far, chunks)) = self.store.file.far().zip(self.layout.direct()) else {
            return Vec::new();
        };
        let stored = |&number: &u64| {
            let (start, shape) = grid.bounds(number);
            chunks.stored(&start, &shape)
        };
        vec![(far.clone(), numbers.iter().flat_map(stored).collect())]
    }

    /// Of a chunk that is stored as it is served, a part is where it says.
    fn stored_parts(&self, grid: &Grid, parts: &[(u64, Range<u64>)]) -> Vec<FarRanges> {
        let Some((far, chunks)) = self.store.file.far().zip(self.layout.direct()) else {
            return Vec::new();
        };
        let mut ranges = Vec::new();
        for (number, part) in parts {
            let (start, shape) = grid.bounds(*number);
            match chunks.plain(&start, &shape) {
                Some(at) => ranges.push(at.saturating_add(part.start)..at.saturating_add(part.end)),
                None => ranges.extend(chunks.stored(&start, &shape)),
            }
        }
        vec![(far.clone(), ranges)]
    }

    fn stored_bytes(&self) -> Option<u64> {
        self.layout.direct()?.stored_bytes()
    }
}

impl Content for Payload {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let store = &self.store;
        match &*self.backing {
            Backing::Fill(pattern) => repeat(pattern, offset, buf),
            Backing::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let part = start
                    .checked_add(buf.len())
                    .and_then(|end| bytes.get(start..end))
                    .ok_or_else(short)?;
                buf.copy_from_slice(part);
            }
            Backing::Contiguous(addr) => {
                let at = addr.checked_add(offset).ok_or_else(short)?;
                stored::read(store, &self.pattern, self.stored_at(*addr), at, buf)?;
            }
            Backing::Raw { parts, fill } => read_raw(parts, fill, offset, buf)?,
            Backing::Blocks(_) => match &self.blocks {
                Some(blocks) => blocks.read_at(offset, buf)?,
                None => return Err(short()),
            },
        }
        Ok(())
    }

    fn stored(&self, from: u64) -> Option<Range<u64>> {
        let all = from..self.len;
        match &*self.backing {
            Backing::Fill(_) => None,
            Backing::Blocks(layout) => {
                let grid = &layout.grid;
                // Reading reports the error of the chunk table.
                let chunks = layout
                    .direct()
                    .filter(|chunks| chunks.prepare_all().is_ok());
                let Some(chunks) = chunks else {
                    return (!all.is_empty()).then_some(all);
                };
                // A chunk row is all that lies between two offsets of the payload.
                let mut at = from;
                while at < self.len {
                    let (number, range) = grid.chunk_row_at(at);
                    let blocks = grid.chunk_row().blocks;
                    let has = |block| {
                        let (start, shape) = grid.bounds(block);
                        chunks.has_any(&start, &shape)
                    };
                    if (number * blocks..(number + 1) * blocks).any(has) {
                        return Some(at..range.end);
                    }
                    at = range.end;
                }
                None
            }
            _ => (!all.is_empty()).then_some(all),
        }
    }

    fn repeats(&self, from: u64) -> Option<(u64, u64)> {
        let element = match &*self.backing {
            Backing::Fill(element) => element.len(),
            Backing::Blocks(layout) => layout.direct()?.fill_value().len(),
            _ => return None,
        };
        let end = self.stored(from).map_or(self.len, |next| next.start);
        (end > from).then_some((end, element as u64))
    }

    fn is_costly(&self) -> bool {
        self.blocks.is_some()
    }

    fn is_at_hand(&self) -> bool {
        let Some(far) = self.store.file.far() else {
            return true;
        };
        match &*self.backing {
            Backing::Fill(_) | Backing::Memory(_) => true,
            Backing::Contiguous(addr) => far.has(std::slice::from_ref(&self.stored_at(*addr))),
            Backing::Blocks(layout) => {
                let places = layout.direct().and_then(Chunks::places);
                places.is_some_and(|places| far.has(&places))
            }
            Backing::Raw { .. } => false,
        }
    }

    fn tell_provenance(&self, to: &mut Provenance) -> bool {
        let file = &self.store.file;
        if file.far().is_some_and(|far| !far.is_told_apart()) {
            return false;
        }
        to.file(&file.path, &file.identity);
        to.numbers("dataset", &[self.object, self.len]);
        self.backing.tell_provenance(to)
    }

    fn share(&self, offset: u64, len: usize) -> Result<Option<Data>> {
        if let Backing::Contiguous(addr) = &*self.backing {
            let at = addr.checked_add(offset).ok_or_else(short)?;
            let data = self.stored_at(*addr);
            return stored::share(&self.store, &self.pattern, data, at, len);
        }
        match &self.blocks {
            Some(blocks) => blocks.share(offset, len),
            None => Ok(None),
        }
    }
}
