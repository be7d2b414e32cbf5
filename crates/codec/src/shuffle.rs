//! Filter 2, shuffle: the first bytes of all elements, then the second ones, and so on.
//!
//! Bytes after the last whole element are stored unshuffled at the end.

use super::simd::{Weave, wide};
use super::{FilterError, copy};

/// Restores the elements; `size` is the size of an element, at least one.
pub(super) fn into(stored: &[u8], out: &mut [u8], size: usize) -> Result<(), FilterError> {
    let count = stored.len() / size;
    if stored.len() != out.len() || size == 1 || count <= 1 {
        return copy(stored, out);
    }
    let (bytes, rest) = stored.split_at(count * size);
    let (out, tail) = out.split_at_mut(count * size);
    tail.copy_from_slice(rest);
    let planes: Vec<&[u8]> = bytes.chunks_exact(count).collect();
    planes_into(&planes, out);
    Ok(())
}

/// Interleaves planes of equal length, which fill `out`.
pub(super) fn planes_into(planes: &[&[u8]], out: &mut [u8]) {
    fn weave<const N: usize>(planes: &[&[u8]], out: &mut [u8]) {
        // The length was matched above.
        if let Ok(planes) = planes.try_into() {
            wide(Weave::<N> { planes, out });
        }
    }
    match planes.len() {
        2 => weave::<2>(planes, out),
        4 => weave::<4>(planes, out),
        8 => weave::<8>(planes, out),
        16 => weave::<16>(planes, out),
        size => {
            for (byte, plane) in planes.iter().enumerate() {
                for (element, value) in out.chunks_exact_mut(size).zip(*plane) {
                    element[byte] = *value;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_put_together() {
        for size in 1..18_usize {
            for count in [0, 1, 2, 31, 32, 33, 100, (256 << 10) / size + 77] {
                for extra in 0..size.min(3) {
                    let data: Vec<u8> = (0..count * size + extra).map(|i| (i * 7) as u8).collect();
                    let mut stored: Vec<u8> = (0..size)
                        .flat_map(|byte| (0..count).map(move |i| i * size + byte))
                        .map(|i| data[i])
                        .collect();
                    stored.extend_from_slice(&data[count * size..]);
                    let mut out = vec![0; data.len()];
                    into(&stored, &mut out, size).unwrap();
                    assert!(out == data, "{size} {count} {extra}");
                }
            }
        }
        assert!(into(&[1, 2], &mut [0; 3], 1).is_err());
    }
}
