//! Look-ups in the index of the chunks of a dataset, without libhdf5: the addresses of a few chunks for the cost of the
//! nodes that lead to them.
//!
//! All wanted chunks descend together: the nodes of a level are fetched in one request. A look-up also returns the
//! other chunks that the last nodes name, which cost nothing more.
//!
//! The input may be hostile. Every node on the way is checked as libhdf5 checks it (signature, version, class, owner,
//! checksum), and nodes must agree with each other: their levels, the order of keys, the range of keys below a node.
//! The number of levels and the bytes of a look-up are limited. The rest of the index is not checked, and neither are
//! the addresses and sizes of chunks, which are left to the caller. An unknown form, such as a node of unusual size, is
//! [`Fault::Unknown`]: libhdf5 then reads the whole index.

mod array;
mod places;
mod tree;

use std::collections::BTreeMap;
use std::ops::Range;

use super::cursor::{Cursor, NOWHERE};
use super::header::{ChunkLayout, IndexKind};
use super::{Pages, Sizes};
pub use places::Places;

/// The size in bytes of the largest node, and of all nodes of a look-up.
const LARGEST_NODE: u64 = 1 << 20;
const MOST_BYTES: u64 = 64 << 20;

/// The largest number of nodes from an index to a chunk.
const DEEPEST: usize = 40;

/// The largest number of chunks that a node adds to the wanted ones, and of known chunks before arrays add none.
const MOST_BESIDE: u64 = 1024;
const MOST_KNOWN: usize = 8192;

/// The stored bytes of a chunk: their offset in the file (the user block counts), their size, and the filters that were
/// skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The offset in the file.
    pub addr: u64,
    /// The number of bytes.
    pub size: u64,
    /// A bit for each filter that was skipped.
    pub mask: u32,
}

impl Entry {
    fn new(addr: u64, size: u64, mask: u32, sizes: &Sizes) -> Self {
        Self {
            // An offset that overflows lies outside the file.
            addr: addr.saturating_add(sizes.base),
            size,
            mask,
        }
    }
}

/// Chunks by their places in the grid. `None`: the chunk was never written.
pub type Known = BTreeMap<u64, Option<Entry>>;

/// The reason why a look-up failed.
#[derive(Debug)]
pub enum Fault<E> {
    /// Bytes could not be read.
    Pages(E),
    /// The index contradicts itself.
    Damaged(&'static str),
    /// The index has a form that is not known here.
    Unknown,
}

/// The reason why a node cannot be used.
#[derive(Debug)]
enum NodeFault {
    Damaged(&'static str),
    Unknown,
}

impl<E> From<NodeFault> for Fault<E> {
    fn from(fault: NodeFault) -> Self {
        match fault {
            NodeFault::Damaged(why) => Self::Damaged(why),
            NodeFault::Unknown => Self::Unknown,
        }
    }
}

type Parsed<T> = Result<T, NodeFault>;

fn cut() -> NodeFault {
    NodeFault::Damaged("a node is cut off")
}

fn damaged<T>(why: &'static str) -> Parsed<T> {
    Err(NodeFault::Damaged(why))
}

/// The kind of an index, with its header.
#[derive(Clone, Debug)]
enum Kind {
    /// Chunks of equal size, one behind the other.
    Implicit,
    Tree1,
    Tree2(tree::Tree2),
    Fixed(array::Fixed),
    Extensible(array::Extensible),
}

/// The index of the chunks of a dataset.
#[derive(Clone, Debug)]
pub struct Index {
    sizes: Sizes,
    /// The size of the file.
    end: u64,
    kind: Kind,
    addr: u64,
    places: Places,
    form: Form,
}

/// The form of the entries of arrays and of trees of version 2.
#[derive(Clone, Copy, Debug)]
struct Form {
    /// The chunks are filtered: an entry has a size and a mask.
    filtered: bool,
    /// The size in bytes of a chunk before the filters.
    chunk: u64,
    /// The number of bytes of a size.
    width: usize,
}

impl Form {
    /// Returns the size in bytes of an entry, without coordinates.
    fn each(&self, sizes: &Sizes) -> usize {
        match self.filtered {
            true => sizes.offset + self.width + 4,
            false => sizes.offset,
        }
    }

    /// Reads an entry: `None` if it is cut off, `Some(None)` if the chunk was never written.
    fn entry(&self, at: &mut Cursor<'_>) -> Option<Option<Entry>> {
        let addr = at.offset()?;
        let (size, mask) = match self.filtered {
            true => (at.number(self.width)?, at.number(4)? as u32),
            false => (self.chunk, 0),
        };
        let is_there = addr != NOWHERE;
        Some(is_there.then(|| Entry::new(addr, size, mask, at.sizes)))
    }
}

/// A node on the way to chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    Tree1(tree::Tree1Node),
    Tree2(tree::Tree2Node),
    Array(array::Part),
}

/// The nodes below a node, each with the chunks that it leads to.
type Below = Vec<(Node, Vec<u64>)>;

/// Checks the checksum that follows the first `len` bytes of a node.
fn check_sum(bytes: &[u8], len: usize) -> Parsed<()> {
    let (body, rest) = bytes.split_at_checked(len).ok_or_else(cut)?;
    let sum = rest.first_chunk::<4>().ok_or_else(cut)?;
    match u32::from_le_bytes(*sum) == lookup3(body) {
        true => Ok(()),
        false => damaged("a node has another checksum"),
    }
}

/// Returns the checksum of metadata: Bob Jenkins' lookup3 (format specification, VIII).
pub fn lookup3(bytes: &[u8]) -> u32 {
    let seed = 0xdead_beef_u32.wrapping_add(bytes.len() as u32);
    let (mut a, mut b, mut c) = (seed, seed, seed);
    let word = |part: &[u8], at: usize| {
        let byte = |k: usize| u32::from(part.get(at + k).copied().unwrap_or(0)) << (8 * k);
        byte(0) | byte(1) | byte(2) | byte(3)
    };
    let mut rest = bytes;
    while let Some((now, behind)) = rest.split_at_checked(12).filter(|_| rest.len() > 12) {
        a = a.wrapping_add(word(now, 0));
        b = b.wrapping_add(word(now, 4));
        c = c.wrapping_add(word(now, 8));
        a = a.wrapping_sub(c) ^ c.rotate_left(4);
        c = c.wrapping_add(b);
        b = b.wrapping_sub(a) ^ a.rotate_left(6);
        a = a.wrapping_add(c);
        c = c.wrapping_sub(b) ^ b.rotate_left(8);
        b = b.wrapping_add(a);
        a = a.wrapping_sub(c) ^ c.rotate_left(16);
        c = c.wrapping_add(b);
        b = b.wrapping_sub(a) ^ a.rotate_left(19);
        a = a.wrapping_add(c);
        c = c.wrapping_sub(b) ^ b.rotate_left(4);
        b = b.wrapping_add(a);
        rest = behind;
    }
    if rest.is_empty() {
        return c;
    }
    a = a.wrapping_add(word(rest, 0));
    b = b.wrapping_add(word(rest, 4));
    c = c.wrapping_add(word(rest, 8));
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    (c ^ b).wrapping_sub(b.rotate_left(24))
}

impl Index {
    /// Opens the index of the dataset whose header is at `dataset` (without the user block) in a file of `size` bytes;
    /// `chunk` is the size in bytes of a chunk before the filters. Returns `None` if there is no index, or one of an
    /// unknown form or of other dimensions.
    pub fn open<P: Pages>(
        pages: &mut P,
        (size, dataset): (u64, u64),
        places: Places,
        filtered: bool,
        chunk: u64,
    ) -> Result<Option<Self>, P::Error> {
        let Some((sizes, _)) = super::superblock(pages, size)? else {
            return Ok(None);
        };
        let Some(layout) = ChunkLayout::read(pages, &sizes, size, dataset)? else {
            return Ok(None);
        };
        if usize::from(layout.dimensions) != places.rank() + 1 || layout.version < 3 {
            return Ok(None);
        }
        let width = match layout.version {
            5.. => sizes.length,
            _ => 1 + (chunk.max(1).ilog2() as usize + 8) / 8,
        };
        let form = Form {
            filtered,
            chunk,
            width: width.min(8),
        };
        let mut index = Self {
            sizes,
            end: size,
            kind: Kind::Implicit,
            addr: layout.addr,
            places,
            form,
        };
        let mut head = |len: u64| index.read(pages, layout.addr, len);
        let o = sizes.offset as u64;
        let l = sizes.length as u64;
        let kind = match layout.kind {
            IndexKind::Tree1 => Some(Kind::Tree1),
            // Filters would make chunks of different sizes.
            IndexKind::Implicit => (!filtered).then_some(Kind::Implicit),
            IndexKind::Tree2 => {
                let bytes = head(22 + o + l)?;
                tree::Tree2::parse(&bytes, &sizes, &form, index.places.rank()).ok()
            }
            .map(Kind::Tree2),
            IndexKind::Fixed => {
                let bytes = head(12 + l + o)?;
                array::Fixed::parse(&bytes, &sizes, &form).ok()
            }
            .map(Kind::Fixed),
            IndexKind::Extensible => {
                let bytes = head(16 + 6 * l + o)?;
                array::Extensible::parse(&bytes, &sizes, &form).ok()
            }
            .map(Kind::Extensible),
        };
        Ok(kind.map(|kind| {
            index.kind = kind;
            index
        }))
    }

    /// Returns the number of places of the grid.
    pub fn count(&self) -> u64 {
        self.places.count()
    }

    fn range(&self, addr: u64, len: u64) -> Range<u64> {
        let start = addr.saturating_add(self.sizes.base).min(self.end);
        start..start.saturating_add(len).min(self.end)
    }

    /// Fetches bytes at an address; fewer at the end of the file.
    fn read<P: Pages>(&self, pages: &mut P, addr: u64, len: u64) -> Result<Vec<u8>, P::Error> {
        let range = self.range(addr, len);
        pages.fetch(std::slice::from_ref(&range))?;
        pages.bytes(range)
    }

    /// Looks up chunks by their places in the grid, and returns them with others that the same nodes name.
    pub fn find<P: Pages>(&self, pages: &mut P, wanted: &[u64]) -> Result<Known, Fault<P::Error>> {
        let mut known = Known::new();
        let mut wanted: Vec<u64> = wanted.to_vec();
        wanted.retain(|&place| place < self.places.count());
        wanted.sort_unstable();
        wanted.dedup();
        let mut level = self.begin(wanted, &mut known)?;
        let mut left = MOST_BYTES;
        for _ in 0..DEEPEST {
            if level.is_empty() {
                return Ok(known);
            }
            let mut place = |(node, _): &(Node, Vec<u64>)| {
                let (addr, len) = self.extent(node);
                left = left.checked_sub(len)?;
                (len <= LARGEST_NODE).then(|| self.range(addr, len))
            };
            let ranges: Option<Vec<_>> = level.iter().map(&mut place).collect();
            let ranges = ranges.ok_or(Fault::Unknown)?;
            pages.fetch(&ranges).map_err(Fault::Pages)?;
            let mut below = Below::new();
            for ((node, wanted), range) in level.into_iter().zip(ranges) {
                let bytes = pages.bytes(range).map_err(Fault::Pages)?;
                let next = match &node {
                    Node::Tree1(node) => node.step(&bytes, self, wanted, &mut known),
                    Node::Tree2(node) => node.step(&bytes, self, wanted, &mut known),
                    Node::Array(part) => part.step(&bytes, self, wanted, &mut known),
                };
                below.extend(next?);
            }
            level = below;
        }
        Err(Fault::Damaged("an index of too many levels"))
    }

    /// Returns the chunks at all places of the grid: what a look-up of each would find. [`Fault::Unknown`] unless the
    /// index is a B-tree of version 1. The caller bounds the number of places.
    pub fn all<P: Pages>(&self, pages: &mut P) -> Result<Vec<Option<Entry>>, Fault<P::Error>> {
        /// The bytes that a chunk takes in the index, at most: nodes are half full, and inner ones few.
        const EACH: u64 = 512;
        /// The largest number of nodes that are fetched in one request.
        const TOGETHER: usize = 512;
        let count = self.count();
        let length = usize::try_from(count).map_err(|_| Fault::Unknown)?;
        if !matches!(self.kind, Kind::Tree1) {
            return Err(Fault::Unknown);
        }
        let mut table = vec![None; length];
        let mut left = MOST_BYTES.saturating_add(count.saturating_mul(EACH));
        let size = tree::Tree1Node::size(&self.sizes, self.places.rank());
        let mut level = vec![(tree::Tree1Node::root(self.addr), 0..count)];
        for _ in 0..DEEPEST {
            if level.is_empty() {
                return Ok(table);
            }
            let mut below = Vec::new();
            for nodes in level.chunks(TOGETHER) {
                left = left
                    .checked_sub(size.saturating_mul(nodes.len() as u64))
                    .filter(|_| size <= LARGEST_NODE)
                    .ok_or(Fault::Unknown)?;
                let ranges: Vec<_> = nodes
                    .iter()
                    .map(|(node, _)| self.range(node.addr, size))
                    .collect();
                pages.fetch(&ranges).map_err(Fault::Pages)?;
                for ((node, places), range) in nodes.iter().zip(ranges) {
                    let bytes = pages.bytes(range).map_err(Fault::Pages)?;
                    let next = node.fill(&bytes, self, places, &mut table);
                    below.extend(next?);
                }
            }
            level = below;
        }
        Err(Fault::Damaged("an index of too many levels"))
    }

    /// Returns the first nodes on the way.
    fn begin(&self, wanted: Vec<u64>, known: &mut Known) -> Parsed<Below> {
        if wanted.is_empty() {
            return Ok(Below::new());
        }
        Ok(match &self.kind {
            Kind::Implicit => {
                for place in wanted {
                    let number = self.places.number(place);
                    let addr = number.checked_mul(self.form.chunk);
                    let addr =
                        addr.and_then(|at| self.addr.checked_add(at)?.checked_add(self.sizes.base));
                    let (size, mask) = (self.form.chunk, 0);
                    let outside = NodeFault::Damaged("a chunk lies outside the file");
                    let addr = addr.ok_or(outside)?;
                    known.insert(place, Some(Entry { addr, size, mask }));
                }
                Below::new()
            }
            Kind::Tree1 => vec![(Node::Tree1(tree::Tree1Node::root(self.addr)), wanted)],
            Kind::Tree2(tree) => match tree.root() {
                Some(root) => vec![(Node::Tree2(root), wanted)],
                None => {
                    known.extend(wanted.into_iter().map(|place| (place, None)));
                    Below::new()
                }
            },
            Kind::Fixed(array) => array.begin(self, wanted, known)?,
            Kind::Extensible(array) => array.begin(self, wanted, known),
        })
    }

    /// Returns the address of a node, and the largest number of bytes that it can have.
    fn extent(&self, node: &Node) -> (u64, u64) {
        match (node, &self.kind) {
            (Node::Tree1(node), _) => (
                node.addr,
                tree::Tree1Node::size(&self.sizes, self.places.rank()),
            ),
            (Node::Tree2(node), Kind::Tree2(tree)) => (node.addr, tree.node_size()),
            (Node::Array(part), _) => part.extent(),
            (Node::Tree2(node), _) => (node.addr, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_sums() {
        // From the driver of Jenkins' own lookup3.c.
        assert_eq!(lookup3(b""), 0xdead_beef);
        assert_eq!(lookup3(b"Four score and seven years ago"), 0x1777_0551);
    }
}
