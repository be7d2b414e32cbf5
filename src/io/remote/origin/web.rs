//! Web servers: ranges of one document.
//!
//! What goes with a request beside the range, secrets above all, goes to the host that the address names, and to no other
//! that it may refer to.

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::header::{
    ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, HeaderValue,
    IF_MATCH, LAST_MODIFIED, LOCATION, RANGE, RETRY_AFTER,
};
use reqwest::{Client, Method, Response, StatusCode, Url, redirect};

use super::super::address::Address;
use super::super::error::{Cause, RemoteError, without_secrets};
use super::bucket::changed;
use super::{Got, Version};
use crate::options::RemoteSettings;

/// Hosts that refer to others, one after the other.
const MOST_REDIRECTS: usize = 10;

/// Times that a request is sent again.
const MOST_RETRIES: u32 = 20;

/// The largest document that is taken as a whole from a server that has no ranges.
const LARGEST_WHOLE: u64 = 256 << 20;

/// The first pause before a request is sent again, and the longest.
const PAUSES: Range<Duration> = Duration::from_millis(100)..Duration::from_secs(8);

/// A document on a web server.
pub(in crate::io::remote) struct Site {
    client: Client,
    url: Url,
    headers: HeaderMap,
}

/// A failure, and whether the same request may succeed later.
struct Refusal {
    error: RemoteError,
    again: bool,
    after: Option<Duration>,
}

impl From<RemoteError> for Refusal {
    fn from(error: RemoteError) -> Self {
        Self {
            error,
            again: false,
            after: None,
        }
    }
}

fn error(cause: Cause, why: impl std::fmt::Display) -> RemoteError {
    RemoteError {
        cause,
        message: without_secrets(&why.to_string()),
    }
}

/// Returns what a failure of the network means.
fn broken(failure: &reqwest::Error) -> Refusal {
    let mut why = String::new();
    let mut inner: Option<&dyn std::error::Error> = Some(failure);
    while let Some(cause) = inner {
        let more = cause.to_string();
        if !why.contains(&more) {
            why = if why.is_empty() {
                more
            } else {
                format!("{why}: {more}")
            };
        }
        inner = cause.source();
    }
    let cause = match failure.is_timeout() {
        true => Cause::Late,
        false => Cause::Failed,
    };
    Refusal {
        error: error(cause, why),
        again: !failure.is_builder(),
        after: None,
    }
}

impl Site {
    /// Prepares for an address; asks nothing yet.
    pub(super) fn new(address: &Address, settings: &RemoteSettings) -> Result<Self, RemoteError> {
        let about = address.to_string();
        let refused = |why: &dyn std::fmt::Display| {
            RemoteError::new(
                Cause::Unsupported,
                &about,
                without_secrets(&why.to_string()),
            )
        };
        // A provider that is installed already is the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .redirect(redirect::Policy::none())
            .connect_timeout(Duration::from_secs(10).min(settings.timeout))
            .read_timeout(Duration::from_secs(20).min(settings.timeout))
            .build()
            .map_err(|e| refused(&e))?;
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
            client,
            url: address.url().clone(),
            headers,
        })
    }

    /// Returns the document whose name has `suffix` behind it; `None` if the address has a query, which may be a signature.
    pub(super) fn beside(&self, suffix: &str) -> Option<Self> {
        if self.url.query().is_some() {
            return None;
        }
        let mut url = self.url.clone();
        url.set_path(&format!("{}{suffix}", url.path()));
        Some(Self {
            client: self.client.clone(),
            url,
            headers: self.headers.clone(),
        })
    }

    /// Asks for a range, of one version if there is one to ask for.
    pub(super) async fn get(
        &self,
        range: Range<u64>,
        of: Option<&Version>,
    ) -> Result<Got, RemoteError> {
        let mut patience = Patience::new();
        loop {
            match self.range(range.clone(), of).await {
                Ok(got) => return Ok(got),
                Err(refusal) => patience.pause(refusal).await?,
            }
        }
    }

    /// Asks which version there is.
    pub(super) async fn head(&self) -> Result<Version, RemoteError> {
        let mut patience = Patience::new();
        loop {
            let answer = match self.ask(Method::HEAD, HeaderMap::new()).await {
                Ok(answer) => answer,
                Err(refusal) => {
                    patience.pause(refusal).await?;
                    continue;
                }
            };
            let size = answer.headers().get(CONTENT_LENGTH);
            let size = size.and_then(|size| size.to_str().ok()?.parse().ok());
            let size = size.ok_or_else(|| error(Cause::Unsupported, "no size is told"))?;
            return Ok(version(&answer, size));
        }
    }

    async fn range(&self, range: Range<u64>, of: Option<&Version>) -> Result<Got, Refusal> {
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
        let answer = self.ask(Method::GET, headers).await?;
        let (start, size) = match answer.status() {
            StatusCode::PARTIAL_CONTENT => content_range(&answer)
                .filter(|(start, _)| *start == range.start)
                .ok_or_else(|| error(Cause::Unsupported, "a part is not the one asked for"))?,
            // All of it: a server without ranges.
            _ => {
                let size = answer.content_length();
                let whole = size.filter(|&size| size <= LARGEST_WHOLE).ok_or_else(|| {
                    let why = format!(
                        "the server has no ranges, and sends documents of up to {} MiB only as a whole",
                        LARGEST_WHOLE >> 20
                    );
                    error(Cause::Unsupported, why)
                })?;
                (0, whole)
            }
        };
        let version = version(&answer, size);
        if of.is_some_and(|of| !of.is(&version)) {
            return Err(changed().into());
        }
        let whole = answer.status() != StatusCode::PARTIAL_CONTENT;
        let bytes = answer.bytes().await.map_err(|e| broken(&e))?;
        let wanted = match whole {
            true => size,
            false => range.end.min(size).saturating_sub(start),
        };
        if bytes.len() as u64 != wanted {
            let why = format!("{} bytes arrived of {wanted}", bytes.len());
            return Err(Refusal {
                error: error(Cause::Failed, why),
                again: true,
                after: None,
            });
        }
        Ok(Got {
            version,
            start,
            bytes: bytes.into(),
        })
    }

    /// Sends a request, and another one to where the answer refers to.
    async fn ask(&self, method: Method, headers: HeaderMap) -> Result<Response, Refusal> {
        let mut url = self.url.clone();
        for _ in 0..MOST_REDIRECTS {
            let mut request = self.client.request(method.clone(), url.clone());
            request = request.headers(headers.clone());
            if url.origin() == self.url.origin() {
                request = request.headers(self.headers.clone());
            }
            let answer = request.send().await.map_err(|e| broken(&e))?;
            if !answer.status().is_redirection() {
                return judged(answer);
            }
            let to = answer
                .headers()
                .get(LOCATION)
                .and_then(|to| to.to_str().ok());
            let to = to.and_then(|to| url.join(to).ok());
            let to = to.filter(|to| matches!(to.scheme(), "http" | "https"));
            // Never from a safe connection to one that others can read.
            let to = to.filter(|to| url.scheme() == "http" || to.scheme() == "https");
            url =
                to.ok_or_else(|| error(Cause::Failed, "it refers to no place that can be asked"))?;
        }
        Err(error(Cause::Failed, "it refers to another place again and again").into())
    }
}

/// The pauses before a request is sent again. Whoever waits limits the time.
struct Patience {
    next: Duration,
    left: u32,
}

impl Patience {
    fn new() -> Self {
        Self {
            next: PAUSES.start,
            left: MOST_RETRIES,
        }
    }

    /// Waits until it is worth trying again; fails if it is not.
    async fn pause(&mut self, refusal: Refusal) -> Result<(), RemoteError> {
        if !refusal.again || self.left == 0 {
            return Err(refusal.error);
        }
        self.left -= 1;
        let wait = refusal.after.unwrap_or(self.next).min(PAUSES.end);
        self.next = (self.next * 2).min(PAUSES.end);
        tokio::time::sleep(jitter(wait)).await;
        Ok(())
    }
}

/// Returns an answer that is one.
fn judged(answer: Response) -> Result<Response, Refusal> {
    let status = answer.status();
    let cause = match status {
        _ if status.is_success() => return Ok(answer),
        StatusCode::NOT_FOUND | StatusCode::GONE => Cause::Missing,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Cause::Denied,
        StatusCode::PRECONDITION_FAILED | StatusCode::RANGE_NOT_SATISFIABLE => {
            return Err(changed().into());
        }
        StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => Cause::Unsupported,
        _ => Cause::Failed,
    };
    let busy = status == StatusCode::TOO_MANY_REQUESTS
        || status == StatusCode::REQUEST_TIMEOUT
        || (status.is_server_error() && cause == Cause::Failed);
    let after = answer.headers().get(RETRY_AFTER);
    let after = after.and_then(|after| after.to_str().ok()?.parse().ok());
    Err(Refusal {
        error: error(cause, format!("the server answers {status}")),
        again: busy,
        after: after.map(Duration::from_secs),
    })
}

/// Returns a time between half of it and all of it.
fn jitter(time: Duration) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let noise = now.map_or(0, |now| now.subsec_nanos()) % 512;
    time / 2 + time * noise / 1024
}

/// Returns the version that an answer is of.
fn version(answer: &Response, size: u64) -> Version {
    let text = |name| {
        answer
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    let modified = text(LAST_MODIFIED).and_then(|text| {
        let time = jiff::fmt::rfc2822::parse(text).ok()?;
        SystemTime::try_from(time.timestamp()).ok()
    });
    Version {
        size,
        etag: text(ETAG).map(str::to_owned),
        modified: modified.unwrap_or(UNIX_EPOCH),
    }
}

/// Returns where a part begins, and the size of the whole.
fn content_range(answer: &Response) -> Option<(u64, u64)> {
    let text = answer.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    let (range, size) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.trim().parse().ok()?, size.trim().parse().ok()?))
}
