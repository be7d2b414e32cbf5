//! From a byte range of an array's payload to the pieces that hold it.

pub mod ahead;
pub mod backing;
pub mod block;
pub mod chunked;
pub mod grid;
pub mod payload;
mod pieces;
pub mod sequence;
pub mod spill;
pub mod stored;
pub mod window;
