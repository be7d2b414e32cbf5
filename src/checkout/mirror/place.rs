//! Where checkouts lie in a bucket, and where their copy on this machine is.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ADDRESS;
use crate::checkout::against::digest;
use crate::io::own_dir::state_home;
use crate::io::remote::Address;
use crate::options::RemoteSettings;

/// An address in a bucket, and how it is asked for where the defaults do not say it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BucketPlace {
    address: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    region: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    profile: Option<String>,
}

impl BucketPlace {
    pub(super) fn of(address: &Address, settings: &RemoteSettings) -> Self {
        Self {
            address: address.to_string(),
            endpoint: settings.endpoint.clone(),
            region: settings.region.clone(),
            profile: settings.profile.clone(),
        }
    }

    /// Returns the address.
    pub fn address(&self) -> Option<Address> {
        Address::parse(Path::new(&self.address))?.ok()
    }

    /// Fills in what settings do not say.
    pub fn fill(&self, settings: &RemoteSettings) -> RemoteSettings {
        let mut settings = settings.clone();
        settings.endpoint = settings.endpoint.or_else(|| self.endpoint.clone());
        settings.region = settings.region.or_else(|| self.region.clone());
        settings.profile = settings.profile.or_else(|| self.profile.clone());
        settings
    }
}

impl super::Mirror {
    /// Returns the path of the copy of what lies at an address.
    ///
    /// Several hosts may have one home: each has a copy of its own.
    pub fn path(address: &Address, settings: &RemoteSettings) -> PathBuf {
        let home = settings.cache_dir.clone().or_else(state_home);
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let shown = address.to_string();
        let key = format!("{} {:?}", shown.trim_end_matches('/'), settings.endpoint);
        let name = shown.trim_end_matches('/').rsplit('/').next();
        let name = format!(
            "{}-{}",
            name.unwrap_or_default(),
            digest(key.as_bytes()).get(..16).unwrap_or_default()
        );
        home.unwrap_or_else(std::env::temp_dir)
            .join("checkouts")
            .join(match host.trim() {
                "" => "localhost",
                host => host,
            })
            .join(name)
    }

    /// Returns what the directory at a path is a copy of, if it is one.
    pub fn place_of(path: &Path) -> Option<BucketPlace> {
        serde_json::from_slice(&std::fs::read(path.join(ADDRESS)).ok()?).ok()
    }
}
