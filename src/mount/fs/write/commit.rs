//! Storing what was written: which files make an object, and what becomes of them.

use std::collections::BTreeSet;
use std::sync::{Arc, MutexGuard};
use std::time::SystemTime;

use xxhash_rust::xxh3::xxh3_64;

use super::body::{Body, Written};
use super::pending::{Path, PendingEntry};
use super::twins::{is_replaced, twins};
use super::{LOCKS, Waiting, Writer, refused};
use crate::checkout::target::{Part, PartPlace, Role, StoreOutcome};
use crate::error::{Result, retry_stale};
use crate::io::content::{Content, npy_header};
use crate::tree::{Directory, Node};

/// The state of a file at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileState {
    /// It is stored as it is now.
    Stored,
    /// A part of an object that is not complete, or a name that nobody stores.
    Kept,
    /// Nothing was written yet but a header: what opens the file next writes the rest.
    Begun,
    /// It has no name any more.
    Gone,
}

/// Files that are stored as one object.
struct Gathered {
    parts: Vec<Part>,
    /// Those of the parts that are scratch files.
    bodies: Vec<Arc<Body>>,
}

impl Gathered {
    /// Some parts are new, and some are stored.
    fn mixed(&self) -> bool {
        self.parts.len() > self.bodies.len()
    }
}

impl Writer {
    pub(super) fn lock(&self, object: &str) -> MutexGuard<'_, ()> {
        let at = usize::try_from(xxh3_64(object.as_bytes()) % LOCKS as u64).unwrap_or(0);
        let lock = &self.locks[at];
        lock.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Stores a file if it makes its object complete. An error if it can never be such an object.
    pub fn commit(&self, body: &Arc<Body>) -> Result<FileState> {
        self.commit_with(body, None)
    }

    /// Stores a file as `commit` does; where `gone` is given durably, and together with the deletion of these objects.
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

    /// Stores what waited for an object that is stored now, as vectors wait for their axis.
    fn complete_waiting(&self, object: &str) {
        let (group, name) = object.rsplit_once('/').unwrap_or(("", object));
        let is_beside =
            |other: &str| other.rsplit_once('/').map_or("", |(group, _)| group) == group;
        let waits = |(other, waiting): (&String, &Waiting)| {
            let waits = is_beside(other) && waiting.missing.iter().any(|missing| missing == name);
            waits.then(|| other.clone())
        };
        let waiting: Vec<String> = self.waiting().iter().filter_map(waits).collect();
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
                // Whoever writes it stores it.
                if body.state().writers > 0 || !body.is_dirty() {
                    continue;
                }
                match self.commit(&body) {
                    Ok(FileState::Stored) => self.pending.drop_stored(&body),
                    Ok(_) => {}
                    Err(e) => {
                        // It was said to be kept: it goes on waiting.
                        if let Some(waiting) = self.waiting().get_mut(&other) {
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

    /// Tries once; says which object was stored.
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
        // Others of its files may be stored meanwhile, and are no scratch files then.
        let gathered = retry_stale(|| self.gather(&path, &place, body))?;
        // Nobody changes them until they are stored.
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
                // What it takes the place of goes without being deleted.
                let others = gone.iter().filter(|gone| *gone != object);
                let others: Vec<String> = others.cloned().collect();
                self.target.replace(object, parts, time, &others)
            }
        };
        let mut why = None;
        let outcome = match stored {
            // Parts that are stored are of the old object: this one may be the first of those that replace them.
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
            // Nobody has looked at it, if what is missing was clear from names.
            if place.suffix == ".npy" {
                check_whole(body)?;
            }
            body.is_whole(body.changes());
        }
        drop(still);
        match &outcome {
            StoreOutcome::Stored => {
                let waited = self.waiting().remove(&place.object).is_some();
                // What was kept of others of its files ended with this.
                if waited {
                    for (_, other) in self.members_beside(&path, &place)? {
                        other.forget_kept();
                    }
                }
            }
            StoreOutcome::Incomplete(missing) => {
                let mut waiting = self.waiting();
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
                    // Something is stored in it now.
                    self.pending.renew();
                }
                Ok(FileState::Stored)
            }
            StoreOutcome::Incomplete(_) => Ok(FileState::Kept),
        }
    }

    /// The parts of the object that a file belongs to: scratch files before what is stored.
    fn gather(&self, path: &[Vec<u8>], place: &PartPlace, body: &Arc<Body>) -> Result<Gathered> {
        let own = |body: &Arc<Body>, place: PartPlace| -> Result<Part> {
            let content = Arc::new(Written::new(body)?);
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
                // The same again says less than the members, if there are any.
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
        let pending = self.pending.below(top);
        for (at, entry) in &pending {
            if let PendingEntry::File(body) = entry
                && body.len()? > 0
                && let Role::Stored(other) = self.target.role(at)?
                && other.object == place.object
                // What somebody is writing is not there yet.
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
            }
        }
        bodies.sort_by_key(|body| body.number);
        if let Some(Node::Directory(dir)) = self.stored(top)? {
            let mut path = top.to_vec();
            let depth = path.len();
            let covered = |at: &[Vec<u8>]| {
                let known = pending.binary_search_by(|(known, _)| known.as_slice().cmp(at));
                known.is_ok() || is_replaced(at, depth, &written)
            };
            self.add_stored(&*dir, &mut path, &place.object, &covered, &mut parts)?;
        }
        Ok(Gathered { parts, bodies })
    }

    /// Returns true if a scratch file is only left of a member that was deleted, of which nothing was written since: it is no
    /// part of the object, which goes on without the member.
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

    /// Returns what is stored of an object in the directory at a path.
    fn parts_of(&self, top: &[Vec<u8>], place: &PartPlace) -> Result<Vec<Part>> {
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

    /// The parts that are stored already.
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

    /// The last writer of a file is gone: what is stored, or never will be, is no scratch file any longer.
    pub fn finish(&self, body: &Arc<Body>) -> Result<()> {
        let state = self.commit(body);
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
                // A new file may be empty until somebody writes it.
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

    /// Sets the time of something stored.
    pub fn touch(&self, path: &[Vec<u8>], time: SystemTime) -> Result<()> {
        if let Role::Stored(place) = self.target.role(path)? {
            let _one = self.lock(&place.object);
            if self.target.set_time(&place.object, time)? {
                return Ok(());
            }
        }
        let body = self.edit(path)?;
        body.set_time(time);
        // Whoever writes it stores it, with what is not there yet.
        if body.state().writers > 0 {
            return Ok(());
        }
        self.finish(&body)
    }
}

/// Returns true if a file of nothing is a value: a sample of text or bytes. No array is.
fn may_be_empty(place: &PartPlace) -> bool {
    matches!(place.suffix, ".txt" | ".bin")
}

/// Returns true if a file is empty, or a header without its elements that whoever wrote it can still map (as `open_memmap` leaves it
/// before it opens it again). Whoever could only write has ended with the header: that is a truncated file.
fn is_begun(body: &Arc<Body>, place: &PartPlace) -> Result<bool> {
    let len = body.len()?;
    if may_be_empty(place) {
        return Ok(false);
    }
    if len == 0 || place.suffix != ".npy" || !body.state().is_mappable {
        return Ok(len == 0);
    }
    let header = npy_header(&Written::new(body)?)?;
    Ok(header.is_ok_and(|header| header.start == len && header.len > 0))
}

/// Checks that a file is a whole `.npy`; EINVAL if it is not.
fn check_whole(body: &Arc<Body>) -> Result<()> {
    let content = Written::new(body)?;
    let checked = npy_header(&content)?.and_then(|header| header.check_len(content.len()));
    checked.map_err(|e| refused(libc::EINVAL, &e.to_string()))
}

/// The part of a path that leads to its object.
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
