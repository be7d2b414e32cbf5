//! The labels of a Categorical: for each code the category of that number, at the width of the longest.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::array::{ArraySource, Origin};
use super::numbers::datasets;
use super::object::{Joined, total};
use super::recognition::is_integers;
use super::segments::int64;
use super::set::LocaleSet;
use super::strings::Strings;
use crate::dataset::cache::{Block, Key, Need};
use crate::error::{Error, Result};
use crate::formats::plain::array::ArrayFile;
use crate::io::content::{Concat, Content};
use crate::io::rows::{in_rows, words};
use crate::npy::dtype::DType;

/// Bytes of categories that are kept together in the cache.
const BLOCK: u64 = 1 << 20;

/// Keeps blocks of categories apart from other blocks of the same object in the cache.
const FORM: u32 = 16;

/// The labels of all parts.
pub(super) struct Labels {
    set: Arc<LocaleSet>,
    codes: Vec<Option<ArrayFile>>,
    categories: Arc<Strings>,
}

impl Labels {
    pub(super) fn new(origin: &Origin, codes: &Joined, categories: Arc<Strings>) -> Result<Self> {
        let parts = datasets(origin, codes)?;
        for (number, part) in parts.iter().enumerate() {
            if part
                .as_ref()
                .is_some_and(|part| !is_integers(&part.dataset))
            {
                let name = origin.set.name(number);
                return Err(Error::damaged(format!(
                    "codes are no 1-D integers in {name}"
                )));
            }
        }
        Ok(Self {
            set: origin.set.clone(),
            codes: parts,
            categories,
        })
    }

    fn rows(&self, part: usize) -> u64 {
        let part = self.codes.get(part).and_then(Option::as_ref);
        part.map_or(0, |codes| codes.dataset.shape[0])
    }

    fn all_rows(&self) -> u64 {
        total((0..self.codes.len()).map(|part| self.rows(part)))
    }

    /// Returns why the labels are not shown; `None` if they are.
    pub(super) fn too_wide(&self) -> Result<Option<String>> {
        let rows = self.all_rows();
        let stored = total([rows.saturating_mul(8), self.categories.stored()]);
        let limit = self.set.context.options.strings_limit(stored);
        // No category is longer than the bytes of its part: most need no look.
        let longest = self.categories.bytes().into_iter().max().unwrap_or(0);
        if rows.saturating_mul(longest) <= limit {
            return Ok(None);
        }
        let width = self.categories.measure()?.width;
        let expanded = rows.saturating_mul(width);
        Ok((expanded > limit).then(|| {
            format!(
                "{rows} labels take {expanded} bytes at the width of the longest category, {width}: more than text_limit allows ({limit} bytes)"
            )
        }))
    }
}

impl ArraySource for Labels {
    fn form(&self) -> Result<(DType, Vec<u64>)> {
        let (dtype, _) = self.categories.fixed_width().form()?;
        Ok((dtype, vec![self.all_rows()]))
    }

    fn payload(&self) -> Result<Arc<dyn Content>> {
        let parts = self.codes.iter().flatten();
        let codes = parts
            .filter(|part| part.dataset.shape != [0])
            .map(int64)
            .collect::<Result<Vec<_>>>()?;
        let first = self.codes.iter().flatten().next();
        let measure = self.categories.measure()?;
        Ok(Arc::new(Looked {
            set: self.set.clone(),
            key: first.map_or((0, 0), |part| (part.store.file.serial, part.dataset.addr)),
            codes: Concat::new(codes),
            categories: self.categories.fixed_width().payload()?,
            count: total(measure.rows.iter().copied()),
            width: measure.width,
        }))
    }

    fn part(&self, number: usize) -> Json {
        json!({ "codes": self.rows(number), "categories": self.categories.rows().ok().map(|rows| rows[number]) })
    }
}

/// Codes looked up in categories.
struct Looked {
    set: Arc<LocaleSet>,
    /// File and object that the blocks in the cache belong to.
    key: (u64, u64),
    codes: Concat,
    categories: Arc<dyn Content>,
    count: u64,
    width: u64,
}

impl Looked {
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
        self.set.context.cache.read(key, need, fill)
    }
}

impl Content for Looked {
    fn len(&self) -> u64 {
        self.codes.len() / 8 * self.width
    }

    fn is_costly(&self) -> bool {
        self.codes.is_costly()
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
            // Each block is asked for once: the cache need not keep it, and no more than one is held beside it.
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
                // Inside a block, which is in memory.
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
