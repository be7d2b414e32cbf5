//! Python's `repr` of the few values that an npy header holds.

use std::fmt::Write;

use unicode_general_category::{GeneralCategory as G, get_general_category};

/// Returns `repr` of a string: single quotes unless only double ones avoid escapes.
pub fn text(value: &str) -> String {
    characters(value.chars().map(u32::from))
}

/// Returns `repr` of a string of code points; numbers that are not characters are escaped as in Python.
pub fn characters(codes: impl Iterator<Item = u32> + Clone) -> String {
    let quote = quote(codes.clone());
    let mut out = String::new();
    out.push(quote);
    for code in codes {
        let c = char::from_u32(code);
        match c {
            Some(c) if short(c, quote, &mut out) => {}
            Some(c) if printable(c) => out.push(c),
            _ => {
                // Writing to a String cannot fail.
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
    out
}

/// Returns `repr` of bytes, including the `b`.
pub fn bytes(value: &[u8]) -> String {
    let quote = quote(value.iter().copied().map(u32::from));
    let mut out = format!("b{quote}");
    for &byte in value {
        let c = char::from(byte);
        if short(c, quote, &mut out) {
            continue;
        }
        match byte {
            b' '..=b'~' => out.push(c),
            // Writing to a String cannot fail.
            _ => drop(write!(out, "\\x{byte:02x}")),
        }
    }
    out.push(quote);
    out
}

/// Returns the quotation mark that Python uses for a string of these characters.
fn quote(codes: impl Iterator<Item = u32> + Clone) -> char {
    let has = |c: char| codes.clone().any(|code| code == u32::from(c));
    match has('\'') && !has('"') {
        true => '"',
        false => '\'',
    }
}

/// Appends the short escape of a character. False if it has none.
fn short(c: char, quote: char, out: &mut String) -> bool {
    let letter = match c {
        '\n' => 'n',
        '\r' => 'r',
        '\t' => 't',
        '\\' => '\\',
        c if c == quote => c,
        _ => return false,
    };
    out.push('\\');
    out.push(letter);
    true
}

/// Returns `repr` of a tuple of integers.
pub fn tuple(values: &[u64]) -> String {
    match values {
        [one] => format!("({one},)"),
        many => {
            let parts: Vec<_> = many.iter().map(u64::to_string).collect();
            format!("({})", parts.join(", "))
        }
    }
}

/// Returns Python's `str.isprintable` of one character.
fn printable(c: char) -> bool {
    c == ' '
        || !matches!(
            get_general_category(c),
            G::Control
                | G::Format
                | G::Surrogate
                | G::PrivateUse
                | G::Unassigned
                | G::LineSeparator
                | G::ParagraphSeparator
                | G::SpaceSeparator
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_quoted_as_python_quotes_them() {
        assert_eq!(text("a"), "'a'");
        assert_eq!(text("it's"), "\"it's\"");
        assert_eq!(text("it's \"x\""), "'it\\'s \"x\"'");
        assert_eq!(
            text("a\\\n\t\u{1}\u{7f}\u{a0}"),
            "'a\\\\\\n\\t\\x01\\x7f\\xa0'"
        );
        assert_eq!(text("\u{e9}\u{3b1}\u{200b}"), "'\u{e9}\u{3b1}\\u200b'");
    }

    #[test]
    fn bytes_are_quoted_as_python_quotes_them() {
        assert_eq!(bytes(b"a b"), "b'a b'");
        assert_eq!(bytes(b"it's"), "b\"it's\"");
        assert_eq!(bytes(b"\0\n\\\x7f\xff"), "b'\\x00\\n\\\\\\x7f\\xff'");
        let odd = [0x61, 0xdc80, 0x110000, 0x27];
        assert_eq!(characters(odd.into_iter()), "\"a\\udc80\\U00110000'\"");
    }

    #[test]
    fn tuples_of_one_keep_their_comma() {
        assert_eq!(tuple(&[]), "()");
        assert_eq!(tuple(&[5]), "(5,)");
        assert_eq!(tuple(&[5, 3]), "(5, 3)");
    }
}
