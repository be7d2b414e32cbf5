//! The operations of commands on checkouts: commit, discard, restore, revert, conflicts, garbage collection. Each is a
//! function of what it changes.

pub mod commit;
pub mod conflict;
pub mod gc;
pub mod restore;
pub mod revert;
