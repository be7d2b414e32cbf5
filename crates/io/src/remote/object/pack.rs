//! The pack of an object: one file with the ranges of a store that are read when the store is opened and listed. A pack
//! is built from the metadata that was read, and found beside the object. It only saves time.
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
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use xxhash_rust::xxh3::xxh3_64;

use super::super::disk::{BLOCK, bytes_of};
use super::super::error::RemoteError;
use super::super::origin::{LARGEST_PACK, Origin, Version};
use super::RemoteObject;
use super::fetching::requests;

/// The suffix of a pack's name after that of its store.
pub const PACK_SUFFIX: &str = ".npyfs-pack";

/// Bytes at each end of a store that identify it.
const END: u64 = 8 << 10;

const MAGIC: &[u8; 8] = b"npyfspak";
const FORMAT: u32 = 1;

/// Bytes of the longest entity tag.
const LONGEST_TAG: usize = 1024;

/// Bytes of the first request for a pack; most packs are smaller.
const FIRST: u64 = 1 << 20;

/// Bytes of each of the other requests, which are sent together: one connection is slower than the network.
const PART: usize = 4 << 20;

/// The time limit for a pack.
const PATIENCE: Duration = Duration::from_secs(5);

/// The store that a pack belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Subject {
    /// Bytes.
    size: u64,
    /// The entity tag; empty if unknown.
    tag: String,
    /// The hashes of its ends.
    ends: [u64; 2],
}

/// The offset of each range in the store, and the position of its bytes in the pack.
type Ranges = Vec<(u64, Range<usize>)>;

/// A pack that was checked.
#[derive(Debug)]
struct Pack {
    /// The store that it belongs to.
    of: Subject,
    bytes: Vec<u8>,
    ranges: Ranges,
}

/// A pack beside an object and the time it was put there, or the reason why it is not used.
pub(super) type Found = Result<(Vec<u8>, SystemTime), String>;

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
fn encode(of: &Subject, ranges: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let tag = match of.tag.len() {
        0..=LONGEST_TAG => of.tag.as_bytes(),
        _ => b"",
    };
    let mut pack = MAGIC.to_vec();
    pack.extend(FORMAT.to_le_bytes());
    pack.extend((tag.len() as u32).to_le_bytes());
    for number in [of.size, of.ends[0], of.ends[1], ranges.len() as u64] {
        pack.extend(number.to_le_bytes());
    }
    pack.extend(tag);
    for (start, bytes) in ranges {
        for number in [*start, bytes.len() as u64, xxh3_64(bytes)] {
            pack.extend(number.to_le_bytes());
        }
    }
    pack.extend(xxh3_64(&pack).to_le_bytes());
    ranges.iter().for_each(|(_, bytes)| pack.extend(bytes));
    pack
}

impl Pack {
    /// Parses a pack and checks its hashes.
    ///
    /// # Errors
    ///
    /// The reason why the pack is not used.
    fn parse(bytes: Vec<u8>) -> Result<Self, &'static str> {
        const DAMAGED: &str = "it is damaged";
        let mut at = Cursor {
            bytes: &bytes,
            at: 0,
        };
        if at.take(8) != Some(MAGIC) {
            return Err("it is no pack");
        }
        if at.small() != Some(FORMAT) {
            return Err("it is of a version of the format that is not known");
        }
        let (of, ranges) = read(&mut at).ok_or(DAMAGED)?;
        Ok(Self { of, bytes, ranges })
    }

    /// Returns the ranges: the offset of each in the store, and its bytes.
    fn ranges(&self) -> impl Iterator<Item = (u64, &[u8])> {
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
    if at.number()? != xxh3_64(described) {
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
        if xxh3_64(bytes) != sum {
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

/// Returns the ranges at both ends of a store that identify it.
fn ends(size: u64) -> [Range<u64>; 2] {
    [0..size.min(END), size.saturating_sub(END)..size]
}

/// Fetches the pack beside an object; `None` if there is none.
pub(super) async fn beside(origin: &Origin) -> Option<Found> {
    let origin = origin.beside(PACK_SUFFIX)?;
    let asked = tokio::time::timeout(PATIENCE, fetch(&origin)).await;
    asked.unwrap_or_else(|_| Some(Err("it did not arrive in time".into())))
}

async fn fetch(origin: &Origin) -> Option<Found> {
    // Most objects have no pack, and some servers refuse names that they do not know.
    let got = origin.get(0..FIRST, None).await.ok()?;
    let Version { size, modified, .. } = got.version;
    if size > LARGEST_PACK {
        return Some(Err(format!("it is larger than {} MiB", LARGEST_PACK >> 20)));
    }
    let (start, version) = (got.start, got.version.clone());
    let mut bytes = Arc::try_unwrap(got).map_or_else(|got| got.bytes.clone(), |got| got.bytes);
    let have = bytes.len() as u64;
    if start == 0 && have < size {
        let parts = (have..size).step_by(PART);
        let parts = parts.map(|at| origin.get(at..size.min(at + PART as u64), Some(&version)));
        for more in join_all(parts).await {
            match more {
                Ok(more) if more.start == bytes.len() as u64 => bytes.extend(&more.bytes),
                Ok(_) => {}
                Err(e) => return Some(Err(e.message)),
            }
        }
    }
    Some(match bytes.len() as u64 == size {
        true => Ok((bytes, modified)),
        false => Err("it did not arrive whole".into()),
    })
}

impl RemoteObject {
    /// Stores the ranges of the pack, if it belongs to this version.
    pub(super) fn unpack(self: &Arc<Self>, found: Found) {
        let used = found.and_then(|(bytes, put)| {
            let pack = Pack::parse(bytes)?;
            self.fits(&pack.of, put)?;
            Ok(pack)
        });
        let pack = match used {
            Ok(pack) => pack,
            Err(why) => {
                let name = format!("{}{PACK_SUFFIX}", self.address);
                return self.note(Some(format!("{name} is not used: {why}")));
            }
        };
        for (start, bytes) in pack.ranges() {
            // In parts, each of which is stored or not.
            const PART: usize = 1 << 20;
            for (at, part) in (start..).step_by(PART).zip(bytes.chunks(PART)) {
                if !self.kept.absent(self.kept.whole(at, part)).is_empty() {
                    self.kept.add(at, part, true);
                }
            }
        }
    }

    /// Checks that a pack that was put there at `put` belongs to this version.
    fn fits(self: &Arc<Self>, of: &Subject, put: SystemTime) -> Result<(), String> {
        let other = || Err("it is of another version".to_owned());
        if of.size != self.version.size {
            return other();
        }
        let tag = self.version.etag.as_deref().unwrap_or_default();
        if !of.tag.is_empty() && !tag.is_empty() {
            return match of.tag == tag {
                true => Ok(()),
                false => other(),
            };
        }
        // A store may be changed in place and keep its ends and its size.
        if put < self.version.modified {
            return Err("it is older than the store: put it there once more".to_owned());
        }
        match self.ends() {
            Ok(ends) if ends == of.ends => Ok(()),
            Ok(_) => other(),
            Err(e) => Err(e.message),
        }
    }

    fn ends(self: &Arc<Self>) -> Result<[u64; 2], RemoteError> {
        let mut hashes = [0; 2];
        for (hash, range) in hashes.iter_mut().zip(ends(self.version.size)) {
            let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(0)];
            self.read(&mut bytes, range.start)?;
            *hash = xxh3_64(&bytes);
        }
        Ok(hashes)
    }

    /// Builds a pack of the metadata that was read so far.
    ///
    /// # Errors
    ///
    /// The metadata cannot be read.
    pub fn pack(self: &Arc<Self>) -> Result<Vec<u8>, RemoteError> {
        let of = Subject {
            size: self.version.size,
            tag: self.version.etag.clone().unwrap_or_default(),
            ends: self.ends()?,
        };
        let most = (LARGEST_PACK - (1 << 20) - END) / (BLOCK + 24);
        let mut ranges = Vec::new();
        let blocks: Vec<_> = self.looked.all().take(most as usize).collect();
        for run in requests(blocks, 0, most) {
            let range = bytes_of(&run, self.version.size);
            let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(0)];
            self.read(&mut bytes, range.start)?;
            ranges.push((range.start, bytes));
        }
        Ok(encode(&of, &ranges))
    }
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
