//! The view of files that are no arrays: the beginning of text or bytes, and the members of an archive of arrays.

use std::io::BufReader;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value as Json;
use zip::result::ZipError;
use zip::{CompressionMethod, ZipArchive};

use super::edges;
use crate::cli::figures;
use crate::cli::output::Report;
use npyfs_base::error::{Error, Result};
use npyfs_base::npy::parse::Header;
use npyfs_base::printable;
use npyfs_io::content::{Content, Reader, Slice, npy_header};

/// Bytes of a text that are looked at, and lines that are shown.
const HEAD: usize = 4096;
const LINES: usize = 20;

/// Bytes that are shown of a binary file.
const BYTES: usize = 64;

/// Members of an archive that are shown.
const MEMBERS: usize = 64;

/// What is shown of a file that is no array. The fields of its JSON stand in the order of their names.
#[derive(Default, Serialize)]
pub(super) struct FileSummary {
    bytes: u64,
    /// The beginning of a text.
    #[serde(skip_serializing_if = "Option::is_none")]
    head: Option<String>,
    kind: Kind,
    /// Members of an archive, as far as they are shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    members: Option<Vec<Member>>,
    /// The first bytes of a binary file.
    #[serde(skip)]
    first: Vec<u8>,
    /// All members of an archive.
    #[serde(skip)]
    count: u64,
}

#[derive(Clone, Copy, Default, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    #[default]
    Bytes,
    Text,
    Npz,
}

/// A member of an archive. A member that is no array has only a name.
#[derive(Serialize)]
struct Member {
    #[serde(skip_serializing_if = "Option::is_none")]
    dtype: Option<Json>,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    printed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shape: Option<Vec<u64>>,
    /// The line about the array, or why there is none.
    #[serde(skip)]
    line: String,
}

/// Returns the number of elements of an array.
pub(super) fn elements(header: &Header) -> u64 {
    let dims = header.shape.iter();
    dims.fold(1_u64, |n, &dim| n.saturating_mul(dim))
}

/// Returns the line that says what an array is.
pub(super) fn line_of(header: &Header) -> String {
    let dtype = printable::line(&header.dtype.to_string());
    let elements = figures::count(elements(header), "element");
    format!(
        "{dtype} {}, {elements}, {}",
        figures::shape(&header.shape),
        figures::bytes(header.len)
    )
}

impl Report for FileSummary {
    fn text(&self) -> String {
        let size = figures::bytes(self.bytes);
        let dots = |is_cut: bool| if is_cut { "...\n" } else { "" };
        match self.kind {
            Kind::Bytes => {
                let rows = self.first.chunks(16).map(|row| {
                    let digits: Vec<String> =
                        row.iter().map(|byte| format!("{byte:02x}")).collect();
                    format!("{}\n", digits.join(" "))
                });
                let dots = dots(self.bytes > BYTES as u64);
                format!("bytes, {size}\n\n{}{dots}", rows.collect::<String>())
            }
            Kind::Text => {
                let text = self.head.as_deref().unwrap_or_default();
                let lines = text.lines().take(LINES);
                let lines: String = lines
                    .map(|line| format!("{}\n", printable::line(line)))
                    .collect();
                let is_cut = self.bytes > text.len() as u64 || text.lines().count() > LINES;
                format!("text, {size}\n\n{lines}{}", dots(is_cut))
            }
            Kind::Npz => {
                let members = self.members.as_deref().unwrap_or_default().iter();
                let members = members.map(|member| {
                    let name = printable::name(member.name.as_bytes());
                    match &member.printed {
                        Some(printed) => format!("{name}: {}\n\n{printed}\n", member.line),
                        None => format!("{name}: {}\n", member.line),
                    }
                });
                let members = members.collect::<Vec<_>>().join("\n");
                let count = figures::count(self.count, "member");
                let is_cut = self.count > MEMBERS as u64;
                let dots = if is_cut { "\n...\n" } else { "" };
                format!(".npz of {count}, {size}\n\n{members}{dots}")
            }
        }
    }
}

/// Shows the beginning of a file.
pub(super) fn head(content: &dyn Content) -> Result<FileSummary> {
    let len = content.len();
    let mut head = vec![0; usize::try_from(len).unwrap_or(HEAD).min(HEAD)];
    content.read_at(0, &mut head)?;
    let text = match std::str::from_utf8(&head) {
        Ok(text) => Some(text),
        // A character may end behind what was read.
        Err(e) if e.error_len().is_none() && len > HEAD as u64 => {
            std::str::from_utf8(&head[..e.valid_up_to()]).ok()
        }
        Err(_) => None,
    };
    Ok(match text.filter(|text| !text.contains('\0')) {
        Some(text) => FileSummary {
            bytes: len,
            head: Some(text.to_owned()),
            kind: Kind::Text,
            ..FileSummary::default()
        },
        None => FileSummary {
            bytes: len,
            first: head.into_iter().take(BYTES).collect(),
            ..FileSummary::default()
        },
    })
}

/// Shows the arrays in an `.npz`.
pub(super) fn archive(content: &Arc<dyn Content>) -> Result<FileSummary> {
    let damaged = |e: ZipError| match e {
        ZipError::Io(e) if Error::inside(&e).is_some() => e.into(),
        e => Error::damaged(format!("not a whole .npz file: {e}")),
    };
    let reader = BufReader::new(Reader::new(content.clone()));
    let mut archive = ZipArchive::new(reader).map_err(damaged)?;
    let mut members = Vec::new();
    for number in 0..archive.len().min(MEMBERS) {
        let member = archive.by_index(number).map_err(damaged)?;
        let name = member.name().map_err(damaged)?.into_owned();
        let place = member.data_start().zip(Some(member.size()));
        let stored = place.filter(|_| member.compression() == CompressionMethod::Stored);
        let no_array = |name, why: &str| Member {
            dtype: None,
            name,
            printed: None,
            shape: None,
            line: why.to_owned(),
        };
        let Some((start, size)) = stored else {
            members.push(no_array(name, "compressed"));
            continue;
        };
        let part = Slice::new(content.clone(), start, size);
        members.push(match npy_header(&part)? {
            Ok(header) if header.check_len(size).is_ok() => Member {
                dtype: Some(header.dtype.json()),
                name,
                printed: Some(edges::print(&part, &header)?),
                line: line_of(&header),
                shape: Some(header.shape),
            },
            _ => no_array(name, "no array"),
        });
    }
    Ok(FileSummary {
        bytes: content.len(),
        kind: Kind::Npz,
        members: Some(members),
        count: archive.len() as u64,
        ..FileSummary::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_io::content::InMemory;

    fn shown(bytes: &[u8]) -> String {
        head(&InMemory(bytes.to_vec())).unwrap().text()
    }

    #[test]
    fn text_is_shown_by_its_first_lines() {
        assert_eq!(shown(b"a\n\x1bb\n"), "text, 5 bytes\n\na\n\\u{1b}b\n");
        let long = shown("ü\n".repeat(10_000).as_bytes());
        assert!(long.starts_with("text, 29.3K\n\nü\n") && long.ends_with("ü\n...\n"));
        assert_eq!(long.lines().count(), LINES + 3);
        // A character lies across the end of what is read.
        let across = shown(format!("{}ü{}", "a".repeat(HEAD - 1), "b".repeat(9)).as_bytes());
        assert!(across.starts_with("text") && across.ends_with("a\n...\n"));
        assert_eq!(shown(b""), "text, 0 bytes\n\n");
    }

    #[test]
    fn bytes_are_shown_by_their_numbers() {
        assert_eq!(shown(b"\xff\x00"), "bytes, 2 bytes\n\nff 00\n");
        assert!(shown(&[0; 100]).ends_with("00 00\n...\n"));
    }
}
