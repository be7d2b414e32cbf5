//! The store below checkouts, opened to look at it with layers on top.

use std::sync::Arc;

use crate::cli::CliError;
use npyfs_base::error::Result;
use npyfs_base::npy::parse::{self, LONGEST_HEADER};
use npyfs_base::options::FsOptions;
use npyfs_core::checkout::history::checkouts::Checkouts;
use npyfs_core::checkout::records::layer_files::LayerFiles;
use npyfs_core::checkout::verbs::commit::Outcome;
use npyfs_core::checkout::view::View;
use npyfs_core::checkout::view::is_empty_group;
use npyfs_core::dataset::context::Context;
use npyfs_core::formats;
use npyfs_core::tree::{Directory, Node};
use npyfs_hdf5::{H5, Reach};
use npyfs_io::content::Content;

/// The most members of an object that are named.
const MOST_NAMED: usize = 8;

/// The number of bytes of a file in which its header is looked for first.
const SHORT_HEAD: usize = 4096;

/// An open store, without layers.
pub(super) struct BaseStore {
    /// The cache, the workers and the options.
    pub(super) context: Arc<Context>,
    /// The root of the store.
    pub(super) base: Arc<dyn Directory>,
}

impl BaseStore {
    /// Opens the store of these checkouts, with the error of a command.
    pub(super) fn open(checkouts: &Checkouts) -> std::result::Result<Self, CliError> {
        Self::try_open(checkouts).map_err(|e| CliError::store(e.message))
    }

    /// Opens the store of these checkouts.
    pub(super) fn try_open(checkouts: &Checkouts) -> Result<Self> {
        let options = FsOptions {
            remote: checkouts.remote().clone(),
            ..FsOptions::default()
        };
        let reach = Reach::of(checkouts.store(), options.external).with(checkouts.dir());
        let h5 = H5::workers(reach);
        let context = Arc::new(Context::new(h5, options));
        let base = formats::open(checkouts.store(), &context, &formats::registry(), || true)?;
        Ok(Self { context, base })
    }

    /// Returns the store with layers on top, lowest first.
    pub(super) fn with<'a>(&self, layers: impl IntoIterator<Item = &'a LayerFiles>) -> Arc<View> {
        self.over(layers.into_iter().cloned().collect())
    }

    /// Returns what a commit would make of the store, with its layers on top.
    pub(super) fn outcome(&self, layers: Vec<LayerFiles>) -> Box<dyn Outcome> {
        Box::new(self.over(layers))
    }

    fn over(&self, layers: Vec<LayerFiles>) -> Arc<View> {
        View::over(
            self.base.clone(),
            &self.context,
            &formats::registry(),
            layers,
        )
    }

    /// Returns whether the object of a layer is a group with nothing in it.
    pub(super) fn is_group(&self, layer: &LayerFiles, key: &str) -> bool {
        is_empty_group(layer, key, &|layer| self.with([layer]))
    }
}

/// Describes the type and shape of a node in a few words.
pub(super) fn describe(node: &Node) -> String {
    let described = match node {
        Node::Symlink(link) => Ok(format!("-> {}", String::from_utf8_lossy(&link.target))),
        Node::File(file) => file.open().and_then(|content| head(&*content)),
        Node::Directory(dir) => members(&**dir),
    };
    described.unwrap_or_else(|e| format!("cannot be read: {e}"))
}

/// Describes a file by its header.
fn head(content: &dyn Content) -> Result<String> {
    let read = |most: usize| {
        let len = usize::try_from(content.len()).unwrap_or(usize::MAX);
        let mut head = vec![0; len.min(most)];
        content.read_at(0, &mut head).map(|()| head)
    };
    let header = match parse::parse(&read(SHORT_HEAD)?) {
        Ok(header) => Ok(header),
        Err(_) => parse::parse(&read(LONGEST_HEADER)?),
    };
    Ok(match header {
        Ok(header) => {
            let shape: Vec<_> = header.shape.iter().map(u64::to_string).collect();
            let comma = if shape.len() == 1 { "," } else { "" };
            format!("{} ({}{comma})", header.dtype.name(), shape.join(", "))
        }
        // An .npz or a text.
        Err(_) => format!("{} bytes", content.len()),
    })
}

/// Describes a directory by its members.
fn members(dir: &dyn Directory) -> Result<String> {
    let listing = dir.list()?;
    if dir.is_store() {
        return Ok(format!("{} store", dir.format()?));
    }
    if listing.is_empty() {
        return Ok("empty group".to_owned());
    }
    if listing.len() > MOST_NAMED {
        return Ok(format!("{} members", listing.len()));
    }
    let shown = listing.iter().map(|(name, node)| {
        let name = String::from_utf8_lossy(&name).into_owned();
        match &*node {
            Node::Directory(_) => format!("{name}/"),
            node => format!("{name} {}", describe(node)),
        }
    });
    Ok(shown.collect::<Vec<_>>().join("; "))
}
