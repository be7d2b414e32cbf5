//! A format made up for the tests: HDF5 files whose root has `upside_down`, and whose arrays are shown with the last
//! row first.

use std::sync::Arc;

use npyfs_base::error::Result;
use npyfs_core::dataset::opened::OpenStore;
use npyfs_core::formats::plain::Plain;
use npyfs_core::store::base::Base;
use npyfs_core::store::encode::{ObjectKey, Plan};
use npyfs_core::store::format::{Abilities, Format, Writing};
use npyfs_core::store::object::NewFile;
use npyfs_core::store::part::Part;
use npyfs_core::tree::{Directory, Listing, Node, VirtualFile};
use npyfs_hdf5::NewAttribute;
use npyfs_io::content::{Content, complete_npy_header};
use npyfs_io::file::Ownership;

pub struct UpsideDown;

impl Format for UpsideDown {
    fn name(&self) -> &'static str {
        "upside-down"
    }

    fn root(&self, store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
        let marks = store.context.h5.attributes(&store.file, store.root)?;
        let root = match marks.iter().any(|mark| mark.name == b"upside_down") {
            true => Plain(&[]).root(store)?,
            false => None,
        };
        Ok(root.map(|root| Arc::new(Turned(root)) as _))
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities {
            writing: Some(self),
            ..Abilities::default()
        }
    }
}

impl Writing for UpsideDown {
    fn plan(&self, base: &dyn Base, key: &ObjectKey, parts: &[Part]) -> Result<Plan> {
        let turned = |part: &Part| Part {
            content: Arc::new(Turned(part.content.clone())),
            ..part.clone()
        };
        let parts: Vec<Part> = parts.iter().map(turned).collect();
        let mut plan = Plain(&[]).plan(base, key, &parts)?;
        if let Plan::Complete(new) = &mut plan {
            self.mark_file(new);
        }
        Ok(plan)
    }

    fn mark_file(&self, new: &mut NewFile) {
        new.mark_root(NewAttribute::int("upside_down", 1));
    }
}

/// The same files without `Writing`: they are only read.
pub struct OnlyRead;

impl Format for OnlyRead {
    fn name(&self) -> &'static str {
        UpsideDown.name()
    }

    fn root(&self, store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
        UpsideDown.root(store)
    }
}

/// A directory, a file or the bytes of one, turned.
struct Turned<T: ?Sized>(Arc<T>);

fn turned(node: Node) -> Node {
    match node {
        Node::Directory(dir) => Node::Directory(Arc::new(Turned(dir))),
        Node::File(file) => Node::File(Arc::new(Turned(file))),
        link => link,
    }
}

impl Directory for Turned<dyn Directory> {
    fn ownership(&self) -> Ownership {
        self.0.ownership()
    }
    fn list(&self) -> Result<Arc<Listing>> {
        let listing = self.0.list()?;
        let entries = listing
            .iter()
            .map(|(name, node)| (name.into_owned(), turned(node.into_owned())));
        let damage = listing.damage.clone();
        Ok(Arc::new(Listing::new(
            entries.collect(),
            listing.left_out.clone(),
            damage,
        )))
    }
    fn is_current(&self) -> bool {
        self.0.is_current()
    }
    fn format(&self) -> Result<&'static str> {
        Ok(UpsideDown.name())
    }
    fn info(&self) -> Result<serde_json::Value> {
        self.0.info()
    }
}

impl VirtualFile for Turned<dyn VirtualFile> {
    fn ownership(&self) -> Ownership {
        self.0.ownership()
    }
    fn size(&self) -> Result<u64> {
        self.0.size()
    }
    fn open(&self) -> Result<Arc<dyn Content>> {
        Ok(Arc::new(Turned(self.0.open()?)))
    }
    fn version(&self) -> u64 {
        self.0.version()
    }
    fn is_current(&self) -> bool {
        self.0.is_current()
    }
    fn info(&self) -> Result<serde_json::Value> {
        self.0.info()
    }
}

impl Content for Turned<dyn Content> {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let header = complete_npy_header(&*self.0)?;
        let row = header.len / header.shape.first().copied().unwrap_or(1).max(1);
        for (at, byte) in (offset..).zip(buf) {
            let from = match at.checked_sub(header.start) {
                Some(at) if row > 0 => header.start + header.len - (at / row + 1) * row + at % row,
                _ => at,
            };
            self.0.read_at(from, std::slice::from_mut(byte))?;
        }
        Ok(())
    }
}
