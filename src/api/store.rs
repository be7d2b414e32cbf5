//! A store, opened for reading: its entries, its attributes, and its virtual files as streams of bytes. Arrays and
//! sparse matrices have files of their own.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ndarray::{Dimension, Ix1, IxDyn};

use super::array::Array;
use super::checkout::Checkout;
use super::element::Element;
use super::sparse::{Sparse, SparseOrder};
use super::{Error, ensure_worker};
use crate::mount::fs::Fs;
use crate::mount::fs::open::target;
use npyfs_base::npy::dtype::DType;
use npyfs_base::options::{External, FsOptions, RemoteSettings};
use npyfs_core::checkout::history::checkouts::Checkouts;
use npyfs_core::dataset::context::Context;
use npyfs_core::formats;
use npyfs_core::formats::store_path::StorePath;
use npyfs_core::store::format::Registry;
use npyfs_core::tree::path::{PathError, find};
use npyfs_core::tree::{Directory, Node, VirtualFile};
use npyfs_hdf5::{H5, Reach, Value};
use npyfs_io::content::{Content, Reader};
use npyfs_io::remote::Address;

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
    endpoint: Option<String>,
    shown: ShownState,
}

/// What of the checkouts is shown.
#[derive(Clone, Debug, Default)]
enum ShownState {
    /// Everything that is committed.
    #[default]
    Committed,
    /// What was committed up to a commit.
    At(String),
    /// What is committed, with a checkout on top.
    Checkout(String),
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

    /// Shows the store as it was after a commit: its number, the first digits of its id, `HEAD`, `HEAD~1`.
    pub fn at(mut self, commit: impl Into<String>) -> Self {
        self.shown = ShownState::At(commit.into());
        self
    }

    /// Shows the store with the checkout of this name on top, which cannot be written as long as the store is open.
    pub fn checkout(mut self, name: impl Into<String>) -> Self {
        self.shown = ShownState::Checkout(name.into());
        self
    }

    /// Asks this service for buckets, `http(s)://HOST`, as services that speak S3's protocol need it.
    pub fn endpoint(mut self, address: impl Into<String>) -> Self {
        self.endpoint = Some(address.into());
        self
    }

    /// Sets the region of the bucket, such as `eu-central-1`.
    pub fn region(mut self, name: impl Into<String>) -> Self {
        self.remote().region = Some(name.into());
        self
    }

    /// Takes the credentials of this profile in the user's configuration.
    pub fn profile(mut self, name: impl Into<String>) -> Self {
        self.remote().profile = Some(name.into());
        self
    }

    /// Sends requests without credentials, for public buckets.
    pub fn anonymous(mut self) -> Self {
        self.remote().anonymous = true;
        self
    }

    /// Sends a header with every request. It may be secret: no message shows its value.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.remote().headers.push((name.into(), value.into()));
        self
    }

    /// Bounds what is cached on disk of stores that lie elsewhere, in bytes (4 GiB); 0 is no cache.
    pub fn disk_cache(mut self, bytes: u64) -> Self {
        self.remote().disk_cache = bytes;
        self
    }

    /// Caches in this directory instead of `~/.cache/npyfs`.
    pub fn cache_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.remote().cache_dir = Some(dir.into());
        self
    }

    fn remote(&mut self) -> &mut RemoteSettings {
        Arc::make_mut(&mut self.fs.remote)
    }

    /// Opens the store at `path`, which may be an address (`https://`, `s3://`, `gs://`, `az://`); `STORE:/path` is a
    /// directory in one.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if it is no store or cannot be read, [`Error::NoWorker`] if there is no program to start
    /// the worker processes from.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Store, Error> {
        let Prepared {
            path,
            h5,
            options,
            formats,
            checkouts,
            shown,
        } = self.prepared(path.as_ref())?;
        let fs = match &shown {
            ShownState::Committed => Fs::open(&path, h5, options, &formats, &checkouts),
            ShownState::At(commit) => Fs::open_at(&path, h5, options, &formats, &checkouts, commit),
            ShownState::Checkout(name) => {
                Fs::open_checkout_to_read(&path, h5, options, &formats, &checkouts, name)
            }
        };
        let fs = fs.map_err(|refusal| Error::Store {
            errno: libc::EIO,
            message: refusal.to_string(),
        })?;
        Ok(Store { fs, path })
    }

    /// Opens the checkout `name` of the store at `path` to write in it, as [`open`](Self::open) opens the store; a new
    /// one is begun if there is none of this name that is not committed.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), and [`Error::Store`] with `EBUSY` if another process writes in it.
    pub fn write(self, path: impl AsRef<Path>, name: &str) -> Result<Checkout, Error> {
        let Prepared {
            path,
            h5,
            options,
            formats,
            checkouts,
            ..
        } = self.prepared(path.as_ref())?;
        let refused = |e: npyfs_base::error::Error| Error::Store {
            errno: e.errno(),
            message: e.message,
        };
        if options.subpath.is_some() {
            return Err(Error::Store {
                message: format!("{}: a checkout is one of the whole store", path.display()),
                errno: libc::EINVAL,
            });
        }
        let missing = checkouts.missing(name).map_err(refused)?;
        let context = Arc::new(Context::new(h5, options));
        let target = formats::open(&path, &context, &formats, || true)
            .and_then(|base| target(base, &context, &formats, &checkouts, name));
        match target {
            Ok(target) => Ok(Checkout::new(target, path)),
            Err(e) => {
                // Why it failed counts, not what could not be tidied up.
                let _ = checkouts.take_back(name, &missing);
                Err(refused(e))
            }
        }
    }

    fn prepared(mut self, path: &Path) -> Result<Prepared, Error> {
        let StorePath {
            store: path,
            inside,
        } = StorePath::parse(path);
        self.fs.subpath = inside;
        // It has no kernel to serve copies.
        self.fs.keep = Some(0);
        if let Some(given) = self.endpoint.take() {
            let shown = Address::hide_user(&given).filter(|shown| Address::is_service(shown));
            let shown = shown.ok_or_else(|| Error::Store {
                message: "endpoint: expected http(s)://HOST".to_owned(),
                errno: libc::EINVAL,
            })?;
            self.remote().endpoint = Some(shown);
        }
        ensure_worker(self.worker.as_deref())?;
        let about = |e: std::io::Error| Error::Store {
            errno: e.raw_os_error().unwrap_or(libc::EIO),
            message: format!("{}: {e}", path.display()),
        };
        let path = StorePath::resolved(&path).map_err(about)?;
        let refused = |e: npyfs_base::error::Error| Error::Store {
            errno: e.errno(),
            message: e.message,
        };
        let formats = formats::registry();
        let checkouts =
            Checkouts::below(&path, self.checkouts.as_deref(), &formats).map_err(refused)?;
        let checkouts = checkouts.asking(&self.fs.remote);
        let reach = Reach::of_store(&path, self.fs.external).with(checkouts.dir());
        let h5 = H5::workers(reach);
        Ok(Prepared {
            options: self.fs,
            shown: self.shown,
            path,
            h5,
            formats,
            checkouts,
        })
    }
}

/// What a store is opened with.
struct Prepared {
    path: PathBuf,
    h5: H5,
    options: FsOptions,
    formats: Registry,
    checkouts: Checkouts,
    shown: ShownState,
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
    /// # let _directory = npyfs_core::formats::demo::enter()?;
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
    /// # let _directory = npyfs_core::formats::demo::enter()?;
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
            Ok(file) => return Array::open(path, file),
            Err(missing @ (Error::NotFound { .. } | Error::NotAnArray { .. })) => missing,
            Err(e) => return Err(e),
        };
        // A directory of members may stand beside the array: `name/` beside `name.npy`.
        let path = format!("{path}.npy");
        match self.file_at(&path) {
            Ok(file) => Array::open(&path, file),
            Err(Error::NotFound { .. }) => Err(missing),
            Err(e) => Err(e),
        }
    }

    /// Returns the HDF5 attributes of the array or the directory at `path`, in order of name. `/` is the store itself,
    /// and an array may be named without `.npy`, if no directory has the name.
    ///
    /// ```standalone_crate
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # npyfs::worker_hook();
    /// # let _directory = npyfs_core::formats::demo::enter()?;
    /// let store = npyfs::Store::open("cells.h5df")?;
    /// for attribute in store.attributes("cell,gene#score.npy")? {
    ///     println!("{} {:?}", attribute.name(), attribute.value::<String>());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], or what keeps them from being read. An attribute that has no form here is no error, but its
    /// value is.
    pub fn attributes(&self, path: &str) -> Result<Vec<Attribute>, Error> {
        let node = match self.find(path) {
            Err(Error::NotFound { .. }) => {
                self.find(&format!("{path}.npy")).map_err(|e| match e {
                    Error::NotFound { .. } => Error::NotFound {
                        path: path.to_owned(),
                    },
                    other => other,
                })?
            }
            found => found?,
        };
        let mut found = node.attributes().map_err(|e| Error::about(path, e))?;
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found
            .into_iter()
            .map(|one| Attribute::new(path, one))
            .collect())
    }

    /// Reads the sparse matrix at `path`: a directory of `data`, `indices`, `indptr` and `shape`, beside which a mount
    /// shows an `.npz` archive.
    ///
    /// ```standalone_crate
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # npyfs::worker_hook();
    /// # let _directory = npyfs_core::formats::demo::enter()?;
    /// let store = npyfs::Store::open("cells.h5df")?;
    /// let counts = store.sparse::<u16>("cell,gene#UMIs")?;
    /// assert_eq!((counts.shape, counts.indptr.len()), ((1000, 200), 1001));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`] if nothing has this path, [`Error::WrongType`] if its elements are none of `T`,
    /// [`Error::Store`] if it is no sparse matrix, or if its parts do not fit each other.
    pub fn sparse<T: Element + Clone>(&self, path: &str) -> Result<Sparse<T>, Error> {
        let given = path.trim_end_matches('/');
        let path = given.strip_suffix(".npz").unwrap_or(given);
        let not_sparse = || Error::Store {
            message: format!("{path}: no sparse matrix"),
            errno: libc::EINVAL,
        };
        // Formats show the archive of what they know to be a sparse matrix.
        match self.find(&format!("{path}.npz")) {
            Err(Error::NotFound { .. }) => {
                let is_there = self
                    .find(given)
                    .or_else(|_| self.find(&format!("{path}.npy")));
                return Err(match is_there {
                    Ok(_) => not_sparse(),
                    Err(Error::NotFound { .. }) => Error::NotFound {
                        path: given.to_owned(),
                    },
                    Err(e) => e,
                });
            }
            archive => archive?,
        };
        let Node::Directory(dir) = self.find(path)? else {
            return Err(not_sparse());
        };
        let attributes = self.attributes(path)?;
        let encoding = attributes.iter().find(|a| a.name() == "encoding-type");
        let is_csc = encoding.is_some_and(|a| a.value::<String>().is_ok_and(|v| v == "csc_matrix"));
        let format = dir.format().map_err(|e| Error::about(path, e))?;
        let order = match is_csc || format == "matlab" {
            true => SparseOrder::Csc,
            false => SparseOrder::Csr,
        };
        let wrong = |reason: String| Error::Store {
            message: format!("{path}: {reason}"),
            errno: libc::EIO,
        };
        let part = |name: &str| format!("{path}/{name}.npy");
        let shape = self.counts(&part("shape"))?;
        let &[rows, columns] = shape.as_slice() else {
            return Err(wrong(format!("a shape of {} axes", shape.len())));
        };
        let data = self.array(&part("data"))?.read::<T, Ix1>()?;
        let matrix = Sparse {
            order,
            shape: (rows, columns),
            indptr: self.counts(&part("indptr"))?,
            indices: self.counts(&part("indices"))?,
            data: data.into_raw_vec_and_offset().0,
        };
        matrix.checked().map_err(wrong)
    }

    /// Reads numbers that count something.
    fn counts(&self, path: &str) -> Result<Vec<usize>, Error> {
        let array = self.array(path)?;
        let wide = match array.read::<i64, Ix1>() {
            Err(Error::WrongType { .. }) => match array.read::<i32, Ix1>() {
                Err(Error::WrongType { .. }) => match array.read::<u64, Ix1>() {
                    Err(Error::WrongType { .. }) => array.read::<u32, Ix1>()?.mapv(i64::from),
                    // What is too large for i64 is no count either.
                    read => read?.mapv(|n| i64::try_from(n).unwrap_or(-1)),
                },
                read => read?.mapv(i64::from),
            },
            read => read?,
        };
        let counts = wide.iter().map(|&n| usize::try_from(n));
        counts.collect::<Result<_, _>>().map_err(|_| Error::Store {
            message: format!("{path}: a negative number"),
            errno: libc::EIO,
        })
    }

    /// Opens the file at `path`, its name in a mount, as a stream of bytes.
    ///
    /// Whatever reads `.npy` takes it:
    ///
    /// ```standalone_crate
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # npyfs::worker_hook();
    /// # let _directory = npyfs_core::formats::demo::enter()?;
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
        let content = file.open().map_err(|e| Error::about(path, e))?;
        Ok(File::new(path, content))
    }

    /// Lists the arrays of the directory at `path`, without those of directories below it. `/` is the store itself.
    ///
    /// ```standalone_crate
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # npyfs::worker_hook();
    /// # let _directory = npyfs_core::formats::demo::enter()?;
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
        let listing = dir.list().map_err(|e| Error::about(path, e))?;
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
                Node::File(file) if name.ends_with(b".npy") => {
                    match Array::open(&path, file.clone()) {
                        Ok(array) => entries.push(Entry {
                            path,
                            dtype: array.dtype().clone(),
                            shape: array.shape().to_vec(),
                        }),
                        Err(e) => left_out.push((path, e.to_string())),
                    }
                }
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
            PathError::Failed(e) => Error::about(path, e),
        })
    }

    fn file_at(&self, path: &str) -> Result<Arc<dyn VirtualFile>, Error> {
        match self.find(path)? {
            Node::File(file) => {
                npyfs_io::remote::opened();
                Ok(file)
            }
            _ => Err(Error::NotAnArray {
                path: path.to_owned(),
            }),
        }
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("path", &self.path).finish()
    }
}

/// A description of an array, from [`Store::entries`](super::Store::entries).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The path in the store as a mount names it, with `.npy` and without a leading `/`.
    pub path: String,
    /// The type of the elements.
    pub dtype: DType,
    /// The number of entries along each axis; empty for a 0-d array.
    pub shape: Vec<usize>,
}

/// The arrays of one directory, in order of name.
#[derive(Debug)]
pub struct Entries {
    entries: std::vec::IntoIter<Entry>,
    directories: Vec<String>,
    left_out: Vec<(String, String)>,
}

impl Entries {
    /// Returns the paths of the directories beside the arrays.
    pub fn directories(&self) -> &[String] {
        &self.directories
    }

    /// Returns what is not among the entries, and why: objects that `.npy` cannot hold, and damaged ones.
    pub fn left_out(&self) -> &[(String, String)] {
        &self.left_out
    }
}

impl Iterator for Entries {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        self.entries.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.entries.size_hint()
    }
}

impl ExactSizeIterator for Entries {}

/// An open virtual file: the bytes that a mount would show, `.npy` header included.
///
/// It keeps the version that it was opened with. Once the store is changed, reading fails; it never gives a mixture.
pub struct File {
    path: String,
    reader: Reader,
}

impl File {
    pub(super) fn new(path: &str, content: Arc<dyn Content>) -> Self {
        Self {
            path: path.to_owned(),
            reader: Reader::new(content),
        }
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> u64 {
        self.reader.content().len()
    }

    /// Returns whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("File");
        shown.field("path", &self.path).field("len", &self.len());
        shown.field("at", &self.reader.position()).finish()
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buf);
        Ok(read.map_err(|e| Error::about(&self.path, e.into()))?)
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.reader.seek(to)
    }
}

/// An attribute of an array, a directory or a store, from [`Store::attributes`].
#[derive(Clone, Debug)]
pub struct Attribute {
    /// The object that has it.
    path: String,
    name: String,
    /// Its value, or why it has none here.
    value: Result<Value, String>,
}

impl Attribute {
    pub(super) fn new(path: &str, found: npyfs_hdf5::Attribute) -> Self {
        Self {
            path: path.to_owned(),
            name: String::from_utf8_lossy(&found.name).into_owned(),
            value: found.value,
        }
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the type of its elements; `None` if it cannot be read, as references cannot.
    pub fn dtype(&self) -> Option<&DType> {
        self.value.as_ref().ok().map(|value| &value.dtype)
    }

    /// Returns the number of entries along each axis: empty for a single value; `None` if it cannot be read.
    pub fn shape(&self) -> Option<Vec<usize>> {
        let shape = &self.value.as_ref().ok()?.shape;
        shape.iter().map(|&n| usize::try_from(n).ok()).collect()
    }

    /// Returns the value of an attribute with one element, such as a text or a number.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read), and [`Error::WrongRank`] if there are several elements, or none.
    pub fn value<T: Element>(&self) -> Result<T, Error> {
        let mut elements = self.read::<T, IxDyn>()?.into_iter();
        match (elements.next(), elements.next()) {
            (Some(only), None) => Ok(only),
            _ => Err(Error::WrongRank {
                path: self.shown(),
                found: self.shape().map_or(0, |shape| shape.len()),
                wanted: 0,
            }),
        }
    }

    /// Returns all elements, as [`Array::read`] does.
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] and [`Error::WrongRank`] if it is none of `T` with `D` axes, [`Error::Store`] if it has
    /// no form here.
    pub fn read<T: Element, D: Dimension>(&self) -> Result<ndarray::Array<T, D>, Error> {
        let value = self.value.as_ref().map_err(|reason| Error::Store {
            message: format!("{}: {reason}", self.shown()),
            errno: libc::EOPNOTSUPP,
        })?;
        if !T::fits(&value.dtype) {
            return Err(Error::WrongType {
                path: self.shown(),
                found: value.dtype.to_string(),
                wanted: T::NAME,
            });
        }
        let shape = self.shape().unwrap_or_default();
        let rank = || Error::WrongRank {
            path: self.shown(),
            found: shape.len(),
            wanted: D::NDIM.unwrap_or(shape.len()),
        };
        let size = value.dtype.size();
        let count = shape.iter().product();
        let elements = (0..count).map(|index| {
            let bytes = value.data.get(index * size..(index + 1) * size);
            let decoded = T::decode(bytes.unwrap_or_default(), &value.dtype);
            decoded.map_err(|reason| Error::Element {
                path: self.shown(),
                index,
                reason,
            })
        });
        let elements = elements.collect::<Result<Vec<T>, Error>>()?;
        ndarray::Array::from_shape_vec(IxDyn(&shape), elements)
            .and_then(|array| array.into_dimensionality::<D>())
            .map_err(|_| rank())
    }

    /// Returns what errors call it.
    fn shown(&self) -> String {
        format!("{}: attribute {}", self.path, self.name)
    }
}
