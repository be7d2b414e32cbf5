//! The store below checkouts, opened to look at it with layers on top.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::checkout::checkouts::{Checkouts, LayerFiles};
use crate::checkout::view::View;
use crate::cli::CliError;
use crate::dataset::context::Context;
use crate::error::Result;
use crate::formats;
use crate::hdf5::H5;
use crate::hdf5::permit::Reach;
use crate::io::content::Content;
use crate::npy::parse::{self, LONGEST_HEADER};
use crate::options::FsOptions;
use crate::tree::name::SUFFIXES;
use crate::tree::{Directory, Node};

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
    /// Opens the store of these checkouts; the error is that of a command.
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
        let view = View::new(
            self.base.clone(),
            self.context.clone(),
            &formats::registry(),
        );
        view.add_layers(layers.into_iter().cloned());
        view
    }

    /// Returns whether the object of a layer is a group with nothing in it.
    pub(super) fn is_group(&self, layer: &LayerFiles, key: &str) -> bool {
        let file = layer.entries.get(key).and_then(|entry| entry.file(layer));
        let Some((dir, stored)) = file else {
            return false;
        };
        let entries = BTreeMap::from([(key.to_owned(), Some(stored.clone()))]);
        let layer = LayerFiles::bare(dir, entries);
        let root = self.with([&layer]).root();
        match forms(&root, key).as_deref() {
            Ok([(_, Node::Directory(dir))]) => dir.list().is_ok_and(|listing| listing.is_empty()),
            _ => false,
        }
    }
}

/// Returns all forms in which the object at a key is shown, with their paths: `a/b.npy`, `a/b/`.
pub(super) fn forms(root: &Arc<dyn Directory>, key: &str) -> Result<Vec<(String, Node)>> {
    let (above, last) = key.rsplit_once('/').unwrap_or(("", key));
    let mut dir = root.clone();
    for name in above.split('/').filter(|name| !name.is_empty()) {
        match dir.lookup(name.as_bytes())? {
            Some(Node::Directory(below)) => dir = below,
            _ => return Ok(Vec::new()),
        }
    }
    let path = |name: &str| match above {
        "" => name.to_owned(),
        above => format!("{above}/{name}"),
    };
    let mut found = Vec::new();
    for suffix in SUFFIXES {
        let name = format!("{last}{}", String::from_utf8_lossy(suffix));
        match dir.lookup(name.as_bytes())? {
            Some(node @ (Node::File(_) | Node::Symlink(_))) => found.push((path(&name), node)),
            Some(Node::Directory(_)) | None => {}
        }
    }
    match dir.lookup(last.as_bytes())? {
        Some(node @ Node::Directory(_)) => found.push((path(&format!("{last}/")), node)),
        // A link to a group has no suffix.
        Some(node @ Node::Symlink(_)) => found.push((path(last), node)),
        Some(Node::File(_)) | None => {}
    }
    Ok(found)
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
        // An .npz, a text.
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
