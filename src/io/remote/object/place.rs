//! The places that the blocks of a version are kept in: a file on disk, or one in memory.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::json;

use super::super::address::Address;
use super::super::cache_dir::{CacheDir, cache_path};
use super::super::disk::{DiskFile, settled};
use super::super::origin::Version;
use super::key;
use crate::options::RemoteSettings;

/// Bytes that are held where there is no room on disk.
const IN_MEMORY: u64 = 64 << 20;

/// Where blocks are kept.
pub(super) struct Place {
    pub(super) file: DiskFile,
    /// The directory of the file, and its key there; `None`: it is in memory.
    pub(super) dir: Option<(Arc<CacheDir>, String)>,
    /// Bytes that may be kept: of all versions on disk, or of this one in memory.
    pub(super) most: u64,
    /// The generation of the file under which blocks were checked.
    pub(super) generation: u64,
}

impl Place {
    /// A place in memory, with nothing in it.
    pub(super) fn in_memory(size: u64) -> io::Result<Self> {
        let file = DiskFile::in_memory(size)?;
        // Never one that the blocks of another place were checked under.
        file.settle()?;
        Ok(Self {
            generation: file.generation()?,
            file,
            dir: None,
            most: IN_MEMORY,
        })
    }

    /// Returns the generation of the file as it is now.
    pub(super) fn now(&self) -> io::Result<u64> {
        match self.dir {
            Some(_) => self.file.generation(),
            None => Ok(self.generation),
        }
    }

    /// Returns true if blocks that were checked under the present generation need not be checked once more.
    pub(super) fn is_trusted(&self, generation: u64) -> bool {
        let wary = self.dir.as_ref().is_some_and(|(dir, _)| dir.is_wary());
        generation == self.generation && settled(generation) && !wary
    }

    /// Opens the file of a version on disk; `None` if that is not wanted.
    pub(super) fn on_disk(
        address: &Address,
        version: &Version,
        settings: &RemoteSettings,
    ) -> Result<Option<Self>, String> {
        if settings.disk_cache == 0 {
            return Ok(None);
        }
        let Some(path) = cache_path(settings) else {
            return Ok(None);
        };
        let open = || {
            let dir = CacheDir::open(&path)?;
            let key = key::of(address, version, settings);
            let about = json!({
                "url": address.to_string(),
                "version": version.etag,
                "size": version.size,
            });
            let file = DiskFile::new(dir.version(&key)?, version.size, &about.to_string())?;
            if !settled(file.generation()?) {
                // Whoever was at it is gone if the lock can be had.
                dir.alone(|| file.settle()).transpose()?;
            }
            file.set_modified(SystemTime::now());
            Ok(Self {
                generation: file.generation()?,
                file,
                dir: Some((dir, key)),
                most: settings.disk_cache,
            })
        };
        let place: io::Result<Self> = open();
        let failed = |e| format!("nothing is kept in {}: {e}", path.display());
        place.map(Some).map_err(failed)
    }

    /// Returns the bytes that are free where it is.
    pub(super) fn room(&self) -> u64 {
        self.dir.as_ref().map_or(0, |(dir, _)| dir.room())
    }
}

/// Returns true if something of an object, of whatever version, is kept on disk.
pub(super) fn knows(address: &Address, settings: &RemoteSettings) -> bool {
    let path = cache_path(settings).filter(|_| settings.disk_cache > 0);
    let dir = path.and_then(|path| CacheDir::open(&path).ok());
    dir.is_some_and(|dir| dir.has_version_of(&key::of_object(address, settings)))
}
