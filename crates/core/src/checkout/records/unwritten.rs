//! An object that waits in memory for a shared file.

use std::fmt::{self, Debug, Formatter};
use std::sync::{Arc, Weak};

use npyfs_base::error::Result;
use npyfs_io::content::{self, Content};

/// An object in memory, as it is shown until its shared file is written.
pub struct UnwrittenObject {
    /// The `.npy` file.
    pub(in crate::checkout) bytes: Vec<u8>,
    /// The length of its header in bytes.
    pub(in crate::checkout) header: usize,
    pub(in crate::checkout) writer: Weak<dyn PackWriter>,
}

/// A layer in which objects wait for their files.
pub trait PackWriter: Send + Sync {
    /// Writes the files of all waiting objects; after a failure they continue to wait.
    fn write_packs(&self) -> Result<()>;
}

impl UnwrittenObject {
    /// Writes the object's file, for a caller that needs it.
    pub fn write(&self) -> Result<()> {
        // Without the layer the object no longer waits.
        let writer = self.writer.upgrade();
        writer.map_or(Ok(()), |writer| writer.write_packs())
    }
}

impl Content for UnwrittenObject {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        content::copy(&self.bytes, offset, buf);
        Ok(())
    }
}

/// The elements of an object.
pub(in crate::checkout) struct Elements(pub(in crate::checkout) Arc<UnwrittenObject>);

impl Content for Elements {
    fn len(&self) -> u64 {
        self.0.len() - self.0.header as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0
            .read_at(offset.saturating_add(self.0.header as u64), buf)
    }
}

/// A reference to an object whose file is not written yet.
#[derive(Clone, Default)]
pub struct Unwritten(pub(in crate::checkout) Weak<UnwrittenObject>);

impl Unwritten {
    /// Returns the object; `None` once its file is written.
    pub fn get(&self) -> Option<Arc<UnwrittenObject>> {
        self.0.upgrade()
    }
}

impl Debug for Unwritten {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.get().is_some())
    }
}

// All references are equal: they do not affect the identity of an object.
impl PartialEq for Unwritten {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Unwritten {}
