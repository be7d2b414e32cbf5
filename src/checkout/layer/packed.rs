//! Small objects, which wait in memory and are written many to a file: when they are synced, or when somebody needs their file.
//!
//! Nothing is said of them in the index before their file is on the disk. Room for them is reserved there, so that a disk that is
//! full is told to whoever closes an array.

use std::fs::File;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::super::index::{ObjectChange, StoredObject};
use super::super::object::{self, NewFile};
use super::super::pack::{PackWriter, SmallObject};
use super::{Layer, nanoseconds};
use crate::error::{Error, Result};
use crate::hdf5::NewAttribute;

/// Bytes that are reserved at a time.
const STEP: u64 = 1 << 20;

/// Room on the disk for what waits.
#[derive(Default)]
pub(super) struct Reserve {
    /// A file without a name, if there is any room.
    file: Option<File>,
    reserved: u64,
    /// Bytes that wait.
    wanted: u64,
}

impl Layer {
    /// Has a new object wait for a file with others; `None` if it is to have its own. It is read into memory, so errors of its
    /// content are told.
    pub(super) fn pack(
        &self,
        path: &str,
        new: &NewFile,
        time: SystemTime,
    ) -> Result<Option<StoredObject>> {
        let own = self.own.lock().unwrap_or_else(|e| e.into_inner()).clone();
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
            let mut pending = self.pending();
            pending.check()?;
            // Nobody would sync it any more.
            if !self.deferred.load(Ordering::Acquire) {
                return Ok(None);
            }
            let number = || self.next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = pending.pack(&small, nanoseconds(time), number) else {
                drop(pending);
                self.write_packs()?;
                continue;
            };
            let stored = StoredObject {
                file,
                time: nanoseconds(time),
                size: new.size,
                against: new.against.clone(),
                packed: true,
                unwritten: small.unwritten(),
                ..StoredObject::default()
            };
            pending.change(ObjectChange::new(path, Some(stored.clone())), None)?;
            self.wake_syncer();
            return Ok(Some(stored));
        }
    }

    /// Reserves room for more bytes.
    fn reserve(&self, bytes: u64) -> Result<()> {
        let mut reserve = self.reserve.lock().unwrap_or_else(|e| e.into_inner());
        let wanted = reserve.wanted.saturating_add(bytes);
        if wanted > reserve.reserved {
            let mut to = wanted.next_multiple_of(STEP);
            // What cannot be reserved is not refused.
            if reserve.file.is_none() {
                reserve.file = self.dir.unnamed().ok();
            }
            if let Some(file) = &reserve.file {
                let make = |to| fallocate(file, FallocateFlags::empty(), 0, to);
                let made = make(to).or_else(|_| {
                    to = wanted;
                    make(to)
                });
                if let Err(full @ (Errno::NOSPC | Errno::DQUOT)) = made {
                    return Err(Error::from(std::io::Error::from(full)));
                }
            }
            reserve.reserved = to;
        }
        reserve.wanted = wanted;
        Ok(())
    }
}

impl PackWriter for Layer {
    fn write_packs(&self) -> Result<()> {
        let _one = self.packing.lock().unwrap_or_else(|e| e.into_inner());
        // Those that are begun meanwhile gather more.
        let last = self.next.load(Ordering::Relaxed);
        loop {
            let pack = self.pending().unwritten();
            let Some(pack) = pack.filter(|pack| pack.number < last) else {
                return Ok(());
            };
            *self.reserve.lock().unwrap_or_else(|e| e.into_inner()) = Reserve::default();
            let mut new = pack.new.clone();
            new.mark_root(NewAttribute::int(object::TIME, pack.time));
            let written = self.write(pack.number, &new);
            let mut pending = self.pending();
            let file = written.map_err(|e| pending.about_waiting(&e))?;
            pending.is_written(pack.number, file);
        }
    }
}
