//! Version 1 B-trees, symbol table nodes and heaps (format specification, III.A to III.E).

use super::cursor::Cursor;
use super::{Kind, ParseOutcome};

/// The size in bytes of the largest collection of the global heap that is fetched.
const LARGEST_COLLECTION: u64 = 4 << 20;

/// Returns the level and the number of entries of a node of a type.
fn node(at: &mut Cursor<'_>, wanted: u64) -> Option<(u64, u64)> {
    at.signature(b"TREE")?;
    let kind = at.number(1)?;
    let level = at.number(1)?;
    let entries = at.number(2)?;
    at.skip(2 * at.sizes.offset)?;
    (kind == wanted).then_some((level, entries))
}

/// Parses a node of the tree of a group.
pub(super) fn group(at: &mut Cursor<'_>) -> Option<ParseOutcome> {
    let (level, entries) = node(at, 0)?;
    let (o, l) = (at.sizes.offset as u64, at.sizes.length as u64);
    let whole = at.done() as u64 + entries * (o + l) + l;
    if (at.left() as u64) < entries * (o + l) + l {
        return Some(ParseOutcome::Larger(whole));
    }
    let kind = match level {
        0 => Kind::SymbolNode,
        _ => Kind::GroupTree,
    };
    let mut found = Vec::new();
    for _ in 0..entries {
        at.length()?;
        found.push((at.offset()?, kind));
    }
    Some(ParseOutcome::Refers(found))
}

/// Parses a node of the tree of chunks. A node is not followed if there can be more than `most` chunks below it.
pub(super) fn chunks(at: &mut Cursor<'_>, dimensions: u8, most: u64) -> Option<ParseOutcome> {
    let (level, entries) = node(at, 1)?;
    let key = 8 + 8 * usize::from(dimensions);
    let each = (key + at.sizes.offset) as u64;
    let of_node = (2 * at.sizes.chunk).max(2);
    let below = u32::try_from(level)
        .ok()
        .and_then(|level| of_node.checked_pow(level + 1));
    if level == 0 || below.is_none_or(|below| below > most) {
        // The children of a leaf are chunks. libhdf5 reads the node in its full allocated size.
        return Some(ParseOutcome::Refers(Vec::new()));
    }
    let whole = at.done() as u64 + entries * each + key as u64;
    if (at.left() as u64) < entries * each {
        return Some(ParseOutcome::Larger(whole));
    }
    let mut found = Vec::new();
    for _ in 0..entries {
        at.skip(key)?;
        found.push((at.offset()?, Kind::ChunkTree { dimensions }));
    }
    Some(ParseOutcome::Refers(found))
}

/// Parses a symbol table node.
pub(super) fn symbols(at: &mut Cursor<'_>) -> Option<ParseOutcome> {
    at.signature(b"SNOD")?;
    at.skip(2)?;
    let entries = at.number(2)?;
    let each = 2 * at.sizes.offset as u64 + 24;
    if (at.left() as u64) < entries * each {
        return Some(ParseOutcome::Larger(at.done() as u64 + entries * each));
    }
    let mut found = Vec::new();
    for _ in 0..entries {
        at.skip(at.sizes.offset)?;
        let object = at.offset()?;
        let cached = at.number(4)?;
        at.skip(4)?;
        let scratch = at.take(16)?;
        // A soft link leads to no object.
        if cached != 2 {
            found.push((object, Kind::Header));
        }
        if cached == 1 {
            let mut scratch = Cursor::new(scratch, at.sizes);
            found.push((scratch.offset()?, Kind::GroupTree));
            found.push((scratch.offset()?, Kind::LocalHeap));
        }
    }
    Some(ParseOutcome::Refers(found))
}

/// Parses a local heap.
pub(super) fn local_heap(at: &mut Cursor<'_>) -> Option<ParseOutcome> {
    at.signature(b"HEAP")?;
    at.skip(4)?;
    let size = at.length()?;
    at.length()?;
    Some(ParseOutcome::Refers(vec![(
        at.offset()?,
        Kind::Plain(size),
    )]))
}

/// Parses a collection of the global heap.
pub(super) fn global_heap(at: &mut Cursor<'_>) -> Option<ParseOutcome> {
    at.signature(b"GCOL")?;
    at.skip(4)?;
    let size = at.length()?;
    match size > (at.done() + at.left()) as u64 && size <= LARGEST_COLLECTION {
        true => Some(ParseOutcome::Larger(size)),
        false => Some(ParseOutcome::Refers(Vec::new())),
    }
}
