//! Sparse matrices that a group stores as three vectors: data, indices along the other axis, and the start of each row
//! or column.
//!
//! The calling format determines along which axis a matrix is compressed, and the lengths of its axes.

pub(crate) mod members;

use std::sync::Arc;

use crate::dataset::opened::OpenStore;
use crate::formats::npz::{NpzFile, NpzMember};
use crate::formats::plain::group::GroupDirectory;
use crate::formats::plain::integers::{integers, scalar};
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
pub(crate) fn check(
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
    check_pointers(store, indptr, data.shape[0], of_pointer)
}

/// Checks that pointers start at 0, do not decrease, and end at the number of values.
fn check_pointers(
    store: &OpenStore,
    indptr: &Dataset,
    values: u64,
    of: &str,
) -> std::result::Result<(), String> {
    const STEP: u64 = 1 << 17;
    let (kind, size, order) =
        integers(&indptr.element).ok_or("sparse matrix with indptr that are no integers")?;
    let (len, mut at, mut before) = (indptr.shape[0], 0, 0);
    while at < len {
        let count = STEP.min(len - at);
        let bytes = block(store, indptr, at, count)?;
        for (pointer, number) in bytes.chunks_exact(size.max(1)).zip(at..) {
            let pointer = integer(pointer, kind, order);
            let Some(pointer) = pointer.filter(|&p| p >= before && (number > 0 || p == 0)) else {
                let pointer = pointer.map_or("too large".to_owned(), |p| p.to_string());
                return Err(format!(
                    "{of} pointer {number} is {pointer}, the one before {before}"
                ));
            };
            before = pointer;
        }
        at += count;
    }
    if u64::try_from(before) != Ok(values) {
        return Err(format!(
            "{of} pointers end at {before}, there are {values} values"
        ));
    }
    Ok(())
}
