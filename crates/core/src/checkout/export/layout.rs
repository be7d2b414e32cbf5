//! The layout of an exported file: its purpose, and how each of its datasets is stored for it.
//!
//! Pure decisions: `relayout` carries them out.

use std::str::FromStr;

use crate::dataset::grid::row_block;
use crate::store::compression::{CHUNK, Compression, SMALLEST};

/// The size of a chunk of small samples, in bytes or slightly less: the largest that costs a reader of single samples
/// nothing. With 60 000 samples of 784 bytes and a cache of 4 MiB, a sample in random order took 0.5 to 0.8 ms in
/// chunks of 64 KiB, 0.7 to 0.8 ms in chunks of 256 KiB and at least 2.5 ms in chunks of 1 MiB (lzf, means of 400,
/// machine in use). In sequential order all are alike.
const SAMPLES: u64 = 256 << 10;

/// The most bytes of a sample that is a chunk by itself; larger ones are split.
const LARGEST_SAMPLE: u64 = 32 << 20;

/// The size of a chunk of an archive, in bytes or slightly less.
const ARCHIVED: u64 = 4 << 20;

/// The least bytes of a chunk that is read over a network (if the dataset has that many), and the most.
const FETCHED: (u64, u64) = (1 << 20, 8 << 20);

/// The purpose of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Programs map the elements into memory.
    Mmap,
    /// Programs read samples, along the first axis, in any order.
    Samples,
    /// The fewest bytes that every HDF5 program can read.
    Archive,
    /// Programs read over a network.
    Cloud,
}

impl FromStr for Purpose {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "mmap" => Ok(Self::Mmap),
            "samples" => Ok(Self::Samples),
            "archive" => Ok(Self::Archive),
            "cloud" => Ok(Self::Cloud),
            _ => Err(format!(
                "{text:?}: expected mmap, samples, archive or cloud"
            )),
        }
    }
}

/// The requested compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// No compression.
    Off,
    /// This compression.
    With(Compression),
}

impl FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" | "none" => Ok(Self::Off),
            text => text.parse().map(Self::With),
        }
    }
}

/// The requested layout; at least one of the two is given.
#[derive(Clone, Copy, Debug, Default)]
pub struct Layout {
    /// The purpose of the file; `None`: layouts stay the same, as far as the compression allows.
    pub purpose: Option<Purpose>,
    /// The compression; `None`: the one for the purpose.
    pub method: Option<Method>,
}

/// The stored form of a dataset.
pub struct StoredForm<'a> {
    /// The shape of the dataset.
    pub shape: &'a [u64],
    /// Bytes of an element.
    pub element: u64,
    /// Shape of a chunk, if there are chunks.
    pub chunk: Option<&'a [u64]>,
    /// Whether it has filters.
    pub filtered: bool,
    /// Whether it can be extended.
    pub growing: bool,
    /// Whether it is contiguous.
    pub contiguous: bool,
    /// Whether it was never written to, and so takes no space.
    pub unwritten: bool,
}

/// How a dataset should be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedLayout {
    /// Unchanged.
    Keep,
    /// Together.
    Contiguous,
    /// In chunks of this shape.
    Chunked(Vec<u64>, Coding),
}

/// The compression of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// No compression.
    Plain,
    /// This compression.
    With(Compression),
    /// The compression that is fastest to read on this machine.
    Fastest,
}

impl StoredForm<'_> {
    /// Returns whether the dataset can be contiguous without a loss.
    pub fn fits_contiguous(&self) -> bool {
        !self.growing && !self.unwritten
    }
}

impl Layout {
    /// Returns whether any dataset changes its layout.
    pub fn changes(&self) -> bool {
        self.purpose.is_some() || self.method.is_some()
    }

    /// Returns how a dataset should be stored.
    pub fn wish(&self, of: &StoredForm<'_>) -> WantedLayout {
        let size = of
            .shape
            .iter()
            .try_fold(of.element, |bytes, &n| bytes.checked_mul(n))
            .unwrap_or(u64::MAX);
        if of.shape.is_empty() {
            return WantedLayout::Keep;
        }
        let is_small = size < SMALLEST;
        let coding = |usual| match self.method {
            None => usual,
            Some(Method::Off) => Coding::Plain,
            Some(Method::With(method)) => Coding::With(method),
        };
        let rows = |bytes| row_block(of.shape, of.element, bytes);
        match (self.purpose, self.method) {
            (None, None) => WantedLayout::Keep,
            (None, Some(Method::Off)) => match of.chunk {
                Some(chunk) if of.filtered && (of.growing || of.unwritten) => {
                    WantedLayout::Chunked(chunk.to_vec(), Coding::Plain)
                }
                Some(_) if of.filtered => WantedLayout::Contiguous,
                _ => WantedLayout::Keep,
            },
            _ if size == 0 => WantedLayout::Keep,
            (Some(Purpose::Mmap), _) if of.contiguous => WantedLayout::Keep,
            (Some(Purpose::Mmap), _) => WantedLayout::Contiguous,
            _ if is_small => WantedLayout::Keep,
            (None, Some(Method::With(method))) => {
                WantedLayout::Chunked(rows(CHUNK), Coding::With(method))
            }
            (Some(Purpose::Samples), _) => {
                let chunk = samples(of.shape, of.element);
                match coding(Coding::Fastest) {
                    // Samples are contiguous without chunks, too.
                    Coding::Plain if of.fits_contiguous() => WantedLayout::Contiguous,
                    coding => WantedLayout::Chunked(chunk, coding),
                }
            }
            (Some(Purpose::Archive), _) => {
                WantedLayout::Chunked(rows(ARCHIVED), coding(Coding::With(Compression::Gzip(9))))
            }
            (Some(Purpose::Cloud), _) => {
                WantedLayout::Chunked(fetched(of), coding(Coding::With(Compression::Gzip(4))))
            }
        }
    }
}

/// Returns the shape of chunks of whole samples: one large sample, or as many small ones as fit into [`SAMPLES`].
fn samples(shape: &[u64], element: u64) -> Vec<u64> {
    let inner = shape.iter().skip(1);
    let sample = inner.fold(element, |bytes, &n| bytes.saturating_mul(n));
    if sample <= SAMPLES {
        row_block(shape, element, SAMPLES)
    } else if sample <= LARGEST_SAMPLE {
        row_block(shape, element, sample)
    } else {
        row_block(shape, element, LARGEST_SAMPLE / 2)
    }
}

/// Returns the bytes of a chunk of whole samples.
pub fn sample_bytes(shape: &[u64], element: u64) -> u64 {
    let chunk = samples(shape, element);
    chunk
        .iter()
        .fold(element, |bytes, &n| bytes.saturating_mul(n))
}

/// Returns the shape of chunks that are worth a network request, based on the existing chunks, if any.
fn fetched(of: &StoredForm<'_>) -> Vec<u64> {
    let (least, most) = FETCHED;
    let Some(chunk) = of.chunk else {
        return row_block(of.shape, of.element, most / 2);
    };
    let mut chunk: Vec<u64> = (chunk.iter().zip(of.shape))
        .map(|(&chunk, &n)| chunk.clamp(1, n.max(1)))
        .collect();
    let bytes = |chunk: &[u64]| {
        let dims = chunk.iter();
        dims.fold(of.element, |bytes, &n| bytes.saturating_mul(n))
    };
    while bytes(&chunk) > most {
        // A single element may be larger. Of several equal axes the first is split, so that rows stay long.
        let Some(longest) = (0..chunk.len())
            .rev()
            .max_by_key(|&k| chunk[k])
            .filter(|&k| chunk[k] > 1)
        else {
            break;
        };
        chunk[longest] = chunk[longest].div_ceil(2);
    }
    while bytes(&chunk) < least {
        // Grows the axis of which the chunk covers the smallest fraction, to keep the shape of chunks.
        let rest = (0..chunk.len()).filter(|&k| chunk[k] < of.shape[k]);
        let Some(k) = rest.max_by_key(|&k| of.shape[k] / chunk[k]) else {
            break;
        };
        chunk[k] = chunk[k].saturating_mul(2).min(of.shape[k]);
    }
    chunk
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form<'a>(shape: &'a [u64], chunk: Option<&'a [u64]>) -> StoredForm<'a> {
        StoredForm {
            shape,
            element: 4,
            chunk,
            filtered: chunk.is_some(),
            growing: false,
            contiguous: chunk.is_none(),
            unwritten: false,
        }
    }

    fn layout(purpose: &str, method: &str) -> Layout {
        Layout {
            purpose: purpose.parse().ok(),
            method: method.parse().ok(),
        }
    }

    #[test]
    fn compression_is_undone_as_the_shape_asks() {
        let off = layout("", "off");
        let mut stored = form(&[100, 100], Some(&[10, 100]));
        assert_eq!(off.wish(&stored), WantedLayout::Contiguous);
        stored.growing = true;
        let chunked = WantedLayout::Chunked(vec![10, 100], Coding::Plain);
        assert_eq!(off.wish(&stored), chunked);
        (stored.growing, stored.unwritten) = (false, true);
        assert_eq!(off.wish(&stored), chunked);
        stored.filtered = false;
        assert_eq!(off.wish(&stored), WantedLayout::Keep);
        assert_eq!(off.wish(&form(&[100, 100], None)), WantedLayout::Keep);
        let mut empty = form(&[0, 100], Some(&[10, 100]));
        empty.unwritten = true;
        assert_eq!(off.wish(&empty), chunked);
    }

    #[test]
    fn samples_are_whole_and_small_ones_together() {
        let wish = |shape: &[u64]| match layout("samples", "").wish(&form(shape, None)) {
            WantedLayout::Chunked(chunk, Coding::Fastest) => chunk,
            other => panic!("{other:?}"),
        };
        // Samples of 1 MiB, 40 000 bytes, 4 bytes and 64 MiB.
        assert_eq!(wish(&[9, 512, 512]), [1, 512, 512]);
        assert_eq!(wish(&[90, 100, 100]), [6, 100, 100]);
        assert_eq!(wish(&[1 << 20]), [65536]);
        assert_eq!(wish(&[9, 4, 1 << 20, 4]), [1, 1, 1 << 20, 4]);
        let mut stored = form(&[90, 100, 100], None);
        let plain = layout("samples", "off").wish(&stored);
        assert_eq!(plain, WantedLayout::Contiguous);
        stored.growing = true;
        let plain = layout("samples", "off").wish(&stored);
        assert_eq!(
            plain,
            WantedLayout::Chunked(vec![6, 100, 100], Coding::Plain)
        );
        assert_eq!(
            layout("samples", "").wish(&form(&[9, 9], None)),
            WantedLayout::Keep
        );
    }

    #[test]
    fn chunks_for_a_network_keep_their_shape() {
        let wish = |shape: &[u64], chunk| match layout("cloud", "").wish(&form(shape, chunk)) {
            WantedLayout::Chunked(chunk, _) => chunk,
            other => panic!("{other:?}"),
        };
        assert_eq!(wish(&[1 << 20, 64], None), [16384, 64]);
        assert_eq!(wish(&[8192, 8192], Some(&[64, 64])), [512, 512]);
        assert_eq!(wish(&[8192, 8192], Some(&[8192, 1])), [8192, 32]);
        assert_eq!(wish(&[8192, 8192], Some(&[8192, 8192])), [1024, 2048]);
        assert_eq!(wish(&[1 << 20], Some(&[1 << 19])), [1 << 19]);
        assert_eq!(wish(&[2000], Some(&[10])), [2000]);
    }

    #[test]
    fn what_is_contiguous_is_as_mmap_wants_it() {
        let mmap = layout("mmap", "");
        assert_eq!(mmap.wish(&form(&[3], None)), WantedLayout::Keep);
        assert_eq!(mmap.wish(&form(&[3], Some(&[3]))), WantedLayout::Contiguous);
        assert_eq!(mmap.wish(&form(&[0], Some(&[3]))), WantedLayout::Keep);
        assert_eq!(mmap.wish(&form(&[], None)), WantedLayout::Keep);
    }
}
