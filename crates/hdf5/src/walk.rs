//! A walk over the metadata of a remote HDF5 file, which fetches the metadata before libhdf5 needs them.
//!
//! The walk goes breadth first: all references of a level are fetched together, so a walk takes as many round trips as
//! the file is deep, while libhdf5 takes one for each read. It only requests bytes. An error of the walk, or a
//! structure that it does not know, costs requests and never causes a wrong answer, as libhdf5 reads everything itself.
//! Its input may be hostile: all its requests are bounded.
//!
//! The indexes of many chunks are left out: a few chunks are looked up (`index`), and the whole index has a walk of its
//! own.

mod arrays;
mod cursor;
mod fractal_heap;
mod header;
pub mod index;
mod tree1;
mod tree2;

use std::collections::{HashSet, VecDeque};
use std::ops::Range;

use cursor::{Cursor, NOWHERE};

/// The total number of structures that are examined, and of bytes that are requested.
const MOST_STRUCTURES: usize = 1 << 20;
const MOST_BYTES: u64 = 256 << 20;

/// The largest number of structures of a level that are fetched together.
const MOST_TOGETHER: usize = 4096;

/// The largest number of chunks whose index is fetched with the other metadata.
const MANY_CHUNKS: u64 = 4096;

/// The size in bytes of the largest single structure.
const LARGEST: u64 = 8 << 20;

/// The source of bytes, which fetches ranges together and then holds them.
pub trait Pages {
    /// The failure of fetching.
    type Error;

    /// Fetches ranges of the file, and waits until all have arrived.
    fn fetch(&mut self, ranges: &[Range<u64>]) -> Result<(), Self::Error>;

    /// Returns bytes that were fetched.
    fn bytes(&mut self, range: Range<u64>) -> Result<Vec<u8>, Self::Error>;
}

/// The sizes in the superblock.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// The sizes in bytes of an address and of a length.
    offset: usize,
    length: usize,
    /// Half the number of entries of symbol table nodes, of nodes of group trees, and of nodes of chunk trees.
    leaf: u64,
    group: u64,
    chunk: u64,
    /// The base address, which other addresses are relative to.
    base: u64,
}

/// A kind of structure at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// An object header.
    Header,
    /// A part of an object header of version 1 or 2, with its size in bytes.
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
    /// A node of a version 1 B-tree of chunks, with the number of dimensions in its keys.
    ChunkTree {
        dimensions: u8,
    },
    /// The header of a version 2 B-tree.
    Tree2,
    /// A node of a version 2 B-tree.
    Tree2Node(tree2::Node),
    /// The header of a fractal heap.
    FractalHeap,
    /// An indirect block of a fractal heap.
    IndirectBlock(fractal_heap::Indirect),
    /// A direct block of a fractal heap.
    DirectBlock {
        len: u64,
        bits: u16,
    },
    /// The header of a fixed array, or of an extensible one.
    FixedArray,
    ExtensibleArray,
    /// The index block of an extensible array.
    IndexBlock(arrays::Extensible),
    /// A super block of an extensible array.
    SuperBlock(arrays::Extensible, u32),
    /// A collection of the global heap.
    GlobalHeap,
    /// Bytes that are only fetched, not parsed.
    Plain(u64),
}

/// The result of parsing a structure.
enum ParseOutcome {
    /// The references of the structure.
    Refers(Vec<(u64, Kind)>),
    /// The structure is larger than the fetched bytes: its size in bytes.
    Larger(u64),
}

impl Kind {
    /// Returns the number of bytes that are fetched at first.
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

    /// Parses a structure. With `small`, the indexes of many chunks refer to nothing.
    fn parse(&self, bytes: &[u8], sizes: &Sizes, small: bool) -> Option<ParseOutcome> {
        let mut at = Cursor::new(bytes, sizes);
        let most = if small { MANY_CHUNKS } else { u64::MAX };
        match self {
            Self::Header => header::parse(&mut at),
            Self::HeaderPart { version, flags, .. } => header::part(&mut at, *version, *flags),
            Self::GroupTree => tree1::group(&mut at),
            Self::SymbolNode => tree1::symbols(&mut at),
            Self::LocalHeap => tree1::local_heap(&mut at),
            Self::ChunkTree { dimensions } => tree1::chunks(&mut at, *dimensions, most),
            Self::Tree2 => tree2::header(&mut at, most),
            Self::Tree2Node(node) => tree2::node(&mut at, node),
            Self::FractalHeap => fractal_heap::header(&mut at),
            Self::IndirectBlock(block) => fractal_heap::indirect(&mut at, block),
            Self::DirectBlock { bits, .. } => fractal_heap::direct(&mut at, *bits),
            Self::FixedArray => arrays::fixed(&mut at, most),
            Self::ExtensibleArray => arrays::extensible(&mut at, most),
            Self::IndexBlock(array) => arrays::index_block(&mut at, array),
            Self::SuperBlock(array, number) => arrays::super_block(&mut at, array, *number),
            Self::GlobalHeap => tree1::global_heap(&mut at),
            Self::Plain(_) => Some(ParseOutcome::Refers(Vec::new())),
        }
    }
}

/// Walks over the metadata of a file of `size` bytes. Ends early and silently at an unknown structure.
pub fn walk<P: Pages>(pages: &mut P, size: u64) -> Result<(), P::Error> {
    match superblock(pages, size)? {
        Some((sizes, first)) => walk_from(pages, size, &sizes, first, true),
        None => Ok(()),
    }
}

/// Walks over the metadata of the dataset at an address, with the index of its chunks, however many there are.
pub fn walk_dataset<P: Pages>(pages: &mut P, size: u64, dataset: u64) -> Result<(), P::Error> {
    match superblock(pages, size)? {
        Some((sizes, _)) => {
            let first = vec![(dataset, Kind::Header)];
            walk_from(pages, size, &sizes, first, false)
        }
        None => Ok(()),
    }
}

/// Walks over structures and the structures that they refer to.
fn walk_from<P: Pages>(
    pages: &mut P,
    size: u64,
    sizes: &Sizes,
    first: Referred,
    small: bool,
) -> Result<(), P::Error> {
    let mut seen: HashSet<(u64, Kind)> = HashSet::new();
    let mut queue: VecDeque<(u64, Kind, u64)> = VecDeque::new();
    let add = |queue: &mut VecDeque<_>, seen: &mut HashSet<_>, found: Vec<(u64, Kind)>| {
        for (addr, kind) in found {
            let inside =
                addr != NOWHERE && addr.checked_add(sizes.base).is_some_and(|at| at < size);
            if inside && seen.len() < MOST_STRUCTURES && seen.insert((addr, kind)) {
                queue.push_back((addr, kind, kind.guess(sizes).min(LARGEST)));
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
            match kind.parse(&bytes, sizes, small) {
                Some(ParseOutcome::Refers(found)) => add(&mut queue, &mut seen, found),
                Some(ParseOutcome::Larger(whole)) if whole > len && whole <= LARGEST && !at_end => {
                    queue.push_back((addr, kind, whole));
                }
                // The structure is wrong or unknown: libhdf5 will report it.
                _ => {}
            }
        }
    }
    Ok(())
}

/// The references of a structure: addresses, each with the kind of the structure there.
type Referred = Vec<(u64, Kind)>;

/// Finds the superblock, and returns its sizes and its references.
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
            // The symbol table entry of the root group has its name first, then its address.
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
