//! Text from files, made safe to print: characters that would move the cursor, reorder text or be invisible are
//! escaped.

use std::fmt::Write;
use std::path::Path;

use unicode_general_category::{GeneralCategory as G, get_general_category};

/// Escapes a name or path of arbitrary bytes: `\xNN` is a byte that is not UTF-8, `\u{NNNN}` a character that is not
/// shown as itself, `\\` a backslash.
pub fn name(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                c => push(c, &mut out),
            }
        }
        for byte in chunk.invalid() {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// Makes a single-line message: line breaks and tabs become spaces, other hidden characters `\u{NNNN}`.
pub fn line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' | '\t' => out.push(' '),
            c => push(c, &mut out),
        }
    }
    out
}

/// Returns a path quoted as one word of a shell command, on one line.
pub fn shell_word(path: &Path) -> String {
    let text = line(&path.display().to_string());
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

fn push(c: char, out: &mut String) {
    if is_shown(c) {
        out.push(c);
    } else {
        let _ = write!(out, "{}", c.escape_unicode());
    }
}

/// Returns whether a character is visible in place and affects nothing else.
fn is_shown(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    let hidden = matches!(
        get_general_category(c),
        G::Control
            | G::Format
            | G::LineSeparator
            | G::ParagraphSeparator
            | G::Surrogate
            | G::PrivateUse
            | G::Unassigned
    );
    // `Default_Ignorable_Code_Point` in other categories: fillers, joiners, variation selectors.
    let ignored = matches!(u32::from(c),
        0x34f | 0x115f..=0x1160 | 0x17b4..=0x17b5 | 0x180b..=0x180f | 0x3164 | 0xfe00..=0xfe0f | 0xffa0
        | 0xe0000..=0xe0fff);
    !(hidden || ignored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_act_upon_is_spelled_out() {
        assert_eq!(name("Größe 😀 é".as_bytes()), "Größe 😀 é");
        assert_eq!(name(b"a\x1b[31m\n\\"), "a\\u{1b}[31m\\u{a}\\\\");
        assert_eq!(name(b"\xff\xc3"), "\\xff\\xc3");
        for c in [
            '\u{7f}',
            '\u{9b}',
            '\u{85}',
            '\u{202e}',
            '\u{2066}',
            '\u{200b}',
            '\u{200d}',
            '\u{feff}',
            '\u{ad}',
            '\u{2028}',
            '\u{3164}',
            '\u{fe0f}',
            '\u{e0041}',
            '\u{e000}',
        ] {
            let shown = name(c.to_string().as_bytes());
            assert_eq!(shown, format!("\\u{{{:x}}}", u32::from(c)));
            assert_eq!(line(&c.to_string()), shown);
        }
        assert_eq!(line("a\nb\tc\\"), "a b c\\");
    }
}
