//! Text datasets: the fixed width at which they are shown, and blocks of what was measured.
//!
//! Variable-length text has no `.npy` representation of its own (NEP 1 has only fixed widths and pickles). It is
//! measured once per version of the file.
//!
//! Measured blocks are rows that only a worker can produce, such as text of variable length and elements with text
//! inside. The length of a block was measured before, so that room is made in the cache before the block is requested.
//! A block that takes more of the cache than one block may take is written in parts to a temporary file, like a large
//! chunk.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::blocks::SHARE;
use super::cache::{Key, Need};
use super::external;
use super::opened::{Measured, OpenStore};
use super::spill::Spill;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::{
    Attribute, CHARS, DataSource, Dataset, ElementType, Request, Sink, TextForm, TextMeasure,
};

/// Elements per block in which text is measured and read.
const BLOCK_ELEMENTS: u64 = 8192;

/// Returns the rows along the first dimension that make a block.
pub fn rows(shape: &[u64]) -> u64 {
    rows_of(shape, BLOCK_ELEMENTS)
}

fn rows_of(shape: &[u64], elements: u64) -> u64 {
    let row: u64 = shape
        .iter()
        .skip(1)
        .try_fold(1_u64, |n, &d| n.checked_mul(d))
        .unwrap_or(u64::MAX);
    (elements / row.max(1)).max(1)
}

/// Elements per block in which sequences are measured and read: sequences may be long.
const BLOCK_SEQUENCES: u64 = 2048;

/// Returns the rows along the first dimension that make a block of sequences.
pub fn sequence_rows(shape: &[u64]) -> u64 {
    rows_of(shape, BLOCK_SEQUENCES)
}

/// Measures a dataset of sequences: the cumulative bytes up to the end of each block.
pub fn measure_sequences(
    store: &Arc<OpenStore>,
    addr: u64,
    shape: &[u64],
) -> Result<Arc<Measured>> {
    store.measured(addr, || {
        let h5 = &store.context.h5;
        stays_inside(store, &h5.map(&store.file, addr)?.source)?;
        Ok(Measured {
            measure: h5.measure_text(&store.file, addr, sequence_rows(shape))?,
            ..Measured::default()
        })
    })
}

/// Measures a text dataset.
pub fn measure(store: &Arc<OpenStore>, dataset: &Dataset) -> Result<Arc<Measured>> {
    store.measured(dataset.addr, || {
        let h5 = &store.context.h5;
        let chars = match dataset.element {
            ElementType::Text { fixed: Some(_), .. } => {
                written_chars(&h5.attributes(&store.file, dataset.addr)?)
            }
            _ => None,
        };
        let map = h5.map(&store.file, dataset.addr)?;
        stays_inside(store, &map.source)?;
        if !matches!(map.source, DataSource::Fill(_)) {
            let measure = h5.measure_text(&store.file, dataset.addr, rows(&dataset.shape))?;
            return Ok(Measured {
                measure,
                chars,
                ..Measured::default()
            });
        }
        let element = if dataset.shape.contains(&0) {
            Vec::new()
        } else {
            let request = Request::Text {
                dataset: dataset.addr,
                start: vec![0; dataset.shape.len()],
                shape: vec![1; dataset.shape.len()],
                form: TextForm::Values,
            };
            h5.bytes(&store.file, request)?
        };
        let text = std::str::from_utf8(&element);
        Ok(Measured {
            measure: TextMeasure {
                bytes: element.len(),
                chars: text.map_or(0, |t| t.chars().count()),
                utf8: text.is_ok(),
                ascii: element.is_ascii(),
                ends: Vec::new(),
            },
            chars,
            constant: Some(element),
            record: None,
        })
    })
}

/// Refuses text that is composed from datasets in other files.
pub fn stays_inside(store: &Arc<OpenStore>, source: &DataSource) -> Result<()> {
    match source {
        DataSource::Virtual { sources } if external::check_virtual(store, sources)? => Err(
            Error::damaged("text in a virtual dataset whose sources are in other files"),
        ),
        _ => Ok(()),
    }
}

fn written_chars(attributes: &[Attribute]) -> Option<usize> {
    let mark = attributes.iter().find(|a| a.name == CHARS.as_bytes())?;
    let value = mark.value.as_ref().ok()?;
    let is_number = value.dtype == DType::int(8) && value.shape.is_empty();
    let bytes = value.data.as_slice().try_into().ok()?;
    let chars = usize::try_from(i64::from_le_bytes(bytes)).ok()?;
    is_number.then_some(chars)
}

/// Returns the dtype of a measured text dataset, and the form to request.
///
/// `<U` is for valid UTF-8 that is declared as such (h5py's `str`); for fixed-width text only if some of it is not
/// ASCII, or if it was written that way. `|S` is for the rest.
pub fn shown_as(element: &ElementType, measured: &Measured) -> (DType, TextForm) {
    let measure = &measured.measure;
    let longest = match measure.ascii {
        true => measure.bytes,
        false => measure.chars,
    };
    if let (ElementType::Text { fixed: Some(n), .. }, Some(chars)) = (element, measured.chars)
        // The recorded width is untrusted: it must fit the text, and not need more room than the text has.
        && (measure.utf8 || measure.ascii)
        && (longest.max(1)..=*n).contains(&chars)
    {
        return (DType::text(chars), TextForm::Ucs4(chars));
    }
    let (fixed, utf8) = match element {
        ElementType::Text { fixed, utf8 } => (*fixed, *utf8 && measure.utf8),
        ElementType::Fixed { .. } | ElementType::Record { .. } => (None, false),
    };
    if utf8 && !(measure.ascii && fixed.is_some()) {
        let width = measure.chars.max(1);
        return (DType::text(width), TextForm::Ucs4(width));
    }
    let width = fixed.unwrap_or(measure.bytes.max(1));
    (DType::bytes(width), TextForm::Bytes(width))
}

/// Returns true if the text is too large to be shown at a fixed width.
pub fn is_over_limit(store: &Arc<OpenStore>, dataset: &Dataset) -> Result<bool> {
    let ElementType::Text { fixed, .. } = dataset.element else {
        return Ok(false);
    };
    let limit = store.context.options.text_limit();
    let elements = dataset
        .shape
        .iter()
        .try_fold(1_u64, |n, &d| n.checked_mul(d))
        .unwrap_or(u64::MAX);
    // No element is longer than its file: most datasets need no measurement.
    let longest = fixed.map_or(store.file.identity.size, |n| n as u64);
    if elements.saturating_mul(longest.saturating_mul(4)) <= limit {
        return Ok(false);
    }
    let measured = measure(store, dataset)?;
    if measured.constant.is_some() {
        return Ok(false);
    }
    let (dtype, _) = shown_as(&dataset.element, &measured);
    Ok(elements.saturating_mul(dtype.size() as u64) > limit)
}

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
            let _one = self.spilling.lock();
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
