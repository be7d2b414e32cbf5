//! From a byte range of an array's payload to the pieces that hold it.

pub mod ahead;
pub mod block;
pub mod chunked;
pub mod grid;
pub mod payload;
