//! Reading an object as a store file, and copying it to this machine.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::address::Address;
use super::error::{Cause, RemoteError};
use super::object::RemoteObject;
use crate::file::{Far, Identity, Ownership, StoreFile, Then};
use npyfs_base::error::{Error, ErrorKind};
use npyfs_base::options::RemoteSettings;

/// Bytes that are copied at once.
const BLOCK: u64 = 8 << 20;

/// Blocks that are fetched ahead while one is written.
const AHEAD: u64 = 8;

/// An object with the interface of a file.
#[derive(Debug)]
struct ObjectFile(Arc<RemoteObject>);

/// Returns the error of a read. A missing object is logged here, because it disappeared while it was open.
fn of_read(error: RemoteError) -> Error {
    match error.cause {
        Cause::Missing => Error::new(ErrorKind::Os(error.errno()), error.message),
        _ => error.into(),
    }
}

impl Far for ObjectFile {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<(), Error> {
        self.0.read(buf, offset).map_err(of_read)
    }

    fn fetch(&self, ranges: &[Range<u64>]) -> Result<(), Error> {
        self.0.fetch(ranges).map_err(of_read)
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

    fn is_told_apart(&self) -> bool {
        self.0.is_told_apart()
    }
}

/// Returns an object as a store file.
pub fn store_file(object: &Arc<RemoteObject>) -> StoreFile {
    let ownership = Ownership::elsewhere(object.modified());
    let identity = Identity::elsewhere(object.number(), object.size(), object.modified());
    let name = object.address().to_string();
    let far = Arc::new(ObjectFile(object.clone()));
    StoreFile::from_far(Path::new(&name), identity, ownership, far)
}

/// Opens a local file by its path, or the newest version of an object by its address. Must not be called with a name
/// from a store's content.
///
/// # Errors
///
/// The reason why it cannot be read, with its name.
pub fn open_file(path: &Path, settings: &Arc<RemoteSettings>) -> Result<StoreFile, Error> {
    match Address::parse(path) {
        None => StoreFile::open(path).map_err(|e| Error::from(e).about(path.display())),
        Some(address) => {
            let address = address.map_err(|why| Error::new(ErrorKind::Os(libc::EINVAL), why))?;
            Ok(store_file(&RemoteObject::open(&address, settings)?))
        }
    }
}

/// Copies a file to this machine with several requests in flight. `advance` is called with the bytes done so far.
pub fn copy(file: &StoreFile, to: &mut File, advance: &dyn Fn(u64)) -> Result<(), Error> {
    let size = file.identity.size;
    let mut bytes = vec![0; usize::try_from(BLOCK.min(size)).unwrap_or(0)];
    let mut at = 0;
    while at < size {
        let now = BLOCK.min(size - at);
        if let Some(far) = file.far() {
            let ahead = at.saturating_add(BLOCK * AHEAD).min(size);
            far.prefetch(std::slice::from_ref(&(at..ahead)), 0, Box::new(|| {}));
        }
        let bytes = &mut bytes[..usize::try_from(now).unwrap_or(0)];
        file.read_exact_at(bytes, at)?;
        to.write_all(bytes).map_err(Error::from)?;
        at = at.saturating_add(now);
        advance(now);
    }
    Ok(())
}
