//! The answers of workers: one variant for each request.
//!
//! All of it was read from an untrusted file: lengths, addresses and counts are what the file says. The code that
//! uses one checks it against the file's size or a limit first.

use std::collections::HashMap;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::edit::PublishedLinks;
use super::element::{ElementType, Value};
use super::error::H5Error;
use super::lmdb::{PackedValues, TablesOutcome};
use super::text::TextMeasure;
use npyfs_base::npy::dtype::DType;
use npyfs_codec::Pipeline;

/// The names that lead from the root group to a group.
pub type GroupPath = Vec<Vec<u8>>;

/// The answer to a request; each request has its own variant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// To `Request::Root`: an address.
    Root(u64),
    /// To `Request::List`.
    Members(GroupMembers),
    /// To `Request::Scan`.
    Scan(GroupScan<ScannedMember>),
    /// To `Request::Scales`: own name and length of each, in order of name.
    Scales(Vec<(Vec<u8>, u64)>),
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
    /// The attributes, of those that were asked for.
    pub attributes: Vec<Attribute>,
    /// The members of a group; `None` if it was not entered: it is damaged, deep, or large and without any
    /// of the attributes, or was entered before.
    pub members: Option<Vec<ScannedMember>>,
}

impl ScannedMember {
    /// Makes a member without attributes and without members.
    pub fn leaf(name: Vec<u8>, member: GroupMember) -> Self {
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
        /// The address.
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
        /// The address.
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dataset {
    /// The address.
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
    /// There are so many chunks that they are looked up, a few at a time: `slots` is empty.
    pub looked_up: Option<Box<IndexedChunks>>,
    /// The memory that is reserved for it.
    #[serde(skip)]
    pub room: Option<Arc<Reservation>>,
}

/// What is needed to look up chunks of a dataset in its index, without libhdf5.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IndexedChunks {
    /// The address of the dataset, without the user block.
    pub dataset: u64,
    /// The shape of the dataset, its largest shape (`u64::MAX`: unlimited), and that of a chunk.
    pub shape: Vec<u64>,
    /// See `shape`.
    pub max: Vec<u64>,
    /// See `shape`.
    pub chunk: Vec<u64>,
    /// The bounds that every chunk must keep.
    pub bounds: Bounds,
}

/// The bounds that every stored chunk of a dataset must keep.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bounds {
    /// The size in bytes of a chunk before the filters.
    pub chunk: u64,
    /// The numbers of the filters in HDF5's registry, in the order of writing.
    pub filters: Vec<i32>,
    /// The range of the file that may hold chunks: behind its superblock, before its end.
    pub file: Range<u64>,
}

/// The size in bytes of the shortest superblock (version 2 with the smallest addresses; format specification, section
/// II.A).
pub const MIN_SUPERBLOCK: u64 = 24;

impl Bounds {
    /// Checks the address, size and mask of a stored chunk.
    ///
    /// # Errors
    ///
    /// The chunk cannot be right.
    pub fn check(&self, addr: u64, size: u64, mask: u32) -> Result<(), H5Error> {
        let end = addr.checked_add(size);
        if addr < self.file.start || end.is_none_or(|end| end > self.file.end) {
            return Err(damaged_table("a chunk lies outside the file"));
        }
        let filters = u32::try_from(self.filters.len()).unwrap_or(u32::MAX);
        if mask.checked_shr(filters).unwrap_or(0) != 0 {
            return Err(damaged_table("a chunk skips a filter that there is not"));
        }
        if !self.sizes(mask).contains(&size) {
            return Err(damaged_table("a chunk of a size that cannot be"));
        }
        Ok(())
    }

    /// Returns the possible sizes of a chunk that was stored with this mask.
    fn sizes(&self, mask: u32) -> RangeInclusive<u64> {
        const SHUFFLE: i32 = 2;
        const FLETCHER32: i32 = 3;
        const CHECKSUM: u64 = 4;
        let mut exact = self.chunk;
        let applied = |i: usize| i >= 32 || mask >> i & 1 == 0;
        for (_, filter) in self.filters.iter().enumerate().filter(|(i, _)| applied(*i)) {
            match *filter {
                SHUFFLE => {}
                FLETCHER32 => exact = exact.saturating_add(CHECKSUM),
                _ => return 1..=largest_stored(self.chunk),
            }
        }
        exact..=exact
    }
}

/// Makes an error about a chunk table.
pub fn damaged_table(why: &str) -> H5Error {
    H5Error::Damaged(format!("chunk table: {why}"))
}

/// Bytes of the chunk tables of one mount, all together.
const MAX_TABLE_BYTES: u64 = 32 << 20;

/// The memory that the chunk tables of one mount take, all together.
#[derive(Debug, Default)]
pub struct Budget(AtomicU64);

/// Memory reserved for a table; it is given back when this is dropped, by when the table must be gone.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    /// Reserves this many bytes, if there are as many.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Option<Reservation> {
        let more = |taken: u64| taken.checked_add(bytes).filter(|&n| n <= MAX_TABLE_BYTES);
        self.0.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(Reservation {
            budget: self.clone(),
            bytes,
        })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.bytes, Relaxed);
    }
}

/// Returns the largest number of bytes that filters can make of a chunk of `len` bytes.
///
/// Compressors add little to data that they cannot compress: at most lz4's 4 bytes for each block, of which there can
/// be as many as elements. Twice the size is enough for all of them.
pub fn largest_stored(len: u64) -> u64 {
    const SLACK: u64 = 64 << 10;
    len.saturating_mul(2).saturating_add(SLACK)
}

/// The smallest number of places of a grid whose chunks are looked up. Reading a smaller table takes no longer than
/// opening the file.
pub const LOOKED_UP_FROM: usize = 16 << 10;

/// The bytes of memory that are reserved for the chunks of a dataset that were looked up.
pub const LOOKUP_ROOM: u64 = 512 << 10;

/// Most places of a table, 32 MiB of memory; a dataset with more is read through libhdf5.
pub const MAX_SLOTS: usize = 1 << 21;

/// Bytes of a slot as it crosses to another process: address, size and mask, little-endian.
pub const SLOT_BYTES: usize = 16;

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

impl Slot {
    /// Returns the slot as it crosses to another process.
    pub fn to_bytes(self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        bytes[..8].copy_from_slice(&self.addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.size.to_le_bytes());
        bytes[12..].copy_from_slice(&self.mask.to_le_bytes());
        bytes
    }

    /// Reads a slot as [`Slot::to_bytes`] makes it.
    pub fn from_bytes(bytes: &[u8; SLOT_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, size @ .., m, n, o, p] = *bytes;
        Self {
            addr: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            size: u32::from_le_bytes(size),
            mask: u32::from_le_bytes([m, n, o, p]),
        }
    }
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
    /// The label, which is not empty.
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
    /// The name.
    pub name: Vec<u8>,
    /// The value, or the reason why it cannot be shown.
    pub value: Result<Value, String>,
    /// The targets, if the value consists of references to objects: `value` has no form for these.
    pub references: Option<References>,
}

impl Attribute {
    /// Makes an attribute with a value, as tests of formats need it.
    pub fn new(name: &str, dtype: DType, shape: &[u64], data: &[u8]) -> Self {
        Self {
            name: name.as_bytes().to_vec(),
            value: Ok(Value {
                dtype,
                shape: shape.to_vec(),
                data: data.to_vec(),
            }),
            references: None,
        }
    }
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

/// The path of the object that a reference leads to, which is empty for the root group; `None`: it leads nowhere by
/// intention.
pub type Reference = Option<GroupPath>;

/// The times of a file's objects, in nanoseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectTimes {
    /// The time of objects that have none of their own.
    pub all: i64,
    /// Times of objects by address, those that they inherit from a group included.
    pub own: HashMap<u64, i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_bounded_and_given_back() {
        let budget = Arc::<Budget>::default();
        let half = budget.take(MAX_TABLE_BYTES / 2).unwrap();
        assert!(budget.take(MAX_TABLE_BYTES / 2 + 1).is_none() && budget.take(u64::MAX).is_none());
        let rest = budget.take(MAX_TABLE_BYTES / 2).unwrap();
        assert!(budget.take(1).is_none());
        drop((half, rest));
        assert!(budget.take(MAX_TABLE_BYTES).is_some());
    }
}
