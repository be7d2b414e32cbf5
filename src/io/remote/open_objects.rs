//! The versions of objects that this process has open.

use std::sync::{Arc, Mutex, Weak};

use serde_json::Value as Json;

use super::object::RemoteObject;

/// Objects that are described, at most.
const MOST: usize = 100;

static OPEN: Mutex<Vec<Weak<RemoteObject>>> = Mutex::new(Vec::new());

/// Takes note of one.
pub(super) fn add(object: &Arc<RemoteObject>) {
    let mut open = OPEN.lock().unwrap_or_else(|e| e.into_inner());
    open.retain(|known| known.strong_count() > 0);
    open.push(Arc::downgrade(object));
}

/// Describes the latest of them, for `status.json`.
pub fn describe_open() -> Vec<Json> {
    let open = OPEN.lock().unwrap_or_else(|e| e.into_inner());
    let latest = open.iter().rev().filter_map(Weak::upgrade).take(MOST);
    let mut described: Vec<Json> = latest.map(|object| object.describe()).collect();
    described.reverse();
    described
}
