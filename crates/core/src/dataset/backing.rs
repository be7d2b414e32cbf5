//! The source of a dataset's bytes: determined once, shared by all handles that have the dataset open.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::elements::repeat;
use crate::dataset::chunked::Chunks;
use crate::dataset::grid::Grid;
use npyfs_base::error::Result;
use npyfs_hdf5::TextForm;
use npyfs_io::file::Identity;
use npyfs_io::lru::WeightedLru;
use npyfs_io::provenance::Provenance;

/// The size in bytes of blocks that libhdf5 reads when the dataset has no chunks.
pub const ROW_BLOCK: u64 = 1 << 20;

/// The source of a dataset's bytes.
pub enum Backing {
    /// One element, repeated.
    Fill(Vec<u8>),
    /// All elements, in memory.
    Memory(Arc<Vec<u8>>),
    /// Elements stored contiguously at this address in the store file.
    Contiguous(u64),
    /// Parts of raw files, in order, followed by the fill value.
    Raw {
        /// The parts, in order.
        parts: Vec<RawFile>,
        /// One element, repeated after the parts.
        fill: Vec<u8>,
    },
    /// Blocks that are decoded.
    Blocks(Arc<BlockLayout>),
}

/// A dataset cut into blocks.
pub struct BlockLayout {
    /// The blocks.
    pub grid: Grid,
    /// The chunks themselves, where a block gathers several.
    pub chunks: Option<Grid>,
    /// The form in which blocks are asked for.
    pub form: Form,
    /// Reads blocks here; otherwise libhdf5 does.
    pub direct: Option<Chunks>,
}

impl BlockLayout {
    /// Returns the chunks that are read without libhdf5. There are none if their table was refused after the dataset
    /// was opened.
    pub fn direct(&self) -> Option<&Chunks> {
        self.direct.as_ref().filter(|chunks| !chunks.is_refused())
    }
}

impl Backing {
    /// Returns the approximate bytes of memory that it takes.
    pub fn weight(&self) -> usize {
        let own = match self {
            Self::Fill(bytes) => bytes.len(),
            Self::Memory(bytes) => bytes.len(),
            Self::Contiguous(_) => 0,
            Self::Raw { parts, .. } => parts.len() * size_of::<RawFile>(),
            Self::Blocks(layout) => layout.direct.as_ref().map_or(0, Chunks::weight),
        };
        own + 256
    }

    /// Adds everything outside of the store's own file that the bytes depend on; false if they depend on unknown files.
    pub(super) fn tell_provenance(&self, to: &mut Provenance) -> bool {
        match self {
            Self::Fill(_) | Self::Memory(_) | Self::Contiguous(_) => true,
            Self::Raw { parts, fill } => {
                to.add("fill", fill);
                parts.iter().all(|part| {
                    to.numbers("raw", &[part.offset, part.end]);
                    let meta = part.file.metadata();
                    meta.map(|meta| to.file(Path::new(""), &Identity::from_metadata(&meta)))
                        .is_ok()
                })
            }
            // Which files its sources are is libhdf5's to find.
            Self::Blocks(layout) if layout.form == Form::Virtual => false,
            Self::Blocks(layout) => {
                to.add("form", format!("{:?}", layout.form).as_bytes());
                true
            }
        }
    }

    /// Returns true if bytes come from files other than the store's own.
    pub fn is_outside(&self) -> bool {
        match self {
            Self::Raw { .. } => true,
            Self::Blocks(layout) => layout.form == Form::Virtual,
            Self::Fill(_) | Self::Memory(_) | Self::Contiguous(_) => false,
        }
    }
}

/// The most bytes of backings that are cached between opens: a chunk table takes 16 bytes per chunk.
const MOST_KEPT: u64 = 16 << 20;

/// Backings of recently opened datasets, by the serial number of the store file and the address.
pub struct Backings(Mutex<WeightedLru<(u64, u64), Arc<Backing>>>);

impl Default for Backings {
    fn default() -> Self {
        Self(Mutex::new(WeightedLru::new(MOST_KEPT)))
    }
}

impl Backings {
    /// Returns the cached backing of a dataset.
    pub fn get(&self, key: (u64, u64)) -> Option<Arc<Backing>> {
        let mut kept = self.0.lock();
        kept.get(&key).cloned()
    }

    /// Caches a backing, unless it is very large.
    pub fn put(&self, key: (u64, u64), backing: Arc<Backing>) {
        let weight = backing.weight() as u64;
        if weight > MOST_KEPT {
            return;
        }
        let mut kept = self.0.lock();
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

/// The form in which a block is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Elements as in NumPy.
    Elements,
    /// Elements of a virtual dataset whose sources were checked.
    Virtual,
    /// Text of variable length in this form.
    Text(TextForm),
}

impl Form {
    /// Returns a number that distinguishes the forms of one object in the cache.
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

/// The form number of individual chunks.
pub const SINGLE: u32 = 5;

/// The form number of blocks of the store file itself.
pub const STORED: u32 = 6;

/// The form number of blocks of elements that contain text.
pub const RECORD: u32 = 7;

/// The form number of chunks of text with a length in front of each.
pub const TEXT_CHUNK: u32 = 8;

/// Fills `buf` from raw files in order, followed by the fill value.
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
            // libhdf5 reads zeros after the end of a raw file.
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
        let inner = kept.0.lock();
        let sum: u64 = inner.values().map(|b| b.weight() as u64).sum();
        assert_eq!(inner.weight(), sum);
        assert!(sum <= MOST_KEPT);
    }
}
