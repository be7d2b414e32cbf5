//! An array divided into equal blocks, and the mapping between bytes of its C-order payload and blocks.
//!
//! Pure arithmetic: no I/O. A block at the edge is clipped to the array; it consists of the remaining elements in C
//! order.

use std::ops::Range;

/// An array of `shape` divided into blocks of the shape `block`, numbered in C order.
#[derive(Clone, Debug)]
pub struct Grid {
    shape: Vec<u64>,
    block: Vec<u64>,
    /// The last dimension that is divided; blocks span all later dimensions. `None` if there is a single block.
    cut: Option<usize>,
    /// Bytes of one step along that dimension.
    step: u64,
    payload: u64,
    element: u64,
}

/// Bytes that are contiguous both in the payload and in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The number of the block.
    pub block: u64,
    /// The offset in the block, in bytes.
    pub at: u64,
    /// The length of the run in bytes.
    pub len: u64,
}

impl Grid {
    /// Creates the grid of an array of elements of `element` bytes; `None` if the ranks differ, a block is empty, or
    /// the payload is larger than a file can be.
    pub fn new(shape: &[u64], block: &[u64], element: u64) -> Option<Self> {
        if shape.len() != block.len() || block.contains(&0) {
            return None;
        }
        if shape.contains(&0) {
            return Some(Self {
                shape: shape.to_vec(),
                block: block.to_vec(),
                cut: None,
                step: 0,
                payload: 0,
                element,
            });
        }
        let payload = shape.iter().try_fold(element, |n, &d| n.checked_mul(d))?;
        let cut = (0..shape.len()).rev().find(|&k| block[k] < shape[k]);
        let step = cut.map_or(payload, |k| {
            shape[k + 1..].iter().product::<u64>() * element
        });
        Some(Self {
            shape: shape.to_vec(),
            block: block.to_vec(),
            cut,
            step,
            payload,
            element,
        })
    }

    /// Creates the grid of `len` bytes that are one block.
    pub fn one(len: u64) -> Self {
        Self {
            shape: vec![len],
            block: vec![len.max(1)],
            cut: None,
            step: len,
            payload: len,
            element: 1,
        }
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> u64 {
        if self.payload == 0 {
            return 0;
        }
        let counts = self.shape.iter().zip(&self.block);
        counts.map(|(d, p)| d.div_ceil(*p)).product()
    }

    /// Returns the number of bytes of a block that is not clipped.
    pub fn block_bytes(&self) -> u64 {
        let counts = self.shape.iter().zip(&self.block);
        counts
            .map(|(d, p)| d.min(p))
            .fold(self.element, |n, &d| n.saturating_mul(d))
    }

    /// Returns the start and the clipped shape of a block.
    pub fn bounds(&self, number: u64) -> (Vec<u64>, Vec<u64>) {
        let mut left = number;
        let mut start = vec![0; self.shape.len()];
        for k in (0..self.shape.len()).rev() {
            let blocks = self.shape[k].div_ceil(self.block[k]).max(1);
            start[k] = left % blocks * self.block[k];
            left /= blocks;
        }
        let shape = (0..self.shape.len())
            .map(|k| self.block[k].min(self.shape[k].saturating_sub(start[k])))
            .collect();
        (start, shape)
    }

    /// Returns the number of the block that holds the element at `index`.
    pub fn number_at(&self, index: &[u64]) -> u64 {
        let dims = self.shape.iter().zip(&self.block).zip(index);
        dims.fold(0, |number, ((n, block), at)| {
            number * n.div_ceil(*block).max(1) + at / block
        })
    }

    /// Returns the run from byte `offset` of the payload on.
    ///
    /// `offset` must be below `payload`.
    pub fn run_at(&self, offset: u64) -> Run {
        let Some(cut) = self.cut else {
            return Run {
                block: 0,
                at: offset,
                len: self.payload - offset,
            };
        };
        let row_bytes = self.shape[cut] * self.step;
        let (mut row, col) = (offset / row_bytes, offset % row_bytes);
        let along = col / self.step / self.block[cut];
        let first = along * self.block[cut];
        let count = self.block[cut].min(self.shape[cut] - first);
        let inside = col - first * self.step;
        // The row-major numbers of the block and of the row in it, computed from the last dimension. Each dimension
        // after the divided one is spanned by a single block.
        let (mut block, mut local) = (along, 0);
        let (mut blocks, mut rows) = (self.shape[cut].div_ceil(self.block[cut]), 1);
        for k in (0..cut).rev() {
            let index = row % self.shape[k];
            row /= self.shape[k];
            let number = index / self.block[k];
            block += number * blocks;
            blocks *= self.shape[k].div_ceil(self.block[k]);
            local += index % self.block[k] * rows;
            rows *= self.block[k].min(self.shape[k] - number * self.block[k]);
        }
        Run {
            block,
            at: local * count * self.step + inside,
            len: count * self.step - inside,
        }
    }

    /// Returns the number of bytes of a block, clipped to the array.
    pub fn bytes_of(&self, number: u64) -> u64 {
        let mut left = number;
        let mut bytes = self.element;
        for k in (0..self.shape.len()).rev() {
            let blocks = self.shape[k].div_ceil(self.block[k]).max(1);
            let start = left % blocks * self.block[k];
            bytes *= self.block[k].min(self.shape[k].saturating_sub(start));
            left /= blocks;
        }
        bytes
    }

    /// Returns the dimension along which chunk rows follow each other: the first in which a block has more than one
    /// index, or the divided one.
    fn row_axis(&self) -> Option<usize> {
        let cut = self.cut?;
        let thick = (0..cut).find(|&k| self.block[k].min(self.shape[k]) > 1);
        Some(thick.unwrap_or(cut))
    }

    /// Returns how the blocks form chunk rows.
    pub fn chunk_row(&self) -> ChunkRow {
        let Some(k) = self.row_axis() else {
            return ChunkRow {
                blocks: 1,
                bytes: self.payload,
                row: self.payload,
                block_row: self.payload,
            };
        };
        let behind = || self.shape[k + 1..].iter().zip(&self.block[k + 1..]);
        let fold = |n: u64, d: u64| n.saturating_mul(d);
        let row = behind().map(|(d, _)| *d).fold(self.element, fold);
        ChunkRow {
            blocks: behind().map(|(d, p)| d.div_ceil(*p)).fold(1, fold),
            bytes: row.saturating_mul(self.block[k].min(self.shape[k])),
            row,
            block_row: behind().map(|(d, p)| *d.min(p)).fold(self.element, fold),
        }
    }

    /// Returns the largest number of chunk rows that a range of `bytes` bytes of the payload overlaps.
    pub fn chunk_rows_within(&self, bytes: u64) -> u64 {
        let Some(k) = self.row_axis() else {
            return 1;
        };
        let chunk_row = self.chunk_row();
        // If the last block along the axis is clipped, each pass along it ends with a shorter chunk row.
        let shorter = match self.shape[k] % self.block[k].max(1) {
            0 => 0,
            _ => bytes / chunk_row.row.saturating_mul(self.shape[k]).max(1) + 1,
        };
        let all = (self.blocks() / chunk_row.blocks.max(1)).max(1);
        (bytes.div_ceil(chunk_row.bytes.max(1)) + 1 + shorter).min(all)
    }

    /// Returns the chunk row of byte `offset` of the payload, and its range in the payload.
    pub fn chunk_row_at(&self, offset: u64) -> (u64, Range<u64>) {
        let Some(k) = self.row_axis() else {
            return (0, 0..self.payload);
        };
        let row = self.chunk_row().row;
        let (outer, along) = (offset / row / self.shape[k], offset / row % self.shape[k]);
        let number = along / self.block[k];
        let first = number * self.block[k];
        let start = (outer * self.shape[k] + first) * row;
        let rows = self.block[k].min(self.shape[k] - first);
        let chunk_rows = self.shape[k].div_ceil(self.block[k]);
        (outer * chunk_rows + number, start..start + rows * row)
    }
}

/// Blocks with consecutive numbers that together cover a range of the payload, and that a sequential reader visits in
/// turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRow {
    /// The number of blocks.
    pub blocks: u64,
    /// Bytes of a complete chunk row.
    pub bytes: u64,
    /// The distance in bytes between rows of a chunk row in the payload.
    pub row: u64,
    /// The distance in bytes between rows in a block.
    pub block_row: u64,
}

/// Returns the shape of a block of whole rows of at most `target` bytes: divides the first dimension that is too long.
pub fn row_block(shape: &[u64], element: u64, target: u64) -> Vec<u64> {
    let mut room = (target / element.max(1)).max(1);
    let mut block = vec![1; shape.len()];
    for k in (0..shape.len()).rev() {
        block[k] = shape[k].clamp(1, room);
        room /= block[k];
        if block[k] < shape[k] {
            break;
        }
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the payload offsets of a block's bytes, by brute force.
    fn offsets(shape: &[u64], start: &[u64], count: &[u64], element: u64) -> Vec<u64> {
        let mut rows = vec![0];
        for k in 0..shape.len() {
            rows = rows
                .iter()
                .flat_map(|&base| (0..count[k]).map(move |i| base * shape[k] + start[k] + i))
                .collect();
        }
        rows.iter()
            .flat_map(|&row| (0..element).map(move |b| row * element + b))
            .collect()
    }

    proptest! {
        #[test]
        fn every_byte_is_found_where_it_lies(
            dims in proptest::collection::vec((1_u64..7, 1_u64..9), 0..4),
            element in 1_u64..4,
        ) {
            let shape: Vec<_> = dims.iter().map(|d| d.0).collect();
            let block: Vec<_> = dims.iter().map(|d| d.1).collect();
            let grid = Grid::new(&shape, &block, element).unwrap();
            let mut at = 0;
            while at < grid.payload {
                let run = grid.run_at(at);
                prop_assert!(run.len > 0);
                let (start, count) = grid.bounds(run.block);
                let bytes = offsets(&shape, &start, &count, element);
                for i in 0..run.len {
                    prop_assert_eq!(bytes[(run.at + i) as usize], at + i);
                }
                at += run.len;
            }
        }
    }

    proptest! {
        #[test]
        fn a_chunk_row_holds_a_range_of_the_payload(
            dims in proptest::collection::vec((1_u64..7, 1_u64..9), 0..4),
            element in 1_u64..4,
        ) {
            let shape: Vec<_> = dims.iter().map(|d| d.0).collect();
            let block: Vec<_> = dims.iter().map(|d| d.1).collect();
            let grid = Grid::new(&shape, &block, element).unwrap();
            let chunk_row = grid.chunk_row();
            let mut at = 0;
            while at < grid.payload {
                let run = grid.run_at(at);
                let (number, range) = grid.chunk_row_at(at);
                prop_assert_eq!(run.block / chunk_row.blocks, number);
                prop_assert!(range.contains(&at) && range.end - range.start <= chunk_row.bytes);
                prop_assert!(at != range.start || grid.chunk_row_at(at.saturating_sub(1)).0 + 1 == number || at == 0);
                at += run.len;
            }
            for (at, len) in (0..grid.payload).flat_map(|at| [1, 5, 30].map(|len| (at, len))) {
                let last = (at + len - 1).min(grid.payload - 1);
                let touched = grid.chunk_row_at(last).0 - grid.chunk_row_at(at).0 + 1;
                prop_assert!(touched <= grid.chunk_rows_within(len), "{} from {}", len, at);
            }
            for block in 0..grid.blocks() {
                let (_, shape) = grid.bounds(block);
                prop_assert_eq!(grid.bytes_of(block), shape.iter().product::<u64>() * element);
            }
        }
    }

    #[test]
    fn chunk_rows_of_chunks_across_rows() {
        let grid = Grid::new(&[100, 60], &[10, 20], 4).unwrap();
        let chunk_row = ChunkRow {
            blocks: 3,
            bytes: 10 * 240,
            row: 240,
            block_row: 80,
        };
        assert_eq!(grid.chunk_row(), chunk_row);
        assert_eq!(
            [1, 2400, 2401, 1 << 40].map(|n| grid.chunk_rows_within(n)),
            [2, 2, 3, 10]
        );
        // Whole rows: each block is a chunk row.
        let grid = Grid::new(&[100, 60], &[10, 60], 4).unwrap();
        assert_eq!(grid.chunk_row().blocks, 1);
        let grid = Grid::new(&[100, 60], &[1, 20], 4).unwrap();
        assert_eq!(grid.chunk_row().blocks, 1);
        assert_eq!(grid.chunk_row_at(250), (3, 240..320));
    }

    #[test]
    fn row_blocks_stay_near_their_target() {
        assert_eq!(row_block(&[100, 10], 8, 800), [10, 10]);
        assert_eq!(row_block(&[100, 1000], 8, 800), [1, 100]);
        assert_eq!(row_block(&[3], 8, 800), [3]);
        assert_eq!(row_block(&[5, 5], 1000, 8), [1, 1]);
        assert!(row_block(&[], 8, 8).is_empty());
        assert_eq!(row_block(&[1 << 60], 8, 1 << 20), [1 << 17]);
    }

    #[test]
    fn impossible_grids_are_refused() {
        assert!(Grid::new(&[1 << 40, 1 << 40], &[1, 1], 8).is_none());
        assert!(Grid::new(&[5], &[0], 8).is_none());
        assert!(Grid::new(&[5], &[], 8).is_none());
        assert_eq!(
            Grid::new(&[1 << 40, 1 << 40, 0], &[1, 1, 1], 8)
                .unwrap()
                .payload,
            0
        );
    }
}
