//! Sparse matrices of daf: a group of CSR parts.
//!
//! daf's reader requires column indices that are sorted and unique in each row: rows are sorted here.

use super::rules::numbers;
use crate::formats::sparse::SparseOrder;
use crate::formats::sparse::members::{self, Checked, Pointers, SparseMembers};
use crate::store::base::{Base, invalid};
use crate::store::encode::ObjectKey;
use crate::store::encode::array::NpyArray;
use crate::store::encode::integers::Integers;
use crate::store::encode::spooled_file::SpooledFile;
use crate::store::object::NewFile;
use crate::store::part::Part;
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::{NewAttribute, NewDataset};

/// Finds the members, or returns the names of the missing ones.
pub(crate) fn members(
    base: &dyn Base,
    parts: &[Part],
) -> Result<std::result::Result<SparseMembers, Vec<String>>> {
    let found = members::members(base, parts)?;
    if let Ok(members) = &found
        && members.order == Some(SparseOrder::Csc)
    {
        return Err(invalid("a sparse matrix that is not CSR: use tocsr()"));
    }
    Ok(found)
}

/// Checks the members of a matrix against each other and its axes.
pub(crate) fn check(arrays: [NpyArray; 4], lengths: (u64, u64)) -> Result<Checked> {
    members::check(arrays, SparseOrder::Csr, lengths, numbers)
}

/// Adds a matrix over two axes.
pub(crate) fn add(
    new: &mut NewFile,
    base: &dyn Base,
    key: &ObjectKey,
    members: SparseMembers,
    (rows, columns): (u64, u64),
) -> Result<()> {
    let Checked {
        data,
        indices,
        indptr,
        sorted,
    } = check(members.arrays, (rows, columns))?;
    let values = data.elements();
    let narrow = DType::int(4);
    let (dtype, data, indices) = if sorted && indices.is(&narrow) {
        (narrow.clone(), data.clone(), indices.data().clone())
    } else if sorted {
        (DType::int(8), data.clone(), indices.wide())
    } else {
        let (values, indices) = sort(base, &indptr, &indices, &data, columns)?;
        let data = NpyArray {
            data: values,
            ..data
        };
        (DType::int(8), data, indices)
    };
    let mut put = |name: &str, dtype: &DType, len: u64, content| {
        new.add(
            NewDataset::new(&key.below(name), dtype.clone(), &[len]),
            content,
        );
    };
    put("data", &data.dtype, values, data.data.clone());
    put("indices", &dtype, values, indices);
    if indptr.is(&narrow) {
        put("indptr", &narrow, indptr.len(), indptr.data().clone());
    } else {
        put("indptr", &DType::int(8), indptr.len(), indptr.wide());
    }
    let dims = [rows, columns].map(u64::to_le_bytes).concat();
    let shape = NewAttribute::new("shape", DType::int(8), &[2], dims);
    new.mark(key.path(), vec![shape]);
    Ok(())
}

/// Sorts the values and 64-bit column indices of every row. Needs memory for the longest row.
fn sort(
    base: &dyn Base,
    indptr: &Integers,
    indices: &Integers,
    data: &NpyArray,
    columns: u64,
) -> Result<(SortedContent, SortedContent)> {
    let size = data.dtype.size();
    let (mut values, mut sorted) = (SpooledFile::new(base), SpooledFile::new(base));
    let mut pointers = Pointers::new(indptr);
    let mut start = pointers.next()?;
    for row in 0..indptr.len().saturating_sub(1) {
        let end = pointers.next()?;
        let len = end.saturating_sub(start);
        let twice = || {
            invalid(format!(
                "row {row} has a column twice: use sum_duplicates()"
            ))
        };
        if len > columns {
            return Err(twice());
        }
        let len = usize::try_from(len).map_err(|_| twice())?;
        let mut columns = vec![0; len];
        indices.read(start, &mut columns)?;
        let mut old = vec![0; len.saturating_mul(size)];
        data.data
            .read_at(start.saturating_mul(size as u64), &mut old)?;
        let mut order: Vec<usize> = (0..len).collect();
        order.sort_unstable_by_key(|&i| columns.get(i));
        let mut before = -1;
        for i in order {
            let column = columns.get(i).copied().unwrap_or(-1);
            if column == before {
                return Err(twice());
            }
            before = column;
            sorted.push(&column.to_le_bytes())?;
            values.push(old.get(i * size..(i + 1) * size).unwrap_or_default())?;
        }
        start = end;
    }
    Ok((values.finish()?, sorted.finish()?))
}

type SortedContent = std::sync::Arc<dyn npyfs_io::content::Content>;
