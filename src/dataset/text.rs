//! Text datasets: the fixed width they are shown at, or `values` and `offsets` where that is too large.
//!
//! Variable-length text has no `.npy` form of its own (NEP 1 knows fixed widths and pickles only). It is
//! measured once per version of the file.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::opened::OpenStore;
use super::{external, record};
use crate::dataset::backing::Form;
use crate::dataset::cache::{Key, Piece};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::plain::array::ArrayFile;
use crate::hdf5::{Attribute, CHARS, Dataset, Element, Request, Source, TextForm, TextMeasure};
use crate::io::buffer::Buffer;
use crate::io::content::{Concat, Content, Literal};
use crate::io::file::Ownership;
use crate::npy;
use crate::npy::dtype::{DType, Kind, Order};
use crate::tree::{Directory, Listing, Node, VirtualFile};

/// Elements per block that text is measured and read in.
const BLOCK_ELEMENTS: u64 = 8192;

/// What is known of a dataset with text after one look at all of it.
#[derive(Default)]
pub struct Measured {
    pub measure: TextMeasure,
    /// How elements with text inside are shown.
    record: Option<record::Shown>,
    /// The characters that it says it was written with.
    pub chars: Option<usize>,
    /// The element that stands everywhere, if nothing was ever written.
    pub constant: Option<Vec<u8>>,
}

impl Measured {
    pub fn of_record(shown: record::Shown) -> Self {
        Self {
            record: Some(shown),
            ..Self::default()
        }
    }

    pub fn record(&self) -> Result<&record::Shown> {
        let none = || Error::damaged("no text inside its elements");
        self.record.as_ref().ok_or_else(none)
    }
}

/// Rows along the first dimension that make a block.
pub fn rows(shape: &[u64]) -> u64 {
    let row: u64 = shape
        .iter()
        .skip(1)
        .try_fold(1_u64, |n, &d| n.checked_mul(d))
        .unwrap_or(u64::MAX);
    (BLOCK_ELEMENTS / row.max(1)).max(1)
}

/// Measures a text dataset.
pub fn measure(store: &Arc<OpenStore>, dataset: &Dataset) -> Result<Arc<Measured>> {
    store.measured(dataset.addr, || {
        let h5 = &store.context.h5;
        let chars = match dataset.element {
            Element::Text { fixed: Some(_), .. } => {
                written_chars(&h5.attributes(&store.file, dataset.addr)?)
            }
            _ => None,
        };
        let map = h5.map(&store.file, dataset.addr)?;
        stays_inside(store, &map.source)?;
        if !matches!(map.source, Source::Fill(_)) {
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

/// Refuses text that is composed of datasets in other files.
pub fn stays_inside(store: &Arc<OpenStore>, source: &Source) -> Result<()> {
    match source {
        Source::Virtual { sources } if external::check_virtual(store, sources)? => Err(
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

/// The dtype of a measured text dataset and the form to ask for.
///
/// `<U` is for text that is declared UTF-8 and is it (h5py's `str`); of fixed width only where some of
/// it is not ASCII, or where it was written so. `|S` is for the rest.
pub fn shown_as(element: &Element, measured: &Measured) -> (DType, TextForm) {
    let measure = &measured.measure;
    let longest = match measure.ascii {
        true => measure.bytes,
        false => measure.chars,
    };
    if let (Element::Text { fixed: Some(n), .. }, Some(chars)) = (element, measured.chars)
        // Anybody may have written that: it must fit the text, and ask for no more room than that has.
        && (measure.utf8 || measure.ascii)
        && (longest.max(1)..=*n).contains(&chars)
    {
        return (DType::text(chars), TextForm::Ucs4(chars));
    }
    let (fixed, utf8) = match element {
        Element::Text { fixed, utf8 } => (*fixed, *utf8 && measure.utf8),
        Element::Fixed { .. } | Element::Record { .. } => (None, false),
    };
    if utf8 && !(measure.ascii && fixed.is_some()) {
        let width = measure.chars.max(1);
        return (DType::text(width), TextForm::Ucs4(width));
    }
    let width = fixed.unwrap_or(measure.bytes.max(1));
    (DType::bytes(width), TextForm::Bytes(width))
}

/// Whether the text is too large to be shown at a fixed width.
pub fn is_over_limit(store: &Arc<OpenStore>, dataset: &Dataset) -> Result<bool> {
    let Element::Text { fixed, .. } = dataset.element else {
        return Ok(false);
    };
    let limit = store.context.options.text_limit();
    let elements = dataset
        .shape
        .iter()
        .try_fold(1_u64, |n, &d| n.checked_mul(d))
        .unwrap_or(u64::MAX);
    // No element is longer than the file it is in: most datasets need no look.
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

/// A directory `values.npy` (bytes, `|u1`) and `offsets.npy` (`<i8`, one more than elements) in place of
/// one array.
pub struct TextDirectory {
    pub file: Arc<ArrayFile>,
}

impl TextDirectory {
    fn part(&self, part: Part) -> Node {
        Node::File(Arc::new(TextPart {
            file: self.file.clone(),
            part,
        }))
    }
}

impl Directory for TextDirectory {
    fn ownership(&self) -> Ownership {
        self.file.ownership()
    }

    fn list(&self) -> Result<Arc<Listing>> {
        Ok(Arc::new(Listing::new(
            vec![
                (b"offsets.npy".to_vec(), self.part(Part::Offsets)),
                (b"values.npy".to_vec(), self.part(Part::Values)),
            ],
            Vec::new(),
            vec![format!(
                "text of {} elements is larger than text_limit at a fixed width",
                elements(&self.file.dataset)
            )],
        )))
    }

    fn is_object(&self) -> bool {
        true
    }

    fn is_current(&self) -> bool {
        self.file.is_current()
    }

    fn info(&self) -> Result<Json> {
        let mut info = self.file.info()?;
        info["shown_as"] = json!("values and offsets: larger than text_limit at a fixed width");
        Ok(info)
    }
}

fn elements(dataset: &Dataset) -> u64 {
    dataset.shape.iter().product()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Values,
    Offsets,
}

struct TextPart {
    file: Arc<ArrayFile>,
    part: Part,
}

impl TextPart {
    fn measured(&self) -> Result<Arc<Measured>> {
        measure(&self.file.store, &self.file.dataset)
    }

    fn header(&self, measured: &Measured) -> (Vec<u8>, u64) {
        let (dtype, len) = match self.part {
            Part::Values => (
                DType::scalar(Kind::Uint, 1, Order::None),
                measured.measure.ends.last().copied().unwrap_or(0),
            ),
            Part::Offsets => (DType::int(8), elements(&self.file.dataset) + 1),
        };
        let bytes = len * dtype.size() as u64;
        (npy::header(&dtype, &[len]), bytes)
    }
}

impl VirtualFile for TextPart {
    fn ownership(&self) -> Ownership {
        self.file.ownership()
    }

    fn size(&self) -> Result<u64> {
        let (header, payload) = self.header(&*self.measured()?);
        Ok(header.len() as u64 + payload)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        let measured = self.measured()?;
        let (header, len) = self.header(&measured);
        Ok(Arc::new(Concat::new([
            Arc::new(Literal(header)) as Arc<dyn Content>,
            Arc::new(TextBytes {
                file: self.file.clone(),
                measured,
                part: self.part,
                len,
            }),
        ])))
    }

    fn version(&self) -> u64 {
        self.file.version()
    }

    fn is_current(&self) -> bool {
        self.file.is_current()
    }

    fn info(&self) -> Result<Json> {
        self.file.info()
    }
}

/// The payload of one part; blocks of elements differ in length, so there is no grid.
struct TextBytes {
    file: Arc<ArrayFile>,
    measured: Arc<Measured>,
    part: Part,
    len: u64,
}

impl TextBytes {
    /// Rows of a block and elements of a row.
    fn geometry(&self) -> (u64, u64) {
        let shape = &self.file.dataset.shape;
        (rows(shape), shape.iter().skip(1).product())
    }

    fn block(&self, number: u64, form: TextForm) -> Result<Piece> {
        let store = &self.file.store;
        let key = Key {
            file: store.file.serial,
            object: self.file.dataset.addr,
            form: Form::Text(form).number(),
            piece: number,
        };
        store.context.cache.get(key, || {
            let mut shape = self.file.dataset.shape.clone();
            let mut start = vec![0; shape.len()];
            let (rows, _) = self.geometry();
            if let (Some(first), Some(count)) = (start.first_mut(), shape.first_mut()) {
                *first = number * rows;
                *count = rows.min(count.saturating_sub(*first));
            }
            store.block(self.file.dataset.addr, &start, &shape, Form::Text(form))
        })
    }

    fn start_of(&self, block: u64) -> u64 {
        let ends = &self.measured.measure.ends;
        usize::try_from(block)
            .ok()
            .and_then(|b| b.checked_sub(1))
            .and_then(|before| ends.get(before))
            .copied()
            .unwrap_or(0)
    }

    /// The offset in front of element `n`, as bytes, for each element of the block that holds it.
    fn offsets(&self, block: u64) -> Result<Vec<u8>> {
        let mut at = self.start_of(block);
        let mut out = Vec::new();
        for len in self.block(block, TextForm::Lengths)?.chunks_exact(8) {
            out.extend_from_slice(&at.to_le_bytes());
            let mut raw = [0; 8];
            raw.copy_from_slice(len);
            at = at.saturating_add(u64::from_le_bytes(raw));
        }
        Ok(out)
    }
}

impl Content for TextBytes {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (rows, row) = self.geometry();
        let per_block = rows.saturating_mul(row).saturating_mul(8).max(8);
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let last = self.len - 8;
            let (bytes, start): (Piece, u64) = match self.part {
                Part::Offsets if at >= last => {
                    let total = self.measured.measure.ends.last().copied().unwrap_or(0);
                    (Arc::new(Buffer::from(total.to_le_bytes().to_vec())), last)
                }
                Part::Offsets => {
                    let block = at / per_block;
                    (
                        Arc::new(Buffer::from(self.offsets(block)?)),
                        block * per_block,
                    )
                }
                Part::Values => {
                    let ends = &self.measured.measure.ends;
                    let block = ends.partition_point(|&end| end <= at) as u64;
                    (self.block(block, TextForm::Values)?, self.start_of(block))
                }
            };
            let inside = usize::try_from(at - start).unwrap_or(usize::MAX);
            let part = bytes
                .get(inside..)
                .filter(|p| !p.is_empty())
                .ok_or_else(|| {
                    Error::new(
                        ErrorKind::Damaged,
                        "text is shorter than it was when measured",
                    )
                })?;
            let n = part.len().min(buf.len() - done);
            buf[done..done + n].copy_from_slice(&part[..n]);
            done += n;
        }
        Ok(())
    }
}
