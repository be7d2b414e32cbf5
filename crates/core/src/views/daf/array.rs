//! The arrays of a store as daf takes them: daf's names for their types, and the elements of text.
//!
//! Opening an array reads no elements. Text is read in ranges, and only up to the limit that the caller names.

use std::ops::Range;
use std::sync::Arc;

use crate::store::encode::{NpyArray, text};
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

/// A vector of text, or a matrix flattened to one.
pub(super) struct TextArray {
    array: NpyArray,
    /// Bytes of an element as shown.
    width: usize,
}

impl TextArray {
    /// Wraps an array, if it is text of at most `most` bytes.
    pub(super) fn new(array: NpyArray, most: u64) -> Result<Self, Unfit> {
        let width = array.scalar().map_or(0, |(_, size, _)| size);
        let elements = array.elements();
        let bytes = elements.saturating_mul(width.max(1) as u64);
        if bytes > most {
            return left_out(format!(
                "text of {elements} elements of {width} bytes is larger than text_limit"
            ));
        }
        Ok(Self { array, width })
    }

    /// Returns the number of elements.
    pub(super) fn len(&self) -> u64 {
        self.array.elements()
    }

    /// Returns the bytes of an element in the store.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Reads the elements of a range.
    pub(super) fn read(&self, range: Range<u64>) -> Result<Texts, Unfit> {
        let count = range.end.min(self.len()).saturating_sub(range.start);
        let width = self.width as u64;
        let (start, len) = (
            range.start.saturating_mul(width),
            count.saturating_mul(width),
        );
        let part = NpyArray {
            dtype: self.array.dtype.clone(),
            shape: vec![count],
            data: Arc::new(Slice::new(self.array.data.clone(), start, len)),
        };
        let mut texts = Texts::default();
        text::each(&part, |_, element| {
            texts.bytes.extend_from_slice(element);
            texts.ends.push(texts.bytes.len());
            Ok(())
        })?;
        Ok(texts)
    }
}

/// Elements in memory, without their padding.
#[derive(Default)]
pub(super) struct Texts {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Texts {
    /// Returns an element; empty if it does not exist.
    pub(super) fn get(&self, number: u64) -> &[u8] {
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        let end = self.ends.get(at).copied().unwrap_or(0);
        let before = at.checked_sub(1).and_then(|at| self.ends.get(at));
        let start = before.copied().unwrap_or(0);
        self.bytes.get(start..end).unwrap_or_default()
    }

    /// Returns the elements in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.ends.len() as u64).map(|number| self.get(number))
    }
}
