//! The members of a sparse matrix to be written: a directory of `data`, `indices`, `indptr` and `shape`, or an `.npz`
//! saved by `scipy.sparse`.

use crate::formats::npz::archive;
use crate::formats::sparse::SparseOrder;
use crate::store::base::{Base, invalid};
use crate::store::encode::array::NpyArray;
use crate::store::encode::integers::Integers;
use crate::store::encode::text;
use crate::store::part::Part;
use npyfs_base::error::Result;

pub(crate) const MEMBERS: [&str; 4] = ["data", "indices", "indptr", "shape"];

/// The members of an `.npz` that are used.
const FILES: [&str; 5] = ["data", "indices", "indptr", "shape", "format"];

/// The members of a matrix.
pub(crate) struct SparseMembers {
    /// Data, indices, indptr and shape.
    pub arrays: [NpyArray; 4],
    /// The order in an archive; a directory has none.
    pub order: Option<SparseOrder>,
}

/// Finds the members, or returns the names of the missing ones.
pub(crate) fn members(
    base: &dyn Base,
    parts: &[Part],
) -> Result<std::result::Result<SparseMembers, Vec<String>>> {
    let find = |name: &str| parts.iter().find(|part| part.place.member == name);
    let single = find("").filter(|_| parts.len() == 1);
    if let Some(part) = single {
        let mut files = archive::members(base, &part.content, &FILES)?;
        let mut order = Some(SparseOrder::Csr);
        if let Some(format) = files.remove("format") {
            let format = NpyArray::open(base, &format)?;
            text::each(&format, |_, name| {
                order = SparseOrder::named(name);
                Ok(())
            })?;
            if format.elements() != 1 || order.is_none() {
                let why = "a sparse matrix that is neither CSR nor CSC: use tocsr()";
                return Err(invalid(why));
            }
        }
        let mut open = |name: &str| {
            let missing = || invalid(format!("the .npz has no member {name}.npy"));
            let file = files.remove(name).ok_or_else(missing)?;
            NpyArray::open(base, &file).map_err(|e| e.about(name))
        };
        let [data, indices, indptr, shape] = MEMBERS;
        let arrays = [open(data)?, open(indices)?, open(indptr)?, open(shape)?];
        return Ok(Ok(SparseMembers { arrays, order }));
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
    let arrays = [open(data)?, open(indices)?, open(indptr)?, open(shape)?];
    Ok(Ok(SparseMembers {
        arrays,
        order: None,
    }))
}

/// A matrix whose members match each other.
pub(crate) struct Checked {
    pub data: NpyArray,
    pub indices: Integers,
    pub indptr: Integers,
    /// Whether the indices of every row or column are sorted and unique.
    pub sorted: bool,
}

/// Checks that the members of a matrix with an order match each other and its axes. The error names the wrong member.
/// `numbers` rejects data of a type that the store does not support.
pub(crate) fn check(
    arrays: [NpyArray; 4],
    order: SparseOrder,
    (rows, columns): (u64, u64),
    numbers: impl Fn(&NpyArray) -> Result<NpyArray>,
) -> Result<Checked> {
    let [data, indices, indptr, shape] = arrays;
    let data = numbers(&data).map_err(|e| e.about("data"))?;
    if data.shape.len() != 1 {
        return Err(invalid(format!("data is of shape {:?}", data.shape)));
    }
    let indices = Integers::new("indices", indices)?;
    let indptr = Integers::new("indptr", indptr)?;
    let shape = Integers::new("shape", shape)?;
    check_shape(&shape, rows, columns)?;
    let (major, minor) = order.sorted((rows, columns));
    let (of_pointer, _) = order.axes();
    if major.checked_add(1) != Some(indptr.len()) {
        let have = indptr.len();
        return Err(invalid(format!(
            "indptr has {have} elements, for {major} {of_pointer}s"
        )));
    }
    let (values, numbers) = (data.elements(), indices.len());
    let end = check_pointers(&indptr, of_pointer)?;
    if values == numbers && values != end {
        let why = format!("indptr is for {end} values, data and indices have {values} elements");
        return Err(invalid(why));
    }
    for (name, have) in [("data", values), ("indices", numbers)] {
        if have != end {
            return Err(invalid(format!(
                "{name} has {have} elements, indptr is for {end}"
            )));
        }
    }
    let sorted = check_indices(&indptr, &indices, order, minor)?;
    Ok(Checked {
        data,
        indices,
        indptr,
        sorted,
    })
}

/// Checks that a matrix has the lengths of its axes.
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

/// Checks that pointers start at 0 and do not decrease; returns the last one.
fn check_pointers(indptr: &Integers, of: &str) -> Result<u64> {
    let mut before = 0;
    indptr.each(|row, pointer| {
        if pointer < before || (row == 0 && pointer != 0) {
            return Err(invalid(format!(
                "indptr is wrong: {of} pointer {row} is {pointer}, the one before {before}"
            )));
        }
        before = pointer;
        Ok(())
    })?;
    u64::try_from(before).map_err(|_| invalid("indptr is wrong"))
}

/// Returns whether the indices of every row or column are sorted and unique; fails if any is outside of the matrix.
fn check_indices(
    indptr: &Integers,
    indices: &Integers,
    order: SparseOrder,
    minor: u64,
) -> Result<bool> {
    let (_, of) = order.axes();
    let mut ends = Pointers::new(indptr);
    let mut end = ends.next()?;
    let mut before = -1;
    let mut sorted = true;
    indices.each(|number, index| {
        while number >= end {
            end = ends.next()?;
            before = -1;
        }
        if !u64::try_from(index).is_ok_and(|index| index < minor) {
            return Err(invalid(format!(
                "{of} index {number} is {index}, there are {minor} {of}s"
            )));
        }
        sorted &= index > before;
        before = index;
        Ok(())
    })?;
    Ok(sorted)
}

/// An iterator over pointers that were checked before.
pub(crate) struct Pointers<'a> {
    from: &'a Integers,
    read: u64,
    window: Vec<i64>,
    at: usize,
}

impl<'a> Pointers<'a> {
    /// Begins at the first pointer.
    pub(crate) fn new(from: &'a Integers) -> Self {
        let (read, window, at) = (0, Vec::new(), 0);
        Self {
            from,
            read,
            window,
            at,
        }
    }

    /// Returns the next pointer; `u64::MAX` after the last.
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
