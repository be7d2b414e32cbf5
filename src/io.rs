//! The sources and sinks of bytes: local files, buffers, scratch files, and [`content::Content`], bytes at any
//! offset.
//!
//! Nothing here knows HDF5 or what the bytes mean.

pub(crate) mod arena;
pub mod buffer;
pub mod content;
pub mod dir;
pub mod file;
pub mod heap;
pub mod hex;
pub mod kept;
pub mod log_file;
pub(crate) mod lru;
pub mod own_dir;
pub mod owner;
pub mod pause;
pub mod private_dir;
pub mod provenance;
pub mod remote;
pub mod rights;
pub mod rows;
pub mod scratch;
pub mod storage;
pub mod thread;
