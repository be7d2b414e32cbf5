//! The seam of housekeeping: a place has names, each with its size and age, and a name can be removed.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use crate::checkout::commits::write_id;
use crate::error::{Error, ErrorKind, Result};
use crate::io::dir::Dir;
use crate::io::storage::Storage;

/// Beginning of the names of files that are made to learn what time it is where they lie.
pub(super) const CLOCK: &str = ".gc-";

/// A name in a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundName {
    pub(super) name: String,
    /// Names are below it.
    pub(super) is_dir: bool,
    /// The room that is free once it is removed; of what is below a directory nothing is said.
    pub(super) bytes: u64,
    /// When it was changed last, by the clock of the place, in nanoseconds since 1970.
    pub(super) changed: i64,
}

/// A place with names.
pub(super) trait GcPlace {
    /// Returns the time by the clock of whoever keeps the names: that of this host may be hours ahead.
    fn now(&self) -> Result<i64>;

    /// Returns true if other hosts may write to it whose locks are not seen here.
    fn is_shared(&self) -> Result<bool>;

    /// Returns all names that could be of npyfs, in order.
    fn found(&self) -> Result<Vec<FoundName>>;

    /// Returns the place that a name stands for.
    fn below(&self, name: &str) -> Result<Box<dyn GcPlace>>;

    /// Removes a name, and what is below it. False if it is gone already.
    fn remove(&self, found: &FoundName) -> Result<bool>;
}

/// A directory as such a place.
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
                // Whoever wrote it has removed it.
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

/// Returns when a file was changed last. Unlike the time of its content nobody can set it.
fn changed(meta: &std::fs::Metadata) -> i64 {
    let seconds = meta.ctime().saturating_mul(1_000_000_000);
    seconds.saturating_add(meta.ctime_nsec())
}
