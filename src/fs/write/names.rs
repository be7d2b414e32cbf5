//! Names: making directories, deleting and renaming.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::SystemTime;

use super::body::Body;
use super::pending::{Entry, Path};
use super::{Writer, refused};
use crate::checkout::target::{Made, Place, Role};
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{Attr, Fs, FsResult};
use crate::tree::Node;

impl Writer {
    /// Deletes the file at a path.
    fn delete(&self, path: &[Vec<u8>]) -> Result<()> {
        let role = self.target.role(path)?;
        let there = self.shown(path)?;
        match there {
            None => return Err(Error::new(ErrorKind::NotFound, "no such file")),
            Some(Node::Directory(_)) => {
                return Err(Error::new(ErrorKind::IsDirectory, "is a directory"));
            }
            Some(Node::File(_) | Node::Symlink(_)) => {}
        }
        let body = self.pending.body(path);
        let hidden = matches!(self.pending.get(path), Some(Entry::Hidden));
        if !hidden && self.stored(path)?.is_some() {
            self.take_away(path, &role)?;
        }
        if let Some(body) = body {
            let origin = body.state().origin.take();
            self.pending.drop_body(&body);
            if let Some(origin) = origin {
                self.settle_origin(&origin)?;
            }
            self.keep_without(path)?;
        }
        // Directories that were there because something was stored in them stay until they are removed themselves.
        for depth in (1..path.len()).rev() {
            let above = &path[..depth];
            if self.pending.get(above).is_some() || self.stored(above)?.is_some() {
                break;
            }
            let now = Entry::Directory(SystemTime::now());
            self.pending.entries().insert(above.to_vec(), now);
            self.pending.renew();
        }
        Ok(())
    }

    /// Deletes what is stored at a path: the object, or a part of it from view.
    fn take_away(&self, path: &[Vec<u8>], role: &Role) -> Result<()> {
        match role {
            Role::Stored(Place { object, member, .. }) if member.is_empty() => {
                self.target.remove(object)?;
                self.pending.renew();
            }
            _ => {
                let mut entries = self.pending.entries();
                entries.insert(path.to_vec(), Entry::Hidden);
            }
        }
        Ok(())
    }

    /// What was renamed away from a path is deleted or stored elsewhere now: it goes from its old place.
    fn settle_origin(&self, origin: &[Vec<u8>]) -> Result<()> {
        let hidden = matches!(self.pending.get(origin), Some(Entry::Hidden));
        if hidden && self.stored(origin)?.is_some() {
            if let Role::Stored(place) = self.target.role(origin)? {
                self.target.remove(&place.object)?;
            }
            self.pending.entries().remove(origin);
            self.pending.renew();
        }
        Ok(())
    }

    fn make_directory(&self, path: &[Vec<u8>]) -> Result<()> {
        if self.shown(path)?.is_some() {
            return Err(refused(libc::EEXIST, "it exists"));
        }
        let now = SystemTime::now();
        let made = self.target.make_directory(path, now)?;
        self.pending.touch_above(path);
        let mut entries = self.pending.entries();
        match made {
            Made::Stored => entries.remove(path),
            Made::Scratch => entries.insert(path.to_vec(), Entry::Directory(now)),
        };
        drop(entries);
        self.pending.renew();
        Ok(())
    }

    fn remove_directory(&self, path: &[Vec<u8>]) -> Result<()> {
        match self.merged(path)? {
            None => return Err(Error::new(ErrorKind::NotFound, "no such directory")),
            Some(Node::Directory(dir)) if dir.list()?.is_empty() => {}
            Some(Node::Directory(_)) => return Err(refused(libc::ENOTEMPTY, "it is not empty")),
            Some(_) => return Err(Error::new(ErrorKind::NotDirectory, "not a directory")),
        }
        if self.stored(path)?.is_some() {
            self.target.remove_directory(path)?;
        }
        self.pending.settle(path);
        self.pending.forget_time(path);
        self.pending.touch_above(path);
        Ok(())
    }

    /// Sets the time of a directory, where that is kept.
    pub fn set_directory_time(&self, path: &[Vec<u8>], time: SystemTime) -> Result<()> {
        self.pending.forget_time(path);
        let mut entries = self.pending.entries();
        if let Some(Entry::Directory(known)) = entries.get_mut(path) {
            *known = time;
            return Ok(());
        }
        drop(entries);
        let key = path.join(&b'/');
        if let Ok(key) = String::from_utf8(key) {
            // A store has no time for its groups: then the time stays what it is.
            let _ = self.target.set_time(&key, time);
        }
        Ok(())
    }

    /// Gives the file at `from` the path `to`.
    fn rename(&self, from: &[Vec<u8>], to: &[Vec<u8>]) -> Result<()> {
        let (was, becomes) = (self.target.role(from)?, self.target.role(to)?);
        let replaced = self.merged(to)?;
        match self.shown(from)? {
            None => return Err(Error::new(ErrorKind::NotFound, "no such file")),
            Some(Node::Directory(_)) => {
                if let Some(Node::Directory(there)) = replaced
                    && !there.list()?.is_empty()
                {
                    return Err(refused(libc::ENOTEMPTY, "it is not empty"));
                }
                // Who renames a directory copies it, then: mv does.
                return Err(refused(libc::EXDEV, "a directory"));
            }
            _ if matches!(replaced, Some(Node::Directory(_))) => {
                return Err(Error::new(ErrorKind::IsDirectory, "is a directory"));
            }
            Some(Node::Symlink(_)) => return Err(refused(libc::EPERM, "a symbolic link")),
            Some(Node::File(_)) => {}
        }
        let stored = self.stored(from)?.is_some();
        let body = self.pending.body(from);
        if stored
            && body.is_none()
            && let (Role::Stored(a), Role::Stored(b)) = (&was, &becomes)
            && a.member.is_empty()
            && b.member.is_empty()
            && a.suffix == b.suffix
            && self.target.rename(&a.object, &b.object)?
        {
            self.displace(to);
            self.pending.renew();
            return Ok(());
        }
        let body = match body {
            Some(body) => body,
            None => self.edit(from)?,
        };
        let displaced = self.put(&body, from, to);
        if matches!(becomes, Role::Stored(_)) {
            // It is to be stored whatever it was before, with the time it has.
            body.copy()?;
            body.forget_stored();
            let done = match body.len()? {
                0 if stored => Err(refused(libc::EINVAL, "it is empty")),
                _ => self.finish_renamed(&body),
            };
            if let Err(e) = done {
                self.put_back(&body, from, to, displaced);
                return Err(e);
            }
            if let Some(Entry::File(old)) = displaced {
                old.state().path = None;
                old.retire();
            }
            if stored {
                self.take_away(from, &was)?;
            }
            let origin = body.state().origin.take();
            if let Some(origin) = origin {
                self.settle_origin(&origin)?;
            }
            return Ok(());
        }
        if let Some(Entry::File(old)) = displaced {
            old.state().path = None;
            old.retire();
        }
        if stored {
            // It is not gone before what it becomes is stored, or deleted as well.
            self.pending.entries().insert(from.to_vec(), Entry::Hidden);
            body.state().origin = Some(from.to_vec());
        }
        Ok(())
    }

    fn finish_renamed(&self, body: &Arc<Body>) -> Result<()> {
        self.commit(body)?;
        if !body.is_dirty() {
            self.pending.drop_idle(body);
        }
        Ok(())
    }

    /// A scratch file that another takes the place of has no name any more.
    fn displace(&self, path: &[Vec<u8>]) {
        if let Some(Entry::File(old)) = self.pending.entries().remove(path) {
            old.state().path = None;
            old.retire();
        }
    }

    fn put(&self, body: &Arc<Body>, from: &[Vec<u8>], to: &[Vec<u8>]) -> Option<Entry> {
        let mut entries = self.pending.entries();
        entries.remove(from);
        body.state().path = Some(to.to_vec());
        entries.insert(to.to_vec(), Entry::File(body.clone()))
    }

    fn put_back(&self, body: &Arc<Body>, from: &[Vec<u8>], to: &[Vec<u8>], was: Option<Entry>) {
        let mut entries = self.pending.entries();
        match was {
            Some(entry) => entries.insert(to.to_vec(), entry),
            None => entries.remove(to),
        };
        body.state().path = Some(from.to_vec());
        entries.insert(from.to_vec(), Entry::File(body.clone()));
    }
}

/// How `rename` treats what has the new name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    Yes,
    No,
}

impl Fs {
    /// Makes a directory. Adds one kernel reference to its inode.
    pub fn make_directory(&self, parent: u64, name: &OsStr) -> FsResult<Attr> {
        let make = || {
            let writer = self.writer()?;
            let path = self.path_in(parent, name)?;
            let _naming = writer.naming.lock().unwrap_or_else(|e| e.into_inner());
            writer.make_directory(&path)
        };
        make().map_err(|e| self.note_name(parent, name, "mkdir", e))?;
        self.lookup(parent, name)
    }

    pub fn remove_directory(&self, parent: u64, name: &OsStr) -> FsResult<()> {
        let remove = || {
            let writer = self.writer()?;
            let path = self.path_in(parent, name)?;
            let _naming = writer.naming.lock().unwrap_or_else(|e| e.into_inner());
            writer.remove_directory(&path)
        };
        remove().map_err(|e| self.note_name(parent, name, "rmdir", e))
    }

    pub fn unlink(&self, parent: u64, name: &OsStr) -> FsResult<()> {
        let unlink = || {
            let writer = self.writer()?;
            let path = self.path_in(parent, name)?;
            let _naming = writer.naming.lock().unwrap_or_else(|e| e.into_inner());
            writer.delete(&path)?;
            writer.pending.touch_above(&path);
            Ok(())
        };
        unlink().map_err(|e| self.note_name(parent, name, "unlink", e))
    }

    pub fn rename(
        &self,
        (parent, name): (u64, &OsStr),
        (new_parent, new_name): (u64, &OsStr),
        replace: Replace,
    ) -> FsResult<()> {
        let rename = || {
            let writer = self.writer()?;
            let from: Path = self.path_in(parent, name)?;
            let to: Path = self.path_in(new_parent, new_name)?;
            let _naming = writer.naming.lock().unwrap_or_else(|e| e.into_inner());
            if replace == Replace::No && writer.shown(&to)?.is_some() {
                return Err(refused(libc::EEXIST, "it exists"));
            }
            if from == to {
                return Ok(());
            }
            let number = writer.pending.body(&from).map(|body| body.number);
            writer.rename(&from, &to)?;
            writer.pending.touch_above(&from);
            writer.pending.touch_above(&to);
            if let (Some(ino), Some(name)) = (number, to.last()) {
                self.inodes().rename(ino, new_parent, name);
            }
            // What was synced under its old name is expected to last under the new one.
            writer.keep(&to)?;
            writer.keep_without(&from)?;
            writer.target.sync()
        };
        rename().map_err(|e| self.note_name(new_parent, new_name, "rename", e))
    }
}
