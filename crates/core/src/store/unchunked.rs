//! The elements of a chunked dataset, decoded on all cores and put together in a file, in C order.
//!
//! Every chunk is decoded once, however later chunks lie across it. Memory is a few blocks of chunks for each core.

use std::fs::File;
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::dataset::chunked::{Chunks, Source};
use crate::dataset::grid::Grid;
use npyfs_base::error::{Error, Result};
use npyfs_base::thread;
use npyfs_hdf5::DirectChunks;
use npyfs_io::file::StoreFile;

/// Bytes of a block, unless a chunk has more.
const BLOCK: u64 = 16 << 20;

/// A chunked dataset.
pub struct ChunkedDataset<'a> {
    /// The file that it is in.
    pub file: &'a StoreFile,
    /// The shape.
    pub shape: &'a [u64],
    /// Bytes of an element.
    pub element: u64,
    /// Shape of a chunk.
    pub chunk: &'a [u64],
    /// Its chunk table and filters.
    pub direct: DirectChunks,
}

/// Writes all elements to `to`, which is empty. `false` if chunks are too large to be decoded here.
pub fn decode(dataset: ChunkedDataset<'_>, to: &File) -> Result<bool> {
    let ChunkedDataset {
        file,
        shape,
        element,
        chunk,
        direct,
    } = dataset;
    let block = block(shape, chunk, element);
    let grid = Grid::new(shape, &block, element);
    let (Some(chunks), Some(grid)) = (Chunks::new(shape, chunk, element, direct), grid) else {
        return Ok(false);
    };
    let bytes = shape.iter().try_fold(element, |n, &d| n.checked_mul(d));
    let bytes = bytes.ok_or_else(|| Error::damaged("more elements than a file can hold"))?;
    to.set_len(bytes)?;
    let blank = chunks.fill_value().iter().all(|&byte| byte == 0);
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let work = || -> Result<()> {
        let pool = Arc::default();
        let source = Source {
            file,
            pool: &pool,
            streaming: false,
            growing: false,
        };
        let mut buffer = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= grid.blocks() {
                return Ok(());
            }
            let (start, count) = grid.bounds(number);
            if blank && !chunks.has_any(&start, &count) {
                continue;
            }
            let len = usize::try_from(grid.bytes_of(number));
            buffer.resize(len.map_err(|_| Error::damaged("a block too large"))?, 0);
            chunks.block(source, &start, &count, &mut buffer)?;
            write(shape, element, &start, &count, &buffer, to)?;
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let done = workers.into_iter().map(|worker| {
            let failed = |_| Error::damaged("decoding failed");
            worker.join().map_err(failed)?
        });
        done.collect::<Result<Vec<()>>>()
    })?;
    Ok(true)
}

/// Returns the shape of blocks of whole chunks: as wide as the dataset, as far as [`BLOCK`] allows.
fn block(shape: &[u64], chunk: &[u64], element: u64) -> Vec<u64> {
    let mut block = chunk.to_vec();
    let bytes = |block: &[u64]| {
        let dims = block.iter();
        dims.fold(element, |bytes, &n| bytes.saturating_mul(n))
    };
    for k in (0..block.len()).rev() {
        let (own, rest) = (block[k], shape[k].div_ceil(block[k]).max(1));
        let room = (BLOCK / bytes(&block).max(1)).clamp(1, rest);
        block[k] = own.saturating_mul(room);
        if room < rest {
            break;
        }
    }
    block
}

/// Writes a block to its place among all elements.
fn write(
    shape: &[u64],
    element: u64,
    start: &[u64],
    count: &[u64],
    bytes: &[u8],
    to: &File,
) -> Result<()> {
    // Axes behind the last that the block does not span lie together.
    let whole = (0..shape.len())
        .rev()
        .take_while(|&k| count[k] == shape[k])
        .count();
    let split = (shape.len() - whole).saturating_sub(1);
    let run = count[split..].iter().product::<u64>() * element;
    let run = usize::try_from(run).map_err(|_| Error::damaged("a block too large"))?;
    let mut place = vec![0; split];
    for part in bytes.chunks(run.max(1)) {
        let at = start.iter().enumerate().fold(0, |at, (axis, first)| {
            at * shape[axis] + first + place.get(axis).copied().unwrap_or(0)
        });
        to.write_all_at(part, at * element)?;
        for axis in (0..split).rev() {
            place[axis] += 1;
            if place[axis] < count[axis] {
                break;
            }
            place[axis] = 0;
        }
    }
    Ok(())
}
