//! Buckets of object stores.

use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use object_store::aws::AmazonS3Builder;
use object_store::azure::{MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, GetRange, ObjectMeta, ObjectStore, RetryConfig,
};

use super::super::address::{Address, Scheme};
use super::super::error::{Cause, RemoteError, without_secrets};
use super::credentials::{Asked, NOBODY, few};
use super::profile::variable;
use super::sieve::{LeftOut, Sieve};
use super::{Got, Names, Version, amazon};
use crate::options::RemoteSettings;

/// A bucket, and the connections to it.
pub(in crate::io::remote) struct Bucket {
    objects: Arc<dyn ObjectStore>,
    listings: Arc<dyn PaginatedListStore>,
}

/// Buckets that are open, by their address and how they are asked.
static OPEN: Mutex<Vec<(String, Weak<Bucket>)>> = Mutex::new(Vec::new());

/// Returns true if an address of a service is one of connections that others can read.
pub(super) fn is_plain(endpoint: &str) -> bool {
    endpoint.starts_with("http://")
}

/// Returns the bucket of an address, which all of its objects share; asks nothing yet.
pub(super) fn open(
    address: &Address,
    settings: &RemoteSettings,
) -> Result<Arc<Bucket>, RemoteError> {
    let key = format!("{} {settings:?}", address.url());
    let mut open = OPEN.lock().unwrap_or_else(|e| e.into_inner());
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

fn make(address: &Address, settings: &RemoteSettings) -> Result<Bucket, String> {
    // Connections are made with the provider that the process has; installed already, it is the same one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(8),
            ..BackoffConfig::default()
        },
        max_retries: 20,
        retry_timeout: settings.timeout,
    };
    let client = ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(Duration::from_secs(10).min(settings.timeout))
        .with_read_timeout(Duration::from_secs(20).min(settings.timeout));
    Ok(match address.scheme() {
        Scheme::S3 => of(amazon::open(address, settings, client, retry)?),
        Scheme::Google => of(google(address, settings, client, retry)?),
        Scheme::Azure => of(azure(address, settings, client, retry)?),
        Scheme::Web => return Err("a web server has no buckets".to_owned()),
    })
}

fn of(store: impl ObjectStore + PaginatedListStore) -> Bucket {
    let store = Arc::new(store);
    Bucket {
        objects: store.clone(),
        listings: store,
    }
}

/// Has the listings of a bucket sifted.
pub(super) fn connected(builder: AmazonS3Builder) -> AmazonS3Builder {
    builder.with_http_connector(Sieve)
}

fn google(
    address: &Address,
    settings: &RemoteSettings,
    client: ClientOptions,
    retry: RetryConfig,
) -> Result<GoogleCloudStorage, String> {
    const HINT: &str = "neither GOOGLE_APPLICATION_CREDENTIALS nor this machine has any; -o anonymous asks without";
    let emulator = variable("STORAGE_EMULATOR_HOST").map(|host| match host.contains("://") {
        true => host,
        false => format!("http://{host}"),
    });
    let anonymous = settings.anonymous || (settings.endpoint.is_none() && emulator.is_some());
    let endpoint = settings.endpoint.clone().or(emulator);
    let plain = endpoint.as_deref().is_some_and(is_plain);
    let mut builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(address.bucket())
        .with_retry(retry)
        .with_http_connector(Sieve)
        .with_client_options(client.with_allow_http(plain));
    if let Some(endpoint) = endpoint {
        builder = builder.with_base_url(endpoint.trim_end_matches('/'));
    }
    if anonymous {
        builder = builder.with_skip_signature(true);
    } else {
        let asking = builder.clone().with_retry(few()).build();
        let asking = asking.map_err(|e| e.to_string())?;
        let asked = Asked::new(asking.credentials().clone(), HINT);
        builder = builder.with_credentials(Arc::new(asked));
    }
    builder.build().map_err(|e| e.to_string())
}

fn azure(
    address: &Address,
    settings: &RemoteSettings,
    client: ClientOptions,
    retry: RetryConfig,
) -> Result<MicrosoftAzure, String> {
    const HINT: &str =
        "neither the variables AZURE_STORAGE_* nor this machine has any; -o anonymous asks without";
    let endpoint = settings
        .endpoint
        .clone()
        .or_else(|| variable("AZURE_STORAGE_ENDPOINT"));
    let plain = endpoint.as_deref().is_some_and(is_plain);
    let mut builder = MicrosoftAzureBuilder::from_env()
        .with_container_name(address.bucket())
        .with_retry(retry)
        .with_http_connector(Sieve)
        .with_client_options(client.with_allow_http(plain));
    if let Some(account) = address.account() {
        builder = builder.with_account(account);
    }
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if settings.anonymous {
        builder = builder.with_skip_signature(true);
    } else {
        let asking = builder.clone().with_retry(few()).build();
        let asking = asking.map_err(|e| e.to_string())?;
        let asked = Asked::new(asking.credentials().clone(), HINT);
        builder = builder.with_credentials(Arc::new(asked));
    }
    builder.build().map_err(|e| e.to_string())
}

/// Asks for a part of the names directly below a prefix, the first one or the one behind another.
pub(super) async fn list(
    bucket: &Bucket,
    prefix: &str,
    after: Option<String>,
) -> Result<Names, RemoteError> {
    let left_out = LeftOut::new(prefix);
    let mut options = PaginatedListOptions {
        delimiter: Some("/".into()),
        page_token: after,
        ..PaginatedListOptions::default()
    };
    options.extensions.insert(left_out.clone());
    let prefix = Some(prefix).filter(|prefix| !prefix.is_empty());
    let page = bucket.listings.list_paginated(prefix, options).await;
    let page = page.map_err(failed)?;
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

/// Asks for a range, of one version if there is one to ask for.
pub(super) async fn get(
    bucket: &Bucket,
    path: &Path,
    range: Range<u64>,
    of: Option<&Version>,
) -> Result<Got, RemoteError> {
    let options = GetOptions {
        range: Some(GetRange::Bounded(range.clone())),
        if_match: of.and_then(Version::strong).map(str::to_owned),
        ..GetOptions::default()
    };
    let answer = match bucket.objects.get_opts(path, options).await {
        // An empty object has no range.
        Err(e) if of.is_none() && status(&reasons(&e)) == Some("416") => {
            return Ok(Got {
                version: head(bucket, path).await?,
                start: 0,
                bytes: Vec::new(),
            });
        }
        answer => answer.map_err(failed)?,
    };
    let version = version(&answer.meta);
    if of.is_some_and(|of| !of.is(&version)) {
        return Err(changed());
    }
    let start = answer.range.start;
    let bytes = answer.bytes().await.map_err(failed)?;
    Ok(Got {
        version,
        start,
        bytes: bytes.into(),
    })
}

/// Asks which version there is.
pub(super) async fn head(bucket: &Bucket, path: &Path) -> Result<Version, RemoteError> {
    let options = GetOptions {
        head: true,
        ..GetOptions::default()
    };
    let answer = bucket
        .objects
        .get_opts(path, options)
        .await
        .map_err(failed)?;
    Ok(version(&answer.meta))
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

/// Returns the failure of an object that is another version by now.
pub(super) fn changed() -> RemoteError {
    RemoteError {
        cause: Cause::Changed,
        message: "another version is there now".into(),
    }
}

/// Returns what a failure means, without the name of the object.
fn failed(error: object_store::Error) -> RemoteError {
    use object_store::Error as E;
    let text = reasons(&error);
    let cause = match &error {
        E::NotFound { .. } => Cause::Missing,
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => Cause::Denied,
        E::Precondition { .. } | E::NotModified { .. } => Cause::Changed,
        E::NotSupported { .. } | E::NotImplemented { .. } | E::InvalidPath { .. } => {
            Cause::Unsupported
        }
        // Of listings only the text tells.
        _ => match status(&text) {
            Some("401" | "403") => Cause::Denied,
            Some("404") => Cause::Missing,
            _ => Cause::Failed,
        },
    };
    // A service that has none for this machine answers something, too.
    let nobody = text.find(NOBODY).and_then(|at| text.get(at..));
    let said = tag(&text, "Code");
    let told = match (cause, said) {
        (Cause::Missing, Some("NoSuchBucket" | "ContainerNotFound")) => {
            "there is no such bucket".to_owned()
        }
        (Cause::Missing, _) => "there is no such object".to_owned(),
        (Cause::Changed, _) => changed().message,
        (_, Some(code)) => {
            let more = tag(&text, "Message").unwrap_or_default();
            let more = more.split("RequestId").next().unwrap_or_default().trim();
            let status = status(&text).unwrap_or("an error");
            format!("the server answers {status}: {code}: {more}")
        }
        _ => match status(&text) {
            Some(status) => format!("the server answers {status}"),
            None => without_secrets(&text),
        },
    };
    let message = nobody.map_or(told, without_secrets);
    RemoteError {
        cause,
        message: message.chars().take(400).collect(),
    }
}

/// Returns a failure and what caused it in one line.
fn reasons(error: &dyn std::error::Error) -> String {
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

/// Returns the status of the answer that a failure is about.
fn status(text: &str) -> Option<&str> {
    let (_, from) = text.split_once("status code: ")?;
    from.get(..3)
}

/// Returns the text of an element of an answer that a failure holds.
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
        let told = failed(error);
        assert_eq!(told.cause, Cause::Denied);
        let told_nobody = failed(object_store::Error::Unauthenticated {
            path: String::new(),
            source: "no credentials: try (status code: 404 Not Found)".into(),
        });
        assert_eq!(told_nobody.cause, Cause::Denied);
        assert!(told_nobody.message.starts_with("no credentials: try"));
        assert_eq!(
            told.message,
            "the server answers 403: SignatureDoesNotMatch: The signature"
        );
    }
}
