//! What a layer's objects depend on, and the messages for when it has changed.
//!
//! An object along axes has no meaning without the axes' entries, and no object has a meaning in another store. So the
//! index records both: the entries as a digest that depends on nothing else, the store as some of its arrays. `view`
//! compares them with the present state.

mod entries;
mod identity;

use std::fmt;

use super::attribute;
use crate::store::against::AxisEntries;

pub use entries::read_entries;
pub use identity::{KeySpelling, StoreIdentity};

/// A change of a layer that has no effect, because it does not fit the present store: an object that is not shown, or a
/// deletion.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Misfit {
    /// The checkout that made the change.
    pub checkout: String,
    /// The index of its layer, from 0; the committed ones come first.
    pub layer: usize,
    /// The key of the object.
    pub key: String,
    /// Whether the change deletes the object.
    pub is_deletion: bool,
    /// The reason, for people.
    pub why: String,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            checkout, key, why, ..
        } = self;
        let key = attribute::shown(key);
        match self.is_deletion {
            true => write!(f, "{key}: not deleted, though {checkout} deletes it: {why}"),
            false => write!(f, "{key}: not shown, though it is in {checkout}: {why}"),
        }
    }
}

/// Returns why an object along an axis is not shown. `now` is the present state of the axis.
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
