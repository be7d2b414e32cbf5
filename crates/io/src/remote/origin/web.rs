//! Web servers: ranges of one document, or all of it where the server does not support ranges.
//!
//! Headers other than the range, secrets above all, go only to the host that the address names, never to a host it
//! redirects to.
//!
//! A server without ranges sends the whole document for every request. One request at a time fetches it, for all
//! waiting threads. All documents of the process share a limit on memory. If a server sends something other than the
//! document, the response is refused, and the server is not asked again for a while.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use reqwest::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, HeaderName,
    HeaderValue, IF_MATCH, LAST_MODIFIED, RANGE,
};
use reqwest::{Client, Method, Response, StatusCode, Url};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::super::address::Address;
use super::super::error::{Cause, RemoteError, without_secrets};
use super::super::runtime::install_crypto;
use super::connections::{CONNECT, MOST_REDIRECTS, Pool, client, referred};
use super::patience::{Refusal, again_after, broken, changed, error, persist, retry_after};
use super::{Fetched, Version};
use npyfs_base::options::RemoteSettings;

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

/// A document on a web server.
pub(in crate::remote) struct Site {
    pool: Arc<Pool>,
    url: Url,
    headers: HeaderMap,
    /// The time limit of a request.
    timeout: Duration,
    /// The whole document, if the server does not support ranges.
    whole: WholeDocument,
}

impl Site {
    /// Prepares requests for an address; sends none yet.
    pub(super) fn new(address: &Address, settings: &RemoteSettings) -> Result<Self, RemoteError> {
        let about = address.to_string();
        let refused = |why: &dyn std::fmt::Display| {
            RemoteError::new(
                Cause::Unsupported,
                &about,
                without_secrets(&why.to_string()),
            )
        };
        install_crypto();
        let timeout = settings.timeout;
        let pool = Pool::new(move || client(timeout, CONNECT).build()).map_err(|e| refused(&e))?;
        let mut headers = HeaderMap::new();
        for (name, value) in &settings.headers {
            let name: HeaderName = name.parse().map_err(|_| refused(&"header: no such name"))?;
            let mut value: HeaderValue = value
                .parse()
                .map_err(|_| refused(&format!("header {name}: not text")))?;
            value.set_sensitive(true);
            headers.append(name, value);
        }
        Ok(Self {
            pool: Arc::new(pool),
            url: address.url().clone(),
            headers,
            timeout,
            whole: WholeDocument::of_document(),
        })
    }

    /// Returns the pack whose name is that of the document and `suffix`; `None` if the address has a query, which may
    /// be a signature.
    pub(super) fn beside(&self, suffix: &str) -> Option<Self> {
        if self.url.query().is_some() {
            return None;
        }
        let mut url = self.url.clone();
        url.set_path(&format!("{}{suffix}", url.path()));
        Some(Self {
            pool: self.pool.clone(),
            url,
            headers: self.headers.clone(),
            timeout: self.timeout,
            whole: WholeDocument::of_pack(),
        })
    }

    /// Fetches a range, of one version if `of` is given.
    pub(super) async fn get(
        &self,
        range: Range<u64>,
        of: Option<&Version>,
    ) -> Result<Arc<Fetched>, RemoteError> {
        let get = || self.range(range.clone(), of);
        persist(self.timeout, of.is_some(), |_| false, get).await
    }

    /// Asks for the current version.
    pub(super) async fn head(&self) -> Result<Version, RemoteError> {
        // The caller has a known version to fall back on.
        persist(self.timeout, false, |_| false, || self.head_once()).await
    }

    /// Requests the head, or one byte: an address that was signed for reading may not allow HEAD.
    async fn head_once(&self) -> Result<Version, Refusal> {
        match self.ask(Method::HEAD, HeaderMap::new()).await {
            Ok(answer) => {
                let size = answer.headers().get(CONTENT_LENGTH);
                let size = size.and_then(|size| size.to_str().ok()?.parse().ok());
                if let Some(size) = size
                    && !is_encoded(&answer)
                {
                    return Ok(version(&answer, size));
                }
            }
            Err(refusal) if refusal.is_of_method() => {}
            Err(refusal) => return Err(refusal),
        }
        let mut headers = HeaderMap::new();
        headers.insert(RANGE, HeaderValue::from_static("bytes=0-0"));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let answer = self.ask(Method::GET, headers).await?;
        let size = match answer.status() {
            StatusCode::PARTIAL_CONTENT => content_range(&answer).map(|(_, size)| size),
            _ => answer.content_length(),
        };
        let size = size.ok_or_else(|| error(Cause::Unsupported, "no size is told"))?;
        Ok(version(&answer, size))
    }

    async fn range(
        &self,
        range: Range<u64>,
        of: Option<&Version>,
    ) -> Result<Arc<Fetched>, Refusal> {
        self.whole.check()?;
        let mut headers = HeaderMap::new();
        let last = range.end.saturating_sub(1);
        let wanted = HeaderValue::try_from(format!("bytes={}-{last}", range.start));
        headers.insert(RANGE, wanted.map_err(|e| error(Cause::Failed, e))?);
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(tag) = of.and_then(Version::strong)
            && let Ok(tag) = HeaderValue::try_from(tag)
        {
            headers.insert(IF_MATCH, tag);
        }
        let answer = match self.ask(Method::GET, headers).await {
            Err(refusal) if of.is_none() && refusal.error.cause == Cause::Changed => {
                return Err(error(Cause::Failed, "it is empty").into());
            }
            answer => answer?,
        };
        if is_encoded(&answer) {
            let why = "the server sends it compressed, so that parts of it cannot be asked for";
            return Err(error(Cause::Unsupported, why).into());
        }
        if answer.status() != StatusCode::PARTIAL_CONTENT {
            let version = version(&answer, 0);
            return self.whole.take(answer, version, of, self.timeout).await;
        }
        let (own, size) = content_range(&answer)
            .filter(|(own, size)| *own == (range.start..range.end.min(*size)))
            .ok_or_else(|| error(Cause::Failed, "a part is not the one that was asked for"))?;
        let version = version(&answer, size);
        if of.is_some_and(|of| !of.is(&version)) {
            return Err(changed().into());
        }
        let len = own.end - own.start;
        let bytes = body(answer, len).await?;
        if bytes.len() as u64 != len {
            let why = format!("{} bytes arrived of {len}", bytes.len());
            return Err(Refusal::again(error(Cause::Failed, why)));
        }
        Ok(Arc::new(Fetched {
            version,
            start: own.start,
            bytes,
            room: None,
        }))
    }

    /// Sends a request and follows redirects.
    async fn ask(&self, method: Method, headers: HeaderMap) -> Result<Response, Refusal> {
        let mut url = self.url.clone();
        for _ in 0..MOST_REDIRECTS {
            let mut headers = headers.clone();
            if url.origin() == self.url.origin() {
                headers.extend(self.headers.clone());
            }
            let send = |client: Client| {
                let request = client.request(method.clone(), url.clone());
                request.headers(headers).send()
            };
            let answer = self.pool.send(send).await.map_err(|e| broken(&e))?;
            if !answer.status().is_redirection() {
                return judged(answer);
            }
            url = referred(&url, answer.headers())
                .ok_or_else(|| error(Cause::Failed, "it refers to no place that can be asked"))?;
        }
        Err(error(Cause::Failed, "it refers to another place again and again").into())
    }
}

/// The state of a document that is fetched whole.
struct WholeDocument {
    /// The most bytes it may have.
    largest: u64,
    memory: &'static Semaphore,
    /// The document, while a request still holds it. Locked by the request that fetches it.
    last: tokio::sync::Mutex<Weak<Fetched>>,
    /// The reason why it is refused, and until when.
    refused: Mutex<Option<(RemoteError, Instant)>>,
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

impl WholeDocument {
    /// A document.
    fn of_document() -> Self {
        Self::new(LARGEST, &DOCUMENTS)
    }

    /// A pack, which lies beside a document.
    fn of_pack() -> Self {
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

    /// Fails if the server recently sent something other than the document.
    fn check(&self) -> Result<(), RemoteError> {
        match &*self.refused.lock() {
            Some((why, until)) if Instant::now() < *until => Err(why.clone()),
            _ => Ok(()),
        }
    }

    /// Takes the document from a response, or from another request that is fetching it. The response gives a version
    /// without a size. A response that is refused is remembered for `pause`.
    async fn take(
        &self,
        answer: Response,
        version: Version,
        of: Option<&Version>,
        pause: Duration,
    ) -> Result<Arc<Fetched>, Refusal> {
        let Ok(mut last) = self.last.try_lock() else {
            drop(answer);
            let last = self.last.lock().await;
            self.check()?;
            let of = of.ok_or_else(not_all)?;
            let got = last.upgrade().filter(|got| of.is(&got.version));
            return got.ok_or_else(not_all);
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
                *self.refused.lock() = Some((why.clone(), Instant::now() + pause));
                Err(why.into())
            }
        }
    }

    async fn receive(
        &self,
        mut answer: Response,
        mut version: Version,
        of: Option<&Version>,
    ) -> Result<Fetched, Failure> {
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
        Ok(Fetched {
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

/// Returns the failure of a request that waited for one that failed.
fn not_all() -> Refusal {
    let why = "the server has no ranges, and did not send all of it";
    Refusal::again(error(Cause::Failed, why))
}

/// Returns the body of a response, of at most `most` bytes.
pub(super) async fn body(mut answer: Response, most: u64) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    while let Some(more) = answer.chunk().await.map_err(|e| broken(&e))? {
        let len = (bytes.len() as u64).saturating_add(more.len() as u64);
        if len > most {
            let why = format!("more than the {most} bytes arrived that were asked for");
            return Err(error(Cause::Failed, why).into());
        }
        bytes.extend_from_slice(&more);
    }
    Ok(bytes)
}

/// Returns whether a response's body is encoded, so that its bytes are not those of the document.
fn is_encoded(answer: &Response) -> bool {
    let mut encodings = answer.headers().get_all(CONTENT_ENCODING).iter();
    encodings.any(|encoding| encoding != "identity" && !encoding.is_empty())
}

/// Returns a successful response; fails for any other.
fn judged(answer: Response) -> Result<Response, Refusal> {
    let status = answer.status();
    let cause = match status {
        _ if status.is_success() => return Ok(answer),
        StatusCode::NOT_FOUND | StatusCode::GONE => Cause::Missing,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Cause::Denied,
        // The document has become shorter, or another version replaced it.
        StatusCode::PRECONDITION_FAILED | StatusCode::RANGE_NOT_SATISFIABLE => {
            return Err(changed().into());
        }
        StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => Cause::Unsupported,
        _ => Cause::Failed,
    };
    Err(Refusal {
        again: again_after(status),
        after: retry_after(answer.headers()),
        ..error(cause, format!("the server answers {status}")).into()
    })
}

/// Returns the version that a response belongs to.
fn version(answer: &Response, size: u64) -> Version {
    let text = |name| {
        answer
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    let modified = text(LAST_MODIFIED).and_then(|text| {
        let time = jiff::fmt::rfc2822::parse(text).ok()?;
        Some(SystemTime::from(time.timestamp()))
    });
    Version {
        size,
        etag: text(ETAG).map(str::to_owned),
        modified: modified.unwrap_or(UNIX_EPOCH),
    }
}

/// Returns the range of a partial response, and the size of the document.
fn content_range(answer: &Response) -> Option<(Range<u64>, u64)> {
    range_of(answer.headers().get(CONTENT_RANGE)?.to_str().ok()?)
}

fn range_of(text: &str) -> Option<(Range<u64>, u64)> {
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let (start, last): (u64, u64) = (start.trim().parse().ok()?, last.trim().parse().ok()?);
    let end = last.checked_add(1).filter(|&end| end > start)?;
    Some((start..end, size.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_says_which_it_is() {
        assert_eq!(range_of("bytes 0-9/100"), Some((0..10, 100)));
        for bad in [
            "",
            "bytes 0-9/*",
            "bytes 9-8/100",
            "items 0-9/100",
            "bytes */100",
        ] {
            assert_eq!(range_of(bad), None, "{bad}");
        }
        let last = format!("bytes 0-{}/1", u64::MAX);
        assert_eq!(range_of(&last), None);
    }
}
