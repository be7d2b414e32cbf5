//! The servers that objects lie on, and requests to them.

mod bucket;
mod connections;
mod credentials;
mod patience;
mod profile;
mod services;
mod sieve;
mod web;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::SystemTime;

use object_store::path::Path;

use self::bucket::Bucket;
pub(super) use self::bucket::{in_words, objects_of, reasons};
pub(super) use self::web::{LARGEST_PACK, Room};
use super::address::{Address, Scheme};
use super::error::{Cause, RemoteError};
use npyfs_base::options::RemoteSettings;

/// The identity of a version of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// Size in bytes.
    pub size: u64,
    /// The entity tag, as the server writes it.
    pub etag: Option<String>,
    /// The time of the last change; the epoch if the server does not say.
    pub modified: SystemTime,
}

impl Version {
    /// Returns true if both are the same version, as far as the servers report it.
    pub(super) fn is(&self, other: &Self) -> bool {
        let same = match (&self.etag, &other.etag) {
            (Some(own), Some(others)) => own == others,
            _ => self.modified == other.modified,
        };
        same && self.size == other.size
    }

    /// Returns true if a listing and a response tell of the same version. Some listings leave out the quotes of entity
    /// tags.
    pub fn is_listed_as(&self, listed: &Self) -> bool {
        let bare = |version: &Self| {
            let etag = version.etag.as_deref()?;
            Some(etag.trim_matches('"').to_owned())
        };
        match (bare(self), bare(listed)) {
            (Some(own), Some(listed_as)) => own == listed_as && self.size == listed.size,
            _ => self.is(listed),
        }
    }

    /// Returns the entity tag if servers compare it byte for byte (a strong tag).
    fn strong(&self) -> Option<&str> {
        self.etag.as_deref().filter(|tag| !tag.starts_with("W/"))
    }
}

/// Bytes of an object, and the version that they belong to.
pub(super) struct Fetched {
    pub(super) version: Version,
    /// The offset of the bytes. A server may send the whole object.
    pub(super) start: u64,
    pub(super) bytes: Vec<u8>,
    /// The share of the common memory that a whole document takes.
    pub(super) room: Option<Room>,
}

/// One page of the names directly below a prefix.
pub(super) struct Names {
    pub(super) objects: Vec<(String, Version)>,
    /// Names of prefixes.
    pub(super) prefixes: Vec<String>,
    /// Names that cannot be file names, and the reasons.
    pub(super) left_out: Vec<(String, String)>,
    /// The token of the next page; `None` for the last page.
    pub(super) next: Option<String>,
}

/// A local file, read as an object.
pub(super) struct LocalFile {
    file: File,
    size: u64,
    modified: SystemTime,
}

impl LocalFile {
    /// Opens a file.
    fn open(path: &std::path::Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::other("not a file"));
        }
        Ok(Self {
            file,
            size: meta.len(),
            modified: meta.modified()?,
        })
    }

    /// Returns the version of the file when it was opened.
    fn version(&self) -> Version {
        Version {
            size: self.size,
            etag: None,
            modified: self.modified,
        }
    }

    /// Reads a range.
    fn get(&self, range: Range<u64>) -> Result<Fetched, RemoteError> {
        let start = range.start.min(self.size);
        let len = range.end.min(self.size).saturating_sub(start);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        let read = self.file.read_exact_at(&mut bytes, start);
        read.map_err(|e| RemoteError {
            cause: Cause::Failed,
            message: e.to_string(),
        })?;
        Ok(Fetched {
            version: self.version(),
            start,
            bytes,
            room: None,
        })
    }
}

/// A server that holds an object.
#[derive(Clone)]
pub(super) enum Origin {
    /// A bucket, and the object's name in it.
    Bucket(Arc<Bucket>, Path),
    /// A web server.
    Web(Arc<web::Site>),
    /// The local disk, for packs that are built from a copy.
    Local(Arc<LocalFile>),
}

impl Origin {
    /// Prepares requests for an address; sends none yet.
    pub(super) fn new(address: &Address, settings: &RemoteSettings) -> Result<Self, RemoteError> {
        if address.scheme() == Scheme::Web {
            return Ok(Self::Web(Arc::new(web::Site::new(address, settings)?)));
        }
        // Prefixes are given to the listing itself, unchanged.
        let key = if address.is_prefix() {
            ""
        } else {
            address.key()
        };
        let path = Path::parse(key)
            .map_err(|e| RemoteError::new(Cause::Unsupported, &address.to_string(), e))?;
        Ok(Self::Bucket(bucket::open(address, settings)?, path))
    }

    /// Opens a local file.
    pub(super) fn local(path: &std::path::Path) -> io::Result<Self> {
        Ok(Self::Local(Arc::new(LocalFile::open(path)?)))
    }

    /// Returns the origin with `suffix` appended to the name; `None` if such a name cannot be expressed.
    pub(super) fn beside(&self, suffix: &str) -> Option<Self> {
        match self {
            Self::Bucket(bucket, path) => {
                let path = Path::parse(format!("{}{suffix}", path.as_ref())).ok()?;
                Some(Self::Bucket(bucket.clone(), path))
            }
            Self::Web(site) => Some(Self::Web(Arc::new(site.beside(suffix)?))),
            Self::Local(_) => None,
        }
    }

    /// Fetches a range, of one version if `of` is given. A range past the end is cut.
    pub(super) async fn get(
        &self,
        range: Range<u64>,
        of: Option<&Version>,
    ) -> Result<Arc<Fetched>, RemoteError> {
        match self {
            Self::Bucket(bucket, path) => bucket.get(path, range, of).await.map(Arc::new),
            Self::Web(site) => site.get(range, of).await,
            Self::Local(file) => file.get(range).map(Arc::new),
        }
    }

    /// Asks for the current version.
    pub(super) async fn head(&self) -> Result<Version, RemoteError> {
        match self {
            Self::Bucket(bucket, path) => bucket.head(path).await,
            Self::Web(site) => site.head().await,
            Self::Local(file) => Ok(file.version()),
        }
    }

    /// Fetches a page of the names directly below a prefix: the first one, or the one after a token.
    pub(super) async fn list(
        &self,
        prefix: &str,
        after: Option<String>,
    ) -> Result<Names, RemoteError> {
        match self {
            Self::Bucket(bucket, _) => bucket.list(prefix, after).await,
            Self::Web(_) | Self::Local(_) => Err(RemoteError {
                cause: Cause::Unsupported,
                message: "only buckets list what is in them".to_owned(),
            }),
        }
    }
}
