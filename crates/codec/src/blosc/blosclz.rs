//! BloscLZ, Blosc's own codec: a stream of literal runs and of copies from the output so far.
//!
//! A control byte below 32 is followed by one more literal than its value; of the first control byte only the low five
//! bits count. Other control bytes describe a copy. The high three bits are its length minus two (7: further bytes are
//! added to it, up to the first that is not 255). The low five bits and the next byte are the distance minus one. If
//! these are all ones, the distance is the following big-endian 16-bit number plus 8192.

use super::super::lz77;

/// The bits of a control byte that are part of a distance, or a number of literals.
const LOW: u8 = 31;
/// The smallest distance that has two bytes of its own.
const FAR: usize = 8192;

/// Decodes a stream, which must fill `out`; `None` if it is damaged.
pub(super) fn into(stream: &[u8], out: &mut [u8]) -> Option<()> {
    let mut at = 0;
    let (first, mut left) = stream.split_first()?;
    let mut control = first & LOW;
    loop {
        let mut n = usize::from(control >> 5);
        if n == 0 {
            let n = usize::from(control) + 1;
            left = lz77::literals(left, out, at, n)?;
            at += n;
        } else {
            if n == 7 {
                while let Some((more, rest)) = left.split_first() {
                    n = n.checked_add(usize::from(*more))?;
                    left = rest;
                    if *more < u8::MAX {
                        break;
                    }
                }
            }
            n = n.checked_add(2)?;
            let (low, rest) = left.split_first()?;
            left = rest;
            let mut distance = (usize::from(control & LOW) << 8 | usize::from(*low)) + 1;
            if distance == FAR {
                let (bytes, rest) = left.split_first_chunk()?;
                left = rest;
                distance += usize::from(u16::from_be_bytes(*bytes));
            }
            lz77::copy(out, at, distance, n)?;
            at += n;
        }
        let Some((next, rest)) = left.split_first() else {
            break;
        };
        control = *next;
        left = rest;
    }
    (at == out.len()).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(stream: &[u8], len: usize) -> Option<Vec<u8>> {
        let mut out = vec![0; len];
        into(stream, &mut out)?;
        Some(out)
    }

    #[test]
    fn literals_and_copies() {
        // The high bits of the first byte do not count.
        assert_eq!(decode(&[1 << 5 | 2, b'a', b'b', b'c'], 3).unwrap(), b"abc");
        // "ab", then 5 bytes from 2 back, then "c".
        let stream = [1, b'a', b'b', 3 << 5, 1, 0, b'c'];
        assert_eq!(decode(&stream, 8).unwrap(), b"abababac");
        // 9 + 255 + 3 copies of the byte before.
        let stream = [0, b'x', 7 << 5, 255, 3, 0];
        assert_eq!(decode(&stream, 268).unwrap(), [b'x'; 268]);
    }

    #[test]
    fn a_far_copy_has_a_distance_of_its_own() {
        // One "a", a run of "b" up to 9000 bytes, and 3 bytes from the start.
        let run = 9000 - 2 - 9;
        let mut stream = vec![1, b'a', b'b', 7 << 5];
        stream.extend(vec![255; run / 255]);
        stream.extend([(run % 255) as u8, 0]);
        let far = (9000_u16 - 8192).to_be_bytes();
        stream.extend([1 << 5 | 31, 255, far[0], far[1]]);
        let got = decode(&stream, 9003).unwrap();
        assert_eq!(got[8998..], *b"bbabb");
        *stream.last_mut().unwrap() += 1;
        assert!(decode(&stream, 9003).is_none());
    }

    #[test]
    fn damage_is_refused() {
        for stream in [
            &[][..],
            &[5, 1],
            &[0, 1, 1 << 5],
            &[0, 1, 1 << 5, 1],
            &[0, 1, 7 << 5, 255, 255],
        ] {
            assert!(decode(stream, 10).is_none(), "{stream:?}");
        }
    }
}
