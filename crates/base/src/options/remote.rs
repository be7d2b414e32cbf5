//! Settings for access to remote objects, as plain values.

use std::path::PathBuf;
use std::time::Duration;

/// How the objects of a mount are accessed, and where their bytes are cached.
#[derive(Clone)]
pub struct RemoteSettings {
    /// The address of the service, for services that speak another one's protocol.
    pub endpoint: Option<String>,
    /// The region of the bucket.
    pub region: Option<String>,
    /// The name of the profile in the user's configuration.
    pub profile: Option<String>,
    /// Whether requests are sent without credentials.
    pub anonymous: bool,
    /// Whether the requester pays for requests.
    pub requester_pays: bool,
    /// Headers of every request, which may be secret.
    pub headers: Vec<(String, String)>,
    /// Whether packs beside stores are used.
    pub packs: bool,
    /// The time limit of a read, whatever the server does.
    pub timeout: Duration,
    /// How long a version is assumed to be the newest.
    pub check: Duration,
    /// The most bytes that are cached on disk; 0 for none.
    pub disk_cache: u64,
    /// The directory of the cache; `None` for the user's default.
    pub cache_dir: Option<PathBuf>,
}

impl Default for RemoteSettings {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            profile: None,
            anonymous: false,
            requester_pays: false,
            headers: Vec::new(),
            packs: true,
            timeout: Duration::from_secs(60),
            check: Duration::from_secs(5),
            disk_cache: 4 << 30,
            cache_dir: None,
        }
    }
}

impl std::fmt::Debug for RemoteSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let headers: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("RemoteSettings")
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("profile", &self.profile)
            .field("anonymous", &self.anonymous)
            .field("requester_pays", &self.requester_pays)
            .field("headers", &headers)
            .field("packs", &self.packs)
            .field("timeout", &self.timeout)
            .field("check", &self.check)
            .field("disk_cache", &self.disk_cache)
            .field("cache_dir", &self.cache_dir)
            .finish()
    }
}
