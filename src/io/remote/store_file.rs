//! An object as a store file.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::object::RemoteObject;
use crate::error::Error;
use crate::io::file::far::{Far, Then};
use crate::io::file::{Identity, Ownership, StoreFile};

/// An object that others read as a file.
#[derive(Debug)]
struct ObjectFile(Arc<RemoteObject>);

impl Far for ObjectFile {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<(), Error> {
        Ok(self.0.read(buf, offset)?)
    }

    fn fetch(&self, ranges: &[Range<u64>]) -> Result<(), Error> {
        Ok(self.0.fetch(ranges)?)
    }

    fn prefetch(&self, ranges: &[Range<u64>], gap: u64, then: Then) {
        self.0.prefetch(ranges, gap, then);
    }

    fn when_there(&self, ranges: &[Range<u64>], then: Then) {
        self.0.when_there(ranges, then);
    }

    fn has(&self, ranges: &[Range<u64>]) -> bool {
        self.0.has(ranges)
    }

    fn is_unchanged(&self) -> bool {
        self.0.is_unchanged()
    }

    fn is_current(&self) -> bool {
        self.0.is_current()
    }
}

/// Returns an object as a store file. It is its reader's alone: others may have no credentials for it.
pub fn store_file(object: &Arc<RemoteObject>) -> StoreFile {
    let ownership = Ownership {
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        mode: 0o400,
        mtime: object.modified(),
    };
    let identity = Identity::elsewhere(object.number(), object.size(), object.modified());
    let name = object.address().to_string();
    let far = Arc::new(ObjectFile(object.clone()));
    StoreFile::from_far(Path::new(&name), identity, ownership, far)
}
