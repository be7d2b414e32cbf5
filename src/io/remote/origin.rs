//! Where an object lies, and asking for ranges of it.

mod amazon;
mod bucket;
mod connections;
mod container;
mod credentials;
mod failure;
mod local;
mod patience;
mod profile;
mod sieve;
mod web;

use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use object_store::ObjectStore;
use object_store::path::Path;

use self::bucket::Bucket;
use super::address::{Address, Scheme};
use super::error::{Cause, RemoteError, without_secrets};
use crate::options::RemoteSettings;

/// What tells one version of an object from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Bytes.
    pub size: u64,
    /// The entity tag, as the server writes it.
    pub etag: Option<String>,
    /// The time of the last change; the epoch if the server does not say.
    pub modified: SystemTime,
}

impl Version {
    /// Returns true if both are the same version, as far as servers say.
    pub(super) fn is(&self, other: &Self) -> bool {
        let same = match (&self.etag, &other.etag) {
            (Some(own), Some(others)) => own == others,
            _ => self.modified == other.modified,
        };
        same && self.size == other.size
    }

    /// Returns the entity tag if servers compare it byte for byte.
    fn strong(&self) -> Option<&str> {
        self.etag.as_deref().filter(|tag| !tag.starts_with("W/"))
    }
}

/// Bytes of an object, and the version that they are of.
pub(super) struct Got {
    pub(super) version: Version,
    /// Where they begin: a server may send all of it.
    pub(super) start: u64,
    pub(super) bytes: Vec<u8>,
}

/// A part of the names directly below a prefix.
pub(super) struct Names {
    pub(super) objects: Vec<(String, Version)>,
    /// Names that others go on behind.
    pub(super) prefixes: Vec<String>,
    /// Names that cannot be names of files, and the reasons.
    pub(super) left_out: Vec<(String, String)>,
    /// What the next part is asked for with; `None`: this was the last.
    pub(super) next: Option<String>,
}

/// A place that objects can be asked of.
#[derive(Clone)]
pub(super) enum Origin {
    /// A bucket, and the object's name in it.
    Bucket(Arc<Bucket>, Path),
    /// A web server.
    Web(Arc<web::Site>),
    /// This machine's disk, for what is made of a copy.
    Local(Arc<local::LocalFile>),
}

impl Origin {
    /// Prepares for an address; asks nothing yet.
    pub(super) fn new(address: &Address, settings: &RemoteSettings) -> Result<Self, RemoteError> {
        if address.scheme() == Scheme::Web {
            return Ok(Self::Web(Arc::new(web::Site::new(address, settings)?)));
        }
        // A prefix is told where it is listed, as it is.
        let key = if address.is_prefix() {
            ""
        } else {
            address.key()
        };
        let path = Path::parse(key)
            .map_err(|e| RemoteError::new(Cause::Unsupported, &address.to_string(), e))?;
        Ok(Self::Bucket(bucket::open(address, settings)?, path))
    }

    /// Takes a file of this machine.
    pub(super) fn local(path: &std::path::Path) -> std::io::Result<Self> {
        Ok(Self::Local(Arc::new(local::LocalFile::open(path)?)))
    }

    /// Returns what has the same name with `suffix` behind it; `None` if there is no way to name it.
    pub(super) fn beside(&self, suffix: &str) -> Option<Self> {
        match self {
            Self::Bucket(store, path) => {
                let path = Path::parse(format!("{}{suffix}", path.as_ref())).ok()?;
                Some(Self::Bucket(store.clone(), path))
            }
            Self::Web(site) => Some(Self::Web(Arc::new(site.beside(suffix)?))),
            Self::Local(_) => None,
        }
    }

    /// Asks for a range, of one version if there is one to ask for. A range that ends behind the end is cut.
    pub(super) async fn get(
        &self,
        range: Range<u64>,
        of: Option<&Version>,
    ) -> Result<Got, RemoteError> {
        match self {
            Self::Bucket(store, path) => bucket::get(store, path, range, of).await,
            Self::Web(site) => site.get(range, of).await,
            Self::Local(file) => file.get(range),
        }
    }

    /// Asks which version there is.
    pub(super) async fn head(&self) -> Result<Version, RemoteError> {
        match self {
            Self::Bucket(store, path) => bucket::head(store, path).await,
            Self::Web(site) => site.head().await,
            Self::Local(file) => Ok(file.version()),
        }
    }

    /// Asks for a part of the names directly below a prefix, the first one or the one behind another.
    pub(super) async fn list(
        &self,
        prefix: &str,
        after: Option<String>,
    ) -> Result<Names, RemoteError> {
        match self {
            Self::Bucket(store, _) => bucket::list(store, prefix, after).await,
            Self::Web(_) | Self::Local(_) => Err(RemoteError {
                cause: Cause::Unsupported,
                message: "only buckets list what is in them".to_owned(),
            }),
        }
    }
}

/// Returns the bucket of an address, to be written to, too; asks nothing yet.
pub(super) fn objects_of(
    address: &Address,
    settings: &RemoteSettings,
) -> Result<Arc<dyn ObjectStore>, RemoteError> {
    Ok(bucket::open(address, settings)?.objects())
}

/// Returns a failure of a bucket and what caused it in one line, without what may be secret.
pub(super) fn reasons(error: &object_store::Error) -> String {
    without_secrets(&bucket::reasons(error))
}
