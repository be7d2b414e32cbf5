//! Sparse matrices as daf's parts: raw data, columns, and row ends.
//!
//! daf infers the number of columns from the highest stored one. If that is not the last, it rejects the matrix. So an
//! additional element is shown, a zero in the last column at the end of the first row: this keeps the row sorted and
//! unique, and does not change the matrix.

use std::sync::Arc;

use super::array;
use super::names::Suffix;
use super::yaml::{self, SparseTypes};
use crate::formats::sparse::{Pointers, check_dims};
use crate::store::encode::NpyArray;
use crate::store::encode::contents::MappedElements;
use crate::store::encode::integers::Integers;
use crate::tree::VirtualFile;
use crate::views::unfit::{Unfit, left_out};
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::{DType, Kind};
use npyfs_io::content::{Concat, Content, InMemory, Slice};

/// The most stored elements whose order is checked before a matrix is listed. In a larger matrix, the other elements
/// are read only until one in the last column is found.
const MOST_JUDGED: u64 = 64 << 20;

/// The number of elements that are examined at once.
const WINDOW: u64 = 1 << 16;

/// The files of a matrix.
#[derive(Clone)]
pub(super) struct SparseParts {
    pub data: Arc<dyn VirtualFile>,
    pub indices: Arc<dyn VirtualFile>,
    pub indptr: Arc<dyn VirtualFile>,
    pub shape: Arc<dyn VirtualFile>,
}

impl SparseParts {
    /// Returns all of the files.
    pub(super) fn files(&self) -> [&Arc<dyn VirtualFile>; 4] {
        [&self.data, &self.indices, &self.indptr, &self.shape]
    }
}

/// Facts about a matrix that daf can read.
pub(super) struct SparseFacts {
    types: SparseTypes,
    shape: [u64; 2],
    /// The number of stored elements.
    stored: u64,
    /// The position of the additional zero, if there is one.
    zero: Option<u64>,
    /// Bytes of an element of each part.
    sizes: [u64; 3],
}

/// Checks that the parts of a matrix match each other and its axes.
pub(super) fn judge(
    parts: &SparseParts,
    (rows, columns): (u64, u64),
) -> std::result::Result<SparseFacts, Unfit> {
    check_dims(array::open(&*parts.shape)?, (rows, columns))?;
    array::check_shape(&[rows, columns], &[rows, columns])?;
    let data = array::open(&*parts.data)?;
    let (indices, indptr) = (array::open(&*parts.indices)?, array::open(&*parts.indptr)?);
    let types = SparseTypes {
        data: array::name(&data.dtype)?,
        indices: array::name(&indices.dtype)?,
        indptr: array::name(&indptr.dtype)?,
    };
    let sizes = [&data, &indices, &indptr].map(|part| part.dtype.size() as u64);
    let widest = (indices.dtype.clone(), indptr.dtype.clone());
    let indices = Integers::new("indices", indices)?;
    let indptr = Integers::new("indptr", indptr)?;
    let stored = data.elements();
    if data.shape.len() != 1 || indices.len() != stored {
        let (shape, count) = (&data.shape, indices.len());
        return left_out(format!("data of shape {shape:?} and {count} indices"));
    }
    let first_row = check_pointers(&indptr, rows, stored)?;
    let is_complete = has_last_column(&indptr, &indices, columns)?;
    if !is_complete {
        let fits = |dtype: &DType, number: u64| number <= largest(dtype);
        if !fits(&widest.0, columns - 1) || !fits(&widest.1, stored.saturating_add(1)) {
            return left_out(
                "nothing is stored in its last column, and its indices have no room for the zero that daf needs there",
            );
        }
    }
    Ok(SparseFacts {
        types,
        shape: [rows, columns],
        stored,
        zero: (!is_complete).then_some(first_row),
        sizes,
    })
}

fn largest(dtype: &DType) -> u64 {
    let bits = match dtype {
        DType::Scalar {
            kind: Kind::Uint,
            size,
            ..
        } => 8 * size,
        _ => (8 * dtype.size()).saturating_sub(1),
    };
    u32::try_from(bits)
        .ok()
        .and_then(|bits| 1_u64.checked_shl(bits))
        .map_or(u64::MAX, |n| n - 1)
}

/// Checks that row pointers start at 0, do not decrease, and end at the number of stored elements; returns the end of
/// the first row.
fn check_pointers(indptr: &Integers, rows: u64, stored: u64) -> std::result::Result<u64, Unfit> {
    if rows.checked_add(1) != Some(indptr.len()) {
        let have = indptr.len();
        return left_out(format!("{have} row pointers for {rows} rows"));
    }
    let (mut before, mut first_row, mut wrong) = (0, 0, None);
    indptr.each(|row, pointer| {
        if wrong.is_none() && (pointer < before || (row == 0 && pointer != 0)) {
            wrong = Some(row);
        }
        if row == 1 {
            first_row = pointer;
        }
        before = pointer;
        Ok(())
    })?;
    if let Some(row) = wrong {
        return left_out(format!("row pointer {row} is wrong"));
    }
    if u64::try_from(before) != Ok(stored) {
        return left_out(format!(
            "row pointers end at {before}, there are {stored} stored elements"
        ));
    }
    Ok(u64::try_from(first_row).unwrap_or(0))
}

/// Checks the columns of each row, and returns whether an element in the last column is stored.
fn has_last_column(
    indptr: &Integers,
    indices: &Integers,
    columns: u64,
) -> std::result::Result<bool, Unfit> {
    let mut ends = Pointers::new(indptr);
    let mut end = ends.next()?;
    let mut before = None;
    let mut found = false;
    let mut at = 0;
    let mut window = Vec::new();
    while at < indices.len() && !(found && at >= MOST_JUDGED) {
        let len = WINDOW.min(indices.len() - at);
        window.resize(usize::try_from(len).unwrap_or(0), 0);
        indices.read(at, &mut window)?;
        for (number, &column) in (at..).zip(&window) {
            while number >= end {
                end = ends.next()?;
                before = None;
            }
            let Ok(column) = u64::try_from(column) else {
                return left_out(format!("column index {number} is {column}"));
            };
            if column >= columns {
                return left_out(format!(
                    "column index {number} is {column}, there are {columns} columns"
                ));
            }
            if before.is_some_and(|before| before >= column) {
                return left_out("rows whose columns are not sorted, or twice there");
            }
            found |= column == columns - 1;
            before = Some(column);
        }
        at += len;
    }
    Ok(found)
}

impl SparseFacts {
    /// Returns the number of elements that are shown.
    fn nnz(&self) -> u64 {
        self.stored + u64::from(self.zero.is_some())
    }

    fn yaml(&self) -> Vec<u8> {
        yaml::sparse(self.types, self.nnz(), &self.shape)
    }

    /// Returns the length of a file in bytes.
    pub(super) fn size(&self, suffix: Suffix) -> u64 {
        let [data, indices, indptr] = self.sizes;
        let rows = self.shape[0];
        match suffix {
            Suffix::Data => self.nnz().saturating_mul(data),
            Suffix::Indices => self.nnz().saturating_mul(indices),
            Suffix::Indptr => rows.saturating_add(1).saturating_mul(indptr),
            Suffix::Yaml | Suffix::Csv | Suffix::Array => self.yaml().len() as u64,
        }
    }

    /// Returns the content of a file.
    pub(super) fn open(&self, parts: &SparseParts, suffix: Suffix) -> Result<Arc<dyn Content>> {
        let last = (self.shape[1].saturating_sub(1)).to_le_bytes();
        Ok(match suffix {
            Suffix::Data => self.with_zero(array::open(&*parts.data)?, [0; 8]),
            Suffix::Indices => self.with_zero(array::open(&*parts.indices)?, last),
            Suffix::Indptr => self.pointers(array::open(&*parts.indptr)?),
            Suffix::Yaml | Suffix::Csv | Suffix::Array => Arc::new(InMemory(self.yaml())),
        })
    }

    /// Inserts the additional element, little-endian, after those of the first row.
    fn with_zero(&self, array: NpyArray, element: [u8; 8]) -> Arc<dyn Content> {
        let data = array.little().data;
        let Some(place) = self.zero else {
            return data;
        };
        let size = array.dtype.size();
        let element = element.get(..size).unwrap_or_default().to_vec();
        let at = place.saturating_mul(size as u64).min(data.len());
        let rest = data.len() - at;
        Arc::new(Concat::new([
            Arc::new(Slice::new(data.clone(), 0, at)) as Arc<dyn Content>,
            Arc::new(InMemory(element)),
            Arc::new(Slice::new(data, at, rest)),
        ]))
    }

    /// Counts the additional element in the ends of all rows.
    fn pointers(&self, array: NpyArray) -> Arc<dyn Content> {
        let data = array.little().data;
        if self.zero.is_none() {
            return data;
        }
        let size = array.dtype.size();
        MappedElements::content(data, size, size, move |first, from, to| {
            to.copy_from_slice(from);
            for (number, pointer) in (first..).zip(to.chunks_exact_mut(size)) {
                let mut carry = number > 0;
                for byte in pointer {
                    if carry {
                        (*byte, carry) = byte.overflowing_add(1);
                    }
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_integer_of_each_type() {
        let of = |kind, size| {
            largest(&DType::scalar(
                kind,
                size,
                npyfs_base::npy::dtype::Order::Little,
            ))
        };
        assert_eq!((of(Kind::Int, 1), of(Kind::Uint, 1)), (127, 255));
        assert_eq!(of(Kind::Int, 8), i64::MAX as u64);
        assert_eq!(of(Kind::Uint, 8), u64::MAX);
    }

    #[test]
    fn one_more_element_is_shown_behind_the_first_row() {
        let bytes = |data: &[u8]| NpyArray {
            dtype: DType::scalar(Kind::Uint, 2, npyfs_base::npy::dtype::Order::Big),
            shape: vec![data.len() as u64 / 2],
            data: Arc::new(InMemory(data.to_vec())),
        };
        let facts = SparseFacts {
            types: SparseTypes {
                data: "uint16",
                indices: "uint16",
                indptr: "uint16",
            },
            shape: [2, 0x0105],
            stored: 2,
            zero: Some(1),
            sizes: [2; 3],
        };
        let read = |content: Arc<dyn Content>| {
            let all = npyfs_io::content::read(&*content, 0, 100, &Arc::default()).unwrap();
            all.as_ref().to_vec()
        };
        let last = 0x0104_u64.to_le_bytes();
        let indices = facts.with_zero(bytes(&[0, 3, 0, 4]), last);
        assert_eq!(indices.len(), facts.size(Suffix::Indices));
        assert_eq!(read(indices), [3, 0, 4, 1, 4, 0]);
        let pointers = facts.pointers(bytes(&[0, 0, 0, 0xff, 1, 0xff]));
        assert_eq!(read(pointers), [0, 0, 0, 1, 0, 2]);
    }
}
