//! Sparse matrices of daf: a group of CSR parts.
//!
//! They come as a directory of `data`, `indices`, `indptr` and `shape`, or as the `.npz` that `scipy.sparse`
//! saves. daf's reader needs column indices that are sorted in each row and there once: rows are sorted here.

use super::archive;
use crate::checkout::encode::array::NpyArray;
use crate::checkout::encode::integers::Integers;
use crate::checkout::encode::spooled_file::SpooledFile;
use crate::checkout::encode::{Base, ObjectKey, invalid};
use crate::checkout::object::NewFile;
use crate::checkout::target::Part;
use crate::error::Result;
use crate::formats::daf::encode::numbers;
use crate::hdf5::{NewAttribute, NewDataset};
use crate::npy::dtype::DType;

pub(crate) const MEMBERS: [&str; 4] = ["data", "indices", "indptr", "shape"];

/// Members of an `.npz` that are looked at.
const FILES: [&str; 5] = ["data", "indices", "indptr", "shape", "format"];

/// The members of a matrix: data, indices, indptr and shape.
pub(crate) struct SparseMembers(pub [NpyArray; 4]);

/// Finds the members, or says which are missing.
pub(crate) fn members(
    base: &dyn Base,
    parts: &[Part],
) -> Result<std::result::Result<SparseMembers, Vec<String>>> {
    let find = |name: &str| parts.iter().find(|part| part.place.member == name);
    let single = find("").filter(|_| parts.len() == 1);
    if let Some(part) = single {
        let mut files = archive::members(base, &part.content, &FILES)?;
        if let Some(format) = files.remove("format") {
            let format = NpyArray::open(base, &format)?;
            let mut is_csr = format.elements() == 1;
            crate::checkout::encode::text::each(&format, |_, text| {
                is_csr &= text == b"csr";
                Ok(())
            })?;
            if !is_csr {
                return Err(invalid("a sparse matrix that is not CSR: use tocsr()"));
            }
        }
        let mut open = |name: &str| {
            let missing = || invalid(format!("the .npz has no member {name}.npy"));
            let file = files.remove(name).ok_or_else(missing)?;
            NpyArray::open(base, &file).map_err(|e| e.about(name))
        };
        let [data, indices, indptr, shape] = MEMBERS;
        let found = [open(data)?, open(indices)?, open(indptr)?, open(shape)?];
        return Ok(Ok(SparseMembers(found)));
    }
    for part in parts {
        let member = part.place.member.as_str();
        if !member.is_empty() && !MEMBERS.contains(&member) {
            return Err(invalid(format!("a sparse matrix has no member {member}")));
        }
    }
    let missing: Vec<String> = MEMBERS
        .iter()
        .filter(|name| find(name).is_none())
        .map(|&name| name.to_owned())
        .collect();
    let open = |name: &str| {
        let part = find(name).ok_or_else(|| invalid(format!("{name} is missing")))?;
        NpyArray::open(base, &part.content).map_err(|e| e.about(name))
    };
    if !missing.is_empty() {
        return Ok(Err(missing));
    }
    let [data, indices, indptr, shape] = MEMBERS;
    let found = [open(data)?, open(indices)?, open(indptr)?, open(shape)?];
    Ok(Ok(SparseMembers(found)))
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
    } = check(members, (rows, columns))?;
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

/// A matrix whose members fit each other.
pub(crate) struct Checked {
    data: NpyArray,
    indices: Integers,
    indptr: Integers,
    /// The columns of every row are sorted, and there once.
    pub sorted: bool,
}

/// Checks the members of a matrix against each other and its axes. The error names the member that does not fit.
pub(crate) fn check(members: SparseMembers, (rows, columns): (u64, u64)) -> Result<Checked> {
    let [data, indices, indptr, shape] = members.0;
    let data = numbers(&data).map_err(|e| e.about("data"))?;
    if data.shape.len() != 1 {
        return Err(invalid(format!("data is of shape {:?}", data.shape)));
    }
    let indices = Integers::new("indices", indices)?;
    let indptr = Integers::new("indptr", indptr)?;
    let shape = Integers::new("shape", shape)?;
    check_shape(&shape, rows, columns)?;
    if rows.checked_add(1) != Some(indptr.len()) {
        let have = indptr.len();
        return Err(invalid(format!(
            "indptr has {have} elements, for {rows} rows"
        )));
    }
    let (values, columns_of) = (data.elements(), indices.len());
    let end = check_pointers(&indptr)?;
    if values == columns_of && values != end {
        let why = format!("indptr is for {end} values, data and indices have {values} elements");
        return Err(invalid(why));
    }
    for (name, have) in [("data", values), ("indices", columns_of)] {
        if have != end {
            return Err(invalid(format!(
                "{name} has {have} elements, indptr is for {end}"
            )));
        }
    }
    let sorted = check_columns(&indptr, &indices, columns)?;
    Ok(Checked {
        data,
        indices,
        indptr,
        sorted,
    })
}

/// Checks that a matrix says the lengths of its axes.
pub(crate) fn check_dims(shape: NpyArray, (rows, columns): (u64, u64)) -> Result<()> {
    check_shape(&Integers::new("shape", shape)?, rows, columns)
}

fn check_shape(shape: &Integers, rows: u64, columns: u64) -> Result<()> {
    let mut found = Vec::new();
    if shape.len() == 2 {
        shape.each(|_, n| {
            found.push(n);
            Ok(())
        })?;
    }
    let fits = matches!(found.as_slice(), &[r, c]
        if u64::try_from(r) == Ok(rows) && u64::try_from(c) == Ok(columns));
    if fits {
        return Ok(());
    }
    Err(invalid(format!(
        "shape is {found:?}, the axes are of length [{rows}, {columns}]"
    )))
}

/// Row pointers start at 0 and never fall; answers where they end.
fn check_pointers(indptr: &Integers) -> Result<u64> {
    let mut before = 0;
    indptr.each(|row, pointer| {
        if pointer < before || (row == 0 && pointer != 0) {
            return Err(invalid(format!(
                "indptr is wrong: row pointer {row} is {pointer}, the one before {before}"
            )));
        }
        before = pointer;
        Ok(())
    })?;
    u64::try_from(before).map_err(|_| invalid("indptr is wrong"))
}

/// Returns whether the columns of every row are sorted and there once; all are within the matrix.
fn check_columns(indptr: &Integers, indices: &Integers, columns: u64) -> Result<bool> {
    let mut ends = Pointers::new(indptr);
    let mut end = ends.next()?;
    let mut before = -1;
    let mut sorted = true;
    indices.each(|number, column| {
        while number >= end {
            end = ends.next()?;
            before = -1;
        }
        if !u64::try_from(column).is_ok_and(|column| column < columns) {
            return Err(invalid(format!(
                "column index {number} is {column}, there are {columns} columns"
            )));
        }
        sorted &= column > before;
        before = column;
        Ok(())
    })?;
    Ok(sorted)
}

/// Row pointers one after the other; checked before.
pub(crate) struct Pointers<'a> {
    from: &'a Integers,
    read: u64,
    window: Vec<i64>,
    at: usize,
}

impl<'a> Pointers<'a> {
    /// Begins at the first.
    pub(crate) fn new(from: &'a Integers) -> Self {
        let (read, window, at) = (0, Vec::new(), 0);
        Self {
            from,
            read,
            window,
            at,
        }
    }

    /// Returns the next; `u64::MAX` behind the last.
    pub(crate) fn next(&mut self) -> Result<u64> {
        const WINDOW: u64 = 1 << 16;
        if self.at >= self.window.len() {
            let len = WINDOW.min(self.from.len().saturating_sub(self.read));
            self.window.resize(usize::try_from(len).unwrap_or(0), 0);
            self.from.read(self.read, &mut self.window)?;
            self.read += len;
            self.at = 0;
        }
        let pointer = self.window.get(self.at).copied();
        self.at += 1;
        Ok(pointer
            .and_then(|p| u64::try_from(p).ok())
            .unwrap_or(u64::MAX))
    }
}

/// Values and 64-bit column indices with every row sorted. Memory is that of the longest row.
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

type SortedContent = std::sync::Arc<dyn crate::io::content::Content>;
