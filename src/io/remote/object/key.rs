//! What a version is known by: a name for what is kept of it, and a number.

use std::time::SystemTime;

use xxhash_rust::xxh3::Xxh3;

use super::super::address::Address;
use super::super::origin::Version;
use crate::options::RemoteSettings;

/// Returns the name of the version's files: another one for whoever has other credentials.
pub(super) fn of(address: &Address, version: &Version, settings: &RemoteSettings) -> String {
    let mut hash = Xxh3::new();
    let mut part = |bytes: &[u8]| {
        hash.update(&(bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(address.to_string().as_bytes());
    part(version.etag.as_deref().unwrap_or_default().as_bytes());
    part(&version.size.to_le_bytes());
    let since = version.modified.duration_since(SystemTime::UNIX_EPOCH);
    part(&since.map_or(0, |since| since.as_nanos()).to_le_bytes());
    for text in [&settings.endpoint, &settings.region, &settings.profile] {
        part(text.as_deref().unwrap_or_default().as_bytes());
    }
    part(&[u8::from(settings.anonymous)]);
    part(address.url().query().unwrap_or_default().as_bytes());
    part(address.url().username().as_bytes());
    part(address.url().password().unwrap_or_default().as_bytes());
    for (name, value) in &settings.headers {
        part(name.as_bytes());
        part(value.as_bytes());
    }
    for name in [
        "AWS_ACCESS_KEY_ID",
        "AWS_PROFILE",
        "AZURE_STORAGE_ACCOUNT_NAME",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ] {
        part(std::env::var(name).unwrap_or_default().as_bytes());
    }
    format!("{:032x}", hash.digest128())
}

/// Returns a number that no other version of any object has, as far as one can tell.
pub(super) fn number(address: &Address, version: &Version) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(address.to_string().as_bytes());
    hash.update(version.etag.as_deref().unwrap_or_default().as_bytes());
    hash.update(&version.size.to_le_bytes());
    let since = version.modified.duration_since(SystemTime::UNIX_EPOCH);
    hash.update(&since.map_or(0, |since| since.as_nanos()).to_le_bytes());
    hash.digest()
}
