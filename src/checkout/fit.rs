//! The surroundings of a layer's objects, and the words in which it is told when they are not there any more.
//!
//! An object that lies along axes means nothing without their entries, and none means anything
//! in another store. So the index remembers both: the entries as a digest that depends on nothing but them,
//! the store as a few of its arrays. `view` compares them with what is there now.

mod entries;
mod identity;

use std::fmt;

use super::against::AxisEntries;

pub use entries::read_entries;
pub use identity::{KeySpelling, StoreIdentity};

/// A change of a layer that has no effect, because it does not fit what is there now: an object that is not shown, or a
/// deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// The checkout that it was written in.
    pub checkout: String,
    /// The place of its layer, from 0 on; the committed ones come first.
    pub layer: usize,
    /// The key of the object.
    pub key: String,
    /// It deletes what has the key.
    pub is_deletion: bool,
    /// The reason, for people.
    pub why: String,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            checkout, key, why, ..
        } = self;
        match self.is_deletion {
            true => write!(f, "{key}: not deleted, though {checkout} deletes it: {why}"),
            false => write!(f, "{key}: not shown, though it is in {checkout}: {why}"),
        }
    }
}

/// Returns why an object along an axis is not shown. `now`: the entries that the axis has.
pub fn other_entries(axis: &str, before: &AxisEntries, now: Option<&AxisEntries>) -> String {
    let count = before.count();
    match now {
        None => format!(
            "it was written along {axis} with {count} entries, and there is no such axis now"
        ),
        Some(now) if now.count() != count => format!(
            "it was written along {axis} with {count} entries, which has {} now",
            now.count()
        ),
        Some(_) => format!(
            "it was written along {axis} with {count} entries, which are others now, or in another order"
        ),
    }
}
