//! The path from a byte range of an array's payload to the blocks with its elements.

pub mod access_pattern;
pub mod backing;
pub mod blocks;
pub mod cache;
pub mod chunk;
pub mod chunk_places;
pub mod chunked;
pub mod context;
pub mod decode_pool;
mod elements;
pub mod external;
pub mod fetch;
pub mod grid;
pub mod opened;
pub mod payload;
pub mod prefetch;
pub(crate) mod record;
pub mod spill;
pub mod stored;
pub mod stream;
pub mod text;
