//! Opening a store: in its present state, as of a commit, with a checkout to read, or in a writable checkout.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::SystemTime;

use parking_lot::{Mutex, RwLock};
use serde_json::{Value as Json, json};

use super::keeper::Keeper;
use super::maps::MappedFiles;
use super::reopened::ReopenedFiles;
use super::samples::SampledFiles;
use super::{Fs, OpenError, Writer};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::heap;
use npyfs_base::options::{self, FsOptions};
use npyfs_core::checkout::history::checkouts::Checkouts;
use npyfs_core::checkout::layer::lock::LayerLock;
use npyfs_core::checkout::records::names::check_name;
use npyfs_core::checkout::view::View;
use npyfs_core::checkout::view::follow::Follower;
use npyfs_core::checkout::write::{self as layers, LayerTarget};
use npyfs_core::dataset::context::Context;
use npyfs_core::store::format::Registry;
use npyfs_core::store::target::Target;
use npyfs_core::tree::Directory;
use npyfs_core::tree::control::Control;
use npyfs_core::tree::inode::InodeTable;
use npyfs_core::tree::subtree::Subtree;
use npyfs_core::{formats, views};
use npyfs_hdf5::H5;
use npyfs_io::kept::{KeptDir, kept_path};
use npyfs_io::remote::Address;

/// The files of a mount, and the operations on them.
struct ShownFiles {
    root: Arc<dyn Directory>,
    /// The state of a writable mount.
    writer: Option<Arc<Writer>>,
    /// Holds the lock that keeps a read-only checkout unchanged.
    held: Option<LayerLock>,
    /// The entry of the read-only checkout in `status.json`.
    read: Option<Json>,
    /// Makes new commits visible.
    follower: Option<Follower>,
    /// The commit that is shown.
    at: Option<String>,
}

impl ShownFiles {
    fn new(root: Arc<dyn Directory>) -> Self {
        Self {
            root,
            writer: None,
            held: None,
            read: None,
            follower: None,
            at: None,
        }
    }
}

/// Returns the keeper of array copies if it is wanted and possible; the mount works without it.
fn keeper(context: &Arc<Context>, store: &Path) -> Option<Keeper> {
    let options = &context.options;
    let elsewhere = Address::parse(store).is_some();
    let limit = options.kept_bytes(elsewhere);
    if limit == 0 {
        return None;
    }
    let store = store.to_string_lossy().into_owned();
    let opened = match kept_path(&options.remote) {
        Some(path) => KeptDir::open(&path, limit).map_err(|e| (Some(path), e)),
        None => Err((None, std::io::Error::other("there is no home directory"))),
    };
    match opened {
        Ok(dir) => Some(Keeper::new(dir, context, store, elsewhere)),
        // Copies were not asked for, so a failure is no error.
        Err(_) if options.keep.is_none() => None,
        Err((path, e)) => {
            let path = path.map(|path| format!("{}: ", path.display()));
            let path = path.unwrap_or_default();
            context
                .journal
                .add(&format!("{store}: no copies are kept: {path}{e}"));
            None
        }
    }
}

/// Returns true if the directory has checkouts, which may bring stores to a directory that has none.
fn begins(checkouts: &Checkouts) -> bool {
    checkouts.list().is_ok_and(|(all, _)| !all.is_empty())
}

/// Opens the checkout `name` of a store to write in it.
pub fn target(
    base: Arc<dyn Directory>,
    context: &Arc<Context>,
    formats: &Registry,
    checkouts: &Checkouts,
    name: &str,
) -> Result<Arc<dyn Target>> {
    for staged in formats.iter().filter_map(|format| format.staged()) {
        if let Some(own) = staged.target(&base, name, &|| checkouts.hold(name))? {
            return Ok(own);
        }
    }
    let target = LayerTarget::open(base, context, formats, checkouts, name)?;
    Ok(Arc::new(target))
}

impl Fs {
    /// Opens a store, a file or a directory, with its commits on top.
    pub fn open(
        store: &Path,
        h5: H5,
        options: FsOptions,
        formats: &Registry,
        checkouts: &Checkouts,
    ) -> std::result::Result<Self, OpenError> {
        Self::open_as(
            store,
            h5,
            options,
            formats,
            checkouts,
            || begins(checkouts),
            |base, context| {
                // A repository always shows its commits.
                let every = context.options.follow.filter(|_| base.handle().is_none());
                let Some(every) = every else {
                    let root = layers::committed(base, context, formats, checkouts)?;
                    return Ok(ShownFiles::new(root));
                };
                let (root, follower) = Follower::start(base, context, formats, checkouts, every)?;
                let _ = context.following.set(Box::new(follower.report()));
                Ok(ShownFiles {
                    follower: Some(follower),
                    ..ShownFiles::new(root)
                })
            },
        )
    }

    /// Opens a store as of a commit; `at` is the commit id or a prefix of it. A repository, which has its own commits,
    /// is refused.
    pub fn open_at(
        store: &Path,
        h5: H5,
        options: FsOptions,
        formats: &Registry,
        checkouts: &Checkouts,
        at: &str,
    ) -> std::result::Result<Self, OpenError> {
        Self::open_as(
            store,
            h5,
            options,
            formats,
            checkouts,
            || begins(checkouts),
            |base, context| {
                if base.handle().is_some() {
                    let why = "this store keeps its commits itself, and shows them all";
                    return Err(Error::new(ErrorKind::Os(libc::EOPNOTSUPP), why));
                }
                let layers = checkouts.committed_at(at)?;
                let root = View::over(base, context, formats, layers).root();
                Ok(ShownFiles {
                    at: Some(at.to_owned()),
                    ..ShownFiles::new(root)
                })
            },
        )
    }

    /// Opens a store as `open` does, with the checkout `name` on top; the checkout cannot be written meanwhile. A
    /// repository always shows its staged changes.
    pub fn open_checkout_to_read(
        store: &Path,
        h5: H5,
        options: FsOptions,
        formats: &Registry,
        checkouts: &Checkouts,
        name: &str,
    ) -> std::result::Result<Self, OpenError> {
        Self::open_as(
            store,
            h5,
            options,
            formats,
            checkouts,
            || begins(checkouts),
            |base, context| {
                check_name(name)?;
                if base.handle().is_some() {
                    return Ok(ShownFiles::new(base));
                }
                let seen = checkouts.open_to_read(name)?;
                let dir = seen
                    .layers
                    .last()
                    .map(|layer| layer.dir.path().to_string_lossy());
                let read = json!({ "name": name, "dir": dir, "read_only": true });
                let root = View::over(base, context, formats, seen.layers).root();
                Ok(ShownFiles {
                    read: Some(read),
                    held: seen.held,
                    ..ShownFiles::new(root)
                })
            },
        )
    }

    /// Opens a store as `open` does, in a checkout: writes go to the layer `name`.
    pub fn open_checkout(
        store: &Path,
        h5: H5,
        options: FsOptions,
        formats: &Registry,
        checkouts: &Checkouts,
        name: &str,
    ) -> std::result::Result<Self, OpenError> {
        Self::open_as(
            store,
            h5,
            options,
            formats,
            checkouts,
            || true,
            |base, context| {
                let target = target(base, context, formats, checkouts, name)?;
                let writer = Arc::new(Writer::new(target));
                let root = writer.root();
                Ok(ShownFiles {
                    writer: Some(writer),
                    ..ShownFiles::new(root)
                })
            },
        )
    }

    fn open_as(
        store: &Path,
        h5: H5,
        options: FsOptions,
        formats: &Registry,
        checkouts: &Checkouts,
        may_be_empty: impl FnOnce() -> bool,
        show: impl FnOnce(Arc<dyn Directory>, &Arc<Context>) -> Result<ShownFiles>,
    ) -> std::result::Result<Self, OpenError> {
        let context = Arc::new(Context::new(h5, options));
        let opened = formats::open(store, &context, formats, may_be_empty)
            .and_then(|base| show(base, &context));
        let shown = opened.map_err(|e| OpenError(e.message))?;
        let ShownFiles { root, writer, .. } = shown;
        let lists_names = root.handle().is_some();
        let (above, root) = match &context.options.subpath {
            None => (Vec::new(), root),
            Some(path) => {
                let found = Subtree::find(&root, path);
                let found = found.map_err(|e| OpenError(e.about(store.display()).message))?;
                (found.names, found.root)
            }
        };
        views::check_join(&root, &context)
            .map_err(|e| OpenError(e.about(store.display()).message))?;
        let status: Option<Arc<dyn Fn() -> _ + Send + Sync>> = match (writer.clone(), shown.read) {
            (Some(writer), _) => Some(Arc::new(move || writer.status())),
            (None, Some(read)) => Some(Arc::new(move || read.clone())),
            (None, None) => None,
        };
        let views = options::View::ALL
            .map(|view| (view.name(), views::open(view, &root, &context, formats)));
        let root = match context.options.view {
            Some(view) => views::open(view, &root, &context, formats),
            None => root,
        };
        let keeper = match writer {
            // Writable content has no version.
            Some(_) => None,
            None => keeper(&context, store),
        };
        let control = Arc::new(Control {
            root: root.clone(),
            views: views.into(),
            context: context.clone(),
            store: store.to_string_lossy().into_owned(),
            checkouts: checkouts.dir().to_string_lossy().into_owned(),
            at: shown.at,
            started: SystemTime::now(),
            checkout: status,
        });
        // What was read to open a large store or checkout takes more than what is kept of it.
        heap::return_free_memory();
        Ok(Self {
            store: store.to_owned(),
            samples: SampledFiles::new(&context.tuning, context.prefetch.under_way()),
            maps: MappedFiles::new(&context.tuning),
            by_page: AtomicBool::new(false),
            formats: formats.clone(),
            context,
            root,
            above,
            lists_names,
            control,
            // A writable mount finds its nodes by their numbers.
            inodes: Mutex::new(InodeTable::default()),
            files: RwLock::default(),
            dirs: RwLock::default(),
            next_handle: AtomicU64::new(1),
            again: ReopenedFiles::default(),
            is_prepared: AtomicBool::new(false),
            keeper,
            writer,
            follower: shown.follower,
            _held: shown.held,
        })
    }
}
