//! Names of columns and keys of samples: the forms that a mount shows, and the forms that Hangar accepts.

use crate::formats::hangar::key;
use crate::store::target;
use crate::tree::name::{unescape, visible};
use npyfs_base::error::{Error, ErrorKind, Result};

/// The longest key and the longest name of a column (`utils.py`, `is_suitable_user_key`).
const LONGEST: usize = 64;

/// The place of a sample in the repository.
pub struct At {
    /// Name of the column.
    pub column: Vec<u8>,
    /// The stored key; that of a subsample begins with the key of its sample.
    pub key: Vec<u8>,
    /// The column is nested: its samples are sets of samples.
    pub nested: bool,
}

/// Returns the column and key for the names behind `stage`, the last without its suffix.
pub fn at(names: &[Vec<u8>]) -> Result<At> {
    let (column, keys) = stored_names(names);
    if !matches!(keys.len(), 1 | 2) {
        return Err(Error::new(
            ErrorKind::Os(libc::EROFS),
            "samples stand in columns, subsamples in samples, and nothing below them",
        ));
    }
    check_name(&column, "column")?;
    for key in &keys {
        check_name(key, "key")?;
    }
    Ok(At {
        column,
        nested: keys.len() == 2,
        key: keys.join(&b':'),
    })
}

/// Refuses a name that Hangar would refuse.
pub fn check_name(name: &[u8], what: &str) -> Result<()> {
    let digits = key::digits(name).unwrap_or(name);
    let fits = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    if digits.is_empty() || digits.len() > LONGEST || !digits.iter().all(fits) {
        let shown = String::from_utf8_lossy(digits);
        let why = format!(
            "{what} {shown:?}: Hangar takes at most {LONGEST} letters, digits, dots, - and _"
        );
        return Err(Error::new(ErrorKind::Os(libc::EINVAL), why));
    }
    Ok(())
}

/// Checks that the mount would show column and keys under the names behind `stage`, the last with `suffix`.
pub fn check_shown(names: &[Vec<u8>], suffix: &str) -> Result<()> {
    for (at, name) in names.iter().enumerate() {
        let suffix = if at + 1 == names.len() { suffix } else { "" };
        let as_shown = match at {
            0 => visible(&unescape(name), suffix),
            _ => key::shown(&key::stored(name), suffix),
        };
        target::check_name(name, suffix, as_shown)?;
    }
    Ok(())
}

/// Returns the stored names of a column and, behind it, of a sample.
pub fn stored_names(names: &[Vec<u8>]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let (column, keys) = names
        .split_first()
        .map_or((&[][..], names), |(c, k)| (&c[..], k));
    (
        unescape(column),
        keys.iter().map(|k| key::stored(k)).collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_stands_for_another_is_refused() {
        let path = |path: &str| -> Vec<Vec<u8>> {
            path.split('/')
                .map(|name| name.as_bytes().to_vec())
                .collect()
        };
        for good in ["a/5", "a/%35", "a%2Enpy/x%2Enpy/7", "a/00012", "a/-1"] {
            assert!(check_shown(&path(good), ".npy").is_ok(), "{good}");
        }
        for bad in [
            "a/x.npy",
            "a/%41",
            "a/..",
            "a.npy/5",
            "a/%310x",
            "a/x.txt/5",
        ] {
            let refused = check_shown(&path(bad), ".npy").unwrap_err();
            assert_eq!(refused.errno(), libc::EINVAL, "{bad}");
        }
    }

    #[test]
    fn what_hangar_refuses_is_refused() {
        for name in [&b"a"[..], b"#5", b"..", b"-x_1.npy", &[b'a'; 64]] {
            assert!(check_name(name, "key").is_ok());
        }
        for name in [
            &b""[..],
            b"a b",
            b"a:b",
            b"#",
            "\u{e9}".as_bytes(),
            &[b'a'; 65],
        ] {
            assert!(check_name(name, "key").is_err());
        }
    }
}
