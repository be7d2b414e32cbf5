//! The checkouts of a store and its commits: where they are stored, and their order.

pub(crate) mod base_files;
pub mod checkouts;
pub mod commits;
pub(crate) mod committed_layers;
pub mod left_behind;
pub mod location;
pub(crate) mod snapshot;
