//! What crosses the seam on the way out: one form of answer for each request.
//!
//! All of it was read from a file that nobody trusts: lengths, addresses and counts are what the file says, and whoever
//! uses one checks it against the file's size or a limit first.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::budget::Reservation;
use super::lmdb::PackedValues;
use super::lmdb::tables::TablesOutcome;
use super::request::GroupPath;
use super::times::ObjectTimes;
use super::types::ElementType;
use crate::codec::Pipeline;
use crate::npy::dtype::DType;

/// What comes back; each request has its own variant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    Root(u64),
    Members(GroupMembers),
    Scan(GroupScan<ScannedMember>),
    Groups(Vec<(u64, GroupPath)>),
    References(Vec<GroupPath>),
    Times(Option<ObjectTimes>),
    Resolved(Resolved),
    Map(DatasetMap),
    Details(Details),
    Attributes(Vec<Attribute>),
    Bytes(Vec<u8>),
    TextMeasure(TextMeasure),
    TextMeasures(Vec<TextMeasure>),
    Maps(Maps),
    Values(Vec<Option<ByteBuf>>),
    Packed(PackedValues),
    Lengths(Vec<Option<u64>>),
    /// Keys and values.
    Rows(Vec<(ByteBuf, ByteBuf)>),
    /// Where the data of each new dataset lies; 0 where there is none.
    Created(Vec<u64>),
    /// Why each step was refused, if it was.
    Edited(Vec<Result<(), String>>),
    Tables(TablesOutcome),
    Written,
}

/// Maps of datasets by name; a dataset that cannot be mapped says why.
pub type Maps = Vec<(Vec<u8>, Result<DatasetMap, String>)>;

/// The members of a group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GroupMembers {
    /// In order of name; of a large group a part.
    pub members: Vec<(Vec<u8>, GroupMember)>,
    /// How many members the group has in all.
    pub total: usize,
    /// Set when the group is damaged and some members are missing.
    pub damage: Option<String>,
}

/// A group with what is below it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GroupScan<T> {
    /// The attributes asked for of the group itself.
    pub attributes: Vec<Attribute>,
    /// In order of name; of a large group a part.
    pub members: Vec<T>,
    /// How many members the group has in all.
    pub total: usize,
    /// Set when the group is damaged and some members are missing.
    pub damage: Option<String>,
}

/// A member of a group that was scanned.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScannedMember {
    pub name: Vec<u8>,
    pub member: GroupMember,
    /// The attributes asked for that it has.
    pub attributes: Vec<Attribute>,
    /// What is in a group; `None` if it was not entered: it is damaged, deep, or large and without any
    /// of the attributes, or was met before.
    pub members: Option<Vec<ScannedMember>>,
}

impl ScannedMember {
    pub(super) fn leaf(name: Vec<u8>, member: GroupMember) -> Self {
        Self {
            name,
            member,
            attributes: Vec::new(),
            members: None,
        }
    }
}

/// What a link of a group leads to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum GroupMember {
    Group {
        addr: u64,
        /// Hard links to it, as its header claims.
        links: u32,
    },
    Dataset(Dataset),
    Soft(Vec<u8>),
    External {
        file: Vec<u8>,
        path: Vec<u8>,
    },
    /// A dataset that `.npy` cannot hold, or an object that is no data.
    Unsupported {
        addr: u64,
        reason: String,
    },
    /// An object that could not be opened.
    Damaged(String),
}

/// A dataset as far as a listing needs it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Dataset {
    pub addr: u64,
    pub element: ElementType,
    /// Dimensions of the dataset, then those of an array datatype.
    pub shape: Vec<u64>,
    /// Its data may lie in other files (external raw data, virtual datasets); only if the listing asked.
    pub outside: bool,
}

/// How the elements of a dataset are found without libhdf5, or that libhdf5 must be asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DatasetMap {
    pub addr: u64,
    pub element: ElementType,
    /// Dimensions of the dataset, then those of an array datatype.
    pub shape: Vec<u64>,
    /// How many of them are the dataset's own.
    pub rank: usize,
    pub source: DataSource,
}

/// Where the bytes are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum DataSource {
    /// Never written: every element is this.
    Fill(Vec<u8>),
    /// In the object header, whole.
    Compact(Vec<u8>),
    /// At an address in the file, in C order.
    Contiguous { addr: u64 },
    /// In raw files, one after the other.
    Raw { files: Vec<RawPart>, fill: Vec<u8> },
    /// In chunks of this shape, filtered.
    Chunked {
        chunk: Vec<u64>,
        /// Where they are and how to decode them, if that can be done without libhdf5.
        direct: Option<DirectChunks>,
        /// Why their table was not believed; libhdf5 reads them then, and finds what is wrong with each.
        refused: Option<String>,
        /// There was no room for their table just now.
        crowded: bool,
    },
    /// Composed of other datasets.
    Virtual { sources: Vec<(Vec<u8>, Vec<u8>)> },
    /// Only libhdf5 can say (conversion needed); it is read in rows.
    Library,
}

/// What it takes to read chunks without libhdf5.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DirectChunks {
    pub pipeline: Pipeline,
    pub table: ChunkTable,
    /// The element that stands where no chunk is stored.
    pub fill: Vec<u8>,
}

/// Where the chunks of the current grid are stored, in C order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ChunkTable {
    pub slots: Vec<Slot>,
    /// Its share of the memory for tables.
    #[serde(skip)]
    pub room: Option<Arc<Reservation>>,
}

/// One place of the grid; size 0: no chunk is stored there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Address in the file, the user block included.
    pub addr: u64,
    pub size: u32,
    /// Bit `i` set: filter `i` was not applied.
    pub mask: u32,
}

/// A piece of an external raw file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RawPart {
    pub name: Vec<u8>,
    pub offset: u64,
    /// `u64::MAX`: as much as is needed.
    pub len: u64,
}

/// The end of a path.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Resolved {
    Member(GroupMember),
    /// An external link in the middle, with what follows it.
    External {
        file: Vec<u8>,
        path: Vec<u8>,
    },
    Missing,
}

/// What an object's header says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Details {
    pub layout: Option<String>,
    pub max_shape: Option<Vec<Option<u64>>>,
    pub chunks: Option<Vec<u64>>,
    pub filters: Vec<FilterInfo>,
    /// `None` where the chunk index cannot be read.
    pub stored_size: Option<u64>,
    /// Why it cannot be read.
    pub damage: Option<String>,
    pub fill: Option<Vec<u8>>,
    /// Members of compounds that are not shown, and why.
    pub left_out: Vec<(String, String)>,
    /// Names of external raw files or virtual sources.
    pub outside: Vec<Vec<u8>>,
    pub attributes: Vec<Attribute>,
}

/// One step of a filter pipeline.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FilterInfo {
    pub id: i32,
    pub name: String,
    pub parameters: Vec<u32>,
    /// Whether this build can undo it.
    pub available: bool,
}

/// An attribute and its value, or why there is none.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Attribute {
    pub name: Vec<u8>,
    pub value: Result<Value, String>,
}

/// A small array in memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Value {
    pub dtype: DType,
    pub shape: Vec<u64>,
    /// The bytes of an `.npy` payload.
    pub data: Vec<u8>,
}

/// What one pass over a text dataset found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TextMeasure {
    /// Longest element.
    pub bytes: usize,
    /// Longest element in characters; meaningful if `utf8`.
    pub chars: usize,
    /// Every element is valid UTF-8.
    pub utf8: bool,
    /// Every element is ASCII.
    pub ascii: bool,
    /// Bytes of all elements before the end of each block.
    pub ends: Vec<u64>,
}
