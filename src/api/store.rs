//! A store, opened for reading.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::array::Array;
use super::entry::{Entries, Entry};
use super::error::Error;
use super::file::File;
use super::worker;
use crate::checkout::checkouts::Checkouts;
use crate::formats;
use crate::formats::place::StorePlace;
use crate::hdf5::H5;
use crate::hdf5::permit::Reach;
use crate::mount::fs::Fs;
use crate::options::{External, FsOptions};
use crate::tree::path::{PathError, find};
use crate::tree::{Directory, Node, VirtualFile};

/// An open store: an HDF5 file, a daf or Arkouda store, a Hangar repository, or a directory of such.
///
/// It shows what a mount would show, with everything that is committed. Threads may share it.
pub struct Store {
    fs: Fs,
    path: PathBuf,
}

/// Options to open a store with, from [`Store::options`].
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    fs: FsOptions,
    worker: Option<PathBuf>,
    checkouts: Option<PathBuf>,
}

impl OpenOptions {
    /// Bounds the memory for decoded chunks, in bytes (256 MiB).
    pub fn cache_size(mut self, bytes: u64) -> Self {
        self.fs.cache_size = bytes;
        self
    }

    /// Allows external raw data, external links and sources of virtual datasets in the directory of the file that
    /// names them, and below it.
    ///
    /// By default nothing outside a file is read because the file says so.
    pub fn external_same_dir(mut self) -> Self {
        self.fs.external = External::SameDir;
        self
    }

    /// Bounds the fixed-width form of variable-length text, in bytes (4 GiB).
    ///
    /// Text past it is a directory of `values` and `offsets`.
    pub fn text_limit(mut self, bytes: u64) -> Self {
        self.fs.text_limit = Some(bytes);
        self
    }

    /// Starts worker processes from this `npyfs`.
    ///
    /// It has no effect in a program that called [`worker_hook`](super::worker_hook), or has opened a store before.
    pub fn worker(mut self, program: impl Into<PathBuf>) -> Self {
        self.worker = Some(program.into());
        self
    }

    /// Looks for committed checkouts below this directory instead of beside the store.
    pub fn checkouts(mut self, dir: impl Into<PathBuf>) -> Self {
        self.checkouts = Some(dir.into());
        self
    }

    /// Opens the store at `path`, which may be a URL; `STORE:/path` is a directory in one.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if it is no store or cannot be read, [`Error::NoWorker`] if there is no program to start
    /// the worker processes from.
    pub fn open(mut self, path: impl AsRef<Path>) -> Result<Store, Error> {
        let StorePlace {
            store: path,
            inside,
        } = StorePlace::of(path.as_ref());
        self.fs.subpath = inside;
        // It has no kernel to serve copies.
        self.fs.keep = Some(0);
        worker::ensure(self.worker.as_deref())?;
        let about = |e: std::io::Error| Error::Store {
            errno: e.raw_os_error().unwrap_or(libc::EIO),
            message: format!("{}: {e}", path.display()),
        };
        let path = StorePlace::resolved(&path).map_err(about)?;
        let refused = |e: crate::error::Error| Error::Store {
            errno: e.errno(),
            message: e.message,
        };
        let formats = formats::registry();
        let checkouts =
            Checkouts::below(&path, self.checkouts.as_deref(), &formats).map_err(refused)?;
        let checkouts = checkouts.asking(&self.fs.remote);
        let reach = Reach::of(&path, self.fs.external).with(checkouts.dir());
        let h5 = H5::workers(reach);
        let fs =
            Fs::open(&path, h5, self.fs, &formats, &checkouts).map_err(|refusal| Error::Store {
                errno: libc::EIO,
                message: refusal.to_string(),
            })?;
        Ok(Store { fs, path })
    }
}

impl Store {
    /// Opens the store at `path` with default options.
    ///
    /// # Errors
    ///
    /// Those of [`OpenOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::options().open(path)
    }

    /// Returns the default options, to change and open a store with.
    ///
    /// ```standalone_crate
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # npyfs::worker_hook();
    /// # let _directory = npyfs::internals::enter_demonstration()?;
    /// let store = npyfs::Store::options().cache_size(64 << 20).open("cells.h5df")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn options() -> OpenOptions {
        OpenOptions::default()
    }

    /// Opens the array at `path`: its name in a mount, with or without `.npy`.
    ///
    /// Only the header is read.
    ///
    /// ```standalone_crate
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # npyfs::worker_hook();
    /// # let _directory = npyfs::internals::enter_demonstration()?;
    /// let store = npyfs::Store::open("cells.h5df")?;
    /// let scores = store.array("cell,gene#score")?;
    /// assert_eq!(scores.shape(), [1000, 200]);
    /// assert_eq!(scores.dtype().to_string(), "<f4");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], [`Error::NotAnArray`], or what keeps it from being opened.
    pub fn array(&self, path: &str) -> Result<Array, Error> {
        let missing = match self.file_at(path) {
            Ok(file) => return open(path, &*file),
            Err(missing @ (Error::NotFound { .. } | Error::NotAnArray { .. })) => missing,
            Err(e) => return Err(e),
        };
        // A directory of members may stand beside the array: `name/` beside `name.npy`.
        let path = format!("{path}.npy");
        match self.file_at(&path) {
            Ok(file) => open(&path, &*file),
            Err(Error::NotFound { .. }) => Err(missing),
            Err(e) => Err(e),
        }
    }

    /// Opens the file at `path`, its name in a mount, as a stream of bytes.
    ///
    /// Whatever reads `.npy` takes it:
    ///
    /// ```standalone_crate
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # npyfs::worker_hook();
    /// # let _directory = npyfs::internals::enter_demonstration()?;
    /// use ndarray::Array1;
    /// use ndarray_npy::ReadNpyExt;
    ///
    /// let store = npyfs::Store::open("cells.h5df")?;
    /// let ages = Array1::<i32>::read_npy(store.file("cell#age.npy")?)?;
    /// assert_eq!(ages.len(), 1000);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], or what keeps it from being opened.
    pub fn file(&self, path: &str) -> Result<File, Error> {
        let file = self.file_at(path)?;
        let content = file.open().map_err(|e| Error::of(path, e))?;
        Ok(File::new(path, content))
    }

    /// Lists the arrays of the directory at `path`, without those of directories below it. `/` is the store itself.
    ///
    /// ```standalone_crate
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # npyfs::worker_hook();
    /// # let _directory = npyfs::internals::enter_demonstration()?;
    /// let store = npyfs::Store::open("cells.h5df")?;
    /// let mut directories = vec!["/".to_owned()];
    /// while let Some(directory) = directories.pop() {
    ///     let entries = store.entries(&directory)?;
    ///     directories.extend_from_slice(entries.directories());
    ///     for entry in entries {
    ///         println!("{}", entry.path);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], or what keeps the directory from being listed. An array that cannot be opened is
    /// no error: [`Entries::left_out`] has it.
    pub fn entries(&self, path: &str) -> Result<Entries, Error> {
        let Node::Directory(dir) = self.find(path)? else {
            return Err(Error::NotFound {
                path: path.to_owned(),
            });
        };
        let listing = dir.list().map_err(|e| Error::of(path, e))?;
        let full = |name: &[u8]| {
            let name = String::from_utf8_lossy(name);
            match path.trim_matches('/') {
                "" => name.into_owned(),
                above => format!("{above}/{name}"),
            }
        };
        let left_out = listing.left_out.iter();
        let mut left_out: Vec<_> = left_out.map(|(n, why)| (full(n), why.clone())).collect();
        let (mut entries, mut directories) = (Vec::new(), Vec::new());
        for (name, node) in listing.iter() {
            let path = full(&name);
            match &*node {
                Node::Directory(_) => directories.push(path),
                Node::File(file) if name.ends_with(b".npy") => match open(&path, &**file) {
                    Ok(array) => entries.push(Entry {
                        path,
                        dtype: array.dtype().clone(),
                        shape: array.shape().to_vec(),
                    }),
                    Err(e) => left_out.push((path, e.to_string())),
                },
                Node::File(_) | Node::Symlink(_) => {}
            }
        }
        Ok(Entries {
            entries: entries.into_iter(),
            directories,
            left_out,
        })
    }

    fn find(&self, path: &str) -> Result<Node, Error> {
        let root: &Arc<dyn Directory> = self.fs.root();
        find(root, None, path.as_bytes(), true).map_err(|not| match not {
            PathError::Missing => Error::NotFound {
                path: path.to_owned(),
            },
            PathError::Failed(e) => Error::of(path, e),
        })
    }

    fn file_at(&self, path: &str) -> Result<Arc<dyn VirtualFile>, Error> {
        match self.find(path)? {
            Node::File(file) => Ok(file),
            _ => Err(Error::NotAnArray {
                path: path.to_owned(),
            }),
        }
    }
}

fn open(path: &str, file: &dyn VirtualFile) -> Result<Array, Error> {
    let content = file.open().map_err(|e| Error::of(path, e))?;
    Array::open(path, content)
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("path", &self.path).finish()
    }
}
