//! The location of checkouts in a bucket, and of their local copy.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ADDRESS;
use crate::checkout::records::form::Form;
use crate::store::against::digest;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::options::RemoteSettings;
use npyfs_io::own_dir::state_home;
use npyfs_io::remote::Address;

/// The form of a local copy, in its file with the address.
const FORM: Form = Form {
    name: "npyfs copy",
    version: 1,
};

/// An address in a bucket, and access settings that differ from the defaults.
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

    /// Returns the content of the file of a copy.
    pub(super) fn print(&self) -> Result<String> {
        let fields = serde_json::to_string(self).map_err(|e| Error::damaged(e.to_string()))?;
        Ok(FORM.object(&fields))
    }

    /// Parses the content of the file of a copy. A copy of another form is refused by its number.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let fields = FORM.fields(text)?;
        serde_json::from_str(&fields).map_err(|e| Error::damaged(e.to_string()))
    }

    /// Returns the address.
    pub fn address(&self) -> Option<Address> {
        Address::parse(Path::new(&self.address))?.ok()
    }

    /// Fills in settings that are not given.
    pub fn fill(&self, settings: &RemoteSettings) -> RemoteSettings {
        let mut settings = settings.clone();
        settings.endpoint = settings.endpoint.or_else(|| self.endpoint.clone());
        settings.region = settings.region.or_else(|| self.region.clone());
        settings.profile = settings.profile.or_else(|| self.profile.clone());
        settings
    }
}

impl super::Mirror {
    /// Returns the path of the local copy of the directory at an address.
    ///
    /// Several hosts may share one home directory: each has its own copy.
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

    /// Returns the location that the directory at a path is a copy of; `None` if it is none.
    pub fn place_of(path: &Path) -> Result<Option<BucketPlace>> {
        let path = path.join(ADDRESS);
        let about = |e: Error| e.about(path.display());
        match std::fs::read_to_string(&path).map_err(Error::from) {
            Ok(text) => BucketPlace::parse(&text).map(Some).map_err(about),
            Err(e) if matches!(e.kind, ErrorKind::NotFound | ErrorKind::NotDirectory) => Ok(None),
            Err(e) => Err(about(e)),
        }
    }
}
