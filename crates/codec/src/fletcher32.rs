//! Filter 3, fletcher32: a little-endian checksum of four bytes after the data.
//!
//! The sum runs over 16-bit words, high byte first (HDF5 file format specification, checksum of 1.6). Some releases of
//! HDF5 swapped the bytes of each half; both forms are valid.

use super::FilterError;

/// Bytes of a checksum.
pub(super) const LEN: usize = 4;

/// Checks the sum; returns the data before it.
pub(super) fn check(stored: &[u8]) -> Result<&[u8], FilterError> {
    let Some((data, sum)) = stored.split_last_chunk::<LEN>() else {
        return Err(FilterError::Checksum);
    };
    let want = checksum(data).to_le_bytes();
    let swapped = [want[1], want[0], want[3], want[2]];
    if *sum != want && *sum != swapped {
        return Err(FilterError::Checksum);
    }
    Ok(data)
}

fn checksum(data: &[u8]) -> u32 {
    /// Words that can be added before a sum of 32 bits may overflow.
    const WORDS: usize = 360;
    let fold = |n: u32| (n & 0xffff) + (n >> 16);
    let (mut low, mut high) = (0_u32, 0_u32);
    let (pairs, odd) = data.split_at(data.len() & !1);
    for block in pairs.chunks(2 * WORDS) {
        for word in block.chunks_exact(2) {
            low += u32::from(word[0]) << 8 | u32::from(word[1]);
            high += low;
        }
        low = fold(low);
        high = fold(high);
    }
    if let [last] = odd {
        low += u32::from(*last) << 8;
        high += low;
        low = fold(low);
        high = fold(high);
    }
    fold(high) << 16 | fold(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_checked_in_both_spellings() {
        let data = b"abcdefg".to_vec();
        let sum = checksum(&data).to_le_bytes();
        let stored = [&data[..], &sum].concat();
        assert_eq!(check(&stored).unwrap(), data);
        let swapped = [sum[1], sum[0], sum[3], sum[2]];
        assert_eq!(check(&[&data[..], &swapped].concat()).unwrap(), data);
        let mut wrong = stored;
        wrong[0] ^= 1;
        assert!(check(&wrong).is_err());
        assert!(check(&[1, 2]).is_err());
    }
}
