//! Access to HDF5 and LMDB files through worker processes: plain requests in, plain answers out.
//!
//! libhdf5 and liblmdb are not linked here. The daemon's side ([`H5`], [`Creator`], [`Editor`], [`CollectionWriter`],
//! [`LmdbWriter`]) starts worker processes and asks them; `protocol` is what both sides say. What executes requests is
//! the package `npyfs-worker`.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod chunk_index;
mod client;
pub mod protocol;
pub mod walk;

pub use chunk_index::{ChunkRun, LookUps};
pub use client::access::Reach;
pub use client::editor::{Editor, Elements, Recodable};
pub use client::tables::{LmdbWriter, LockError, WriterLock};
pub use client::writer::{CollectionWriter, Creator};
pub use client::{AnswerHere, H5, program};
pub use protocol::{
    Answer, Attribute, AttributeValue, CHARS, ChunkTable, CollectionRequest, CollectionRow,
    DataSource, Dataset, DatasetMap, Details, Dimension, Dimensions, DirectChunks, EditStep,
    ElementType, EncodedChunk, FileForm, FilterInfo, FilterSpec, GroupMember, GroupMembers,
    GroupPath, GroupScan, H5Error, Holders, IndexedChunks, LinkedFile, LockRow,
    MAX_SMALL_ATTRIBUTE, NewAttribute, NewChunk, NewChunks, NewCollection, NewDataset, NewElement,
    NewForm, NewGroup, NewLayout, NewLink, NewPublication, ObjectPath, ObjectTimes, Outline,
    PUBLISHED, PackedValues, Piece, PublishedChange, PublishedLinks, REFERENCES, RawPart,
    RecordMember, RecordPart, Reference, References, Request, Resolved, Sandbox, ScannedMember,
    SequenceArray, Sink, Slot, SourceFile, SourceObject, TIME, TableOp, TableTransaction,
    TablesOutcome, Targets, TextForm, TextMeasure, Unpublished, Value, encode_text, largest_stored,
    record_shown_as, source,
};
