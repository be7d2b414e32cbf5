//! What crosses the seam on the way in: a question about one file, or a change of one.
//!
//! Objects are named by their address in the file. What a request says may come from a damaged file: who answers
//! checks it.

use serde::{Deserialize, Serialize};

use super::answer::Slot;
use super::collection::CollectionRequest;
use super::create::{NewChunks, Outline};
use super::edit;
use super::lmdb::LmdbRequest;
use super::lmdb::tables::TablesRequest;
use crate::codec::Pipeline;

/// The names that lead from the root group to a group.
pub type GroupPath = Vec<Vec<u8>>;

/// What can be asked of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// The address of the root group.
    Root,
    /// Members of a group in order of name: at most `most` from number `from` on. With `outside`, also
    /// which datasets may keep their data in other files.
    List {
        group: u64,
        outside: bool,
        from: usize,
        most: usize,
    },
    /// The same with what is below each member, as deep as `depth`, and the attributes of these names.
    Scan {
        group: u64,
        names: Vec<Vec<u8>>,
        depth: usize,
        from: usize,
        most: usize,
    },
    /// Every group once: address and shortest path from the root, first by name.
    Groups,
    /// What holds references to objects, as paths: datasets, and attributes as `OBJECT@NAME`.
    References,
    /// When objects were written, if the file says it.
    Times,
    /// What a path from `group` leads to; soft links are followed, external ones reported.
    Resolve { group: u64, path: Vec<u8> },
    /// How the elements of a dataset are found.
    Map { dataset: u64 },
    /// Everything an object's header says, for people.
    Describe { object: u64 },
    /// The attributes of an object.
    Attributes { object: u64 },
    /// A block of elements, decoded. `outside`: the data may come from other files, which were checked.
    Block {
        dataset: u64,
        start: Vec<u64>,
        shape: Vec<u64>,
        outside: bool,
    },
    /// A chunk that would not fit beside what the caller holds in memory.
    Chunk {
        dataset: u64,
        stored: Box<EncodedChunk>,
    },
    /// The measure of a text dataset, taken in blocks of `rows` along its first dimension.
    MeasureText { dataset: u64, rows: u64 },
    /// A block of a text dataset in one of its forms.
    Text {
        dataset: u64,
        start: Vec<u64>,
        shape: Vec<u64>,
        form: TextForm,
    },
    /// The measures of the texts inside the first `shape` of a dataset's elements, taken in blocks of `rows`.
    MeasureRecord {
        dataset: u64,
        shape: Vec<u64>,
        rows: u64,
    },
    /// A block of a dataset with text inside its elements, each text in its form.
    Record {
        dataset: u64,
        start: Vec<u64>,
        shape: Vec<u64>,
        forms: Vec<TextForm>,
    },
    /// Maps of datasets of the root group, all of them if no names are given; the file may be growing.
    Maps { names: Vec<Vec<u8>> },
    /// About a file that is LMDB.
    Lmdb(LmdbRequest),
    /// Makes the file anew: for the writing worker only.
    Create(Box<Outline>),
    /// Adds chunks to a file that was made so: for the writing worker only.
    WriteChunks(Box<NewChunks>),
    /// Changes a new file: for the editing worker only. Steps are done in their order.
    Edit(Vec<edit::EditStep>),
    /// About a collection that is being written: for the writing worker only.
    Collection(CollectionRequest),
    /// Changes tables of Hangar: for the worker that keeps the writer lock only.
    Tables(TablesRequest),
}

impl Request {
    /// Whether it may open very many objects.
    pub(super) fn opens_many(&self) -> bool {
        matches!(
            self,
            Self::List { .. }
                | Self::Scan { .. }
                | Self::Groups
                | Self::References
                | Self::Times
                | Self::Maps { .. }
        )
    }

    /// Whether the answer holds although the file is written to: what is asked for is only ever added to
    /// (collections under SWMR), or the answer is taken from one transaction (LMDB).
    pub fn bears_writers(&self) -> bool {
        matches!(self, Self::Maps { .. } | Self::Lmdb(_))
    }

    /// Whether libhdf5 opens sources of virtual datasets by their names.
    pub(super) fn reads_sources(&self) -> bool {
        matches!(self, Self::Block { outside: true, .. })
    }

    /// The library that answers.
    pub(super) fn library(&self) -> &'static str {
        match self {
            Self::Lmdb(_) | Self::Tables(_) => "liblmdb",
            _ => "libhdf5",
        }
    }

    /// The address of the object that is asked about; 0 for the file as a whole.
    pub(super) fn object(&self) -> u64 {
        match self {
            Self::Root
            | Self::Groups
            | Self::References
            | Self::Maps { .. }
            | Self::Lmdb(_)
            | Self::Create(_)
            | Self::WriteChunks(_)
            | Self::Edit(_)
            | Self::Collection(_)
            | Self::Tables(_) => 0,
            // It looks at attributes: what it dies of must not cost the file.
            Self::Times => u64::MAX,
            Self::List { group, .. } | Self::Resolve { group, .. } => *group,
            // It looks at attributes, and below the group: what it dies of must not cost the group.
            Self::Scan {
                group, depth: 0, ..
            } => group ^ 1 << 63,
            Self::Scan { group, .. } => !group,
            Self::Map { dataset }
            | Self::Block { dataset, .. }
            | Self::Chunk { dataset, .. }
            | Self::MeasureText { dataset, .. }
            | Self::MeasureRecord { dataset, .. }
            | Self::Record { dataset, .. }
            | Self::Text { dataset, .. } => *dataset,
            Self::Describe { object } | Self::Attributes { object } => *object,
        }
    }
}

/// Everything that decoding one chunk takes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EncodedChunk {
    pub slot: Slot,
    pub pipeline: Pipeline,
    /// An element that was never written.
    pub fill: Vec<u8>,
    /// Shape of the chunk, and of its part from the first corner that is wanted.
    pub chunk: Vec<u64>,
    pub count: Vec<u64>,
    /// Bytes of an element.
    pub element: u64,
}

/// How text is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TextForm {
    /// `|S<width>`.
    Bytes(usize),
    /// `<U<width>`, width in characters.
    Ucs4(usize),
    /// All bytes one after the other, without padding.
    Values,
    /// The length of each element in bytes, as little-endian 64-bit integers.
    Lengths,
}
