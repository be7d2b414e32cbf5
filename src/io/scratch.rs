//! A scratch file: bytes that a program is writing, before anybody knows what they will be.
//!
//! A short one is in memory, as long as there is room for it. A longer one has no name, so that nothing is left of
//! it when the process dies, and it is sparse: what was never written takes no space and reads as zeros. Before its
//! first byte there is room, and it may be given a name: so a large array is written once, and what HDF5 needs is put
//! around it. A scratch file that was given away stays as it is: whoever changes it then changes a copy.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};

use super::storage::Storage;
use crate::error::{Error, ErrorKind, Result};
use crate::io::content::Content;
use crate::io::dir::Dir;

/// Bytes of the file before the first one of the content. The payload of most arrays, which begins at 128, is at
/// a multiple of the size of a page then.
pub const ROOM: u64 = (64 << 10) - 128;

/// Bytes from which on an array is large: its scratch file becomes the new file.
pub const LARGE: u64 = 1 << 20;

/// Bytes that are copied at a time.
const BLOCK: usize = 1 << 20;

/// Most bytes of one that is in memory, and of all of them. What is longer may be given away.
const SHORT: u64 = LARGE - 1;
const MOST_IN_MEMORY: u64 = 16 << 20;

/// The bytes that all scratch files in memory take.
static IN_MEMORY: AtomicU64 = AtomicU64::new(0);

/// Bytes under construction, on the disk of the layer. All methods may be called from any thread.
pub struct Scratch {
    dir: Dir,
    storage: Arc<dyn Storage>,
    backing: RwLock<ScratchPlace>,
}

/// The place of the bytes: in memory, or in a file.
enum ScratchPlace {
    Memory(Short),
    Disk(Unnamed),
}

/// Bytes in memory.
#[derive(Default)]
struct Short {
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
    /// Creates an empty scratch file; if it needs a disk, the one that `dir` is on.
    pub fn new(dir: &Dir, storage: Arc<dyn Storage>) -> Self {
        Self {
            dir: dir.clone(),
            storage,
            backing: RwLock::new(ScratchPlace::Memory(Short::default())),
        }
    }

    /// Creates a scratch file that has the content of a file that was given away, and leaves that as it is.
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

    fn backing(&self) -> RwLockReadGuard<'_, ScratchPlace> {
        self.backing.read().unwrap_or_else(|e| e.into_inner())
    }

    fn backing_mut(&self) -> RwLockWriteGuard<'_, ScratchPlace> {
        self.backing.write().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns the number of bytes of the content.
    pub fn len(&self) -> io::Result<u64> {
        self.backing().len()
    }

    /// Writes all of `bytes` at `offset`; what lies between the end and `offset` reads as zeros.
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

    /// Sets the length of the content: cuts it off, or adds zeros.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        let end = place(len)?;
        match self.change_short(|_| len, |_| {}) {
            true => Ok(()),
            false => self.change(|file| self.storage.set_len(file, end)),
        }
    }

    /// Makes room, or a hole, as fallocate(2) does with these flags.
    pub fn allocate(&self, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        let flags = u32::try_from(mode).map_err(|_| io::ErrorKind::InvalidInput)?;
        let flags = FallocateFlags::from_bits_retain(flags);
        let at = place(offset)?;
        self.change(|file| Ok(fallocate(file, flags, at, len)?))
    }

    /// Makes one change of the bytes in memory, after which they are `len` of their number before; `false` if they
    /// are not there, or too many.
    fn change_short(&self, len: impl FnOnce(u64) -> u64, act: impl FnOnce(&mut [u8])) -> bool {
        if matches!(*self.backing(), ScratchPlace::Disk(_)) {
            return false;
        }
        let ScratchPlace::Memory(short) = &mut *self.backing_mut() else {
            return false;
        };
        let fits = short.resize(len(short.bytes.len() as u64));
        if fits {
            act(&mut short.bytes);
        }
        fits
    }

    /// Makes one change of the file, of a copy if it was given away.
    fn change(&self, act: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        loop {
            if let ScratchPlace::Disk(unnamed) = &*self.backing()
                && unnamed.given.is_none()
            {
                return act(&unnamed.file);
            }
            let mut backing = self.backing_mut();
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

    /// Gives the file away: `act` puts its name and the rest around the content. If it answers `false`, or fails,
    /// nothing was given, and it must have left the content as it was.
    pub fn give(&self, act: impl FnOnce(&File) -> Result<bool>) -> Result<Option<File>> {
        let mut backing = self.backing_mut();
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

    /// Reads as much as there is from `offset`, at most all of `buf`; returns the number of bytes.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match &*self.backing() {
            ScratchPlace::Memory(short) => Ok(short.read_at(buf, offset)),
            ScratchPlace::Disk(unnamed) => unnamed.read_at(buf, offset),
        }
    }

    /// Returns the next bytes from `from` on that were written; `None` if there are only holes.
    pub fn written(&self, from: u64) -> io::Result<Option<Range<u64>>> {
        match &*self.backing() {
            ScratchPlace::Memory(short) => {
                let end = short.bytes.len() as u64;
                Ok((from < end).then_some(from..end))
            }
            ScratchPlace::Disk(unnamed) => unnamed.written(from),
        }
    }
}

/// Returns the offset in the file of a byte of the content.
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

impl Short {
    /// Cuts them off, or adds zeros; `false` if there is no room for so many.
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

    /// Copies the content into a file without a name.
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

impl Drop for Short {
    fn drop(&mut self) {
        IN_MEMORY.fetch_sub(self.counted, Relaxed);
    }
}

impl Unnamed {
    fn new(dir: &Dir) -> io::Result<Self> {
        let file = dir.unnamed()?;
        Ok(Self { file, given: None })
    }

    /// Copies the content into another file without a name.
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
            // What is behind it is not its own.
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
        // The position of the descriptor moves, but nothing here reads or writes at it.
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
    use super::super::storage::Disk;
    use super::*;

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
        // A file system may know no holes: then all of it counts as written.
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
        let in_memory = |s: &Scratch| matches!(*s.backing(), ScratchPlace::Memory(_));
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
        // Past what may be in memory, and past any file.
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
        assert!(scratch.give(|_| Ok(true)).unwrap().is_none());
        scratch.set_len(LARGE).unwrap();
        scratch.set_len(6).unwrap();
        assert!(scratch.give(|_| Ok(false)).unwrap().is_none());
        let around = |file: &File| {
            Disk.write_at(file, b"head", 0)?;
            Disk.write_at(file, b"tail", ROOM + 6)?;
            Ok(true)
        };
        let given = scratch.give(around).unwrap().unwrap();
        assert!(scratch.give(|_| Ok(true)).unwrap().is_none());
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
