//! Storing written files: the choice of files that form an object, and the state of each file afterwards. Making stored
//! changes durable, and the end of a writable mount.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::MutexGuard;
use xxhash_rust::xxh3::xxh3_64;

use super::body::{Body, BodyContent};
use super::pending::{Path, PendingEntry};
use super::two_forms::{is_replaced, twins};
use super::{LOCKS, Waiting, Writer, refused};
use crate::mount::fs::{Fs, FsResult};
use npyfs_base::error::{Error, ErrorKind, Result, retry_stale};
use npyfs_core::store::part::{Part, PartPlace};
use npyfs_core::store::target::{Role, StoreOutcome};
use npyfs_core::tree::{Directory, Node};
use npyfs_io::content::{Content, npy_header};
use npyfs_io::dir::Dir;

/// The present state of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileState {
    /// The file is stored in its present state.
    Stored,
    /// The file is a part of an incomplete object, or has a name that is not stored.
    Kept,
    /// Only a header was written so far; the next program that opens the file writes the rest.
    Begun,
    /// The file has no name any more.
    Gone,
}

/// The files that are stored as one object.
struct Gathered {
    parts: Vec<Part>,
    /// The parts that are scratch files.
    bodies: Vec<Arc<Body>>,
}

impl Gathered {
    /// Returns true if some parts are new and some are stored.
    fn mixed(&self) -> bool {
        self.parts.len() > self.bodies.len()
    }
}

impl Writer {
    pub(super) fn lock(&self, object: &str) -> MutexGuard<'_, ()> {
        let at = usize::try_from(xxh3_64(object.as_bytes()) % LOCKS as u64).unwrap_or(0);
        let lock = &self.locks[at];
        lock.lock()
    }

    /// Stores a file if it completes its object, while its name does not change. Returns an error if it can never be
    /// part of such an object.
    pub fn commit(&self, body: &Arc<Body>) -> Result<FileState> {
        let _held = self.hold_name(body);
        self.commit_with(body, None)
    }

    /// Stores a file, whose name the caller holds, as `commit` does. With `gone`, the object is stored durably and in
    /// one step with the deletion of those objects.
    pub(super) fn commit_with(
        &self,
        body: &Arc<Body>,
        gone: Option<&[String]>,
    ) -> Result<FileState> {
        let mut stored = None;
        let state = self.try_once(body, gone, &mut stored)?;
        if let Some(object) = stored {
            self.complete_waiting(&object);
        }
        Ok(state)
    }

    /// Stores files that waited for an object that is stored now, as vectors wait for their axis.
    fn complete_waiting(&self, object: &str) {
        let (group, name) = object.rsplit_once('/').unwrap_or(("", object));
        let is_beside =
            |other: &str| other.rsplit_once('/').map_or("", |(group, _)| group) == group;
        let waits = |(other, waiting): (&String, &Waiting)| {
            let waits = is_beside(other) && waiting.missing.iter().any(|missing| missing == name);
            waits.then(|| other.clone())
        };
        let waiting: Vec<String> = self.waiting.lock().iter().filter_map(waits).collect();
        if waiting.is_empty() {
            return;
        }
        let mut members = match self.members(&[]) {
            Ok(members) => members,
            Err(e) => {
                return self
                    .target
                    .note(&format!("{object}: what waits for it: {e}"));
            }
        };
        for other in waiting {
            for (_, body) in members.remove(&other).unwrap_or_default() {
                // A file with a writer is stored when that writer closes it.
                if body.state().writers > 0 || !body.is_dirty() {
                    continue;
                }
                match self.commit_with(&body, None) {
                    Ok(FileState::Stored) => self.pending.drop_stored(&body),
                    Ok(_) => {}
                    Err(e) => {
                        // The file was reported as kept: it goes on waiting.
                        if let Some(waiting) = self.waiting.lock().get_mut(&other) {
                            waiting.missing.clear();
                            waiting.why = Some(e.to_string());
                        }
                        let why = format!("{other} waited for {name} and cannot be stored: {e}");
                        self.target.note(&why);
                    }
                }
            }
        }
    }

    /// Makes one attempt; returns the object that was stored.
    fn try_once(
        &self,
        body: &Arc<Body>,
        gone: Option<&[String]>,
        done: &mut Option<String>,
    ) -> Result<FileState> {
        let Some(path) = body.path() else {
            return Ok(FileState::Gone);
        };
        if !body.is_untouched() && !body.is_dirty() {
            return Ok(FileState::Stored);
        }
        let Role::Stored(place) = self.target.role(&path)? else {
            return Ok(FileState::Kept);
        };
        let _one = self.lock(&place.object);
        if !body.is_dirty() {
            return Ok(FileState::Stored);
        }
        if body.is_untouched() && self.stored(&path)?.is_some() {
            let time = body.mtime();
            if self.target.set_time(&place.object, time)? {
                body.is_stored(body.changes(), time);
                return Ok(FileState::Stored);
            }
        }
        if let Some(failed) = body.failed() {
            return Err(failed.about("a write failed before"));
        }
        if is_begun(body, &place)? {
            return Ok(FileState::Begun);
        }
        // Other files of the object may be stored meanwhile, and are then no scratch files.
        let gathered = retry_stale(|| self.gather(&path, &place, body))?;
        // The files cannot change until they are stored.
        let still: Vec<_> = gathered.bodies.iter().map(|b| b.hold_still()).collect();
        let times: Vec<(u64, SystemTime)> = gathered
            .bodies
            .iter()
            .map(|body| (body.changes(), body.mtime()))
            .collect();
        let time = body.mtime();
        let before = match place.member.is_empty() {
            true => BTreeSet::new(),
            false => self.shown_below(top(&path, &place))?,
        };
        let (object, parts) = (&place.object, &gathered.parts);
        let stored = match gone {
            None => self.target.store(object, parts, time),
            Some(gone) => {
                // The replaced object goes without a deletion.
                let others = gone.iter().filter(|gone| *gone != object);
                let others: Vec<String> = others.cloned().collect();
                self.target.replace(object, parts, time, &others)
            }
        };
        let mut why = None;
        let outcome = match stored {
            // The stored parts belong to the old object: this file may be the first of the parts that replace them.
            Err(e)
                if e.errno() == libc::EINVAL && gathered.mixed() && check_whole(body).is_ok() =>
            {
                let own = object.rsplit('/').next().unwrap_or_default();
                let said = e.message.strip_prefix(&format!("{own}: "));
                why = Some(said.unwrap_or(&e.message).to_owned());
                StoreOutcome::Incomplete(Vec::new())
            }
            outcome => outcome?,
        };
        if matches!(outcome, StoreOutcome::Incomplete(_)) {
            // If names alone showed which parts are missing, the content was not checked yet.
            if place.suffix == ".npy" {
                check_whole(body)?;
            }
            body.is_whole(body.changes());
        }
        drop(still);
        match &outcome {
            StoreOutcome::Stored => {
                let waited = self.waiting.lock().remove(&place.object).is_some();
                // The kept states of the object's other files are obsolete now.
                if waited {
                    for (_, other) in self.members_beside(&path, &place)? {
                        other.forget_kept();
                    }
                }
            }
            StoreOutcome::Incomplete(missing) => {
                let mut waiting = self.waiting.lock();
                let object = waiting.entry(place.object.clone()).or_default();
                object.place = Some((path.clone(), place.clone()));
                object.missing.clone_from(missing);
                object.why = why;
            }
        }
        match outcome {
            StoreOutcome::Stored => {
                *done = Some(place.object.clone());
                for (part, (changes, mtime)) in gathered.bodies.iter().zip(times) {
                    part.is_stored(changes, mtime);
                    if part.number != body.number {
                        self.pending.drop_stored(part);
                    }
                }
                let parent = &path[..path.len().saturating_sub(1)];
                if !place.member.is_empty() {
                    let empty = self.unstored_directories(top(&path, &place))?;
                    self.pending.settle_stored(top(&path, &place), &empty);
                    self.leave_unseen(top(&path, &place), &before)?;
                } else if matches!(self.pending.get(parent), Some(PendingEntry::Directory(_))) {
                    // The directory has a stored object now.
                    self.pending.renew();
                }
                Ok(FileState::Stored)
            }
            StoreOutcome::Incomplete(_) => Ok(FileState::Kept),
        }
    }

    /// Returns the parts of the object that a file belongs to; scratch files take precedence over stored parts.
    fn gather(&self, path: &[Vec<u8>], place: &PartPlace, body: &Arc<Body>) -> Result<Gathered> {
        let own = |body: &Arc<Body>, place: PartPlace| -> Result<Part> {
            let content = Arc::new(BodyContent::new(body)?);
            Ok(Part {
                place,
                content,
                stored: false,
            })
        };
        if place.member.is_empty() {
            let whole = twins(path, path.len().saturating_sub(1)).next();
            let parts = match whole {
                Some(top)
                    if matches!(self.stored(&top)?, Some(Node::Directory(_)))
                        && self.is_unchanged(path, body)? =>
                {
                    self.parts_of(&top, place)?
                }
                _ => Vec::new(),
            };
            return Ok(Gathered {
                // An unchanged part says less than the members, if there are any.
                parts: match parts.is_empty() {
                    true => vec![own(body, place.clone())?],
                    false => parts,
                },
                bodies: vec![body.clone()],
            });
        }
        let top = top(path, place);
        let own_number = body.number;
        let mut parts = Vec::new();
        let mut bodies = Vec::new();
        let mut written = BTreeSet::new();
        // Files whose stored form is a part of the object: they are open and unchanged, or the kernel has not reported
        // yet that they were closed.
        let mut unchanged = BTreeSet::new();
        let pending = self.pending.below(top);
        for (at, entry) in &pending {
            let PendingEntry::File(body) = entry else {
                continue;
            };
            if body.len()? > 0
                && let Role::Stored(other) = self.target.role(at)?
                && other.object == place.object
                // A file that is being written does not count yet, nor does its stored form.
                && (body.number == own_number || body.stays_whole())
                && !self.is_left_over(at, top, body, &pending)?
            {
                let mut part = own(body, other)?;
                part.stored = self.is_unchanged(at, body)?;
                if !part.stored {
                    written.insert(at.clone());
                }
                parts.push(part);
                bodies.push(body.clone());
            } else if body.has_stored_content() {
                unchanged.insert(at.clone());
            }
        }
        bodies.sort_by_key(|body| body.number);
        if let Some(Node::Directory(dir)) = self.stored(top)? {
            let mut path = top.to_vec();
            let depth = path.len();
            let covered = |at: &[Vec<u8>]| {
                let known = pending.binary_search_by(|(known, _)| known.as_slice().cmp(at));
                (known.is_ok() && !unchanged.contains(at)) || is_replaced(at, depth, &written)
            };
            self.add_stored(&*dir, &mut path, &place.object, &covered, &mut parts)?;
        }
        Ok(Gathered { parts, bodies })
    }

    /// Returns true if a scratch file is only the remainder of a deleted member and was not written since. It is then
    /// no part of the object, which goes on without the member.
    fn is_left_over(
        &self,
        at: &[Vec<u8>],
        top: &[Vec<u8>],
        body: &Arc<Body>,
        pending: &[(Path, PendingEntry)],
    ) -> Result<bool> {
        let is_old = |body: &Arc<Body>| body.is_untouched() && !body.is_dirty();
        if !is_old(body) || self.stored(top)?.is_none() || self.stored(at)?.is_some() {
            return Ok(false);
        }
        let member = |at: &[Vec<u8>]| {
            let name = at.get(top.len()).map(Vec::as_slice).unwrap_or_default();
            name.strip_suffix(b".npy").unwrap_or(name).to_vec()
        };
        let written = pending.iter().any(|(other, entry)| {
            matches!(entry, PendingEntry::File(body) if !is_old(body))
                && member(other) == member(at)
        });
        Ok(!written)
    }

    /// Returns the stored parts of an object in the directory at a path.
    pub(super) fn parts_of(&self, top: &[Vec<u8>], place: &PartPlace) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        if let Some(Node::Directory(dir)) = self.stored(top)? {
            self.add_stored(
                &*dir,
                &mut top.to_vec(),
                &place.object,
                &|_| false,
                &mut parts,
            )?;
        }
        Ok(parts)
    }

    /// Adds the parts that are stored already.
    pub(super) fn add_stored(
        &self,
        dir: &dyn Directory,
        path: &mut Vec<Vec<u8>>,
        object: &str,
        covered: &dyn Fn(&[Vec<u8>]) -> bool,
        parts: &mut Vec<Part>,
    ) -> Result<()> {
        for (name, node) in dir.list()?.iter() {
            path.push(name.to_vec());
            match &*node {
                Node::File(file) if !covered(path) => {
                    if let Role::Stored(place) = self.target.role(path)?
                        && place.object == object
                    {
                        let content = file.open()?;
                        parts.push(Part {
                            place,
                            content,
                            stored: true,
                        });
                    }
                }
                Node::Directory(below) => {
                    self.add_stored(&**below, path, object, covered, parts)?;
                }
                _ => {}
            }
            path.pop();
        }
        Ok(())
    }

    /// Handles the end of the last writer of a file: a file that is stored, or never will be, ceases to be a scratch
    /// file.
    pub fn finish(&self, body: &Arc<Body>) -> Result<()> {
        let _held = self.hold_name(body);
        self.finish_held(body)
    }

    /// Does what `finish` does with a file whose name the caller holds.
    fn finish_held(&self, body: &Arc<Body>) -> Result<()> {
        let state = self.commit_with(body, None);
        if body.state().writers > 0 {
            return state.map(drop);
        }
        match state {
            Ok(FileState::Kept | FileState::Gone) => Ok(()),
            Ok(FileState::Begun) if body.len()? > 0 => Ok(()),
            Ok(FileState::Stored) => {
                self.pending.drop_stored(body);
                Ok(())
            }
            Ok(FileState::Begun) => {
                // A new file may be empty until a program writes it.
                if !self.is_emptied(body)? {
                    return Ok(());
                }
                self.pending.drop_idle(body);
                Err(refused(libc::EINVAL, "it is empty"))
            }
            Err(e) => {
                self.pending.drop_idle(body);
                Err(e)
            }
        }
    }

    /// Sets the time of a stored entry.
    pub fn touch(&self, path: &[Vec<u8>], time: SystemTime) -> Result<()> {
        let _changing = self.change_names(&[path]);
        if let Role::Stored(place) = self.target.role(path)? {
            let _one = self.lock(&place.object);
            if self.target.set_time(&place.object, time)? {
                return Ok(());
            }
        }
        let body = self.edit(path)?;
        body.set_time(time);
        // A file with a writer is stored when that writer closes it, together with the parts that are missing now.
        if body.state().writers > 0 {
            return Ok(());
        }
        self.finish_held(&body)
    }
}

/// Returns true if an empty file is a value: a sample of text or bytes. An array file is never empty.
fn may_be_empty(place: &PartPlace) -> bool {
    matches!(place.suffix, ".txt" | ".bin")
}

/// Returns true if a file is empty, or is a header without elements that its writer can still map (`open_memmap` leaves
/// such a file before it opens it again). If the writer could not map it, the header is all that was written: the file
/// is truncated.
fn is_begun(body: &Arc<Body>, place: &PartPlace) -> Result<bool> {
    let len = body.len()?;
    if may_be_empty(place) {
        return Ok(false);
    }
    if len == 0 || place.suffix != ".npy" || !body.state().is_mappable {
        return Ok(len == 0);
    }
    let header = npy_header(&BodyContent::new(body)?)?;
    Ok(header.is_ok_and(|header| header.start == len && header.len > 0))
}

/// Checks that a file is a whole `.npy`. Fails with EINVAL if it is not.
fn check_whole(body: &Arc<Body>) -> Result<()> {
    let content = BodyContent::new(body)?;
    let checked = npy_header(&content)?.and_then(|header| header.check_len(content.len()));
    checked.map_err(|e| refused(libc::EINVAL, &e.to_string()))
}

/// Returns the part of a path that leads to its object.
pub(super) fn top<'a>(path: &'a [Vec<u8>], place: &PartPlace) -> &'a [Vec<u8>] {
    &path[..path.len() - depth_inside(place)]
}

/// Returns the number of names of a path that are inside its object.
pub(super) fn depth_inside(place: &PartPlace) -> usize {
    if place.member.is_empty() {
        return 0;
    }
    place.member.split('/').count()
}

impl Fs {
    /// Stores the file durably.
    pub fn fsync(&self, handle: u64) -> FsResult<()> {
        let Some(writer) = &self.writer else {
            return Ok(());
        };
        let Some(body) = writer.handle(handle) else {
            return self.sync_dir();
        };
        self.store(&body, "fsync")?;
        let path = body.path().unwrap_or_default();
        let kept = match path.as_slice() {
            [] => Ok(()),
            path => writer.keep(path),
        };
        let synced = kept.and_then(|()| writer.sync());
        synced.map_err(|e| self.note_path(&path, "fsync", e))
    }

    /// Commits what is stored, as an extended attribute of the root asks for it. Only the owner of the mount may ask.
    pub fn commit(&self, uid: u32, request: &[u8]) -> FsResult<()> {
        let about = |e: Error| self.note_path(&[b".".to_vec()], "commit", e);
        let Some(writer) = &self.writer else {
            return Err(about(refused(libc::EROFS, "the mount is read-only")));
        };
        if uid != 0 && uid != rustix::process::geteuid().as_raw() {
            let why = "only the user of the mount may commit in it";
            return Err(about(refused(libc::EPERM, why)));
        }
        let request = serde_json::from_slice(request);
        let request = request.map_err(|e| about(refused(libc::EINVAL, &e.to_string())))?;
        writer.commit_all(&request).map_err(about)
    }

    /// Ends a writable mount: makes all stored changes durable and logs the files that are lost.
    pub fn close(&self) -> FsResult<()> {
        let synced = self.sync_dir();
        let unfinished = self.writer.as_deref().map(Writer::unfinished);
        for file in unfinished.unwrap_or_default() {
            let why = format!("not stored, and gone with the mount: {}", file.reason);
            let error = refused(libc::EINVAL, &why);
            self.refuse(file.path.as_bytes(), "unmount", &error);
        }
        synced
    }

    /// Returns what says the directory of the checkout now, for a log, if the checkout has permanent ones.
    pub fn log_directory(&self) -> Option<impl Fn() -> Result<Dir> + Send + Sync + 'static> {
        let target = &self.writer.as_ref()?.target;
        target.log_directory()?;
        // The log must not keep the checkout open.
        let target = Arc::downgrade(target);
        Some(move || {
            let dir = target.upgrade().and_then(|target| target.log_directory());
            dir.ok_or_else(|| Error::new(ErrorKind::Stale, "the checkout is closed"))
        })
    }

    /// Makes all stored changes and all names durable.
    pub fn sync_dir(&self) -> FsResult<()> {
        let Some(writer) = &self.writer else {
            return Ok(());
        };
        let kept = writer.keep_all();
        let synced = writer.sync().and(kept);
        synced.map_err(|e| self.note_path(&[b".".to_vec()], "sync", e))
    }
}
