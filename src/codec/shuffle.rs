//! Filter 2, shuffle: the first bytes of all elements, then the second ones, and so on.
//!
//! Bytes that make no whole element stand at the end as they are.

use std::convert::Infallible;

use super::simd::{Weave, wide};
use super::{FilterError, Means, copy};

/// Bytes that one of several threads puts together at a time.
const PART: usize = 128 << 10;

/// Puts the bytes of each element together again; `size` is that of an element, at least one.
pub(super) fn into(
    stored: &[u8],
    out: &mut [u8],
    size: usize,
    means: Means<'_>,
) -> Result<(), FilterError> {
    let count = stored.len() / size;
    if stored.len() != out.len() || size == 1 || count <= 1 {
        return copy(stored, out);
    }
    let (bytes, rest) = stored.split_at(count * size);
    let (out, tail) = out.split_at_mut(count * size);
    tail.copy_from_slice(rest);
    let planes: Vec<&[u8]> = bytes.chunks_exact(count).collect();
    planes_into(&planes, out, means);
    Ok(())
}

/// Puts elements together from planes of equal length, of which `out` takes all.
pub(super) fn planes_into(planes: &[&[u8]], out: &mut [u8], means: Means<'_>) {
    let elements = PART / planes.len().max(1);
    if out.len() < 2 * PART || elements == 0 {
        return part_into(planes, out);
    }
    let parts = out.chunks_mut(elements * planes.len()).enumerate();
    let woven: Result<(), Infallible> = means.each(parts, |(i, out)| {
        let from = i * elements;
        let part: Vec<&[u8]> = planes.iter().map(|plane| &plane[from..]).collect();
        part_into(&part, out);
        Ok(())
    });
    match woven {
        Ok(()) => {}
        Err(never) => match never {},
    }
}

/// Puts elements together from the beginning of planes, as many as `out` takes.
fn part_into(planes: &[&[u8]], out: &mut [u8]) {
    fn weave<const N: usize>(planes: &[&[u8]], out: &mut [u8]) {
        // As many as was matched for.
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
    use crate::codec::pool::DecodePool;
    use crate::io::buffer::Pool;
    use std::sync::Arc;

    #[test]
    fn every_size_is_put_together() {
        let (pool, helpers) = (Arc::<Pool>::default(), DecodePool::default());
        for size in 1..18_usize {
            // The last is long enough for several to help.
            for count in [0, 1, 2, 31, 32, 33, 100, 2 * PART / size + 77] {
                for extra in 0..size.min(3) {
                    let data: Vec<u8> = (0..count * size + extra).map(|i| (i * 7) as u8).collect();
                    let mut stored: Vec<u8> = (0..size)
                        .flat_map(|byte| (0..count).map(move |i| i * size + byte))
                        .map(|i| data[i])
                        .collect();
                    stored.extend_from_slice(&data[count * size..]);
                    for helpers in [None, Some(&helpers)] {
                        let means = Means {
                            pool: &pool,
                            helpers,
                        };
                        let mut out = vec![0; data.len()];
                        into(&stored, &mut out, size, means).unwrap();
                        assert!(out == data, "{size} {count} {extra}");
                    }
                }
            }
        }
        let alone = Means {
            pool: &pool,
            helpers: None,
        };
        assert!(into(&[1, 2], &mut [0; 3], 1, alone).is_err());
    }
}
