//! The requests to workers: a question about one file, or a change of one.
//!
//! Objects are named by their address in the file. What a request says may come from a damaged file: the worker
//! checks it.

use serde::{Deserialize, Serialize};

use super::answer::Slot;
use super::create::{CollectionRequest, NewChunks, Outline};
use super::edit::{EditStep, Holders, NewPublication};
use super::lmdb::{LmdbRequest, TablesRequest};
use super::text::TextForm;
use npyfs_codec::Pipeline;

/// Where a part of a group begins, in order of name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum FirstMember {
    /// With the member of this number. The worker holds the names of all members meanwhile.
    Number(usize),
    /// With the first member behind this name. The worker holds the names of the part.
    After(Vec<u8>),
    /// With the first one if the answer can hold the whole group. Otherwise with the member of this name, and there is
    /// no other in the answer; none at all if the group has less than `least`.
    Named {
        /// The name in the file.
        name: Vec<u8>,
        /// The number of members of a group of which a single one is worth the question.
        least: usize,
    },
}

/// A question about one file, or a change of one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Asks for the address of the root group.
    Root,
    /// Asks for members of a group, in order of name.
    List {
        /// Address of the group.
        group: u64,
        /// Look as well which datasets may keep their data in other files.
        outside: bool,
        /// The first member wanted.
        from: FirstMember,
        /// Most members in the answer.
        most: usize,
    },
    /// Asks for the members of a group with what is below them, and some of their attributes.
    Scan {
        /// Address of the group.
        group: u64,
        /// Names of the attributes wanted.
        names: Vec<Vec<u8>>,
        /// The number of levels below the members that are looked at.
        depth: usize,
        /// Number of the first member wanted.
        from: usize,
        /// Most members in the answer.
        most: usize,
    },
    /// Asks for the dimensions that a group of a netCDF-4 file defines: its dimension scales.
    Scales {
        /// Address of the group.
        group: u64,
        /// The name of the file says that it is netCDF; otherwise an attribute of its root must.
        is_netcdf: bool,
    },
    /// Asks for every group once: address and shortest path from the root, first by name.
    Groups,
    /// Asks what holds references to objects, as paths: datasets, and attributes as `OBJECT@NAME`.
    References,
    /// Asks for the objects that the elements of a dataset refer to, and some of their attributes.
    Targets {
        /// Address of the dataset.
        dataset: u64,
        /// Names of the attributes wanted.
        names: Vec<Vec<u8>>,
        /// Number of the first element wanted, in C order.
        from: usize,
        /// Most elements in the answer.
        most: usize,
    },
    /// Asks when objects were written, if the file says it.
    Times,
    /// Asks where a path leads; soft links are followed, external ones reported.
    Resolve {
        /// Address of the group that a relative path starts from.
        group: u64,
        /// The path, of names between slashes.
        path: Vec<u8>,
    },
    /// Asks where the elements of a dataset lie.
    Map {
        /// Address of the dataset.
        dataset: u64,
        /// The chunk table is wanted even if there are very many chunks.
        whole: bool,
    },
    /// Asks for everything that an object's header says, for people.
    Describe {
        /// Address of the object.
        object: u64,
    },
    /// Asks for the attributes of an object.
    Attributes {
        /// Address of the object.
        object: u64,
    },
    /// Reads a block of elements of fixed size.
    Block {
        /// Address of the dataset.
        dataset: u64,
        /// Coordinates of the first element.
        start: Vec<u64>,
        /// Shape of the block, of the dataset's rank.
        shape: Vec<u64>,
        /// The data may come from other files, which were checked.
        outside: bool,
    },
    /// Decodes a chunk that would not fit beside what the caller holds in memory.
    Chunk {
        /// Address of the dataset.
        dataset: u64,
        /// The chunk.
        stored: Box<EncodedChunk>,
    },
    /// Measures a text dataset.
    MeasureText {
        /// Address of the dataset.
        dataset: u64,
        /// Rows along the first dimension of each block that is read, and measured, at a time.
        rows: u64,
    },
    /// Reads a block of a text dataset in one of its forms.
    Text {
        /// Address of the dataset.
        dataset: u64,
        /// Coordinates of the first element.
        start: Vec<u64>,
        /// Shape of the block, of the dataset's rank.
        shape: Vec<u64>,
        /// Form of each text.
        form: TextForm,
    },
    /// Measures the texts inside the elements of a dataset.
    MeasureRecord {
        /// Address of the dataset.
        dataset: u64,
        /// Shape of the part that is looked at, from the first element on.
        shape: Vec<u64>,
        /// Rows along the first dimension of each block that is read at a time.
        rows: u64,
    },
    /// Reads a block of a dataset with text inside its elements.
    Record {
        /// Address of the dataset.
        dataset: u64,
        /// Coordinates of the first element.
        start: Vec<u64>,
        /// Shape of the block, of the dataset's rank.
        shape: Vec<u64>,
        /// Form of each text of an element.
        forms: Vec<TextForm>,
    },
    /// Asks for the maps of datasets of the root group; the file may be growing.
    Maps {
        /// Names of the datasets; all, if there are none.
        names: Vec<Vec<u8>>,
    },
    /// Asks about a file of LMDB.
    Lmdb(LmdbRequest),
    /// Makes the file anew: for the writing worker only.
    Create(Box<Outline>),
    /// Adds chunks to a file that `Create` made: for the writing and the editing worker only.
    WriteChunks(Box<NewChunks>),
    /// Changes a new file, step by step: for the editing worker only.
    Edit {
        /// The changes, in their order.
        steps: Vec<EditStep>,
        /// The datasets whose attributes are objects.
        holders: Holders,
    },
    /// Makes the file anew, of links into others: for the editing worker only.
    Publish(Box<NewPublication>),
    /// Makes or extends a collection: for the writing worker only.
    Collection(CollectionRequest),
    /// Changes LMDB tables: for the worker that keeps the writer lock only.
    Tables(TablesRequest),
}

impl Request {
    /// Returns whether it may open very many objects.
    pub fn opens_many(&self) -> bool {
        matches!(
            self,
            Self::List { .. }
                | Self::Scan { .. }
                | Self::Scales { .. }
                | Self::Groups
                | Self::References
                | Self::Targets { .. }
                | Self::Times
                | Self::Maps { .. }
        )
    }

    /// Returns whether the answer holds although the file is written to: what is asked for is only ever added to
    /// (collections under SWMR), or the answer is taken from one transaction (LMDB).
    pub fn bears_writers(&self) -> bool {
        matches!(self, Self::Maps { .. } | Self::Lmdb(_))
    }

    /// Returns whether libhdf5 opens sources of virtual datasets by their names.
    pub fn reads_sources(&self) -> bool {
        matches!(self, Self::Block { outside: true, .. })
    }

    /// Returns the name of the library that answers.
    pub fn library(&self) -> &'static str {
        match self {
            Self::Lmdb(_) | Self::Tables(_) => "liblmdb",
            _ => "libhdf5",
        }
    }

    /// Returns the address of the object that is asked about, to mark it bad by; 0 for the file as a whole.
    pub fn object(&self) -> u64 {
        match self {
            Self::Root
            | Self::Groups
            | Self::References
            | Self::Maps { .. }
            | Self::Lmdb(_)
            | Self::Create(_)
            | Self::WriteChunks(_)
            | Self::Edit { .. }
            | Self::Publish(_)
            | Self::Collection(_)
            | Self::Tables(_) => 0,
            // The request reads attributes: a crash there must not cost the file.
            Self::Times => u64::MAX,
            Self::List { group, .. } | Self::Resolve { group, .. } => *group,
            // The request reads attributes, and looks below the group: a crash there must not cost the group.
            Self::Scan {
                group, depth: 0, ..
            } => group ^ 1 << 63,
            Self::Scan { group, .. } => !group,
            // The request looks at members and at datasets along them: a crash there must not cost the group.
            Self::Scales { group, .. } => *group ^ 1 << 62,
            // The request looks at other objects: a crash there must not cost the dataset.
            Self::Targets { dataset, .. } => *dataset ^ 1 << 61,
            Self::Map { dataset, .. }
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

/// A chunk as it is stored, and all that is needed to decode it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EncodedChunk {
    /// The place in the file at which it is stored.
    pub slot: Slot,
    /// The filters.
    pub pipeline: Pipeline,
    /// The element that stands where none was written.
    pub fill: Vec<u8>,
    /// Shape of the chunk.
    pub chunk: Vec<u64>,
    /// Shape of the part of it that is wanted, from its first element on.
    pub count: Vec<u64>,
    /// Bytes of an element.
    pub element: u64,
}
