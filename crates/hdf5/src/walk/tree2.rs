//! Version 2 B-trees (format specification, III.A.2).

use super::cursor::Cursor;
use super::{Kind, ParseOutcome};

/// The number of levels of the deepest tree.
const DEEPEST: u16 = 32;

/// A node of a tree, as known before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Node {
    /// The sizes in bytes of a node and of a record.
    node: u32,
    pub(super) record: u16,
    /// The number of levels below the node.
    pub(super) depth: u16,
    pub(super) records: u16,
}

/// The size in bytes of the prefix of a node and of the checksum after its records.
const AROUND: u64 = 10;

impl Node {
    /// Returns the size in bytes of the node.
    pub(super) fn size(&self) -> u64 {
        u64::from(self.node)
    }
}

/// Returns the number of bytes of a number up to `most`.
fn width(most: u64) -> u64 {
    u64::from(64 - most.leading_zeros()).div_ceil(8).max(1)
}

/// Returns the largest number of records of a node at each level from the leaves up, and the number of bytes in which
/// record counts are written: for a node, and for all nodes below a node of that level.
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

/// Parses the header of a tree, behind its type. Returns the address of the root, and the root.
pub(super) fn root(at: &mut Cursor<'_>) -> Option<(u64, Node)> {
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
    Some((root, node))
}

/// Parses the header of a tree. A tree of more than `most` chunks is not followed.
pub(super) fn header(at: &mut Cursor<'_>, most: u64) -> Option<ParseOutcome> {
    at.signature(b"BTHD")?;
    at.skip(1)?;
    let of_chunks = matches!(at.number(1)?, 10 | 11);
    let (addr, root) = root(at)?;
    let many = of_chunks && at.length()? > most;
    let known = root.depth <= DEEPEST && !many;
    Some(ParseOutcome::Refers(match known {
        true => vec![(addr, Kind::Tree2Node(root))],
        false => Vec::new(),
    }))
}

impl Node {
    /// Parses the pointers of an inner node, which follow its records.
    pub(super) fn pointers(&self, at: &mut Cursor<'_>) -> Option<Vec<(u64, Self)>> {
        let (of_node, totals) = capacities(self, at.sizes.offset as u64, self.depth)?;
        let all = match self.depth {
            1 => 0,
            depth => *totals.get(usize::from(depth) - 1)?,
        };
        let mut found = Vec::new();
        for _ in 0..=self.records {
            let addr = at.offset()?;
            let records = u16::try_from(at.number(usize::try_from(of_node).ok()?)?).ok()?;
            at.skip(usize::try_from(all).ok()?)?;
            let below = Self {
                depth: self.depth.checked_sub(1)?,
                records,
                ..*self
            };
            found.push((addr, below));
        }
        Some(found)
    }
}

/// Parses a node, which refers to the nodes below it.
pub(super) fn node(at: &mut Cursor<'_>, node: &Node) -> Option<ParseOutcome> {
    if node.depth == 0 {
        return Some(ParseOutcome::Refers(Vec::new()));
    }
    at.signature(b"BTIN")?;
    at.skip(2)?;
    at.skip(usize::from(node.records) * usize::from(node.record))?;
    let below = node.pointers(at)?.into_iter();
    let below = below.map(|(addr, node)| (addr, Kind::Tree2Node(node)));
    Some(ParseOutcome::Refers(below.collect()))
}
