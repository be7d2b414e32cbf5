//! Inode numbers, and the table of those that the kernel refers to.
//!
//! A number follows from the path, and for a file from the version of its store as well: it stays over
//! remounts, and changes when the content may have changed. The table holds an entry as long as the kernel
//! counts references to it.

use std::collections::HashMap;

use xxhash_rust::xxh3::Xxh3;

use super::Node;

/// Inode number of the root directory.
pub const ROOT_INO: u64 = 1;

/// A node with a number.
pub struct InodeEntry {
    /// The number of the directory that it is in.
    pub parent: u64,
    /// Its name there.
    pub name: Box<[u8]>,
    /// The node that was found last by this name.
    pub node: Node,
    /// References of the kernel.
    refs: u64,
    /// It was opened since it came into the table.
    opened: bool,
    /// A directory that was removed, and that somebody may have open: what is made in its place is another one.
    removed: bool,
}

impl InodeEntry {
    fn is_at(&self, parent: u64, name: &[u8]) -> bool {
        self.parent == parent && *self.name == *name
    }
}

/// The nodes that have a number now, except the root.
#[derive(Default)]
pub struct InodeTable {
    /// In boxes, so that a table of millions grows in small steps.
    entries: HashMap<u64, Box<InodeEntry>>,
}

/// Returns the number that a node gets unless it is taken. `last`: as for [`number_of_name`].
pub fn number(parent: u64, name: &[u8], node: &Node, last: bool) -> u64 {
    if let Node::File(file) = node
        && let Some(own) = file.number()
    {
        return own;
    }
    let mut hash = Xxh3::new();
    hash.update(&parent.to_le_bytes());
    let version = match node {
        Node::File(file) => file.version(),
        Node::Directory(_) | Node::Symlink(_) => 0,
    };
    hash.update(&version.to_le_bytes());
    hash.update(name);
    placed(hash.digest(), last)
}

/// Returns the number of a path that programs are shown, whatever version of a file stands there. `last`: higher than
/// all others, for programs that delete in order of numbers.
pub fn number_of_name(parent: u64, name: &[u8], last: bool) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&parent.to_le_bytes());
    hash.update(b"name");
    hash.update(name);
    placed(hash.digest(), last)
}

/// Set in the numbers that are higher than all others.
const LAST_BIT: u64 = 1 << 62;

/// Makes an inode number of a hash: 0 means "no entry" to the kernel, 1 is the root; some programs read numbers as
/// signed.
fn placed(hash: u64, last: bool) -> u64 {
    (hash >> 2).max(2) | if last { LAST_BIT } else { 0 }
}

impl InodeTable {
    /// Returns the number of a node, and puts it into the table if it is new, with no reference.
    pub fn enter(&mut self, parent: u64, name: &[u8], node: &Node, last: bool) -> u64 {
        let mut ino = number(parent, name, node, last);
        // The next free number, if it is taken.
        while let Some(entry) = self.entries.get_mut(&ino) {
            if entry.is_at(parent, name) && !entry.removed && same_sort(&entry.node, node) {
                entry.node = node.clone();
                return ino;
            }
            if let (Node::File(known), Node::File(file)) = (&entry.node, node)
                && file.number().is_some()
                && known.number() == file.number()
            {
                entry.parent = parent;
                entry.name = name.into();
                return ino;
            }
            ino = after(ino);
        }
        let entry = InodeEntry {
            parent,
            name: name.into(),
            node: node.clone(),
            refs: 0,
            opened: false,
            removed: false,
        };
        self.entries.insert(ino, Box::new(entry));
        ino
    }

    /// Returns the number that a directory has, or gets.
    pub fn number_of_directory(&self, parent: u64, name: &[u8], node: &Node, last: bool) -> u64 {
        let mut ino = number(parent, name, node, last);
        while let Some(entry) = self.entries.get(&ino)
            && (entry.removed || !entry.is_at(parent, name) || !same_sort(&entry.node, node))
        {
            ino = after(ino);
        }
        ino
    }

    /// Notes that the directory of a name was removed. The kernel lets nothing be made in an inode of which it knows that,
    /// and has it for as long as somebody has it open; so a new directory of the name is another inode.
    pub fn remove_directory(&mut self, parent: u64, name: &[u8], node: &Node, last: bool) {
        let ino = self.number_of_directory(parent, name, node, last);
        if let Some(entry) = self.entries.get_mut(&ino) {
            entry.removed = true;
            self.forget(ino, 0);
        }
    }

    /// Counts one more reference of the kernel.
    pub fn hold(&mut self, ino: u64) {
        if let Some(entry) = self.entries.get_mut(&ino) {
            entry.refs += 1;
        }
    }

    /// Takes references of the kernel back; the entry goes with the last one.
    pub fn forget(&mut self, ino: u64, count: u64) {
        if let Some(entry) = self.entries.get_mut(&ino) {
            entry.refs = entry.refs.saturating_sub(count);
            self.drop_unused(ino);
        }
    }

    /// Drops an entry that nobody refers to, and removed ones that only led to it. A removed one stays as long as its
    /// successor is there, which keeps its number.
    fn drop_unused(&mut self, mut ino: u64) {
        while let Some(entry) = self.entries.get(&ino) {
            let leads_on = |next: &InodeEntry| next.is_at(entry.parent, &entry.name);
            if entry.refs > 0 || (entry.removed && self.get(after(ino)).is_some_and(leads_on)) {
                return;
            }
            let Some(entry) = self.entries.remove(&ino) else {
                return;
            };
            ino = ino.wrapping_sub(1);
            let led_here =
                |before: &InodeEntry| before.removed && before.is_at(entry.parent, &entry.name);
            if !self.get(ino).is_some_and(led_here) {
                return;
            }
        }
    }

    /// Returns the node of a number.
    pub fn get(&self, ino: u64) -> Option<&InodeEntry> {
        self.entries.get(&ino).map(|entry| &**entry)
    }

    /// Notes that a file is opened, and returns whether it is the first time since it came into the table.
    pub fn open_first(&mut self, ino: u64) -> bool {
        self.entries
            .get_mut(&ino)
            .is_some_and(|entry| !std::mem::replace(&mut entry.opened, true))
    }

    /// Puts a newer node in the place of an older one.
    pub fn replace(&mut self, ino: u64, node: Node) {
        if let Some(entry) = self.entries.get_mut(&ino) {
            entry.node = node;
        }
    }

    /// Gives a node another name; it keeps its number.
    pub fn rename(&mut self, ino: u64, parent: u64, name: &[u8]) {
        if let Some(entry) = self.entries.get_mut(&ino) {
            entry.parent = parent;
            entry.name = name.into();
        }
    }

    /// Returns the names that lead to a number; `None` if it is not in the table.
    pub fn names(&self, ino: u64) -> Option<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        let mut at = ino;
        while at != ROOT_INO {
            let entry = self.entries.get(&at)?;
            names.push(entry.name.to_vec());
            at = entry.parent;
        }
        names.reverse();
        Some(names)
    }

    /// Returns the visible path of a number, for messages.
    pub fn path(&self, ino: u64) -> Vec<u8> {
        let mut names = Vec::new();
        let mut at = ino;
        while let Some(entry) = self.entries.get(&at) {
            names.push(&entry.name[..]);
            at = entry.parent;
        }
        names.reverse();
        names.join(&b'/')
    }
}

/// Returns the number that is tried if one is taken: by another path with the same hash, or by a directory that was removed.
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
    use crate::io::file::Ownership;
    use crate::tree::Symlink;
    use std::sync::Arc;

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
        table.forget(ino, 1);
        assert!(table.entries.is_empty());
    }

    #[test]
    fn a_taken_number_is_passed_over() {
        let mut table = InodeTable::default();
        let wanted = number(ROOT_INO, b"a", &node(), false);
        table.entries.insert(
            wanted,
            Box::new(InodeEntry {
                parent: 7,
                name: b"squatter"[..].into(),
                node: node(),
                refs: 1,
                opened: false,
                removed: false,
            }),
        );
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
        // It keeps its number when the others are forgotten, in whatever order.
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
        // Nobody refers to one that was only listed.
        table.enter(ROOT_INO, b"b", &node(), false);
        table.remove_directory(ROOT_INO, b"b", &node(), false);
        assert_eq!(table.entries.len(), 1);
    }
}
