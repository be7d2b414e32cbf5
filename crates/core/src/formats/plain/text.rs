//! Elements of variable length, as a directory with their concatenation and the offset of each. Used for text that is
//! too large for a fixed width, and for sequences of numbers.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::array::ArrayFile;
use crate::dataset::backing::Form;
use crate::dataset::opened::{Measured, OpenStore};
use crate::dataset::text::{MeasuredBlocks, measure, measure_sequences, rows, sequence_rows};
use crate::tree::array::StoredArray;
use crate::tree::{Directory, Listing, Node, VirtualFile, info};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_hdf5::{Attribute, Dataset, Sink, TextForm};
use npyfs_io::content::{Concat, Content, InMemory};
use npyfs_io::file::Ownership;
use npyfs_io::provenance::Provenance;

/// A directory in place of an array: `values.npy` (bytes, `|u1`, or the elements of sequences) and `offsets.npy`
/// (`<i8`, one more than there are elements).
pub struct TextDirectory {
    /// The array. Sequences count as text.
    file: Arc<ArrayFile>,
    /// The element type of sequences; `None` for text.
    sequences: Option<DType>,
}

impl TextDirectory {
    /// Shows a dataset of text.
    pub fn of_text(file: Arc<ArrayFile>) -> Self {
        Self {
            file,
            sequences: None,
        }
    }

    /// Shows a dataset of sequences.
    pub fn of_sequences(file: ArrayFile, dtype: DType) -> Self {
        Self {
            file: Arc::new(file),
            sequences: Some(dtype),
        }
    }

    fn part(&self, part: TextMember) -> Node {
        Node::File(Arc::new(self.text_part(part)))
    }

    fn text_part(&self, part: TextMember) -> TextPart {
        TextPart {
            file: self.file.clone(),
            sequences: self.sequences.clone(),
            part,
        }
    }
}

impl Directory for TextDirectory {
    fn ownership(&self) -> Ownership {
        self.file.ownership()
    }

    fn list(&self) -> Result<Arc<Listing>> {
        Ok(Arc::new(Listing::new(
            vec![
                (b"offsets.npy".to_vec(), self.part(TextMember::Offsets)),
                (b"values.npy".to_vec(), self.part(TextMember::Values)),
            ],
            Vec::new(),
            match self.sequences {
                Some(_) => Vec::new(),
                None => vec![format!(
                    "text of {} elements is larger than text_limit at a fixed width",
                    elements(&self.file.dataset)
                )],
            },
        )))
    }

    fn is_object(&self) -> bool {
        true
    }

    fn array(self: Arc<Self>) -> Result<Option<Arc<dyn StoredArray>>> {
        match self.sequences {
            Some(_) => {
                let why = "sequences of variable length are no array of one element type";
                Err(Error::new(ErrorKind::Os(libc::EOPNOTSUPP), why))
            }
            None => self.file.clone().array(),
        }
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        self.file.attributes()
    }

    fn is_current(&self) -> bool {
        self.file.is_current()
    }

    fn info(&self) -> Result<Json> {
        self.text_part(TextMember::Values).info()
    }
}

fn elements(dataset: &Dataset) -> u64 {
    dataset.shape.iter().product()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TextMember {
    Values,
    Offsets,
}

impl TextMember {
    fn form(self) -> TextForm {
        match self {
            Self::Values => TextForm::Values,
            Self::Offsets => TextForm::Lengths,
        }
    }
}

struct TextPart {
    file: Arc<ArrayFile>,
    sequences: Option<DType>,
    part: TextMember,
}

impl TextPart {
    fn measured(&self) -> Result<Arc<Measured>> {
        let (store, dataset) = (&self.file.store, &self.file.dataset);
        match self.sequences {
            Some(_) => measure_sequences(store, dataset.addr, &dataset.shape),
            None => measure(store, dataset),
        }
    }

    /// Returns the bytes of an element of the values, at least one.
    fn unit(&self) -> u64 {
        let size = self.sequences.as_ref().map_or(1, DType::size);
        (size as u64).max(1)
    }

    fn header(&self, measured: &Measured) -> (Vec<u8>, u64) {
        let bytes = || DType::scalar(Kind::Uint, 1, Order::None);
        let (dtype, len) = match self.part {
            TextMember::Values => (
                self.sequences.clone().unwrap_or_else(bytes),
                measured.measure.ends.last().copied().unwrap_or(0) / self.unit(),
            ),
            TextMember::Offsets => (DType::int(8), elements(&self.file.dataset) + 1),
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
            Arc::new(InMemory(header)) as Arc<dyn Content>,
            Arc::new(TextBytes::new(self, measured, len)),
        ])))
    }

    fn version(&self) -> u64 {
        self.file.version()
    }

    fn is_current(&self) -> bool {
        self.file.is_current()
    }

    fn info(&self) -> Result<Json> {
        let Some(dtype) = &self.sequences else {
            let mut info = self.file.info()?;
            info["shown_as"] = json!("values and offsets: larger than text_limit at a fixed width");
            return Ok(info);
        };
        let (store, dataset) = (&self.file.store, &self.file.dataset);
        let mut map = serde_json::Map::new();
        map.insert("kind".into(), json!(self.file.kind));
        map.insert("file".into(), json!(store.file.path.to_string_lossy()));
        map.insert("path".into(), json!(self.file.path()));
        map.insert("dtype".into(), dtype.json());
        map.insert("shape".into(), json!(dataset.shape));
        let said = "values and offsets: sequences of variable length";
        map.insert("shown_as".into(), json!(said));
        let details = store.context.h5.describe(&store.file, dataset.addr)?;
        info::details(&details, None, &mut map);
        Ok(map.into())
    }
}

/// The payload of one of the two files. Blocks differ in length, so there is no grid.
struct TextBytes {
    file: Arc<ArrayFile>,
    measured: Arc<Measured>,
    part: TextMember,
    /// The rows of a block, along the first dimension.
    rows: u64,
    /// Bytes of an element of the values.
    unit: u64,
    len: u64,
    blocks: MeasuredBlocks,
}

/// The range of a block in the payload, in bytes.
struct BlockRange {
    number: u64,
    start: u64,
    len: u64,
}

fn shorter() -> Error {
    Error::damaged("text is shorter than it was when measured")
}

impl TextBytes {
    fn new(of: &TextPart, measured: Arc<Measured>, len: u64) -> Self {
        let (file, part) = (&of.file, of.part);
        let shape = &file.dataset.shape;
        let rows = match of.sequences {
            Some(_) => sequence_rows(shape),
            None => rows(shape),
        };
        let ends = &measured.measure.ends;
        let largest = match part {
            TextMember::Values => {
                let starts = std::iter::once(&0).chain(ends);
                let lengths = ends
                    .iter()
                    .zip(starts)
                    .map(|(end, at)| end.saturating_sub(*at));
                lengths.max().unwrap_or(0)
            }
            TextMember::Offsets => block_bytes(shape, rows).min(len),
        };
        let (addr, form) = (file.dataset.addr, Form::Text(part.form()).number());
        Self {
            blocks: MeasuredBlocks::new(&file.store, addr, form, largest),
            file: file.clone(),
            measured,
            part,
            rows,
            unit: of.unit(),
            len,
        }
    }

    /// Returns the offset of a block in the values.
    fn start_of(&self, block: u64) -> u64 {
        let ends = &self.measured.measure.ends;
        usize::try_from(block)
            .ok()
            .and_then(|b| b.checked_sub(1))
            .and_then(|before| ends.get(before))
            .copied()
            .unwrap_or(0)
    }

    /// Returns the block that contains byte `at`.
    fn block_at(&self, at: u64) -> BlockRange {
        match self.part {
            TextMember::Values => {
                let ends = &self.measured.measure.ends;
                let number = ends.partition_point(|&end| end <= at);
                let start = self.start_of(number as u64);
                let end = ends.get(number).copied().unwrap_or(start);
                BlockRange {
                    number: number as u64,
                    start,
                    len: end.saturating_sub(start),
                }
            }
            TextMember::Offsets => {
                let bytes = block_bytes(&self.file.dataset.shape, self.rows);
                let start = at - at % bytes;
                // The last offset, after those of all elements, is the length of all values.
                let len = bytes.min(self.len.saturating_sub(8).saturating_sub(start));
                let number = at / bytes;
                BlockRange { number, start, len }
            }
        }
    }

    /// Produces a block: its values, or the offset of each of its elements.
    fn make(&self, block: u64, sink: &mut Sink<'_>) -> Result<()> {
        let dataset = &self.file.dataset;
        let store = &self.file.store;
        let mut shape = dataset.shape.clone();
        let mut start = vec![0; shape.len()];
        let rows = self.rows;
        if let (Some(first), Some(count)) = (start.first_mut(), shape.first_mut()) {
            *first = block * rows;
            *count = rows.min(count.saturating_sub(*first));
        }
        let form = Form::Text(self.part.form());
        let request = OpenStore::block_request(dataset.addr, &start, &shape, form);
        let h5 = &store.context.h5;
        if self.part == TextMember::Values {
            return Ok(h5.stream(&store.file, request, sink)?);
        }
        let (first, unit) = (self.start_of(block) / self.unit, self.unit);
        let mut offset = first;
        let mut lengths_to_offsets = |at, part: &[u8]| {
            if at == 0 {
                offset = first;
            }
            let (lengths, rest) = part.as_chunks::<8>();
            if !rest.is_empty() {
                return Err(std::io::Error::other(shorter()));
            }
            let mut offsets = Vec::with_capacity(part.len());
            for len in lengths {
                offsets.extend_from_slice(&offset.to_le_bytes());
                offset = offset.saturating_add(u64::from_le_bytes(*len) / unit);
            }
            sink(at, &offsets)
        };
        Ok(h5.stream(&store.file, request, &mut lengths_to_offsets)?)
    }
}

/// Returns the bytes of the offsets of a block with this many rows.
fn block_bytes(shape: &[u64], rows: u64) -> u64 {
    let row = shape
        .iter()
        .skip(1)
        .fold(1_u64, |n, &d| n.saturating_mul(d));
    rows.saturating_mul(row).saturating_mul(8).max(8)
}

impl Content for TextBytes {
    fn len(&self) -> u64 {
        self.len
    }

    fn tell_provenance(&self, to: &mut Provenance) -> bool {
        let file = &self.file.store.file;
        to.file(&file.path, &file.identity);
        to.numbers("text", &[self.file.dataset.addr, self.len, self.unit]);
        to.add("part", format!("{:?}", self.part.form()).as_bytes());
        true
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let left = buf.len() - done;
            let last = self.len.saturating_sub(8);
            if self.part == TextMember::Offsets && at >= last {
                let total = self.measured.measure.ends.last().copied().unwrap_or(0) / self.unit;
                let total = total.to_le_bytes();
                let rest = usize::try_from(at - last)
                    .ok()
                    .and_then(|at| total.get(at..));
                let rest = rest.filter(|rest| !rest.is_empty()).ok_or_else(shorter)?;
                let n = rest.len().min(left);
                buf[done..done + n].copy_from_slice(&rest[..n]);
                done += n;
                continue;
            }
            let BlockRange { number, start, len } = self.block_at(at);
            let inside = at - start;
            let n = len.saturating_sub(inside);
            if n == 0 {
                return Err(shorter());
            }
            let n = usize::try_from(n).map_or(left, |n| n.min(left));
            let part = &mut buf[done..done + n];
            self.blocks
                .read(number, len, inside, part, |sink| self.make(number, sink))?;
            done += n;
        }
        Ok(())
    }
}
