//! The labels of a Categorical: for each code the category of that number, at the width of the longest.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::array::{Array, Origin};
use super::numbers::datasets;
use super::object::{Joined, total};
use super::recognition::is_integers;
use super::segments::int64;
use super::set::LocaleSet;
use super::strings::Strings;
use crate::dataset::cache::{Key, Piece};
use crate::error::{Error, Result};
use crate::formats::plain::array::ArrayFile;
use crate::io::buffer::Buffer;
use crate::io::content::{Concat, Content};
use crate::io::rows::{in_rows, words};
use crate::npy::dtype::DType;

/// Bytes of categories that are kept together in the cache.
const PIECE: u64 = 1 << 20;

/// Keeps pieces of categories apart from other pieces of the same object in the cache.
const FORM: u32 = 16;

/// The labels of all parts.
pub struct Labels {
    set: Arc<LocaleSet>,
    codes: Vec<Option<ArrayFile>>,
    categories: Arc<Strings>,
}

impl Labels {
    pub fn new(origin: &Origin, codes: &Joined, categories: Arc<Strings>) -> Result<Self> {
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

    /// Why the labels are not shown; `None` if they are.
    pub fn too_wide(&self) -> Result<Option<String>> {
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

impl Array for Labels {
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
    /// File and object that the pieces in the cache belong to.
    key: (u64, u64),
    codes: Concat,
    categories: Arc<dyn Content>,
    count: u64,
    width: u64,
}

impl Looked {
    fn per_piece(&self) -> u64 {
        (PIECE / self.width).max(1)
    }

    fn piece(&self, number: u64) -> Result<Piece> {
        let key = Key {
            file: self.key.0,
            object: self.key.1,
            form: FORM,
            piece: number,
        };
        let cache = &self.set.context.cache;
        // Making a piece may ask the cache for others, so it is made before room is asked for.
        if !cache.has(&key) {
            let made = self.make(number)?;
            return cache.get(key, || Ok(made));
        }
        let gone = || Error::damaged("given up in this moment");
        match cache.get(key, || Err(gone())) {
            Ok(piece) => Ok(piece),
            Err(_) => Ok(Arc::new(Buffer::from(self.make(number)?))),
        }
    }

    fn make(&self, number: u64) -> Result<Vec<u8>> {
        let first = number * self.per_piece();
        let rows = self.per_piece().min(self.count - first);
        let len = usize::try_from(rows.saturating_mul(self.width))
            .map_err(|_| Error::damaged("a category too long to be held"))?;
        let mut bytes = vec![0; len];
        self.categories.read_at(first * self.width, &mut bytes)?;
        Ok(bytes)
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
        let mut held: HashMap<u64, Piece> = HashMap::new();
        in_rows(width, offset, buf, |first, rows| {
            codes.resize(rows.len() / width * 8, 0);
            self.codes.read_at(first * 8, &mut codes)?;
            for ((code, row), place) in words(&codes).zip(first..).zip(rows.chunks_exact_mut(width))
            {
                let code = u64::try_from(code).ok().filter(|&code| code < self.count);
                let Some(code) = code else {
                    return Err(Error::damaged(format!(
                        "a code outside the {} categories in row {row}",
                        self.count
                    )));
                };
                let number = code / self.per_piece();
                let piece = match held.get(&number) {
                    Some(piece) => piece,
                    None => {
                        if held.len() >= 16 {
                            held.clear();
                        }
                        held.entry(number).or_insert(self.piece(number)?)
                    }
                };
                // Inside a piece, which is in memory.
                let at = (code % self.per_piece()) as usize * width;
                let label = piece
                    .get(at..at + width)
                    .ok_or_else(|| Error::damaged("categories are not what they were"))?;
                place.copy_from_slice(label);
            }
            Ok(())
        })
    }
}
