//! The values of mount options, from text: numbers, sizes, names.
//!
//! What is refused says what was expected in its place.

/// Parses the number of a user or group.
pub(super) fn id(text: &str) -> Option<u32> {
    // The highest number means "no user" to the kernel.
    digits(text, 10)
        .and_then(|n| u32::try_from(n).ok())
        .filter(|&id| id != u32::MAX)
}

/// Parses permission bits.
pub(super) fn umask(text: &str) -> Result<u32, &'static str> {
    digits(text, 8)
        .and_then(|n| u32::try_from(n).ok())
        .filter(|&bits| bits <= 0o777)
        .ok_or("expected permission bits in octal, such as 022")
}

/// Returns a text that must say something.
pub(super) fn not_empty(text: &str) -> Result<String, &'static str> {
    if text.is_empty() || text.contains('\0') {
        Err("expected a name")
    } else {
        Ok(text.to_owned())
    }
}

/// Parses the character that stands for `#`.
pub(super) fn separator(text: &str) -> Result<u8, &'static str> {
    match text.as_bytes() {
        &[byte] if byte.is_ascii_punctuation() && !b"/%,.".contains(&byte) => Ok(byte),
        _ => Err(
            "expected one ASCII character that is no letter or digit and none of / % , . or a space",
        ),
    }
}

/// Parses a number of bytes with a unit.
pub(super) fn size(text: &str) -> Result<u64, &'static str> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => Some(0),
        "k" | "kb" | "kib" => Some(10),
        "m" | "mb" | "mib" => Some(20),
        "g" | "gb" | "gib" => Some(30),
        "t" | "tb" | "tib" => Some(40),
        _ => None,
    };
    shift
        .zip(digits(number, 10))
        .and_then(|(shift, number)| number.checked_mul(1 << shift))
        .ok_or("expected a size such as 64M or 2GiB")
}

/// Parses a number of seconds.
pub(super) fn seconds(text: &str) -> Result<u64, &'static str> {
    digits(text, 10).ok_or("expected a number of seconds")
}

/// Parses digits: no sign, unlike `from_str_radix`.
fn digits(text: &str, radix: u32) -> Option<u64> {
    if text.chars().all(|c| c.is_digit(radix)) {
        u64::from_str_radix(text, radix).ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let of = |text: &str| size(text).ok();
        assert_eq!(
            (of("0"), of("17"), of("17b"), of("3k")),
            (Some(0), Some(17), Some(17), Some(3072))
        );
        assert_eq!(
            (of("1MiB"), of("1mb"), of("1G"), of("1t")),
            (Some(1 << 20), Some(1 << 20), Some(1 << 30), Some(1 << 40))
        );
        for bad in [
            "",
            "M",
            "-1",
            "+1",
            "1.5G",
            "1 M",
            "1x",
            "1MiBs",
            "99999999999999999999",
            "99999999999T",
        ] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn separators() {
        for good in ["#", "@", "_", "-", "~", "\\"] {
            assert_eq!(separator(good).ok(), Some(good.as_bytes()[0]));
        }
        for bad in [
            "", "a", "7", "/", "%", ",", ".", " ", "\n", "\u{7f}", "##", "\u{e9}",
        ] {
            assert!(separator(bad).is_err(), "{bad:?}");
        }
    }
}
