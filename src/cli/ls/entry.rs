//! An entry of a listing, as a row for people and as JSON.

use std::fmt;

use serde::Serialize;

use crate::cli::figures::{rounded, shape};
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
