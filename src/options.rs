//! The options of a mounted or opened store, as plain values.

mod remote;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

pub use remote::RemoteSettings;

/// The policy for files that a file of the store names: external raw files, external links, sources of virtual
/// datasets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum External {
    /// Never (the default).
    #[default]
    Deny,
    /// Only files in the directory of the file that names them, or below it, and through no symbolic link.
    SameDir,
    /// Whatever the daemon's user may read.
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

/// The same store under other names, nothing converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Groups and arrays of Zarr, version 2.
    Zarr,
    /// Groups and arrays of Zarr, version 3.
    Zarr3,
    /// The files of daf's own reader.
    Daf,
}

impl View {
    /// All views.
    pub const ALL: [Self; 3] = [Self::Zarr, Self::Zarr3, Self::Daf];

    /// Returns its name: what `view=` takes, and its directory in `.npyfs`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zarr => "zarr",
            Self::Zarr3 => "zarr3",
            Self::Daf => "daf",
        }
    }
}

impl FromStr for View {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let view = Self::ALL.into_iter().find(|view| view.name() == text);
        view.ok_or("expected zarr, zarr3 or daf")
    }
}

/// Choices that change what the tree shows or how much memory serving it may take.
#[derive(Clone, Debug)]
pub struct FsOptions {
    /// Owner shown for every entry; by default the owner of the store file.
    pub uid: Option<u32>,
    /// Group shown for every entry; by default the group of the store file.
    pub gid: Option<u32>,
    /// Permission bits to take away from every entry.
    pub umask: Option<u32>,
    /// Character shown in place of `#` in the names of daf objects.
    pub sep: u8,
    /// Show HDF5 attributes as extended attributes.
    pub xattrs: bool,
    /// Budget of the cache of decoded blocks, in bytes.
    pub cache_size: u64,
    /// Policy for references that lead out of a file.
    pub external: External,
    /// Largest array of fixed-width text that is made from text of variable length, in bytes; past it the arrays that
    /// it is stored as are shown. `None`: the defaults of [`FsOptions::text_limit`] and [`FsOptions::strings_limit`].
    pub text_limit: Option<u64>,
    /// Serve a program that asks alone where it runs, look out for its next request, and have several threads decode the chunk
    /// that it waits for.
    pub scheduling: bool,
    /// The name of the format that stores are shown by, whatever they say of themselves.
    pub kind: Option<String>,
    /// The path in the store of the directory that is shown; `None`: all of it.
    pub subpath: Option<PathBuf>,
    /// The view that is shown in the place of the store's own tree.
    pub view: Option<View>,
    /// The name of the dimension along which views of Zarr join the stores of a directory; `None`: each store stays one.
    pub join: Option<String>,
    /// How objects in buckets and on web servers are asked for.
    pub remote: Arc<RemoteSettings>,
    /// Bytes that copies of arrays may take which are kept on disk; 0: none is kept, and none is served. `None`: as many as
    /// are kept of objects that lie elsewhere, for a store that does, and else none.
    pub keep: Option<u64>,
    /// The time after which a mount of what is committed asks for new commits; `None`: it stays as it is.
    pub follow: Option<Duration>,
    /// The number of files that every set of Arkouda has: one with others is incomplete. `None`: as many as there are.
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
            scheduling: true,
            kind: None,
            subpath: None,
            view: None,
            join: None,
            remote: Arc::default(),
            keep: None,
            follow: None,
            locales: None,
        }
    }
}

impl FsOptions {
    /// Returns the bytes that kept copies of arrays may take, of a store that lies elsewhere or not.
    pub fn kept_bytes(&self, elsewhere: bool) -> u64 {
        let default = if elsewhere { self.remote.disk_cache } else { 0 };
        self.keep.unwrap_or(default)
    }

    const TEXT_LIMIT: u64 = 4 << 30;

    /// Returns whether stores may be shown by the format of this name.
    pub fn may_be(&self, format: &str) -> bool {
        self.kind.as_deref().is_none_or(|kind| kind == format)
    }

    /// Returns the limit for text of variable length, in bytes of the fixed-width array.
    pub fn text_limit(&self) -> u64 {
        self.text_limit.unwrap_or(Self::TEXT_LIMIT)
    }

    /// Returns the limit for strings that take `stored` bytes in the file: unless it was chosen, they may grow 64-fold
    /// where that is more than the limit for text.
    pub fn strings_limit(&self, stored: u64) -> u64 {
        self.text_limit
            .unwrap_or(Self::TEXT_LIMIT.max(stored.saturating_mul(64)))
    }
}
