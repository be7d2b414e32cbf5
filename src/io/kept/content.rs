//! The content of an array of which there is a copy: read from the copy, and from the store as soon as that is not what it was.

use std::ops::Range;
use std::sync::Arc;

use super::copy::{KeptCopy, Spoiled};
use super::making::Making;
use super::sums::BLOCK;
use crate::error::{Error, Result};
use crate::io::content::{Content, Data};
use crate::io::provenance::Provenance;

/// A function that is told once that a copy is spoiled.
pub type OnSpoiled = Arc<dyn Fn(&KeptCopy) + Send + Sync>;

/// An array with its copy.
pub struct KeptContent {
    copy: Arc<KeptCopy>,
    store: Arc<dyn Content>,
    on_spoiled: OnSpoiled,
}

impl KeptContent {
    /// Creates the content of an array that comes from the same as the copy.
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

/// Reads all that a copy is missing, block by block. `goes_on` is told the bytes of each, and ends it with false.
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
