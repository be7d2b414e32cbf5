//! The parts of npyfs that take bytes from files: the package of its decoders.

pub use npyfs_base::buffer::Pool;
pub use npyfs_codec as codec;
