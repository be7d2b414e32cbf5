//! The seam of garbage collection: a place has names with sizes and ages, and names can be removed.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use crate::checkout::history::commits::write_id;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::dir::Dir;
use npyfs_io::storage::Storage;

/// The prefix of files that are created to read the file server's clock.
pub(super) const CLOCK: &str = ".gc-";

/// A name in a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundName {
    pub(super) name: String,
    /// Whether it has names below it.
    pub(super) is_dir: bool,
    /// The bytes that its removal frees, without those of names below it.
    pub(super) bytes: u64,
    /// The time of its last change, by the clock of the place, in nanoseconds since 1970.
    pub(super) changed: i64,
}

/// A place with names.
pub(super) trait GcPlace {
    /// Returns the time by the clock of the file server: that of this host may be hours ahead.
    fn now(&self) -> Result<i64>;

    /// Returns true if other hosts may write to it whose locks are not visible here.
    fn is_shared(&self) -> Result<bool>;

    /// Returns all names that npyfs may have created, in order.
    fn found(&self) -> Result<Vec<FoundName>>;

    /// Returns the place below a name.
    fn below(&self, name: &str) -> Result<Box<dyn GcPlace>>;

    /// Removes a name and everything below it. False if it is already gone.
    fn remove(&self, found: &FoundName) -> Result<bool>;
}

/// A directory as a place.
pub(super) struct GcDirectory {
    pub(super) dir: Dir,
    pub(super) storage: Arc<dyn Storage>,
}

impl GcDirectory {
    fn about(&self, error: std::io::Error, name: &str) -> Error {
        Error::from(error).about(self.dir.path().join(name).display())
    }
}

impl GcPlace for GcDirectory {
    fn now(&self) -> Result<i64> {
        let name = format!("{CLOCK}{}", write_id()?);
        let made = self.storage.create(&self.dir, &name);
        let made: File = made.map_err(|e| self.about(e, ""))?;
        let meta = made.metadata().map_err(|e| self.about(e, &name));
        let _ = self.storage.remove(&self.dir, &name);
        Ok(changed(&meta?))
    }

    fn is_shared(&self) -> Result<bool> {
        self.dir.is_shared().map_err(|e| self.about(e, ""))
    }

    fn found(&self) -> Result<Vec<FoundName>> {
        let mut all = Vec::new();
        for (name, kind) in self.dir.names().map_err(|e| self.about(e, ""))? {
            let Ok(name) = name.into_string() else {
                continue;
            };
            if !kind.is_dir() && !kind.is_file() {
                continue;
            }
            match self.dir.size_and_change(&name) {
                // Its writer has removed it.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                looked => {
                    let (bytes, changed) = looked.map_err(|e| self.about(e, &name))?;
                    all.push(FoundName {
                        is_dir: kind.is_dir(),
                        bytes: if kind.is_dir() { 0 } else { bytes },
                        name,
                        changed,
                    });
                }
            }
        }
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    fn below(&self, name: &str) -> Result<Box<dyn GcPlace>> {
        Ok(Box::new(Self {
            dir: self.dir.below(name)?,
            storage: self.storage.clone(),
        }))
    }

    fn remove(&self, found: &FoundName) -> Result<bool> {
        let removed = match found.is_dir {
            true => self.dir.remove_all(&found.name),
            false => {
                let removed = self.storage.remove(&self.dir, &found.name);
                removed.map_err(|e| self.about(e, &found.name))
            }
        };
        match removed {
            Err(e) if e.kind == ErrorKind::NotFound => Ok(false),
            removed => removed.map(|()| true),
        }
    }
}

/// Returns the time of a file's last status change (ctime), which cannot be set.
fn changed(meta: &std::fs::Metadata) -> i64 {
    let seconds = meta.ctime().saturating_mul(1_000_000_000);
    seconds.saturating_add(meta.ctime_nsec())
}
