//! Commits in a bucket: objects that are put on the condition that there is none of the name.
//!
//! The answer to a put may be lost, or refused by a server that has done it. So no failure says that nothing happened: whoever
//! asked reads the object, which says who wrote it.

use std::future::Future;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{Error as StoreError, ObjectStore, ObjectStoreExt, PutMode, PutOptions};

use super::place::{CommitPlace, Creation};
use crate::error::{Error, ErrorKind, Result};
use crate::io::remote::wait;

/// A prefix of a bucket as a place of commits.
pub(super) struct CommitBucket {
    objects: Arc<dyn ObjectStore>,
    prefix: Path,
    /// The address of the prefix, for messages.
    address: String,
}

impl CommitBucket {
    /// Takes the objects below a prefix of a bucket.
    pub(super) fn new(objects: Arc<dyn ObjectStore>, prefix: Path, address: String) -> Self {
        Self {
            objects,
            prefix,
            address,
        }
    }

    /// Asks the bucket about an object.
    fn ask<T: Send + 'static, F>(
        &self,
        name: &str,
        ask: impl FnOnce(Arc<dyn ObjectStore>, Path) -> F,
    ) -> Result<std::result::Result<T, StoreError>>
    where
        F: Future<Output = std::result::Result<T, StoreError>> + Send + 'static,
    {
        let asked = ask(self.objects.clone(), self.prefix.clone().join(name));
        wait(asked).map_err(|e| Error::from(e).about(self.path(name)))
    }

    fn failed(&self, error: &StoreError, name: &str) -> Error {
        let kind = match error {
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
                ErrorKind::Denied
            }
            StoreError::NotSupported { .. } | StoreError::NotImplemented { .. } => {
                ErrorKind::Os(libc::EOPNOTSUPP)
            }
            _ => ErrorKind::Os(libc::EIO),
        };
        Error::new(kind, error.to_string()).about(self.path(name))
    }
}

impl CommitPlace for CommitBucket {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let read = self.ask(name, |objects, path| async move {
            objects.get(&path).await?.bytes().await
        });
        match read? {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(StoreError::NotFound { .. }) => Ok(None),
            Err(e) => Err(self.failed(&e, name)),
        }
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<Creation> {
        let payload = bytes.to_vec();
        let put = self.ask(name, |objects, path| async move {
            let options = PutOptions::from(PutMode::Create);
            objects.put_opts(&path, payload.into(), options).await
        });
        match put? {
            Ok(_) => Ok(Creation::Made),
            Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => {
                Ok(Creation::Taken)
            }
            Err(e) => match self.failed(&e, name) {
                // Refused before anything was done.
                error if error.kind == ErrorKind::Denied => Err(error),
                error if error.kind == ErrorKind::Os(libc::EOPNOTSUPP) => Err(error),
                error => Ok(Creation::Unclear(error)),
            },
        }
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let payload = bytes.to_vec();
        let put = self.ask(name, |objects, path| async move {
            objects.put(&path, payload.into()).await
        });
        put?.map(drop).map_err(|e| self.failed(&e, name))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let removed = self.ask(
            name,
            |objects, path| async move { objects.delete(&path).await },
        );
        match removed? {
            Err(StoreError::NotFound { .. }) | Ok(()) => Ok(()),
            Err(e) => Err(self.failed(&e, name)),
        }
    }

    fn names_from(&self, name: &str) -> Result<Vec<String>> {
        let prefix = self.prefix.clone();
        let listed = self.ask(name, |objects, _| async move {
            objects.list_with_delimiter(Some(&prefix)).await
        });
        let listed = listed?.map_err(|e| self.failed(&e, name))?;
        let names = listed
            .objects
            .iter()
            .filter_map(|meta| meta.location.filename());
        let mut names: Vec<String> = names
            .filter(|other| *other >= name && !other.starts_with('.'))
            .map(str::to_owned)
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.address.trim_end_matches('/'))
    }
}
