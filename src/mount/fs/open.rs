//! Opening a store: as it is, as it was at a commit, with a checkout to read, or in a checkout that is written.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, RwLock};
use std::time::SystemTime;

use serde_json::{Value as Json, json};

use super::again::Again;
use super::keeper::Keeper;
use super::samples::SampledFiles;
use super::{Fs, OpenError, Writer};
use crate::checkout::checkouts::{self, Checkouts};
use crate::checkout::follow::Follower;
use crate::checkout::format::Registry;
use crate::checkout::layer_lock::LayerLock;
use crate::checkout::layers::{self, LayerTarget};
use crate::dataset::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::formats;
use crate::hdf5::H5;
use crate::io::kept::{KeptDir, kept_path};
use crate::io::remote::Address;
use crate::options::{FsOptions, View};
use crate::tree::Directory;
use crate::tree::control::Control;
use crate::tree::subtree::Subtree;
use crate::views;

/// The files of a mount, and the operations on them.
struct ShownFiles {
    root: Arc<dyn Directory>,
    /// The state of a writable mount.
    writer: Option<Arc<Writer>>,
    /// Keeps a checkout that is only read as it is.
    held: Option<LayerLock>,
    /// The entry of such a checkout in `status.json`.
    read: Option<Json>,
    /// Shows new commits.
    follower: Option<Follower>,
}

impl ShownFiles {
    fn read_only(root: Arc<dyn Directory>) -> Self {
        Self {
            root,
            writer: None,
            held: None,
            read: None,
            follower: None,
        }
    }
}

/// Returns what keeps copies of arrays, if that is wanted and can be done: without, the mount goes on.
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
        // Nobody asked for them.
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

/// Returns whether a directory without a store may get some from its checkouts: there are any.
fn begins(checkouts: &Checkouts) -> bool {
    checkouts.list().is_ok_and(|(all, _)| !all.is_empty())
}

impl Fs {
    /// Opens a store, a file or a directory, with what is committed on top.
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
            || begins(checkouts),
            |base, context| {
                // A repository shows its commits in any case.
                let every = context.options.follow.filter(|_| base.handle().is_none());
                let Some(every) = every else {
                    let root = layers::committed(base, context, formats, checkouts)?;
                    return Ok(ShownFiles::read_only(root));
                };
                let (root, follower) = Follower::start(base, context, formats, checkouts, every)?;
                let _ = context.following.set(Box::new(follower.report()));
                Ok(ShownFiles {
                    follower: Some(follower),
                    ..ShownFiles::read_only(root)
                })
            },
        )
    }

    /// Opens a store as it was when a commit had been made: `at` is its id, or the beginning of that. A repository, which
    /// has its own commits, is refused.
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
            || begins(checkouts),
            |base, context| {
                if base.handle().is_some() {
                    let why = "this store keeps its commits itself, and shows them all";
                    return Err(Error::new(ErrorKind::Os(libc::EOPNOTSUPP), why));
                }
                let layers = checkouts.committed_at(at)?;
                Ok(ShownFiles::read_only(
                    layers::over(base, context, formats, layers).root(),
                ))
            },
        )
    }

    /// Opens a store as `open` does, with the checkout `name` on top, which nobody can write meanwhile. A repository shows what is staged
    /// in any case.
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
            || begins(checkouts),
            |base, context| {
                checkouts::check_name(name)?;
                if base.handle().is_some() {
                    return Ok(ShownFiles::read_only(base));
                }
                let seen = checkouts.open_to_read(name)?;
                let dir = seen
                    .layers
                    .last()
                    .map(|layer| layer.dir.path().to_string_lossy());
                let read = json!({ "name": name, "dir": dir, "read_only": true });
                Ok(ShownFiles {
                    read: Some(read),
                    root: layers::over(base, context, formats, seen.layers).root(),
                    writer: None,
                    held: seen.held,
                    follower: None,
                })
            },
        )
    }

    /// Opens a store as `open` does, in a checkout: what is written goes to the layer `name`.
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
            || true,
            |base, context| {
                let mut own = None;
                for format in formats.iter() {
                    own = format.target(&base, checkouts, name)?;
                    if own.is_some() {
                        break;
                    }
                }
                let target = match own {
                    Some(target) => target,
                    None => Arc::new(LayerTarget::open(base, context, formats, checkouts, name)?),
                };
                let writer = Arc::new(Writer::new(target));
                Ok(ShownFiles {
                    root: writer.root(),
                    writer: Some(writer),
                    held: None,
                    read: None,
                    follower: None,
                })
            },
        )
    }

    fn open_as(
        store: &Path,
        h5: H5,
        options: FsOptions,
        formats: &Registry,
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
        let status: Option<Arc<dyn Fn() -> _ + Send + Sync>> = match (writer.clone(), shown.read) {
            (Some(writer), _) => Some(Arc::new(move || writer.status())),
            (None, Some(read)) => Some(Arc::new(move || read.clone())),
            (None, None) => None,
        };
        let views = View::ALL.map(|view| (view.name(), views::open(view, &root, &context)));
        let root = match context.options.view {
            Some(view) => views::open(view, &root, &context),
            None => root,
        };
        let keeper = match writer {
            // What is written has no version.
            Some(_) => None,
            None => keeper(&context, store),
        };
        let control = Arc::new(Control {
            root: root.clone(),
            views: views.into(),
            context: context.clone(),
            store: store.to_string_lossy().into_owned(),
            started: SystemTime::now(),
            checkout: status,
        });
        Ok(Self {
            store: store.to_owned(),
            samples: SampledFiles::new(&context.tuning, context.prefetch.under_way()),
            formats: formats.clone(),
            context,
            root,
            above,
            lists_names,
            control,
            inodes: Mutex::default(),
            files: RwLock::default(),
            dirs: RwLock::default(),
            next_handle: AtomicU64::new(1),
            again: Again::default(),
            is_prepared: AtomicBool::new(false),
            keeper,
            writer,
            follower: shown.follower,
            _held: shown.held,
        })
    }
}
