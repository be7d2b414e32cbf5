//! The `.npy` format of an array: the header bytes that `np.save` writes, and the length of the payload.
//!
//! Format: NEP 1 and `numpy.lib.format` of NumPy 2.2 and later. Headers are aligned to 64 bytes, and the axis along
//! which an array can grow (the first in C order, the last in Fortran order) is padded to 21 digits.

pub mod dtype;
pub mod literal;
pub mod order;
pub mod parse;
pub mod repr;

use crate::npy::dtype::DType;

const MAGIC: &[u8] = b"\x93NUMPY";
const ALIGN: usize = 64;
/// NumPy's `GROWTH_AXIS_MAX_DIGITS`.
const GROWTH_DIGITS: usize = 21;

/// Returns the header of an array of `dtype` and `shape`, in the version NumPy chooses: 1.0 if it fits, 2.0 if it is
/// longer than 65535 bytes, 3.0 if a member name is not latin-1.
pub fn header(dtype: &DType, shape: &[u64]) -> Vec<u8> {
    header_of(dtype, shape, false)
}

/// Returns the header of an array whose elements are in Fortran order. If that is C order, too, the header says so, as
/// NumPy's does.
pub fn fortran_header(dtype: &DType, shape: &[u64]) -> Vec<u8> {
    header_of(dtype, shape, !is_in_c_order(shape))
}

/// Returns whether Fortran order and C order are the same for this shape.
pub fn is_in_c_order(shape: &[u64]) -> bool {
    shape.contains(&0) || shape.iter().filter(|&&n| n > 1).count() < 2
}

fn header_of(dtype: &DType, shape: &[u64], fortran: bool) -> Vec<u8> {
    let mut text = format!(
        "{{'descr': {}, 'fortran_order': {}, 'shape': {}, }}",
        dtype.descr(),
        if fortran { "True" } else { "False" },
        repr::tuple(shape)
    );
    let grows = if fortran { shape.last() } else { shape.first() };
    if let Some(grows) = grows {
        let digits = grows.to_string().len();
        text.extend(std::iter::repeat_n(
            ' ',
            GROWTH_DIGITS.saturating_sub(digits),
        ));
    }
    match latin1(&text) {
        Some(bytes) => wrap(&bytes, 1).unwrap_or_else(|| wrap_long(&bytes, 2)),
        None => wrap_long(text.as_bytes(), 3),
    }
}

/// Returns a header whose length is a multiple of `to`, padded as NumPy pads its own; the header as it is if it would
/// have another length field. Elements of a memory map then begin at a page. NumPy reads headers of up to 10 000 bytes.
pub fn aligned(header: Vec<u8>, to: usize) -> Vec<u8> {
    let text = header.get(MAGIC.len() + 4..).unwrap_or_default();
    let (is_short, len) = (header.get(MAGIC.len()) == Some(&1), header.len());
    let longer = len.next_multiple_of(to.max(1)) - (header.len() - text.len());
    match (u16::try_from(longer), text.strip_suffix(b"\n")) {
        (Ok(len), Some(text)) if is_short => assemble(text, 1, &len.to_le_bytes(), longer),
        _ => header,
    }
}

/// Returns the number of bytes of the payload: the product of `shape` times the element size; `None` past 2^63 - 1.
pub fn payload_len(dtype: &DType, shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    let size = u64::try_from(dtype.size()).ok()?;
    shape
        .iter()
        .try_fold(size, |len, &n| len.checked_mul(n))
        .filter(|&len| i64::try_from(len).is_ok())
}

fn latin1(text: &str) -> Option<Vec<u8>> {
    text.chars()
        .map(|c| u8::try_from(u32::from(c)).ok())
        .collect()
}

fn wrap(text: &[u8], version: u8) -> Option<Vec<u8>> {
    let len = padded(text.len(), 2);
    let len16 = u16::try_from(len).ok()?;
    Some(assemble(text, version, &len16.to_le_bytes(), len))
}

fn wrap_long(text: &[u8], version: u8) -> Vec<u8> {
    let len = padded(text.len(), 4);
    // A header is made from a datatype message, whose size is bounded far below 4 GiB.
    let len32 = u32::try_from(len).unwrap_or(u32::MAX);
    assemble(text, version, &len32.to_le_bytes(), len)
}

/// Returns the length of the text with its padding and newline. NumPy adds a whole block where none is needed.
fn padded(text: usize, len_field: usize) -> usize {
    let end = MAGIC.len() + 2 + len_field + text + 1;
    text + 1 + ALIGN - end % ALIGN
}

fn assemble(text: &[u8], version: u8, len_field: &[u8], len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(MAGIC.len() + 2 + len_field.len() + len);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[version, 0]);
    out.extend_from_slice(len_field);
    out.extend_from_slice(text);
    out.resize(out.len() + len - text.len() - 1, b' ');
    out.push(b'\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npy::dtype::{Field, Kind, Order};
    use ndarray::{ArrayD, IxDyn};
    use ndarray_npy::{ReadNpyExt, WriteNpyExt};

    #[test]
    fn an_aligned_header_is_read_as_the_other() {
        let dtype = DType::scalar(Kind::Float, 4, Order::Little);
        let elements: Vec<u8> = (0..6_u8).flat_map(|n| f32::from(n).to_le_bytes()).collect();
        let long = aligned(header(&dtype, &[2, 3]), 4096);
        assert_eq!(long.len(), 4096);
        let read = ArrayD::<f32>::read_npy([long.clone(), elements].concat().as_slice()).unwrap();
        assert_eq!(read.shape(), [2, 3]);
        assert_eq!(read.as_slice().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(aligned(long.clone(), 4096), long);
        assert_eq!(aligned(header(&dtype, &[5]), 64), header(&dtype, &[5]));
        assert_eq!(aligned(long.clone(), 1 << 17), long);
    }

    #[test]
    fn a_plain_header_is_numpys() {
        let got = header(&DType::scalar(Kind::Float, 4, Order::Little), &[5]);
        let mut want =
            b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (5,), }"
                .to_vec();
        want.resize(127, b' ');
        want.push(b'\n');
        assert_eq!(got, want);
    }

    /// ndarray-npy as a second implementation: each side reads what the other writes.
    #[test]
    fn ndarray_npy_agrees() {
        for shape in [&[][..], &[0], &[7], &[3, 4], &[2, 0, 5], &[1, 2, 3, 4]] {
            let dims: Vec<usize> = shape.iter().map(|&n: &u64| n as usize).collect();
            let count = dims.iter().product::<usize>();
            let numbers: Vec<f64> = (0..count).map(|n| n as f64 / 3.0).collect();
            let array = ArrayD::from_shape_vec(IxDyn(&dims), numbers).unwrap();
            let payload: Vec<u8> = array.iter().flat_map(|n| n.to_le_bytes()).collect();
            let dtype = DType::scalar(Kind::Float, 8, Order::Little);
            let ours = [header(&dtype, shape), payload.clone()].concat();
            assert_eq!(ArrayD::<f64>::read_npy(&ours[..]).unwrap(), array);
            let mut theirs = Vec::new();
            array.write_npy(&mut theirs).unwrap();
            let found = parse::parse(&theirs).unwrap();
            assert_eq!((found.dtype, &found.shape[..]), (dtype, shape));
            assert_eq!(theirs[found.start as usize..], payload);
        }
    }

    #[test]
    fn versions_follow_numpy() {
        let with_name = |name: String| DType::Struct {
            fields: vec![Field {
                name,
                offset: 0,
                dtype: DType::int(4),
                shape: vec![],
            }],
            size: 4,
        };
        assert_eq!(header(&with_name("\u{e9}".into()), &[1])[6], 1);
        assert_eq!(header(&with_name("\u{3b1}".into()), &[1])[6], 3);
        let long = header(&with_name("x".repeat(70_000)), &[1]);
        assert_eq!(long[6], 2);
        assert_eq!(long.len() % 64, 0);
    }

    #[test]
    fn fortran_order_is_said_where_it_differs() {
        let f8 = DType::scalar(Kind::Float, 8, Order::Little);
        for shape in [&[][..], &[3], &[1, 3], &[3, 1], &[0, 7], &[1, 5, 1]] {
            assert_eq!(fortran_header(&f8, shape), header(&f8, shape), "{shape:?}");
        }
        for shape in [&[2, 3][..], &[2, 1, 100], &[1, 2, 2]] {
            let bytes = fortran_header(&f8, shape);
            let found = parse::parse(&bytes).unwrap();
            assert!(found.fortran_order && bytes.len() == 128, "{shape:?}");
            assert_eq!((found.dtype, &found.shape[..]), (f8.clone(), shape));
        }
    }

    #[test]
    fn payloads_are_bounded() {
        let f8 = DType::scalar(Kind::Float, 8, Order::Little);
        assert_eq!(payload_len(&f8, &[]), Some(8));
        assert_eq!(payload_len(&f8, &[u64::MAX, 0]), Some(0));
        assert_eq!(payload_len(&f8, &[1 << 60]), None);
        assert_eq!(payload_len(&f8, &[1 << 59]), Some(1 << 62));
    }
}
