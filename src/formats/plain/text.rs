//! Text that is too large for a fixed width: a directory with the bytes of all elements one after the other,
//! and where each begins.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::array::ArrayFile;
use crate::dataset::backing::Form;
use crate::dataset::cache::{Key, Piece};
use crate::dataset::text::{Measured, measure, rows};
use crate::error::{Error, ErrorKind, Result};
use crate::hdf5::{Dataset, TextForm};
use crate::io::buffer::Buffer;
use crate::io::content::{Concat, Content, Literal};
use crate::io::file::Ownership;
use crate::npy;
use crate::npy::dtype::{DType, Kind, Order};
use crate::tree::{Directory, Listing, Node, VirtualFile};

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
