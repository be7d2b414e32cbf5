//! Requests to buckets, and the meaning of what their services answer.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, GetRange, ObjectMeta, ObjectStore, RetryConfig,
};
use parking_lot::Mutex;
use reqwest::StatusCode;

use super::super::address::{Address, Scheme};
use super::super::error::{Cause, RemoteError, without_secrets};
use super::super::runtime::install_crypto;
use super::connections::{Head, LastHead};
use super::credentials::{NOBODY, Renewable};
use super::patience::{Refusal, Retry, again_after, broken, changed, error, persist};
use super::services;
use super::sieve::LeftOut;
use super::{Fetched, Names, Version};
use npyfs_base::options::RemoteSettings;

/// Error codes which say that credentials have expired or are no longer valid.
const EXPIRED: [&str; 7] = [
    "ExpiredToken",
    "ExpiredTokenException",
    "TokenRefreshRequired",
    "InvalidToken",
    "RequestExpired",
    "AuthenticationFailed",
    "InvalidAuthenticationInfo",
];

/// A bucket, and the connections to its service.
pub(in crate::remote) struct Bucket {
    objects: Arc<dyn ObjectStore>,
    listings: Arc<dyn PaginatedListStore>,
    /// Credentials that can be renewed.
    credentials: Renewable,
    /// The time limit of a request.
    timeout: Duration,
}

/// Open buckets, by their address and settings.
static OPEN: Mutex<Vec<(String, Weak<Bucket>)>> = Mutex::new(Vec::new());

/// Returns the bucket of an address, shared by all of its objects; sends no request yet.
pub(super) fn open(
    address: &Address,
    settings: &RemoteSettings,
) -> Result<Arc<Bucket>, RemoteError> {
    let key = format!("{} {settings:?}", address.url());
    let mut open = OPEN.lock();
    open.retain(|(_, bucket)| bucket.strong_count() > 0);
    let known = open.iter().find(|(known, _)| *known == key);
    if let Some(bucket) = known.and_then(|(_, bucket)| bucket.upgrade()) {
        return Ok(bucket);
    }
    let made = make(address, settings).map_err(|why| {
        let why = without_secrets(&why);
        let cause = match why.contains("credentials") || why.contains("profile") {
            true => Cause::Denied,
            false => Cause::Unsupported,
        };
        RemoteError::new(cause, &address.to_string(), why)
    })?;
    let bucket = Arc::new(made);
    open.push((key, Arc::downgrade(&bucket)));
    Ok(bucket)
}

/// Returns the bucket of an address, for reading and writing; sends no request yet.
pub(in crate::remote) fn objects_of(
    address: &Address,
    settings: &RemoteSettings,
) -> Result<Arc<dyn ObjectStore>, RemoteError> {
    Ok(open(address, settings)?.objects.clone())
}

fn make(address: &Address, settings: &RemoteSettings) -> Result<Bucket, String> {
    install_crypto();
    // `persist` retries instead: it respects the server's Retry-After, signs each request anew and stops at the time
    // limit.
    let retry = RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 0,
        retry_timeout: Duration::ZERO,
    };
    let client = ClientOptions::new().with_timeout_disabled();
    let timeout = settings.timeout;
    Ok(match address.scheme() {
        Scheme::S3 => bucket_of(services::amazon(address, settings, client, retry)?, timeout),
        Scheme::Google => bucket_of(services::google(address, settings, client, retry)?, timeout),
        Scheme::Azure => bucket_of(services::azure(address, settings, client, retry)?, timeout),
        Scheme::Web => return Err("a web server has no buckets".to_owned()),
    })
}

fn bucket_of(
    (store, credentials): (impl ObjectStore + PaginatedListStore, Renewable),
    timeout: Duration,
) -> Bucket {
    let store = Arc::new(store);
    Bucket {
        objects: store.clone(),
        listings: store,
        credentials,
        timeout,
    }
}

impl Bucket {
    /// Fetches a page of the names directly below a prefix: the first one, or the one after a token.
    pub(super) async fn list(
        &self,
        prefix: &str,
        after: Option<String>,
    ) -> Result<Names, RemoteError> {
        self.persist(false, || self.names(prefix, after.clone()))
            .await
    }

    /// Fetches a range, of one version if `of` is given.
    pub(super) async fn get(
        &self,
        path: &Path,
        range: Range<u64>,
        of: Option<&Version>,
    ) -> Result<Fetched, RemoteError> {
        self.persist(of.is_some(), || self.range(path, &range, of))
            .await
    }

    /// Asks for the current version.
    pub(super) async fn head(&self, path: &Path) -> Result<Version, RemoteError> {
        // The caller has a known version to fall back on.
        self.persist(false, || self.head_once(path)).await
    }

    async fn persist<T, F>(&self, is_known: bool, request: impl Fn() -> F) -> Result<T, RemoteError>
    where
        F: Future<Output = Result<T, Refusal>>,
    {
        let renews = |sent| {
            let credentials = self.credentials.as_ref();
            credentials.is_some_and(|credentials| credentials.renew(sent))
        };
        persist(self.timeout, is_known, renews, request).await
    }

    async fn names(&self, prefix: &str, after: Option<String>) -> Result<Names, Refusal> {
        let (left_out, heard) = (LeftOut::new(prefix), LastHead::default());
        let mut options = PaginatedListOptions {
            delimiter: Some("/".into()),
            page_token: after,
            ..PaginatedListOptions::default()
        };
        options.extensions.insert(left_out.clone());
        options.extensions.insert(heard.clone());
        let prefix = Some(prefix).filter(|prefix| !prefix.is_empty());
        let page = self.listings.list_paginated(prefix, options).await;
        let page = page.map_err(|e| failed(&e, &heard.take()))?;
        let objects = page.result.objects.iter();
        let prefixes = page.result.common_prefixes.iter();
        Ok(Names {
            objects: objects
                .map(|meta| (meta.location.to_string(), version(meta)))
                .collect(),
            prefixes: prefixes.map(ToString::to_string).collect(),
            left_out: left_out.take(),
            next: page.page_token,
        })
    }

    async fn range(
        &self,
        path: &Path,
        range: &Range<u64>,
        of: Option<&Version>,
    ) -> Result<Fetched, Refusal> {
        let heard = LastHead::default();
        let mut options = GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            if_match: of.and_then(Version::strong).map(str::to_owned),
            ..GetOptions::default()
        };
        options.extensions.insert(heard.clone());
        let answer = self.objects.get_opts(path, options).await;
        let told = heard.take();
        let answer = match answer {
            // An empty object has no range.
            Err(_) if of.is_none() && told.status == Some(StatusCode::RANGE_NOT_SATISFIABLE) => {
                return Ok(Fetched {
                    version: self.head_once(path).await?,
                    start: 0,
                    bytes: Vec::new(),
                    room: None,
                });
            }
            Err(_) if told.status == Some(StatusCode::OK) => {
                let why = "the server has no ranges: it sends all of an object";
                return Err(error(Cause::Unsupported, why).into());
            }
            Err(e) if told.status == Some(StatusCode::PARTIAL_CONTENT) => {
                let why = format!("a part is not the one that was asked for: {}", causes(&e));
                return Err(error(Cause::Failed, why).into());
            }
            answer => answer.map_err(|e| failed(&e, &told))?,
        };
        let version = version(&answer.meta);
        if of.is_some_and(|of| !of.is(&version)) {
            return Err(changed().into());
        }
        let own = answer.range.clone();
        let len = own.end.saturating_sub(own.start);
        if told.length.is_some_and(|length| length > len) {
            let why = format!("more than the {len} bytes are told that were asked for");
            return Err(error(Cause::Failed, why).into());
        }
        let bytes = answer.bytes().await.map_err(|e| failed(&e, &told))?;
        if bytes.len() as u64 != len {
            let why = format!("{} bytes arrived of {len}", bytes.len());
            return Err(Refusal::again(error(Cause::Failed, why)));
        }
        Ok(Fetched {
            version,
            start: own.start,
            bytes: bytes.into(),
            room: None,
        })
    }

    async fn head_once(&self, path: &Path) -> Result<Version, Refusal> {
        let heard = LastHead::default();
        let mut options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        options.extensions.insert(heard.clone());
        let answer = self.objects.get_opts(path, options).await;
        let answer = answer.map_err(|e| failed(&e, &heard.take()))?;
        Ok(version(&answer.meta))
    }
}

fn version(meta: &ObjectMeta) -> Version {
    let since = meta.last_modified.timestamp_nanos_opt().unwrap_or(0);
    let since = Duration::from_nanos(u64::try_from(since).unwrap_or(0));
    Version {
        size: meta.size,
        etag: meta.e_tag.clone(),
        modified: UNIX_EPOCH
            .checked_add(since)
            .unwrap_or(SystemTime::UNIX_EPOCH),
    }
}

/// Returns the meaning of a failure and of the response that it is about, without the name of the object.
fn failed(failure: &object_store::Error, told: &Head) -> Refusal {
    use object_store::Error as E;
    if let Some(network) = of_network(failure) {
        let mut refusal = broken(network);
        // The address of a bucket does not show the host that was asked.
        if let Some(host) = &told.host {
            refusal.error.message = format!("{host}: {}", refusal.error.message);
        }
        return refusal;
    }
    let text = causes(failure);
    let status = told.status.map(|status| status.as_u16());
    let code = tag(&text, "Code");
    let is_expired = code.is_some_and(|code| EXPIRED.contains(&code));
    let cause = match failure {
        E::NotFound { .. } => Cause::Missing,
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => Cause::Denied,
        E::Precondition { .. } | E::NotModified { .. } => Cause::Changed,
        E::NotSupported { .. } | E::NotImplemented { .. } | E::InvalidPath { .. } => {
            Cause::Unsupported
        }
        _ if is_expired => Cause::Denied,
        // Failures of listings are told apart by status alone.
        _ => match status {
            Some(401 | 403) => Cause::Denied,
            Some(404 | 410) => Cause::Missing,
            // The object has become shorter.
            Some(416) => Cause::Changed,
            _ => Cause::Failed,
        },
    };
    // Some services answer even if they have no credentials for this machine.
    let nobody = text.find(NOBODY).and_then(|at| text.get(at..));
    let answered = told
        .status
        .map_or("an error".to_owned(), |status| status.to_string());
    let why = match (cause, code) {
        (Cause::Missing, Some("NoSuchBucket" | "ContainerNotFound")) => {
            "there is no such bucket".to_owned()
        }
        (Cause::Missing, _) => match status {
            Some(404) | None => "there is no such object".to_owned(),
            Some(_) => format!("there is no such object: the server answers {answered}"),
        },
        (Cause::Changed, _) => changed().message,
        (_, Some(code)) => {
            let more = tag(&text, "Message").unwrap_or_default();
            let more = more.split("RequestId").next().unwrap_or_default().trim();
            let status = status.map_or(answered, |status| status.to_string());
            format!("the server answers {status}: {code}: {more}")
        }
        _ => match (status, &told.region) {
            (Some(300..=400), Some(region)) => {
                format!(
                    "the server answers {answered}: the bucket is in another region, -o region={region}"
                )
            }
            (Some(_), _) => format!("the server answers {answered}"),
            (None, _) => text.clone(),
        },
    };
    let why: String = nobody.unwrap_or(&why).chars().take(400).collect();
    // Responses to HEAD have no body with an error code.
    let is_of_credentials = match code {
        Some(_) => is_expired,
        None => matches!(status, Some(400 | 401 | 403)),
    };
    Refusal {
        again: match code {
            Some("RequestTimeout" | "SlowDown") => Retry::Always,
            _ => told.status.map_or(Retry::Never, again_after),
        },
        after: told.after,
        is_of_credentials,
        ..error(cause, why).into()
    }
}

/// Returns the network failure behind a failure, if there is one.
fn of_network(failure: &object_store::Error) -> Option<&reqwest::Error> {
    let mut inner: Option<&(dyn std::error::Error + 'static)> = Some(failure);
    while let Some(cause) = inner {
        if let Some(network) = cause.downcast_ref() {
            return Some(network);
        }
        inner = cause.source();
    }
    None
}

/// Returns a failure in one line, for people, without secrets: of the network what it was, without the request and its
/// duration.
pub(in crate::remote) fn in_words(failure: &object_store::Error) -> String {
    match of_network(failure) {
        // Its secrets are removed.
        Some(network) => broken(network).error.message,
        None => reasons(failure),
    }
}

/// Returns a failure and its causes in one line, without secrets.
pub(in crate::remote) fn reasons(failure: &object_store::Error) -> String {
    without_secrets(&causes(failure))
}

/// Returns an error and its causes in one line.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = inner.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the text of an XML element in the response that a failure contains.
fn tag<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, from) = text.split_once(&format!("<{name}>"))?;
    Some(from.split_once("</")?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_without_what_they_repeat() {
        let text = "Error performing GET http://h/b?x - Server returned non-2xx status code: 403 Forbidden: <Error><Code>SignatureDoesNotMatch\
                    </Code><Message>The signature</Message><StringToSign>secret</StringToSign></Error>";
        let error = object_store::Error::Generic {
            store: "S3",
            source: text.into(),
        };
        let forbidden = Head {
            status: Some(StatusCode::FORBIDDEN),
            ..Head::default()
        };
        let told = failed(&error, &forbidden).error;
        assert_eq!(told.cause, Cause::Denied);
        assert_eq!(
            told.message,
            "the server answers 403: SignatureDoesNotMatch: The signature"
        );
        let nobody = object_store::Error::Unauthenticated {
            path: String::new(),
            source: "no credentials: try (status code: 404 Not Found)".into(),
        };
        let told = failed(&nobody, &Head::default());
        assert_eq!(
            (told.error.cause, told.again),
            (Cause::Denied, Retry::Never)
        );
        assert!(told.error.message.starts_with("no credentials: try"));
    }

    #[test]
    fn an_expired_token_is_told_from_a_refusal() {
        let refused = |code: &str| {
            let error = object_store::Error::Generic {
                store: "S3",
                source: format!("<Error><Code>{code}</Code></Error>").into(),
            };
            let told = Head {
                status: Some(StatusCode::BAD_REQUEST),
                ..Head::default()
            };
            failed(&error, &told)
        };
        assert!(refused("ExpiredToken").is_of_credentials);
        assert!(!refused("AccessDenied").is_of_credentials);
        assert_eq!(refused("AccessDenied").again, Retry::Never);
        assert_eq!(refused("RequestTimeout").again, Retry::Always);
    }
}
