//! The grid of the chunks of a dataset, and the numbers of chunks in fixed and extensible arrays.
//!
//! A place is the number of a chunk in the grid over the current shape, in C order. Arrays number chunks in the grid
//! over the maximum shape, extensible ones as if the unlimited dimension came first.

/// The grid of a dataset.
#[derive(Clone, Debug)]
pub struct Places {
    /// The number of chunks along each dimension of the current shape.
    grid: Vec<u64>,
    /// The elements of a chunk along each dimension.
    chunk: Vec<u64>,
    /// The dimensions in the order of an array, each with the largest number of chunks along it. That of an unlimited
    /// dimension has no meaning: the dimension is the first.
    order: Vec<(usize, u64)>,
    count: u64,
}

impl Places {
    /// Makes the grid of a dataset of a shape and a maximum shape (`u64::MAX`: unlimited). Returns `None` if the number
    /// of places overflows, or a chunk has no elements.
    pub fn new(shape: &[u64], max: &[u64], chunk: &[u64]) -> Option<Self> {
        if chunk.contains(&0) || shape.len() != chunk.len() || max.len() != chunk.len() {
            return None;
        }
        let chunks = |dims: &[u64]| -> Vec<u64> {
            let counts = dims.iter().zip(chunk);
            counts.map(|(d, c)| d.div_ceil(*c)).collect()
        };
        let grid = chunks(shape);
        let count = grid.iter().try_fold(1_u64, |n, &d| n.checked_mul(d))?;
        let mut order: Vec<(usize, u64)> = chunks(max).into_iter().enumerate().collect();
        if let Some(unlimited) = max.iter().position(|&n| n == u64::MAX) {
            order[..=unlimited].rotate_right(1);
        }
        Some(Self {
            grid,
            chunk: chunk.to_vec(),
            order,
            count,
        })
    }

    pub(super) fn rank(&self) -> usize {
        self.grid.len()
    }

    pub(super) fn chunk(&self) -> &[u64] {
        &self.chunk
    }

    /// Returns the number of places.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the coordinates of a place, in chunks.
    pub(super) fn coords(&self, mut place: u64) -> Vec<u64> {
        let mut coords = vec![0; self.grid.len()];
        for k in (0..coords.len()).rev() {
            coords[k] = place % self.grid[k];
            place /= self.grid[k];
        }
        coords
    }

    /// Returns the place of the chunk at some coordinates; `None` if it lies beyond the shape.
    pub(super) fn place(&self, coords: &[u64]) -> Option<u64> {
        let inside = coords.iter().zip(&self.grid).all(|(c, n)| c < n);
        inside.then(|| {
            coords
                .iter()
                .zip(&self.grid)
                .fold(0, |at, (c, n)| at * n + c)
        })
    }

    /// Returns the first place whose coordinates are not less than these, in lexicographic order.
    pub(super) fn ceil(&self, coords: &[u64]) -> u64 {
        let mut at = 0;
        for (k, (c, n)) in coords.iter().zip(&self.grid).enumerate() {
            if c >= n {
                // All places with these first coordinates lie before it.
                let rest = self.grid[k..].iter().product::<u64>();
                let next = if k == 0 { 1 } else { at + 1 };
                return next * rest;
            }
            at = at * n + c;
        }
        at
    }

    /// Returns the number of the chunk at a place in an array.
    pub(super) fn number(&self, place: u64) -> u64 {
        let coords = self.coords(place);
        let each = self.order.iter().enumerate();
        each.fold(0_u64, |number, (k, &(dim, most))| {
            let most = if k == 0 { 1 } else { most };
            number.saturating_mul(most).saturating_add(coords[dim])
        })
    }

    /// Returns the place of the chunk with a number in an array; `None` if it lies beyond the shape.
    pub(super) fn of_number(&self, mut number: u64) -> Option<u64> {
        let mut coords = vec![0; self.grid.len()];
        for (k, &(dim, most)) in self.order.iter().enumerate().rev() {
            if k == 0 {
                coords[dim] = number;
            } else {
                coords[dim] = number.checked_rem(most)?;
                number /= most;
            }
        }
        self.place(&coords)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_numbered_over_the_grid_and_over_the_maximum() {
        let most = u64::MAX;
        for (shape, max, chunk) in [
            (&[7, 9][..], &[7, 9][..], &[2, 4][..]),
            (&[7, 9], &[20, 30], &[2, 4]),
            (&[7, 9], &[7, most], &[2, 4]),
            (&[7, 9, 5], &[8, most, 11], &[1, 2, 2]),
            (&[7, 9, 5], &[most, 9, 6], &[3, 2, 2]),
            (&[5], &[most], &[1]),
            (&[], &[], &[]),
        ] {
            let places = Places::new(shape, max, chunk).unwrap();
            let mut numbers = Vec::new();
            for place in 0..places.count() {
                let coords = places.coords(place);
                assert_eq!(places.place(&coords), Some(place));
                assert_eq!(places.ceil(&coords), place);
                let number = places.number(place);
                assert_eq!(places.of_number(number), Some(place));
                numbers.push(number);
            }
            numbers.sort_unstable();
            numbers.dedup();
            assert_eq!(numbers.len() as u64, places.count());
        }
        let places = Places::new(&[7, 9], &[20, 30], &[2, 4]).unwrap();
        // Rows of three chunks: what lies beyond one is before the next.
        assert_eq!(places.ceil(&[1, 3]), 6);
        assert_eq!(places.ceil(&[1, 99]), 6);
        assert_eq!(places.ceil(&[4, 0]), 12);
        assert_eq!(places.place(&[1, 3]), None);
        assert_eq!(places.of_number(3), None);
        assert!(Places::new(&[7], &[7], &[0]).is_none());
        assert!(Places::new(&[u64::MAX, 2], &[u64::MAX, 2], &[1, 1]).is_none());
    }
}
