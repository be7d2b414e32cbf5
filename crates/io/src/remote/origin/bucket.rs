//! Buckets of object stores.

mod refusal;

use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use object_store::azure::{MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, GetRange, ObjectMeta, ObjectStore, RetryConfig,
};
use reqwest::StatusCode;

use super::super::address::{Address, Scheme};
use super::super::error::{Cause, RemoteError, without_secrets};
use super::connections::{Connections, Heard};
use super::credentials::{Asked, Renew, few};
use super::failure::error;
use super::patience::{Patience, Refusal};
use super::profile::variable;
use super::sieve::LeftOut;
use super::{Got, Names, Version, amazon};
use npyfs_base::options::RemoteSettings;
use refusal::failed;
pub(super) use refusal::{in_words, reasons};

/// A bucket, and the connections to its service.
pub(in crate::remote) struct Bucket {
    objects: Arc<dyn ObjectStore>,
    listings: Arc<dyn PaginatedListStore>,
    /// Credentials that can be renewed.
    credentials: Option<Arc<dyn Renew>>,
    /// The time limit of a request.
    timeout: Duration,
}

/// The renewable credentials of the requests; `None` if the credentials are fixed or there are none.
pub(super) type Renewable = Option<Arc<dyn Renew>>;

/// Open buckets, by their address and settings.
static OPEN: Mutex<Vec<(String, Weak<Bucket>)>> = Mutex::new(Vec::new());

/// Returns true if the address of a service uses unencrypted connections.
pub(super) fn is_plain(endpoint: &str) -> bool {
    endpoint.starts_with("http://")
}

/// Returns the bucket of an address, shared by all of its objects; sends no request yet.
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
    // Connections use the process's crypto provider. If one is installed already, it is the same one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // `Patience` retries instead: it respects the server's Retry-After, signs each request anew and stops at the time
    // limit.
    let retry = RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 0,
        retry_timeout: Duration::ZERO,
    };
    let client = ClientOptions::new().with_timeout_disabled();
    let timeout = settings.timeout;
    Ok(match address.scheme() {
        Scheme::S3 => of(amazon::open(address, settings, client, retry)?, timeout),
        Scheme::Google => of(google(address, settings, client, retry)?, timeout),
        Scheme::Azure => of(azure(address, settings, client, retry)?, timeout),
        Scheme::Web => return Err("a web server has no buckets".to_owned()),
    })
}

fn of(
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

fn google(
    address: &Address,
    settings: &RemoteSettings,
    client: ClientOptions,
    retry: RetryConfig,
) -> Result<(GoogleCloudStorage, Renewable), String> {
    const HINT: &str = "neither GOOGLE_APPLICATION_CREDENTIALS nor this machine has any; -o anonymous asks without";
    let emulator = variable("STORAGE_EMULATOR_HOST").map(|host| match host.contains("://") {
        true => host,
        false => format!("http://{host}"),
    });
    let anonymous = settings.anonymous || (settings.endpoint.is_none() && emulator.is_some());
    let endpoint = settings.endpoint.clone().or(emulator);
    let (endpoint, connections) = Connections::to(endpoint, settings.timeout)?;
    let plain = endpoint.as_deref().is_some_and(is_plain);
    let mut builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(address.bucket())
        .with_retry(retry)
        .with_http_connector(connections)
        .with_client_options(client.with_allow_http(plain));
    if let Some(endpoint) = endpoint {
        builder = builder.with_base_url(endpoint.trim_end_matches('/'));
    }
    let mut renewable: Renewable = None;
    if anonymous {
        builder = builder.with_skip_signature(true);
    } else {
        let asking = builder.clone().with_retry(few());
        let asked = Asked::new(HINT, move || {
            let made = asking.clone().build().map_err(|e| e.to_string())?;
            Ok(made.credentials().clone())
        })?;
        builder = builder.with_credentials(asked.clone());
        renewable = Some(asked);
    }
    let store = builder.build().map_err(|e| e.to_string())?;
    Ok((store, renewable))
}

fn azure(
    address: &Address,
    settings: &RemoteSettings,
    client: ClientOptions,
    retry: RetryConfig,
) -> Result<(MicrosoftAzure, Renewable), String> {
    const HINT: &str =
        "neither the variables AZURE_STORAGE_* nor this machine has any; -o anonymous asks without";
    let endpoint = settings
        .endpoint
        .clone()
        .or_else(|| variable("AZURE_STORAGE_ENDPOINT"));
    let (endpoint, connections) = Connections::to(endpoint, settings.timeout)?;
    let plain = endpoint.as_deref().is_some_and(is_plain);
    let mut builder = MicrosoftAzureBuilder::from_env()
        .with_container_name(address.bucket())
        .with_retry(retry)
        .with_http_connector(connections)
        .with_client_options(client.with_allow_http(plain));
    if let Some(account) = address.account() {
        builder = builder.with_account(account);
    }
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    let mut renewable: Renewable = None;
    if settings.anonymous {
        builder = builder.with_skip_signature(true);
    } else {
        let asking = builder.clone().with_retry(few());
        let asked = Asked::new(HINT, move || {
            let made = asking.clone().build().map_err(|e| e.to_string())?;
            Ok(made.credentials().clone())
        })?;
        builder = builder.with_credentials(asked.clone());
        renewable = Some(asked);
    }
    let store = builder.build().map_err(|e| e.to_string())?;
    Ok((store, renewable))
}

/// Fetches a page of the names directly below a prefix: the first one, or the one after a token.
pub(super) async fn list(
    bucket: &Bucket,
    prefix: &str,
    after: Option<String>,
) -> Result<Names, RemoteError> {
    let mut patience = Patience::new(bucket.timeout, false);
    loop {
        match patience.within(bucket.names(prefix, after.clone())).await {
            Ok(names) => return Ok(names),
            Err(refusal) => bucket.pause(&mut patience, refusal).await?,
        }
    }
}

/// Fetches a range, of one version if `of` is given.
pub(super) async fn get(
    bucket: &Bucket,
    path: &Path,
    range: Range<u64>,
    of: Option<&Version>,
) -> Result<Got, RemoteError> {
    let mut patience = Patience::new(bucket.timeout, of.is_some());
    loop {
        match patience.within(bucket.range(path, &range, of)).await {
            Ok(got) => return Ok(got),
            Err(refusal) => bucket.pause(&mut patience, refusal).await?,
        }
    }
}

/// Asks for the current version.
pub(super) async fn head(bucket: &Bucket, path: &Path) -> Result<Version, RemoteError> {
    // The caller has a known version to fall back on.
    let mut patience = Patience::new(bucket.timeout, false);
    loop {
        match patience.within(bucket.look(path)).await {
            Ok(version) => return Ok(version),
            Err(refusal) => bucket.pause(&mut patience, refusal).await?,
        }
    }
}

impl Bucket {
    /// Returns the object store, for reading and writing.
    pub(super) fn objects(&self) -> Arc<dyn ObjectStore> {
        self.objects.clone()
    }

    /// Waits until the request is worth retrying; fails if it is not.
    async fn pause(&self, patience: &mut Patience, refusal: Refusal) -> Result<(), RemoteError> {
        let renewed = |credentials: &Arc<dyn Renew>| credentials.renew(patience.sent());
        match refusal.is_of_credentials && self.credentials.as_ref().is_some_and(renewed) {
            true => Ok(()),
            false => patience.pause(refusal).await,
        }
    }

    async fn names(&self, prefix: &str, after: Option<String>) -> Result<Names, Refusal> {
        let (left_out, heard) = (LeftOut::new(prefix), Heard::default());
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
    ) -> Result<Got, Refusal> {
        let heard = Heard::default();
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
                return Ok(Got {
                    version: self.look(path).await?,
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
                let why = format!("a part is not the one that was asked for: {}", reasons(&e));
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
        Ok(Got {
            version,
            start: own.start,
            bytes: bytes.into(),
            room: None,
        })
    }

    async fn look(&self, path: &Path) -> Result<Version, Refusal> {
        let heard = Heard::default();
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

/// Returns the error for an object that another version has replaced.
pub(super) fn changed() -> RemoteError {
    RemoteError {
        cause: Cause::Changed,
        message: "another version is there now".into(),
    }
}
