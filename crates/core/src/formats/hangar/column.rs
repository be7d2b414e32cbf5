//! The samples of a column at one commit: keys in order and digests, packed for columns of millions of samples.
//!
//! All commits with the same samples in a column share one instance.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_128;

use super::digest::{self, Hash};
use super::key;
use npyfs_hdf5::PackedValues;
use npyfs_io::file::Identity;
use npyfs_io::provenance::Provenance;

/// The two ways in which keys lead to samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Samples by key.
    Flat,
    /// Samples that are themselves sets of samples by key.
    Nested,
}

/// The samples of a column.
pub struct Column {
    /// The layout by which keys lead to samples.
    pub layout: Layout,
    /// The digest of the schema.
    pub schema: String,
    /// Stored keys, concatenated; in a nested column `<sample>:<subsample>`.
    keys: Vec<u8>,
    /// The offset at which each key ends.
    ends: Vec<u32>,
    hashes: Vec<Hash>,
    /// The letter in front of the hashes; 0 if there are none.
    pub kind: u8,
    /// In a nested column, the place of the first subsample of each sample.
    groups: Vec<u32>,
    /// Rows that are not shown, with the reason.
    pub left_out: Vec<(Vec<u8>, String)>,
    /// The hash of all fields above.
    pub content: u128,
    /// Records of the samples in batches, looked up on demand.
    pub located: Vec<Mutex<Option<Arc<LocatedRecords>>>>,
    /// One flag for each batch of samples, set once its records were looked up and the datasets that they name were
    /// mapped.
    pub prepared: Vec<Mutex<bool>>,
    /// Held while the records of many batches are looked up, since other readers will want the same batches.
    pub around: Mutex<()>,
    /// The lengths of text and bytes samples, in batches.
    pub lengths: Vec<Mutex<Option<Arc<KnownLengths>>>>,
    /// Each open file with the whole column holds a reference to this.
    pub readers: Arc<()>,
    /// The provenance of the samples, in order.
    provenance: OnceLock<String>,
}

/// The number of samples whose records are looked up together.
pub const BATCH: usize = 1024;

impl Column {
    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the stored key of a sample.
    pub fn key(&self, at: usize) -> &[u8] {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.keys[start as usize..self.ends[at] as usize]
    }

    /// Returns the digest of a sample.
    pub fn hash(&self, at: usize) -> &Hash {
        &self.hashes[at]
    }

    /// Returns a hash of the digests of all samples, in order.
    pub fn provenance(&self) -> &str {
        self.provenance.get_or_init(|| {
            let mut provenance = Provenance::new();
            provenance.add("kind", &[self.kind]);
            provenance.add("samples", self.hashes.as_flattened());
            provenance.key()
        })
    }

    /// Returns the digests of some samples.
    pub fn hashes(&self, places: Range<usize>) -> &[Hash] {
        &self.hashes[places]
    }

    /// Returns the digest of a sample as Hangar writes it.
    pub fn digest(&self, at: usize) -> String {
        digest::print(self.kind, self.hash(at))
    }

    /// Returns the samples of a batch.
    pub fn batch(&self, number: usize) -> Range<usize> {
        number * BATCH..((number + 1) * BATCH).min(self.len())
    }

    /// Returns the place of a stored key.
    pub fn find(&self, stored: &[u8]) -> Option<usize> {
        let order = |at: usize| compare(self.layout, self.key(at), stored);
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            match order(middle) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Some(middle),
            }
        }
        None
    }

    /// Returns the number of samples of a nested column.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Returns the subsamples of a sample.
    pub fn group(&self, number: usize) -> Range<usize> {
        let end = self.groups.get(number + 1).copied();
        self.groups[number] as usize..end.map_or(self.len(), |end| end as usize)
    }

    /// Returns the stored key of a sample of a nested column.
    pub fn group_key(&self, number: usize) -> &[u8] {
        parts(self.key(self.groups[number] as usize)).0
    }

    /// Returns the number of a sample of a nested column.
    pub fn find_group(&self, stored: &[u8]) -> Option<usize> {
        let at = self.groups.partition_point(|&first| {
            key::compare(parts(self.key(first as usize)).0, stored).is_lt()
        });
        (at < self.groups() && self.group_key(at) == stored).then_some(at)
    }

    /// Returns, for each sample of `other` in order, the place in `self` of the sample with the same key and content.
    pub fn same_in<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = Option<usize>> + 'a {
        let mut at = 0;
        let alike = self.layout == other.layout && self.kind == other.kind;
        (0..other.len()).map(move |i| {
            if !alike {
                return None;
            }
            let wanted = other.key(i);
            while at < self.len() && compare(self.layout, self.key(at), wanted).is_lt() {
                at += 1;
            }
            let same =
                at < self.len() && self.key(at) == wanted && self.hashes[at] == other.hashes[i];
            same.then_some(at)
        })
    }
}

/// Returns the keys of a sample and its subsample.
pub fn parts(stored: &[u8]) -> (&[u8], &[u8]) {
    match stored.iter().position(|&b| b == b':') {
        Some(at) => (&stored[..at], &stored[at + 1..]),
        None => (stored, b""),
    }
}

fn compare(layout: Layout, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    match layout {
        Layout::Flat => key::compare(a, b),
        Layout::Nested => {
            let ((a, a_sub), (b, b_sub)) = (parts(a), parts(b));
            key::compare(a, b).then_with(|| key::compare(a_sub, b_sub))
        }
    }
}

/// The records of a batch of samples, concatenated; a missing record is empty.
pub struct LocatedRecords {
    text: Box<[u8]>,
    ends: Box<[u32]>,
    /// No record is missing, and every sample was fetched.
    pub complete: bool,
    /// The version of `hash.lmdb` that the records were read from, or an earlier one.
    pub version: Identity,
}

impl LocatedRecords {
    /// Takes the records at `places` out of those that were looked up.
    pub fn new(packed: &PackedValues, places: Range<usize>, version: Identity) -> Self {
        let start = places.start.checked_sub(1).map_or(0, |n| packed.ends[n]);
        let ends: Box<[u32]> = packed.ends[places].iter().map(|end| end - start).collect();
        let len = ends.last().copied().unwrap_or(0);
        let text = &packed.text[start as usize..][..len as usize];
        let mut records = Self {
            text: text.into(),
            ends,
            complete: false,
            version,
        };
        records.complete = (0..records.ends.len()).all(|at| {
            let record = records.get(at);
            !record.is_empty() && !record.starts_with(b"50:")
        });
        records
    }

    /// Returns the record of a sample by its place in the batch.
    pub fn get(&self, at: usize) -> &[u8] {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start as usize..self.ends[at] as usize]
    }
}

/// The lengths of a batch of text or bytes samples.
pub struct KnownLengths {
    /// `None` for lengths that cannot be known yet.
    pub lengths: Vec<Option<u64>>,
    /// The version of `hash.lmdb` that their records were read from, or an earlier one.
    pub version: Identity,
}

/// Collects the rows of a column in any order.
pub struct Builder {
    layout: Layout,
    keys: Vec<u8>,
    ends: Vec<u32>,
    hashes: Vec<Hash>,
    kind: u8,
    left_out: Vec<(Vec<u8>, String)>,
}

impl Builder {
    /// Begins a column without samples.
    pub fn new(layout: Layout) -> Self {
        Self {
            layout,
            keys: Vec::new(),
            ends: Vec::new(),
            hashes: Vec::new(),
            kind: 0,
            left_out: Vec::new(),
        }
    }

    /// Adds a row: a stored key and a digest.
    pub fn add(&mut self, stored: &[u8], digest: &[u8]) {
        let mut leave_out = |why: &str| self.left_out.push((stored.to_vec(), why.to_owned()));
        let (sample, sub) = parts(stored);
        let readable = match self.layout {
            Layout::Flat => key::is_readable(stored) && !stored.contains(&b':'),
            Layout::Nested => {
                key::is_readable(sample) && key::is_readable(sub) && !sub.contains(&b':')
            }
        };
        if !readable {
            return leave_out("a key that Hangar itself cannot read");
        }
        let Some((kind, hash)) = digest::parse(digest) else {
            return leave_out("not the digest of a sample");
        };
        if self.kind != 0 && kind != self.kind {
            return leave_out("a digest of another kind than the others have");
        }
        // Rows come from a text of at most 1 GiB.
        let Ok(end) = u32::try_from(self.keys.len() + stored.len()) else {
            return leave_out("too many samples");
        };
        self.kind = kind;
        self.keys.extend_from_slice(stored);
        self.ends.push(end);
        self.hashes.push(hash);
    }

    fn key(&self, at: usize) -> &[u8] {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.keys[start as usize..self.ends[at] as usize]
    }

    /// Returns the column, with its samples in order of key.
    pub fn finish(self, schema: String) -> Column {
        let layout = self.layout;
        let len = self.ends.len();
        let sorted = (1..len).all(|i| compare(layout, self.key(i - 1), self.key(i)).is_lt());
        let (keys, ends, hashes) = if sorted {
            (self.keys, self.ends, self.hashes)
        } else {
            self.reorder()
        };
        let mut column = Column {
            layout,
            schema,
            located: batches(ends.len()),
            prepared: batches(ends.len()),
            around: Mutex::default(),
            lengths: batches(ends.len()),
            readers: Arc::default(),
            provenance: OnceLock::new(),
            keys,
            ends,
            hashes,
            kind: self.kind,
            groups: Vec::new(),
            left_out: self.left_out,
            content: 0,
        };
        if layout == Layout::Nested {
            let mut groups: Vec<u32> = Vec::new();
            for at in 0..column.len() {
                let new = at == 0 || parts(column.key(at)).0 != parts(column.key(at - 1)).0;
                if new {
                    groups.push(u32::try_from(at).unwrap_or(u32::MAX));
                }
            }
            column.groups = groups;
        }
        column.content = content(&column);
        column
    }

    fn reorder(&self) -> (Vec<u8>, Vec<u32>, Vec<Hash>) {
        let layout = self.layout;
        // Numbers of up to 19 digits, the common case, are compared by value.
        let value = |at: usize| {
            let digits = key::digits(self.key(at)).filter(|_| layout == Layout::Flat);
            let text = digits.and_then(|digits| std::str::from_utf8(digits).ok());
            text.and_then(|text| text.parse().ok()).unwrap_or(u64::MAX)
        };
        let mut order: Vec<(u64, u32)> = (0..self.ends.len())
            .map(|at| (value(at), u32::try_from(at).unwrap_or(u32::MAX)))
            .collect();
        let key = |at: u32| self.key(at as usize);
        order.sort_unstable_by(|a, b| match (a.0, b.0) {
            (u64::MAX, _) | (_, u64::MAX) => compare(layout, key(a.1), key(b.1)),
            (a, b) => a.cmp(&b),
        });
        // Duplicate keys: liblmdb does not write them, but a hostile blob may contain them.
        order.dedup_by(|later, first| key(later.1) == key(first.1));
        let mut keys = Vec::with_capacity(self.keys.len());
        let mut ends = Vec::with_capacity(order.len());
        let mut hashes = Vec::with_capacity(order.len());
        for (_, at) in order {
            keys.extend_from_slice(key(at));
            ends.push(u32::try_from(keys.len()).unwrap_or(u32::MAX));
            hashes.push(self.hashes[at as usize]);
        }
        (keys, ends, hashes)
    }
}

fn batches<T: Default>(len: usize) -> Vec<T> {
    (0..len.div_ceil(BATCH)).map(|_| T::default()).collect()
}

fn content(column: &Column) -> u128 {
    let ends: Vec<u8> = column.ends.iter().flat_map(|n| n.to_le_bytes()).collect();
    let mut hashes = Vec::with_capacity(64);
    for part in [
        &column.keys[..],
        &ends,
        column.hashes.as_flattened(),
        column.schema.as_bytes(),
        &[column.kind, u8::from(column.layout == Layout::Nested)],
    ] {
        hashes.extend_from_slice(&xxh3_128(part).to_le_bytes());
    }
    for (key, why) in &column.left_out {
        hashes.extend_from_slice(&xxh3_128(key).to_le_bytes());
        hashes.extend_from_slice(&xxh3_128(why.as_bytes()).to_le_bytes());
    }
    xxh3_128(&hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(layout: Layout, keys: &[&str]) -> Column {
        let mut builder = Builder::new(layout);
        for (i, key) in keys.iter().enumerate() {
            builder.add(key.as_bytes(), format!("0={i:040x}").as_bytes());
        }
        builder.finish("1=0".into())
    }

    fn keys(column: &Column) -> Vec<&str> {
        (0..column.len())
            .map(|i| std::str::from_utf8(column.key(i)).unwrap())
            .collect()
    }

    #[test]
    fn samples_stand_in_order_and_are_found() {
        let c = column(
            Layout::Flat,
            &["#10", "#2", "#True", "5", "a", "#99999999999999999999999"],
        );
        assert_eq!(
            keys(&c),
            ["#2", "#10", "#99999999999999999999999", "5", "a"]
        );
        assert_eq!(c.left_out.len(), 1);
        for i in 0..c.len() {
            assert_eq!(c.find(c.key(i)), Some(i));
        }
        assert_eq!(c.find(b"#5"), None);
        assert_eq!(c.digest(0), format!("0={:040x}", 1));
    }

    #[test]
    fn nested_samples_are_grouped() {
        let c = column(
            Layout::Nested,
            &["#10:a", "#2:#1", "#2:#0", "k:x", "k:", "k:x:y"],
        );
        assert_eq!(keys(&c), ["#2:#0", "#2:#1", "#10:a", "k:x"]);
        assert_eq!(c.groups(), 3);
        assert_eq!((c.group(0), c.group(2)), (0..2, 3..4));
        assert_eq!((c.find_group(b"#10"), c.find_group(b"#3")), (Some(1), None));
        assert_eq!(c.find(b"#10:a"), Some(2));
    }

    #[test]
    fn what_is_the_same_is_found_in_another_commit() {
        let old = column(Layout::Flat, &["#0", "#1", "#2", "x"]);
        let mut builder = Builder::new(Layout::Flat);
        for (key, hash) in [("#0", 0), ("#2", 7), ("#3", 1), ("x", 3)] {
            builder.add(key.as_bytes(), format!("0={hash:040x}").as_bytes());
        }
        let new = builder.finish("1=0".into());
        let same: Vec<_> = old.same_in(&new).collect();
        assert_eq!(same, [Some(0), None, None, Some(3)]);
        assert_ne!(old.content, new.content);
    }
}
