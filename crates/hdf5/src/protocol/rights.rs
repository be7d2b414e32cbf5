//! The rights of a worker: the files that a reading one may open, as the daemon names them to it, and its report on the
//! rights that it gave up before it looked at a file.
//!
//! Landlock knows files by their inode. The daemon names each with device and inode, and the worker lets itself open
//! what is found there before it gives its rights up: what has taken the place of a file since is another file.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Device and inode.
pub type Inode = (u64, u64);

/// A file by its path, with the inode that the daemon found there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedFile {
    path: Vec<u8>,
    inode: Inode,
}

impl NamedFile {
    /// Names a file.
    pub fn new(path: &Path, inode: Inode) -> Self {
        let path = path.as_os_str().as_bytes().to_vec();
        Self { path, inode }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }

    /// Returns the device and the inode that the daemon found.
    pub fn inode(&self) -> Inode {
        self.inode
    }
}

/// The first message to a reading worker; it comes with the descriptor of the first file it will be asked about, if
/// that is known.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Permit {
    /// Every file may be read.
    pub anywhere: bool,
    /// Files that were asked about lately.
    pub known: Vec<NamedFile>,
    /// Sources of virtual datasets, which libhdf5 opens by their names.
    pub sources: Vec<NamedFile>,
    /// The first file's path, if what lies beside it may be read as well.
    pub beside: Option<Vec<u8>>,
}

/// The name in the report of becoming the owner of the files.
const OWNER: &str = "owner";

/// The report of a worker on its sandbox, in words for `status.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Parts that are in force.
    pub enforced: Vec<String>,
    /// Parts that this kernel does not have, or refused, with the reasons.
    pub missing: Vec<String>,
}

impl Sandbox {
    /// Returns whether a part is in force.
    pub fn has(&self, what: &str) -> bool {
        self.enforced.iter().any(|held| held == what)
    }

    /// Notes a part as in force, or as missing.
    pub fn note(&mut self, what: &str, done: Result<(), String>) {
        match done {
            Ok(()) => self.enforced.push(what.into()),
            Err(why) => self.missing.push(format!("{what}: {why}")),
        }
    }

    /// Notes the outcome of becoming the owner of the files, if there is one to become.
    pub fn note_owner(&mut self, done: Option<Result<(), String>>) {
        if let Some(done) = done {
            self.note(OWNER, done);
        }
    }

    /// Returns the reason why the process could not become the owner of the files, if so.
    pub fn is_not_owner(&self) -> Option<&str> {
        let why = |missing: &'_ String| missing.starts_with(OWNER);
        let missing = self.missing.iter().find(|missing| why(missing))?;
        missing.strip_prefix(OWNER)?.strip_prefix(": ")
    }
}
