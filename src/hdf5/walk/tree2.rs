//! Version 2 B-trees (format specification, III.A.2).

use super::cursor::Cursor;
use super::{Found, Kind};

/// Levels of the deepest tree.
const DEEPEST: u16 = 32;

/// A node of a tree: all that is known of it before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    /// Bytes of a node, and of a record.
    node: u32,
    record: u16,
    /// Levels below it.
    depth: u16,
    records: u16,
}

/// Bytes before the records of a node, and of the checksum behind them.
const AROUND: u64 = 10;

impl Node {
    /// Returns its bytes.
    pub(super) fn size(&self) -> u64 {
        u64::from(self.node)
    }
}

/// Returns the bytes that a number up to `most` takes.
fn width(most: u64) -> u64 {
    u64::from(64 - most.leading_zeros()).div_ceil(8).max(1)
}

/// Returns the most records of a node at each level from the leaves up, and the bytes in which numbers of records are written: of
/// a node, and of all below a node of that level.
fn capacities(node: &Node, offset: u64, depth: u16) -> Option<(u64, Vec<u64>)> {
    let room = u64::from(node.node).checked_sub(AROUND)?;
    let record = u64::from(node.record).max(1);
    let leaf = room / record;
    let of_node = width(leaf);
    let (mut total, mut totals) = (leaf, vec![0]);
    for level in 1..=depth {
        let all = match level {
            1 => 0,
            _ => *totals.last()?,
        };
        let pointer = offset + of_node + all;
        let most = room.checked_sub(pointer)? / (record + pointer);
        total = most
            .saturating_add(1)
            .saturating_mul(total)
            .saturating_add(most);
        totals.push(width(total));
    }
    Some((of_node, totals))
}

/// The header.
pub(super) fn header(at: &mut Cursor<'_>) -> Option<Found> {
    at.signature(b"BTHD")?;
    at.skip(2)?;
    let node = u32::try_from(at.number(4)?).ok()?;
    let record = u16::try_from(at.number(2)?).ok()?;
    let depth = u16::try_from(at.number(2)?).ok()?;
    at.skip(2)?;
    let root = at.offset()?;
    let records = u16::try_from(at.number(2)?).ok()?;
    let node = Node {
        node,
        record,
        depth,
        records,
    };
    let known = depth <= DEEPEST;
    Some(Found::Refers(match known {
        true => vec![(root, Kind::Tree2Node(node))],
        false => Vec::new(),
    }))
}

/// A node: the nodes below it.
pub(super) fn node(at: &mut Cursor<'_>, node: &Node) -> Option<Found> {
    if node.depth == 0 {
        return Some(Found::Refers(Vec::new()));
    }
    at.signature(b"BTIN")?;
    at.skip(2)?;
    at.skip(usize::from(node.records) * usize::from(node.record))?;
    let (of_node, totals) = capacities(node, at.sizes.offset as u64, node.depth)?;
    let all = match node.depth {
        1 => 0,
        depth => *totals.get(usize::from(depth) - 1)?,
    };
    let mut found = Vec::new();
    for _ in 0..=node.records {
        let addr = at.offset()?;
        let records = u16::try_from(at.number(usize::try_from(of_node).ok()?)?).ok()?;
        at.skip(usize::try_from(all).ok()?)?;
        let below = Node {
            depth: node.depth - 1,
            records,
            ..*node
        };
        found.push((addr, Kind::Tree2Node(below)));
    }
    Some(Found::Refers(found))
}
