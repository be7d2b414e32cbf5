//! The part of a writable mount that is not stored yet: scratch files and directories, laid over the stored tree.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value as Json, json};

use super::Flags;
use super::body::{Body, BodyState, ScratchFile};
use super::two_forms::file_beside;
use npyfs_base::error::Result;
use npyfs_core::store::target::Target;
use npyfs_core::tree::overlay::{self, AddedEntries, Overlay};
use npyfs_core::tree::{Directory, Node};
use npyfs_io::file::Ownership;

/// The names that lead to an entry, from the root.
pub(super) type Path = Vec<Vec<u8>>;

/// An entry at a path, which takes precedence over the stored one.
#[derive(Clone)]
pub(super) enum PendingEntry {
    File(Arc<Body>),
    Directory(SystemTime),
    /// Nothing is shown: a part of an object was deleted, or renamed to a name that is not stored.
    Hidden,
    /// Nothing is shown: the stored entry is another form of a file that was written in this mount.
    Unwritten,
}

impl PendingEntry {
    /// Returns true for a file whose stored form is shown already.
    fn reads_as_stored(&self) -> bool {
        matches!(self, Self::File(body) if body.reads_as_stored())
    }
}

/// What this mount says of the time of a stored directory.
#[derive(Clone, Copy)]
enum NewTime {
    /// Names in it changed.
    Changed(SystemTime),
    /// A program set it, at `at`. A store keeps no time of a directory, so it holds until a later change, or the
    /// unmount.
    Set { time: SystemTime, at: SystemTime },
}

impl NewTime {
    /// Returns the time to show of a directory whose contents changed at `stored`.
    fn over(self, stored: SystemTime) -> SystemTime {
        match self {
            Self::Changed(time) => time.max(stored),
            Self::Set { time, at } if stored <= at => time,
            Self::Set { .. } => stored,
        }
    }
}

/// All pending entries. Any thread may use this table.
#[derive(Default)]
pub(super) struct Pending {
    entries: Mutex<BTreeMap<Path, PendingEntry>>,
    /// The times of directories whose names changed through this mount, or whose time was set.
    times: Mutex<HashMap<Path, NewTime>>,
    /// Counts changes of the set of directories.
    generation: AtomicU64,
}

impl Pending {
    /// Locks the table itself, to change more than one entry at once.
    pub(super) fn entries(&self) -> MutexGuard<'_, BTreeMap<Path, PendingEntry>> {
        self.entries.lock()
    }

    pub(super) fn get(&self, path: &[Vec<u8>]) -> Option<PendingEntry> {
        self.entries.lock().get(path).cloned()
    }

    /// Returns the file at a path.
    pub(super) fn body(&self, path: &[Vec<u8>]) -> Option<Arc<Body>> {
        match self.get(path) {
            Some(PendingEntry::File(body)) => Some(body),
            _ => None,
        }
    }

    /// Counts one more writer of a file, opened by a thread. Returns `None` if the file has no name by now, unless the
    /// file is kept for the thread, which then looked it up while it still had one.
    pub(super) fn add_writer(&self, body: &Body, flags: Flags) -> Option<()> {
        let _entries = self.entries.lock();
        let mut state = body.state();
        if state.path.is_none() && !state.is_kept_for(flags.thread) {
            return None;
        }
        state.is_mappable = flags.reads || (state.is_mappable && !flags.truncate);
        state.writers += 1;
        state.unclosed += 1;
        state.awaited.retain(|(other, _)| *other != flags.thread);
        Some(())
    }

    /// Keeps the file at a path for a thread that looks it up again; returns `None` if the file is no longer there.
    pub(super) fn await_writer(&self, body: &Body, thread: u32) -> Option<()> {
        let _entries = self.entries.lock();
        let mut state = body.state();
        state.path.as_ref()?;
        state.awaited.retain(|(other, _)| *other != thread);
        state.awaited.push((thread, Instant::now()));
        Some(())
    }

    /// Removes a file from its path, if it is still there.
    pub(super) fn drop_body(&self, body: &Body) {
        self.drop_if(body, |_| true);
    }

    /// Removes a file from its path unless it was opened for writing meanwhile.
    pub(super) fn drop_idle(&self, body: &Body) {
        self.drop_if(body, |state| state.writers == 0 && !state.is_awaited());
    }

    /// Removes a stored file from its path, unless it was changed since.
    pub(super) fn drop_stored(&self, body: &Body) {
        let is_idle = |state: &BodyState| state.writers == 0 && !state.is_awaited();
        self.drop_if(body, |state| {
            is_idle(state) && !state.is_dirty(body.changes())
        });
    }

    fn drop_if(&self, body: &Body, may: impl FnOnce(&BodyState) -> bool) {
        let mut entries = self.entries.lock();
        let mut state = body.state();
        if !may(&state) {
            return;
        }
        if let Some(path) = state.path.take()
            && matches!(entries.get(&path), Some(PendingEntry::File(there)) if there.number == body.number)
        {
            match state.hides {
                true => entries.insert(path, PendingEntry::Hidden),
                false => entries.remove(&path),
            };
        }
        drop((state, entries));
        body.retire();
    }

    /// Removes the name of a scratch file that another file replaces.
    pub(super) fn displace(&self, path: &[Vec<u8>]) {
        if let Some(PendingEntry::File(old)) = self.entries.lock().remove(path) {
            old.state().path = None;
            old.retire();
        }
    }

    /// Gives a file another path. Returns the entry that stood there.
    pub(super) fn put(
        &self,
        body: &Arc<Body>,
        from: &[Vec<u8>],
        to: &[Vec<u8>],
    ) -> Option<PendingEntry> {
        let mut entries = self.entries.lock();
        let mut state = body.state();
        match state.hides {
            true => entries.insert(from.to_vec(), PendingEntry::Hidden),
            false => entries.remove(from),
        };
        state.path = Some(to.to_vec());
        let was = entries.insert(to.to_vec(), PendingEntry::File(body.clone()));
        state.hides = match &was {
            Some(PendingEntry::Hidden) => true,
            Some(PendingEntry::File(other)) if other.number != body.number => other.state().hides,
            _ => false,
        };
        was
    }

    /// Reverts `put`: `was` stood at the path, and `hid` says whether the file hid another one at its old path.
    pub(super) fn put_back(
        &self,
        body: &Arc<Body>,
        from: &[Vec<u8>],
        to: &[Vec<u8>],
        (was, hid): (Option<PendingEntry>, bool),
    ) {
        let mut entries = self.entries.lock();
        let was = match was {
            // The other file went meanwhile.
            Some(PendingEntry::File(other)) if other.path().is_none() => {
                other.state().hides.then_some(PendingEntry::Hidden)
            }
            was => was,
        };
        match was {
            Some(entry) => entries.insert(to.to_vec(), entry),
            None => entries.remove(to),
        };
        let mut state = body.state();
        state.path = Some(from.to_vec());
        state.hides = hid;
        drop(state);
        entries.insert(from.to_vec(), PendingEntry::File(body.clone()));
        drop(entries);
        if body.is_copy() {
            // The file is a copy of the stored one at its path.
            self.drop_idle(body);
        }
    }

    /// Makes `body` the only name of the stored file at a path, which goes with it from now on. An earlier rename away
    /// from that path concerned another stored file.
    pub(super) fn hide(&self, path: &[Vec<u8>], body: &Body) {
        let mut entries = self.entries.lock();
        for entry in entries.values() {
            if let PendingEntry::File(other) = entry {
                let mut state = other.state();
                if state.origin.as_deref() == Some(path) {
                    state.origin = None;
                }
            }
        }
        entries.insert(path.to_vec(), PendingEntry::Hidden);
        body.state().origin = Some(path.to_vec());
    }

    /// Removes hidden entries and directories at a path and below it.
    pub(super) fn settle(&self, path: &[Vec<u8>]) {
        let twin = file_beside(path);
        let gone = |at: &Path, entry: &PendingEntry| match entry {
            PendingEntry::File(_) => false,
            PendingEntry::Unwritten if Some(at) == twin.as_ref() => true,
            _ => at.starts_with(path),
        };
        self.entries.lock().retain(|at, entry| !gone(at, entry));
        self.renew();
    }

    /// Removes entries as `settle` does, at a path that is stored now. Forms that no program wrote stay hidden, and the
    /// directories `empty` stay, since their members may follow.
    pub(super) fn settle_stored(&self, path: &[Vec<u8>], empty: &[Path]) {
        let gone = |at: &Path, entry: &PendingEntry| match entry {
            PendingEntry::Hidden => at.starts_with(path),
            PendingEntry::Directory(_) => at.starts_with(path) && !empty.contains(at),
            PendingEntry::File(_) | PendingEntry::Unwritten => false,
        };
        self.entries.lock().retain(|at, entry| !gone(at, entry));
        self.renew();
    }

    /// Returns all entries at a path and below it.
    pub(super) fn below(&self, path: &[Vec<u8>]) -> Vec<(Path, PendingEntry)> {
        let entries = self.entries.lock();
        let from = entries.range(path.to_vec()..);
        from.take_while(|(at, _)| at.starts_with(path))
            .map(|(at, entry)| (at.clone(), entry.clone()))
            .collect()
    }

    /// Notes that the names in the directory of a path change now.
    pub(super) fn touch_above(&self, path: &[Vec<u8>]) {
        if let Some((_, above)) = path.split_last() {
            let now = NewTime::Changed(SystemTime::now());
            self.times.lock().insert(above.to_vec(), now);
        }
    }

    /// Sets the time of a directory.
    pub(super) fn set_time(&self, path: &[Vec<u8>], time: SystemTime) {
        let at = SystemTime::now();
        let set = NewTime::Set { time, at };
        self.times.lock().insert(path.to_vec(), set);
    }

    /// Forgets the time of a directory that is gone, or that has one of its own.
    pub(super) fn forget_time(&self, path: &[Vec<u8>]) {
        self.times.lock().remove(path);
    }

    /// Makes programs look up directories anew.
    pub(super) fn renew(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns a number that changes whenever the entries that replace stored ones change.
    fn shown(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        for (path, entry) in self.entries.lock().iter() {
            let (kind, number) = match entry {
                PendingEntry::File(body) => (u8::from(entry.reads_as_stored()), body.number),
                PendingEntry::Directory(_) => (2, 0),
                PendingEntry::Hidden => (3, 0),
                PendingEntry::Unwritten => (4, 0),
            };
            (path, kind, number).hash(&mut hash);
        }
        hash.finish()
    }

    /// Returns the number of files.
    pub(super) fn files(&self) -> usize {
        let entries = self.entries.lock();
        let files = entries
            .values()
            .filter(|entry| matches!(entry, PendingEntry::File(_)));
        files.count()
    }
}

/// A directory of a writable mount.
pub(super) struct PendingDirectory {
    pending: Arc<Pending>,
    target: Arc<dyn Target>,
    path: Path,
    /// The stored directory at this path, if any.
    below: Option<Arc<dyn Directory>>,
    generation: u64,
    /// The number from `Pending::shown` when the contents of the directory were last remembered.
    shown: Option<u64>,
    /// Any change makes this another directory. Without changes, the root would stay the same forever.
    is_fixed: bool,
}

impl PendingDirectory {
    /// Makes the root.
    pub(super) fn root(pending: Arc<Pending>, target: Arc<dyn Target>) -> Self {
        Self {
            pending,
            path: Vec::new(),
            below: Some(target.root()),
            generation: 0,
            shown: None,
            is_fixed: false,
            target,
        }
    }

    fn child(&self, name: &[u8]) -> Path {
        let mut path = self.path.clone();
        path.push(name.to_vec());
        path
    }

    fn directory(&self, path: Path, below: Option<Arc<dyn Directory>>) -> Node {
        if let Some(below) = &below
            && !self.target.is_writable(&path)
        {
            return Node::Directory(below.clone());
        }
        Node::Directory(Arc::new(Self {
            pending: self.pending.clone(),
            target: self.target.clone(),
            path,
            below,
            generation: self.pending.generation.load(Ordering::Acquire),
            shown: None,
            is_fixed: true,
        }))
    }

    /// Returns the entry at a name, unless it is shown as it is stored.
    fn entry(&self, name: &[u8]) -> Option<PendingEntry> {
        let entry = self.pending.get(&self.child(name));
        entry.filter(|entry| !entry.reads_as_stored())
    }

    /// Returns all such entries with their names.
    fn entries(&self) -> impl Iterator<Item = (Vec<u8>, PendingEntry)> {
        let depth = self.path.len() + 1;
        let below = self.pending.below(&self.path).into_iter();
        below
            .filter(move |(at, entry)| at.len() == depth && !entry.reads_as_stored())
            .filter_map(|(mut at, entry)| Some((at.pop()?, entry)))
    }
}

impl Overlay for PendingDirectory {
    fn below(&self) -> Result<Option<Arc<dyn Directory>>> {
        Ok(self.below.clone())
    }

    fn is_unchanged(&self) -> bool {
        self.entries().next().is_none()
    }

    fn added(&self, name: &[u8]) -> Result<Option<Node>> {
        Ok(match self.entry(name) {
            Some(PendingEntry::File(body)) => Some(Node::File(Arc::new(ScratchFile(body)))),
            _ => None,
        })
    }

    fn kept(&self, name: &[u8], node: Node) -> Result<Option<Node>> {
        Ok(match (self.entry(name), node) {
            (None | Some(PendingEntry::Directory(_)), Node::Directory(below)) => {
                Some(self.directory(self.child(name), Some(below)))
            }
            (None, node) => Some(node),
            (Some(_), _) => None,
        })
    }

    fn implied(&self, name: &[u8]) -> Option<Node> {
        match self.entry(name)? {
            PendingEntry::Directory(_) => Some(self.directory(self.child(name), None)),
            PendingEntry::File(_) | PendingEntry::Hidden | PendingEntry::Unwritten => None,
        }
    }

    fn all_added(&self) -> Result<AddedEntries> {
        let mut added = AddedEntries::default();
        for (name, entry) in self.entries() {
            match entry {
                PendingEntry::File(body) => {
                    let file = Node::File(Arc::new(ScratchFile(body)));
                    added.entries.push((name, file));
                }
                PendingEntry::Directory(_) => {
                    added.implied.insert(name);
                }
                PendingEntry::Hidden | PendingEntry::Unwritten => {}
            }
        }
        Ok(added)
    }

    fn ownership(&self) -> Ownership {
        let mut own = match (&self.below, self.pending.get(&self.path)) {
            (Some(below), _) => below.ownership(),
            (None, entry) => Ownership {
                mtime: match entry {
                    Some(PendingEntry::Directory(time)) => time,
                    _ => SystemTime::UNIX_EPOCH,
                },
                mode: 0o755,
                ..self.target.root().ownership()
            },
        };
        if let Some(new) = self.pending.times.lock().get(&self.path) {
            own.mtime = new.over(own.mtime);
        }
        own
    }

    fn is_current(&self) -> bool {
        let now = self.pending.generation.load(Ordering::Acquire);
        let same = !self.is_fixed || self.generation == now;
        let is_as_it_was = || self.shown.is_none_or(|known| known == self.pending.shown());
        same && is_as_it_was() && self.below.as_ref().is_none_or(|below| below.is_current())
    }

    fn at_present(&self) -> Result<Option<Self>> {
        let generation = self.pending.generation.load(Ordering::Acquire);
        let shown = self.pending.shown();
        Ok(Some(Self {
            pending: self.pending.clone(),
            target: self.target.clone(),
            path: self.path.clone(),
            below: overlay::at_present(&self.below)?,
            generation,
            shown: Some(shown),
            is_fixed: true,
        }))
    }

    fn info(&self) -> Result<Json> {
        match &self.below {
            Some(below) => below.info(),
            None => Ok(json!({ "kind": "scratch" })),
        }
    }
}
