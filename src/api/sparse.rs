//! Sparse matrices: three arrays and a shape.

use ndarray::Array2;

/// The axis along which a sparse matrix is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SparseOrder {
    /// Row after row.
    Csr,
    /// Column after column.
    Csc,
}

/// A sparse matrix, from [`Store::sparse`](super::Store::sparse): the parts that `scipy.sparse` and the crate `sprs`
/// take.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Sparse<T> {
    /// The axis along which it is compressed.
    pub order: SparseOrder,
    /// The number of rows and of columns.
    pub shape: (usize, usize),
    /// Where each row (csr) or column (csc) begins in `indices` and `data`, and where the last one ends.
    pub indptr: Vec<usize>,
    /// The column (csr) or the row (csc) of each stored element.
    pub indices: Vec<usize>,
    /// The stored elements.
    pub data: Vec<T>,
}

impl<T: Clone> Sparse<T> {
    /// Returns the matrix if its parts fit each other, and what is wrong with them otherwise.
    pub(super) fn checked(self) -> Result<Self, String> {
        self.check().map(|()| self)
    }

    /// Returns the lengths of the axis of the pointers and of the axis of the indices.
    fn axes(&self) -> (usize, usize) {
        match self.order {
            SparseOrder::Csr => self.shape,
            SparseOrder::Csc => (self.shape.1, self.shape.0),
        }
    }

    /// Returns what is wrong with its parts: nothing that follows them may reach beyond them.
    fn check(&self) -> Result<(), String> {
        let (along, across) = self.axes();
        let stored = self.data.len();
        if along.checked_add(1) != Some(self.indptr.len()) {
            return Err(format!(
                "indptr has {} entries for {along}",
                self.indptr.len()
            ));
        }
        let is_ordered = self.indptr.is_sorted();
        if !is_ordered || self.indptr.first() != Some(&0) || self.indptr.last() != Some(&stored) {
            return Err(format!("indptr does not lead from 0 to {stored} in order"));
        }
        if self.indices.len() != stored {
            return Err(format!(
                "{} indices of {stored} elements",
                self.indices.len()
            ));
        }
        match self.indices.iter().find(|&&index| index >= across) {
            Some(index) => Err(format!("index {index} of {across}")),
            None => Ok(()),
        }
    }

    /// Returns the matrix with all elements; `zero` is what is not stored. Of elements that are stored twice the last
    /// counts.
    pub fn to_dense(&self, zero: T) -> Array2<T> {
        let mut dense = Array2::from_elem(self.shape, zero);
        for (along, ends) in self.indptr.windows(2).enumerate() {
            for stored in ends[0]..ends[1] {
                let place = match self.order {
                    SparseOrder::Csr => (along, self.indices[stored]),
                    SparseOrder::Csc => (self.indices[stored], along),
                };
                dense[place] = self.data[stored].clone();
            }
        }
        dense
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(indptr: &[usize], indices: &[usize]) -> Sparse<i32> {
        Sparse {
            order: SparseOrder::Csc,
            shape: (3, 2),
            indptr: indptr.to_vec(),
            indices: indices.to_vec(),
            data: vec![7, 8],
        }
    }

    #[test]
    fn parts_that_do_not_fit_are_refused() {
        assert_eq!(matrix(&[0, 1, 2], &[2, 0]).check(), Ok(()));
        for (indptr, indices) in [
            (&[0, 2][..], &[2, 0][..]),
            (&[0, 1, 3], &[2, 0]),
            (&[0, 3, 2], &[2, 0]),
            (&[1, 1, 2], &[2, 0]),
            (&[0, 1, 2], &[2]),
            (&[0, 1, 2], &[3, 0]),
        ] {
            assert!(matrix(indptr, indices).check().is_err(), "{indptr:?}");
        }
        let dense = matrix(&[0, 1, 2], &[2, 0]).to_dense(0);
        assert_eq!(dense, ndarray::array![[0, 8], [0, 0], [7, 0]]);
    }
}
