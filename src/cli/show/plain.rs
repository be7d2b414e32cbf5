//! The view of files that are no arrays: the beginning of text or bytes, and the members of an archive of arrays.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use serde_json::{Value as Json, json};
use zip::{CompressionMethod, ZipArchive};

use super::edges;
use crate::cli::figures;
use crate::error::{Error, Result};
use crate::io::content::{Content, Slice, npy_header};
use crate::npy::parse::Header;
use crate::printable;

/// Bytes of a text that are looked at, and lines that are shown.
const HEAD: usize = 4096;
const LINES: usize = 20;

/// Bytes that are shown of what is no text.
const BYTES: usize = 64;

/// Members of an archive that are shown.
const MEMBERS: usize = 64;

/// The view of a file: for people, and as JSON.
pub(super) struct Shown {
    pub(super) text: String,
    pub(super) json: Json,
}

/// Returns the line that says what an array is.
pub(super) fn line_of(header: &Header) -> String {
    let count = header
        .shape
        .iter()
        .fold(1_u64, |n, &dim| n.saturating_mul(dim));
    let dtype = printable::line(&header.dtype.to_string());
    let elements = figures::count(count, "element");
    format!(
        "{dtype} {}, {elements}, {}",
        figures::shape(&header.shape),
        figures::bytes(header.len)
    )
}

/// Shows the beginning of a file.
pub(super) fn head(content: &dyn Content) -> Result<Shown> {
    let len = content.len();
    let mut head = vec![0; usize::try_from(len).unwrap_or(HEAD).min(HEAD)];
    content.read_at(0, &mut head)?;
    let size = figures::bytes(len);
    let text = match std::str::from_utf8(&head) {
        Ok(text) => Some(text),
        // A character may end behind what was read.
        Err(e) if e.error_len().is_none() && len > HEAD as u64 => {
            std::str::from_utf8(&head[..e.valid_up_to()]).ok()
        }
        Err(_) => None,
    };
    let text = text.filter(|text| !text.contains('\0'));
    let Some(text) = text else {
        let first = &head[..head.len().min(BYTES)];
        let rows = first.chunks(16).map(|row| {
            let digits: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{}\n", digits.join(" "))
        });
        let dots = if len > BYTES as u64 { "...\n" } else { "" };
        return Ok(Shown {
            text: format!("bytes, {size}\n\n{}{dots}", rows.collect::<String>()),
            json: json!({ "kind": "bytes", "bytes": len }),
        });
    };
    let shown: Vec<String> = text
        .lines()
        .take(LINES)
        .map(|line| format!("{}\n", printable::line(line)))
        .collect();
    let is_cut = len > text.len() as u64 || text.lines().count() > LINES;
    let dots = if is_cut { "...\n" } else { "" };
    Ok(Shown {
        text: format!("text, {size}\n\n{}{dots}", shown.concat()),
        json: json!({ "kind": "text", "bytes": len, "head": text }),
    })
}

/// Shows the arrays in an `.npz`.
pub(super) fn archive(content: &Arc<dyn Content>) -> Result<Shown> {
    let damaged = |e: zip::result::ZipError| Error::damaged(format!("not a whole .npz file: {e}"));
    let reader = io::BufReader::new(Reader {
        content: content.clone(),
        at: 0,
    });
    let mut archive = ZipArchive::new(reader).map_err(damaged)?;
    let (mut texts, mut members) = (Vec::new(), Vec::new());
    for number in 0..archive.len().min(MEMBERS) {
        let member = archive.by_index(number).map_err(damaged)?;
        let name = member.name().map_err(damaged)?.into_owned();
        let shown = printable::name(name.as_bytes());
        let place = member.data_start().zip(Some(member.size()));
        let stored = place.filter(|_| member.compression() == CompressionMethod::Stored);
        let Some((start, size)) = stored else {
            texts.push(format!("{shown}: compressed\n"));
            members.push(json!({ "name": name }));
            continue;
        };
        let part = Slice::new(content.clone(), start, size);
        match npy_header(&part)? {
            Ok(header) if header.check_len(size).is_ok() => {
                let printed = edges::print(&part, &header)?;
                texts.push(format!("{shown}: {}\n\n{printed}\n", line_of(&header)));
                members.push(json!({
                    "name": name,
                    "dtype": header.dtype.json(),
                    "shape": header.shape,
                    "printed": printed,
                }));
            }
            _ => {
                texts.push(format!("{shown}: no array\n"));
                members.push(json!({ "name": name }));
            }
        }
    }
    let size = figures::bytes(content.len());
    let count = figures::count(archive.len() as u64, "member");
    let dots = if archive.len() > MEMBERS {
        "\n...\n"
    } else {
        ""
    };
    Ok(Shown {
        text: format!(".npz of {count}, {size}\n\n{}{dots}", texts.join("\n")),
        json: json!({ "kind": "npz", "bytes": content.len(), "members": members }),
    })
}

/// A content as a stream.
struct Reader {
    content: Arc<dyn Content>,
    at: u64,
}

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.content.len().saturating_sub(self.at);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        let read = self.content.read_at(self.at, &mut buf[..len]);
        read.map_err(|e| io::Error::other(e.message))?;
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for Reader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.content.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::content::InMemory;

    fn shown(bytes: &[u8]) -> String {
        head(&InMemory(bytes.to_vec())).unwrap().text
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
