//! Files that nothing became of: they are forgotten when the mount ends, and told before.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value as Json, json};

use super::body::Body;
use super::pending::PendingEntry;
use super::{Writer, refused};
use crate::checkout::target::Role;
use crate::error::{Error, Result};

/// Most files that are named.
const NAMED: usize = 1000;

impl Writer {
    /// Returns the error that says why a file that only begins is no array.
    pub(super) fn begun(&self, body: &Body) -> Error {
        refused(libc::EINVAL, why(body))
    }

    /// Returns true if a file is empty where something is stored that has a content.
    pub(super) fn is_emptied(&self, body: &Body) -> Result<bool> {
        Ok(match body.path() {
            Some(path) if body.len()? == 0 => !body.state().hides && self.stored(&path)?.is_some(),
            _ => false,
        })
    }

    /// Returns what `status.json` says of files that would be lost now, but for those of which all who wrote them know.
    /// `is_array`: by its name it was to become one. `is_open`: somebody may write it.
    pub(super) fn unfinished(&self) -> Json {
        let mut found = Vec::new();
        for (path, entry) in self.pending.below(&[]) {
            let PendingEntry::File(body) = entry else {
                continue;
            };
            let reason = match self.target.role(&path) {
                Ok(Role::Scratch) => "no array has such a name",
                Ok(Role::Stored(_)) if is_settled(&body) || self.is_told(&body) => continue,
                // What the target cannot say now is not stored either.
                Ok(Role::Stored(_)) | Err(_) => why(&body),
            };
            if found.len() < NAMED {
                found.push(json!({
                    "path": String::from_utf8_lossy(&path.join(&b'/')),
                    "reason": reason,
                    "is_array": !matches!(self.target.role(&path), Ok(Role::Scratch)),
                    "is_open": body.state().writers > 0,
                }));
            }
        }
        found.into()
    }

    /// Returns true if a file was refused when its descriptors were closed: it goes as soon as the kernel says that those were
    /// the last.
    fn is_told(&self, body: &Arc<Body>) -> bool {
        let handles = self.handles.read().unwrap_or_else(|e| e.into_inner());
        let mut open = handles.values().filter(|h| h.body.number == body.number);
        body.stays_refused() && open.all(|handle| handle.is_closed.load(Ordering::Acquire))
    }
}

/// Returns true if a file is stored as it is, or waits for others of its object.
fn is_settled(body: &Arc<Body>) -> bool {
    body.is_untouched() || !body.is_dirty() || body.stays_whole()
}

fn why(body: &Body) -> &'static str {
    match body.len() {
        Ok(0) => "it is empty",
        _ if body.state().writers > 0 => "it is being written",
        _ => "only its header was written",
    }
}
