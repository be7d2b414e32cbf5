//! Archives for `scipy.sparse.load_npz`: zip archives of `.npy` members, made of a sparse matrix, and read.
//!
//! Those that are made have uncompressed members. Format: PKWARE APPNOTE 6.3, sections 4.3.7 to 4.3.16; sizes of 4 GiB
//! and more are in zip64 fields. All sizes are known in advance; the checksums are computed in one pass when a header
//! is first read. The members of those that are read are stored or deflated.

use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use serde_json::{Value as Json, json};
use zip::result::ZipError;
use zip::{CompressionMethod, ZipArchive};

use crate::store::base::{Base, invalid, unsupported};
use crate::store::encode::contents::SpooledFile;
use crate::tree::VirtualFile;
use npyfs_base::error::{Error, Result};
use npyfs_base::npy::parse;
use npyfs_io::content::{Concat, Content, InMemory, Lazy, Reader, Slice, read};
use npyfs_io::file::Ownership;

/// Bytes that are read at once for a checksum.
const STEP: usize = 1 << 20;

/// The value at which sizes and offsets move to a zip64 field.
const LIMIT32: u64 = u32::MAX as u64;

/// One member: its name in the archive and its file.
#[derive(Clone)]
pub struct NpzMember {
    /// Name in the archive, without suffix.
    pub name: &'static str,
    /// The `.npy` file.
    pub file: Arc<dyn VirtualFile>,
}

/// The archive of a matrix.
pub struct NpzFile {
    /// The files, in order.
    pub members: Vec<NpzMember>,
    /// Path of the group, for `info`.
    pub path: String,
    /// The name of the format in which it is shown.
    pub kind: &'static str,
}

/// A member with the fields of its headers.
struct MemberHead {
    name: &'static str,
    content: Arc<dyn Content>,
    crc: OnceLock<u32>,
    /// The offset of its local header.
    at: u64,
}

impl MemberHead {
    fn crc(&self) -> Result<u32> {
        if let Some(crc) = self.crc.get() {
            return Ok(*crc);
        }
        let mut hasher = crc32fast::Hasher::new();
        let pool = Arc::default();
        let mut at = 0;
        while at < self.content.len() {
            let data = read(&*self.content, at, STEP, &pool)?;
            hasher.update(data.as_ref());
            at += data.as_ref().len() as u64;
        }
        Ok(*self.crc.get_or_init(|| hasher.finalize()))
    }

    fn is_large(&self) -> bool {
        self.content.len() >= LIMIT32 || self.at >= LIMIT32
    }

    /// Returns: version to extract, flags, method, time (midnight, 1980-01-01), checksum, sizes, length of the name.
    fn common(&self, crc: u32) -> Vec<u8> {
        let size = if self.is_large() {
            u32::MAX
        } else {
            size32(self.content.len())
        };
        let mut out = Vec::with_capacity(26);
        for half in [if self.is_large() { 45_u16 } else { 20 }, 0, 0, 0, 0x21] {
            out.extend_from_slice(&half.to_le_bytes());
        }
        for word in [crc, size, size] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&(self.name.len() as u16).to_le_bytes());
        out
    }

    fn extra(&self, with_offset: bool) -> Vec<u8> {
        if !self.is_large() {
            return Vec::new();
        }
        let mut numbers = vec![self.content.len(), self.content.len()];
        if with_offset {
            numbers.push(self.at);
        }
        let mut out = vec![1, 0];
        out.extend_from_slice(&(8 * numbers.len() as u16).to_le_bytes());
        for number in numbers {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out
    }

    fn local(&self, crc: u32) -> Vec<u8> {
        let extra = self.extra(false);
        let mut out = b"PK\x03\x04".to_vec();
        out.extend(self.common(crc));
        out.extend_from_slice(&(extra.len() as u16).to_le_bytes());
        out.extend_from_slice(self.name.as_bytes());
        out.extend(extra);
        out
    }

    fn central(&self, crc: u32) -> Vec<u8> {
        let extra = self.extra(true);
        // Made by: Unix, version 4.5.
        let mut out = b"PK\x01\x02\x2d\x03".to_vec();
        out.extend(self.common(crc));
        out.extend_from_slice(&(extra.len() as u16).to_le_bytes());
        // Comment, disk, internal attributes; then external attributes: a regular file, mode 0600.
        out.extend_from_slice(&[0; 6]);
        out.extend_from_slice(&0x8180_0000_u32.to_le_bytes());
        let at = if self.is_large() {
            u32::MAX
        } else {
            size32(self.at)
        };
        out.extend_from_slice(&at.to_le_bytes());
        out.extend_from_slice(self.name.as_bytes());
        out.extend(extra);
        out
    }
}

fn size32(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Returns the end of central directory record, preceded by its zip64 records if a number is too large.
fn end(entries: u16, at: u64, len: u64) -> Vec<u8> {
    let mut out = Vec::new();
    if at >= LIMIT32 || len >= LIMIT32 {
        out.extend_from_slice(b"PK\x06\x06");
        out.extend_from_slice(&44_u64.to_le_bytes());
        out.extend_from_slice(&[45, 3, 45, 0]);
        out.extend_from_slice(&[0; 8]);
        for number in [u64::from(entries), u64::from(entries), len, at] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(b"PK\x06\x07\0\0\0\0");
        out.extend_from_slice(&(at.saturating_add(len)).to_le_bytes());
        out.extend_from_slice(&1_u32.to_le_bytes());
    }
    out.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    out.extend_from_slice(&entries.to_le_bytes());
    out.extend_from_slice(&entries.to_le_bytes());
    out.extend_from_slice(&size32(len).to_le_bytes());
    out.extend_from_slice(&size32(at).to_le_bytes());
    out.extend_from_slice(&[0; 2]);
    out
}

/// Assembles the archive from the contents of its members.
fn archive(members: Vec<(&'static str, Arc<dyn Content>)>) -> Concat {
    let mut at = 0_u64;
    let entries: Vec<Arc<MemberHead>> = members
        .into_iter()
        .map(|(name, content)| {
            let entry = MemberHead {
                name,
                content,
                crc: OnceLock::new(),
                at,
            };
            at += entry.local(0).len() as u64 + entry.content.len();
            Arc::new(entry)
        })
        .collect();
    let mut parts: Vec<Arc<dyn Content>> = Vec::new();
    for entry in &entries {
        let header = entry.clone();
        let len = entry.local(0).len() as u64;
        parts.push(Arc::new(Lazy::new(len, move || {
            Ok(header.local(header.crc()?))
        })));
        parts.push(entry.content.clone());
    }
    let len = entries.iter().map(|e| e.central(0).len() as u64).sum();
    let count = entries.len() as u16;
    let directory = move || {
        let mut out = Vec::new();
        for entry in &entries {
            out.extend(entry.central(entry.crc()?));
        }
        Ok(out)
    };
    parts.push(Arc::new(Lazy::new(len, directory)));
    parts.push(Arc::new(InMemory(end(count, at, len))));
    Concat::new(parts)
}

/// Represents a member of which only the size matters.
struct Sized(u64);

impl Content for Sized {
    fn len(&self) -> u64 {
        self.0
    }

    fn read_at(&self, _offset: u64, buf: &mut [u8]) -> Result<()> {
        buf.fill(0);
        Ok(())
    }
}

impl NpzFile {
    fn first(&self) -> &dyn VirtualFile {
        // A matrix always has members.
        &*self.members[0].file
    }
}

impl VirtualFile for NpzFile {
    fn ownership(&self) -> Ownership {
        self.first().ownership()
    }

    fn size(&self) -> Result<u64> {
        let members = self
            .members
            .iter()
            .map(|m| Ok((m.name, Arc::new(Sized(m.file.size()?)) as Arc<dyn Content>)))
            .collect::<Result<_>>()?;
        Ok(archive(members).len())
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        let members = self
            .members
            .iter()
            .map(|m| Ok((m.name, m.file.open()?)))
            .collect::<Result<_>>()?;
        Ok(Arc::new(archive(members)))
    }

    fn version(&self) -> u64 {
        self.first().version()
    }

    fn is_current(&self) -> bool {
        self.first().is_current()
    }

    fn info(&self) -> Result<Json> {
        let members = self
            .members
            .iter()
            .map(|m| Ok((m.name.to_owned(), m.file.info()?)))
            .collect::<Result<serde_json::Map<_, _>>>()?;
        Ok(json!({
            "kind": self.kind,
            "path": self.path,
            "shown_as": "scipy.sparse.save_npz",
            "members": members,
        }))
    }
}

/// The most members of an archive that are examined.
const MOST: usize = 64;

/// The most bytes that are read to find the members: the list is in memory, and may be as long as the file.
const LONGEST_LIST: u64 = 4 << 20;

/// Bytes that are inflated at once; at least the length of the longest header.
const BLOCK: usize = 2 << 20;
const _: () = assert!(BLOCK >= parse::LONGEST_HEADER);

/// Returns the error for a file that is not an archive or cannot be read.
fn unreadable(error: ZipError) -> Error {
    match error {
        ZipError::Io(e) if Error::inside(&e).is_some() => e.into(),
        other => invalid(format!("not a whole .npz file: {other}")),
    }
}

/// Returns the members named in `wanted`, without `.npy`. Stored members are slices of the file, others are inflated to
/// scratch files.
pub(crate) fn archive_members(
    base: &dyn Base,
    file: &Arc<dyn Content>,
    wanted: &[&str],
) -> Result<HashMap<String, Arc<dyn Content>>> {
    let room = Arc::new(AtomicU64::new(LONGEST_LIST));
    let mut archive = ZipArchive::new(Limited {
        reader: Reader::new(file.clone()),
        room: room.clone(),
    })
    .map_err(unreadable)?;
    room.store(u64::MAX, Ordering::Relaxed);
    if archive.len() > MOST {
        return Err(invalid(format!("an .npz of more than {MOST} members")));
    }
    let mut archive_members = HashMap::new();
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
        archive_members.insert(name, content);
    }
    Ok(archive_members)
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
    match Error::inside(&error) {
        Some(own) => own.clone(),
        None => invalid(format!("damaged .npz: {error}")),
    }
}

/// A reader of at most so many bytes, wherever they are.
struct Limited {
    reader: Reader,
    /// The remaining number of bytes that may be read.
    room: Arc<AtomicU64>,
}

impl Read for Limited {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let len = self.reader.read(buf)?;
        let room = self.room.load(Ordering::Relaxed);
        let Some(room) = room.checked_sub(len as u64) else {
            return Err(io::Error::other("its list of members is too long"));
        };
        self.room.store(room, Ordering::Relaxed);
        Ok(len)
    }
}

impl Seek for Limited {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.reader.seek(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_base::error::ErrorKind;

    /// A content that cannot be read now.
    struct Silent;

    impl Content for Silent {
        fn len(&self) -> u64 {
            1000
        }

        fn read_at(&self, _: u64, _: &mut [u8]) -> Result<()> {
            let kind = ErrorKind::Unreached(libc::ETIMEDOUT);
            Err(Error::new(kind, "the host is silent"))
        }
    }

    #[test]
    fn an_archive_that_cannot_be_read_now_is_not_a_damaged_one() {
        let opened = |content: Arc<dyn Content>| {
            let room = Arc::new(AtomicU64::new(LONGEST_LIST));
            let reader = Reader::new(content);
            let archive = ZipArchive::new(Limited { reader, room });
            archive.map(|_| ()).map_err(unreadable).unwrap_err()
        };
        let silent = opened(Arc::new(Silent));
        let kind = ErrorKind::Unreached(libc::ETIMEDOUT);
        assert_eq!(
            (silent.kind, &*silent.message),
            (kind, "the host is silent")
        );
        let damaged = opened(Arc::new(InMemory(vec![7; 1000])));
        assert!(damaged.message.starts_with("not a whole .npz file: "));
    }

    #[test]
    fn a_small_archive_has_the_size_its_records_say() {
        let in_memory = |len: usize| Arc::new(InMemory(vec![7; len])) as Arc<dyn Content>;
        let zip = archive(vec![("a.npy", in_memory(10)), ("bc.npy", in_memory(3))]);
        let all = read(&zip, 0, 1 << 20, &Arc::default()).unwrap();
        let bytes = all.as_ref();
        assert_eq!(bytes.len() as u64, zip.len());
        assert_eq!(&bytes[..4], b"PK\x03\x04");
        let end = &bytes[bytes.len() - 22..];
        assert_eq!(&end[..4], b"PK\x05\x06");
        let at = u32::from_le_bytes([end[16], end[17], end[18], end[19]]) as usize;
        assert_eq!(&bytes[at..at + 4], b"PK\x01\x02");
        let crc = crc32fast::hash(&[7; 10]).to_le_bytes();
        assert_eq!(&bytes[14..18], &crc);
    }

    #[test]
    fn large_members_use_zip64() {
        let zip = archive(vec![
            ("a.npy", Arc::new(Sized(5 << 30)) as Arc<dyn Content>),
            ("b.npy", Arc::new(Sized(10))),
        ]);
        assert!(zip.len() > 5 << 30);
        let tail = read(&zip, zip.len() - 98, 98, &Arc::default()).unwrap();
        assert_eq!(&tail.as_ref()[..4], b"PK\x06\x06");
        assert_eq!(&tail.as_ref()[56..60], b"PK\x06\x07");
    }
}
