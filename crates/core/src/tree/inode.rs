//! Inode numbers, and the table of the inodes that the kernel refers to.
//!
//! A number follows from the path, and for a file from the version of its store as well: it stays the same across
//! remounts, and changes when the content may have changed. The table holds an entry as long as the kernel counts
//! references to it: about 45 bytes and the name.
//!
//! The table also holds the node of an entry, except for a file that its directory makes anew for each lookup. Numbered
//! files have no entries: the number of such a file is that of its grid plus its place in the grid, and the table holds
//! one entry for the grid. Never asks a directory for anything.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::sync::Arc;

use hashbrown::HashTable;
use lru::LruCache;
use xxhash_rust::xxh3::Xxh3;

use super::{Node, NumberedFiles};

/// Inode number of the root directory.
pub const ROOT_INO: u64 = 1;

/// The number of recently looked up nodes that are remembered, of files that are made anew for each lookup.
const RECENT: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// A name with an inode number.
struct InodeEntry {
    ino: u64,
    /// The number of the parent directory.
    parent: u64,
    /// The name in the parent directory.
    name: NameSpan,
    /// The references of the kernel. At `u32::MAX` they are no longer counted, and the entry stays.
    refs: u32,
    /// The file was opened since the entry was made.
    opened: bool,
    /// The directory was removed and may still be open: a new directory in its place gets another number.
    removed: bool,
}

/// The bytes of a name in [`Names`].
#[derive(Clone, Copy)]
struct NameSpan {
    start: u32,
    len: u16,
}

/// The names of all entries, concatenated: a small allocation for each name would take 16 to 32 bytes more.
#[derive(Default)]
struct Names {
    bytes: Vec<u8>,
    /// The bytes of removed names.
    unused: usize,
}

impl Names {
    fn get(&self, span: NameSpan) -> &[u8] {
        let start = span.start as usize;
        let name = self.bytes.get(start..start + usize::from(span.len));
        name.unwrap_or_default()
    }

    /// Adds a name; `None` if the names would take 4 GiB.
    fn add(&mut self, name: &[u8]) -> Option<NameSpan> {
        let start = u32::try_from(self.bytes.len()).ok()?;
        let len = u16::try_from(name.len()).ok()?;
        grow(&mut self.bytes, name.len());
        self.bytes.extend_from_slice(name);
        Some(NameSpan { start, len })
    }

    fn remove(&mut self, span: NameSpan) {
        self.unused += usize::from(span.len);
    }

    /// Returns whether most bytes belong to removed names.
    fn is_sparse(&self) -> bool {
        self.unused > self.bytes.len() / 2 && self.unused > 4096
    }
}

/// Makes room for `more` elements. Doubling would leave up to half of a large table unused.
fn grow<T>(table: &mut Vec<T>, more: usize) {
    if table.capacity() - table.len() < more {
        table.reserve_exact((table.len() / 8).max(64).max(more));
    }
}

/// The numbered files of a directory that the kernel refers to.
struct Grid {
    /// The number of the directory.
    parent: u64,
    /// The files as last found.
    files: Arc<dyn NumberedFiles>,
    /// The references of the kernel to all files of the grid.
    refs: u64,
    /// The files that were opened, as bit sets: a key stands for the 64 places from 64 times the key on.
    opened: HashMap<u64, u64>,
}

/// The largest number of keys of `Grid::opened`. Files beyond it never count as opened for the first time.
const MOST_OPENED: usize = 1 << 16;

impl Grid {
    fn is_of(&self, parent: u64, files: &dyn NumberedFiles) -> bool {
        self.parent == parent
            && self.files.version() == files.version()
            && self.files.count() == files.count()
    }
}

/// The node of a number, or the place where it is found.
pub enum KnownInode {
    /// The last node found.
    Node(Node),
    /// A file with this name that the directory with this number makes anew for each lookup.
    Place(u64, Box<[u8]>),
}

/// The nodes that have a number now, except the root.
pub struct InodeTable {
    /// The indices of entries, by inode number.
    places: HashTable<u32>,
    /// The entries, in no order and without gaps.
    entries: Vec<InodeEntry>,
    names: Names,
    /// The nodes of entries, by inode number.
    nodes: HashMap<u64, Node>,
    /// The grids by their first numbers. They do not overlap.
    grids: BTreeMap<u64, Grid>,
    recent: LruCache<u64, Node>,
}

/// Returns the number of a node unless that number is taken. `last`: as for [`number_of_name`].
pub fn number(parent: u64, name: &[u8], node: &Node, last: bool) -> u64 {
    let mut version = 0;
    if let Node::File(file) = node {
        if let Some(own) = file.number() {
            return own;
        }
        version = file.version();
        if let Some((files, at)) = numbered(node) {
            return first_of_grid(parent, &*files) + at;
        }
    }
    let mut hash = Xxh3::new();
    hash.update(&parent.to_le_bytes());
    hash.update(&version.to_le_bytes());
    hash.update(name);
    placed(hash.digest(), last)
}

/// Returns the number of a path that programs see, whatever version of a file stands there. `last` makes it higher than
/// all others, for programs that delete in order of numbers.
pub fn number_of_name(parent: u64, name: &[u8], last: bool) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&parent.to_le_bytes());
    hash.update(b"name");
    hash.update(name);
    placed(hash.digest(), last)
}

/// The bit of numbers that are higher than all others. The bit above is clear in all numbers, since some programs read
/// them as signed.
const LAST_BIT: u64 = 1 << 62;

/// The bit of the numbers of numbered files alone.
const GRID_BIT: u64 = 1 << 61;

/// The largest number of numbered files of a directory: larger directories get ordinary entries. 17 bits are left to
/// tell directories apart.
const MOST_NUMBERED: u64 = 1 << 44;

/// Makes an inode number out of a hash; it is neither 0, which means "no entry" to the kernel, nor 1, the root.
pub fn placed(hash: u64, last: bool) -> u64 {
    (hash >> 3).max(2) | if last { LAST_BIT } else { 0 }
}

/// Returns the numbered files that a node belongs to, and its place among them, if its inode number comes from there.
fn numbered(node: &Node) -> Option<(Arc<dyn NumberedFiles>, u64)> {
    let Node::File(file) = node else {
        return None;
    };
    let (files, at) = file.numbered()?;
    (at < files.count() && files.count() <= MOST_NUMBERED).then_some((files, at))
}

/// Returns how many numbers the files of a grid take up: a power of two.
fn numbers_of_grid(files: &dyn NumberedFiles) -> u64 {
    files.count().clamp(1, MOST_NUMBERED).next_power_of_two()
}

/// Returns the number of the first file of a grid unless numbers of the grid are taken.
fn first_of_grid(parent: u64, files: &dyn NumberedFiles) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&parent.to_le_bytes());
    hash.update(b"grid");
    hash.update(&files.version().to_le_bytes());
    (hash.digest() & (GRID_BIT - 1) & !(numbers_of_grid(files) - 1)) | GRID_BIT
}

fn hash_of(ino: u64) -> u64 {
    // The numbers are hashes whose uppermost bits are clear.
    ino.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Default for InodeTable {
    fn default() -> Self {
        Self {
            places: HashTable::new(),
            entries: Vec::new(),
            names: Names::default(),
            nodes: HashMap::new(),
            grids: BTreeMap::new(),
            recent: LruCache::new(RECENT),
        }
    }
}

impl InodeTable {
    fn place(&self, ino: u64) -> Option<usize> {
        let is = |&at: &u32| self.entries.get(at as usize).is_some_and(|e| e.ino == ino);
        self.places.find(hash_of(ino), is).map(|&at| at as usize)
    }

    fn get(&self, ino: u64) -> Option<&InodeEntry> {
        self.entries.get(self.place(ino)?)
    }

    fn get_mut(&mut self, ino: u64) -> Option<&mut InodeEntry> {
        let place = self.place(ino)?;
        self.entries.get_mut(place)
    }

    fn insert(&mut self, ino: u64, parent: u64, name: &[u8]) {
        // Memory ends long before this limit.
        let Ok(place) = u32::try_from(self.entries.len()) else {
            return;
        };
        let Some(name) = self.names.add(name) else {
            return;
        };
        grow(&mut self.entries, 1);
        self.entries.push(InodeEntry {
            ino,
            parent,
            name,
            refs: 0,
            opened: false,
            removed: false,
        });
        let entries = &self.entries;
        let hash = |&at: &u32| entries.get(at as usize).map_or(0, |e| hash_of(e.ino));
        self.places.insert_unique(hash_of(ino), place, hash);
    }

    fn take(&mut self, ino: u64) -> Option<InodeEntry> {
        let entries = &self.entries;
        let is = |&at: &u32| entries.get(at as usize).is_some_and(|e| e.ino == ino);
        let (place, _) = self.places.find_entry(hash_of(ino), is).ok()?.remove();
        let last = self.entries.len().checked_sub(1)?;
        // The last entry moves to the free index.
        if let Some(moved) = self.entries.last().map(|entry| entry.ino)
            && let Some(at) = self
                .places
                .find_mut(hash_of(moved), |&at| at as usize == last)
        {
            *at = place;
        }
        let taken = self.entries.swap_remove(place as usize);
        self.nodes.remove(&ino);
        self.recent.pop(&ino);
        self.remove_name(taken.name);
        if self.entries.capacity() / 4 > self.entries.len().max(1024) {
            self.shrink();
        }
        Some(taken)
    }

    /// Removes the name of an entry that has it no longer, and moves those that are left together when most are gone.
    fn remove_name(&mut self, name: NameSpan) {
        self.names.remove(name);
        if !self.names.is_sparse() {
            return;
        }
        let mut names = Names::default();
        let left = self.names.bytes.len().saturating_sub(self.names.unused);
        names.bytes.reserve_exact(left);
        for entry in &mut self.entries {
            // There is room for what was there before.
            if let Some(moved) = names.add(self.names.get(entry.name)) {
                entry.name = moved;
            }
        }
        self.names = names;
    }

    /// Returns whether an entry has this place in the tree.
    fn is_at(&self, entry: &InodeEntry, parent: u64, name: &[u8]) -> bool {
        entry.parent == parent && self.names.get(entry.name) == name
    }

    /// Gives an entry another place in the tree.
    fn move_to(&mut self, ino: u64, parent: u64, name: &[u8]) {
        let Some(place) = self.place(ino) else {
            return;
        };
        let Some(name) = self.names.add(name) else {
            return;
        };
        if let Some(entry) = self.entries.get_mut(place) {
            entry.parent = parent;
            let before = std::mem::replace(&mut entry.name, name);
            self.remove_name(before);
        }
    }

    /// Gives back memory after most entries were removed.
    fn shrink(&mut self) {
        let room = self.entries.len() * 2;
        self.entries.shrink_to(room);
        let entries = &self.entries;
        let hash = |&at: &u32| entries.get(at as usize).map_or(0, |e| hash_of(e.ino));
        self.places.shrink_to(room, hash);
        self.nodes.shrink_to(self.nodes.len() * 2);
    }

    /// Returns the grid of a number, and the place in the grid.
    fn grid(&self, ino: u64) -> Option<(&Grid, u64)> {
        let (first, grid) = self.grids.range(..=ino).next_back()?;
        let at = ino - first;
        (at < grid.files.count()).then_some((grid, at))
    }

    fn grid_mut(&mut self, ino: u64) -> Option<(u64, &mut Grid)> {
        let (first, grid) = self.grids.range_mut(..=ino).next_back()?;
        let at = ino - first;
        (at < grid.files.count()).then_some((at, grid))
    }

    /// Returns the first number of a grid: its present one, or the first free one.
    fn place_grid(&self, parent: u64, files: &dyn NumberedFiles) -> u64 {
        let numbers = numbers_of_grid(files);
        let mut first = first_of_grid(parent, files);
        loop {
            let end = first + numbers;
            let meets = self.grids.range(..end).next_back();
            match meets {
                Some((&at, grid)) if at == first && grid.is_of(parent, files) => return first,
                Some((&at, grid)) if at + numbers_of_grid(&*grid.files) > first => {
                    // Both sizes are powers of two, and both starts are multiples of them. The numbers wrap around
                    // after the last one.
                    let next = end.max(at + numbers_of_grid(&*grid.files));
                    first = (next & (GRID_BIT - 1)) | GRID_BIT;
                }
                _ => return first,
            }
        }
    }

    fn enter_numbered(&mut self, parent: u64, files: Arc<dyn NumberedFiles>, at: u64) -> u64 {
        let first = self.place_grid(parent, &*files);
        match self.grids.get_mut(&first) {
            Some(grid) => grid.files = files,
            None => {
                let grid = Grid {
                    parent,
                    files,
                    refs: 0,
                    opened: HashMap::new(),
                };
                self.grids.insert(first, grid);
            }
        }
        first + at
    }

    /// Returns true if an entry is of the same kind and version as a node.
    ///
    /// `wanted` is the number of the node unless that number is taken.
    fn is_alike(&self, entry: &InodeEntry, node: &Node, wanted: u64) -> bool {
        match self.nodes.get(&entry.ino) {
            Some(known) => same_sort(known, node),
            // The number of such a file contains its version.
            None => entry.ino == wanted && matches!(node, Node::File(_)),
        }
    }

    /// Returns the number of a node, and adds it to the table without a reference if it is new.
    pub fn enter(&mut self, parent: u64, name: &[u8], node: &Node, last: bool) -> u64 {
        if let Some((files, at)) = numbered(node) {
            return self.enter_numbered(parent, files, at);
        }
        let wanted = number(parent, name, node, last);
        let mut ino = wanted;
        // A taken number is followed by the next free one.
        while let Some(place) = self.place(ino) {
            let entry = &self.entries[place];
            if self.is_at(entry, parent, name)
                && !entry.removed
                && self.is_alike(entry, node, wanted)
            {
                self.keep(ino, node, wanted);
                return ino;
            }
            if let (Some(Node::File(known)), Node::File(file)) = (self.nodes.get(&ino), node)
                && file.number().is_some()
                && known.number() == file.number()
            {
                self.move_to(ino, parent, name);
                return ino;
            }
            ino = after(ino);
        }
        self.insert(ino, parent, name);
        self.keep(ino, node, wanted);
        ino
    }

    /// Keeps the node of an entry, unless it can be found again. `wanted` is the number of the node unless that number
    /// is taken.
    fn keep(&mut self, ino: u64, node: &Node, wanted: u64) {
        let is_found_again = match node {
            Node::File(file) => file.is_remade() && ino == wanted,
            Node::Directory(_) | Node::Symlink(_) => false,
        };
        if is_found_again {
            self.nodes.remove(&ino);
        } else {
            self.nodes.insert(ino, node.clone());
        }
    }

    /// Keeps the node of a file that is made anew for each lookup, since it will probably be wanted again soon.
    pub fn remember(&mut self, ino: u64, node: &Node) {
        if !self.nodes.contains_key(&ino) && self.place(ino).is_some() {
            self.recent.put(ino, node.clone());
        }
    }

    /// Returns the present or future number of a directory.
    pub fn number_of_directory(&self, parent: u64, name: &[u8], node: &Node, last: bool) -> u64 {
        let wanted = number(parent, name, node, last);
        let mut ino = wanted;
        while let Some(entry) = self.get(ino)
            && (entry.removed
                || !self.is_at(entry, parent, name)
                || !self.is_alike(entry, node, wanted))
        {
            ino = after(ino);
        }
        ino
    }

    /// Notes that the directory of a name was removed. The kernel refuses to create entries in an inode that it knows
    /// to be removed, and keeps the inode as long as a program has it open; so a new directory of the name gets another
    /// inode.
    pub fn remove_directory(&mut self, parent: u64, name: &[u8], node: &Node, last: bool) {
        let ino = self.number_of_directory(parent, name, node, last);
        if let Some(entry) = self.get_mut(ino) {
            entry.removed = true;
            self.forget(ino, 0);
        }
    }

    /// Counts one more reference of the kernel.
    pub fn hold(&mut self, ino: u64) {
        if let Some(entry) = self.get_mut(ino) {
            entry.refs = entry.refs.saturating_add(1);
        } else if let Some((_, grid)) = self.grid_mut(ino) {
            grid.refs += 1;
        }
    }

    /// Subtracts references of the kernel; the last one removes the entry.
    pub fn forget(&mut self, ino: u64, count: u64) {
        if let Some(entry) = self.get_mut(ino) {
            if entry.refs < u32::MAX {
                let count = u32::try_from(count).unwrap_or(u32::MAX);
                entry.refs = entry.refs.saturating_sub(count);
            }
            self.drop_unused(ino);
        } else if let Some((at, grid)) = self.grid_mut(ino) {
            grid.refs = grid.refs.saturating_sub(count);
            if grid.refs == 0 {
                self.grids.remove(&(ino - at));
            }
        }
    }

    /// Drops an entry without references, and removed entries that only led to it. A removed entry stays as long as its
    /// successor exists, which keeps the successor's number stable.
    fn drop_unused(&mut self, mut ino: u64) {
        while let Some(entry) = self.get(ino) {
            let name = self.names.get(entry.name);
            let is_at = |other: &InodeEntry| self.is_at(other, entry.parent, name);
            if entry.refs > 0 || (entry.removed && self.get(after(ino)).is_some_and(is_at)) {
                return;
            }
            let before = ino.wrapping_sub(1);
            let led_here = self.get(before).is_some_and(|e| e.removed && is_at(e));
            self.take(ino);
            if !led_here {
                return;
            }
            ino = before;
        }
    }

    /// Returns the node of a number, or the place where it is found.
    pub fn known(&mut self, ino: u64) -> Option<KnownInode> {
        if let Some(node) = self.nodes.get(&ino) {
            return Some(KnownInode::Node(node.clone()));
        }
        if let Some(node) = self.recent.get(&ino) {
            return Some(KnownInode::Node(node.clone()));
        }
        if let Some(entry) = self.get(ino) {
            let name = self.names.get(entry.name);
            return Some(KnownInode::Place(entry.parent, name.into()));
        }
        let (grid, at) = self.grid(ino)?;
        Some(KnownInode::Node(grid.files.node(at)))
    }

    /// Returns the number of the parent directory of an inode, and its name there.
    pub fn place_of(&self, ino: u64) -> Option<(u64, Box<[u8]>)> {
        if let Some(entry) = self.get(ino) {
            return Some((entry.parent, self.names.get(entry.name).into()));
        }
        let (grid, at) = self.grid(ino)?;
        Some((grid.parent, grid.files.name(at).into()))
    }

    /// Returns the number of the parent directory of an inode.
    pub fn parent_of(&self, ino: u64) -> Option<u64> {
        match self.get(ino) {
            Some(entry) => Some(entry.parent),
            None => self.grid(ino).map(|(grid, _)| grid.parent),
        }
    }

    /// Notes that a file is opened, and returns true if it was not opened before since its entry was made.
    pub fn open_first(&mut self, ino: u64) -> bool {
        if let Some(entry) = self.get_mut(ino) {
            return !std::mem::replace(&mut entry.opened, true);
        }
        let Some((at, grid)) = self.grid_mut(ino) else {
            return false;
        };
        let (word, bit) = (at / 64, 1 << (at % 64));
        if grid.opened.len() >= MOST_OPENED && !grid.opened.contains_key(&word) {
            return false;
        }
        let opened = grid.opened.entry(word).or_default();
        let is_first = *opened & bit == 0;
        *opened |= bit;
        is_first
    }

    /// Replaces a node by a newer one.
    pub fn replace(&mut self, ino: u64, node: Node) {
        if let Some(held) = self.nodes.get_mut(&ino) {
            *held = node;
        } else if self.place(ino).is_some() {
            self.recent.put(ino, node);
        } else if let Some((files, _)) = numbered(&node)
            && let Some((_, grid)) = self.grid_mut(ino)
            && grid.is_of(grid.parent, &*files)
        {
            grid.files = files;
        }
    }

    /// Gives a node another name; it keeps its number.
    pub fn rename(&mut self, ino: u64, parent: u64, name: &[u8]) {
        self.move_to(ino, parent, name);
    }

    /// Returns the names that lead to an inode; `None` if it is not in the table.
    pub fn names(&self, ino: u64) -> Option<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        let mut at = ino;
        while at != ROOT_INO {
            let (parent, name) = self.place_of(at)?;
            names.push(name.into_vec());
            at = parent;
        }
        names.reverse();
        Some(names)
    }

    /// Returns the visible path of an inode, for messages.
    pub fn path(&self, ino: u64) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = ino;
        while let Some((parent, name)) = self.place_of(at) {
            names.push(name);
            at = parent;
        }
        names.reverse();
        names.join(&b'/')
    }
}

/// Returns the number to try after a taken one: another path may have the same hash, or a removed directory the number.
fn after(ino: u64) -> u64 {
    ino.wrapping_add(1).max(2)
}

fn same_sort(a: &Node, b: &Node) -> bool {
    match (a, b) {
        (Node::File(a), Node::File(b)) => a.version() == b.version(),
        (Node::Directory(_), Node::Directory(_)) | (Node::Symlink(_), Node::Symlink(_)) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Symlink, VirtualFile};
    use npyfs_base::error::Result;
    use npyfs_io::content::{Content, InMemory};
    use npyfs_io::file::Ownership;

    fn node() -> Node {
        Node::Symlink(Arc::new(Symlink {
            target: b"x".to_vec(),
            ownership: Ownership {
                uid: 0,
                gid: 0,
                mode: 0,
                mtime: std::time::UNIX_EPOCH,
            },
        }))
    }

    #[test]
    fn numbers_follow_from_the_path() {
        let (mut a, mut b) = (InodeTable::default(), InodeTable::default());
        b.enter(ROOT_INO, b"other", &node(), false);
        let dir = a.enter(ROOT_INO, b"dir", &node(), false);
        assert_eq!(dir, b.enter(ROOT_INO, b"dir", &node(), false));
        let file = a.enter(dir, b"file", &node(), false);
        assert_ne!(dir, file);
        assert_eq!(a.path(file), b"dir/file");
    }

    #[test]
    fn what_is_to_be_last_has_the_highest_number() {
        let high = number_of_name(ROOT_INO, b"cell#.npy", true);
        let entered = number(ROOT_INO, b"gene#.npy", &node(), true);
        assert!(high < 1 << 63 && entered < 1 << 63);
        let high = high.min(entered);
        for name in [&b"a"[..], b"b", b"c", b"d", b"e", b"f", b"g"] {
            assert!(number_of_name(ROOT_INO, name, false) < high);
            assert!(number(ROOT_INO, name, &node(), false) < high);
        }
    }

    #[test]
    fn an_entry_lives_as_long_as_it_is_referred_to() {
        let mut table = InodeTable::default();
        let ino = table.enter(ROOT_INO, b"a", &node(), false);
        table.hold(ino);
        table.hold(ino);
        table.forget(ino, 1);
        assert!(table.get(ino).is_some());
        table.remember(ino, &node());
        table.forget(ino, 1);
        assert!(table.entries.is_empty());
    }

    #[test]
    fn a_taken_number_is_passed_over() {
        let mut table = InodeTable::default();
        let wanted = number(ROOT_INO, b"a", &node(), false);
        table.insert(wanted, 7, b"squatter");
        table.nodes.insert(wanted, node());
        table.hold(wanted);
        let ino = table.enter(ROOT_INO, b"a", &node(), false);
        assert_eq!(ino, wanted + 1);
        assert_eq!(table.enter(ROOT_INO, b"a", &node(), false), ino);
    }

    #[test]
    fn what_is_made_in_the_place_of_a_removed_directory_has_another_number() {
        let mut table = InodeTable::default();
        let enter = |table: &mut InodeTable| {
            let ino = table.enter(ROOT_INO, b"a", &node(), false);
            table.hold(ino);
            ino
        };
        let first = enter(&mut table);
        table.remove_directory(ROOT_INO, b"a", &node(), false);
        let second = enter(&mut table);
        table.remove_directory(ROOT_INO, b"a", &node(), false);
        let third = enter(&mut table);
        assert!(first != second && second != third && first != third);
        // The inode keeps its number when the others are forgotten, in any order.
        table.forget(second, 1);
        table.forget(first, 1);
        assert_eq!(enter(&mut table), third);
        assert_eq!(
            table.number_of_directory(ROOT_INO, b"a", &node(), false),
            third
        );
        table.forget(third, 2);
        assert!(table.entries.is_empty());
        assert_eq!(enter(&mut table), first);
        // An entry that was only listed has no references.
        table.enter(ROOT_INO, b"b", &node(), false);
        table.remove_directory(ROOT_INO, b"b", &node(), false);
        assert_eq!(table.entries.len(), 1);
    }

    /// A file that its directory makes anew; a place makes it a numbered one.
    struct Made {
        version: u64,
        grid: Option<(u64, u64)>,
    }

    struct Grid64(u64, u64);

    impl NumberedFiles for Grid64 {
        fn count(&self) -> u64 {
            self.1
        }

        fn version(&self) -> u64 {
            self.0
        }

        fn name(&self, at: u64) -> Vec<u8> {
            at.to_string().into_bytes()
        }

        fn node(&self, at: u64) -> Node {
            made(self.0, Some((self.1, at)))
        }
    }

    impl VirtualFile for Made {
        fn ownership(&self) -> Ownership {
            Ownership::UNKNOWN
        }

        fn size(&self) -> Result<u64> {
            Ok(0)
        }

        fn open(&self) -> Result<Arc<dyn Content>> {
            Ok(Arc::new(InMemory(Vec::new())))
        }

        fn version(&self) -> u64 {
            self.version
        }

        fn is_current(&self) -> bool {
            true
        }

        fn info(&self) -> Result<serde_json::Value> {
            Ok(serde_json::Value::Null)
        }

        fn is_remade(&self) -> bool {
            true
        }

        fn numbered(&self) -> Option<(Arc<dyn NumberedFiles>, u64)> {
            let (count, at) = self.grid?;
            Some((Arc::new(Grid64(self.version, count)), at))
        }
    }

    fn made(version: u64, grid: Option<(u64, u64)>) -> Node {
        Node::File(Arc::new(Made { version, grid }))
    }

    #[test]
    fn a_file_that_is_made_anew_is_known_by_its_place() {
        let mut table = InodeTable::default();
        let ino = table.enter(9, b"a", &made(1, None), false);
        table.hold(ino);
        assert_eq!(table.enter(9, b"a", &made(1, None), false), ino);
        assert_ne!(table.enter(9, b"a", &made(2, None), false), ino);
        assert!(matches!(table.known(ino), Some(KnownInode::Place(9, name)) if *name == *b"a"));
        table.remember(ino, &made(1, None));
        assert!(matches!(table.known(ino), Some(KnownInode::Node(_))));
        table.forget(ino, 1);
        assert!(table.known(ino).is_none() && table.recent.is_empty());
    }

    #[test]
    fn numbered_files_have_no_entries() {
        let mut table = InodeTable::default();
        let of = |version, count, at| made(version, Some((count, at)));
        let first = table.enter(9, b"0", &of(1, 10_000_000_000, 0), false);
        for at in [0, 1, 77, 9_999_999_999] {
            let name = at.to_string().into_bytes();
            let node = of(1, 10_000_000_000, at);
            let ino = table.enter(9, &name, &node, false);
            assert_eq!(ino, first + at);
            assert_eq!(number(9, &name, &node, false), ino);
            table.hold(ino);
            assert_eq!(table.place_of(ino), Some((9, name.into())));
            assert!(table.open_first(ino) && !table.open_first(ino));
        }
        assert!(table.entries.is_empty() && table.grids.len() == 1);
        // Another version, another directory, and another shape each get other numbers.
        let others = [(9, 2, 10_000_000_000), (8, 1, 10_000_000_000), (9, 1, 100)];
        for (parent, version, count) in others {
            let ino = table.enter(parent, b"0", &of(version, count, 0), false);
            assert!(ino & GRID_BIT != 0 && table.grids.contains_key(&ino));
            table.hold(ino);
        }
        assert_eq!(table.grids.len(), 4);
        for at in [0, 1, 77, 9_999_999_999] {
            assert!(table.known(first + at).is_some());
            table.forget(first + at, 1);
        }
        assert_eq!(table.grids.len(), 3);
        assert!(table.known(first + 1).is_none());
    }

    #[test]
    fn grids_do_not_overlap() {
        let mut table = InodeTable::default();
        let small = Grid64(1, 16);
        let first = first_of_grid(9, &small);
        // This grid takes the number of the other.
        let squatter: Arc<dyn NumberedFiles> = Arc::new(Grid64(7, 5));
        table.grids.insert(
            first,
            Grid {
                parent: 3,
                files: squatter,
                refs: 1,
                opened: HashMap::new(),
            },
        );
        let ino = table.enter(9, b"2", &small.node(2), false);
        assert_eq!(ino, ((first + 16) & (GRID_BIT - 1) | GRID_BIT) + 2);
        assert_eq!(table.enter(9, b"3", &small.node(3), false), ino + 1);
        assert_eq!(table.place_of(first + 2), Some((3, b"2"[..].into())));
    }

    #[test]
    fn entries_keep_their_numbers_while_others_go() {
        let mut table = InodeTable::default();
        let name = |at: u32| at.to_string().into_bytes();
        let enter = |table: &mut InodeTable, at: u32| {
            let ino = table.enter(9, &name(at), &made(1, None), false);
            table.hold(ino);
            ino
        };
        let all: Vec<u64> = (0..10_000).map(|at| enter(&mut table, at)).collect();
        for (at, ino) in (0..).zip(&all) {
            if at % 16 != 3 {
                table.forget(*ino, 1);
            }
        }
        for (at, ino) in (0..).zip(&all) {
            let known = (at % 16 == 3).then(|| (9, name(at).into()));
            assert_eq!(table.place_of(*ino), known);
        }
        assert_eq!(table.entries.len(), table.places.len());
        assert!(table.entries.capacity() < 5000);
        assert!(table.names.bytes.len() < 10_000);
        // An entry that changes its name again and again does not let the names grow.
        for at in 0..10_000 {
            table.rename(all[3], 9, &name(at));
        }
        assert_eq!(table.place_of(all[3]), Some((9, b"9999"[..].into())));
        assert_eq!(table.place_of(all[19]), Some((9, b"19"[..].into())));
        assert!(table.names.bytes.len() < 20_000);
    }
}
