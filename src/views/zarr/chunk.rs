//! Chunk files.

use std::sync::{Arc, OnceLock};

use serde_json::{Value as Json, json};

use super::array::{ArrayNode, Described};
use super::key;
use crate::error::Result;
use crate::io::content::Content;
use crate::io::file::Ownership;
use crate::tree::array::place_of;
use crate::tree::{LazyEntries, Node, VirtualFile};

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

    fn info(&self) -> Result<Json> {
        Ok(json!({ "kind": "zarr", "chunk": self.place, "shape": self.described.of.chunk }))
    }
}

/// The chunk files of an array, made when they are asked for.
pub(super) struct Chunks {
    pub(super) of: Arc<ArrayNode>,
    pub(super) described: Arc<Described>,
    /// The number of chunks in the grid.
    pub(super) all: u64,
    /// The numbers of those that are shown; `None`: all.
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
            let counts = place.iter().zip(&self.described.counts);
            let number = counts.fold(0_u64, |n, (at, count)| {
                n.saturating_mul(*count).saturating_add(*at)
            });
            written.binary_search(&number).ok()?;
        }
        Some(ChunkFile::node(&self.of, &self.described, place))
    }
}
