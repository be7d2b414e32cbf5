//! The cost of reading parts of a chunked array: bytes read and bytes decoded.

/// A part that costs this many times its size justifies another layout.
const DEAR: u64 = 100;

/// A part that costs at most this many bytes is cheap, however small it is.
const CHEAP: u64 = 1 << 20;

/// A chunked array with elements.
#[derive(Clone, Copy, Debug)]
pub struct ChunkedArray<'a> {
    /// Its shape.
    pub shape: &'a [u64],
    /// Shape of a chunk.
    pub chunk: &'a [u64],
    /// Bytes of an element.
    pub element: u64,
    /// The stored bytes of all chunks.
    pub stored: u64,
}

/// The cost of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of the part.
    pub bytes: u64,
    /// Approximate bytes read: all chunks are assumed to have the same size.
    pub read: u64,
    /// Bytes that are decoded.
    pub decoded: u64,
}

impl Cost {
    /// Returns the ratio of a part's cost to its size, if it is a hundred or more.
    pub fn excess(&self) -> Option<u64> {
        let times = self.decoded.checked_div(self.bytes)?;
        (times >= DEAR && self.decoded > CHEAP).then_some(times)
    }
}

impl ChunkedArray<'_> {
    /// Returns the cost of one index of the first axis; `None` if that is a single element.
    pub fn row(&self) -> Option<Cost> {
        (self.shape.len() > 1).then(|| self.one_along(&[0]))
    }

    /// Returns the cost of one index of the last axis; `None` if that is a single element.
    pub fn column(&self) -> Option<Cost> {
        (self.shape.len() > 1).then(|| self.one_along(&[self.shape.len() - 1]))
    }

    /// Returns the cost of one element.
    pub fn element(&self) -> Cost {
        let all: Vec<usize> = (0..self.shape.len()).collect();
        self.one_along(&all)
    }

    /// Returns the cost of the whole array.
    pub fn all(&self) -> Cost {
        self.one_along(&[])
    }

    /// Returns the cost of a part with one index along `axes`, and the full extent of the other axes.
    fn one_along(&self, axes: &[usize]) -> Cost {
        let product = |dims: &mut dyn Iterator<Item = u64>| dims.fold(1, u64::saturating_mul);
        let along =
            |k: usize| self.shape[k].div_ceil(self.chunk.get(k).copied().unwrap_or(1).max(1));
        let others = || (0..self.shape.len()).filter(|k| !axes.contains(k));
        let bytes = product(&mut others().map(|k| self.shape[k])).saturating_mul(self.element);
        let touched = product(&mut others().map(along));
        let chunks = product(&mut (0..self.shape.len()).map(along)).max(1);
        let chunk = product(&mut self.chunk.iter().copied()).saturating_mul(self.element);
        let read = u128::from(self.stored) * u128::from(touched) / u128::from(chunks);
        Cost {
            bytes,
            read: u64::try_from(read).unwrap_or(u64::MAX),
            decoded: chunk.saturating_mul(touched),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cost_the_chunks_that_they_touch() {
        let array = ChunkedArray {
            shape: &[1000, 1000],
            chunk: &[500, 10],
            element: 8,
            stored: 2_000_000,
        };
        let cost = |bytes, read, decoded| Cost {
            bytes,
            read,
            decoded,
        };
        assert_eq!(array.row(), Some(cost(8000, 1_000_000, 4_000_000)));
        assert_eq!(array.column(), Some(cost(8000, 20_000, 80_000)));
        assert_eq!(array.element(), cost(8, 10_000, 40_000));
        assert_eq!(array.all(), cost(8_000_000, 2_000_000, 8_000_000));
        assert_eq!(array.row().and_then(|row| row.excess()), Some(500));
        // Many times its size, but not many bytes.
        assert_eq!(array.element().excess(), None);
        let vector = ChunkedArray {
            shape: &[10],
            chunk: &[100],
            element: 8,
            stored: 800,
        };
        assert_eq!((vector.row(), vector.column()), (None, None));
        assert_eq!(vector.all(), cost(80, 800, 800));
    }
}
