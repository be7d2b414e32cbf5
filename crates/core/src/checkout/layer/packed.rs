//! Small objects, which wait in memory and are written many to a file: at a sync, or when a reader needs their file.
//!
//! The index does not mention them before their file is on the disk. Disk space for them is reserved, so that a full
//! disk is reported when an array is closed.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use rustix::fs::{FallocateFlags, fallocate, fstatvfs, ftruncate};
use rustix::io::Errno;

use super::Layer;
use super::pack::SmallObject;
use crate::checkout::records::index::nanoseconds;
use crate::checkout::records::index::{ObjectChange, StoredObject};
use crate::checkout::records::unwritten::PackWriter;
use crate::store::object::{self, NewFile};
use npyfs_base::error::{Error, Result};
use npyfs_hdf5::NewAttribute;
use npyfs_io::dir::Dir;

/// Bytes that are reserved at once.
const STEP: u64 = 1 << 20;

/// Disk space for waiting objects, in bytes.
#[derive(Default)]
pub(super) struct Reserve {
    /// An unnamed file, if space is reserved.
    file: Option<File>,
    reserved: u64,
    /// What the waiting objects take.
    wanted: u64,
    /// What the objects take whose file is being written: it is free for that file, and for no other object.
    lent: u64,
}

impl Reserve {
    /// Reserves space for `wanted` bytes, and for some more if there is room. Fails if the disk is full.
    fn grow(&mut self, dir: &Dir, wanted: u64) -> Result<()> {
        if wanted > self.reserved {
            let mut to = wanted.next_multiple_of(STEP);
            // A file system that cannot reserve space is no reason to refuse an object.
            if self.file.is_none() {
                self.file = dir.unnamed().ok();
            }
            if let Some(file) = &self.file {
                let make = |to| fallocate(file, FallocateFlags::empty(), 0, to);
                let made = make(to).or_else(|_| {
                    to = wanted;
                    make(to)
                });
                if let Err(full @ (Errno::NOSPC | Errno::DQUOT)) = made {
                    return Err(Error::from(std::io::Error::from(full)));
                }
            }
            self.reserved = to;
        }
        self.wanted = wanted;
        Ok(())
    }

    /// Returns whether the space for `wanted` bytes can be reserved beside the file that is being written.
    fn is_room(&self, wanted: u64) -> bool {
        let more = wanted.next_multiple_of(STEP).saturating_sub(self.reserved);
        let Some(file) = self.file.as_ref().filter(|_| self.lent > 0 && more > 0) else {
            return true;
        };
        fstatvfs(file).map_or(true, |disk| {
            disk.f_bavail.saturating_mul(disk.f_frsize) >= self.lent.saturating_add(more)
        })
    }

    /// Frees the space of objects whose file is about to be written.
    fn lend(&mut self, bytes: u64) {
        self.lent = bytes;
        self.wanted = self.wanted.saturating_sub(bytes);
        self.reserved = self.reserved.saturating_sub(bytes);
        if let Some(file) = &self.file {
            // Space that could not be freed is lacking for the file, and its writer reports that.
            let _ = ftruncate(file, self.reserved);
        }
    }

    /// Ends what `lend` began. Objects that were not written wait, and want their space again.
    fn end_lending(&mut self, dir: &Dir, is_written: bool) {
        let lent = std::mem::take(&mut self.lent);
        if !is_written {
            let wanted = self.wanted.saturating_add(lent);
            // If others took the space, new objects are refused until there is room for all.
            if self.grow(dir, wanted).is_err() {
                self.wanted = wanted;
            }
        } else if self.wanted == 0 {
            *self = Self::default();
        }
    }
}

impl Layer {
    /// Queues a new object for a shared file; `None` if it needs its own. Reads the object into memory, and returns
    /// errors of its content.
    pub(super) fn pack(
        &self,
        path: &str,
        new: &NewFile,
        time: SystemTime,
    ) -> Result<Option<Arc<StoredObject>>> {
        let own = self.own.lock().clone();
        let Some(own) = own.filter(|_| self.deferred.load(Ordering::Acquire)) else {
            return Ok(None);
        };
        let small = SmallObject::read(new, &own).map_err(|e| e.about(path))?;
        let Some(small) = small else {
            return Ok(None);
        };
        self.make_room()?;
        self.reserve(small.bytes()).map_err(|e| e.about(path))?;
        loop {
            let mut pending = self.pending.lock();
            pending.check()?;
            // No later sync would write it.
            if !self.deferred.load(Ordering::Acquire) {
                return Ok(None);
            }
            let number = || self.next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = pending.pack(&small, nanoseconds(time), number) else {
                drop(pending);
                self.write_packs()?;
                continue;
            };
            let stored = Arc::new(StoredObject {
                file,
                time: nanoseconds(time),
                size: new.size,
                against: new.against.clone(),
                packed: true,
                unwritten: small.unwritten(),
                ..StoredObject::default()
            });
            pending.change(ObjectChange::new(path, Some(stored.clone())), None)?;
            self.wake_syncer();
            return Ok(Some(stored));
        }
    }

    /// Reserves additional bytes.
    fn reserve(&self, bytes: u64) -> Result<()> {
        let mut reserve = self.reserve.lock();
        while !reserve.is_room(reserve.wanted.saturating_add(bytes)) {
            drop(reserve);
            // Until the file that is being written has taken its space.
            drop(self.packing.lock());
            reserve = self.reserve.lock();
        }
        let wanted = reserve.wanted.saturating_add(bytes);
        reserve.grow(&self.dir, wanted)
    }
}

impl PackWriter for Layer {
    fn write_packs(&self) -> Result<()> {
        let _one = self.packing.lock();
        // Those that are begun meanwhile gather more.
        let last = self.next.load(Ordering::Relaxed);
        loop {
            let pack = self.pending.lock().unwritten();
            let Some(pack) = pack.filter(|pack| pack.number < last) else {
                return Ok(());
            };
            self.reserve.lock().lend(pack.reserved);
            let mut new = pack.new.clone();
            new.mark_root(NewAttribute::int(object::TIME, pack.time));
            let written = self.write(pack.number, &new);
            let is_written = written.is_ok();
            self.reserve.lock().end_lending(&self.dir, is_written);
            let mut pending = self.pending.lock();
            let file = written.map_err(|e| pending.about_waiting(&e))?;
            pending.is_written(pack.number, file);
        }
    }
}
