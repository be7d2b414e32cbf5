//! A column whose samples are all alike as one array.
//!
//! A sample that is damaged costs its own rows only.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};

use super::blocks::StackBlocks;
use super::snapshot::ColumnView;
use super::whole::Whole;
use crate::dataset::prefetch::BlockSequence;
use crate::error::{Error, ErrorKind, Result};
use crate::io::content::{Concat, Content, Data, InMemory};
use crate::io::file::Ownership;
use crate::io::provenance::Provenance;
use crate::io::thread;
use crate::npy;
use crate::npy::dtype::DType;
use crate::tree::VirtualFile;

/// Blocks that requests under way use.
const READING: u64 = 4;

/// Large rows of an open file that are kept in files: requests of one reader touch two.
const RECENT: usize = 2;

/// A column as one array of shape `(samples, *shape)`.
pub(super) struct Stack {
    pub view: Arc<ColumnView>,
}

impl Stack {
    /// `view` is of a column in which all samples are alike.
    pub(super) fn new(view: Arc<ColumnView>) -> Self {
        Self { view }
    }

    /// Type and shape of the whole.
    fn whole(&self) -> Result<(DType, Vec<u64>)> {
        let schema = self.view.schema()?;
        let unlike = || Error::damaged("the samples are not all alike");
        let (dtype, shape) = schema.fixed().ok_or_else(unlike)?;
        let count = self.view.column.len() as u64;
        Ok((dtype.clone(), [&[count], shape].concat()))
    }
}

impl VirtualFile for Stack {
    fn ownership(&self) -> Ownership {
        self.view.snapshot.ownership(self.view.changed())
    }

    fn size(&self) -> Result<u64> {
        let (dtype, shape) = self.whole()?;
        super::schema::npy_size(&dtype, &shape)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        let (dtype, shape) = self.whole()?;
        let large = || Error::new(ErrorKind::TooLarge, "larger than a file can be");
        let len = npy::payload_len(&dtype, &shape).ok_or_else(large)?;
        let row = npy::payload_len(&dtype, &shape[1..]).ok_or_else(large)?;
        let header = npy::header(&dtype, &shape);
        let sample = shape[1..].to_vec();
        let rows = StackedRows {
            blocks: Arc::new(StackBlocks::new(&self.view, dtype, sample, (row, len))),
            recent: Mutex::default(),
        };
        rows.prepare();
        Ok(Arc::new(Concat::new([
            Arc::new(InMemory(header)) as Arc<dyn Content>,
            Arc::new(rows),
        ])))
    }

    fn version(&self) -> u64 {
        // The low half of the hash.
        self.view.column.content as u64
    }

    fn is_current(&self) -> bool {
        self.view.snapshot.is_current()
    }

    fn is_lasting(&self) -> bool {
        self.view.snapshot.is_lasting()
    }

    fn info(&self) -> Result<Json> {
        let (dtype, shape) = self.whole()?;
        Ok(json!({
            "kind": "hangar",
            "commit": self.view.snapshot.commit.digest,
            "column": String::from_utf8_lossy(&self.view.name),
            "stacked": true,
            "dtype": dtype.json(),
            "shape": shape,
            "changed": self.view.changed() as f64 / 1e9,
        }))
    }
}

/// The rows without the header.
struct StackedRows {
    blocks: Arc<StackBlocks>,
    /// Rows too large for the cache that were read last.
    recent: Mutex<VecDeque<(usize, Whole)>>,
}

impl StackedRows {
    /// Begins with what a reader from the start will need: records, the maps of the datasets they name, and the
    /// first blocks.
    fn prepare(&self) {
        let context = &self.blocks.view.repository().context;
        let repository = self.blocks.view.repository().clone();
        if self.blocks.is_far() {
            let inner = self.blocks.clone();
            // It waits for the network. Without a thread the first reader does.
            let _ = thread::spawn("fetch", move || inner.prepare(0));
            return;
        }
        if !repository.has_located(&self.blocks.view.column) {
            context
                .decoders
                .submit(move || repository.hashes.will_need());
        }
        let prepared = self.blocks.view.column.located.len();
        for _ in 0..context.decoders.processors().min(prepared) {
            let inner = self.blocks.clone();
            context.decoders.submit(move || inner.prepare_next());
        }
        for number in context.prefetch.first(self.sequence()) {
            let inner = self.blocks.clone();
            context.decoders.submit(move || inner.ahead(number));
        }
    }

    /// The blocks that a reader goes through.
    fn sequence(&self) -> BlockSequence {
        BlockSequence {
            bytes: self.blocks.per_block.saturating_mul(self.blocks.row).max(1),
            count: self.blocks.blocks(),
            row: 1,
            reading: READING,
        }
    }

    fn look_ahead(&self, number: u64) {
        if thread::is_background() {
            return;
        }
        let context = &self.blocks.view.repository().context;
        let blocks = &self.blocks;
        let is_awaited =
            || context.decoders.is_idle() && context.cache.is_under_way(&blocks.key(number));
        let wanted = context
            .prefetch
            .reads(&blocks.pattern, self.sequence(), number, is_awaited);
        for next in wanted {
            if blocks.is_far() {
                blocks.ahead_when_there(next);
                continue;
            }
            let inner = blocks.clone();
            context.decoders.submit(move || inner.ahead(next));
        }
    }

    /// A row by itself; large ones are at hand for the next request.
    fn row(&self, row: usize, large: bool) -> Result<Whole> {
        if !large {
            return self.blocks.single(row);
        }
        let mut recent = self.recent.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, whole)) = recent.iter().find(|(known, _)| *known == row) {
            return Ok(whole.clone());
        }
        let whole = self.blocks.single(row)?;
        recent.truncate(RECENT - 1);
        recent.push_front((row, whole.clone()));
        Ok(whole)
    }

    /// Block, and offset in it.
    fn place(&self, offset: u64) -> (u64, u64) {
        let block = self.blocks.per_block * self.blocks.row;
        (offset / block, offset % block)
    }
}

impl Content for StackedRows {
    fn len(&self) -> u64 {
        self.blocks.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut done = 0;
        let large = self.blocks.is_large();
        let end = offset.saturating_add(buf.len() as u64);
        let by_row = large || !self.blocks.fetch(offset..end)?;
        while done < buf.len() {
            let at = offset + done as u64;
            let (number, inside) = self.place(at);
            let block = match by_row {
                true => None,
                false => {
                    self.look_ahead(number);
                    self.blocks.cached(number).ok()
                }
            };
            let (whole, from) = match block {
                Some(block) => (Whole::Memory(block), inside),
                None => {
                    let row = usize::try_from(at / self.blocks.row);
                    let row = row.map_err(|_| Error::damaged("too many rows"))?;
                    (self.row(row, large)?, at % self.blocks.row)
                }
            };
            let left = usize::try_from(whole.len().saturating_sub(from)).unwrap_or(usize::MAX);
            let n = left.min(buf.len() - done);
            if n == 0 {
                return Err(Error::damaged("fewer bytes than rows"));
            }
            whole.read_at(from, &mut buf[done..done + n])?;
            done += n;
            if !by_row {
                self.blocks.note_read(number, n);
            }
        }
        Ok(())
    }

    fn tell_provenance(&self, to: &mut Provenance) -> bool {
        // A digest says what the bytes are, wherever they lie.
        to.add("stack", self.blocks.view.column.provenance().as_bytes());
        to.numbers("row", &[self.blocks.row, self.blocks.len]);
        true
    }

    fn share(&self, offset: u64, len: usize) -> Result<Option<Data>> {
        let (number, inside) = self.place(offset);
        let from = usize::try_from(inside).unwrap_or(usize::MAX);
        let block = self.blocks.per_block.saturating_mul(self.blocks.row);
        if inside.saturating_add(len as u64) > block {
            return Ok(None);
        }
        let end = offset.saturating_add(len as u64);
        if self.blocks.is_large() || !self.blocks.fetch(offset..end)? {
            return Ok(None);
        }
        self.look_ahead(number);
        // `read_at` finds out which of the samples is damaged.
        Ok(self.blocks.cached(number).ok().and_then(|block| {
            let end = from.checked_add(len).filter(|&end| end <= block.len())?;
            self.blocks.note_read(number, len);
            Some(Data::Shared(block, from..end))
        }))
    }
}
