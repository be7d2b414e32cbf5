//! The on-disk records of a checkout: the index of a layer, the identity of what an object was written against, names,
//! and logs of checksummed lines.

pub mod attribute;
pub mod entry;
pub mod fit;
pub mod form;
pub mod holder;
pub mod index;
pub mod layer_files;
pub mod names;
pub mod record_log;
pub mod unwritten;
