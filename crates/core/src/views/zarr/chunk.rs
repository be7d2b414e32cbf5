//! Chunk files.

use std::sync::{Arc, OnceLock};

use serde_json::{Value as Json, json};

use super::array::{ArrayNode, Described};
use super::key;
use crate::tree::array::place_of;
use crate::tree::{LazyEntries, Node, NumberedFiles, VirtualFile};
use npyfs_base::error::Result;
use npyfs_io::content::Content;
use npyfs_io::file::Ownership;

/// The file of one chunk.
pub(super) struct ChunkFile {
    of: Arc<ArrayNode>,
    described: Arc<Described>,
    place: Vec<u64>,
    size: OnceLock<u64>,
}

impl ChunkFile {
    /// Returns the file of the chunk at a place in the grid.
    pub(super) fn node(of: &Arc<ArrayNode>, described: &Arc<Described>, place: Vec<u64>) -> Node {
        Node::File(Arc::new(Self {
            of: of.clone(),
            described: described.clone(),
            place,
            size: OnceLock::new(),
        }))
    }
}

/// The chunk files of an array, written or not, numbered in C order.
struct Grid {
    of: Arc<ArrayNode>,
    described: Arc<Described>,
}

impl NumberedFiles for Grid {
    fn count(&self) -> u64 {
        product(&self.described.counts).unwrap_or(u64::MAX)
    }

    fn version(&self) -> u64 {
        self.of.array.version()
    }

    fn name(&self, at: u64) -> Vec<u8> {
        key::of_chunk(&place_of(at, &self.described.counts))
    }

    fn node(&self, at: u64) -> Node {
        ChunkFile::node(
            &self.of,
            &self.described,
            place_of(at, &self.described.counts),
        )
    }
}

fn product(counts: &[u64]) -> Option<u64> {
    let mut counts = counts.iter();
    counts.try_fold(1_u64, |n, count| n.checked_mul(*count))
}

/// Returns the number of a chunk in C order, in a grid with these counts of chunks along each dimension.
fn number_of(place: &[u64], counts: &[u64]) -> u64 {
    let both = place.iter().zip(counts);
    both.fold(0, |n, (at, count)| {
        n.saturating_mul(*count).saturating_add(*at)
    })
}

impl VirtualFile for ChunkFile {
    fn ownership(&self) -> Ownership {
        self.of.ownership()
    }

    fn size(&self) -> Result<u64> {
        if let Some(&size) = self.size.get() {
            return Ok(size);
        }
        let size = self.of.array.chunk_len(&self.described.of, &self.place)?;
        Ok(*self.size.get_or_init(|| size))
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        self.of.array.chunk(&self.described.of, &self.place)
    }

    fn version(&self) -> u64 {
        self.of.array.version()
    }

    fn is_current(&self) -> bool {
        self.of.is_current()
    }

    fn numbered(&self) -> Option<(Arc<dyn NumberedFiles>, u64)> {
        let grid = Grid {
            of: self.of.clone(),
            described: self.described.clone(),
        };
        Some((
            Arc::new(grid),
            number_of(&self.place, &self.described.counts),
        ))
    }

    fn info(&self) -> Result<Json> {
        Ok(json!({ "kind": "zarr", "chunk": self.place, "shape": self.described.of.chunk }))
    }
}

/// The chunk files of an array, made on demand.
pub(super) struct Chunks {
    pub(super) of: Arc<ArrayNode>,
    pub(super) described: Arc<Described>,
    /// The number of chunks in the grid.
    pub(super) all: u64,
    /// The numbers of the chunks that are shown; `None` shows all.
    pub(super) written: Option<Vec<u64>>,
}

impl LazyEntries for Chunks {
    fn len(&self) -> usize {
        match &self.written {
            Some(written) => written.len(),
            None => usize::try_from(self.all).unwrap_or(usize::MAX),
        }
    }

    fn get(&self, at: usize) -> (Vec<u8>, Node) {
        let number = match &self.written {
            Some(written) => written.get(at).copied().unwrap_or(0),
            None => at as u64,
        };
        let place = place_of(number, &self.described.counts);
        let name = key::of_chunk(&place);
        (name, ChunkFile::node(&self.of, &self.described, place))
    }

    fn find(&self, name: &[u8]) -> Option<Node> {
        let place = key::place(name, &self.described.counts)?;
        if let Some(written) = &self.written {
            let number = number_of(&place, &self.described.counts);
            written.binary_search(&number).ok()?;
        }
        Some(ChunkFile::node(&self.of, &self.described, place))
    }
}
