//! Filter 2, shuffle: the first bytes of all elements, then the second ones, and so on.
//!
//! Bytes that make no whole element stand at the end as they are.

/// Puts the bytes of each element together again.
pub fn decode(stored: Vec<u8>, size: usize) -> Vec<u8> {
    if size <= 1 || stored.len() / size <= 1 {
        return stored;
    }
    let mut out = vec![0; stored.len()];
    into(&stored, &mut out, size);
    out
}

/// The same into a buffer of the same length; `size` is at least one.
pub fn into(stored: &[u8], out: &mut [u8], size: usize) {
    let count = stored.len() / size;
    let (planes, rest) = stored.split_at(count * size);
    let (elements, tail) = out.split_at_mut(count * size);
    match size {
        _ if count == 0 => {}
        1 => elements.copy_from_slice(planes),
        2 => weave::<2>(planes, elements),
        4 => weave::<4>(planes, elements),
        8 => weave::<8>(planes, elements),
        _ => {
            for (byte, plane) in planes.chunks_exact(count).enumerate() {
                for (element, value) in elements.chunks_exact_mut(size).zip(plane) {
                    element[byte] = *value;
                }
            }
        }
    }
    tail.copy_from_slice(rest);
}

/// Puts elements together of a size known at compile time, in blocks small enough that the compiler keeps them in
/// vector registers.
fn weave<const N: usize>(planes: &[u8], elements: &mut [u8]) {
    const BLOCK: usize = 32;
    let count = planes.len() / N;
    let planes: [&[u8]; N] = std::array::from_fn(|byte| &planes[byte * count..(byte + 1) * count]);
    let whole = count / BLOCK * BLOCK;
    for start in (0..whole).step_by(BLOCK) {
        let block: [&[u8]; N] = planes.map(|plane| &plane[start..start + BLOCK]);
        let out = &mut elements[start * N..(start + BLOCK) * N];
        for i in 0..BLOCK {
            for (byte, plane) in block.iter().enumerate() {
                out[i * N + byte] = plane[i];
            }
        }
    }
    for i in whole..count {
        for (byte, plane) in planes.iter().enumerate() {
            elements[i * N + byte] = plane[i];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_put_together() {
        for size in 1..12_usize {
            for count in [0, 1, 2, 31, 32, 33, 100] {
                for extra in 0..size.min(3) {
                    let data: Vec<u8> = (0..count * size + extra).map(|i| (i * 7) as u8).collect();
                    let mut stored: Vec<u8> = (0..size)
                        .flat_map(|byte| (0..count).map(move |i| i * size + byte))
                        .map(|i| data[i])
                        .collect();
                    stored.extend_from_slice(&data[count * size..]);
                    assert_eq!(decode(stored, size), data, "{size} {count} {extra}");
                }
            }
        }
    }
}
