//! Names of new data files, and keys of the rows in files of values.

use std::hash::{BuildHasher, RandomState};

/// Characters of the row keys of backends `30` and `31`; no key has one of them twice.
const ROW_KEY: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Returns a new name of a data file: eight letters and digits.
pub(super) fn random_name() -> String {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut left = RandomState::new().hash_one(std::process::id());
    let letters = (0..8).map(|_| {
        let letter = LETTERS[usize::try_from(left % 36).unwrap_or(0)];
        left /= 36;
        char::from(letter)
    });
    letters.collect()
}

/// Returns key number `at` of a file of values: four different characters, in order (`lmdb_30.py`, `_lexicographic_keys`).
pub(super) fn row_key(at: u64) -> String {
    let mut left: Vec<u8> = ROW_KEY.to_vec();
    let mut at = usize::try_from(at).unwrap_or(usize::MAX);
    let mut key = String::with_capacity(4);
    for following in [61 * 60 * 59, 60 * 59, 59, 1] {
        let digit = (at / following).min(left.len() - 1);
        at %= following;
        key.push(char::from(left.remove(digit)));
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn keys_of_rows_are_those_of_hangar() {
        for (at, key) in [
            (0, "0123"),
            (1, "0124"),
            (2, "0125"),
            (58, "012z"),
            (59, "0132"),
        ] {
            assert_eq!(row_key(at), key);
        }
        assert_eq!(row_key(499), "01AU");
        assert_eq!(row_key(62 * 61 * 60 * 59 - 1), "zyxw");
        assert_eq!(random_name().len(), 8);
        assert_ne!(random_name(), random_name());
    }
}
