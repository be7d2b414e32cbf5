//! The content of an array that has a copy: read from the copy, and from the store once the copy is found to be
//! spoiled.

use std::ops::Range;
use std::sync::Arc;

use super::copy::{BLOCK, KeptCopy, Spoiled};
use super::making::Making;
use crate::content::{Content, Data};
use crate::provenance::Provenance;
use npyfs_base::error::{Error, Result};

/// A function that is called once when a copy is found to be spoiled.
pub type OnSpoiled = Arc<dyn Fn(&KeptCopy) + Send + Sync>;

/// An array with its copy.
pub struct KeptContent {
    copy: Arc<KeptCopy>,
    store: Arc<dyn Content>,
    on_spoiled: OnSpoiled,
}

impl KeptContent {
    /// Creates the content of an array from a copy and a store with the same bytes.
    pub fn new(copy: Arc<KeptCopy>, store: Arc<dyn Content>, on_spoiled: OnSpoiled) -> Self {
        Self {
            copy,
            store,
            on_spoiled,
        }
    }
}

impl Content for KeptContent {
    fn len(&self) -> u64 {
        self.store.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.copy.is_spoiled() {
            return self.store.read_at(offset, buf);
        }
        match self.copy.read_at(offset, buf) {
            Ok(()) => Ok(()),
            Err(Spoiled) => {
                (self.on_spoiled)(&self.copy);
                self.store.read_at(offset, buf)
            }
        }
    }

    fn written(&self, from: u64) -> Result<Option<Range<u64>>> {
        self.store.written(from)
    }

    fn stored(&self, from: u64) -> Option<Range<u64>> {
        self.store.stored(from)
    }

    fn is_costly(&self) -> bool {
        self.copy.is_spoiled() && self.store.is_costly()
    }

    fn tell_provenance(&self, to: &mut Provenance) -> bool {
        self.store.tell_provenance(to)
    }

    fn share(&self, offset: u64, len: usize) -> Result<Option<Data>> {
        match self.copy.is_spoiled() {
            true => self.store.share(offset, len),
            false => Ok(None),
        }
    }
}

/// Reads all blocks that a copy lacks. `goes_on` is called with the bytes of each block, and returns false to stop.
pub fn fill(
    making: &Making,
    content: &dyn Content,
    mut goes_on: impl FnMut(u64) -> bool,
) -> Result<bool> {
    let mut buf = Vec::new();
    let mut at = 0;
    while let Some(block) = making.missing(at) {
        buf.resize(making.bytes_of(block), 0);
        content.read_at(block.saturating_mul(BLOCK), &mut buf)?;
        making.put(block, &buf).map_err(Error::from)?;
        if !goes_on(buf.len() as u64) {
            return Ok(false);
        }
        at = block + 1;
    }
    Ok(true)
}
