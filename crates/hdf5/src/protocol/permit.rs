//! The files that a reading worker may open, as the daemon names them to it.
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
