//! The parts of npyfs that take bytes from files, as they stand in its sources.
//!
//! They are included and not linked: npyfs as a whole needs libhdf5, which takes minutes to build.

#![allow(dead_code, reason = "the targets use a part of each module")]

// Where the other modules look for them.
#[path = "../../src/arena.rs"]
mod arena;
#[path = "../../src/buffer.rs"]
mod buffer;
#[path = "../../src/team.rs"]
mod team;
#[path = "../../src/thread.rs"]
mod thread;

#[path = "../../src"]
mod sources {
    pub mod filter;
    pub mod h5 {
        pub mod aec;
    }
}

pub use buffer::Pool;
pub use sources::filter;
pub use sources::h5::aec;
