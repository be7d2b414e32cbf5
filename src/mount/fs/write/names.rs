//! Making directories, deleting and renaming.
//!
//! Names that are being changed, or whose files are being stored, are held: a thread waits only for threads with the
//! same names. A file is stored under its name, so the name must not go to another file meanwhile, and must not come
//! back. A change may wait for the disk. Changes of other names go on meanwhile, and reach the disk together with it.
//!
//! An object that is removed may have another form, `UMIs.npz` beside `UMIs/`. A program whose open directory lists
//! both, as `rm -r` while it empties the directory, still finds this file and may delete it, until the directory is
//! closed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::{Condvar, Mutex};

use super::body::{Body, Maker, Unreadable};
use super::commit::{FileState, depth_inside};
use super::pending::{Path, PendingEntry};
use super::{Writer, refused};
use crate::mount::fs::{Attr, Fs, FsResult};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_core::store::part::PartPlace;
use npyfs_core::store::target::{Deletion, DirectoryOutcome, Role, StoreOutcome};
use npyfs_core::tree::name::SUFFIXES;
use npyfs_core::tree::{Directory, Node};

/// The files that are still shown of a deleted object or member.
#[derive(Default)]
struct Leftovers {
    files: Vec<(Path, PartPlace, Arc<Body>)>,
    directories: Vec<Path>,
}

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
        let hidden = body.as_ref().is_some_and(|body| body.state().hides);
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
        // Directories that existed because they had a stored object stay until they are removed themselves.
        for depth in (1..path.len()).rev() {
            let above = &path[..depth];
            if self.pending.get(above).is_some() || self.stored(above)?.is_some() {
                break;
            }
            let now = PendingEntry::Directory(SystemTime::now());
            self.pending.entries().insert(above.to_vec(), now);
            self.pending.renew();
        }
        Ok(())
    }

    /// Deletes the stored object of a path, or the part of the object that goes with the file.
    fn take_away(&self, path: &[Vec<u8>], role: &Role) -> Result<()> {
        let Role::Stored(place) = role else {
            // The entry is a link to a group, whose name has no suffix.
            return self.target.remove_directory(path);
        };
        match self.target.deletion(place)? {
            Deletion::Object => self.remove_object(path, place),
            Deletion::Member(member) => self.remove_member(path, place, &member),
        }
    }

    /// Deletes the object that the file at a path is a part of. Its other files in the same directory stay as scratch
    /// files: a program that deletes a directory expects to find them, and may delete them.
    fn remove_object(&self, path: &[Vec<u8>], place: &PartPlace) -> Result<()> {
        let _one = self.lock(&place.object);
        if self.stored(path)?.is_none() {
            // The file went with another file of its object meanwhile.
            if let Some(left) = self.pending.body(path) {
                self.pending.drop_body(&left);
            }
            return Ok(());
        }
        let left = self.leftovers(path, place)?;
        self.target.remove(&place.object)?;
        self.leave(path, place, left);
        Ok(())
    }

    /// Stores an object anew without a member. The other files of the member stay as in `remove_object`.
    fn remove_member(&self, path: &[Vec<u8>], place: &PartPlace, member: &str) -> Result<()> {
        let of_member = |of: &str| {
            of.strip_prefix(member)
                .is_some_and(|r| r.is_empty() || r.starts_with('/'))
        };
        let _one = self.lock(&place.object);
        let mut left = self.leftovers(path, place)?;
        left.files.retain(|(_, place, _)| of_member(&place.member));
        left.directories.retain(|at| {
            let top = path.len() - depth_inside(place);
            let inside: Vec<_> = at[top..]
                .iter()
                .map(|name| String::from_utf8_lossy(name))
                .collect();
            of_member(&inside.join("/"))
        });
        let top = &path[..path.len() - depth_inside(place)];
        let mut parts = self.parts_of(top, place)?;
        parts.retain(|part| !of_member(&part.place.member));
        match self
            .target
            .store(&place.object, &parts, SystemTime::now())?
        {
            StoreOutcome::Stored => {}
            StoreOutcome::Incomplete(missing) => {
                let why = format!(
                    "the object cannot be without it: {} missing",
                    missing.join(", ")
                );
                return Err(refused(libc::EINVAL, &why));
            }
        }
        self.leave(path, place, left);
        Ok(())
    }

    /// Returns the stored files of the object of `place`, except the one at `path`, as scratch files, and their
    /// directories.
    fn leftovers(&self, path: &[Vec<u8>], place: &PartPlace) -> Result<Leftovers> {
        let mut left = Leftovers::default();
        if place.member.is_empty() {
            return Ok(left);
        }
        let top = &path[..path.len() - depth_inside(place)];
        if let Some(Node::Directory(dir)) = self.stored(top)? {
            let mut at = top.to_vec();
            left.directories.push(top.to_vec());
            self.add_leftovers(&*dir, &mut at, path, place, &mut left)?;
        }
        Ok(left)
    }

    fn add_leftovers(
        &self,
        dir: &dyn Directory,
        at: &mut Path,
        without: &[Vec<u8>],
        of: &PartPlace,
        left: &mut Leftovers,
    ) -> Result<()> {
        for (name, node) in dir.list()?.iter() {
            at.push(name.to_vec());
            match &*node {
                Node::File(file) if at.as_slice() != without && self.pending.get(at).is_none() => {
                    if let Role::Stored(place) = self.target.role(at)?
                        && place.object == of.object
                    {
                        let content = file
                            .open()
                            .unwrap_or_else(|_| Arc::new(Unreadable(file.clone())));
                        let own = file.ownership();
                        let maker = Maker {
                            uid: own.uid,
                            gid: own.gid,
                            mode: own.mode & 0o666 | 0o200,
                        };
                        let body = Body::new(
                            at.clone(),
                            self.target.scratch(),
                            Some(content),
                            own.mtime,
                            maker,
                        );
                        body.is_whole(body.changes());
                        left.files.push((at.clone(), place, Arc::new(body)));
                    }
                }
                Node::Directory(below) => {
                    left.directories.push(at.clone());
                    self.add_leftovers(&**below, at, without, of, left)?;
                }
                _ => {}
            }
            at.pop();
        }
        Ok(())
    }

    /// Shows the remaining files of an object or member.
    fn leave(&self, path: &[Vec<u8>], place: &PartPlace, left: Leftovers) {
        if !place.member.is_empty() {
            self.pending
                .settle(&path[..path.len() - depth_inside(place)]);
        }
        let now = SystemTime::now();
        let mut entries = self.pending.entries();
        for at in left.directories {
            entries.entry(at).or_insert(PendingEntry::Directory(now));
        }
        for (at, _, body) in left.files {
            entries.entry(at).or_insert(PendingEntry::File(body));
        }
        drop(entries);
        self.pending.renew();
    }

    /// Removes the file at the path that a file was renamed away from: it is deleted, or stored elsewhere now.
    fn settle_origin(&self, origin: &[Vec<u8>]) -> Result<()> {
        match self.pending.get(origin) {
            Some(PendingEntry::Hidden) => {
                self.pending.entries().remove(origin);
            }
            // Another file was created there, and is not stored yet.
            Some(PendingEntry::File(other)) if std::mem::take(&mut other.state().hides) => {}
            _ => return Ok(()),
        }
        if self.stored(origin)?.is_some() {
            self.take_away(origin, &self.target.role(origin)?)?;
        }
        self.remove_hidden_above(origin)?;
        self.pending.renew();
        Ok(())
    }

    /// Removes the directories above a path that were removed while files that had been renamed away from there were
    /// still stored in them.
    fn remove_hidden_above(&self, path: &[Vec<u8>]) -> Result<()> {
        for depth in (1..path.len()).rev() {
            let above = &path[..depth];
            if !matches!(self.pending.get(above), Some(PendingEntry::Hidden)) {
                break;
            }
            match self.stored(above)? {
                Some(Node::Directory(dir)) if dir.list()?.is_empty() => {
                    self.target.remove_directory(above)?;
                }
                Some(_) => break,
                None => {}
            }
            self.pending.entries().remove(above);
        }
        Ok(())
    }

    fn make_directory(&self, path: &[Vec<u8>]) -> Result<()> {
        if self.shown(path)?.is_some() {
            return Err(refused(libc::EEXIST, "it exists"));
        }
        if self.is_hidden(path)? {
            // It was removed while files that had been renamed away from there were stored in it.
            self.pending.entries().remove(path);
            self.pending.touch_above(path);
            self.pending.renew();
            return Ok(());
        }
        let now = SystemTime::now();
        let made = self.target.make_directory(path, now)?;
        self.pending.touch_above(path);
        let mut entries = self.pending.entries();
        match made {
            DirectoryOutcome::Stored => entries.remove(path),
            DirectoryOutcome::Scratch => {
                entries.insert(path.to_vec(), PendingEntry::Directory(now))
            }
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
        if self.hides_stored(path)? {
            // A file that was renamed away is stored here until it is deleted, or stored under its new name.
            let mut entries = self.pending.entries();
            entries.insert(path.to_vec(), PendingEntry::Hidden);
            drop(entries);
            self.pending.renew();
        } else {
            if self.stored(path)?.is_some() {
                self.target.remove_directory(path)?;
            }
            self.pending.settle(path);
        }
        self.pending.forget_time(path);
        self.pending.touch_above(path);
        Ok(())
    }

    /// Returns true if a stored file below a path is hidden, as it was renamed away from there.
    fn hides_stored(&self, path: &[Vec<u8>]) -> Result<bool> {
        for (at, entry) in self.pending.below(path) {
            if matches!(entry, PendingEntry::Hidden) && self.stored(&at)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sets the time of a directory: for good if it is an object of the layer, else in this mount.
    pub fn set_directory_time(&self, path: &[Vec<u8>], time: SystemTime) -> Result<()> {
        let mut entries = self.pending.entries();
        if let Some(PendingEntry::Directory(known)) = entries.get_mut(path) {
            *known = time;
            self.pending.forget_time(path);
            return Ok(());
        }
        drop(entries);
        if let Ok(key) = String::from_utf8(path.join(&b'/'))
            && !key.is_empty()
        {
            self.target.set_time(&key, time)?;
        }
        self.pending.set_time(path, time);
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
                // The caller then copies the directory, as mv does.
                return Err(refused(libc::EXDEV, "a directory"));
            }
            _ if matches!(replaced, Some(Node::Directory(_))) => {
                return Err(Error::new(ErrorKind::IsDirectory, "is a directory"));
            }
            Some(Node::Symlink(_)) => return Err(refused(libc::EPERM, "a symbolic link")),
            Some(Node::File(_)) => {}
        }
        let body = self.pending.body(from);
        let hides = body.as_ref().is_some_and(|body| body.state().hides);
        // The file that it hides stays in its place.
        let stored = !hides && self.stored(from)?.is_some();
        if let (true, Role::Stored(place)) = (stored, &was) {
            // A file that may not be removed must not be stored elsewhere first.
            self.target.deletion(place)?;
        }
        if stored
            && body.is_none()
            && let (Role::Stored(a), Role::Stored(b)) = (&was, &becomes)
            && a.member.is_empty()
            && b.member.is_empty()
            && a.suffix == b.suffix
            && self.target.rename(&a.object, &b.object)?
        {
            self.pending.displace(to);
            self.pending.renew();
            // The rename has happened, so the renaming program gets no error; the next sync reports it.
            if let Err(e) = self.target.sync() {
                self.owe(e);
            }
            return Ok(());
        }
        let body = match body {
            Some(body) => body,
            None => self.edit(from)?,
        };
        let origin = body.state().origin.clone();
        let displaced = self.pending.put(&body, from, to);
        let done = match becomes {
            Role::Stored(_) => self.store_renamed(&body, from, to, stored.then_some(&was)),
            Role::Scratch => self.keep_without(from),
        };
        if let Err(e) = done {
            body.state().origin = origin;
            self.pending.put_back(&body, from, to, (displaced, hides));
            return Err(e);
        }
        if becomes == Role::Scratch {
            body.forget_stored();
            if stored {
                // The old name goes only after the file is stored under the new one, or is deleted as well.
                self.pending.hide(from, &body);
            }
        }
        if let Some(PendingEntry::File(old)) = displaced {
            let origin = {
                let mut state = old.state();
                state.path = None;
                state.origin.take()
            };
            old.retire();
            if let Some(origin) = origin {
                self.settle_origin(&origin)?;
            }
        }
        Ok(())
    }

    /// Stores a file durably under the path `to` and removes the files at its old paths. `was` is the stored node at
    /// `from`, if any. On failure the file is not stored.
    fn store_renamed(
        &self,
        body: &Arc<Body>,
        from: &[Vec<u8>],
        to: &[Vec<u8>],
        was: Option<&Role>,
    ) -> Result<()> {
        let origin = body.state().origin.take();
        let origin = origin.filter(|origin| origin != to);
        let origin_role = match &origin {
            Some(origin) if self.is_hidden(origin)? => Some(self.target.role(origin)?),
            _ => None,
        };
        if let Some(Role::Stored(place)) = &origin_role {
            self.target.deletion(place)?;
        }
        // An object goes in the same step in which it is stored elsewhere. Members of other objects follow later.
        let single = |role: Option<&Role>| match role {
            Some(Role::Stored(place)) if place.member.is_empty() => Some(place.object.clone()),
            _ => None,
        };
        let leaving = [single(was), single(origin_role.as_ref())];
        let gone: Vec<String> = leaving.iter().flatten().cloned().collect();
        // The file is stored whatever it was before, with its present time.
        body.copy()?;
        body.forget_stored();
        let state = self.commit_with(body, Some(&gone))?;
        if state == FileState::Begun && body.state().writers == 0 {
            return Err(self.begun(body));
        }
        // A file that was synced under its old name is expected to last under the new one.
        self.keep(to)?;
        self.keep_without(from)?;
        if !body.is_dirty() {
            self.pending.drop_idle(body);
        }
        if let Some(was) = was
            && (leaving[0].is_none() || state != FileState::Stored)
        {
            self.take_away(from, was)?;
        }
        if let Some(origin) = origin {
            self.settle_origin(&origin)?;
        }
        if !gone.is_empty() {
            self.pending.renew();
        }
        Ok(())
    }

    /// Returns true if the stored file at a path was renamed away from there.
    fn is_hidden(&self, path: &[Vec<u8>]) -> Result<bool> {
        let hidden = matches!(self.pending.get(path), Some(PendingEntry::Hidden));
        Ok(hidden && self.stored(path)?.is_some())
    }
}

/// The treatment of an existing file at the new name of a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// The existing file goes.
    Yes,
    /// The call fails with EEXIST.
    No,
}

impl Fs {
    /// Makes a directory. Adds one kernel reference to its inode.
    pub fn make_directory(&self, parent: u64, name: &OsStr) -> FsResult<Attr> {
        let make = || {
            let writer = self.writer()?;
            let path = self.path_in(parent, name)?;
            let _changing = writer.change_names(&[&path]);
            writer.make_directory(&path)
        };
        make().map_err(|e| self.note_name(parent, name, "mkdir", e))?;
        self.lookup(parent, name, 0)
    }

    /// Removes an empty directory. Fails with ENOTEMPTY for others.
    pub fn remove_directory(&self, parent: u64, name: &OsStr) -> FsResult<()> {
        let remove = || {
            let writer = self.writer()?;
            let path = self.path_in(parent, name)?;
            let _changing = writer.change_names(&[&path]);
            let there = self.child(parent, name.as_bytes())?;
            writer.remove_directory(&path)?;
            if let Some(node) = there {
                let name = name.as_bytes();
                let last = self.comes_last(name);
                self.inodes
                    .lock()
                    .remove_directory(parent, name, &node, last);
            }
            Ok(())
        };
        remove().map_err(|e| self.note_name(parent, name, "rmdir", e))
    }

    /// Deletes a file, and the parts of its object that go with it.
    pub fn unlink(&self, parent: u64, name: &OsStr) -> FsResult<()> {
        let unlink = || {
            let writer = self.writer()?;
            let path = self.path_in(parent, name)?;
            let open = self.open_directories();
            let _changing = writer.change_names(&[&path]);
            let remnants = writer.remnants(&path, &open)?;
            writer.delete(&path)?;
            writer.leave_remnants(remnants)?;
            writer.pending.touch_above(&path);
            Ok(())
        };
        unlink().map_err(|e| self.note_name(parent, name, "unlink", e))
    }

    /// Renames a file. Its new name and content are durable when this returns.
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
            let _changing = writer.change_names(&[&from, &to]);
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
                self.inodes.lock().rename(ino, new_parent, name);
            }
            Ok(())
        };
        rename().map_err(|e| self.note_name(new_parent, new_name, "rename", e))
    }
}

/// The names that are being changed. Any thread may use this set.
#[derive(Default)]
pub(super) struct Naming {
    busy: Mutex<Vec<Path>>,
    freed: Condvar,
}

/// The exclusive right to change some names, as long as the guard lives.
pub(super) struct Changing<'a> {
    naming: &'a Naming,
    paths: Vec<Path>,
}

impl Naming {
    /// Waits until no other thread changes any of these paths, or a path above or below them.
    pub(super) fn change(&self, paths: Vec<Path>) -> Changing<'_> {
        let meets = |busy: &Path| {
            let mut paths = paths.iter();
            paths.any(|path| path.starts_with(busy) || busy.starts_with(path))
        };
        // All names are taken at once, so that two threads that want each other's names do not deadlock.
        let mut busy = self.busy.lock();
        self.freed
            .wait_while(&mut busy, |busy| busy.iter().any(meets));
        busy.extend(paths.iter().cloned());
        drop(busy);
        Changing {
            naming: self,
            paths,
        }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let mut busy = self.naming.busy.lock();
        for path in &self.paths {
            if let Some(at) = busy.iter().position(|known| known == path) {
                busy.swap_remove(at);
            }
        }
        drop(busy);
        self.naming.freed.notify_all();
    }
}

/// A file that is another form of an object, as a scratch file.
pub(super) type Remnant = (Path, Arc<Body>);

impl Writer {
    /// Returns the files that are other forms of the object of the file at a path, if one of the `open` directories
    /// lists them.
    fn remnants(&self, path: &[Vec<u8>], open: &[Path]) -> Result<Vec<Remnant>> {
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
    fn leave_remnants(&self, remnants: Vec<Remnant>) -> Result<()> {
        for (at, body) in remnants {
            if self.stored(&at)?.is_none() {
                let entry = PendingEntry::File(body.clone());
                self.pending.entries().entry(at.clone()).or_insert(entry);
                let mut left = self.remnants.lock();
                left.push((at, body));
            }
        }
        Ok(())
    }

    /// Removes the remnants in the directory at a path, which is no longer open in any program.
    pub fn forget_remnants(&self, directory: &[Vec<u8>]) {
        let mut left = self.remnants.lock();
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn path(text: &str) -> Path {
        text.split('/').map(|name| name.as_bytes().into()).collect()
    }

    #[test]
    fn a_change_waits_for_those_that_it_meets_and_for_no_others() {
        let naming = Naming::default();
        let first = naming.change(vec![path("d/a"), path("e/b")]);
        // Without the drops above, these calls would hang.
        drop(naming.change(vec![path("d/b"), path("e/a"), path("d/aa")]));
        thread::scope(|scope| {
            let (done, heard) = channel();
            for met in ["d/a", "e", "e/b/c"] {
                let (naming, done) = (&naming, done.clone());
                scope.spawn(move || {
                    let _changing = naming.change(vec![path("f"), path(met)]);
                    done.send(met).unwrap();
                });
            }
            let waits = heard.recv_timeout(Duration::from_millis(50));
            assert!(waits.is_err(), "{waits:?}");
            drop(first);
            for _ in 0..3 {
                heard.recv().unwrap();
            }
        });
        assert!(naming.busy.lock().is_empty());
    }
}
