//! Measured blocks: rows that only a worker can produce, such as text of variable length and elements with text inside.
//!
//! The length of a block was measured before, so that room is made in the cache before the block is requested. A block
//! that takes more of the cache than one block may take is written in parts to a temporary file, like a large chunk.

use std::sync::{Arc, Mutex, OnceLock};

use super::blocks::SHARE;
use super::cache::{Key, Need};
use super::opened::OpenStore;
use super::spill::Spill;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_hdf5::Sink;

/// Bytes in flight from a worker at a time.
const PART: usize = 1 << 20;

/// The blocks of one open file.
pub struct MeasuredBlocks {
    store: Arc<OpenStore>,
    object: u64,
    form: u32,
    /// Bytes of the largest block.
    largest: u64,
    /// The last block that does not fit into the cache.
    spill: OnceLock<Spill>,
    /// Held while a block is written to the spill.
    spilling: Mutex<()>,
}

fn changed() -> Error {
    Error::damaged("a block is not as long as it was when measured")
}

impl MeasuredBlocks {
    /// Creates the blocks of an object, each of at most `largest` bytes; `form` distinguishes them in the cache from
    /// blocks of its other forms.
    pub fn new(store: &Arc<OpenStore>, object: u64, form: u32, largest: u64) -> Self {
        Self {
            store: store.clone(),
            object,
            form,
            largest,
            spill: OnceLock::new(),
            spilling: Mutex::default(),
        }
    }

    /// Fills `buf` from byte `at` of a block of `len` bytes. `make` produces the bytes in parts, each with its offset,
    /// and may begin again at 0.
    pub fn read(
        &self,
        number: u64,
        len: u64,
        at: u64,
        buf: &mut [u8],
        make: impl Fn(&mut Sink<'_>) -> Result<()>,
    ) -> Result<()> {
        let end = at.checked_add(buf.len() as u64).ok_or_else(changed)?;
        if end > len {
            return Err(changed());
        }
        let cache = &self.store.context.cache;
        let beside = PART.min(usize::try_from(len).unwrap_or(PART));
        if len.saturating_add(beside as u64) > cache.limit() / SHARE {
            let spill = self.spill(len)?;
            let _one = self.spilling.lock().unwrap_or_else(|e| e.into_inner());
            while !spill.read(number, at, buf)? {
                spill.put(number, |write| whole(len, &make, write))?;
            }
            return Ok(());
        }
        let key = Key {
            file: self.store.file.serial,
            object: self.object,
            form: self.form,
            block: number,
        };
        let need = Need {
            len: usize::try_from(len).map_err(|_| changed())?,
            beside,
            ..Need::default()
        };
        let block = cache.read(key, need, |out| {
            whole(len, &make, &mut |at, part| {
                // All parts are within a block of this length.
                let at = usize::try_from(at).unwrap_or(usize::MAX);
                let place = at
                    .checked_add(part.len())
                    .and_then(|end| out.get_mut(at..end));
                place.ok_or_else(outside)?.copy_from_slice(part);
                Ok(())
            })
        })?;
        let start = usize::try_from(at).map_err(|_| changed())?;
        let part = block.get(start..).and_then(|rest| rest.get(..buf.len()));
        buf.copy_from_slice(part.ok_or_else(changed)?);
        Ok(())
    }

    fn spill(&self, len: u64) -> Result<&Spill> {
        if let Some(spill) = self.spill.get() {
            return Ok(spill);
        }
        let spill = Spill::new(self.largest.max(len), 1, 1).map_err(|e| {
            let why = format!(
                "text of {len} bytes is read in one go: the cache cannot hold it, and there is no temporary file: {e}"
            );
            Error::new(ErrorKind::Os(libc::ENOSPC), why)
        })?;
        Ok(self.spill.get_or_init(|| spill))
    }
}

fn outside() -> std::io::Error {
    std::io::Error::other(changed())
}

/// Produces a block, and rejects one with another length.
fn whole(
    len: u64,
    make: &impl Fn(&mut Sink<'_>) -> Result<()>,
    write: &mut Sink<'_>,
) -> Result<()> {
    let mut end = 0;
    make(&mut |at, part| {
        end = at.saturating_add(part.len() as u64);
        if end > len {
            return Err(outside());
        }
        write(at, part)
    })?;
    match end == len {
        true => Ok(()),
        false => Err(changed()),
    }
}
