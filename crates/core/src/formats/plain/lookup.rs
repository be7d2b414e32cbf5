//! Labels: the category of each code.

use std::sync::Arc;

use crate::dataset::cache::{Block, Key, Need};
use crate::dataset::context::Context;
use npyfs_base::error::{Error, Result};
use npyfs_io::content::Content;
use npyfs_io::provenance::Provenance;
use npyfs_io::rows::{in_rows, words};

/// Bytes of categories that are cached together.
const BLOCK: u64 = 1 << 20;

/// Distinguishes blocks of categories from other blocks of the same object in the cache.
const FORM: u32 = 16;

/// Codes, looked up in categories.
pub(crate) struct LookedUpCodes {
    /// The state of the mount, whose cache holds blocks of categories.
    pub context: Arc<Context>,
    /// The file and object of the blocks in the cache.
    pub key: (u64, u64),
    /// The codes, as 64-bit integers.
    pub codes: Arc<dyn Content>,
    /// The concatenated categories.
    pub categories: Arc<dyn Content>,
    /// The number of categories.
    pub count: u64,
    /// Bytes of a category; at least one.
    pub width: u64,
    /// The label of the code -1, as wide as a category; `None` if no row may have that code.
    pub missing: Option<Vec<u8>>,
}

impl LookedUpCodes {
    fn per_block(&self) -> u64 {
        (BLOCK / self.width).max(1)
    }

    fn block(&self, number: u64) -> Result<Block> {
        let key = Key {
            file: self.key.0,
            object: self.key.1,
            form: FORM,
            block: number,
        };
        let first = number * self.per_block();
        let rows = self.per_block().min(self.count - first);
        let need = Need {
            len: usize::try_from(rows.saturating_mul(self.width))
                .map_err(|_| Error::damaged("a category too long to be held"))?,
            gathers: true,
            ..Need::default()
        };
        let fill = |out: &mut [u8]| self.categories.read_at(first * self.width, out);
        self.context.cache.read(key, need, fill)
    }
}

impl Content for LookedUpCodes {
    fn len(&self) -> u64 {
        (self.codes.len() / 8).saturating_mul(self.width)
    }

    fn is_costly(&self) -> bool {
        self.codes.is_costly()
    }

    fn tell_provenance(&self, to: &mut Provenance) -> bool {
        to.numbers("looked up", &[self.count, self.width]);
        match &self.missing {
            Some(missing) => to.add("missing", missing),
            None => to.add("none missing", &[]),
        }
        self.codes.tell_provenance(to) && self.categories.tell_provenance(to)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let width = usize::try_from(self.width)
            .map_err(|_| Error::damaged("a category too long to be held"))?;
        let mut codes = Vec::new();
        let mut wanted = Vec::new();
        in_rows(width, offset, buf, |first, rows| {
            codes.resize(rows.len() / width * 8, 0);
            self.codes.read_at(first * 8, &mut codes)?;
            wanted.clear();
            for (code, row) in words(&codes).zip(0_usize..) {
                if let (-1, Some(missing)) = (code, &self.missing) {
                    rows[row * width..(row + 1) * width].copy_from_slice(missing);
                    continue;
                }
                let code = u64::try_from(code).ok().filter(|&code| code < self.count);
                let Some(code) = code else {
                    return Err(Error::damaged(format!(
                        "a code outside the {} categories in row {}",
                        self.count,
                        first + row as u64
                    )));
                };
                wanted.push((code, row));
            }
            // Each block is requested once: it need not be cached, and only one is held.
            if self.count > self.per_block() {
                wanted.sort_unstable();
            }
            let mut held: Option<(u64, Block)> = None;
            for &(code, row) in &wanted {
                let number = code / self.per_block();
                let block = match held.take().filter(|(held, _)| *held == number) {
                    Some((_, block)) => block,
                    None => self.block(number)?,
                };
                // Inside of a block, which is in memory.
                let at = (code % self.per_block()) as usize * width;
                let label = block
                    .get(at..at + width)
                    .ok_or_else(|| Error::damaged("categories are not what they were"))?;
                rows[row * width..(row + 1) * width].copy_from_slice(label);
                held = Some((number, block));
            }
            Ok(())
        })
    }
}
