//! A walk over the metadata of an HDF5 file that lies elsewhere, so that libhdf5 finds it at hand.
//!
//! Breadth first: what a level refers to is asked for together, so that a walk takes as many round trips as the file is
//! deep, where libhdf5 takes one for each read. It only asks for bytes: what it gets wrong, or does not know, costs requests and
//! never a wrong answer, as libhdf5 reads everything itself. Its input may be hostile: all that it asks for is bounded.

mod chunk_index;
mod cursor;
mod fractal_heap;
mod header;
mod tree1;
mod tree2;

use std::collections::{HashSet, VecDeque};
use std::ops::Range;

use cursor::{Cursor, NOWHERE};

/// Structures that are looked at in all, and bytes that are asked for.
const MOST_STRUCTURES: usize = 1 << 20;
const MOST_BYTES: u64 = 256 << 20;

/// Structures of a level that are asked for together at the most.
const MOST_TOGETHER: usize = 4096;

/// Bytes of the largest single structure.
const LARGEST: u64 = 8 << 20;

/// The source of bytes: fetches ranges together, then has them.
pub(super) trait Pages {
    /// The failure of fetching.
    type Error;

    /// Fetches ranges of the file, and waits until all are there.
    fn fetch(&mut self, ranges: &[Range<u64>]) -> Result<(), Self::Error>;

    /// Returns bytes that were fetched.
    fn bytes(&mut self, range: Range<u64>) -> Result<Vec<u8>, Self::Error>;
}

/// The sizes that the superblock tells.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// Bytes of an address, and of a length.
    offset: usize,
    length: usize,
    /// Half the number of entries of symbol table nodes, of nodes of trees of groups, and of trees of chunks.
    leaf: u64,
    group: u64,
    chunk: u64,
    /// The address that others count from.
    base: u64,
}

/// A structure, at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// An object header.
    Header,
    /// A part of an object header of version 1 or 2, of so many bytes.
    HeaderPart {
        version: u8,
        len: u64,
        flags: u8,
    },
    /// A node of a version 1 B-tree of a group.
    GroupTree,
    /// A symbol table node.
    SymbolNode,
    /// A local heap.
    LocalHeap,
    /// A node of a version 1 B-tree of chunks with so many dimensions in its keys.
    ChunkTree {
        dimensions: u8,
    },
    /// The header of a version 2 B-tree.
    Tree2,
    /// A node of one.
    Tree2Node(tree2::Node),
    /// The header of a fractal heap.
    FractalHeap,
    /// An indirect block of one.
    IndirectBlock(fractal_heap::Indirect),
    /// A direct block of one.
    DirectBlock {
        len: u64,
        bits: u16,
    },
    /// The header of a fixed array, or of an extensible one.
    FixedArray,
    ExtensibleArray,
    /// The index block of an extensible array.
    IndexBlock(chunk_index::Extensible),
    /// A super block of one.
    SuperBlock(chunk_index::Extensible, u32),
    /// A collection of the global heap.
    GlobalHeap,
    /// Bytes that are only wanted.
    Plain(u64),
}

/// What a structure turned out to be.
enum Found {
    /// What it refers to.
    Refers(Vec<(u64, Kind)>),
    /// It is larger than what is at hand: so many bytes.
    Larger(u64),
}

impl Kind {
    /// Returns the bytes that are asked for at first.
    fn guess(&self, sizes: &Sizes) -> u64 {
        let (o, l) = (sizes.offset as u64, sizes.length as u64);
        match self {
            Self::Header => 512,
            Self::HeaderPart { len, .. } | Self::DirectBlock { len, .. } | Self::Plain(len) => *len,
            Self::GroupTree => 8 + 2 * o + 2 * sizes.group * (o + l) + l,
            Self::SymbolNode => 8 + 2 * sizes.leaf * (2 * o + 24),
            Self::LocalHeap => 8 + 2 * l + o,
            Self::ChunkTree { dimensions } => {
                let key = 8 + 8 * u64::from(*dimensions);
                8 + 2 * o + 2 * sizes.chunk * (key + o) + key
            }
            Self::Tree2 => 22 + o + l,
            Self::Tree2Node(node) => node.size(),
            Self::FractalHeap => 26 + 3 * o + 12 * l,
            Self::IndirectBlock(block) => block.size(sizes),
            Self::FixedArray => 12 + l + o,
            Self::ExtensibleArray => 16 + 6 * l + o,
            Self::IndexBlock(array) => array.index_block_size(sizes),
            Self::SuperBlock(array, number) => array.super_block_size(*number, sizes),
            Self::GlobalHeap => 4096,
        }
    }

    fn parse(&self, bytes: &[u8], sizes: &Sizes) -> Option<Found> {
        let mut at = Cursor::new(bytes, sizes);
        match self {
            Self::Header => header::parse(&mut at),
            Self::HeaderPart { version, flags, .. } => header::part(&mut at, *version, *flags),
            Self::GroupTree => tree1::group(&mut at),
            Self::SymbolNode => tree1::symbols(&mut at),
            Self::LocalHeap => tree1::local_heap(&mut at),
            Self::ChunkTree { dimensions } => tree1::chunks(&mut at, *dimensions),
            Self::Tree2 => tree2::header(&mut at),
            Self::Tree2Node(node) => tree2::node(&mut at, node),
            Self::FractalHeap => fractal_heap::header(&mut at),
            Self::IndirectBlock(block) => fractal_heap::indirect(&mut at, block),
            Self::DirectBlock { bits, .. } => fractal_heap::direct(&mut at, *bits),
            Self::FixedArray => chunk_index::fixed(&mut at),
            Self::ExtensibleArray => chunk_index::extensible(&mut at),
            Self::IndexBlock(array) => chunk_index::index_block(&mut at, array),
            Self::SuperBlock(array, number) => chunk_index::super_block(&mut at, array, *number),
            Self::GlobalHeap => tree1::global_heap(&mut at),
            Self::Plain(_) => Some(Found::Refers(Vec::new())),
        }
    }
}

/// Walks over the metadata of a file of `size` bytes. Ends early, without a word, at what it does not know.
pub(super) fn walk<P: Pages>(pages: &mut P, size: u64) -> Result<(), P::Error> {
    let Some((sizes, first)) = superblock(pages, size)? else {
        return Ok(());
    };
    let mut seen: HashSet<(u64, Kind)> = HashSet::new();
    let mut queue: VecDeque<(u64, Kind, u64)> = VecDeque::new();
    let add = |queue: &mut VecDeque<_>, seen: &mut HashSet<_>, found: Vec<(u64, Kind)>| {
        for (addr, kind) in found {
            let inside =
                addr != NOWHERE && addr.checked_add(sizes.base).is_some_and(|at| at < size);
            if inside && seen.len() < MOST_STRUCTURES && seen.insert((addr, kind)) {
                queue.push_back((addr, kind, kind.guess(&sizes).min(LARGEST)));
            }
        }
    };
    add(&mut queue, &mut seen, first);
    let mut left = MOST_BYTES;
    while !queue.is_empty() {
        let level: Vec<_> = queue.drain(..queue.len().min(MOST_TOGETHER)).collect();
        let range = |(addr, _, len): &(u64, Kind, u64)| {
            let start = addr.saturating_add(sizes.base).min(size);
            start..start.saturating_add(*len).min(size)
        };
        let ranges: Vec<_> = level.iter().map(range).collect();
        let wanted = ranges
            .iter()
            .fold(0_u64, |n, r| n.saturating_add(r.end - r.start));
        let Some(rest) = left.checked_sub(wanted) else {
            break;
        };
        left = rest;
        pages.fetch(&ranges)?;
        for ((addr, kind, len), range) in level.into_iter().zip(ranges) {
            if let Kind::Plain(_) = kind {
                continue;
            }
            let at_end = range.end == size;
            let bytes = pages.bytes(range)?;
            match kind.parse(&bytes, &sizes) {
                Some(Found::Refers(found)) => add(&mut queue, &mut seen, found),
                Some(Found::Larger(whole)) if whole > len && whole <= LARGEST && !at_end => {
                    queue.push_back((addr, kind, whole));
                }
                // Not what it should be, or not known: libhdf5 will tell.
                _ => {}
            }
        }
    }
    Ok(())
}

/// What a structure refers to: addresses, and the kind of what lies there.
type Referred = Vec<(u64, Kind)>;

/// Looks for the superblock, and returns what it tells and what it refers to.
fn superblock<P: Pages>(pages: &mut P, size: u64) -> Result<Option<(Sizes, Referred)>, P::Error> {
    const SIGNATURE: &[u8] = b"\x89HDF\r\n\x1a\n";
    let mut at = 0_u64;
    while at < size {
        let range = at..at.saturating_add(128).min(size);
        pages.fetch(std::slice::from_ref(&range))?;
        let bytes = pages.bytes(range)?;
        if bytes.starts_with(SIGNATURE) {
            return Ok(read_superblock(&bytes[8..], at));
        }
        at = if at == 0 { 512 } else { at.saturating_mul(2) };
        if at > 1 << 20 {
            break;
        }
    }
    Ok(None)
}

/// Parses a superblock (format specification, II.A) from its version on.
fn read_superblock(bytes: &[u8], place: u64) -> Option<(Sizes, Vec<(u64, Kind)>)> {
    let mut sizes = Sizes {
        offset: 8,
        length: 8,
        leaf: 4,
        group: 16,
        chunk: 32,
        base: place,
    };
    let byte = |at: usize| bytes.get(at).copied();
    let width = |at: usize| byte(at).map(usize::from).filter(|n| matches!(n, 2 | 4 | 8));
    match byte(0)? {
        version @ (0 | 1) => {
            sizes.offset = width(5)?;
            sizes.length = width(6)?;
            let copy = sizes;
            let mut at = Cursor::new(bytes, &copy);
            at.skip(8)?;
            sizes.leaf = at.number(2)?;
            sizes.group = at.number(2)?;
            at.skip(4)?;
            if version == 1 {
                sizes.chunk = at.number(2)?;
                at.skip(2)?;
            }
            sizes.base = at.offset()?;
            at.skip(3 * sizes.offset)?;
            // The entry of the root group in a symbol table: its name, and where it is.
            at.skip(sizes.offset)?;
            let root = at.offset()?;
            let mut found = vec![(root, Kind::Header)];
            if at.number(4)? == 1 {
                at.skip(4)?;
                found.push((at.offset()?, Kind::GroupTree));
                found.push((at.offset()?, Kind::LocalHeap));
            }
            Some((sizes, found))
        }
        2 | 3 => {
            sizes.offset = width(1)?;
            sizes.length = width(2)?;
            let copy = sizes;
            let mut at = Cursor::new(bytes, &copy);
            at.skip(4)?;
            sizes.base = at.offset()?;
            let extension = at.offset()?;
            at.skip(sizes.offset)?;
            let root = at.offset()?;
            Some((sizes, vec![(root, Kind::Header), (extension, Kind::Header)]))
        }
        _ => None,
    }
}
