//! The checkouts of a store and its commits: where they are stored, and their order.

pub mod checkouts;
pub mod commits;
pub(crate) mod committed_layers;
pub mod location;
pub(crate) mod snapshot;
