//! The files of a layer for readers.

use std::collections::{BTreeMap, btree_map};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::SystemTime;

use super::entry::{LayerEntry, forget_old_attributes};
use super::fit::StoreIdentity;
use super::index::{IndexChanges, PathState, nanoseconds};
use super::names::checkout_of;
use npyfs_io::dir::Dir;

/// The changed objects of a layer, by their keys. Copies share memory until one of them changes: judging a commit lays
/// all committed layers several times.
#[derive(Clone, Debug, Default)]
pub struct LayerEntries(Arc<BTreeMap<String, LayerEntry>>);

impl Deref for LayerEntries {
    type Target = BTreeMap<String, LayerEntry>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for LayerEntries {
    fn deref_mut(&mut self) -> &mut Self::Target {
        Arc::make_mut(&mut self.0)
    }
}

impl FromIterator<(String, LayerEntry)> for LayerEntries {
    fn from_iter<T: IntoIterator<Item = (String, LayerEntry)>>(entries: T) -> Self {
        Self(Arc::new(entries.into_iter().collect()))
    }
}

impl<'a> IntoIterator for &'a LayerEntries {
    type Item = (&'a String, &'a LayerEntry);
    type IntoIter = btree_map::Iter<'a, String, LayerEntry>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// The id of a commit: a BLAKE2b-128, written as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitId([u8; 16]);

impl CommitId {
    /// Digits of an id.
    pub const DIGITS: usize = 32;

    /// Parses an id; `None` for anything else.
    pub fn parse(digits: &str) -> Option<Self> {
        let is_one = digits.len() == Self::DIGITS
            && digits
                .bytes()
                .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let id = is_one.then(|| u128::from_str_radix(digits, 16).ok())??;
        Some(Self(id.to_be_bytes()))
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// The latest changes of directories, by their keys; in nanoseconds since 1970. Most layers share an empty one.
#[derive(Clone, Debug, Default)]
pub struct DirectoryTimes(Option<Arc<BTreeMap<String, i64>>>);

impl FromIterator<(String, i64)> for DirectoryTimes {
    fn from_iter<T: IntoIterator<Item = (String, i64)>>(changes: T) -> Self {
        let mut all = Self::default();
        for (key, time) in changes {
            all.note(key, time);
        }
        all
    }
}

impl DirectoryTimes {
    /// Notes that a directory was changed at a time.
    pub(in crate::checkout) fn note(&mut self, key: String, time: i64) {
        note(Arc::make_mut(self.0.get_or_insert_default()), key, time);
    }

    /// Returns all directories and times.
    pub fn iter(&self) -> impl Iterator<Item = (&String, i64)> {
        let times = self.0.iter().flat_map(|times| times.iter());
        times.map(|(key, time)| (key, *time))
    }
}

/// Notes that a directory was changed at a time, among the latest times of all directories.
pub(in crate::checkout) fn note<K: Ord>(latest: &mut BTreeMap<K, i64>, directory: K, time: i64) {
    let known = latest.entry(directory).or_insert(time);
    *known = time.max(*known);
}

/// The files of a layer and the objects in them.
#[derive(Clone, Debug)]
pub struct LayerFiles {
    /// The layer's directory.
    pub dir: Dir,
    /// The name of that.
    pub name: Arc<str>,
    /// The name of its checkout.
    pub checkout: Arc<str>,
    /// Every changed object, by its key.
    pub entries: LayerEntries,
    /// The identities of the stores that objects were written over, by key.
    pub stores: Arc<BTreeMap<String, StoreIdentity>>,
    /// The id of its commit.
    pub commit: Option<CommitId>,
    /// Times of directories that its entries do not tell: of deletions, and of entries that are missing.
    pub changed: DirectoryTimes,
    /// Whether entries are missing whose keys a later layer has, too: it comes from a snapshot.
    pub is_folded: bool,
}

impl LayerFiles {
    /// Returns the layer in `dir` with the objects that its index stores and deletes, without those that it restores.
    pub(in crate::checkout) fn new(dir: &Dir, changes: IndexChanges) -> Self {
        Self {
            stores: Arc::new(changes.stores),
            ..Self::bare(dir, changes.entries)
        }
    }

    /// Notes that the layer was committed at a time, with the entries that it has now.
    pub(in crate::checkout) fn commit(&mut self, id: Option<CommitId>, time: i64) {
        self.commit = id;
        self.date_deletions(|| Some(time));
    }

    /// Deletes the object at a key.
    pub(in crate::checkout) fn delete(&mut self, key: &str, now: SystemTime) {
        self.entries.insert(key.to_owned(), LayerEntry::Deleted);
        let above = directory_of(key).to_owned();
        self.changed.note(above, nanoseconds(now));
    }

    /// Gives all deletions a time, which they do not have themselves.
    pub(in crate::checkout) fn date_deletions(&mut self, time: impl FnOnce() -> Option<i64>) {
        let deleted = self.entries.iter().filter(|(_, entry)| entry.is_deletion());
        let mut above = deleted.map(|(key, _)| directory_of(key)).peekable();
        self.changed = match above.peek().and_then(|_| time()) {
            Some(time) => above.map(|key| (key.to_owned(), time)).collect(),
            None => DirectoryTimes::default(),
        };
    }

    /// Returns the directory of each change, and its time, if the entries or `changed` tell it.
    pub(in crate::checkout) fn changes(&self) -> impl Iterator<Item = (&str, i64)> {
        let own = self.entries.iter();
        let own = own.filter_map(|(key, entry)| Some((directory_of(key), entry.time()?)));
        let told = self.changed.iter().map(|(key, time)| (key.as_str(), time));
        own.chain(told)
    }

    /// Returns a layer of which only the objects are known; `None` for a deleted one.
    pub fn bare(dir: &Dir, entries: BTreeMap<String, PathState>) -> Self {
        let entries = entries.into_iter();
        let entries = entries.map(|(key, stored)| (key, stored.into()));
        let mut entries: LayerEntries = entries.collect();
        forget_old_attributes(&mut entries, "");
        let name: Arc<str> = dir.name().into();
        Self {
            dir: dir.clone(),
            checkout: checkout_of(&name).into(),
            name,
            entries,
            stores: Arc::default(),
            commit: None,
            changed: DirectoryTimes::default(),
            is_folded: false,
        }
    }
}

/// Returns the key of the directory of an object.
pub(in crate::checkout) fn directory_of(key: &str) -> &str {
    key.rsplit_once('/').map_or("", |(above, _)| above)
}
