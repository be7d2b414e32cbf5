//! The pack of an object: built from the metadata that was read, or found beside the object.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;

use super::super::blocks::{BLOCK, bytes_of, requests};
use super::super::error::RemoteError;
use super::super::origin::{Origin, Version};
use super::super::pack::{self, END, LARGEST, PACK_SUFFIX, Pack, Subject};
use super::RemoteObject;

/// Bytes of the first request; most packs are smaller.
const FIRST: u64 = 1 << 20;

/// Bytes of each of the others, which are sent together: one connection is slower than the network.
const PART: usize = 4 << 20;

/// The time limit for a pack. A pack only saves time.
const PATIENCE: Duration = Duration::from_secs(5);

/// A pack beside an object and the time it was put there, or the reason why it is not used.
pub(super) type Found = Result<(Vec<u8>, SystemTime), String>;

/// Fetches the pack beside an object; `None` if there is none.
pub(super) async fn beside(origin: &Origin) -> Option<Found> {
    let origin = origin.beside(PACK_SUFFIX)?;
    let asked = tokio::time::timeout(PATIENCE, ask(&origin)).await;
    asked.unwrap_or_else(|_| Some(Err("it did not arrive in time".into())))
}

async fn ask(origin: &Origin) -> Option<Found> {
    // Most objects have no pack, and some servers refuse names that they do not know.
    let got = origin.get(0..FIRST, None).await.ok()?;
    let Version { size, modified, .. } = got.version;
    if size > LARGEST {
        return Some(Err(format!("it is larger than {} MiB", LARGEST >> 20)));
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
        for (hash, range) in hashes.iter_mut().zip(pack::ends(self.version.size)) {
            let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(0)];
            self.read(&mut bytes, range.start)?;
            *hash = pack::hash(&bytes);
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
        let most = (LARGEST - (1 << 20) - END) / (BLOCK + 24);
        let mut ranges = Vec::new();
        let blocks: Vec<_> = self.looked.all().take(most as usize).collect();
        for run in requests(blocks, 0, most) {
            let range = bytes_of(&run, self.version.size);
            let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(0)];
            self.read(&mut bytes, range.start)?;
            ranges.push((range.start, bytes));
        }
        Ok(pack::encode(&of, &ranges))
    }
}
