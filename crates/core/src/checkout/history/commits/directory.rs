//! Commits in a directory: link(2) gives a complete, synced file its name, unless the name exists.
//!
//! No other operation is atomic on every file system that hosts share. The file is first written under a temporary name
//! and then briefly has two names. If the process dies in between, the temporary name stays until it is tidied up.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use super::commit_place::{CommitPlace, Creation};
use super::record::write_id;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::dir::Dir;
use npyfs_io::storage::Storage;

/// The most bytes of an object that are read.
const LONGEST: u64 = 1 << 30;

/// The age in seconds at which a temporary file is taken for that of a dead process.
const ABANDONED: i64 = 24 * 3600;

/// A directory as the place of commits.
pub(super) struct CommitDirectory {
    dir: Dir,
    storage: Arc<dyn Storage>,
}

impl CommitDirectory {
    /// Uses an open directory, which is changed through `storage`.
    pub(super) fn new(dir: Dir, storage: Arc<dyn Storage>) -> Self {
        Self { dir, storage }
    }

    /// Returns whether there is an object of this name, whatever is in it.
    pub(super) fn has(&self, name: &str) -> bool {
        self.dir.look(name).is_ok()
    }

    fn about(&self, error: io::Error, name: &str) -> Error {
        Error::from(error).about(self.path(name))
    }

    /// Writes a file under a name that no other process uses.
    fn written(&self, new: &str, bytes: &[u8], durable: bool) -> io::Result<File> {
        let file = self.storage.create(&self.dir, new)?;
        self.dir.rights().settle(&file)?;
        self.storage.write_at(&file, bytes, 0)?;
        if durable {
            self.storage.sync(&file)?;
        }
        Ok(file)
    }

    /// Gives a file a name, and returns whether the file now has it.
    fn name(&self, file: &File, new: &str, name: &str) -> io::Result<bool> {
        // On a network file system, a request whose response was lost may be repeated: then link(2) reports that the
        // name exists, although this file has it.
        let is_own = || {
            let has_two = file.metadata().is_ok_and(|meta| meta.nlink() > 1);
            has_two || self.dir.is_named(name, file)
        };
        let Err(e) = self.storage.name_once(&self.dir, new, name) else {
            return Ok(true);
        };
        if is_own() {
            return Ok(true);
        }
        if e.kind() == io::ErrorKind::AlreadyExists {
            return Ok(false);
        }
        // Without the temporary name, a delayed request on the server cannot take effect any more.
        let _ = self.storage.remove(&self.dir, new);
        match self.dir.is_named(name, file) {
            true => Ok(true),
            false => Err(e),
        }
    }
}

/// Returns the prefix of the temporary names for an object's name.
fn before(name: &str) -> String {
    format!(".{name}.")
}

impl CommitPlace for CommitDirectory {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let file = match self.dir.read_linked(name, &before(name)) {
            Err(e) if e.kind == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut bytes = Vec::new();
        let read = file.take(LONGEST + 1).read_to_end(&mut bytes);
        read.map_err(|e| self.about(e, name))?;
        if bytes.len() as u64 > LONGEST {
            let why = format!("longer than {LONGEST} bytes");
            return Err(Error::new(ErrorKind::TooLarge, why).about(self.path(name)));
        }
        Ok(Some(bytes))
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<Creation> {
        let new = format!("{}{}", before(name), write_id()?);
        let named = self
            .written(&new, bytes, true)
            .and_then(|file| self.name(&file, &new, name));
        let _ = self.storage.remove(&self.dir, &new);
        match named {
            Err(e) => Err(self.about(e, name)),
            Ok(false) => Ok(Creation::Taken),
            Ok(true) => {
                // Other processes may already have built on the commit: it stays, and the sync is retried.
                let sync = || self.storage.sync_dir(&self.dir);
                let synced = sync().or_else(|_| sync()).map_err(|e| {
                    let error = Error::from(e);
                    let why = format!("it is there, and it is not known whether it would survive a loss of power: {}", error.message);
                    Error::new(error.kind, why).about(self.path(name))
                });
                synced.map(|()| Creation::Made)
            }
        }
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let new = format!("{}{}", before(name), write_id()?);
        let done = self
            .written(&new, bytes, false)
            .and_then(|_| self.storage.rename(&self.dir, &new, name));
        done.map_err(|e| {
            let _ = self.storage.remove(&self.dir, &new);
            self.about(e, name)
        })
    }

    fn remove(&self, name: &str) -> Result<()> {
        match self.storage.remove(&self.dir, name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|e| self.about(e, name)),
        }
    }

    fn names_from(&self, name: &str) -> Result<Vec<String>> {
        let all = self.dir.names().map_err(|e| self.about(e, ""))?;
        let names = all
            .into_iter()
            .filter_map(|(name, _)| name.into_string().ok());
        let mut names: Vec<String> = names
            .filter(|other| !other.starts_with('.') && other.as_str() >= name)
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    fn tidy(&self) {
        // Both times come from the clock of the file server.
        let (Ok(now), Ok(names)) = (self.dir.own_metadata(), self.dir.names()) else {
            return;
        };
        for (name, _) in names {
            if let Some(name) = name.to_str().filter(|name| name.starts_with('.'))
                && let Ok(modified) = self.dir.modified(name)
                && now.mtime().saturating_sub(modified) > ABANDONED
            {
                let _ = self.storage.remove(&self.dir, name);
            }
        }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }
}
