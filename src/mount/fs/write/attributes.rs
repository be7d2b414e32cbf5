//! Attributes that programs write and remove.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::{PendingEntry, Writer, refused, walk};
use crate::mount::fs::{Fs, FsResult};
use npyfs_base::error::Result;
use npyfs_core::store::target::{AttributeChange, Role};
use npyfs_core::tree::{Node, control};

impl Writer {
    fn set_attribute(
        &self,
        path: &[Vec<u8>],
        name: &[u8],
        change: AttributeChange<'_>,
    ) -> Result<()> {
        let _changing = self.change_names(&[path]);
        let is_unstored = match self.pending.get(path) {
            Some(PendingEntry::File(body)) => body.is_dirty() || self.stored(path)?.is_none(),
            Some(PendingEntry::Directory(_)) => self.stored(path)?.is_none(),
            _ => false,
        };
        if is_unstored {
            let why = "it is not stored yet: an attribute needs a complete object";
            return Err(refused(libc::EOPNOTSUPP, why));
        }
        // Not while another thread stores the object, whose attributes go with the old one.
        let object = match self.target.role(path) {
            Ok(Role::Stored(place)) => place.object,
            _ => String::new(),
        };
        let _one = self.lock(&object);
        self.target.set_attribute(path, name, change)
    }
}

impl Fs {
    /// Sets or removes an attribute of an inode. It is durable when this returns.
    pub fn set_xattr(&self, ino: u64, name: &OsStr, change: AttributeChange<'_>) -> FsResult<()> {
        let set = || {
            let Some(name) = name.as_bytes().strip_prefix(b"user.") else {
                // `cp -p` takes this error as: there are no access control lists.
                return Err(refused(libc::EOPNOTSUPP, "only attributes of users"));
            };
            let writer = self.writer()?;
            let path = self.names(ino)?;
            if path.first().is_some_and(|first| first == control::NAME) {
                return Err(refused(libc::EPERM, "nothing can be changed in .npyfs"));
            }
            writer.set_attribute(&path, name, change)
        };
        set().map_err(|e| match e.errno() {
            libc::EOPNOTSUPP | libc::ENODATA => e.into(),
            _ => self.note(ino, "setxattr", e),
        })
    }

    /// Returns the stored node of an inode, with the attributes that it has now.
    pub(in crate::mount::fs) fn stored_node(&self, ino: u64) -> Result<Option<Node>> {
        match (&self.writer, &self.follower) {
            (Some(writer), _) => writer.stored(&self.names(ino)?),
            (None, Some(_)) => {
                let names = self.inodes().names(ino);
                walk(self.root.clone(), &names.unwrap_or_default())
            }
            (None, None) => Ok(None),
        }
    }
}
