//! The sources and sinks of bytes: local files, buffers, scratch files, and [`content::Content`], bytes at any
//! offset.
//!
//! Nothing here knows HDF5 or what the bytes mean.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod blobs;
pub mod content;
pub mod dir;
pub mod file;
pub mod hex;
pub mod kept;
pub mod log_file;
pub mod lru;
pub mod own_dir;
pub mod owner;
pub mod pause;
pub mod private_dir;
pub mod provenance;
pub mod remote;
pub mod rights;
pub mod rows;
pub mod small_file;
pub mod storage;
pub mod workplace;
