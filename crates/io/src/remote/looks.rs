//! Looks at how objects of a listing begin.
//!
//! Opening an object would fetch and keep more of it than a listing needs, and would hold a file of the cache for each.
//! So a look is a small request of its own, and nothing of it is kept.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::error::RemoteError;
use super::freshness::PATIENCE;
use super::listing::Listing;
use super::origin::{Got, Origin, Version};
use super::runtime;
use crate::file::{SIGNATURE, signature_places};

/// Bytes of the first request, of which a prefix of many objects costs many. They reach behind the user blocks that are
/// in use: MATLAB's has 512 bytes.
const FIRST: u64 = 1 << 10;

/// The number of requests in flight at the same time.
const AT_ONCE: usize = 32;

/// How an object begins.
#[derive(Debug)]
pub struct Look {
    /// The version that was looked at.
    pub version: Version,
    /// The first bytes, at most 1 KiB.
    pub head: Vec<u8>,
    /// Whether it has the HDF5 signature.
    pub is_hdf5: bool,
}

impl Listing {
    /// Looks at objects, at many at a time. `None` for an object if a request failed, or had no response within a few
    /// seconds.
    pub fn look_at(&self, names: &[&str]) -> Vec<Option<Look>> {
        let settings = self.settings();
        let deadline = Instant::now() + PATIENCE.min(settings.timeout);
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        let looks = names.iter().map(|name| {
            let origin = Origin::new(&self.address().below(name, false), settings);
            let turns = turns.clone();
            async move {
                let looked = async { look(&origin?, &turns).await };
                timeout_at(deadline, looked).await.ok()?.ok()
            }
        });
        let looks: Vec<_> = looks.collect();
        let looked = runtime::wait(join_all(looks));
        looked.unwrap_or_else(|_| names.iter().map(|_| None).collect())
    }
}

/// Looks for the signature where [`signature_places`] says. Only an object without one in its first bytes costs more
/// than one request.
async fn look(origin: &Origin, turns: &Semaphore) -> Result<Look, RemoteError> {
    let get = async |range, of| {
        // The semaphore is never closed.
        let _turn = turns.acquire().await;
        origin.get(range, of).await
    };
    let got = get(0..FIRST, None).await?;
    let version = got.version.clone();
    let arrived = got.start.saturating_add(got.bytes.len() as u64);
    let places = signature_places(version.size);
    let (near, far): (Vec<u64>, Vec<u64>) = places.partition(|&at| at + 8 <= arrived);
    let mut is_hdf5 = near.into_iter().any(|at| is_at(&got, at));
    if !is_hdf5 {
        let parts = far.into_iter().map(async |at| {
            let part = get(at..at + 8, Some(&version)).await?;
            Ok::<_, RemoteError>(is_at(&part, at))
        });
        for found in join_all(parts).await {
            is_hdf5 |= found?;
        }
    }
    let head = got.bytes.iter().copied();
    Ok(Look {
        head: head.take(usize::try_from(FIRST).unwrap_or(0)).collect(),
        version,
        is_hdf5,
    })
}

/// Returns true if the HDF5 signature is at an offset of the object.
fn is_at(got: &Got, at: u64) -> bool {
    let from = at
        .checked_sub(got.start)
        .and_then(|at| usize::try_from(at).ok());
    let bytes = from.and_then(|from| got.bytes.get(from..));
    bytes.is_some_and(|bytes| bytes.starts_with(SIGNATURE))
}
