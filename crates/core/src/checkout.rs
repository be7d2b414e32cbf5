//! Checkouts: layers of new files that hold changes to a store.
//!
//! A layer is a directory of complete HDF5 files, one per object, and an index that says which object each file is. New
//! data is first written to an unnamed scratch file and becomes part of the layer all at once, or not at all. No file
//! of the store itself is opened here, for writing or for reading.
//!
//! The rooms, from the bottom: `records` has the on-disk records, `mirror` the local copy of a directory in a bucket,
//! `layer` the files of one checkout, `history` the commits and their storage, `view` a store with layers on top,
//! `write` the target of a writable mount, `verbs` the operations of commands, `export` files for other programs. Each
//! imports those before it.
//!
//! Other users may be able to write beside a store, so nothing below its checkouts is opened by path: `npyfs_io::dir`
//! opens one name at a time from a descriptor, and refuses files that `npyfs_io::rights` does not trust.

pub mod export;
pub mod history;
pub mod layer;
pub mod mirror;
pub mod records;
pub mod verbs;
pub mod view;
pub mod write;
