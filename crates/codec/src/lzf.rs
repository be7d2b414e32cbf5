//! Filter 32000, lzf: LibLZF's stream, as h5py writes it.
//!
//! A control byte below 32 is followed by one more literal than its value. Other control bytes describe a copy. The
//! high three bits are its length minus two (7: one more byte is added to the length). The low five bits and the next
//! byte are the distance minus one.

use super::{FilterError, lz77};

/// Decodes into a buffer, which the stream must fill.
pub(super) fn into(stored: &[u8], out: &mut [u8]) -> Result<(), FilterError> {
    let mut at = 0;
    let mut left = stored;
    while let Some((&control, rest)) = left.split_first() {
        left = rest;
        if control < 32 {
            let n = usize::from(control) + 1;
            left = lz77::literals(left, out, at, n).ok_or(FilterError::Lzf)?;
            at += n;
            continue;
        }
        let mut n = usize::from(control >> 5);
        if n == 7 {
            let (&more, rest) = left.split_first().ok_or(FilterError::Lzf)?;
            n += usize::from(more);
            left = rest;
        }
        n += 2;
        let (&low, rest) = left.split_first().ok_or(FilterError::Lzf)?;
        left = rest;
        let distance = (usize::from(control & 31) << 8 | usize::from(low)) + 1;
        lz77::copy(out, at, distance, n).ok_or(FilterError::Lzf)?;
        at += n;
    }
    if at == out.len() {
        Ok(())
    } else {
        Err(FilterError::Lzf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(stored: &[u8], len: usize) -> Result<Vec<u8>, FilterError> {
        let mut out = vec![0; len];
        into(stored, &mut out)?;
        Ok(out)
    }

    #[test]
    fn literals_and_copies() {
        assert_eq!(decode(&[2, b'a', b'b', b'c'], 3).unwrap(), b"abc");
        // "ab", then 5 bytes from 2 back: they overlap themselves.
        assert_eq!(decode(&[1, b'a', b'b', 3 << 5, 1], 7).unwrap(), b"abababa");
        // A run of 9 + 200 copies of the byte before.
        let long = decode(&[0, b'x', 7 << 5, 200, 0], 210).unwrap();
        assert_eq!(long, [b'x'; 210]);
    }

    #[test]
    fn damage_is_refused() {
        for stored in [
            &[5, 1][..],
            &[1 << 5, 0],
            &[0, 1, 1 << 5],
            &[0, 1, 7 << 5, 255, 0],
        ] {
            assert!(decode(stored, 10).is_err(), "{stored:?}");
        }
    }
}
