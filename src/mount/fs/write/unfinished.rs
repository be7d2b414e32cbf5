//! Files that nothing became of: they are forgotten when the mount ends, and told before.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Serialize;

use super::body::Body;
use super::pending::PendingEntry;
use super::{Writer, refused};
use crate::checkout::target::Role;
use crate::error::{Error, Result};

/// Most files that are named.
const NAMED: usize = 1000;

/// A file that would be lost if the mount ended.
#[derive(Debug, Serialize)]
pub(super) struct Unfinished {
    /// Its path in the mount.
    pub path: String,
    pub reason: &'static str,
    /// By its name it was to become an array.
    pub is_array: bool,
    /// Somebody may write it.
    pub is_open: bool,
}

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

    /// Returns the files that would be lost now, but for those of which all who wrote them know; the first thousand.
    pub(super) fn unfinished(&self) -> Vec<Unfinished> {
        let mut found = Vec::new();
        for (path, entry) in self.pending.below(&[]) {
            let PendingEntry::File(body) = entry else {
                continue;
            };
            let role = self.target.role(&path);
            let reason = match &role {
                Ok(Role::Scratch) => "no array has such a name",
                Ok(Role::Stored(_)) if is_settled(&body) || self.is_told(&body) => continue,
                // What the target cannot say now is not stored either.
                Ok(Role::Stored(_)) | Err(_) => why(&body),
            };
            if found.len() == NAMED {
                break;
            }
            found.push(Unfinished {
                path: String::from_utf8_lossy(&path.join(&b'/')).into_owned(),
                reason,
                is_array: !matches!(role, Ok(Role::Scratch)),
                is_open: body.state().writers > 0,
            });
        }
        found
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
