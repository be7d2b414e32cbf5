//! The services of buckets: S3, Google Cloud Storage, Azure. The address of a service, its region and credentials come
//! from options, the environment and a profile, in the order of the service's own programs.

use std::sync::Arc;

use object_store::aws::{AmazonS3, AmazonS3Builder, AwsCredentialProvider};
use object_store::azure::{MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder};
use object_store::{ClientOptions, RetryConfig};

use super::super::address::Address;
use super::connections::Connections;
use super::credentials::{CachedCredentials, Container, NOBODY, Renewable, few, variable};
use super::profile::{Authentication, FileKeys, Files, Profile};
use npyfs_base::options::RemoteSettings;

/// Environment variables that are not passed on unchanged, because other settings take precedence.
const OWN: [&str; 8] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
];

/// Environment variables that name a source of credentials other than keys.
const WAYS: [&str; 3] = [
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

/// The other ways to configure credentials of S3.
const HINT: &str =
    "neither the environment nor a profile nor this machine has any; -o anonymous asks without";

/// Opens a bucket of Amazon's S3 or of a compatible service; sends no request yet.
pub(super) fn amazon(
    address: &Address,
    settings: &RemoteSettings,
    client: ClientOptions,
    retry: RetryConfig,
) -> Result<(AmazonS3, Renewable), String> {
    let files = Files::of_user();
    let chosen = settings.profile.clone().or_else(|| variable("AWS_PROFILE"));
    let name = chosen.clone().unwrap_or_else(|| "default".to_owned());
    let profile = files.profile(&name)?;
    if profile.is_none() && chosen.is_some() {
        let (config, credentials) = (files.config.display(), files.credentials.display());
        return Err(format!("no profile {name} in {config} and {credentials}"));
    }
    let profile = profile.unwrap_or_default();
    let mut builder = AmazonS3Builder::new();
    for (key, value) in std::env::vars_os() {
        if let (Some(key), Some(value)) = (key.to_str(), value.to_str())
            && key.starts_with("AWS_")
            && !OWN.contains(&key)
            && let Ok(key) = key.to_ascii_lowercase().parse()
        {
            builder = builder.with_config(key, value);
        }
    }
    let own = |option: &Option<String>, names: &[&str]| {
        option
            .clone()
            .or_else(|| names.iter().find_map(|name| variable(name)))
    };
    let endpoint = own(
        &settings.endpoint,
        &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"],
    );
    let endpoint = endpoint.or_else(|| profile.endpoint().map(str::to_owned));
    // The variable that Amazon's own programs use.
    if let Some(service) = variable("AWS_EC2_METADATA_SERVICE_ENDPOINT") {
        if !Address::is_service(&service) {
            let name = "AWS_EC2_METADATA_SERVICE_ENDPOINT";
            return Err(format!("{name}={service}: expected http(s)://HOST"));
        }
        builder = builder.with_metadata_endpoint(service.trim_end_matches('/'));
    }
    let (endpoint, connections) = Connections::to(endpoint, settings.timeout)?;
    let region = own(&settings.region, &["AWS_REGION", "AWS_DEFAULT_REGION"]);
    let region = region.or_else(|| profile.get("region").map(str::to_owned));
    if let Some(region) = region.as_ref().filter(|region| !Address::is_region(region)) {
        return Err(format!(
            "the region {region}: expected a name such as eu-central-1"
        ));
    }
    let plain = endpoint.as_deref().is_some_and(is_plain);
    builder = builder
        .with_bucket_name(address.bucket())
        .with_retry(retry)
        .with_request_payer(settings.requester_pays)
        .with_http_connector(connections)
        .with_client_options(client.with_allow_http(plain));
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(region) = region {
        builder = builder.with_region(region);
    }
    let (builder, renewable) = match settings.anonymous {
        true => (builder.with_skip_signature(true), None),
        false => known(builder, settings, &files, &name, &profile)?,
    };
    let store = builder.build().map_err(|e| e.to_string())?;
    Ok((store, renewable))
}

/// Adds credentials.
fn known(
    mut builder: AmazonS3Builder,
    settings: &RemoteSettings,
    files: &Files,
    name: &str,
    profile: &Profile,
) -> Result<(AmazonS3Builder, Renewable), String> {
    let keys = variable("AWS_ACCESS_KEY_ID").zip(variable("AWS_SECRET_ACCESS_KEY"));
    // A profile named for this mount takes precedence over the environment.
    if let Some((id, secret)) = keys.filter(|_| settings.profile.is_none()) {
        builder = builder
            .with_access_key_id(id)
            .with_secret_access_key(secret);
        let builder = match variable("AWS_SESSION_TOKEN") {
            Some(token) => builder.with_token(token),
            None => builder,
        };
        return Ok((builder, None));
    }
    match profile.means()? {
        Authentication::Keys => {
            let keys = Arc::new(FileKeys::new(files.clone(), name));
            return Ok((builder.with_credentials(keys.clone()), Some(keys)));
        }
        Authentication::WebIdentity => {
            for key in ["role_arn", "web_identity_token_file", "role_session_name"] {
                if let (Some(value), Ok(key)) = (profile.get(key), key.parse()) {
                    builder = builder.with_config(key, value);
                }
            }
        }
        Authentication::None => {
            if settings.profile.is_some() {
                return Err(format!("profile {name} says nothing of who asks"));
            }
            let is_off = |text: String| text.eq_ignore_ascii_case("true");
            let nobody = variable("AWS_EC2_METADATA_DISABLED").is_some_and(is_off)
                && WAYS.iter().all(|way| variable(way).is_none());
            if nobody {
                return Err(format!("{NOBODY}{HINT}"));
            }
        }
    }
    let has_identity = profile.means()? == Authentication::WebIdentity
        || (variable("AWS_WEB_IDENTITY_TOKEN_FILE").is_some()
            && variable("AWS_ROLE_ARN").is_some());
    let asking = builder.clone().with_retry(few());
    let asked = CachedCredentials::new(HINT, move || {
        if let Some(container) = Container::of_environment().filter(|_| !has_identity) {
            let container: AwsCredentialProvider = container?;
            return Ok(container);
        }
        let made = asking.clone().build().map_err(|e| e.to_string())?;
        Ok(made.credentials().clone())
    })?;
    Ok((builder.with_credentials(asked.clone()), Some(asked)))
}

/// Opens a bucket of Google Cloud Storage; sends no request yet.
pub(super) fn google(
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
        let asked = CachedCredentials::new(HINT, move || {
            let made = asking.clone().build().map_err(|e| e.to_string())?;
            Ok(made.credentials().clone())
        })?;
        builder = builder.with_credentials(asked.clone());
        renewable = Some(asked);
    }
    let store = builder.build().map_err(|e| e.to_string())?;
    Ok((store, renewable))
}

/// Opens a container of Azure Blob Storage; sends no request yet.
pub(super) fn azure(
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
        let asked = CachedCredentials::new(HINT, move || {
            let made = asking.clone().build().map_err(|e| e.to_string())?;
            Ok(made.credentials().clone())
        })?;
        builder = builder.with_credentials(asked.clone());
        renewable = Some(asked);
    }
    let store = builder.build().map_err(|e| e.to_string())?;
    Ok((store, renewable))
}

/// Returns true if the address of a service uses unencrypted connections.
fn is_plain(endpoint: &str) -> bool {
    endpoint.starts_with("http://")
}
