//! The bytes of a version that were fetched, wherever they are kept.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, RwLock};

use super::super::address::Address;
use super::super::blocks::{BLOCK, Blocks, bytes_of, touched};
use super::super::disk::DiskFile;
use super::super::error::{Cause, RemoteError};
use super::super::origin::Version;
use super::{key, lock};
use crate::options::RemoteSettings;

/// Bytes that are held where there is no room on disk.
const IN_MEMORY: u64 = 64 << 20;

/// Where blocks are kept.
struct Place {
    file: DiskFile,
    /// Bytes that may be kept.
    most: u64,
    in_memory: bool,
}

/// The blocks of a version that were fetched.
pub(super) struct KeptBytes {
    size: u64,
    /// Read by readers of blocks that are there, written when some are taken away.
    place: RwLock<Place>,
    there: Blocks,
    /// What was fetched, in order, and the bytes of it.
    fetched: Mutex<(VecDeque<Range<u64>>, u64)>,
}

impl KeptBytes {
    /// Opens the files that the bytes are kept in: on disk, or in memory if that is wanted or there is no way.
    pub(super) fn open(
        address: &Address,
        version: &Version,
        settings: &RemoteSettings,
        notes: &mut Vec<String>,
    ) -> Result<Self, RemoteError> {
        let about = address.to_string();
        let there = Blocks::new(version.size).ok_or_else(|| {
            let why = "larger than can be kept track of";
            RemoteError::new(Cause::Unsupported, &about, why)
        })?;
        let place = place(address, version, settings, notes)
            .map_err(|e| RemoteError::new(Cause::Failed, &about, e))?;
        Ok(Self {
            size: version.size,
            place: RwLock::new(place),
            there,
            fetched: Mutex::default(),
        })
    }

    /// Returns true if a block was fetched by this process, or found on disk before.
    pub(super) fn has(&self, block: u64) -> bool {
        self.there.has(block)
    }

    /// Returns true if a block is there, of this process or of an earlier one.
    pub(super) fn finds(&self, block: u64) -> bool {
        if self.there.has(block) {
            return true;
        }
        let place = self.place.read().unwrap_or_else(|e| e.into_inner());
        let inherited = place.file.inherits(block);
        if inherited {
            self.there.add(block);
        }
        inherited
    }

    /// Fills `buf` from `offset`; `None` if a block of it is not there.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> Option<io::Result<()>> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        let place = self.place.read().unwrap_or_else(|e| e.into_inner());
        let there = touched(&range).all(|block| self.there.has(block));
        there.then(|| place.file.read(buf, offset))
    }

    /// Keeps the whole blocks among bytes that begin at `start`. Returns a remark if the disk is given up.
    pub(super) fn add(&self, start: u64, bytes: &[u8]) -> Option<String> {
        let end = start.saturating_add(bytes.len() as u64);
        // Whole blocks, or up to the end.
        let first = start.div_ceil(BLOCK);
        let last = match end >= self.size {
            true => end.div_ceil(BLOCK),
            false => end / BLOCK,
        };
        let range = bytes_of(&(first..last), self.size);
        let from = usize::try_from(range.start.saturating_sub(start)).unwrap_or(usize::MAX);
        let to = usize::try_from(range.end.saturating_sub(start)).unwrap_or(0);
        let bytes = bytes.get(from..to)?;
        self.make_room(bytes.len() as u64);
        let write = || {
            let place = self.place.read().unwrap_or_else(|e| e.into_inner());
            place.file.write(range.start, bytes)
        };
        let mut note = None;
        let mut written = write();
        if let Err(e) = &written {
            note = self.go_to_memory(e);
            if note.is_some() {
                written = write();
            }
        }
        if written.is_ok() {
            for block in first..last {
                self.there.add(block);
            }
            let mut fetched = lock(&self.fetched);
            fetched.0.push_back(first..last);
            fetched.1 = fetched.1.saturating_add(bytes.len() as u64);
        }
        note
    }

    /// Takes away what was fetched first, until there is room for some bytes more.
    fn make_room(&self, more: u64) {
        let mut fetched = lock(&self.fetched);
        let most = self.place.read().unwrap_or_else(|e| e.into_inner()).most;
        if fetched.1.saturating_add(more) <= most {
            return;
        }
        let place = self.place.write().unwrap_or_else(|e| e.into_inner());
        while fetched.1.saturating_add(more) > most {
            let Some(blocks) = fetched.0.pop_front() else {
                break;
            };
            for block in blocks.clone() {
                self.there.remove(block);
            }
            let range = bytes_of(&blocks, self.size);
            fetched.1 = fetched.1.saturating_sub(range.end - range.start);
            // Room that is not given back is what is lost by it.
            let _ = place.file.punch(&blocks);
        }
    }

    /// Goes on without the disk, which is full or broken, and returns a remark; `None` if there is no way.
    fn go_to_memory(&self, why: &io::Error) -> Option<String> {
        let mut place = self.place.write().unwrap_or_else(|e| e.into_inner());
        if place.in_memory {
            return None;
        }
        let file = DiskFile::in_memory(self.size).ok()?;
        *place = Place {
            file,
            most: IN_MEMORY,
            in_memory: true,
        };
        self.there.clear();
        *lock(&self.fetched) = (VecDeque::new(), 0);
        Some(format!("nothing more is kept on disk: {why}"))
    }
}

/// Opens the place that a version's bytes are kept in.
fn place(
    address: &Address,
    version: &Version,
    settings: &RemoteSettings,
    notes: &mut Vec<String>,
) -> io::Result<Place> {
    if settings.disk_cache > 0
        && let Some(dir) = directory(settings)
    {
        match DiskFile::open(&dir, &key::of(address, version, settings), version.size) {
            Ok(file) => {
                return Ok(Place {
                    file,
                    most: settings.disk_cache,
                    in_memory: false,
                });
            }
            Err(e) => notes.push(format!("nothing is kept in {}: {e}", dir.display())),
        }
    }
    Ok(Place {
        file: DiskFile::in_memory(version.size)?,
        most: IN_MEMORY,
        in_memory: true,
    })
}

/// Returns the directory in which bytes are kept; `None` for a user without a home.
fn directory(settings: &RemoteSettings) -> Option<PathBuf> {
    let user = || {
        let cache = std::env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty());
        let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
        let cache = cache.map_or_else(home, |dir| Some(dir.into()))?;
        Some(cache.join("npyfs"))
    };
    Some(settings.cache_dir.clone().or_else(user)?.join("objects"))
}
