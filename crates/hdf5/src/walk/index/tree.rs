//! B-trees of chunks: version 1, whose keys are coordinates in elements, and version 2, whose records are chunks.

use std::ops::Range;

use super::super::cursor::Cursor;
use super::super::tree2;
use super::super::{NOWHERE, Sizes};
use super::{Below, Entry, Form, Index, Known, MOST_BESIDE, Node, NodeFault, Parsed};
use super::{check_sum, cut, damaged};

/// The largest number of levels.
const MOST_LEVELS: u8 = 32;

/// The coordinates of a chunk, in chunks. In keys of version 1, that of a byte in an element follows.
type Coords = Vec<u64>;

/// A node of a tree of version 1, as the node above describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tree1Node {
    pub addr: u64,
    /// The number of levels below the node; `None` of the root, which tells it.
    level: Option<u8>,
    /// The range of its keys; `None` of the root.
    keys: Option<(Coords, Coords)>,
}

impl Tree1Node {
    pub(super) fn root(addr: u64) -> Self {
        Self {
            addr,
            level: None,
            keys: None,
        }
    }

    /// Returns the size in bytes of a node.
    pub(super) fn size(sizes: &Sizes, rank: usize) -> u64 {
        let key = 16 + 8 * rank as u64;
        let o = sizes.offset as u64;
        8 + 2 * o + 2 * sizes.chunk * (key + o) + key
    }

    /// Reads a key, the size of a chunk, its mask, and its coordinates, which are added to `coords`.
    fn key(at: &mut Cursor<'_>, chunk: &[u64], coords: &mut Coords) -> Parsed<(u64, u32)> {
        let size = at.number(4).ok_or_else(cut)?;
        let mask = at.number(4).ok_or_else(cut)? as u32;
        for side in chunk {
            let start = at.number(8).ok_or_else(cut)?;
            if start % side != 0 {
                return damaged("a chunk does not start on the grid");
            }
            coords.push(start / side);
        }
        coords.push(at.number(8).ok_or_else(cut)?);
        Ok((size, mask))
    }

    /// Parses and checks the node. The root of an empty tree has no keys.
    fn parse(&self, bytes: &[u8], index: &Index) -> Parsed<Tree1Keys> {
        let places = &index.places;
        let at = &mut Cursor::new(bytes, &index.sizes);
        let head = |at: &mut Cursor<'_>| {
            at.signature(b"TREE")?;
            let (kind, level, entries) = (at.number(1)?, at.number(1)?, at.number(2)?);
            at.skip(2 * at.sizes.offset)?;
            Some((kind, level as u8, entries))
        };
        let Some((1, level, entries)) = head(at) else {
            return damaged("not a node of a B-tree of chunks");
        };
        if self.level.is_some_and(|known| known != level) || level > MOST_LEVELS {
            return damaged("a node is of another level");
        }
        if entries > 2 * index.sizes.chunk {
            // An extension of the superblock may allow more.
            return Err(NodeFault::Unknown);
        }
        let (rank, count) = (places.rank(), usize::try_from(entries).unwrap_or(0));
        let mut node = Tree1Keys {
            level,
            rank,
            keys: Vec::with_capacity(count),
            coords: Coords::with_capacity((count + 1) * (rank + 1)),
        };
        if entries == 0 {
            return match self.level {
                None => Ok(node),
                Some(_) => damaged("a node without chunks"),
            };
        }
        for _ in 0..entries {
            let (size, mask) = Self::key(at, places.chunk(), &mut node.coords)?;
            node.keys.push((at.offset().ok_or_else(cut)?, size, mask));
        }
        Self::key(at, places.chunk(), &mut node.coords)?;
        if (0..node.keys.len()).any(|k| node.coords(k) >= node.coords(k + 1)) {
            return damaged("the keys of a node are out of order");
        }
        if let Some((low, high)) = &self.keys
            && (node.coords(0) < &**low || node.coords(count) > &**high)
        {
            return damaged("the keys of a node disagree with those of the node above it");
        }
        Ok(node)
    }

    pub(super) fn step(
        &self,
        bytes: &[u8],
        index: &Index,
        wanted: Vec<u64>,
        known: &mut Known,
    ) -> Parsed<Below> {
        let node = self.parse(bytes, index)?;
        let mut below = Below::new();
        for place in wanted {
            let mut target = index.places.coords(place);
            target.push(0);
            let after = node.after(&target);
            let Some(k) = after.checked_sub(1).filter(|&k| k < node.keys.len()) else {
                known.insert(place, None);
                continue;
            };
            if node.level > 0 {
                let child = Node::Tree1(node.child(k)?);
                match below.last_mut() {
                    Some((last, places)) if *last == child => places.push(place),
                    _ => below.push((child, vec![place])),
                }
            } else {
                known.entry(place).or_insert(None);
            }
        }
        if node.level == 0 {
            let chunks = node.chunks(&index.sizes);
            let chunks = chunks.map(|chunk| chunk.map(|(coords, entry)| (coords.to_vec(), entry)));
            leaf(index, &chunks.collect::<Parsed<Vec<_>>>()?, known);
        }
        Ok(below)
    }

    /// Puts the chunks of a leaf into `table`, which has a slot for each place. Returns the nodes below another node,
    /// each with its places. `places` are those for which a look-up reaches this node.
    pub(super) fn fill(
        &self,
        bytes: &[u8],
        index: &Index,
        places: &Range<u64>,
        table: &mut [Option<Entry>],
    ) -> Parsed<Vec<(Self, Range<u64>)>> {
        let node = self.parse(bytes, index)?;
        if node.level == 0 {
            for chunk in node.chunks(&index.sizes) {
                let (coords, entry) = chunk?;
                let place = index.places.place(coords);
                let place = place.filter(|at| places.contains(at));
                let slot = place.and_then(|at| table.get_mut(usize::try_from(at).ok()?));
                if let Some(slot) = slot {
                    *slot = Some(entry);
                }
            }
            return Ok(Vec::new());
        }
        let mut below = Vec::new();
        let mut first = node.first_place(0, index);
        for k in 0..node.keys.len() {
            let next = node.first_place(k + 1, index);
            let range = first.max(places.start)..next.min(places.end);
            if !range.is_empty() {
                below.push((node.child(k)?, range));
            }
            first = next;
        }
        Ok(below)
    }
}

/// The content of a node of a tree of version 1.
struct Tree1Keys {
    level: u8,
    rank: usize,
    /// What is behind each key: an address, and of a chunk its size and mask.
    keys: Vec<(u64, u64, u32)>,
    /// The coordinates of all keys, which ascend, and of the end of the last one.
    coords: Coords,
}

impl Tree1Keys {
    fn coords(&self, k: usize) -> &[u64] {
        let each = self.rank + 1;
        self.coords
            .get(k * each..(k + 1) * each)
            .unwrap_or_default()
    }

    /// Returns the number of keys that are not behind some coordinates, with the end of the last one.
    fn after(&self, target: &[u64]) -> usize {
        let keys = self.coords.chunks_exact(self.rank + 1);
        keys.take_while(|key| *key <= target).count()
    }

    /// Returns the first place that is not before a key.
    fn first_place(&self, k: usize, index: &Index) -> u64 {
        let Some((byte, chunk)) = self.coords(k).split_last() else {
            return 0;
        };
        let inside = *byte > 0 && index.places.place(chunk).is_some();
        index.places.ceil(chunk) + u64::from(inside)
    }

    /// Returns the node behind a key.
    fn child(&self, k: usize) -> Parsed<Tree1Node> {
        match (self.keys.get(k), self.level.checked_sub(1)) {
            (Some(&(addr, ..)), Some(level)) if addr != NOWHERE => Ok(Tree1Node {
                addr,
                level: Some(level),
                keys: Some((self.coords(k).to_vec(), self.coords(k + 1).to_vec())),
            }),
            _ => damaged("a node without an address"),
        }
    }

    /// Returns the chunks of a leaf.
    fn chunks(&self, sizes: &Sizes) -> impl Iterator<Item = Parsed<(&[u64], Entry)>> {
        let keys = self.keys.iter().enumerate();
        keys.map(move |(k, &(addr, size, mask))| {
            let (byte, chunk) = self.coords(k).split_last().ok_or_else(cut)?;
            if *byte != 0 || addr == NOWHERE {
                return damaged("a chunk does not start on the grid");
            }
            Ok((chunk, Entry::new(addr, size, mask, sizes)))
        })
    }
}

/// Adds the chunks of a leaf. Between them there are no others.
fn leaf(index: &Index, chunks: &[(Coords, Entry)], known: &mut Known) {
    let places = &index.places;
    let (Some((first, _)), Some((last, _))) = (chunks.first(), chunks.last()) else {
        return;
    };
    let between = places.ceil(first)..places.ceil(last);
    if between.end - between.start <= MOST_BESIDE {
        for place in between {
            known.entry(place).or_insert(None);
        }
    }
    for (coords, entry) in chunks {
        if let Some(place) = places.place(coords) {
            known.insert(place, Some(*entry));
        }
    }
}

/// The header of a tree of version 2.
#[derive(Clone, Debug)]
pub(super) struct Tree2 {
    root: tree2::Node,
    /// The address of the root.
    addr: u64,
    /// The type of the tree: whether its chunks are filtered.
    kind: u8,
}

/// A node of a tree of version 2, as the node above describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tree2Node {
    pub addr: u64,
    node: tree2::Node,
    /// The records before and behind its own, in the nodes above.
    low: Option<Coords>,
    high: Option<Coords>,
}

impl Tree2 {
    /// Parses the header of a tree.
    pub(super) fn parse(bytes: &[u8], sizes: &Sizes, form: &Form, rank: usize) -> Parsed<Self> {
        let at = &mut Cursor::new(bytes, sizes);
        let kind = if form.filtered { 11 } else { 10 };
        let mut parsed = || {
            at.signature(b"BTHD")?;
            let (version, class) = (at.number(1)?, at.number(1)?);
            (version == 0 && class == u64::from(kind)).then_some(())?;
            tree2::root(at)
        };
        let (addr, root) = parsed().ok_or(NodeFault::Unknown)?;
        at.length().ok_or_else(cut)?;
        check_sum(bytes, at.done())?;
        let record = form.each(sizes) + 8 * rank;
        if usize::from(root.record) != record || root.depth > u16::from(MOST_LEVELS) {
            return Err(NodeFault::Unknown);
        }
        Ok(Self { root, addr, kind })
    }

    /// Returns the root; `None` of an empty tree.
    pub(super) fn root(&self) -> Option<Tree2Node> {
        (self.addr != NOWHERE).then_some(Tree2Node {
            addr: self.addr,
            node: self.root,
            low: None,
            high: None,
        })
    }

    pub(super) fn node_size(&self) -> u64 {
        self.root.size()
    }
}

impl Tree2Node {
    pub(super) fn step(
        &self,
        bytes: &[u8],
        index: &Index,
        wanted: Vec<u64>,
        known: &mut Known,
    ) -> Parsed<Below> {
        let super::Kind::Tree2(tree) = &index.kind else {
            return Err(NodeFault::Unknown);
        };
        let places = &index.places;
        let at = &mut Cursor::new(bytes, &index.sizes);
        let inner = self.node.depth > 0;
        let signature = if inner { b"BTIN" } else { b"BTLF" };
        let head = |at: &mut Cursor<'_>| {
            at.signature(signature)?;
            Some((at.number(1)?, at.number(1)?))
        };
        if head(at) != Some((0, tree.kind.into())) {
            return damaged("not a node of a B-tree of chunks");
        }
        let mut chunks = Vec::new();
        for _ in 0..self.node.records {
            let entry = index.form.entry(at).ok_or_else(cut)?;
            let Some(entry) = entry else {
                return damaged("a record without a chunk");
            };
            let mut coords = Coords::new();
            for _ in 0..places.rank() {
                coords.push(at.number(8).ok_or_else(cut)?);
            }
            chunks.push((coords, entry));
        }
        let mut nodes = Vec::new();
        if inner {
            let next = self.node.pointers(at).ok_or_else(cut)?;
            nodes.extend(next);
        }
        check_sum(bytes, at.done())?;
        let ends = [self.low.as_ref(), self.high.as_ref()];
        let all = ends[0]
            .into_iter()
            .chain(chunks.iter().map(|(c, _)| c))
            .chain(ends[1]);
        if !all.is_sorted_by(|a, b| a < b) {
            return damaged("the records of a node are out of order");
        }
        let mut below = Below::new();
        for place in wanted {
            let target = places.coords(place);
            let k = chunks.partition_point(|(coords, _)| *coords < target);
            if let Some((coords, entry)) = chunks.get(k)
                && *coords == target
            {
                known.insert(place, Some(*entry));
                continue;
            }
            if !inner {
                known.entry(place).or_insert(None);
                continue;
            }
            let Some(&(addr, node)) = nodes.get(k) else {
                return Err(cut());
            };
            if addr == NOWHERE {
                return damaged("a node without an address");
            }
            let around = |k: usize| chunks.get(k).map(|(coords, _)| coords.clone());
            let node = Node::Tree2(Self {
                addr,
                node,
                low: k
                    .checked_sub(1)
                    .and_then(around)
                    .or_else(|| self.low.clone()),
                high: around(k).or_else(|| self.high.clone()),
            });
            match below.last_mut() {
                Some((last, places)) if *last == node => places.push(place),
                _ => below.push((node, vec![place])),
            }
        }
        if !inner {
            leaf(index, &chunks, known);
        }
        Ok(below)
    }
}
