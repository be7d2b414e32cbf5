//! The other form of an object that is removed, `UMIs.npz` beside `UMIs/`. A program whose open directory lists both,
//! as `rm -r` while it empties the directory, still finds this file and may delete it, until the directory is closed.

use std::sync::Arc;

use super::Writer;
use super::body::{Body, Maker};
use super::commit::depth_inside;
use super::pending::{Path, PendingEntry};
use super::unreadable::Unreadable;
use npyfs_base::error::Result;
use npyfs_core::store::target::Role;
use npyfs_core::tree::Node;
use npyfs_core::tree::name::SUFFIXES;

/// A file that is another form of an object, as a scratch file.
pub(super) type Remnant = (Path, Arc<Body>);

impl Writer {
    /// Returns the files that are other forms of the object of the file at a path, if one of the `open` directories
    /// lists them.
    pub(super) fn remnants(&self, path: &[Vec<u8>], open: &[Path]) -> Result<Vec<Remnant>> {
        let mut remnants = Vec::new();
        let Role::Stored(place) = self.target.role(path)? else {
            return Ok(remnants);
        };
        let top = &path[..path.len() - depth_inside(&place)];
        let Some((last, above)) = top.split_last() else {
            return Ok(remnants);
        };
        if place.member.is_empty() || !open.iter().any(|open| open == above) {
            return Ok(remnants);
        }
        for suffix in SUFFIXES {
            let at = [above, &[[last, suffix].concat()]].concat();
            let Some(Node::File(file)) = self.stored(&at)? else {
                continue;
            };
            if self.pending.get(&at).is_some()
                || !matches!(self.target.role(&at), Ok(Role::Stored(of)) if of.object == place.object)
            {
                continue;
            }
            let own = file.ownership();
            let maker = Maker {
                uid: own.uid,
                gid: own.gid,
                mode: own.mode & 0o666 | 0o200,
            };
            let content = file
                .open()
                .unwrap_or_else(|_| Arc::new(Unreadable(file.clone())));
            let scratch = self.target.scratch();
            let body = Body::new(at.clone(), scratch, Some(content), own.mtime, maker);
            body.is_whole(body.changes());
            remnants.push((at, Arc::new(body)));
        }
        Ok(remnants)
    }

    /// Shows the remnants whose object is gone.
    pub(super) fn leave_remnants(&self, remnants: Vec<Remnant>) -> Result<()> {
        for (at, body) in remnants {
            if self.stored(&at)?.is_none() {
                let entry = PendingEntry::File(body.clone());
                self.pending.entries().entry(at.clone()).or_insert(entry);
                let mut left = self.remnants.lock().unwrap_or_else(|e| e.into_inner());
                left.push((at, body));
            }
        }
        Ok(())
    }

    /// Removes the remnants in the directory at a path, which is no longer open in any program.
    pub fn forget_remnants(&self, directory: &[Vec<u8>]) {
        let mut left = self.remnants.lock().unwrap_or_else(|e| e.into_inner());
        let (gone, stay) = std::mem::take(&mut *left)
            .into_iter()
            .partition(|(at, _)| at.split_last().is_some_and(|(_, above)| above == directory));
        *left = stay;
        drop(left);
        let gone: Vec<Remnant> = gone;
        for (_, body) in gone {
            if !body.is_dirty() {
                self.pending.drop_idle(&body);
            }
        }
    }
}
