//! The arrays of a store, and daf's names for their types.

use std::sync::Arc;

use crate::store::encode::NpyArray;
use crate::tree::VirtualFile;
use crate::views::unfit::{Unfit, left_out};
use npyfs_base::error::Error;
use npyfs_base::npy::dtype::{DType, Kind};
use npyfs_io::content::{Slice, npy_header};

/// Opens the array of an `.npy` file of the tree; reads no elements.
pub(super) fn open(file: &dyn VirtualFile) -> Result<NpyArray, Unfit> {
    let content = file.open()?;
    let header = npy_header(&*content)?.map_err(Error::from)?;
    header.check_len(content.len()).map_err(Error::from)?;
    if header.fortran_order && header.shape.len() > 1 {
        return left_out("it is stored by columns");
    }
    let data = Slice::new(content, header.start, header.len);
    Ok(NpyArray {
        dtype: header.dtype,
        shape: header.shape,
        data: Arc::new(data),
    })
}

/// Returns daf's name for a type, whose elements are little-endian in the file.
pub(super) fn name(dtype: &DType) -> Result<&'static str, Unfit> {
    let known = match dtype {
        DType::Scalar { kind, size, .. } => Some((*kind, *size)),
        DType::Struct { .. } => None,
    };
    Ok(match known {
        Some((Kind::Bool, 1)) => "bool",
        Some((Kind::Int, 1)) => "int8",
        Some((Kind::Int, 2)) => "int16",
        Some((Kind::Int, 4)) => "int32",
        Some((Kind::Int, 8)) => "int64",
        Some((Kind::Uint, 1)) => "uint8",
        Some((Kind::Uint, 2)) => "uint16",
        Some((Kind::Uint, 4)) => "uint32",
        Some((Kind::Uint, 8)) => "uint64",
        Some((Kind::Float, 2)) => "float16",
        Some((Kind::Float, 4)) => "float32",
        Some((Kind::Float, 8)) => "float64",
        _ => {
            let why = format!("daf has no elements of type {}", dtype.name());
            return left_out(why);
        }
    })
}

/// Checks the dimensions of an array against the lengths of its axes.
pub(super) fn check_shape(shape: &[u64], lengths: &[u64]) -> Result<(), Unfit> {
    if shape != lengths {
        let why = format!("shape {shape:?} does not fit axes of length {lengths:?}");
        return left_out(why);
    }
    if shape.contains(&0) {
        return left_out("daf has no file for an array without elements");
    }
    Ok(())
}
