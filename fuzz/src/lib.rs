//! The parts of npyfs that take bytes from files, as they stand in its sources.
//!
//! They are included and not linked: npyfs as a whole needs libhdf5, which takes minutes to build.

#![allow(dead_code, reason = "the targets use a part of each module")]

// Where the other modules look for them.
#[path = "../../src/io"]
mod io {
    mod arena;
    pub mod buffer;
    pub mod thread;
}

#[path = "../../src/tuning.rs"]
mod tuning;

#[path = "../../src"]
mod sources {
    pub mod codec;
    pub mod hdf5 {
        pub mod aec;
    }
}

pub use io::buffer::Pool;
pub use sources::codec;
pub use sources::hdf5::aec;
