//! The source of a dataset's bytes: found once, shared by all who have it open.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::payload::repeat;
use crate::dataset::chunked::Chunks;
use crate::dataset::grid::Grid;
use crate::error::Result;
use crate::hdf5::TextForm;
use crate::io::file::Identity;
use crate::io::lru::WeightedLru;
use crate::io::provenance::Provenance;

/// Blocks that libhdf5 reads where the file names no chunks, in bytes.
pub const ROW_BLOCK: u64 = 1 << 20;

/// The source of a dataset's bytes.
pub enum Backing {
    /// One element, repeated.
    Fill(Vec<u8>),
    /// All elements, in memory.
    Memory(Arc<Vec<u8>>),
    /// Elements in one run at this address in the store file.
    Contiguous(u64),
    /// Parts of raw files, in order; behind them comes the fill value.
    Raw {
        /// The parts, in order.
        parts: Vec<RawFile>,
        /// One element, repeated behind the parts.
        fill: Vec<u8>,
    },
    /// Blocks that are decoded.
    Blocks {
        /// The blocks.
        grid: Grid,
        /// The chunks themselves, where a block gathers several: one that is damaged must not cost the
        /// others.
        chunks: Option<Grid>,
        /// The form in which blocks are asked for.
        form: Form,
        /// Reads blocks here; otherwise libhdf5 does.
        direct: Option<Box<Chunks>>,
    },
}

impl Backing {
    /// Returns the bytes of memory that it takes, roughly.
    pub fn weight(&self) -> usize {
        let own = match self {
            Self::Fill(bytes) => bytes.len(),
            Self::Memory(bytes) => bytes.len(),
            Self::Contiguous(_) => 0,
            Self::Raw { parts, .. } => parts.len() * size_of::<RawFile>(),
            Self::Blocks { direct, .. } => direct.as_ref().map_or(0, |chunks| chunks.weight()),
        };
        own + 256
    }

    /// Tells what the bytes depend on beside the store's own file; false: on files that are not known here.
    pub(super) fn tell_provenance(&self, to: &mut Provenance) -> bool {
        match self {
            Self::Fill(_) | Self::Memory(_) | Self::Contiguous(_) => true,
            Self::Raw { parts, fill } => {
                to.add("fill", fill);
                parts.iter().all(|part| {
                    to.numbers("raw", &[part.offset, part.end]);
                    let meta = part.file.metadata();
                    meta.map(|meta| to.file(Path::new(""), &Identity::of(&meta)))
                        .is_ok()
                })
            }
            // Which files its sources are is libhdf5's to find.
            Self::Blocks {
                form: Form::Virtual,
                ..
            } => false,
            Self::Blocks { form, .. } => {
                to.add("form", format!("{form:?}").as_bytes());
                true
            }
        }
    }

    /// Returns true if bytes come from files other than the store's own.
    pub fn is_outside(&self) -> bool {
        matches!(
            self,
            Self::Raw { .. }
                | Self::Blocks {
                    form: Form::Virtual,
                    ..
                }
        )
    }
}

/// Bytes that backings kept between opens may take: a chunk table takes 16 bytes a chunk.
const MOST_KEPT: u64 = 16 << 20;

/// Backings of datasets that were opened lately, by the serial number of the store file and the address.
pub struct Backings(Mutex<WeightedLru<(u64, u64), Arc<Backing>>>);

impl Default for Backings {
    fn default() -> Self {
        Self(Mutex::new(WeightedLru::new(MOST_KEPT)))
    }
}

impl Backings {
    /// Returns the backing that is kept of a dataset.
    pub fn get(&self, key: (u64, u64)) -> Option<Arc<Backing>> {
        let mut kept = self.0.lock().unwrap_or_else(|e| e.into_inner());
        kept.get(&key).cloned()
    }

    /// Keeps a backing, unless it is very large.
    pub fn put(&self, key: (u64, u64), backing: Arc<Backing>) {
        let weight = backing.weight() as u64;
        if weight > MOST_KEPT {
            return;
        }
        let mut kept = self.0.lock().unwrap_or_else(|e| e.into_inner());
        kept.put(key, backing, weight);
        while kept.pop_excess(0).is_some() {}
    }
}

/// A part of an external raw file that was opened under the policy.
pub struct RawFile {
    /// The open file.
    pub file: File,
    /// The offset in the file at which the part begins.
    pub offset: u64,
    /// The offset in the payload at which the part ends.
    pub end: u64,
}

/// The form in which a block is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Elements as NumPy has them.
    Elements,
    /// Elements of a virtual dataset whose sources were checked.
    Virtual,
    /// Text of variable length, in this form.
    Text(TextForm),
}

impl Form {
    /// Returns a number that keeps the forms of one object apart in the cache.
    pub fn number(self) -> u32 {
        match self {
            Self::Elements | Self::Virtual => 0,
            Self::Text(TextForm::Bytes(_)) => 1,
            Self::Text(TextForm::Ucs4(_)) => 2,
            Self::Text(TextForm::Values) => 3,
            Self::Text(TextForm::Lengths) => 4,
        }
    }
}

/// The form number of chunks that are read one by one.
pub const SINGLE: u32 = 5;

/// The form number of blocks of the store file itself.
pub const STORED: u32 = 6;

/// The form number of blocks of elements with text inside.
pub const RECORD: u32 = 7;

/// The form number of chunks of text with the length of each in front.
pub const TEXT_CHUNK: u32 = 8;

/// Fills `buf` from raw files, one after the other; behind them comes the fill value.
pub fn read_raw(parts: &[RawFile], fill: &[u8], offset: u64, buf: &mut [u8]) -> Result<()> {
    let mut at = offset;
    let mut left = buf;
    let mut start = 0;
    for part in parts {
        if at < part.end && !left.is_empty() {
            let here = usize::try_from(part.end - at)
                .unwrap_or(usize::MAX)
                .min(left.len());
            let (now, rest) = left.split_at_mut(here);
            let read = read_up_to(&part.file, now, part.offset.saturating_add(at - start))?;
            // libhdf5 reads zeros behind the end of a raw file.
            now[read..].fill(0);
            at += here as u64;
            left = rest;
        }
        start = part.end;
    }
    repeat(fill, at, left);
    Ok(())
}

fn read_up_to(file: &File, buf: &mut [u8], offset: u64) -> Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], offset.saturating_add(done as u64))? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_by_weight() {
        let kept = Backings::default();
        let backing = |len| Arc::new(Backing::Fill(vec![0; len]));
        for object in 0..40 {
            kept.put((1, object), backing(1 << 20));
        }
        assert!(kept.get((1, 0)).is_none() && kept.get((1, 39)).is_some());
        kept.put((1, 39), backing(8));
        let inner = kept.0.lock().unwrap();
        let sum: u64 = inner.values().map(|b| b.weight() as u64).sum();
        assert_eq!(inner.weight(), sum);
        assert!(sum <= MOST_KEPT);
    }
}
