//! Python's `repr` of the few values an npy header holds.

use std::fmt::Write;

use unicode_general_category::{GeneralCategory as G, get_general_category};

/// Returns `repr` of a string: single quotes unless only double ones avoid escapes.
pub fn text(value: &str) -> String {
    let quote = if value.contains('\'') && !value.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::with_capacity(value.len() + 2);
    out.push(quote);
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
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
    fn tuples_of_one_keep_their_comma() {
        assert_eq!(tuple(&[]), "()");
        assert_eq!(tuple(&[5]), "(5,)");
        assert_eq!(tuple(&[5, 3]), "(5, 3)");
    }
}
