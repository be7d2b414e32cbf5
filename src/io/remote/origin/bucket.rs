//! Buckets of object stores.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, GetRange, ObjectMeta, ObjectStore, RetryConfig,
};

use super::super::address::{Address, Scheme};
use super::super::error::{Cause, RemoteError, without_secrets};
use super::{Got, Version};
use crate::options::RemoteSettings;

/// Opens the bucket of an address; asks nothing yet.
pub(super) fn open(
    address: &Address,
    settings: &RemoteSettings,
) -> Result<Arc<dyn ObjectStore>, RemoteError> {
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(8),
            ..BackoffConfig::default()
        },
        max_retries: 20,
        retry_timeout: settings.timeout,
    };
    let plain = |endpoint: &Option<String>| {
        endpoint
            .as_deref()
            .is_some_and(|endpoint| endpoint.starts_with("http://"))
    };
    let client = ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(Duration::from_secs(10).min(settings.timeout))
        .with_read_timeout(Duration::from_secs(20).min(settings.timeout));
    let refused = |e: object_store::Error| {
        let why = without_secrets(&e.to_string());
        RemoteError::new(Cause::Unsupported, &address.to_string(), why)
    };
    Ok(match address.scheme() {
        Scheme::S3 => {
            let mut builder = AmazonS3Builder::from_env()
                .with_bucket_name(address.bucket())
                .with_retry(retry)
                .with_request_payer(settings.requester_pays);
            let endpoint = settings.endpoint.clone().or_else(|| {
                let given = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];
                given.iter().find_map(|name| std::env::var(name).ok())
            });
            builder = builder.with_client_options(client.with_allow_http(plain(&endpoint)));
            if let Some(endpoint) = endpoint {
                builder = builder.with_endpoint(endpoint);
            }
            if let Some(region) = &settings.region {
                builder = builder.with_region(region);
            }
            if settings.anonymous {
                builder = builder.with_skip_signature(true);
            }
            Arc::new(builder.build().map_err(refused)?)
        }
        Scheme::Google => {
            let mut builder = GoogleCloudStorageBuilder::from_env()
                .with_bucket_name(address.bucket())
                .with_retry(retry)
                .with_client_options(client.with_allow_http(plain(&settings.endpoint)));
            if let Some(endpoint) = &settings.endpoint {
                builder = builder.with_base_url(endpoint);
            }
            if settings.anonymous {
                builder = builder.with_skip_signature(true);
            }
            Arc::new(builder.build().map_err(refused)?)
        }
        Scheme::Azure => {
            let mut builder = MicrosoftAzureBuilder::from_env()
                .with_container_name(address.bucket())
                .with_retry(retry)
                .with_client_options(client.with_allow_http(plain(&settings.endpoint)));
            if let Some(endpoint) = &settings.endpoint {
                builder = builder.with_endpoint(endpoint.clone());
            }
            if settings.anonymous {
                builder = builder.with_skip_signature(true);
            }
            Arc::new(builder.build().map_err(refused)?)
        }
        Scheme::Web => {
            let why = "a web server has no buckets";
            return Err(RemoteError::new(
                Cause::Unsupported,
                &address.to_string(),
                why,
            ));
        }
    })
}

/// Asks for a range, of one version if there is one to ask for.
pub(super) async fn get(
    store: &dyn ObjectStore,
    path: &Path,
    range: Range<u64>,
    of: Option<&Version>,
) -> Result<Got, RemoteError> {
    let options = GetOptions {
        range: Some(GetRange::Bounded(range.clone())),
        if_match: of.and_then(Version::strong).map(str::to_owned),
        ..GetOptions::default()
    };
    let answer = store.get_opts(path, options).await.map_err(failed)?;
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
pub(super) async fn head(store: &dyn ObjectStore, path: &Path) -> Result<Version, RemoteError> {
    let options = GetOptions {
        head: true,
        ..GetOptions::default()
    };
    let answer = store.get_opts(path, options).await.map_err(failed)?;
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
    let cause = match &error {
        E::NotFound { .. } => Cause::Missing,
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => Cause::Denied,
        E::Precondition { .. } | E::NotModified { .. } => Cause::Changed,
        E::NotSupported { .. } | E::NotImplemented { .. } | E::InvalidPath { .. } => {
            Cause::Unsupported
        }
        _ => Cause::Failed,
    };
    let message = match cause {
        Cause::Missing => "there is no such object".to_owned(),
        Cause::Changed => changed().message,
        _ => reasons(&error),
    };
    RemoteError { cause, message }
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
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text: String = without_secrets(&text).chars().take(400).collect();
    text
}
