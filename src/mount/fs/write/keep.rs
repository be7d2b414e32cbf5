//! Files that are no object yet, and what becomes of them when the mount ends.
//!
//! The members of an incomplete object outlive the mount, and the last member may come in a later mount. A member is
//! kept once it was synced or renamed to its name, and when the mount ends. It is kept whole, in its state at the last
//! close, sync or rename. While a member is being written again, its previously kept state counts.
//!
//! All other files that did not become objects are lost when the mount ends, and are reported before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use serde::Serialize;

use super::body::{Body, BodyContent, Maker};
use super::commit::depth_inside;
use super::pending::{Path, PendingEntry};
use super::{Waiting, Writer, refused};
use npyfs_base::error::{Error, Result};
use npyfs_core::store::part::{Part, PartPlace};
use npyfs_core::store::target::{Restored, Role, Unstored, describe_incomplete};
use npyfs_core::tree::Node;
use npyfs_core::tree::name::SUFFIXES;

/// The scratch files of one object.
pub(super) type Members = Vec<(PartPlace, Arc<Body>)>;

/// The lock of an incomplete object, a place in the object, and its members.
type Incomplete<'a> = (MutexGuard<'a, ()>, PartPlace, Members);

impl Writer {
    /// Shows the files that earlier mounts kept.
    pub(super) fn restore(&self) {
        for object in self.target.kept() {
            let files = object.parts.iter().map(|part| part.kept).collect();
            let waiting = Waiting {
                told: (object.missing.clone(), object.why.clone()),
                place: self.place_of(&object.parts),
                missing: object.missing,
                why: object.why,
                kept: files,
            };
            object.parts.into_iter().for_each(|part| self.show(part));
            self.waiting.lock().insert(object.object, waiting);
        }
    }

    /// Returns one of the files of an object, and its place.
    fn place_of(&self, parts: &[Restored]) -> Option<(Path, PartPlace)> {
        let path = &parts.first()?.path;
        match self.target.role(path) {
            Ok(Role::Stored(place)) => Some((path.clone(), place)),
            _ => None,
        }
    }

    fn show(&self, part: Restored) {
        let own = self.target.root().ownership();
        let maker = Maker {
            uid: own.uid,
            gid: own.gid,
            mode: 0o644,
        };
        for depth in 1..part.path.len() {
            let above = &part.path[..depth];
            if !matches!(self.stored(above), Ok(Some(Node::Directory(_)))) {
                let entry = PendingEntry::Directory(part.time);
                self.pending.entries().insert(above.to_vec(), entry);
            }
        }
        let body = Body::new(part.path.clone(), part.content, None, part.time, maker);
        body.is_kept(part.kept, 0, part.time);
        body.is_whole(0);
        let entry = PendingEntry::File(Arc::new(body));
        self.pending.entries().insert(part.path, entry);
    }

    /// Keeps the present members of the object that the file at a path belongs to, if the object is incomplete.
    pub fn keep(&self, path: &[Vec<u8>]) -> Result<()> {
        let Some((_one, place, members)) = self.incomplete(path)? else {
            return Ok(());
        };
        self.keep_members(&place.object, members)
    }

    /// Keeps every incomplete object. A failure of one object does not prevent the others from being kept.
    pub fn keep_all(&self) -> Result<()> {
        let objects: Vec<(Path, PartPlace)> = {
            let waiting = self.waiting.lock();
            let places = waiting.values();
            places.filter_map(|waiting| waiting.place.clone()).collect()
        };
        let mut all = Ok(());
        for (path, place) in objects {
            let _one = self.lock(&place.object);
            // The list is read only now: a member that another thread keeps meanwhile would be missing from it, and
            // forgotten.
            let members = self.members_beside(&path, &place);
            all = all.and(members.and_then(|m| self.keep_members(&place.object, m)));
        }
        all
    }

    /// Handles the removal of a file from a path: an incomplete object loses this member, and the object itself goes
    /// with its only member.
    pub fn keep_without(&self, path: &[Vec<u8>]) -> Result<()> {
        let Some((_one, place, members)) = self.incomplete(path)? else {
            return Ok(());
        };
        let was_kept = {
            let mut waiting = self.waiting.lock();
            let object = waiting.entry(place.object.clone()).or_default();
            object.place = Some((path.to_vec(), place.clone()));
            if !place.member.is_empty() && !object.missing.contains(&place.member) {
                object.missing.push(place.member.clone());
            }
            let was_kept = !object.kept.is_empty();
            if members.is_empty() && !was_kept {
                waiting.remove(&place.object);
            }
            was_kept
        };
        match was_kept {
            true => self.keep_members(&place.object, members),
            false => Ok(()),
        }
    }

    /// Returns the place of a file in an incomplete object and the members of the object, which stays locked.
    fn incomplete(&self, path: &[Vec<u8>]) -> Result<Option<Incomplete<'_>>> {
        let Role::Stored(place) = self.target.role(path)? else {
            return Ok(None);
        };
        let lock = self.lock(&place.object);
        if !self.waiting.lock().contains_key(&place.object) {
            return Ok(None);
        }
        let members = self.members_beside(path, &place)?;
        Ok(Some((lock, place, members)))
    }

    /// Returns all scratch files of the object of the file at a path: those in its directory, and files that are the
    /// whole object.
    pub(super) fn members_beside(&self, path: &[Vec<u8>], place: &PartPlace) -> Result<Members> {
        let mut top = path[..path.len() - depth_inside(place)].to_vec();
        if place.member.is_empty()
            && let Some(last) = top.last_mut()
        {
            last.truncate(last.len().saturating_sub(place.suffix.len()));
        }
        let mut members = self
            .members(&top)?
            .remove(&place.object)
            .unwrap_or_default();
        for suffix in SUFFIXES {
            let mut whole = top.clone();
            if let Some(last) = whole.last_mut() {
                last.extend_from_slice(suffix);
            }
            let more = self.members(&whole)?.remove(&place.object);
            members.extend(more.into_iter().flatten());
        }
        Ok(members)
    }

    /// Returns, by object, the scratch files at a path and below it that are to be stored.
    pub(super) fn members(&self, top: &[Vec<u8>]) -> Result<BTreeMap<String, Members>> {
        let mut objects: BTreeMap<String, Members> = BTreeMap::new();
        for (at, entry) in self.pending.below(top) {
            // If the role of a file cannot be determined now, its kept state must not be forgotten.
            if let PendingEntry::File(body) = entry
                && let Role::Stored(place) = self.target.role(&at)?
                // A file that was just truncated, to be written again, was kept before.
                && (body.len()? > 0 || body.kept().is_some())
            {
                let members = objects.entry(place.object.clone()).or_default();
                members.push((place, body));
            }
        }
        Ok(objects)
    }

    /// Keeps the members of an object if it is incomplete. The caller holds the lock of the object.
    fn keep_members(&self, object: &str, members: Members) -> Result<()> {
        let known = {
            let waiting = self.waiting.lock();
            let object = waiting.get(object);
            object.map(|object| {
                let lack = (object.missing.clone(), object.why.clone());
                let same = lack == object.told;
                (lack, object.kept.clone(), same)
            })
        };
        let Some((lack, before, same)) = known else {
            return Ok(());
        };
        for (_, body) in &members {
            body.copy()?;
        }
        // The members cannot change until they are kept.
        let still: Vec<_> = members.iter().map(|(_, body)| body.hold_still()).collect();
        let (mut parts, mut states) = (Vec::new(), Vec::new());
        for (place, body) in &members {
            let (changes, now, kept) = (body.changes(), body.mtime(), body.kept());
            let (changes, time, kept) = match kept {
                _ if body.stays_whole() => {
                    (changes, now, kept.filter(|kept| kept.changes == changes))
                }
                // The member is being written: its kept state counts until it is whole again.
                Some(kept) => (kept.changes, kept.mtime, Some(kept)),
                None => continue,
            };
            let content = Arc::new(BodyContent::new(body)?);
            parts.push(Unstored {
                part: Part {
                    place: place.clone(),
                    content,
                    stored: false,
                },
                time,
                kept: kept.map(|kept| kept.file),
            });
            states.push((body, changes, time, kept.map(|kept| kept.mtime)));
        }
        let same_files = parts
            .iter()
            .map(|part| part.kept)
            .eq(before.into_iter().map(Some));
        if same && same_files && states.iter().all(|(_, _, time, kept)| Some(*time) == *kept) {
            return Ok(());
        }
        let files = {
            let (missing, why) = &lack;
            // The reason is reported only when the parts are declared durable: members that are replaced one after the
            // other do not fit each other in between.
            if let (Some(why), false) = (why, same) {
                self.target
                    .note(&describe_incomplete(object, &[], Some(why)));
            }
            self.target.keep(object, &parts, missing, why.as_deref())?
        };
        for ((body, changes, time, _), &file) in states.into_iter().zip(&files) {
            body.is_kept(file, changes, time);
        }
        drop(still);
        let mut waiting = self.waiting.lock();
        if files.is_empty() {
            waiting.remove(object);
        } else if let Some(waiting) = waiting.get_mut(object) {
            waiting.kept = files;
            waiting.told = lack;
        }
        Ok(())
    }
}

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
        let handles = self.handles.read();
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
