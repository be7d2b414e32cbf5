//! Files that did not become objects: they are lost when the mount ends, and are reported before.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Serialize;

use super::body::Body;
use super::pending::PendingEntry;
use super::{Writer, refused};
use npyfs_base::error::{Error, Result};
use npyfs_core::store::target::Role;

/// The largest number of files that are named.
const NAMED: usize = 1000;

/// A file that would be lost if the mount ended.
#[derive(Debug, Serialize)]
pub(super) struct Unfinished {
    /// The path of the file in the mount.
    pub path: String,
    pub reason: &'static str,
    /// The name of the file is that of an array.
    pub is_array: bool,
    /// A program has the file open for writing.
    pub is_open: bool,
}

impl Writer {
    /// Returns the error that says why a file that has only its beginning is no array.
    pub(super) fn begun(&self, body: &Body) -> Error {
        refused(libc::EINVAL, why(body))
    }

    /// Returns true if a file is empty and the stored file at its path is not.
    pub(super) fn is_emptied(&self, body: &Body) -> Result<bool> {
        Ok(match body.path() {
            Some(path) if body.len()? == 0 => !body.state().hides && self.stored(&path)?.is_some(),
            _ => false,
        })
    }

    /// Returns the first thousand files that would be lost now, except those whose writers were all told so.
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
                // A file whose role the target cannot tell now is not stored either.
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

    /// Returns true if a file was refused when its descriptors were closed: it goes as soon as the kernel reports that
    /// those were the last.
    fn is_told(&self, body: &Arc<Body>) -> bool {
        let handles = self.handles.read().unwrap_or_else(|e| e.into_inner());
        let mut open = handles.values().filter(|h| h.body.number == body.number);
        body.stays_refused() && open.all(|handle| handle.is_closed.load(Ordering::Acquire))
    }
}

/// Returns true if a file is stored in its present state, or waits for other files of its object.
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
