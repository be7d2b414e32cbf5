//! Packs: one file with the ranges of a store that are read when the store is opened and listed.
//!
//! Numbers are little-endian. Hashes are XXH3 of 64 bits.
//!
//! ```text
//!      0   8  "npyfspak"
//!      8   4  1, the version of the format
//!     12   4  bytes of the entity tag, T; 0 if the pack was made from a copy, without a server
//!     16   8  bytes of the store
//!     24   8  hash of its first 8 KiB, or of all of it if it is smaller
//!     32   8  hash of its last 8 KiB
//!     40   8  number of ranges, N
//!     48   T  entity tag
//!   48+T 24N  for each range: where it begins in the store, its bytes, their hash; in order, none over another
//!           8  hash of everything before
//!           -  the bytes of the ranges, one after another
//! ```

use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

/// The suffix of a pack's name after that of its store.
pub const PACK_SUFFIX: &str = ".npyfs-pack";

/// Bytes of the largest pack.
pub(super) const LARGEST: u64 = 64 << 20;

/// Bytes at each end of a store that identify it.
pub(super) const END: u64 = 8 << 10;

const MAGIC: &[u8; 8] = b"npyfspak";
const VERSION: u32 = 1;

/// Bytes of the longest entity tag.
const LONGEST_TAG: usize = 1024;

/// Returns the ranges at both ends of a store that identify it.
pub(super) fn ends(size: u64) -> [Range<u64>; 2] {
    [0..size.min(END), size.saturating_sub(END)..size]
}

/// Returns the hash of some bytes.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// The store that a pack belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Subject {
    /// Bytes.
    pub(super) size: u64,
    /// The entity tag; empty if unknown.
    pub(super) tag: String,
    /// The hashes of its ends.
    pub(super) ends: [u64; 2],
}

/// The offset of each range in the store, and the position of its bytes in the pack.
type Ranges = Vec<(u64, Range<usize>)>;

/// A pack that was checked.
#[derive(Debug)]
pub(super) struct Pack {
    /// The store that it belongs to.
    pub(super) of: Subject,
    bytes: Vec<u8>,
    ranges: Ranges,
}

/// A place in the bytes of a pack.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(len)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        let bytes = self.take(8)?.try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    fn small(&mut self) -> Option<u32> {
        let bytes = self.take(4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes))
    }
}

/// Encodes ranges, which are in order, as a pack.
pub(super) fn encode(of: &Subject, ranges: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let tag = match of.tag.len() {
        0..=LONGEST_TAG => of.tag.as_bytes(),
        _ => b"",
    };
    let mut pack = MAGIC.to_vec();
    pack.extend(VERSION.to_le_bytes());
    pack.extend((tag.len() as u32).to_le_bytes());
    for number in [of.size, of.ends[0], of.ends[1], ranges.len() as u64] {
        pack.extend(number.to_le_bytes());
    }
    pack.extend(tag);
    for (start, bytes) in ranges {
        for number in [*start, bytes.len() as u64, hash(bytes)] {
            pack.extend(number.to_le_bytes());
        }
    }
    pack.extend(hash(&pack).to_le_bytes());
    ranges.iter().for_each(|(_, bytes)| pack.extend(bytes));
    pack
}

impl Pack {
    /// Parses a pack and checks its hashes.
    ///
    /// # Errors
    ///
    /// The reason why the pack is not used.
    pub(super) fn parse(bytes: Vec<u8>) -> Result<Self, &'static str> {
        const DAMAGED: &str = "it is damaged";
        let mut at = Cursor {
            bytes: &bytes,
            at: 0,
        };
        if at.take(8) != Some(MAGIC) {
            return Err("it is no pack");
        }
        if at.small() != Some(VERSION) {
            return Err("it is of a version of the format that is not known");
        }
        let (of, ranges) = read(&mut at).ok_or(DAMAGED)?;
        Ok(Self { of, bytes, ranges })
    }

    /// Returns the ranges: the offset of each in the store, and its bytes.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let ranges = self.ranges.iter();
        ranges.filter_map(|(start, at)| Some((*start, self.bytes.get(at.clone())?)))
    }
}

/// Parses the fields after the version.
fn read(at: &mut Cursor<'_>) -> Option<(Subject, Ranges)> {
    let tag_len = usize::try_from(at.small()?).ok()?;
    let (size, first, last, count) = (at.number()?, at.number()?, at.number()?, at.number()?);
    if tag_len > LONGEST_TAG {
        return None;
    }
    let tag = String::from_utf8(at.take(tag_len)?.to_vec()).ok()?;
    let count = usize::try_from(count).ok()?;
    let mut table = Cursor {
        bytes: at.take(count.checked_mul(24)?)?,
        at: 0,
    };
    let described = at.bytes.get(..at.at)?;
    if at.number()? != hash(described) {
        return None;
    }
    let mut ranges = Vec::new();
    let mut behind = 0;
    while let Some(start) = table.number() {
        let (len, sum) = (table.number()?, table.number()?);
        let end = start.checked_add(len)?;
        if start < behind || end > size {
            return None;
        }
        behind = end;
        let from = at.at;
        let bytes = at.take(usize::try_from(len).ok()?)?;
        if hash(bytes) != sum {
            return None;
        }
        ranges.push((start, from..at.at));
    }
    let of = Subject {
        size,
        tag,
        ends: [first, last],
    };
    (at.at == at.bytes.len()).then_some((of, ranges))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject() -> Subject {
        Subject {
            size: 100_000,
            tag: "\"tag\"".into(),
            ends: [1, 2],
        }
    }

    fn ranges() -> Vec<(u64, Vec<u8>)> {
        vec![
            (0, vec![1; 8192]),
            (16384, (0..100).collect()),
            (99_000, vec![7; 1000]),
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        let pack = Pack::parse(encode(&subject(), &ranges())).unwrap();
        assert_eq!(pack.of, subject());
        let read: Vec<_> = pack
            .ranges()
            .map(|(at, bytes)| (at, bytes.to_vec()))
            .collect();
        assert_eq!(read, ranges());
        assert!(
            Pack::parse(encode(&subject(), &[]))
                .unwrap()
                .ranges()
                .next()
                .is_none()
        );
    }

    #[test]
    fn what_is_damaged_anywhere_is_refused() {
        let good = encode(&subject(), &ranges());
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            assert!(Pack::parse(bad).is_err(), "{at}");
        }
        for len in 0..good.len() {
            assert!(Pack::parse(good[..len].to_vec()).is_err(), "{len}");
        }
        let mut long = good;
        long.push(0);
        assert!(Pack::parse(long).is_err());
    }

    #[test]
    fn ranges_that_cannot_be_are_refused() {
        for bad in [
            vec![(99_999, vec![1, 2])],
            vec![(u64::MAX, vec![1])],
            vec![(10, vec![1; 10]), (19, vec![1])],
            vec![(10, vec![1]), (5, vec![1])],
        ] {
            assert!(Pack::parse(encode(&subject(), &bad)).is_err(), "{bad:?}");
        }
    }
}
