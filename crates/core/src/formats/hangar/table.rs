//! One LMDB file of a repository, in whatever version is on disk. A worker process reads it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_bytes::ByteBuf;

use super::digest::Hash;
use super::folder::Folder;
use npyfs_base::error::{Error, Result};
use npyfs_hdf5::{H5, H5Error, PackedValues, Sink};
use npyfs_io::file::{Identity, StoreFile};

/// The number of rows that are requested at a time.
const PAGE: usize = 1 << 16;

/// The time for which a look at the file on disk counts: one request asks several times, and a program that writes
/// sample after sample makes thousands of requests a second.
const LOOK: Duration = Duration::from_millis(1);

/// A key and its value.
pub(super) type TableRow = (ByteBuf, ByteBuf);

/// An LMDB file.
pub struct Table {
    pub path: PathBuf,
    /// The repository's directory.
    folder: Arc<Folder>,
    file: Mutex<Option<Arc<StoreFile>>>,
    /// The time of the last look at the file, and the version found.
    looked: Mutex<Option<(Instant, Identity)>>,
}

impl Table {
    /// Makes the table at `path`; `folder` is the repository's directory.
    pub fn new(path: &Path, folder: &Arc<Folder>) -> Self {
        Self {
            path: path.to_owned(),
            folder: folder.clone(),
            file: Mutex::default(),
            looked: Mutex::default(),
        }
    }

    fn about(&self, error: impl Into<Error>) -> Error {
        error.into().about(self.path.display())
    }

    fn h5(&self) -> &H5 {
        &self.folder.context.h5
    }

    /// Returns true if the file exists.
    pub fn is_there(&self) -> bool {
        self.folder.has_table(&self.path)
    }

    /// Returns the version on disk, as of now or a moment ago; each of Hangar's transactions makes another version.
    pub fn version(&self) -> Result<Identity> {
        let mut looked = self.looked.lock();
        if let Some((at, version)) = &*looked
            && at.elapsed() < LOOK
        {
            return Ok(*version);
        }
        let at = Instant::now();
        let version = match self.folder.far() {
            Some(elsewhere) => elsewhere.table(&self.path)?.identity,
            None => {
                let meta = std::fs::metadata(&self.path).map_err(|e| self.about(e))?;
                Identity::from_metadata(&meta)
            }
        };
        *looked = Some((at, version));
        Ok(version)
    }

    /// Makes the next `version` look at the disk.
    pub fn look_again(&self) {
        *self.looked.lock() = None;
    }

    fn file(&self) -> Result<Arc<StoreFile>> {
        if let Some(elsewhere) = self.folder.far() {
            return elsewhere.table(&self.path);
        }
        let mut file = self.file.lock();
        if let Some(open) = &*file
            && open.is_current()
        {
            return Ok(open.clone());
        }
        let open = Arc::new(self.folder.open(&self.path)?);
        *file = Some(open.clone());
        Ok(open)
    }

    /// Asks the kernel to read the file ahead, unless it is too large.
    pub fn will_need(&self) {
        const MOST: u64 = 256 << 20;
        if let Ok(file) = self.file()
            && file.identity.size <= MOST
        {
            // A failure affects only speed.
            if let Ok(file) = file.file() {
                let _ = rustix::fs::fadvise(&**file, 0, None, rustix::fs::Advice::WillNeed);
            }
        }
    }

    fn ask<T>(
        &self,
        question: impl FnOnce(&StoreFile) -> std::result::Result<T, H5Error>,
    ) -> Result<T> {
        question(&*self.file()?).map_err(|e| self.about(e))
    }

    /// Returns the values of keys, in order.
    pub fn values(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<ByteBuf>>> {
        let count = keys.len();
        let values = self.ask(|file| self.h5().values(file, keys))?;
        self.complete(values, count)
    }

    /// Returns the values of samples' digests of one kind, in order.
    pub fn hashed(&self, kind: u8, hashes: &[Hash]) -> Result<PackedValues> {
        let prefix = [b'h', b':', kind, b'='];
        self.ask(|file| self.h5().hashed(file, &prefix, hashes))
    }

    /// Returns the value of a key.
    pub fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let value = self.values(vec![key.to_vec()])?.pop().flatten();
        Ok(value.map(ByteBuf::into_vec))
    }

    /// Hands on the value of a key as it arrives.
    pub fn stream(&self, key: &[u8], sink: &mut Sink<'_>) -> Result<()> {
        self.ask(|file| self.h5().stream_value(file, key, sink))
    }

    /// Returns the lengths of the values of keys, in order.
    pub fn lengths(&self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<u64>>> {
        let count = keys.len();
        let lengths = self.ask(|file| self.h5().lengths(file, keys))?;
        self.complete(lengths, count)
    }

    fn complete<T>(&self, answers: Vec<T>, count: usize) -> Result<Vec<T>> {
        if answers.len() != count {
            return Err(self.about(Error::damaged("an answer of another length")));
        }
        Ok(answers)
    }

    /// Hands on all rows whose key begins with `prefix`, in order of key; a value longer than `longest` is empty. Rows
    /// that are added meanwhile may or may not be included.
    pub fn rows(
        &self,
        prefix: &[u8],
        longest: usize,
        mut each: impl FnMut(Vec<TableRow>) -> Result<()>,
    ) -> Result<()> {
        let mut after = None;
        loop {
            let rows =
                self.ask(|file| self.h5().rows(file, prefix, after.take(), PAGE, longest))?;
            let full = rows.len() == PAGE;
            after = rows.last().map(|(key, _)| key.to_vec());
            each(rows)?;
            if !full {
                return Ok(());
            }
        }
    }
}
