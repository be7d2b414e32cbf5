//! An object that a layer holds: the entries of its file that belong to it, with its own time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value as Json, json};

use super::stem;
use crate::content::Content;
use crate::error::Result;
use crate::h5::Attribute;
use crate::raw::Ownership;
use crate::store::Context;
use crate::store::folder::StoreRoot;
use crate::tree::{Directory, Node, VirtualFile};

/// An object in a file of its own.
pub struct LayerObject {
    pub path: PathBuf,
    file: Arc<StoreRoot>,
    /// The names that lead to it in that file.
    inside: Vec<Vec<u8>>,
    /// When it was written.
    pub time: SystemTime,
    /// The checkout it was written in.
    pub layer: Arc<str>,
}

impl LayerObject {
    pub fn new(
        path: &Path,
        inside: Vec<Vec<u8>>,
        time: SystemTime,
        layer: &str,
        context: &Arc<Context>,
    ) -> Self {
        Self {
            path: path.to_owned(),
            file: Arc::new(StoreRoot::new(path, context)),
            inside,
            time,
            layer: layer.into(),
        }
    }

    /// The same object with another time.
    pub fn with_time(&self, time: SystemTime) -> Self {
        Self {
            path: self.path.clone(),
            file: self.file.clone(),
            inside: self.inside.clone(),
            time,
            layer: self.layer.clone(),
        }
    }

    /// The directory of the file that the object is in, and its name there.
    fn place(&self) -> Result<Option<(Arc<dyn Directory>, &[u8])>> {
        let Some((last, above)) = self.inside.split_last() else {
            return Ok(None);
        };
        let mut dir: Arc<dyn Directory> = self.file.current()?;
        for name in above {
            match dir.lookup(name)? {
                Some(Node::Directory(below)) => dir = below,
                _ => return Ok(None),
            }
        }
        Ok(Some((dir, last)))
    }

    /// All forms that the object is shown in.
    pub fn entries(self: &Arc<Self>) -> Result<Vec<(Vec<u8>, Node)>> {
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

    /// The form of a name.
    pub fn find(self: &Arc<Self>, name: &[u8]) -> Result<Option<Node>> {
        let Some((dir, _)) = self.place()? else {
            return Ok(None);
        };
        dir.lookup(name)
    }

    /// A file of the object, with the object's time.
    pub fn file(self: &Arc<Self>, inner: Arc<dyn VirtualFile>) -> Node {
        Node::File(Arc::new(LayerFile {
            object: self.clone(),
            inner,
        }))
    }

    /// What it adds to the report on an entry.
    pub fn report(&self, mut info: Json) -> Json {
        if let Json::Object(map) = &mut info {
            map.insert("checkout".to_owned(), json!(&*self.layer));
        }
        info
    }
}

/// A file of an object.
struct LayerFile {
    object: Arc<LayerObject>,
    inner: Arc<dyn VirtualFile>,
}

impl VirtualFile for LayerFile {
    fn ownership(&self) -> Ownership {
        Ownership {
            mtime: self.object.time,
            ..self.inner.ownership()
        }
    }

    fn size(&self) -> Result<u64> {
        self.inner.size()
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        self.inner.open()
    }

    fn version(&self) -> u64 {
        self.inner.version()
    }

    fn is_current(&self) -> bool {
        self.inner.is_current()
    }

    fn info(&self) -> Result<Json> {
        Ok(self.object.report(self.inner.info()?))
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        self.inner.attributes()
    }

    fn mode(&self) -> u32 {
        self.inner.mode()
    }
}
