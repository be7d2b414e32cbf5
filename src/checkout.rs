//! Checkouts: the layer of new files that holds what was written over a store.
//!
//! A layer is a directory of finished HDF5 files, one per object, and an index that says which object
//! each one is. What was written goes to a nameless scratch file first and becomes part of the layer all
//! at once, or not at all. No file of the store itself is opened here, for writing or for reading.

pub mod against;
mod axes;
pub mod builder;
pub mod checkouts;
pub mod chunked;
pub mod commit;
pub mod commits;
pub mod compression;
pub mod conflict;
pub mod conversion;
pub mod encode;
pub mod entry;
pub mod export;
pub(crate) mod extent;
mod file_builder;
pub mod fit;
pub mod follow;
pub mod format;
pub mod gc;
mod history;
pub mod holder;
pub mod index;
pub mod layer;
pub(crate) mod layer_files;
pub mod layer_lock;
pub mod layers;
pub mod layout;
pub mod left_behind;
pub mod measure;
pub mod mirror;
pub(crate) mod names;
pub mod new_store;
pub mod object;
pub mod pack;
pub mod pending_changes;
pub mod place;
pub mod publications;
pub mod publish;
pub mod record_log;
mod relayout;
pub mod result;
pub mod revert;
pub mod staging;
pub mod syncer;
pub mod target;
mod unchunked;
pub mod view;
pub mod workplace;
