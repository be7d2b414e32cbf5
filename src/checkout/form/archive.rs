//! The members of an `.npz`, which is a zip of `.npy` files, stored or deflated.

use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use zip::result::ZipError;
use zip::{CompressionMethod, ZipArchive};

use super::spool::Spool;
use super::{Base, invalid, unsupported};
use crate::content::{Content, Slice};
use crate::error::{Error, Result};

/// Most members that are looked at.
const MOST: usize = 64;

/// Bytes that are inflated at a time.
const BLOCK: usize = 1 << 20;

impl From<ZipError> for Error {
    fn from(error: ZipError) -> Self {
        match error {
            ZipError::Io(e) if e.raw_os_error().is_some() => e.into(),
            other => invalid(format!("not a whole .npz file: {other}")),
        }
    }
}

/// The members by name without `.npy`. Stored ones are parts of the file, others are inflated to scratch files.
pub fn members(
    base: &dyn Base,
    file: &Arc<dyn Content>,
) -> Result<HashMap<String, Arc<dyn Content>>> {
    let mut archive = ZipArchive::new(Cursor {
        content: file.clone(),
        at: 0,
    })?;
    if archive.len() > MOST {
        return Err(invalid(format!("an .npz of more than {MOST} members")));
    }
    let mut members = HashMap::new();
    for number in 0..archive.len() {
        let mut member = archive.by_index(number)?;
        let Some(name) = member.name()?.strip_suffix(".npy").map(str::to_owned) else {
            continue;
        };
        let content: Arc<dyn Content> = match member.compression() {
            CompressionMethod::Stored => {
                let start = member
                    .data_start()
                    .ok_or_else(|| invalid("a member without data"))?;
                let len = member.size();
                // Reading it to the end compares its checksum.
                io::copy(&mut member, &mut io::sink()).map_err(damaged)?;
                Arc::new(Slice::new(file.clone(), start, len))
            }
            CompressionMethod::Deflated => {
                let mut spool = Spool::new(base);
                let mut block = vec![0; BLOCK];
                loop {
                    let n = member.read(&mut block).map_err(damaged)?;
                    if n == 0 {
                        break;
                    }
                    spool.push(block.get(..n).unwrap_or_default())?;
                    // A member larger than it claims would fill the disk.
                    if spool.len() > member.size() {
                        return Err(invalid(format!("{name} is longer than the .npz says")));
                    }
                }
                spool.finish()?
            }
            other => {
                return Err(unsupported(format!(
                    "{name} is compressed with {other}: use numpy.savez or savez_compressed"
                )));
            }
        };
        members.insert(name, content);
    }
    Ok(members)
}

fn damaged(error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(_) => error.into(),
        None => invalid(format!("damaged .npz: {error}")),
    }
}

/// A content as a reader of zip files wants it.
struct Cursor {
    content: Arc<dyn Content>,
    at: u64,
}

impl Read for Cursor {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.content.len().saturating_sub(self.at);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        let place = buf.get_mut(..len).unwrap_or_default();
        let read = self.content.read_at(self.at, place);
        read.map_err(|e| io::Error::from_raw_os_error(e.errno()))?;
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for Cursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.content.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
