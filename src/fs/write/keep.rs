//! Objects that are not complete: their members outlive the mount, and the last one may come in a later mount.
//!
//! A member is kept once it was synced or renamed to its name, and when the mount ends.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
use std::time::SystemTime;

use super::body::{Body, Maker, Written};
use super::commit::depth_inside;
use super::pending::Entry;
use super::{Waiting, Writer};
use crate::checkout::target::{Part, Place, Restored, Role, Unstored};
use crate::error::Result;
use crate::tree::Node;

/// The scratch files of one object.
type Members = Vec<(Place, Arc<Body>)>;

/// The lock of an object that is not complete, a place in it, and its members.
type Incomplete<'a> = (MutexGuard<'a, ()>, Place, Members);

impl Writer {
    /// Shows what earlier mounts kept.
    pub(super) fn restore(&self) {
        for object in self.target.kept() {
            let files = object.parts.iter().map(|part| part.kept).collect();
            object.parts.into_iter().for_each(|part| self.show(part));
            let waiting = Waiting {
                missing: object.missing,
                kept: files,
            };
            self.waiting().insert(object.object, waiting);
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
                let entry = Entry::Directory(part.time);
                self.pending.entries().insert(above.to_vec(), entry);
            }
        }
        let body = Body::new(part.path.clone(), part.content, None, part.time, maker);
        body.is_kept(part.kept, 0, part.time);
        let entry = Entry::File(Arc::new(body));
        self.pending.entries().insert(part.path, entry);
    }

    /// If the file at a path belongs to an object that is not complete, keeps what is there of that.
    pub fn keep(&self, path: &[Vec<u8>]) -> Result<()> {
        let Some((_one, place, members)) = self.incomplete(path)? else {
            return Ok(());
        };
        self.keep_members(&place.object, members)
    }

    /// Keeps every object that is not complete.
    pub fn keep_all(&self) -> Result<()> {
        for (object, members) in self.members(&[])? {
            let _one = self.lock(&object);
            self.keep_members(&object, members)?;
        }
        Ok(())
    }

    /// A file was taken away from a path: a member of an object that is not complete is missing now, and if it was
    /// the only one, so is the object.
    pub fn keep_without(&self, path: &[Vec<u8>]) -> Result<()> {
        let Some((_one, place, members)) = self.incomplete(path)? else {
            return Ok(());
        };
        let was_kept = {
            let mut waiting = self.waiting();
            let object = waiting.entry(place.object.clone()).or_default();
            if !object.missing.contains(&place.member) {
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

    /// What the file at a path is of an object that is not complete, with the members of that; it stays locked.
    fn incomplete(&self, path: &[Vec<u8>]) -> Result<Option<Incomplete<'_>>> {
        let Role::Stored(place) = self.target.role(path)? else {
            return Ok(None);
        };
        let lock = self.lock(&place.object);
        if !self.waiting().contains_key(&place.object) {
            return Ok(None);
        }
        let top = &path[..path.len() - depth_inside(&place)];
        let members = self.members(top)?.remove(&place.object);
        Ok(Some((lock, place, members.unwrap_or_default())))
    }

    /// The scratch files at a path and below that make objects of several, by object.
    fn members(&self, top: &[Vec<u8>]) -> Result<BTreeMap<String, Members>> {
        let mut objects: BTreeMap<String, Members> = BTreeMap::new();
        for (at, entry) in self.pending.below(top) {
            if let Entry::File(body) = entry
                && let Ok(Role::Stored(place)) = self.target.role(&at)
                && !place.member.is_empty()
                && body.len()? > 0
            {
                let members = objects.entry(place.object.clone()).or_default();
                members.push((place, body));
            }
        }
        Ok(objects)
    }

    /// Keeps the members of an object, if it is not complete. The object is locked.
    fn keep_members(&self, object: &str, members: Members) -> Result<()> {
        let known = {
            let waiting = self.waiting();
            let object = waiting.get(object);
            object.map(|object| (object.missing.clone(), object.kept.clone()))
        };
        let Some((missing, before)) = known else {
            return Ok(());
        };
        let mut parts = Vec::with_capacity(members.len());
        let mut states: Vec<(u64, SystemTime)> = Vec::with_capacity(members.len());
        let mut same = members.len() == before.len();
        for ((place, body), before) in members
            .iter()
            .zip(before.iter().map(Some).chain(std::iter::repeat(None)))
        {
            body.copy()?;
            let (changes, time, kept) = (body.changes(), body.mtime(), body.kept());
            same &= kept.is_some_and(|kept| kept.mtime == time && Some(&kept.file) == before);
            let content = Arc::new(Written::new(body)?);
            parts.push(Unstored {
                part: Part {
                    place: place.clone(),
                    content,
                },
                time,
                kept: kept.map(|kept| kept.file),
            });
            states.push((changes, time));
        }
        if same {
            return Ok(());
        }
        let files = self.target.keep(object, &parts, &missing)?;
        for (((_, body), (changes, time)), &file) in members.iter().zip(states).zip(&files) {
            body.is_kept(file, changes, time);
        }
        let mut waiting = self.waiting();
        if files.is_empty() {
            waiting.remove(object);
        } else if let Some(waiting) = waiting.get_mut(object) {
            waiting.kept = files;
        }
        Ok(())
    }
}
