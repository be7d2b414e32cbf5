//! Storing what was written: which files make an object, and what becomes of them.

use std::sync::{Arc, MutexGuard};
use std::time::SystemTime;

use xxhash_rust::xxh3::xxh3_64;

use super::body::{Body, Written};
use super::pending::Entry;
use super::{LOCKS, Writer, refused};
use crate::checkout::target::{Outcome, Part, Place, Role};
use crate::content::Content;
use crate::error::Result;
use crate::npy::parse::{self, LONGEST_HEADER};
use crate::tree::{Directory, Node};

/// What a file is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
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
    pub fn commit(&self, body: &Arc<Body>) -> Result<()> {
        self.try_commit(body).map(drop)
    }

    fn try_commit(&self, body: &Arc<Body>) -> Result<State> {
        let Some(path) = body.path() else {
            return Ok(State::Gone);
        };
        if !body.is_untouched() && !body.is_dirty() {
            return Ok(State::Stored);
        }
        let Role::Stored(place) = self.target.role(&path)? else {
            return Ok(State::Kept);
        };
        let _one = self.lock(&place.object);
        if !body.is_dirty() {
            return Ok(State::Stored);
        }
        if body.is_untouched() && self.stored(&path)?.is_some() {
            let time = body.mtime();
            if self.target.set_time(&place.object, time)? {
                body.is_stored(body.changes(), time);
                return Ok(State::Stored);
            }
        }
        if let Some(failed) = body.failed() {
            return Err(failed.about("a write failed before"));
        }
        if is_begun(body, &place)? {
            return Ok(State::Begun);
        }
        let gathered = self.gather(&path, &place, body)?;
        // Nobody changes them until they are stored.
        let still: Vec<_> = gathered.bodies.iter().map(|b| b.hold_still()).collect();
        let times: Vec<(u64, SystemTime)> = gathered
            .bodies
            .iter()
            .map(|body| (body.changes(), body.mtime()))
            .collect();
        let time = body.mtime();
        let outcome = match self.target.store(&place.object, &gathered.parts, time) {
            // Parts that are stored are of the old object: this one may be the first of those that replace them.
            Err(e) if e.errno() == libc::EINVAL && gathered.mixed() && is_whole(body)? => {
                Outcome::Incomplete(Vec::new())
            }
            outcome => outcome?,
        };
        drop(still);
        match &outcome {
            Outcome::Stored => drop(self.waiting().remove(&place.object)),
            Outcome::Incomplete(missing) => {
                let mut waiting = self.waiting();
                let object = waiting.entry(place.object.clone()).or_default();
                object.missing.clone_from(missing);
            }
        }
        match outcome {
            Outcome::Stored => {
                for (part, (changes, mtime)) in gathered.bodies.iter().zip(times) {
                    part.is_stored(changes, mtime);
                    if part.number != body.number {
                        self.pending.drop_idle(part);
                    }
                }
                let depth = path.len() - depth_inside(&place);
                let parent = &path[..path.len().saturating_sub(1)];
                if !place.member.is_empty() {
                    self.pending.settle(&path[..depth]);
                } else if matches!(self.pending.get(parent), Some(Entry::Directory(_))) {
                    // Something is stored in it now.
                    self.pending.renew();
                }
                Ok(State::Stored)
            }
            Outcome::Incomplete(_) => Ok(State::Kept),
        }
    }

    /// The parts of the object that a file belongs to: scratch files before what is stored.
    fn gather(&self, path: &[Vec<u8>], place: &Place, body: &Arc<Body>) -> Result<Gathered> {
        let own = |body: &Arc<Body>, place: Place| -> Result<Part> {
            let content = Arc::new(Written::new(body)?);
            Ok(Part { place, content })
        };
        if place.member.is_empty() {
            return Ok(Gathered {
                parts: vec![own(body, place.clone())?],
                bodies: vec![body.clone()],
            });
        }
        let top = &path[..path.len() - depth_inside(place)];
        let mut parts = Vec::new();
        let mut bodies = Vec::new();
        let pending = self.pending.below(top);
        for (at, entry) in &pending {
            if let Entry::File(body) = entry
                && body.len()? > 0
                && let Role::Stored(other) = self.target.role(at)?
                && other.object == place.object
            {
                parts.push(own(body, other)?);
                bodies.push(body.clone());
            }
        }
        bodies.sort_by_key(|body| body.number);
        if let Some(Node::Directory(dir)) = self.stored(top)? {
            let mut path = top.to_vec();
            let covered = |at: &[Vec<u8>]| pending.iter().any(|(known, _)| known == at);
            self.add_stored(&*dir, &mut path, &place.object, &covered, &mut parts)?;
        }
        Ok(Gathered { parts, bodies })
    }

    /// The parts that are stored already.
    fn add_stored(
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
                        parts.push(Part { place, content });
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
        let state = self.try_commit(body);
        if body.state().writers > 0 {
            return state.map(drop);
        }
        match state {
            Ok(State::Kept | State::Gone) => Ok(()),
            Ok(State::Begun) if body.len()? > 0 => Ok(()),
            Ok(State::Stored) => {
                self.pending.drop_idle(body);
                Ok(())
            }
            Ok(State::Begun) => {
                let path = body.path().unwrap_or_default();
                // A new file may be empty until somebody writes it.
                if self.stored(&path)?.is_none() {
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
        self.finish(&body)
    }
}

/// Whether a file is empty, or a header without its elements (as `open_memmap` leaves it before it maps it).
fn is_begun(body: &Arc<Body>, place: &Place) -> Result<bool> {
    let len = body.len()?;
    if len == 0 || place.suffix != ".npy" || len > LONGEST_HEADER as u64 {
        return Ok(len == 0);
    }
    let content = Written::new(body)?;
    let mut head = [0; parse::PREAMBLE];
    let known = head.len().min(usize::try_from(len).unwrap_or(head.len()));
    content.read_at(0, &mut head[..known])?;
    if parse::start(&head[..known]) != Some(len) {
        return Ok(false);
    }
    let mut head = vec![0; usize::try_from(len).unwrap_or(0)];
    content.read_at(0, &mut head)?;
    let header = parse::parse(&head);
    Ok(header.is_ok_and(|header| header.start == len && header.len > 0))
}

/// Whether a file is a whole `.npy`.
fn is_whole(body: &Arc<Body>) -> Result<bool> {
    let content = Written::new(body)?;
    let size = content.len().min(LONGEST_HEADER as u64);
    let mut head = vec![0; usize::try_from(size).unwrap_or(LONGEST_HEADER)];
    content.read_at(0, &mut head)?;
    let header = parse::parse(&head);
    Ok(header.is_ok_and(|header| header.check_len(content.len()).is_ok()))
}

/// How many names of a path are inside its object.
pub(super) fn depth_inside(place: &Place) -> usize {
    if place.member.is_empty() {
        return 0;
    }
    place.member.split('/').count()
}
