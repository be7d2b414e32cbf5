//! Bounds of what an `.npy` header may claim: work and memory follow from the bytes that were sent.
//!
//! A header of 128 bytes can claim 10^12 elements of no bytes each, for which no payload has to follow.

use super::parse::NpyError;
use crate::npy::dtype::DType;

/// Most members of structured types in one header, nested ones included. HDF5 keeps a datatype in 64 KiB, which is
/// less than half as many.
pub const MOST_FIELDS: usize = 8192;

/// Most elements that have no bytes.
const MOST_EMPTY: u64 = 1 << 16;

/// Largest element, in bytes: NumPy has none larger.
const LARGEST_ELEMENT: usize = i32::MAX.unsigned_abs() as usize;

/// Most characters of a foreign text that an error message repeats.
const LONGEST_QUOTE: usize = 80;

/// Refuses an array that NumPy could not have, and one of which there is more to do than was sent.
pub fn check(dtype: &DType, shape: &[u64]) -> Result<(), NpyError> {
    let size = dtype.size();
    if size > LARGEST_ELEMENT {
        return Err(NpyError::Element(size));
    }
    // As NumPy counts: axes without entries do not make the others harmless.
    let room = shape.iter().filter(|&&n| n > 0);
    let room = room.copied().try_fold(size.max(1) as u64, u64::checked_mul);
    if room.is_none_or(|n| n > i64::MAX as u64) {
        return Err(NpyError::TooLarge);
    }
    let elements = shape.iter().fold(1_u64, |n, &d| n.saturating_mul(d));
    if size == 0 && elements > MOST_EMPTY {
        return Err(NpyError::Empty(elements));
    }
    Ok(())
}

/// Returns a text from a header, as far as an error message repeats it.
pub fn quote(text: &str) -> String {
    let mut short: String = text.chars().take(LONGEST_QUOTE).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_costs_more_than_was_sent_is_refused() {
        const HUGE: u64 = 1_000_000_000_000;
        for size in [0, 1] {
            let dtype = DType::bytes(size);
            assert_eq!(check(&dtype, &[0, HUGE]), Ok(()));
            assert_eq!(check(&dtype, &[0, HUGE, HUGE]), Err(NpyError::TooLarge));
            assert_eq!(check(&dtype, &[u64::MAX, 0]), Err(NpyError::TooLarge));
        }
        for dtype in [DType::bytes(0), DType::text(0)] {
            assert_eq!(check(&dtype, &[3]), Ok(()));
            assert_eq!(check(&dtype, &[HUGE]), Err(NpyError::Empty(HUGE)));
            let shape = [1 << 12, 1 << 12];
            assert_eq!(check(&dtype, &shape), Err(NpyError::Empty(1 << 24)));
        }
        let wide = usize::try_from(HUGE).unwrap();
        let refused = check(&DType::bytes(wide), &[0]);
        assert_eq!(refused, Err(NpyError::Element(wide)));
    }
}
