//! What the daemon and its workers say to each other: plain data that can be serialised, and the wire that it crosses.
//!
//! Objects are named by their address in the file. Nothing here runs libhdf5 or liblmdb, and neither side trusts what
//! the other one sends: it may come from a damaged file.

mod answer;
mod create;
mod edit;
mod element;
mod error;
mod lmdb;
mod request;
mod rights;
mod text;
mod wire;

pub use answer::{
    Answer, Attribute, Bounds, Budget, ChunkTable, DataSource, Dataset, DatasetMap, Details,
    Dimension, Dimensions, DirectChunks, FilterInfo, GroupMember, GroupMembers, GroupPath,
    GroupScan, IndexedChunks, LOOKED_UP_FROM, LOOKUP_ROOM, MAX_SLOTS, MIN_SUPERBLOCK, Maps,
    ObjectTimes, RawPart, Reference, References, Reservation, Resolved, SLOT_BYTES, ScannedMember,
    SequenceArray, Slot, Targets, damaged_table, largest_stored,
};
pub use create::{
    AttributeValue, CollectionRequest, CollectionRow, FilterSpec, MAX_SMALL_ATTRIBUTE,
    NewAttribute, NewChunk, NewChunks, NewCollection, NewDataset, NewElement, NewGroup, NewLayout,
    NewLink, Outline,
};
pub use edit::{
    EditStep, FileForm, Holders, LinkedFile, NewForm, NewPublication, ObjectPath, PUBLISHED, Piece,
    PublishedChange, PublishedLinks, SourceFile, SourceObject, TIME, TIMES, Unpublished, WORKPLACE,
    source,
};
pub use element::{ElementType, REFERENCES, RecordMember, RecordPart, Value};
pub use error::H5Error;
pub use lmdb::{
    LmdbRequest, LockRow, PackedValues, TableOp, TableTransaction, TablesOutcome, TablesRequest,
};
pub use request::{EncodedChunk, FirstMember, Request};
pub use rights::{Inode, NamedFile, Permit, Sandbox};
pub use text::{CHARS, TextForm, TextMeasure, encode_text, record_shown_as};
pub use wire::{Envelope, MAX_BLOCK, Reply, Sink, Wire};

/// The first arguments that make the program a worker, or try out the sandbox of one.
pub mod argument {
    /// Reads stores. The files that it may open stand in the first message.
    pub const READER: &str = "h5-worker";
    /// Makes files of a checkout. The directory that it may write in follows, and the owner that it is to become, if
    /// that is another user.
    pub const WRITER: &str = "h5-writer";
    /// Makes one new file out of others. The directory that it may write in follows, then those that it may read.
    pub const EDITOR: &str = "h5-editor";
    /// Changes LMDB tables. Their directory follows, and the owner that it is to become, if that is another user.
    pub const TABLES: &str = "lmdb-writer";
    /// Tries out what a worker can still do. The role, a file, another one in another directory, and the number of a
    /// descriptor that is open follow.
    pub const PROBE: &str = "h5-probe";
}
