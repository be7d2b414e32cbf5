//! The options of a mounted or opened store, as plain values.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// The policy for files that a store's file refers to: external raw files, external links, sources of virtual datasets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum External {
    /// Refuses all of them (the default).
    #[default]
    Deny,
    /// Allows files in or below the directory of the file that refers to them, reached without symbolic links.
    SameDir,
    /// Allows every file that the daemon's user may read.
    Allow,
}

impl FromStr for External {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "deny" => Ok(Self::Deny),
            "same-dir" => Ok(Self::SameDir),
            "allow" => Ok(Self::Allow),
            other => Err(format!(
                "external={other}: expected deny, same-dir or allow"
            )),
        }
    }
}

/// A view: the same store under other names, without conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Zarr groups and arrays, version 2.
    Zarr,
    /// Zarr groups and arrays, version 3.
    Zarr3,
    /// The files that daf's own reader expects.
    Daf,
    /// Tables as files of Arrow's IPC format.
    Arrow,
}

impl View {
    /// All views.
    pub const ALL: [Self; 4] = [Self::Zarr, Self::Zarr3, Self::Daf, Self::Arrow];

    /// Returns its name: the value of `view=`, and its directory in `.npyfs`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zarr => "zarr",
            Self::Zarr3 => "zarr3",
            Self::Daf => "daf",
            Self::Arrow => "arrow",
        }
    }
}

impl FromStr for View {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let view = Self::ALL.into_iter().find(|view| view.name() == text);
        view.ok_or("expected zarr, zarr3, daf or arrow")
    }
}

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

/// Options that change what the tree shows or how much memory the mount may use.
#[derive(Clone, Debug)]
pub struct FsOptions {
    /// The owner shown for every entry; by default the owner of the store file.
    pub uid: Option<u32>,
    /// The group shown for every entry; by default the group of the store file.
    pub gid: Option<u32>,
    /// Permission bits to remove from every entry.
    pub umask: Option<u32>,
    /// The character shown in place of `#` in the names of daf objects.
    pub sep: u8,
    /// Whether HDF5 attributes are shown as extended attributes.
    pub xattrs: bool,
    /// The bound of the cache of decoded blocks, in bytes.
    pub cache_size: u64,
    /// The policy for references to other files.
    pub external: External,
    /// The largest fixed-width text array that is made from variable-length text, in bytes. Larger ones are shown as
    /// the arrays that they are stored as. `None`: the defaults of [`FsOptions::text_limit`] and
    /// [`FsOptions::strings_limit`].
    pub text_limit: Option<u64>,
    /// Whether the headers of arrays fill a page, so that rows of whole pages share none.
    pub aligned: bool,
    /// Whether requests of a program that reads alone are served on its processor, its next request is polled for, and
    /// several threads decode the chunk it waits for.
    pub scheduling: bool,
    /// The name of the format to show stores in, whatever they declare.
    pub kind: Option<String>,
    /// The path in the store of the directory that is shown; `None` for the whole store.
    pub subpath: Option<PathBuf>,
    /// The view that is shown in place of the store's own tree.
    pub view: Option<View>,
    /// The name of the dimension along which Zarr views join the stores of a directory; `None` if they are not joined.
    pub join: Option<String>,
    /// Whether a join that would leave something out is refused.
    pub strict: bool,
    /// How objects in buckets and on web servers are accessed.
    pub remote: Arc<RemoteSettings>,
    /// The most bytes of kept copies of arrays on disk; with 0, none is kept or served. `None`: for a remote store the
    /// size of the disk cache for objects, otherwise 0.
    pub keep: Option<u64>,
    /// The interval at which a mount of commits looks for new ones; `None`: it does not change.
    pub follow: Option<Duration>,
    /// The number of files in every Arkouda set; a set with another number is incomplete. `None` accepts any number.
    pub locales: Option<u64>,
}

impl Default for FsOptions {
    fn default() -> Self {
        Self {
            uid: None,
            gid: None,
            umask: None,
            sep: b'#',
            xattrs: false,
            cache_size: 256 << 20,
            external: External::Deny,
            text_limit: None,
            aligned: false,
            scheduling: true,
            kind: None,
            subpath: None,
            view: None,
            join: None,
            strict: false,
            remote: Arc::default(),
            keep: None,
            follow: None,
            locales: None,
        }
    }
}

impl FsOptions {
    /// Returns the most bytes of kept copies of arrays, for a remote (`elsewhere`) or local store.
    pub fn kept_bytes(&self, elsewhere: bool) -> u64 {
        let default = if elsewhere { self.remote.disk_cache } else { 0 };
        self.keep.unwrap_or(default)
    }

    const TEXT_LIMIT: u64 = 4 << 30;

    /// Returns whether stores may be shown in the format of this name.
    pub fn may_be(&self, format: &str) -> bool {
        self.kind.as_deref().is_none_or(|kind| kind == format)
    }

    /// Returns the limit for variable-length text, in bytes of the fixed-width array.
    pub fn text_limit(&self) -> u64 {
        self.text_limit.unwrap_or(Self::TEXT_LIMIT)
    }

    /// Returns the limit for strings that take `stored` bytes in the file: unless the limit was set, the array may be
    /// 64 times as large, if that is more than the limit for text.
    pub fn strings_limit(&self, stored: u64) -> u64 {
        self.text_limit
            .unwrap_or(Self::TEXT_LIMIT.max(stored.saturating_mul(64)))
    }
}
