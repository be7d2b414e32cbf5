//! The pack of an object: made from what was looked at, or found beside it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::super::blocks::{BLOCK, bytes_of, requests};
use super::super::error::RemoteError;
use super::super::origin::{Origin, Version};
use super::super::pack::{self, END, LARGEST, PACK_SUFFIX, Pack, Subject};
use super::RemoteObject;

/// Bytes that are asked for first; most packs are smaller.
const FIRST: u64 = 1 << 20;

/// The time that a pack may take. It is only there to save time.
const PATIENCE: Duration = Duration::from_secs(5);

/// A pack that lies beside an object, and when it was put there; or why it is not used.
pub(super) type Found = Result<(Vec<u8>, SystemTime), String>;

/// Asks for the pack beside an object; `None` if there is none.
pub(super) async fn beside(origin: &Origin) -> Option<Found> {
    let origin = origin.beside(PACK_SUFFIX)?;
    let asked = tokio::time::timeout(PATIENCE, ask(&origin)).await;
    asked.unwrap_or_else(|_| Some(Err("it did not arrive in time".into())))
}

async fn ask(origin: &Origin) -> Option<Found> {
    // That there is none is what is to be expected; so is a server that refuses names that it does not know.
    let got = origin.get(0..FIRST, None).await.ok()?;
    let Version { size, modified, .. } = got.version;
    if size > LARGEST {
        return Some(Err(format!("it is larger than {} MiB", LARGEST >> 20)));
    }
    let mut bytes = got.bytes;
    let have = bytes.len() as u64;
    if got.start == 0 && have < size {
        match origin.get(have..size, Some(&got.version)).await {
            Ok(more) if more.start == have => bytes.extend(more.bytes),
            Ok(_) => {}
            Err(e) => return Some(Err(e.message)),
        }
    }
    Some(match bytes.len() as u64 == size {
        true => Ok((bytes, modified)),
        false => Err("it did not arrive whole".into()),
    })
}

impl RemoteObject {
    /// Keeps what the pack beside this object holds, if it is of this version.
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
            // In parts, of which each is kept or not.
            const PART: usize = 1 << 20;
            for (at, part) in (start..).step_by(PART).zip(bytes.chunks(PART)) {
                if !self.kept.absent(self.kept.whole(at, part)).is_empty() {
                    self.kept.add(at, part, true);
                }
            }
        }
    }

    /// Checks that a pack, which was put where it is at a time, is of this version.
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
        // Stores are changed in place, too.
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

    /// Makes a pack of the metadata that were asked for so far.
    ///
    /// # Errors
    ///
    /// They cannot be read.
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
