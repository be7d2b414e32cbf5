//! A column whose samples are all alike, as one array.
//!
//! A damaged sample affects only its own rows.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::blocks::StackBlocks;
use super::snapshot::ColumnView;
use crate::dataset::access_pattern::AccessPattern;
use crate::dataset::blocks::BlockReader;
use crate::tree::VirtualFile;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy;
use npyfs_base::npy::dtype::DType;
use npyfs_base::thread;
use npyfs_io::content::{Concat, Content, Data, InMemory};
use npyfs_io::file::Ownership;
use npyfs_io::provenance::Provenance;

/// A column as one array of shape `(samples, *shape)`.
pub(super) struct Stack {
    pub view: Arc<ColumnView>,
}

impl Stack {
    /// Makes the stack; all samples of the column of `view` must be alike.
    pub(super) fn new(view: Arc<ColumnView>) -> Self {
        Self { view }
    }

    /// Returns the type and shape of the whole array.
    fn whole(&self) -> Result<(DType, Vec<u64>)> {
        let schema = self.view.schema()?;
        let unlike = || Error::damaged("the samples are not all alike");
        let (dtype, shape) = schema.fixed().ok_or_else(unlike)?;
        let count = self.view.column.len() as u64;
        Ok((dtype.clone(), [&[count], shape].concat()))
    }

    /// Prepares the needs of a reader that begins at the start: records, the maps of the datasets that they name, and
    /// the first blocks.
    fn prepare(&self, rows: &Arc<StackBlocks>, blocks: &Arc<BlockReader>) {
        let repository = self.view.repository().clone();
        let (context, column) = (repository.context.clone(), &self.view.column);
        if repository.folder.far().is_some() {
            let rows = rows.clone();
            // This waits for the network. If no thread can be started, the first reader does the work.
            let _ = thread::spawn("fetch", move || rows.prepare(0));
            return;
        }
        if !repository.has_located(column) {
            context
                .decoders
                .submit(move || repository.hashes.will_need());
        }
        for _ in 0..context.decoders.processors().min(column.located.len()) {
            let rows = rows.clone();
            context.decoders.submit(move || rows.prepare_next());
        }
        blocks.expect();
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
        let pattern = Arc::<AccessPattern>::default();
        let rows = StackBlocks::new(&self.view, dtype, (sample, row), &pattern)?;
        let rows = Arc::new(rows);
        let context = &self.view.repository().context;
        let blocks = BlockReader::new(context, rows.clone(), len, pattern);
        self.prepare(&rows, &blocks);
        Ok(Arc::new(Concat::new([
            Arc::new(InMemory(header)) as Arc<dyn Content>,
            Arc::new(StackedRows {
                view: self.view.clone(),
                row,
                blocks,
            }),
        ])))
    }

    fn version(&self) -> u64 {
        // This is the low half of the hash.
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
    view: Arc<ColumnView>,
    /// The size in bytes of a row.
    row: u64,
    blocks: Arc<BlockReader>,
}

impl Content for StackedRows {
    fn len(&self) -> u64 {
        self.blocks.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.blocks.read_at(offset, buf)
    }

    fn tell_provenance(&self, to: &mut Provenance) -> bool {
        // A digest determines the bytes, independent of their location.
        to.add("stack", self.view.column.provenance().as_bytes());
        to.numbers("row", &[self.row, self.blocks.len()]);
        true
    }

    fn share(&self, offset: u64, len: usize) -> Result<Option<Data>> {
        self.blocks.share(offset, len)
    }
}
