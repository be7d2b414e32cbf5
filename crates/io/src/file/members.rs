//! The members of an HDF5 file that is stored as several files: by the driver `family` (pieces of one size), or by
//! `multi` and its variant `split` (one file for each kind of bytes).
//!
//! The first member, or the one with the superblock, records this in its driver information block (format
//! specification, sections II.B and II.C). Addresses of the file are made flat: those of a family already are; those of
//! `multi` begin far apart, and here the members follow one another. Every read must lie within members: a gap is an
//! error.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::{Identity, RawError, StoreFile, signature};
use npyfs_base::buffer::ALIGNMENT;

/// The most members of a file: libhdf5 opens all of them at once.
const MOST: u64 = 512;

/// The most bytes of the superblock, and of its extension or the driver information block, that are read.
const NEAR: usize = 1024;

/// Kinds of bytes that `multi` may store separately.
pub const KINDS: usize = 6;

/// The driver that reads a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Driver {
    /// Members of this many bytes, numbered in their names with a minimum number of digits.
    Family {
        /// Bytes of a member.
        size: u64,
        /// The path in front of the number.
        prefix: Vec<u8>,
        /// The minimum number of digits.
        width: usize,
        /// The name after the number.
        suffix: Vec<u8>,
    },
    /// One member for each of several kinds of bytes.
    Multi {
        /// For each kind of bytes, the kind in whose member it is stored, counted from 1.
        map: [u8; KINDS],
        /// The path in front of the members' suffixes.
        stem: Vec<u8>,
    },
}

/// The place of a member among the addresses of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The path.
    pub path: Vec<u8>,
    /// Its device and inode; `None` if it is missing or unreadable.
    pub inode: Option<(u64, u64)>,
    /// Its first address in libhdf5.
    pub start: u64,
    /// Its first address in the daemon.
    pub flat: u64,
    /// The length in bytes.
    pub len: u64,
    /// For `multi`: the kind of bytes it holds, counted from 1, and the suffix of its name.
    pub kind: Option<(u8, Vec<u8>)>,
}

/// The members of a file, by address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The driver that reads them.
    pub driver: Driver,
    /// The members, by flat address.
    pub members: Vec<Member>,
}

impl Layout {
    /// Returns the flat address of bytes at libhdf5's address `addr`; `None` if they lie outside of all members.
    pub fn flat(&self, addr: u64, len: u64) -> Option<u64> {
        if let Driver::Family { .. } = self.driver {
            return Some(addr);
        }
        let end = addr.checked_add(len)?;
        let inside = |member: &&Member| {
            member.start <= addr && end <= member.start.saturating_add(member.len)
        };
        let member = self.members.iter().find(inside)?;
        member.flat.checked_add(addr - member.start)
    }

    /// Returns the end of the flat addresses.
    fn end(&self) -> u64 {
        let ends = self
            .members
            .iter()
            .map(|member| member.flat.saturating_add(member.len));
        ends.max().unwrap_or(0)
    }
}

/// The open members of a file.
#[derive(Debug)]
pub struct Members {
    /// The places of the members.
    pub layout: Arc<Layout>,
    /// The members as files; `None` for a missing one.
    files: Vec<Option<StoreFile>>,
}

/// The driver information of a file: the driver's name and its data, and the end of the file's addresses.
struct Information {
    is_family: bool,
    bytes: Vec<u8>,
    end: u64,
}

fn damaged(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

/// Returns whether the file at a path is the first member of several.
pub fn is_first_member(path: &Path) -> bool {
    // Opening a pipe would block.
    let is_file = std::fs::metadata(path).is_ok_and(|meta| meta.is_file());
    let file = File::open(path).ok().filter(|_| is_file);
    file.is_some_and(|file| information(path, &file).is_ok_and(|found| found.is_some()))
}

/// Returns the first member of the file of which `path` is a later member, if there is one.
pub fn first_member(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.as_bytes();
    let mut names = Vec::new();
    let mut end = name.len();
    while let Some(last) = name[..end].iter().rposition(u8::is_ascii_digit) {
        let digits = name[..=last]
            .iter()
            .rev()
            .take_while(|b| b.is_ascii_digit())
            .count();
        let at = last + 1 - digits;
        names.push(
            [
                &name[..at],
                vec![b'0'; digits].as_slice(),
                &name[last + 1..],
            ]
            .concat(),
        );
        names.push([&name[..at], b"0", &name[last + 1..]].concat());
        end = at;
    }
    let dot = name.iter().rposition(|&b| b == b'.').unwrap_or(name.len());
    if let [stem @ .., b'-', b'r' | b'b' | b'l' | b'g' | b'o'] = &name[..dot] {
        names.extend(["-m", "-s"].map(|ending| [stem, ending.as_bytes(), &name[dot..]].concat()));
    }
    let paths = names
        .iter()
        .map(|name| path.with_file_name(OsStr::from_bytes(name)));
    let mut first = paths.filter(|first| first != path);
    first.find(|first| is_first_member(first))
}

/// Returns the name under which a file of several members is shown; `None` if its name does not number members.
pub fn shown_name(path: &Path) -> Option<Vec<u8>> {
    let information = information(path, &File::open(path).ok()?).ok()??;
    let name = path.file_name()?.as_bytes();
    let (stem, suffix) = if information.is_family {
        let (at, width) = zeros(name).pop()?;
        (&name[..at], &name[at + width..])
    } else {
        let dot = name.iter().rposition(|&b| b == b'.').unwrap_or(name.len());
        let stem = name[..dot]
            .strip_suffix(b"-m")
            .or(name[..dot].strip_suffix(b"-s"))?;
        (stem, &name[dot..])
    };
    let stem = stem.trim_ascii_end();
    let marks = stem.iter().rev().take_while(|b| b"-_.".contains(b)).count();
    let stem = &stem[..stem.len() - marks];
    (!stem.is_empty()).then(|| [stem, suffix].concat())
}

/// Returns the runs of digits in a name that are all zeros, as positions and lengths.
fn zeros(name: &[u8]) -> Vec<(usize, usize)> {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < name.len() {
        let digits = name[at..].iter().take_while(|b| b.is_ascii_digit()).count();
        if digits > 0 && digits <= 18 && name[at..at + digits].iter().all(|&b| b == b'0') {
            runs.push((at, digits));
        }
        at += digits.max(1);
    }
    runs
}

/// Opens a member in the directory of the first one. A symbolic link must not lead out of the directory. `None` if
/// there is no such member.
fn open_member(dir: &Path, name: &[u8]) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let top = openat(
        CWD,
        dir,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let opened = match openat2(&top, name, flags, Mode::empty(), within) {
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {
            openat(&top, name, flags | OFlags::NOFOLLOW, Mode::empty())
        }
        opened => opened,
    };
    match opened {
        Ok(file) => Ok(Some(File::from(file))),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(rustix::io::Errno::XDEV | rustix::io::Errno::LOOP) => Err(damaged(format!(
            "{}: symbolic link that leads out of the directory of its file",
            String::from_utf8_lossy(name)
        ))),
        Err(e) => Err(e.into()),
    }
}

impl Members {
    /// Finds the members of the file at `path`; `None` if it is a single file.
    pub(super) fn find(path: &Path, file: &File) -> io::Result<Option<Self>> {
        let Some(information) = information(path, file)? else {
            return Ok(None);
        };
        let path = std::path::absolute(path)?;
        match information.is_family {
            true => Self::family(&path, file, &information).map(Some),
            false => Self::multi(&path, &information).map(Some),
        }
    }

    fn family(path: &Path, first: &File, information: &Information) -> io::Result<Self> {
        let size = word(&information.bytes, 0).filter(|&size| size > 0);
        let size = size.ok_or_else(|| damaged("a family whose members have no size"))?;
        let name = path.file_name().unwrap_or_default().as_bytes();
        let dir = path.parent().unwrap_or(Path::new("/"));
        let count = information.end.div_ceil(size).max(1);
        if count > MOST {
            return Err(damaged(format!(
                "a family of {count} members: more than {MOST}"
            )));
        }
        let first = Identity::from_metadata(&first.metadata()?);
        if first.size > size {
            let why = format!(
                "a member of {} bytes in a family of {size} each",
                first.size
            );
            return Err(damaged(why));
        }
        // Of several runs of zeros, the one that yields an existing second member, or else the last.
        let runs = zeros(name);
        let numbered = |&(at, width): &(usize, usize), number: u64| {
            let number = format!("{number:0width$}");
            [&name[..at], number.as_bytes(), &name[at + width..]].concat()
        };
        let leads_on = |run: &&(usize, usize)| {
            dir.join(OsStr::from_bytes(&numbered(run, 1)))
                .symlink_metadata()
                .is_ok()
        };
        let run = runs.iter().rev().find(leads_on).or(runs.last());
        let run =
            run.ok_or_else(|| damaged("a member of a family, and not the first by its name"))?;
        let (mut members, mut files) = (Vec::new(), Vec::new());
        for number in 0..count {
            let own = numbered(run, number);
            let flat = number * size;
            let wanted = (information.end - flat).min(size);
            let text = String::from_utf8_lossy(&own).into_owned();
            let file = open_member(dir, &own)?;
            let file = file.ok_or_else(|| damaged(format!("not there: {text}")))?;
            let path = dir.join(OsStr::from_bytes(&own));
            let file =
                StoreFile::from_file(&path, file).map_err(|e| damaged(format!("{text}: {e}")))?;
            let len = file.identity.size;
            if len < wanted || len > size {
                return Err(damaged(format!("{text} has {len} bytes of {wanted}")));
            }
            members.push(Member {
                path: path.as_os_str().as_bytes().to_vec(),
                inode: Some((file.identity.dev, file.identity.ino)),
                start: flat,
                flat,
                len,
                kind: None,
            });
            files.push(Some(file));
        }
        let (at, width) = *run;
        let prefix = dir.join(OsStr::from_bytes(&name[..at])).into_os_string();
        // Joining a path with an empty name makes it end in a slash.
        let prefix = prefix.as_bytes().to_vec();
        let layout = Layout {
            driver: Driver::Family {
                size,
                prefix,
                width,
                suffix: name[at + width..].to_vec(),
            },
            members,
        };
        Ok(Self {
            layout: Arc::new(layout),
            files,
        })
    }

    fn multi(path: &Path, information: &Information) -> io::Result<Self> {
        let wrong = || damaged("driver information that makes no sense");
        let bytes = &information.bytes;
        let mut map = [0; KINDS];
        map.copy_from_slice(bytes.get(..KINDS).ok_or_else(wrong)?);
        for (own, kind) in (1..).zip(&mut map) {
            if *kind == 0 {
                *kind = own;
            }
        }
        if map.iter().any(|&kind| usize::from(kind) > KINDS) {
            return Err(wrong());
        }
        let mut kinds: Vec<u8> = Vec::new();
        for kind in map {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        let mut at = 8;
        let mut places = Vec::new();
        for _ in &kinds {
            let place = word(bytes, at).zip(word(bytes, at + 8)).ok_or_else(wrong)?;
            places.push(place);
            at += 16;
        }
        let mut endings = Vec::new();
        for _ in &kinds {
            let text = bytes.get(at..).ok_or_else(wrong)?;
            let len = text.iter().position(|&b| b == 0).ok_or_else(wrong)?;
            let ending = text[..len].strip_prefix(b"%s").ok_or_else(wrong)?;
            // libhdf5 uses the suffix as a printf format.
            if ending.is_empty() || ending.iter().any(|b| b"%/".contains(b)) {
                return Err(wrong());
            }
            endings.push(ending.to_vec());
            at += (len + 1).next_multiple_of(8);
        }
        let name = path.file_name().unwrap_or_default().as_bytes();
        let dir = path.parent().unwrap_or(Path::new("/"));
        let first = kinds
            .iter()
            .position(|&kind| kind == map[0])
            .ok_or_else(wrong)?;
        let stem = name
            .strip_suffix(&*endings[first])
            .filter(|stem| !stem.is_empty());
        let stem = stem.ok_or_else(|| {
            let ending = String::from_utf8_lossy(&endings[first]).into_owned();
            damaged(format!("a part of a file that must be called ...{ending}"))
        })?;
        let (mut members, mut files, mut flat) = (Vec::new(), Vec::new(), 0_u64);
        for ((kind, (start, len)), ending) in kinds.iter().zip(places).zip(&endings) {
            let own = [stem, ending].concat();
            let path = dir.join(OsStr::from_bytes(&own));
            let file = open_member(dir, &own)?;
            let text = String::from_utf8_lossy(&own).into_owned();
            let file = file
                .map(|file| StoreFile::from_file(&path, file))
                .transpose()
                .map_err(|e| damaged(format!("{text}: {e}")))?;
            let has = file.as_ref().map_or(len, |file| file.identity.size);
            if has < len || len > 1 << 60 {
                let text = String::from_utf8_lossy(&own).into_owned();
                return Err(damaged(format!("{text} has {has} bytes of {len}")));
            }
            members.push(Member {
                path: path.as_os_str().as_bytes().to_vec(),
                inode: file
                    .as_ref()
                    .map(|file| (file.identity.dev, file.identity.ino)),
                start,
                flat,
                len: has,
                kind: Some((*kind, ending.clone())),
            });
            files.push(file);
            flat = flat
                .checked_add(has)
                .and_then(|end| end.checked_next_multiple_of(ALIGNMENT as u64))
                .ok_or_else(wrong)?;
        }
        let stem = dir.join(OsStr::from_bytes(stem));
        let stem = stem.as_os_str().as_bytes().to_vec();
        let layout = Layout {
            driver: Driver::Multi { map, stem },
            members,
        };
        Ok(Self {
            layout: Arc::new(layout),
            files,
        })
    }

    /// Opens the members of a known layout by their paths; `None` if other files are there now.
    pub fn reopen(layout: &Layout) -> io::Result<Option<Self>> {
        let mut files = Vec::new();
        for member in &layout.members {
            let Some(inode) = member.inode else {
                files.push(None);
                continue;
            };
            let path = Path::new(OsStr::from_bytes(&member.path));
            let file = StoreFile::from_file(path, File::open(path)?)?;
            if (file.identity.dev, file.identity.ino) != inode {
                return Ok(None);
            }
            files.push(Some(file));
        }
        Ok(Some(Self {
            layout: Arc::new(layout.clone()),
            files,
        }))
    }

    /// Returns the identity of all members together, in place of that of the first.
    pub(super) fn identity(&self, first: Identity) -> Identity {
        let mut hash = Xxh3::new();
        let mut identity = first;
        for file in &self.files {
            let own = file.as_ref().map(|file| file.identity);
            hash.update(&own.map_or(0, |own| own.number()).to_le_bytes());
            identity.mtime = identity.mtime.max(own.map_or(first.mtime, |own| own.mtime));
        }
        identity.size = self.layout.end();
        identity.ctime = (hash.digest().cast_signed(), 0);
        identity
    }

    /// Returns true if all paths still lead to these members.
    pub(super) fn are_current(&self) -> bool {
        let all = self.files.iter().zip(&self.layout.members);
        let mut all = all.map(|(file, member)| match file {
            Some(file) => file.is_current(),
            None => !Path::new(OsStr::from_bytes(&member.path)).exists(),
        });
        all.all(|is| is)
    }

    /// Returns true if none of the open members was written to.
    pub(super) fn are_unchanged(&self) -> bool {
        self.files.iter().flatten().all(StoreFile::is_unchanged)
    }

    /// Allows descriptors to be closed when others need them.
    pub(super) fn share(&self) {
        self.files.iter().flatten().for_each(StoreFile::share);
    }

    /// Fills `buf` from a flat address.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> Result<(), RawError> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset.saturating_add(done as u64);
            let found = self.layout.members.iter().position(|member| {
                member.flat <= at && at < member.flat.saturating_add(member.len)
            });
            let outside = |path: PathBuf| RawError::Outside {
                path,
                offset: at,
                end: offset.saturating_add(buf.len() as u64),
            };
            let Some(found) = found else {
                let first = self.layout.members.first();
                return Err(outside(first.map(path_of).unwrap_or_default()));
            };
            let member = &self.layout.members[found];
            let Some(file) = self.files.get(found).and_then(Option::as_ref) else {
                return Err(RawError::Missing(path_of(member)));
            };
            let from = at - member.flat;
            let left = usize::try_from(member.len - from).unwrap_or(usize::MAX);
            let n = left.min(buf.len() - done);
            file.read_exact_at(&mut buf[done..done + n], from)?;
            done += n;
        }
        Ok(())
    }
}

/// Returns the path of a member.
pub fn path_of(member: &Member) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(&member.path))
}

/// Returns the 8-byte number at an offset.
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// Returns the driver information of a file; `None` if it needs no driver.
fn information(path: &Path, file: &File) -> io::Result<Option<Information>> {
    const NONE: u64 = u64::MAX;
    // Behind a user block, addresses are relative to its end.
    let Some(0) = signature(file)? else {
        return Ok(None);
    };
    let head = read_near(file, 0)?;
    let version = head.get(8).copied().unwrap_or(u8::MAX);
    // Files whose offsets are not 8 bytes are left to libhdf5.
    let (size, end, block) = match version {
        0 | 1 => {
            let more = usize::from(version) * 4;
            (head.get(13), word(&head, 40 + more), word(&head, 48 + more))
        }
        2 | 3 => (head.get(9), word(&head, 28), word(&head, 20)),
        _ => return Ok(None),
    };
    let (Some(8), Some(end), Some(block)) = (size, end, block) else {
        return Ok(None);
    };
    if block == NONE {
        return Ok(None);
    }
    let block = match block < file.metadata()?.len() {
        true => read_near(file, block)?,
        false => match apart(path, block)? {
            Some(block) => block,
            None => return Ok(None),
        },
    };
    let (name, bytes) = match version {
        // Version, reserved bytes and size come first.
        0 | 1 => (block.get(8..16), block.get(16..)),
        _ => match driver_message(&block) {
            Some(message) => (message.get(1..9), message.get(11..)),
            None => return Ok(None),
        },
    };
    let is_family = match name {
        Some(b"NCSAfami") => true,
        Some(b"NCSAmult") => false,
        _ => return Ok(None),
    };
    Ok(Some(Information {
        is_family,
        bytes: bytes.unwrap_or_default().to_vec(),
        end,
    }))
}

/// Reads the bytes at an address of a file.
fn read_near(file: &File, at: u64) -> io::Result<Vec<u8>> {
    let mut buf = vec![0; NEAR];
    let mut have = 0;
    while have < buf.len() {
        match file.read_at(&mut buf[have..], at.saturating_add(have as u64))? {
            0 => break,
            n => have += n,
        }
    }
    buf.truncate(have);
    Ok(buf)
}

/// Reads a superblock extension that `multi` stores in another member, whose name is not known yet. Assumes the
/// driver's default map and names (`H5FDmulti.c`).
fn apart(path: &Path, at: u64) -> io::Result<Option<Vec<u8>>> {
    const LETTERS: &[u8; KINDS] = b"sbrglo";
    const SPAN: u64 = (u64::MAX - 1) / KINDS as u64;
    let name = path.file_name().unwrap_or_default().as_bytes();
    let dot = name.iter().rposition(|&b| b == b'.').unwrap_or(name.len());
    let letter = usize::try_from(at / SPAN)
        .ok()
        .and_then(|kind| LETTERS.get(kind));
    let Some((stem, letter)) = name[..dot].strip_suffix(b"-s").zip(letter) else {
        return Ok(None);
    };
    let own = [stem, &[b'-', *letter], &name[dot..]].concat();
    let path = std::path::absolute(path)?;
    match open_member(path.parent().unwrap_or(Path::new("/")), &own)? {
        Some(file) if file.metadata()?.is_file() => read_near(&file, at % SPAN).map(Some),
        _ => Ok(None),
    }
}

/// Returns the driver information message in the first chunk of the superblock extension, an object header of version
/// 2.
fn driver_message(header: &[u8]) -> Option<&[u8]> {
    const DRIVER: u8 = 0x14;
    let flags = *header.strip_prefix(b"OHDR\x02")?.first()?;
    let times = if flags & 0x20 != 0 { 16 } else { 0 };
    let limits = if flags & 0x10 != 0 { 4 } else { 0 };
    let order = if flags & 0x04 != 0 { 2 } else { 0 };
    let mut at = 6 + times + limits + (1 << (flags & 3));
    loop {
        let kind = *header.get(at)?;
        let size = u16::from_le_bytes([*header.get(at + 1)?, *header.get(at + 2)?]);
        let from = at + 4 + order;
        let message = header.get(from..from + usize::from(size))?;
        if kind == DRIVER {
            return Some(message);
        }
        at = from + usize::from(size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(start: u64, flat: u64, len: u64) -> Member {
        Member {
            path: b"/x".to_vec(),
            inode: None,
            start,
            flat,
            len,
            kind: None,
        }
    }

    #[test]
    fn members_of_multi_lie_one_behind_the_other() {
        let driver = Driver::Multi {
            map: [1, 1, 3, 3, 1, 1],
            stem: b"/x".to_vec(),
        };
        let far = u64::MAX / 2;
        let members = vec![member(0, 0, 100), member(far, 4096, 50)];
        let layout = Layout { driver, members };
        assert_eq!(layout.flat(20, 80), Some(20));
        assert_eq!(layout.flat(far + 10, 40), Some(4106));
        for (addr, len) in [(20, 81), (100, 1), (far - 1, 1), (far, 51), (u64::MAX, 2)] {
            assert_eq!(layout.flat(addr, len), None, "{addr} {len}");
        }
        assert_eq!(layout.end(), 4146);
    }

    #[test]
    fn zeros_in_names() {
        assert_eq!(zeros(b"run0-00000.h5"), [(3, 1), (5, 5)]);
        assert_eq!(zeros(b"x-00010.h5"), []);
        assert_eq!(zeros(b"no.h5"), []);
    }

    #[test]
    fn driver_information_in_an_object_header() {
        let mut header = b"OHDR\x02\x04\x20".to_vec();
        header.extend(b"\x01\x02\x00\x00\x00\x00ab");
        header.extend(b"\x14\x03\x00\x00\x00\x00xyz");
        assert_eq!(driver_message(&header), Some(b"xyz".as_slice()));
        assert_eq!(driver_message(&header[..header.len() - 1]), None);
        assert_eq!(driver_message(b"OHDR\x02"), None);
        assert_eq!(driver_message(b"OHDR\x01\x00"), None);
    }
}
