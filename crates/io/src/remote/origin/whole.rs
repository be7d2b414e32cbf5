//! A whole document, which a server without ranges sends for every request.
//!
//! One request at a time fetches the document, for all waiting threads. All documents of the process share a limit on
//! memory. If a server sends something other than the document, the response is refused, and the server is not asked
//! again for a while.

use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use reqwest::Response;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::super::error::{Cause, RemoteError};
use super::bucket::changed;
use super::failure::{broken, error};
use super::patience::Refusal;
use super::{Got, Version};

/// The most bytes of a whole document, and of all documents held at the same time.
const LARGEST: u64 = 256 << 20;

/// Bytes of the largest pack.
pub(in crate::remote) const LARGEST_PACK: u64 = 64 << 20;

/// The unit in which the memory is allotted, in bytes.
const UNIT: u64 = 1 << 10;

/// The memory of documents and the memory of packs. A document may be held until its pack has arrived, so the two must
/// not wait for each other.
static DOCUMENTS: Semaphore = Semaphore::const_new((LARGEST / UNIT) as usize);
static PACKS: Semaphore = Semaphore::const_new((LARGEST_PACK / UNIT) as usize);

/// Memory that a whole document takes; released on drop.
pub(in crate::remote) type Room = SemaphorePermit<'static>;

/// The state of a document that is fetched whole.
pub(super) struct Whole {
    /// The most bytes it may have.
    largest: u64,
    memory: &'static Semaphore,
    /// The document, while a request still holds it. Locked by the request that fetches it.
    last: tokio::sync::Mutex<Weak<Got>>,
    /// The reason why it is refused, and until when.
    refused: Mutex<Option<(RemoteError, Instant)>>,
}

impl Whole {
    /// A document.
    pub(super) fn of_document() -> Self {
        Self::new(LARGEST, &DOCUMENTS)
    }

    /// A pack, which lies beside a document.
    pub(super) fn of_pack() -> Self {
        Self::new(LARGEST_PACK, &PACKS)
    }

    fn new(largest: u64, memory: &'static Semaphore) -> Self {
        Self {
            largest,
            memory,
            last: tokio::sync::Mutex::default(),
            refused: Mutex::default(),
        }
    }

    fn refused(&self) -> MutexGuard<'_, Option<(RemoteError, Instant)>> {
        self.refused.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Fails if the server recently sent something other than the document.
    pub(super) fn check(&self) -> Result<(), RemoteError> {
        match &*self.refused() {
            Some((why, until)) if Instant::now() < *until => Err(why.clone()),
            _ => Ok(()),
        }
    }

    /// Takes the document from a response, or from another request that is fetching it. The response gives a version
    /// without a size. A response that is refused is remembered for `pause`.
    pub(super) async fn take(
        &self,
        answer: Response,
        version: Version,
        of: Option<&Version>,
        pause: Duration,
    ) -> Result<Arc<Got>, Refusal> {
        let Ok(mut last) = self.last.try_lock() else {
            drop(answer);
            let last = self.last.lock().await;
            self.check()?;
            let of = of.ok_or_else(again)?;
            let got = last.upgrade().filter(|got| of.is(&got.version));
            return got.ok_or_else(again);
        };
        if let (Some(got), Some(of)) = (last.upgrade(), of)
            && of.is(&got.version)
        {
            return Ok(got);
        }
        // Another request may have refused it while the response was on its way.
        self.check()?;
        match self.receive(answer, version, of).await {
            Ok(got) => {
                let got = Arc::new(got);
                *last = Arc::downgrade(&got);
                Ok(got)
            }
            Err(Failure::Passing(refusal)) => Err(refusal),
            Err(Failure::Refused(why)) => {
                *self.refused() = Some((why.clone(), Instant::now() + pause));
                Err(why.into())
            }
        }
    }

    async fn receive(
        &self,
        mut answer: Response,
        mut version: Version,
        of: Option<&Version>,
    ) -> Result<Got, Failure> {
        let told = answer.content_length();
        let most = told.or(of.map(|of| of.size)).unwrap_or(self.largest);
        if most > self.largest {
            return Err(self.too_large());
        }
        // Checked before anything of another version is read.
        version.size = most;
        if of.is_some_and(|of| !of.is(&version)) {
            return Err(Failure::Passing(changed().into()));
        }
        let units = u32::try_from(most.div_ceil(UNIT)).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let room = self.memory.acquire_many(units).await.ok();
        let mut bytes = Vec::new();
        let passing = |why| Failure::Passing(Refusal::again(error(Cause::Failed, why)));
        while let Some(more) = answer.chunk().await.map_err(|e| broken(&e))? {
            let len = (bytes.len() as u64).saturating_add(more.len() as u64);
            if len > most {
                return Err(match of {
                    None => self.too_large(),
                    Some(_) => {
                        let why = format!(
                            "the server has no ranges any more, and sends more than the {most} bytes that there are"
                        );
                        Failure::Refused(error(Cause::Failed, why))
                    }
                });
            }
            let room = bytes.try_reserve(more.len());
            room.map_err(|_| passing("there is no memory for all of it".to_owned()))?;
            bytes.extend_from_slice(&more);
        }
        let size = bytes.len() as u64;
        if let Some(told) = told.filter(|&told| told != size) {
            return Err(passing(format!("{size} bytes arrived of {told}")));
        }
        version.size = size;
        if of.is_some_and(|of| !of.is(&version)) {
            return Err(Failure::Passing(changed().into()));
        }
        Ok(Got {
            version,
            start: 0,
            bytes,
            room,
        })
    }

    fn too_large(&self) -> Failure {
        let why = format!(
            "the server has no ranges, and what is larger than {} MiB is not fetched as a whole",
            self.largest >> 20
        );
        Failure::Refused(error(Cause::Unsupported, why))
    }
}

/// The reason why a document was not taken.
enum Failure {
    /// Another request may succeed.
    Passing(Refusal),
    /// The server sends something else.
    Refused(RemoteError),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Passing(refusal)
    }
}

/// Returns the failure of a request that waited for one that failed.
fn again() -> Refusal {
    let why = "the server has no ranges, and did not send all of it";
    Refusal::again(error(Cause::Failed, why))
}
