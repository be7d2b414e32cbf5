//! Identifiers of a version: a name for its cached bytes, and a number.

use std::time::SystemTime;

use xxhash_rust::xxh3::Xxh3;

use super::super::address::{Address, reveal};
use super::super::origin::Version;
use npyfs_base::options::RemoteSettings;

/// The form of the files of versions, which is part of their names: files of other forms are left alone.
const FORM: u8 = 1;

/// A hash of parts. The boundaries between parts count.
struct Parts(Xxh3);

impl Parts {
    fn new() -> Self {
        Self(Xxh3::new())
    }

    fn add(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }
}

/// Returns the prefix of the keys of all versions of an object. It differs between users with different credentials.
pub(super) fn of_object(address: &Address, settings: &RemoteSettings) -> String {
    let mut parts = Parts::new();
    parts.add(&[FORM]);
    parts.add(address.to_string().as_bytes());
    let endpoint = settings.endpoint.as_deref().map(reveal);
    parts.add(endpoint.unwrap_or_default().as_bytes());
    for text in [&settings.region, &settings.profile] {
        parts.add(text.as_deref().unwrap_or_default().as_bytes());
    }
    parts.add(&[u8::from(settings.anonymous)]);
    let url = address.url();
    parts.add(url.query().unwrap_or_default().as_bytes());
    parts.add(url.username().as_bytes());
    parts.add(url.password().unwrap_or_default().as_bytes());
    for (name, value) in &settings.headers {
        parts.add(name.as_bytes());
        parts.add(value.as_bytes());
    }
    for name in [
        "AWS_ACCESS_KEY_ID",
        "AWS_PROFILE",
        "AWS_ROLE_ARN",
        "AWS_CONFIG_FILE",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AZURE_STORAGE_ENDPOINT",
        "AZURE_CLIENT_ID",
        "STORAGE_EMULATOR_HOST",
        "AZURE_STORAGE_ACCOUNT_NAME",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ] {
        parts.add(std::env::var(name).unwrap_or_default().as_bytes());
    }
    format!("{:032x}", parts.0.digest128())
}

/// Returns the name of the cached bytes of a version.
pub(super) fn of(address: &Address, version: &Version, settings: &RemoteSettings) -> String {
    let mut parts = Parts::new();
    parts.add(version.etag.as_deref().unwrap_or_default().as_bytes());
    parts.add(&version.size.to_le_bytes());
    let since = version.modified.duration_since(SystemTime::UNIX_EPOCH);
    parts.add(&since.map_or(0, |since| since.as_nanos()).to_le_bytes());
    let object = of_object(address, settings);
    format!("{object}-{:032x}", parts.0.digest128())
}

/// Returns a number that is unique to this version of this object, as far as can be known.
pub(super) fn number(address: &Address, version: &Version) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(address.to_string().as_bytes());
    hash.update(version.etag.as_deref().unwrap_or_default().as_bytes());
    hash.update(&version.size.to_le_bytes());
    let since = version.modified.duration_since(SystemTime::UNIX_EPOCH);
    hash.update(&since.map_or(0, |since| since.as_nanos()).to_le_bytes());
    hash.digest()
}
