//! The answers of workers: one variant for each request.
//!
//! All of it was read from an untrusted file: lengths, addresses and counts are what the file says. The code that
//! uses one checks it against the file's size or a limit first.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::budget::Reservation;
use super::lmdb::PackedValues;
use super::lmdb::tables::TablesOutcome;
use super::publish::PublishedLinks;
use super::request::GroupPath;
use super::times::ObjectTimes;
use super::types::ElementType;
use crate::codec::Pipeline;
use crate::npy::dtype::DType;

/// The answer to a request; each request has its own variant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// To `Request::Root`: an address.
    Root(u64),
    /// To `Request::List`.
    Members(GroupMembers),
    /// To `Request::Scan`.
    Scan(GroupScan<ScannedMember>),
    /// To `Request::Groups`: address and path of each.
    Groups(Vec<(u64, GroupPath)>),
    /// To `Request::References`.
    References(Vec<GroupPath>),
    /// To `Request::Targets`.
    Targets(Targets<ScannedMember>),
    /// To `Request::Times`; `None`: the file has none.
    Times(Option<ObjectTimes>),
    /// To `Request::Resolve`.
    Resolved(Resolved),
    /// To `Request::Map`.
    Map(DatasetMap),
    /// To `Request::Describe`.
    Details(Details),
    /// To `Request::Attributes`, in order of name.
    Attributes(Vec<Attribute>),
    /// To the requests for elements or their text, in C order; to `LmdbRequest::Value`.
    Bytes(Vec<u8>),
    /// To `Request::MeasureText`.
    TextMeasure(TextMeasure),
    /// To `Request::MeasureRecord`: one for each text of an element.
    TextMeasures(Vec<TextMeasure>),
    /// To `Request::Maps`.
    Maps(Maps),
    /// To `LmdbRequest::Get`, in the order of the keys; `None`: there is no such key.
    Values(Vec<Option<ByteBuf>>),
    /// To `LmdbRequest::Hashed`, in the order of the hashes.
    Packed(PackedValues),
    /// To `LmdbRequest::Lengths`, in bytes, in the order of the keys; `None`: there is no such key.
    Lengths(Vec<Option<u64>>),
    /// To `LmdbRequest::Rows`: keys and values.
    Rows(Vec<(ByteBuf, ByteBuf)>),
    /// To `Request::Create`: the address of the data of each dataset; 0 where there is none.
    Created(Vec<u64>),
    /// To `Request::Edit`: the reason why each step was refused, if it was.
    Edited(Vec<Result<(), String>>),
    /// To `Request::Publish`.
    Published(PublishedLinks),
    /// To `Request::Tables`.
    Tables(TablesOutcome),
    /// To `Request::Collection`.
    Written,
}

/// Maps of datasets by name, or the reason why one cannot be mapped.
pub type Maps = Vec<(Vec<u8>, Result<DatasetMap, String>)>;

/// The members of a group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GroupMembers {
    /// In order of name; of a large group a part.
    pub members: Vec<(Vec<u8>, GroupMember)>,
    /// The number of members of the group in all.
    pub total: usize,
    /// Set when the group is damaged and some members are missing.
    pub damage: Option<String>,
}

/// A group with what is below it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GroupScan<T> {
    /// The group's own attributes, of those that were asked for.
    pub attributes: Vec<Attribute>,
    /// In order of name; of a large group a part.
    pub members: Vec<T>,
    /// The number of members of the group in all.
    pub total: usize,
    /// Set when the group is damaged and some members are missing.
    pub damage: Option<String>,
}

/// A member of a group that was scanned.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ScannedMember {
    /// The name of the link.
    pub name: Vec<u8>,
    /// The object it leads to.
    pub member: GroupMember,
    /// Its attributes, of those that were asked for.
    pub attributes: Vec<Attribute>,
    /// The members of a group; `None` if it was not entered: it is damaged, deep, or large and without any
    /// of the attributes, or was entered before.
    pub members: Option<Vec<ScannedMember>>,
}

impl ScannedMember {
    /// Makes a member without attributes and without members.
    pub(super) fn leaf(name: Vec<u8>, member: GroupMember) -> Self {
        Self {
            name,
            member,
            attributes: Vec::new(),
            members: None,
        }
    }
}

/// The objects that the elements of a dataset refer to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Targets<T> {
    /// Shape of the dataset.
    pub shape: Vec<u64>,
    /// In C order, without names; of a large dataset a part.
    pub targets: Vec<T>,
}

/// The object that a link of a group leads to, or the link, if it is not a hard one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum GroupMember {
    /// A group.
    Group {
        /// Its address.
        addr: u64,
        /// The number of hard links to it, as its header claims.
        links: u32,
    },
    /// A dataset that `.npy` can hold.
    Dataset(Dataset),
    /// A soft link with its path, which was not followed.
    Soft(Vec<u8>),
    /// An external link, which was not followed.
    External {
        /// The name of the file.
        file: Vec<u8>,
        /// The path of the object in it.
        path: Vec<u8>,
    },
    /// A dataset that `.npy` cannot hold, or an object that is no data.
    Unsupported {
        /// Its address.
        addr: u64,
        /// The reason, for people.
        reason: String,
        /// Set for sequences of variable length, which a directory can show.
        sequences: Option<Box<SequenceArray>>,
    },
    /// An object that could not be opened, with the reason.
    Damaged(String),
}

/// A dataset whose elements are sequences of variable length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceArray {
    /// Type of the elements of the sequences.
    pub dtype: DType,
    /// Shape of the dataset.
    pub shape: Vec<u64>,
}

/// A dataset as a listing has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Dataset {
    /// Its address.
    pub addr: u64,
    /// The form of its elements.
    pub element: ElementType,
    /// Dimensions of the dataset, then those of an array datatype.
    pub shape: Vec<u64>,
    /// Its data may lie in other files (external raw data, virtual datasets); only if the listing asked.
    pub outside: bool,
}

/// A map of a dataset: where its elements lie, so that they are read without libhdf5, or that libhdf5 must be asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DatasetMap {
    /// The address of the dataset.
    pub addr: u64,
    /// The form of its elements.
    pub element: ElementType,
    /// Dimensions of the dataset, then those of an array datatype.
    pub shape: Vec<u64>,
    /// The number of these dimensions that are the dataset's own.
    pub rank: usize,
    /// The place of the bytes.
    pub source: DataSource,
}

impl DatasetMap {
    /// Returns the number of chunks in its table.
    pub fn chunks(&self) -> usize {
        match &self.source {
            DataSource::Chunked {
                direct: Some(direct),
                ..
            } => direct.table.slots.len(),
            _ => 0,
        }
    }
}

/// The place of the bytes of a dataset.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum DataSource {
    /// Nowhere, as none was ever written: the element that stands for all.
    Fill(Vec<u8>),
    /// In the object header: all bytes, in C order.
    Compact(Vec<u8>),
    /// At an address in the file, in C order.
    Contiguous {
        /// The address, with the user block counted in.
        addr: u64,
    },
    /// In raw files, one after the other.
    Raw {
        /// The parts, in order.
        files: Vec<RawPart>,
        /// The element that stands behind the last part.
        fill: Vec<u8>,
    },
    /// In filtered chunks.
    Chunked {
        /// Shape of a chunk, of the rank of the dataset.
        chunk: Vec<u64>,
        /// Chunk table and filters, if the chunks can be read without libhdf5.
        direct: Option<DirectChunks>,
        /// The reason why the chunk table cannot be right; libhdf5 reads the chunks then, and finds what is wrong with
        /// each.
        refused: Option<String>,
        /// There was no memory for the chunk table at the moment.
        crowded: bool,
    },
    /// In the datasets of a virtual dataset.
    Virtual {
        /// Name of the file and path of the dataset of each source.
        sources: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// Known to libhdf5 only, or in need of a conversion: it is read in rows.
    Library,
}

/// All that is needed to read chunks without libhdf5.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DirectChunks {
    /// The filters.
    pub pipeline: Pipeline,
    /// The places of the chunks.
    pub table: ChunkTable,
    /// The element that stands where no chunk is stored.
    pub fill: Vec<u8>,
}

/// The places of the stored chunks of a dataset.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ChunkTable {
    /// The chunks of the grid over the current shape, in C order.
    pub slots: Vec<Slot>,
    /// The memory that is reserved for it.
    #[serde(skip)]
    pub room: Option<Arc<Reservation>>,
}

/// The place of a stored chunk in the file; size 0: there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Address in the file, with the user block counted in.
    pub addr: u64,
    /// Bytes as they are stored.
    pub size: u32,
    /// Bit `i` set: filter `i` was not applied.
    pub mask: u32,
}

/// The part of a dataset in one external raw file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RawPart {
    /// The name of the file, as the dataset has it.
    pub name: Vec<u8>,
    /// The offset in it at which the part begins, in bytes.
    pub offset: u64,
    /// Bytes of the part; `u64::MAX`: as much as is needed.
    pub len: u64,
}

/// The object that a path leads to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Resolved {
    /// An object of the file.
    Member(GroupMember),
    /// An external link on the way.
    External {
        /// The name of the file.
        file: Vec<u8>,
        /// The path in it: that of the link, and what follows the link.
        path: Vec<u8>,
    },
    /// Nothing.
    Missing,
}

/// All that an object's header says, for people. Of a group or a named type only the attributes are there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Details {
    /// `compact`, `contiguous`, `external`, `chunked` or `virtual`.
    pub layout: Option<String>,
    /// The maximum shape; `None` for an unlimited dimension.
    pub max_shape: Option<Vec<Option<u64>>>,
    /// The shape of a chunk.
    pub chunks: Option<Vec<u64>>,
    /// The filters, in the order of writing.
    pub filters: Vec<FilterInfo>,
    /// Bytes in the file; `None` where the chunk index cannot be read.
    pub stored_size: Option<u64>,
    /// The reason why the chunk index cannot be read.
    pub damage: Option<String>,
    /// The fill value, as an element is shown.
    pub fill: Option<Vec<u8>>,
    /// The fill value was set when the dataset was made; otherwise it is that of HDF5.
    pub fill_is_set: bool,
    /// Members of compounds that are not shown, with the reasons.
    pub left_out: Vec<(String, String)>,
    /// Names of external raw files or virtual sources.
    pub outside: Vec<Vec<u8>>,
    /// Names of its dimensions, or the reason why they cannot be told.
    pub dimensions: Result<Dimensions, String>,
    /// In order of name.
    pub attributes: Vec<Attribute>,
}

impl Details {
    /// Returns the details of what is stored nowhere and has attributes only.
    pub fn of_group(attributes: Vec<Attribute>) -> Self {
        Self {
            layout: None,
            max_shape: None,
            chunks: None,
            filters: Vec::new(),
            stored_size: None,
            damage: None,
            fill: None,
            fill_is_set: false,
            left_out: Vec::new(),
            outside: Vec::new(),
            dimensions: Ok(Dimensions::default()),
            attributes,
        }
    }
}

/// The dimensions of a dataset as HDF5's dimension scales, netCDF-4 and labels name them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dimensions {
    /// One for each dimension of the dataset, or none if nothing names them.
    pub dimensions: Vec<Dimension>,
    /// The dataset is a dimension scale itself.
    pub is_scale: bool,
}

/// A dimension of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dimension {
    /// The path of its first dimension scale, which is the dataset itself where that is a scale of one dimension.
    pub scale: Option<GroupPath>,
    /// Its label, which is not empty.
    pub label: Option<Vec<u8>>,
    /// The length that another dataset gives it, if it is unlimited and this one is shorter.
    pub length: Option<u64>,
}

impl Dimension {
    /// Returns its name: the own name of its scale, or else its label.
    pub fn name(&self) -> Option<&[u8]> {
        let scale = self.scale.as_ref().and_then(|path| path.last());
        scale.or(self.label.as_ref()).map(Vec::as_slice)
    }
}

/// One step of a filter pipeline.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FilterInfo {
    /// Number in HDF5's registry of filters.
    pub id: i32,
    /// Name in the file.
    pub name: String,
    /// Parameters, whose meaning the filter knows.
    pub parameters: Vec<u32>,
    /// This build can undo it.
    pub available: bool,
}

/// An attribute of an object.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Attribute {
    /// Its name.
    pub name: Vec<u8>,
    /// Its value, or the reason why it cannot be shown.
    pub value: Result<Value, String>,
    /// What it refers to, if it consists of references to objects: `value` has no form for these.
    pub references: Option<References>,
}

/// An array of references to objects, or of sequences of such references.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct References {
    /// Shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// Each element is a sequence, and not a single reference.
    pub sequences: bool,
    /// The elements in C order; one reference each unless they are sequences.
    pub elements: Vec<Vec<Reference>>,
}

/// The path of the object that a reference leads to, which is empty for the root group; `None`: it leads nowhere by intention.
pub type Reference = Option<GroupPath>;

/// A small array in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// Type of the elements.
    pub dtype: DType,
    /// Shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// The elements in C order, as the payload of an `.npy` file.
    pub data: Vec<u8>,
}

/// Widths and encoding of the texts of a dataset, or of one text in its elements.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TextMeasure {
    /// Bytes of the longest text.
    pub bytes: usize,
    /// Characters of the longest text; meaningful if `utf8`.
    pub chars: usize,
    /// Every text is valid UTF-8.
    pub utf8: bool,
    /// Every text is ASCII.
    pub ascii: bool,
    /// Bytes of all texts up to the end of each block, for a text dataset.
    pub ends: Vec<u64>,
}
