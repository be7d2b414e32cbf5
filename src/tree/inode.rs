//! Inode numbers, and what the kernel still refers to.
//!
//! A number follows from the path, and for a file from the version of its store as well: the same over
//! remounts, another once the content may be another. The table holds an entry as long as the kernel
//! counts references to it.

use std::collections::HashMap;

use xxhash_rust::xxh3::Xxh3;

use super::Node;

/// Inode number of the root directory.
pub const ROOT_INO: u64 = 1;

/// A numbered node.
pub struct Entry {
    pub parent: u64,
    pub name: Box<[u8]>,
    pub node: Node,
    refs: u64,
    opened: bool,
}

/// Everything that has a number now, except the root.
#[derive(Default)]
pub struct Table {
    /// In boxes, so that a table of millions grows in small steps.
    entries: HashMap<u64, Box<Entry>>,
}

/// The number a node gets unless it is taken.
pub fn number(parent: u64, name: &[u8], node: &Node) -> u64 {
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
    // 0 means "no entry" to the kernel, 1 is the root; some programs read numbers as signed.
    (hash.digest() >> 1).max(2)
}

/// The number of a path for programs, whatever version of a file stands there.
pub fn number_of_name(parent: u64, name: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&parent.to_le_bytes());
    hash.update(b"name");
    hash.update(name);
    (hash.digest() >> 1).max(2)
}

impl Table {
    /// The number of a node, which is in the table afterwards, with no reference if it is new.
    pub fn enter(&mut self, parent: u64, name: &[u8], node: &Node) -> u64 {
        let mut ino = number(parent, name, node);
        // Two paths with one hash: the second takes the next free number.
        while let Some(entry) = self.entries.get_mut(&ino) {
            if entry.parent == parent && *entry.name == *name && same_sort(&entry.node, node) {
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
            ino = ino.wrapping_add(1).max(2);
        }
        let entry = Entry {
            parent,
            name: name.into(),
            node: node.clone(),
            refs: 0,
            opened: false,
        };
        self.entries.insert(ino, Box::new(entry));
        ino
    }

    /// Counts one more reference of the kernel.
    pub fn hold(&mut self, ino: u64) {
        if let Some(entry) = self.entries.get_mut(&ino) {
            entry.refs += 1;
        }
    }

    /// Takes references back; the entry goes with the last one.
    pub fn forget(&mut self, ino: u64, count: u64) {
        if let Some(entry) = self.entries.get_mut(&ino) {
            entry.refs = entry.refs.saturating_sub(count);
            if entry.refs == 0 {
                self.entries.remove(&ino);
            }
        }
    }

    pub fn get(&self, ino: u64) -> Option<&Entry> {
        self.entries.get(&ino).map(|entry| &**entry)
    }

    /// Notes that a file is opened; whether it is the first time since its number came into the table.
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

    /// A file that keeps its number has another name now.
    pub fn rename(&mut self, ino: u64, parent: u64, name: &[u8]) {
        if let Some(entry) = self.entries.get_mut(&ino) {
            entry.parent = parent;
            entry.name = name.into();
        }
    }

    /// The names that lead to a number; `None` if it is not in the table.
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

    /// The visible path of a number, for messages.
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

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
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
    use crate::raw::Ownership;
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
        let (mut a, mut b) = (Table::default(), Table::default());
        b.enter(ROOT_INO, b"other", &node());
        let dir = a.enter(ROOT_INO, b"dir", &node());
        assert_eq!(dir, b.enter(ROOT_INO, b"dir", &node()));
        let file = a.enter(dir, b"file", &node());
        assert_ne!(dir, file);
        assert_eq!(a.path(file), b"dir/file");
    }

    #[test]
    fn an_entry_lives_as_long_as_it_is_referred_to() {
        let mut table = Table::default();
        let ino = table.enter(ROOT_INO, b"a", &node());
        table.hold(ino);
        table.hold(ino);
        table.forget(ino, 1);
        assert!(table.get(ino).is_some());
        table.forget(ino, 1);
        assert!(table.is_empty());
    }

    #[test]
    fn a_taken_number_is_passed_over() {
        let mut table = Table::default();
        let wanted = number(ROOT_INO, b"a", &node());
        table.entries.insert(
            wanted,
            Box::new(Entry {
                parent: 7,
                name: b"squatter"[..].into(),
                node: node(),
                refs: 1,
                opened: false,
            }),
        );
        let ino = table.enter(ROOT_INO, b"a", &node());
        assert_eq!(ino, wanted + 1);
        assert_eq!(table.enter(ROOT_INO, b"a", &node()), ino);
    }
}
