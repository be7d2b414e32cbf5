//! The members of an `.npz`: a zip archive of `.npy` files, stored or deflated.

use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zip::result::ZipError;
use zip::{CompressionMethod, ZipArchive};

use crate::store::base::{Base, invalid, unsupported};
use crate::store::encode::spooled_file::SpooledFile;
use npyfs_base::error::{Error, Result};
use npyfs_base::npy::parse;
use npyfs_io::content::{Content, Slice};

/// The most members that are examined.
const MOST: usize = 64;

/// The most bytes that are read to find the members: the list is in memory, and may be as long as the file.
const LONGEST_LIST: u64 = 4 << 20;

/// Bytes that are inflated at once; at least the length of the longest header.
const BLOCK: usize = 2 << 20;
const _: () = assert!(BLOCK >= parse::LONGEST_HEADER);

/// Returns the error for a file that is not an archive or cannot be read.
fn unreadable(error: ZipError) -> Error {
    match error {
        ZipError::Io(e) if e.raw_os_error().is_some() => e.into(),
        other => invalid(format!("not a whole .npz file: {other}")),
    }
}

/// Returns the members named in `wanted`, without `.npy`. Stored members are slices of the file, others are inflated to
/// scratch files.
pub(crate) fn members(
    base: &dyn Base,
    file: &Arc<dyn Content>,
    wanted: &[&str],
) -> Result<HashMap<String, Arc<dyn Content>>> {
    let room = Arc::new(AtomicU64::new(LONGEST_LIST));
    let mut archive = ZipArchive::new(Cursor {
        content: file.clone(),
        at: 0,
        room: room.clone(),
    })
    .map_err(unreadable)?;
    room.store(u64::MAX, Ordering::Relaxed);
    if archive.len() > MOST {
        return Err(invalid(format!("an .npz of more than {MOST} members")));
    }
    let mut members = HashMap::new();
    for number in 0..archive.len() {
        let mut member = archive.by_index(number).map_err(unreadable)?;
        let name = member.name().map_err(unreadable)?.into_owned();
        let name = name.strip_suffix(".npy").unwrap_or_default().to_owned();
        if !wanted.contains(&name.as_str()) {
            continue;
        }
        let content: Arc<dyn Content> = match member.compression() {
            CompressionMethod::Stored => {
                let start = member
                    .data_start()
                    .ok_or_else(|| invalid("a member without data"))?;
                let len = member.size();
                // Reading to the end verifies the checksum.
                io::copy(&mut member, &mut io::sink()).map_err(damaged)?;
                Arc::new(Slice::new(file.clone(), start, len))
            }
            CompressionMethod::Deflated => {
                let size = member.size();
                inflate(base, &mut member, size).map_err(|e| e.about(&name))?
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

/// Inflates a member of `size` bytes to a scratch file, if its `.npy` header implies the same size: a larger claim
/// would only fill the disk.
fn inflate(base: &dyn Base, member: &mut impl Read, size: u64) -> Result<Arc<dyn Content>> {
    let mut packed = SpooledFile::new(base);
    let mut block = Vec::with_capacity(BLOCK);
    loop {
        block.clear();
        let mut part = member.by_ref().take(BLOCK as u64);
        part.read_to_end(&mut block).map_err(damaged)?;
        if block.is_empty() {
            break;
        }
        if packed.len() == 0 {
            parse::parse(&block)?.check_len(size)?;
        }
        packed.push(&block)?;
        if packed.len() > size {
            return Err(invalid("it is longer than the .npz says"));
        }
    }
    packed.finish()
}

fn damaged(error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(_) => error.into(),
        None => invalid(format!("damaged .npz: {error}")),
    }
}

/// A content as a reader for the zip library.
struct Cursor {
    content: Arc<dyn Content>,
    at: u64,
    /// The remaining number of bytes that may be read.
    room: Arc<AtomicU64>,
}

impl Read for Cursor {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.content.len().saturating_sub(self.at);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        let place = buf.get_mut(..len).unwrap_or_default();
        let room = self.room.load(Ordering::Relaxed);
        let Some(room) = room.checked_sub(len as u64) else {
            return Err(io::Error::other("its list of members is too long"));
        };
        self.room.store(room, Ordering::Relaxed);
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
