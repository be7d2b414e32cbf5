//! A scratch file: bytes that a program is writing and whose meaning is not known yet.
//!
//! A short scratch file is in memory, while there is room. A longer one is an unnamed file, so that nothing remains
//! when the process dies, and it is sparse: bytes that were never written take no space and read as zeros. The file has
//! room in front of the content and can be given a name. So a large array is written once, and HDF5's structures are
//! put around it. A scratch file that was given away does not change any more: a later write changes a copy.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::RwLock;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};

use crate::content::Content;
use crate::dir::Dir;
use crate::storage::Storage;
use npyfs_base::error::{Error, ErrorKind, Result};

/// Bytes of the file in front of the content. The payload of most arrays begins at 128; with this offset it is aligned
/// to a page.
pub const ROOM: u64 = (64 << 10) - 128;

/// The size of a large array in bytes. Its scratch file becomes the new file.
pub const LARGE: u64 = 1 << 20;

/// Bytes that are copied at once.
const BLOCK: usize = 1 << 20;

/// The most bytes of one scratch file in memory, and of all of them. A longer one may be given away.
const SHORT: u64 = LARGE - 1;
const MOST_IN_MEMORY: u64 = 16 << 20;

/// The bytes of all scratch files in memory.
static IN_MEMORY: AtomicU64 = AtomicU64::new(0);

/// Bytes being written, on the disk of the layer. All methods may be called from any thread.
pub struct Scratch {
    dir: Dir,
    storage: Arc<dyn Storage>,
    backing: RwLock<ScratchPlace>,
}

/// The place of the bytes: in memory, or in a file.
enum ScratchPlace {
    Memory(ShortContent),
    Disk(Unnamed),
}

/// Bytes in memory.
#[derive(Default)]
struct ShortContent {
    bytes: Vec<u8>,
    /// Their share of `IN_MEMORY`.
    counted: u64,
}

/// A file without a name.
struct Unnamed {
    file: File,
    /// The length of the content when the file was given away.
    given: Option<u64>,
}

impl Scratch {
    /// Creates an empty scratch file. If it needs a disk, it uses the disk of `dir`.
    pub fn new(dir: &Dir, storage: Arc<dyn Storage>) -> Self {
        Self {
            dir: dir.clone(),
            storage,
            backing: RwLock::new(ScratchPlace::Memory(ShortContent::default())),
        }
    }

    /// Creates a scratch file with the content of a file that was given away, which stays as it is.
    pub fn open(dir: &Dir, name: &str, storage: Arc<dyn Storage>) -> Result<Self> {
        let file = dir.read(name)?;
        let len = file.metadata()?.len().checked_sub(ROOM);
        let cut_off = || Error::damaged("cut off").about(dir.path().join(name).display());
        let given = Some(len.ok_or_else(cut_off)?);
        Ok(Self {
            dir: dir.clone(),
            storage,
            backing: RwLock::new(ScratchPlace::Disk(Unnamed { file, given })),
        })
    }

    /// Returns the length of the content in bytes.
    pub fn len(&self) -> io::Result<u64> {
        self.backing.read().len()
    }

    /// Writes all of `bytes` at `offset`; a gap between the end and `offset` reads as zeros.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let at = place(offset)?;
        let end = offset.saturating_add(bytes.len() as u64);
        let written = self.change_short(
            |len| len.max(end),
            |all| {
                let place = usize::try_from(offset)
                    .ok()
                    .and_then(|at| all.get_mut(at..));
                let place = place.and_then(|place| place.get_mut(..bytes.len()));
                place.unwrap_or_default().copy_from_slice(bytes);
            },
        );
        match written {
            true => Ok(()),
            false => self.change(|file| self.storage.write_at(file, bytes, at)),
        }
    }

    /// Sets the length of the content: truncates it, or appends zeros.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        let end = place(len)?;
        match self.change_short(|_| len, |_| {}) {
            true => Ok(()),
            false => self.change(|file| self.storage.set_len(file, end)),
        }
    }

    /// Allocates space or punches a hole, as fallocate(2) does with these flags.
    pub fn allocate(&self, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        let flags = u32::try_from(mode).map_err(|_| io::ErrorKind::InvalidInput)?;
        let flags = FallocateFlags::from_bits_retain(flags);
        let at = place(offset)?;
        self.change(|file| Ok(fallocate(file, flags, at, len)?))
    }

    /// Changes the bytes in memory, whose new length `len` computes from the old one; false if they are in a file, or
    /// would be too many.
    fn change_short(&self, len: impl FnOnce(u64) -> u64, act: impl FnOnce(&mut [u8])) -> bool {
        if matches!(*self.backing.read(), ScratchPlace::Disk(_)) {
            return false;
        }
        let ScratchPlace::Memory(short) = &mut *self.backing.write() else {
            return false;
        };
        let fits = short.resize(len(short.bytes.len() as u64));
        if fits {
            act(&mut short.bytes);
        }
        fits
    }

    /// Changes the file, or a copy of it if the file was given away.
    fn change(&self, act: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        loop {
            if let ScratchPlace::Disk(unnamed) = &*self.backing.read()
                && unnamed.given.is_none()
            {
                return act(&unnamed.file);
            }
            let mut backing = self.backing.write();
            let copy = match &*backing {
                ScratchPlace::Memory(short) => short.copy(&self.dir, &*self.storage)?,
                ScratchPlace::Disk(unnamed) if unnamed.given.is_some() => {
                    unnamed.copy(&self.dir, &*self.storage)?
                }
                ScratchPlace::Disk(_) => continue,
            };
            *backing = ScratchPlace::Disk(copy);
        }
    }

    /// Gives the file away: `act` names it and writes what surrounds the content. If `act` returns `false` or fails,
    /// the file is not given away; `act` must then have left the content unchanged.
    pub fn hand_over(&self, act: impl FnOnce(&File) -> Result<bool>) -> Result<Option<File>> {
        let mut backing = self.backing.write();
        let len = backing.len()?;
        let ScratchPlace::Disk(unnamed) = &mut *backing else {
            return Ok(None);
        };
        if unnamed.given.is_some() || !act(&unnamed.file)? {
            return Ok(None);
        }
        let file = unnamed.file.try_clone()?;
        unnamed.given = Some(len);
        Ok(Some(file))
    }

    /// Reads the bytes from `offset`, at most `buf.len()` of them; returns their number.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match &*self.backing.read() {
            ScratchPlace::Memory(short) => Ok(short.read_at(buf, offset)),
            ScratchPlace::Disk(unnamed) => unnamed.read_at(buf, offset),
        }
    }

    /// Returns the next range at or after `from` that was written; `None` if only holes follow.
    pub fn written(&self, from: u64) -> io::Result<Option<Range<u64>>> {
        match &*self.backing.read() {
            ScratchPlace::Memory(short) => {
                let end = short.bytes.len() as u64;
                Ok((from < end).then_some(from..end))
            }
            ScratchPlace::Disk(unnamed) => unnamed.written(from),
        }
    }
}

/// Returns the file offset of a byte of the content.
fn place(offset: u64) -> io::Result<u64> {
    let too_large = || io::Error::from_raw_os_error(libc::EFBIG);
    offset.checked_add(ROOM).ok_or_else(too_large)
}

impl ScratchPlace {
    fn len(&self) -> io::Result<u64> {
        match self {
            Self::Memory(short) => Ok(short.bytes.len() as u64),
            Self::Disk(unnamed) => unnamed.len(),
        }
    }
}

impl ShortContent {
    /// Truncates the bytes, or appends zeros; false if there is no room for so many.
    fn resize(&mut self, len: u64) -> bool {
        let Ok(bytes) = usize::try_from(len) else {
            return false;
        };
        let others = |all: u64| all - self.counted;
        let more =
            |all: u64| Some(others(all) + len).filter(|&n| len <= SHORT && n <= MOST_IN_MEMORY);
        if IN_MEMORY.fetch_update(Relaxed, Relaxed, more).is_err() {
            return false;
        }
        self.counted = len;
        self.bytes.resize(bytes, 0);
        true
    }

    /// Copies the content into an unnamed file.
    fn copy(&self, dir: &Dir, storage: &dyn Storage) -> io::Result<Unnamed> {
        let copy = Unnamed::new(dir)?;
        storage.write_at(&copy.file, &self.bytes, ROOM)?;
        Ok(copy)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> usize {
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let there = self.bytes.get(at..).unwrap_or_default();
        let size = there.len().min(buf.len());
        let (place, there) = (buf.get_mut(..size), there.get(..size));
        place
            .unwrap_or_default()
            .copy_from_slice(there.unwrap_or_default());
        size
    }
}

impl Drop for ShortContent {
    fn drop(&mut self) {
        IN_MEMORY.fetch_sub(self.counted, Relaxed);
    }
}

impl Unnamed {
    fn new(dir: &Dir) -> io::Result<Self> {
        let file = dir.unnamed()?;
        Ok(Self { file, given: None })
    }

    /// Copies the content into another unnamed file.
    fn copy(&self, dir: &Dir, storage: &dyn Storage) -> io::Result<Self> {
        let copy = Self::new(dir)?;
        let mut block = vec![0; BLOCK];
        let mut at = 0;
        while let Some(range) = self.written(at)? {
            at = range.start.max(at);
            while at < range.end {
                let size = usize::try_from(range.end - at).unwrap_or(BLOCK).min(BLOCK);
                let part = block.get_mut(..size).unwrap_or_default();
                self.read_at(part, at)?;
                storage.write_at(&copy.file, part, place(at)?)?;
                at += size as u64;
            }
        }
        storage.set_len(&copy.file, place(self.len()?)?)?;
        Ok(copy)
    }

    fn len(&self) -> io::Result<u64> {
        match self.given {
            Some(len) => Ok(len),
            None => Ok(self.file.metadata()?.len().saturating_sub(ROOM)),
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let wanted = match self.given {
            // The bytes after the content belong to what surrounds it.
            Some(len) => usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX),
            None => usize::MAX,
        };
        let end = wanted.min(buf.len());
        let buf = buf.get_mut(..end).unwrap_or_default();
        let offset = place(offset)?;
        let mut have = 0;
        while let Some(rest) = buf.get_mut(have..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, offset.saturating_add(have as u64)) {
                Ok(0) => break,
                Ok(n) => have += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(have)
    }

    fn written(&self, from: u64) -> io::Result<Option<Range<u64>>> {
        let len = self.len()?;
        // This moves the descriptor's position, but no read or write here uses the position.
        let start = match seek(&self.file, SeekFrom::Data(place(from)?)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let end = seek(&self.file, SeekFrom::Hole(start))?;
        let range = start.saturating_sub(ROOM)..end.saturating_sub(ROOM).min(len);
        Ok((!range.is_empty()).then_some(range))
    }
}

impl Content for Scratch {
    fn len(&self) -> u64 {
        Self::len(self).unwrap_or(0)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let have = Self::read_at(self, buf, offset)?;
        if have < buf.len() {
            return Err(Error::new(ErrorKind::Stale, "it was cut off meanwhile"));
        }
        Ok(())
    }

    fn written(&self, from: u64) -> Result<Option<Range<u64>>> {
        Ok(Self::written(self, from)?)
    }

    fn scratch(&self) -> Option<(&Scratch, u64)> {
        Some((self, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Disk;

    #[test]
    fn holes_read_as_zeros_and_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(&Dir::own(dir.path()), Arc::new(Disk));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(scratch.len().unwrap(), 0);
        scratch.write_at(b"abc", 0).unwrap();
        scratch.set_len(8 << 20).unwrap();
        scratch.write_at(b"xyz", 4 << 20).unwrap();
        let mut buf = [9; 5];
        assert_eq!(scratch.read_at(&mut buf, (4 << 20) - 1).unwrap(), 5);
        assert_eq!(&buf, b"\0xyz\0");
        assert_eq!(scratch.read_at(&mut buf, (8 << 20) - 2).unwrap(), 2);
        let mut seen = Vec::new();
        let mut at = 0;
        while let Some(range) = scratch.written(at).unwrap() {
            at = range.end;
            seen.push(range);
        }
        // A file system without holes reports all bytes as written.
        let holds = |n: u64| seen.iter().any(|range| range.contains(&n));
        assert!(holds(0) && holds(4 << 20), "{seen:?}");
        scratch.set_len(2).unwrap();
        assert_eq!(scratch.read_at(&mut buf, 0).unwrap(), 2);
        assert_eq!(&buf[..2], b"ab");
    }

    #[test]
    fn what_is_in_memory_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let new = || Scratch::new(&Dir::own(dir.path()), Arc::new(Disk));
        let in_memory = |s: &Scratch| matches!(*s.backing.read(), ScratchPlace::Memory(_));
        let all: Vec<Scratch> = (0..MOST_IN_MEMORY / SHORT + 3).map(|_| new()).collect();
        for (number, scratch) in (0..).zip(&all) {
            scratch.write_at(&[number], SHORT - 1).unwrap();
        }
        assert!(all.iter().any(in_memory) && !all.iter().all(in_memory));
        for (number, scratch) in (0..).zip(&all) {
            let mut end = [9; 3];
            assert_eq!(scratch.read_at(&mut end, SHORT - 2).unwrap(), 2);
            assert_eq!(end, [0, number, 9]);
        }
        drop(all);
        let scratch = new();
        scratch.write_at(b"abc", 2).unwrap();
        assert_eq!(scratch.written(1).unwrap(), Some(1..5));
        assert_eq!(scratch.written(5).unwrap(), None);
        // Past the limit of memory, and past the largest file.
        scratch.write_at(b"d", SHORT).unwrap();
        assert!(!in_memory(&scratch) && scratch.write_at(b"d", u64::MAX - 1).is_err());
        let mut start = [9; 6];
        assert_eq!(scratch.read_at(&mut start, 0).unwrap(), 6);
        assert_eq!((&start, scratch.len().unwrap()), (b"\0\0abc\0", LARGE));
    }

    #[test]
    fn what_was_given_away_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(&Dir::own(dir.path()), Arc::new(Disk));
        scratch.write_at(b"abcdef", 0).unwrap();
        // There is no file yet.
        assert!(scratch.hand_over(|_| Ok(true)).unwrap().is_none());
        scratch.set_len(LARGE).unwrap();
        scratch.set_len(6).unwrap();
        assert!(scratch.hand_over(|_| Ok(false)).unwrap().is_none());
        let around = |file: &File| {
            Disk.write_at(file, b"head", 0)?;
            Disk.write_at(file, b"tail", ROOM + 6)?;
            Ok(true)
        };
        let given = scratch.hand_over(around).unwrap().unwrap();
        assert!(scratch.hand_over(|_| Ok(true)).unwrap().is_none());
        let mut buf = [0; 9];
        assert_eq!(scratch.read_at(&mut buf, 2).unwrap(), 4);
        assert_eq!(&buf[..4], b"cdef");
        assert_eq!(scratch.len().unwrap(), 6);
        scratch.write_at(b"X", 1).unwrap();
        scratch.set_len(7).unwrap();
        assert_eq!(scratch.read_at(&mut buf, 0).unwrap(), 7);
        assert_eq!(&buf[..7], b"aXcdef\0");
        let mut all = vec![0; ROOM as usize + 10];
        given.read_exact_at(&mut all, 0).unwrap();
        assert_eq!(&all[..4], b"head");
        assert_eq!(&all[ROOM as usize..], b"abcdeftail");
        assert_eq!(given.metadata().unwrap().len(), ROOM + 10);
    }
}
