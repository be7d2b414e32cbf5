//! An object in a layer: the entries of its file that belong to it, with its own time.
//!
//! The state of a key says whether such an object is there, and which change of which checkout made it so.

use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use lru::LruCache;
use parking_lot::Mutex;
use serde_json::{Value as Json, json};
use xxhash_rust::xxh3::xxh3_64;

use super::stem;
use crate::checkout::records::index::{self, StoredObject};
use crate::dataset::context::Context;
use crate::store::against::Extent;
use crate::store::format::{Registry, StoreRoot};
use crate::tree::array::StoredArray;
use crate::tree::path::walk;
use crate::tree::{Directory, Node, VirtualFile};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_hdf5::Attribute;
use npyfs_io::content::Content;
use npyfs_io::dir::Dir;
use npyfs_io::file::Ownership;

/// The most files of layers that are kept open.
const MOST_OPEN: usize = 512;

/// Recently opened files of layers.
pub struct OpenFiles {
    context: Arc<Context>,
    formats: Registry,
    roots: Mutex<LruCache<PathBuf, Arc<StoreRoot>>>,
}

impl OpenFiles {
    pub fn new(context: &Arc<Context>, formats: &Registry) -> Self {
        let size = NonZeroUsize::new(MOST_OPEN).unwrap_or(NonZeroUsize::MIN);
        Self {
            context: context.clone(),
            formats: formats.clone(),
            roots: Mutex::new(LruCache::new(size)),
        }
    }

    fn root(&self, dir: &Dir, file: &str) -> Arc<StoreRoot> {
        let path = dir.path().join(file);
        let mut roots = self.roots.lock();
        let make = || {
            let (dir, file) = (dir.clone(), file.to_owned());
            let open = move || dir.read(&file);
            Arc::new(StoreRoot::opened_by(
                &path,
                &self.context,
                &self.formats,
                Arc::new(open),
            ))
        };
        roots.get_or_insert(path.clone(), make).clone()
    }
}

/// An object in a file of a layer.
#[derive(Clone)]
pub struct LayerObject {
    /// The directory of the layer.
    pub dir: Dir,
    /// Its record in the index of the layer.
    pub stored: Arc<StoredObject>,
    /// The files of layers that are open.
    pub files: Arc<OpenFiles>,
    /// The name by which its file is shown as a store, if the whole file is one.
    pub store: Option<Vec<u8>>,
    /// The path that leads to it in that file; empty if the whole file is a store.
    pub inside: Box<[u8]>,
    /// The time when it was written and the checkout that wrote it; for a restored object, those of its restoration.
    pub origin: Origin,
    /// The index of its layer, from 0, lowest first.
    pub at: usize,
    /// The number of lower layers that its writer saw; used for axes.
    pub seen: usize,
}

/// A directory and a name in it.
type InDirectory<'a> = (Arc<dyn Directory>, &'a [u8]);

impl LayerObject {
    /// Returns the name of its file.
    fn file(&self) -> String {
        self.stored.name()
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join(self.file())
    }

    /// Returns the last name of its path in the file.
    fn last(&self) -> Option<&[u8]> {
        self.inside
            .rsplit(|&b| b == b'/')
            .next()
            .filter(|last| !last.is_empty())
    }

    /// Returns the directory of the file that contains the object, and its name there.
    fn place(&self) -> Result<Option<InDirectory<'_>>> {
        let Some(last) = self.last() else {
            return Ok(None);
        };
        let above = &self.inside[..self.inside.len() - last.len()];
        let above = above.split(|&b| b == b'/').filter(|name| !name.is_empty());
        if let Some(object) = self.stored.unwritten.get() {
            object.write()?;
        }
        let opened = self.files.root(&self.dir, &self.file()).current();
        let dir: Arc<dyn Directory> = opened.map_err(|e| match e.kind {
            // Another version has replaced it since it was looked up.
            ErrorKind::NotFound => Error::new(ErrorKind::Stale, e.message),
            _ => e,
        })?;
        let dir = walk(dir, above)?.and_then(Node::directory);
        Ok(dir.map(|dir| (dir, last)))
    }

    /// Returns the file of another object that is stored along with this one, by its shown name.
    pub fn beside(&self, name: &[u8]) -> Result<Option<Arc<dyn VirtualFile>>> {
        let found = match self.place()? {
            Some((dir, _)) => dir.lookup(name)?,
            None => None,
        };
        Ok(found.and_then(Node::file))
    }

    /// Returns an attribute of its file.
    pub fn attribute(&self, name: &[u8]) -> Result<Option<Attribute>> {
        let root = self.files.root(&self.dir, &self.file()).current()?;
        let found = root.attributes()?.into_iter();
        Ok(found.into_iter().find(|attribute| attribute.name == name))
    }

    /// Returns its dimensions, if it has any.
    pub fn extent(&self) -> Result<Option<Extent>> {
        match self.place()? {
            Some((dir, last)) => self
                .files
                .formats
                .format_of(&*dir)?
                .objects()
                .extent(&*dir, last),
            None => Ok(None),
        }
    }

    /// Returns all entries that the object is shown as.
    pub fn entries(self: &Arc<Self>) -> Result<Vec<(Vec<u8>, Node)>> {
        if let Some(name) = &self.store {
            return Ok(vec![(name.clone(), self.root())]);
        }
        if let (Some(size), Some(last)) = (self.stored.size, self.last()) {
            let name = [last, &b".npy"[..]].concat();
            let file = self.unopened(&name, size);
            return Ok(vec![(name, file)]);
        }
        let Some((dir, last)) = self.place()? else {
            return Ok(Vec::new());
        };
        let listing = dir.list()?;
        let own = listing.iter().filter(|(name, node)| match **node {
            Node::Directory(_) => **name == *last,
            Node::File(_) | Node::Symlink(_) => stem(name) == last,
        });
        Ok(own
            .map(|(name, node)| (name.into_owned(), node.into_owned()))
            .collect())
    }

    /// Returns the entry with a name.
    pub fn find(self: &Arc<Self>, name: &[u8]) -> Result<Option<Node>> {
        if let Some(own) = &self.store {
            return Ok((own == name).then(|| self.root()));
        }
        if let (Some(size), Some(last)) = (self.stored.size, self.last()) {
            let own = name.strip_suffix(b".npy") == Some(last);
            return Ok(own.then(|| self.unopened(name, size)));
        }
        let Some((dir, _)) = self.place()? else {
            return Ok(None);
        };
        dir.lookup(name)
    }

    /// Returns its file as a store.
    fn root(&self) -> Node {
        Node::Directory(self.files.root(&self.dir, &self.file()))
    }

    /// Returns a file whose size is known.
    fn unopened(self: &Arc<Self>, name: &[u8], size: u64) -> Node {
        Node::File(Arc::new(UnopenedFile {
            object: self.clone(),
            name: name.to_vec(),
            size,
        }))
    }
}

/// The only file of an object, before its layer file is opened.
struct UnopenedFile {
    object: Arc<LayerObject>,
    name: Vec<u8>,
    size: u64,
}

impl UnopenedFile {
    fn file(&self) -> Result<Arc<dyn VirtualFile>> {
        let found = match self.object.place()? {
            Some((dir, _)) => dir.lookup(&self.name)?,
            None => None,
        };
        match found {
            Some(Node::File(file)) if file.size()? == self.size => Ok(file),
            _ => {
                let path = self.object.path();
                let why = format!("{}: not the file that the index says", path.display());
                Err(Error::damaged(why))
            }
        }
    }
}

impl VirtualFile for UnopenedFile {
    fn ownership(&self) -> Ownership {
        // All files of a layer have the same ownership.
        let file = match self.object.stored.unwritten.get() {
            Some(_) => index::NAME.to_owned(),
            None => self.object.file(),
        };
        self.object
            .dir
            .metadata_here(&file)
            .or_else(|_| self.object.dir.metadata_here(index::NAME))
            .or_else(|e| {
                self.object
                    .dir
                    .above()
                    .ok_or(e)?
                    .own_metadata()
                    .map_err(Error::from)
            })
            .map_or(Ownership::UNKNOWN, |meta| Ownership::from_metadata(&meta))
    }

    fn size(&self) -> Result<u64> {
        Ok(self.size)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        match self.object.stored.unwritten.get() {
            Some(object) => Ok(object),
            None => self.file()?.open(),
        }
    }

    fn version(&self) -> u64 {
        // A file of a layer never changes, and its name is not reused while the layer is open.
        let path = self.object.path();
        xxh3_64(&[path.as_os_str().as_bytes(), b"/", &self.object.inside].concat())
    }

    fn is_current(&self) -> bool {
        let is_written = || self.object.dir.size(&self.object.file()).is_ok();
        self.object.stored.unwritten.get().is_some() || is_written()
    }

    fn is_remade(&self) -> bool {
        true
    }

    fn info(&self) -> Result<Json> {
        self.file()?.info()
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        self.file()?.attributes()
    }

    fn array(self: Arc<Self>) -> Result<Option<Arc<dyn StoredArray>>> {
        self.file()?.array()
    }
}

/// The state of a key in the layers.
#[derive(Clone)]
pub(super) enum KeyState {
    /// An object of a layer is there.
    Object(Arc<LayerObject>),
    /// The key is that of an attribute, which is in a file of a layer.
    Attribute(Arc<LayerObject>),
    /// The object or attribute is deleted.
    Deleted,
    /// The object below the layers is visible again.
    Uncovered(Origin),
}

impl KeyState {
    /// Returns the object, if it is one.
    pub(super) fn object(&self) -> Option<&Arc<LayerObject>> {
        match self {
            Self::Object(object) => Some(object),
            Self::Attribute(_) | Self::Deleted | Self::Uncovered(_) => None,
        }
    }

    /// Returns the origin of the restoration, if the object below the layers is visible again.
    pub(super) fn uncovered(&self) -> Option<&Origin> {
        match self {
            Self::Uncovered(origin) => Some(origin),
            Self::Object(_) | Self::Attribute(_) | Self::Deleted => None,
        }
    }
}

/// The change that produced the present object at a key.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The time of the change.
    pub time: SystemTime,
    /// The checkout that made it.
    pub layer: Arc<str>,
}

impl Origin {
    /// Adds the origin to the report on an entry.
    pub(super) fn report(&self, mut info: Json) -> Json {
        if let Json::Object(map) = &mut info {
            map.insert("checkout".to_owned(), json!(&*self.layer));
        }
        info
    }
}
