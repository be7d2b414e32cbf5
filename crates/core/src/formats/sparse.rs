//! Sparse matrices of three vectors: data, indices along the other axis, and the start of each row or column.
//!
//! A stored matrix is a group of them. One that is to be written has four members: a directory of `data`, `indices`,
//! `indptr` and `shape`, or an `.npz` saved by `scipy.sparse`. The calling format determines along which axis a matrix
//! is compressed, and the lengths of its axes.

use std::sync::Arc;

use crate::dataset::opened::OpenStore;
use crate::formats::npz::{self, NpzFile, NpzMember};
use crate::formats::plain::group::GroupDirectory;
use crate::formats::plain::integers::integers;
use crate::store::base::{Base, invalid};
use crate::store::encode::array::{NpyArray, scalar};
use crate::store::encode::integers::Integers;
use crate::store::encode::text;
use crate::store::part::Part;
use crate::tree::{Directory, Node, VirtualFile};
use npyfs_base::error::{Error, Result};
use npyfs_base::npy::dtype::{DType, Kind, integer};
use npyfs_hdf5::{DataSource, Dataset, GroupMember, Request, Value};

/// The axis along which a sparse matrix is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SparseOrder {
    /// Row pointers and column indices.
    Csr,
    /// Column pointers and row indices.
    Csc,
}

impl SparseOrder {
    /// Returns the order with scipy's name for it.
    pub fn named(name: &[u8]) -> Option<Self> {
        match name {
            b"csr" => Some(Self::Csr),
            b"csc" => Some(Self::Csc),
            _ => None,
        }
    }

    /// Returns scipy's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Csr => "csr",
            Self::Csc => "csc",
        }
    }

    /// Returns the names of the axis of the pointers and of the axis of the indices.
    fn axes(self) -> (&'static str, &'static str) {
        match self {
            Self::Csr => ("row", "column"),
            Self::Csc => ("column", "row"),
        }
    }

    /// Returns the length of the axis of the pointers and of the axis of the indices.
    fn sorted(self, (rows, columns): (u64, u64)) -> (u64, u64) {
        match self {
            Self::Csr => (rows, columns),
            Self::Csc => (columns, rows),
        }
    }
}

/// Returns the archive of a sparse matrix, with its parts in the order in which scipy writes them. `order` determines
/// which axis is compressed.
pub fn archive(matrix: &GroupDirectory, order: SparseOrder, kind: &'static str) -> Result<NpzFile> {
    let listing = matrix.list()?;
    let file = |name: &str| -> Result<Arc<dyn VirtualFile>> {
        match listing.find(name.as_bytes()) {
            Some(Node::File(file)) => Ok(file),
            _ => Err(Error::damaged(format!("sparse matrix without {name}"))),
        }
    };
    let format = Value {
        dtype: DType::bytes(3),
        shape: Vec::new(),
        data: order.name().as_bytes().to_vec(),
    };
    let format = matrix.value(format, "", "format", kind);
    let member = |name, file| NpzMember { name, file };
    Ok(NpzFile {
        members: vec![
            member("indices.npy", file("indices.npy")?),
            member("indptr.npy", file("indptr.npy")?),
            member("format.npy", format),
            member("shape.npy", file("shape.npy")?),
            member("data.npy", file("data.npy")?),
        ],
        path: matrix.path().to_owned(),
        kind,
    })
}

/// Returns elements of a 1-D dataset.
pub(crate) fn block(
    store: &OpenStore,
    dataset: &Dataset,
    start: u64,
    count: u64,
) -> std::result::Result<Vec<u8>, String> {
    let request = Request::Block {
        dataset: dataset.addr,
        start: vec![start],
        shape: vec![count],
        outside: false,
    };
    // Data in other files is not read for a check.
    let h5 = &store.context.h5;
    match h5.map(&store.file, dataset.addr) {
        Ok(map)
            if matches!(
                map.source,
                DataSource::Raw { .. } | DataSource::Virtual { .. }
            ) =>
        {
            Err("data outside its own dataset".into())
        }
        Ok(_) => h5.bytes(&store.file, request).map_err(|e| e.to_string()),
        Err(e) => Err(e.to_string()),
    }
}

/// Returns the two dimensions in an attribute of a matrix.
pub(crate) fn dimensions(shape: &Value) -> Option<(u64, u64)> {
    let (kind, size, order) = scalar(&shape.dtype)?;
    let is_integer = matches!(kind, Kind::Int | Kind::Uint) && size > 0;
    if shape.shape != [2] || !is_integer {
        return None;
    }
    let mut lengths = shape.data.chunks_exact(size).map(|bytes| {
        let length = integer(bytes, kind, order)?;
        u64::try_from(length).ok()
    });
    Some((lengths.next()??, lengths.next()??))
}

/// Checks that the parts of a sparse matrix match each other and its dimensions.
pub(crate) fn check_stored(
    store: &OpenStore,
    members: &[(Vec<u8>, GroupMember)],
    order: SparseOrder,
    lengths: (u64, u64),
) -> std::result::Result<(), String> {
    let part = |name: &str| {
        members
            .iter()
            .find_map(|(n, member)| match member {
                GroupMember::Dataset(dataset) if n == name.as_bytes() => Some(dataset),
                _ => None,
            })
            .filter(|dataset| dataset.shape.len() == 1)
            .ok_or_else(|| format!("sparse matrix without a vector {name}"))
    };
    let (data, indices, indptr) = (part("data")?, part("indices")?, part("indptr")?);
    for (name, dataset) in [("indices", indices), ("indptr", indptr)] {
        if integers(&dataset.element).is_none() {
            return Err(format!("sparse matrix with {name} that are no integers"));
        }
    }
    let (major, _) = order.sorted(lengths);
    let (of_pointer, of_index) = order.axes();
    if major.checked_add(1) != indptr.shape.first().copied() {
        return Err(format!(
            "sparse matrix of {major} {of_pointer}s with {} {of_pointer} pointers",
            indptr.shape[0]
        ));
    }
    if data.shape != indices.shape {
        return Err(format!(
            "sparse matrix with {} values and {} {of_index} indices",
            data.shape[0], indices.shape[0]
        ));
    }
    check_stored_pointers(store, indptr, data.shape[0], of_pointer)
}

/// Checks that pointers start at 0, do not decrease, and end at the number of values.
fn check_stored_pointers(
    store: &OpenStore,
    indptr: &Dataset,
    values: u64,
    of: &str,
) -> std::result::Result<(), String> {
    const STEP: u64 = 1 << 17;
    let (kind, size, order) =
        integers(&indptr.element).ok_or("sparse matrix with indptr that are no integers")?;
    let (len, mut at) = (indptr.shape[0], 0);
    let mut ascent = Ascent::new(of);
    while at < len {
        let count = STEP.min(len - at);
        let bytes = block(store, indptr, at, count)?;
        for (pointer, number) in bytes.chunks_exact(size.max(1)).zip(at..) {
            ascent.step(number, integer(pointer, kind, order))?;
        }
        at += count;
    }
    let end = ascent.last;
    if u64::try_from(end) != Ok(values) {
        return Err(format!(
            "{of} pointers end at {end}, there are {values} values"
        ));
    }
    Ok(())
}

/// The pointers of a matrix, seen one after the other: they start at 0 and do not decrease.
struct Ascent<'a> {
    /// The axis of the pointers.
    axis: &'a str,
    last: i64,
}

impl<'a> Ascent<'a> {
    fn new(axis: &'a str) -> Self {
        Self { axis, last: 0 }
    }

    /// Takes the pointer with a number; `None` is a pointer of more than 63 bits.
    fn step(&mut self, number: u64, pointer: Option<i64>) -> std::result::Result<(), String> {
        match pointer {
            Some(p) if p >= self.last && (number > 0 || p == 0) => {
                self.last = p;
                Ok(())
            }
            _ => {
                let pointer = pointer.map_or("too large".to_owned(), |p| p.to_string());
                let Self { axis, last } = self;
                Err(format!(
                    "{axis} pointer {number} is {pointer}, the one before {last}"
                ))
            }
        }
    }
}

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
        let mut files = npz::archive_members(base, &part.content, &FILES)?;
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
pub(crate) struct CheckedMatrix {
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
) -> Result<CheckedMatrix> {
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
    Ok(CheckedMatrix {
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
    let mut ascent = Ascent::new(of);
    indptr.each(|number, pointer| {
        let step = ascent.step(number, Some(pointer));
        step.map_err(|why| invalid(format!("indptr is wrong: {why}")))
    })?;
    u64::try_from(ascent.last).map_err(|_| invalid("indptr is wrong"))
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
