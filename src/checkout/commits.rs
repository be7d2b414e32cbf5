//! The committed layers of a store, in order: a file of records (`lines`), one a commit.
//!
//! A commit is one line. The directory of the layer stays where it is; from that line on nobody writes in
//! it any more. Who adds a line holds the lock; who reads needs none.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::lines::{self, Lines};
use super::storage::Storage;
use crate::error::{Error, Result};

/// The name of the file; no checkout has this name.
pub const NAME: &str = "commits";

/// The name of the lock file.
pub const LOCK: &str = ".lock";

const FIRST_LINE: &[u8] = b"npyfs commits 1\n";

/// One commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Commit {
    /// The directory of the layer, beside this file.
    pub layer: String,
    /// When, in nanoseconds since 1970.
    pub time: i64,
    /// Objects of the layer that do not count: another commit's were kept.
    #[serde(default)]
    pub without: BTreeSet<String>,
}

/// The commits in `dir`.
pub fn read(dir: &Path) -> Result<Vec<Commit>> {
    checked(dir, lines::read(&dir.join(NAME), FIRST_LINE)?)
}

/// What a line says is believed only if it names a directory beside it.
fn checked(dir: &Path, commits: Vec<Commit>) -> Result<Vec<Commit>> {
    let plain = |name: &str| !(name.is_empty() || name.starts_with('.') || name.contains('/'));
    match commits.iter().find(|commit| !plain(&commit.layer)) {
        Some(bad) => Err(Error::damaged(format!(
            "{}: {:?} is no name of a layer",
            dir.join(NAME).display(),
            bad.layer
        ))),
        None => Ok(commits),
    }
}

/// The commits of a store with the right to add one; others wait meanwhile.
pub struct Commits {
    lines: Lines<Commit>,
    all: Vec<Commit>,
    _lock: File,
}

impl Commits {
    /// Waits until nobody else commits.
    pub fn lock(dir: &Path, storage: Arc<dyn Storage>) -> Result<Self> {
        let lock = lock(dir)?;
        let (lines, all) = Lines::open(&dir.join(NAME), FIRST_LINE, storage, || Ok(()))?;
        Ok(Self {
            lines,
            all: checked(dir, all)?,
            _lock: lock,
        })
    }

    pub fn all(&self) -> &[Commit] {
        &self.all
    }

    /// Makes a commit happen, durably. On failure nothing is committed.
    pub fn add(&mut self, commit: Commit) -> Result<()> {
        self.lines.add(&commit)?;
        self.all.push(commit);
        Ok(())
    }
}

/// Waits for the right to change which layers there are in `dir`.
pub fn lock(dir: &Path) -> Result<File> {
    let path = dir.join(LOCK);
    let about = |e: std::io::Error| Error::from(e).about(path.display());
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(about)?;
    flock(&file, FlockOperation::LockExclusive).map_err(|e| about(e.into()))?;
    Ok(file)
}
