//! The kernel's side: `fuse` translates requests, `fs` answers them.

pub mod fs;
pub mod fuse;
