//! Keys of samples: how they are stored, ordered and shown.
//!
//! A stored whole number is `#` and its decimal digits; a stored text is unchanged (`column_parsers.pyx`). A shown
//! number has no prefix. A shown text that looks like a number has its first byte escaped, so that `5` and `'5'` differ
//! whatever else the column holds.

use std::cmp::Ordering;

use crate::tree::name::{unescape, visible};

/// Returns the digits of a key that is a whole number.
pub fn digits(stored: &[u8]) -> Option<&[u8]> {
    stored.strip_prefix(b"#").filter(|d| is_decimal(d))
}

/// Returns true if Hangar itself can read the key: it stores a bool as `#True`, which it cannot read again.
pub fn is_readable(stored: &[u8]) -> bool {
    match stored.first() {
        None => false,
        Some(b'#') => digits(stored).is_some(),
        Some(_) => true,
    }
}

/// Returns true for `0`, or digits that do not begin with one.
fn is_decimal(text: &[u8]) -> bool {
    let zero = text.len() > 1 && text.starts_with(b"0");
    !text.is_empty() && !zero && text.iter().all(u8::is_ascii_digit)
}

/// Orders numbers by value, then texts by their bytes.
pub fn compare(a: &[u8], b: &[u8]) -> Ordering {
    match (digits(a), digits(b)) {
        (Some(a), Some(b)) => (a.len(), a).cmp(&(b.len(), b)),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// Returns the visible name of a sample.
pub fn shown(stored: &[u8], suffix: &str) -> Vec<u8> {
    if let Some(digits) = digits(stored) {
        return visible(digits, suffix);
    }
    if is_decimal(stored) {
        let mut name = format!("%{:02X}", stored[0]).into_bytes();
        name.extend(visible(&stored[1..], suffix));
        return name;
    }
    visible(stored, suffix)
}

/// Returns the stored key that a visible name, without its suffix, may stand for.
pub fn stored(shown: &[u8]) -> Vec<u8> {
    if is_decimal(shown) {
        return [b"#", shown].concat();
    }
    unescape(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_bare_and_texts_that_look_like_them_escaped() {
        let name = |key: &str| String::from_utf8(shown(key.as_bytes(), ".npy")).unwrap();
        assert_eq!(name("#5"), "5.npy");
        assert_eq!(name("5"), "%35.npy");
        assert_eq!(name("10"), "%310.npy");
        assert_eq!(name("00012"), "00012.npy");
        assert_eq!(name("."), "%2E.npy");
        assert_eq!(name(".."), "%2E%2E.npy");
        assert_eq!(name("a.npy"), "a%2Enpy.npy");
        assert_eq!(name("-1"), "-1.npy");
    }

    #[test]
    fn order_is_by_value_and_then_by_byte() {
        let mut keys = vec!["b", "#10", "5", "#9", "#0", "a"];
        keys.sort_by(|a, b| compare(a.as_bytes(), b.as_bytes()));
        assert_eq!(keys, ["#0", "#9", "#10", "5", "a", "b"]);
        assert!(!is_readable(b"#True") && !is_readable(b"#") && !is_readable(b"#01"));
        assert!(is_readable(b"#0") && is_readable(b"True"));
    }

    proptest! {
        #[test]
        fn a_name_stands_for_one_key(key in "(#(0|[1-9][0-9]{0,4})|[A-Za-z0-9_.%-]{1,12})") {
            prop_assert_eq!(stored(&shown(key.as_bytes(), "")), key.into_bytes());
        }
    }
}
