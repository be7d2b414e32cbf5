//! An array: a directory of metadata and of chunk files.
//!
//! The chunk files are numbered in C order and made on demand: nothing is kept for one.

use std::sync::{Arc, OnceLock};

use serde_json::{Value as Json, json};

use super::metadata::DocumentFile;
use super::metadata::{self, ArrayMeta, Documents, Element};
use super::{View, key};
use crate::tree::array::{ArrayDescription, Elements, Presence, StoredArray, place_of};
use crate::tree::{Directory, LazyEntries, Listing, Node, NumberedFiles, VirtualFile};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::content::Content;
use npyfs_io::file::Ownership;

/// An array of the view.
pub(super) struct ArrayNode {
    pub(super) view: Arc<View>,
    /// The group in which the array was found, in its state then.
    pub(super) parent: Arc<dyn Directory>,
    /// The entry of the underlying tree for the same dataset.
    pub(super) shown: Node,
    pub(super) array: Arc<dyn StoredArray>,
    pub(super) described: OnceLock<Arc<Described>>,
}

/// The description of an array, and its metadata.
pub(super) struct Described {
    pub(super) of: ArrayDescription,
    pub(super) documents: Documents,
    /// The number of chunks along each dimension.
    pub(super) counts: Vec<u64>,
    presence: OnceLock<Presence>,
}

impl ArrayNode {
    /// Returns the description of the array.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or Zarr cannot hold the array.
    pub(super) fn described(&self) -> Result<Arc<Described>> {
        if let Some(known) = self.described.get() {
            return Ok(known.clone());
        }
        let of = self.array.describe()?;
        let named = of.details.dimensions.as_ref().ok();
        let dimensions: Vec<Option<String>> = named.map_or(Vec::new(), |named| {
            let named = named.dimensions.iter();
            named
                .map(|one| String::from_utf8(one.name()?.to_vec()).ok())
                .collect()
        });
        let meta = ArrayMeta {
            shape: &of.shape,
            chunks: &of.chunk,
            element: match &of.elements {
                Elements::Fixed(dtype) => Element::Fixed(dtype),
                Elements::Text => Element::Text,
            },
            fill: of.details.fill.as_deref(),
            attributes: &of.details.attributes,
            dimensions: &dimensions,
        };
        let documents = metadata::array(self.view.version, &meta)
            .map_err(|why| Error::new(ErrorKind::Damaged, why))?;
        let counts = of.counts();
        let described = Arc::new(Described {
            of,
            documents,
            counts,
            presence: OnceLock::new(),
        });
        Ok(self.described.get_or_init(|| described).clone())
    }

    /// Returns the set of chunk files. Chunks that were never written are left out if their absence means the same.
    fn presence<'a>(&self, described: &'a Described) -> Result<&'a Presence> {
        if let Some(known) = described.presence.get() {
            return Ok(known);
        }
        let presence = match described.documents.chunks_may_be_absent {
            true => self.array.presence(&described.of)?,
            false => Presence::All,
        };
        Ok(described.presence.get_or_init(|| presence))
    }

    pub(super) fn ownership(&self) -> Ownership {
        match &self.shown {
            Node::File(file) => file.ownership(),
            Node::Directory(dir) => dir.ownership(),
            Node::Symlink(link) => link.ownership,
        }
    }

    pub(super) fn is_current(&self) -> bool {
        self.parent.is_current() && self.array.is_current()
    }
}

/// The directory of an array.
pub(super) struct ArrayView(pub(super) Arc<ArrayNode>);

impl ArrayView {
    fn documents(&self, described: &Described) -> Vec<(Vec<u8>, Node)> {
        let ownership = self.0.ownership();
        let texts = described.documents.texts();
        texts
            .map(|(name, text)| {
                let of = self.0.clone();
                let node = DocumentFile::node(Arc::new(text), ownership, move || of.is_current());
                (name.as_bytes().to_vec(), node)
            })
            .collect()
    }
}

impl Directory for ArrayView {
    fn ownership(&self) -> Ownership {
        self.0.ownership()
    }

    fn list(&self) -> Result<Arc<Listing>> {
        let described = self.0.described()?;
        let mut listing = Listing::new(self.documents(&described), Vec::new(), Vec::new());
        let all = product(&described.counts)
            .ok_or_else(|| Error::new(ErrorKind::TooLarge, "more chunks than can be listed"))?;
        let written = match self.0.presence(&described)? {
            Presence::All => None,
            Presence::Nothing => Some(Vec::new()),
            Presence::Some(is_written) => {
                let here = |&number: &u64| is_written(&place_of(number, &described.counts));
                let written: Vec<u64> = (0..all).filter(here).collect();
                (written.len() as u64 != all).then_some(written)
            }
        };
        listing.many = Some(Arc::new(Chunks {
            of: self.0.clone(),
            described,
            all,
            written,
        }));
        Ok(Arc::new(listing))
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        let described = self.0.described()?;
        if let Some(place) = key::place(name, &described.counts) {
            let is_there = match self.0.presence(&described)? {
                Presence::All => true,
                Presence::Nothing => false,
                Presence::Some(is_written) => is_written(&place),
            };
            return Ok(is_there.then(|| ChunkFile::node(&self.0, &described, place)));
        }
        let mut documents = self.documents(&described).into_iter();
        Ok(documents
            .find(|(known, _)| known == name)
            .map(|(_, node)| node))
    }

    fn is_current(&self) -> bool {
        self.0.is_current()
    }

    fn is_object(&self) -> bool {
        true
    }

    fn info(&self) -> Result<Json> {
        let mut info = match &self.0.shown {
            Node::File(file) => file.info()?,
            Node::Directory(dir) => dir.info()?,
            Node::Symlink(_) => json!({}),
        };
        info["zarr"] = match self.0.described() {
            Ok(described) => {
                let left_out = described.documents.left_out.iter();
                let left_out = left_out.map(|(name, why)| json!({ "attribute": name, "why": why }));
                json!({
                    "chunks": described.of.chunk,
                    "unwritten_chunks_are_left_out": described.documents.chunks_may_be_absent,
                    "left_out": left_out.collect::<Vec<_>>(),
                })
            }
            Err(e) => json!({ "error": e.message }),
        };
        Ok(info)
    }
}

/// The file of one chunk.
struct ChunkFile {
    of: Arc<ArrayNode>,
    described: Arc<Described>,
    place: Vec<u64>,
    size: OnceLock<u64>,
}

impl ChunkFile {
    /// Returns the file of the chunk at a place in the grid.
    fn node(of: &Arc<ArrayNode>, described: &Arc<Described>, place: Vec<u64>) -> Node {
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
struct Chunks {
    of: Arc<ArrayNode>,
    described: Arc<Described>,
    /// The number of chunks in the grid.
    all: u64,
    /// The numbers of the chunks that are shown; `None` shows all.
    written: Option<Vec<u64>>,
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
