//! Commits in a directory: link(2) gives a file that is written and synced its name, unless a file has that name.
//!
//! Nothing else is atomic on every file system that hosts share. The file is written under a name of its own, and has two for a
//! moment; if its process dies then, until it is tidied up.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use super::place::{CommitPlace, Creation};
use super::record::write_id;
use crate::error::{Error, ErrorKind, Result};
use crate::io::dir::Dir;
use crate::io::storage::Storage;

/// Longest object that is read, in bytes.
const LONGEST: u64 = 1 << 30;

/// The age, in seconds, from which on a file that never got its name is of a process that died.
const ABANDONED: i64 = 24 * 3600;

/// A directory as a place of commits.
pub(super) struct CommitDirectory {
    dir: Dir,
    storage: Arc<dyn Storage>,
}

impl CommitDirectory {
    /// Takes an open directory; what is changed in it goes through `storage`.
    pub(super) fn new(dir: Dir, storage: Arc<dyn Storage>) -> Self {
        Self { dir, storage }
    }

    fn about(&self, error: io::Error, name: &str) -> Error {
        Error::from(error).about(self.path(name))
    }

    /// Writes a file under a name that nobody else uses.
    fn written(&self, new: &str, bytes: &[u8], durable: bool) -> io::Result<File> {
        let file = self.storage.create(&self.dir, new)?;
        self.dir.rights().settle(&file)?;
        self.storage.write_at(&file, bytes, 0)?;
        if durable {
            self.storage.sync(&file)?;
        }
        Ok(file)
    }

    /// Names a file, and returns whether the name is its own now.
    fn name(&self, file: &File, new: &str, name: &str) -> io::Result<bool> {
        // An answer that was lost may have been asked for again: then the name is said to be taken, and it is by this file.
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
        // Without its first name nothing can come of what was asked for, should the server be at it still.
        let _ = self.storage.remove(&self.dir, new);
        match self.dir.is_named(name, file) {
            true => Ok(true),
            false => Err(e),
        }
    }
}

/// Returns the beginning of the names that a file has before it gets this one.
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
                // Others may have built on it already: it stays, and the disk is asked once more.
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
        // Both times are of the clock of whoever keeps the files.
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
