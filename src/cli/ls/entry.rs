//! An entry of a listing, as a row for people and as JSON.

use std::fmt;

use serde::Serialize;

use crate::cli::output::Name;
use crate::io::content::npy_header;
use crate::journal::utc;
use crate::npy::parse::Header;
use crate::tree::{Node, VirtualFile};

/// Size in bytes that directories are shown with, as in a mount.
const DIRECTORY: u64 = 4096;

/// Characters of a type that are shown at most: that of a compound can be long.
const TYPE: usize = 24;

/// An entry of the JSON list.
#[derive(Serialize)]
pub(super) struct ListedEntry {
    #[serde(flatten)]
    name: Name,
    kind: &'static str,
    size: u64,
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    dtype: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shape: Option<Vec<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

/// Returns kind, size in bytes and time, as a mount shows them.
fn attributes(node: &Node) -> (&'static str, u64, String) {
    match node {
        Node::Directory(dir) => ("directory", DIRECTORY, utc(dir.ownership().mtime)),
        Node::Symlink(link) => ("link", link.target.len() as u64, utc(link.ownership.mtime)),
        Node::File(file) => (
            "file",
            file.size().unwrap_or(0),
            utc(file.ownership().mtime),
        ),
    }
}

/// Returns type and shape of an array. `None` of what is none, and of what cannot be read: reading it says why.
fn header(file: &dyn VirtualFile) -> Option<Header> {
    npy_header(&*file.open().ok()?).ok()?.ok()
}

impl ListedEntry {
    /// Describes an entry; an array with type and shape, if it is to be looked at.
    pub(super) fn new(name: &[u8], node: &Node, looks: bool) -> Self {
        let (kind, size, time) = attributes(node);
        let target = match node {
            Node::Symlink(link) => Some(String::from_utf8_lossy(&link.target).into_owned()),
            _ => None,
        };
        let header = match node {
            Node::File(file) if looks => header(&**file),
            _ => None,
        };
        Self {
            name: Name::new(name),
            kind,
            size,
            time,
            dtype: header.as_ref().map(|header| header.dtype.to_string()),
            shape: header.map(|header| header.shape),
            target,
        }
    }
}

/// The columns in front of a name.
pub(super) struct Row {
    kind: char,
    size: String,
    time: String,
    dtype: String,
    shape: String,
}

impl Row {
    /// Describes an entry; `human`: its size is rounded to three digits.
    pub(super) fn new(node: &Node, human: bool) -> Self {
        let (kind, size, time) = attributes(node);
        let header = match node {
            Node::File(file) => header(&**file),
            _ => None,
        };
        let none = || "-".to_owned();
        Self {
            kind: match kind {
                "directory" => 'd',
                "link" => 'l',
                _ => '-',
            },
            size: match human {
                true => rounded(size),
                false => size.to_string(),
            },
            time,
            dtype: header.as_ref().map_or_else(none, |header| {
                let dtype = header.dtype.to_string();
                match dtype.char_indices().nth(TYPE) {
                    Some((at, _)) => format!("{}...", dtype.get(..at).unwrap_or_default()),
                    None => dtype,
                }
            }),
            shape: header.map_or_else(none, |header| shape(&header.shape)),
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            size,
            time,
            dtype,
            shape,
        } = self;
        write!(f, "{kind} {size:>14} {time} {dtype:<6} {shape:<16} ")
    }
}

/// Returns a shape as Python writes it, without blanks.
fn shape(shape: &[u64]) -> String {
    match shape {
        [one] => format!("({one},)"),
        all => {
            let all: Vec<String> = all.iter().map(u64::to_string).collect();
            format!("({})", all.join(","))
        }
    }
}

/// Returns a number of bytes with three digits: `999`, `1.2K`, `34.5M`.
fn rounded(size: u64) -> String {
    let mut units = ["", "K", "M", "G", "T", "P"].into_iter();
    let (mut left, mut unit) = (size as f64, units.next().unwrap_or_default());
    // 1023.97 would be shown as 1024.0.
    while left >= 1023.95
        && let Some(next) = units.next()
    {
        (left, unit) = (left / 1024.0, next);
    }
    match unit {
        "" => size.to_string(),
        _ => format!("{left:.1}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_shapes_are_short() {
        let sizes = [
            0,
            1023,
            1024,
            1300,
            1 << 20,
            (1 << 20) - 1,
            5 << 40,
            u64::MAX,
        ];
        let shown = [
            "0", "1023", "1.0K", "1.3K", "1.0M", "1.0M", "5.0T", "16384.0P",
        ];
        assert_eq!(sizes.map(rounded), shown);
        assert_eq!(shape(&[]), "()");
        assert_eq!(shape(&[3]), "(3,)");
        assert_eq!(shape(&[3, 4]), "(3,4)");
    }
}
