//! Tests of the view with an artificial tree: no file, no kernel.

use std::time::UNIX_EPOCH;

use serde_json::{Value as Json, json};

use super::*;
use crate::tree::array::{ArrayDescription, Elements, Presence, StoredArray};
use crate::tree::{Listing, Node, Symlink, VirtualFile};
use npyfs_base::error::{Error, Result};
use npyfs_base::npy::dtype::DType;
use npyfs_base::options::FsOptions;
use npyfs_hdf5::Details;
use npyfs_io::content::{Content, InMemory};
use npyfs_io::file::Ownership;

const OWNERSHIP: Ownership = Ownership {
    uid: 0,
    gid: 0,
    mode: 0o644,
    mtime: UNIX_EPOCH,
};

/// An array of 10 by 3 bytes in chunks of 4 by 2, one of which was written.
struct Bytes(&'static [u8]);

impl StoredArray for Bytes {
    fn name(&self) -> &[u8] {
        self.0
    }

    fn dtype(&self) -> Option<&DType> {
        None
    }

    fn shape(&self) -> &[u64] {
        &[10, 3]
    }

    fn version(&self) -> u64 {
        7
    }

    fn is_current(&self) -> bool {
        true
    }

    fn describe(&self) -> Result<ArrayDescription> {
        Ok(ArrayDescription {
            elements: Elements::Fixed(DType::int(1)),
            shape: vec![10, 3],
            chunk: vec![4, 2],
            details: Details {
                chunks: Some(vec![4, 2]),
                fill: Some(vec![0]),
                ..Details::of_group(Vec::new())
            },
        })
    }

    fn presence(&self, _: &ArrayDescription) -> Result<Presence> {
        Ok(Presence::Some(Box::new(|place| place == [2, 1])))
    }

    fn chunk_len(&self, _: &ArrayDescription, _: &[u64]) -> Result<u64> {
        Ok(8)
    }

    fn chunk(&self, _: &ArrayDescription, place: &[u64]) -> Result<Arc<dyn Content>> {
        Ok(Arc::new(InMemory(vec![place[0] as u8; 8])))
    }
}

/// A file that is an array, is derived from arrays, or cannot be read.
enum Entry {
    Array(&'static [u8]),
    Made,
    Broken,
}

impl VirtualFile for Entry {
    fn ownership(&self) -> Ownership {
        OWNERSHIP
    }

    fn size(&self) -> Result<u64> {
        Ok(0)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        Err(Error::damaged("nobody opens it"))
    }

    fn version(&self) -> u64 {
        7
    }

    fn is_current(&self) -> bool {
        true
    }

    fn info(&self) -> Result<Json> {
        Ok(json!({}))
    }

    fn array(self: Arc<Self>) -> Result<Option<Arc<dyn StoredArray>>> {
        match *self {
            Self::Array(name) => Ok(Some(Arc::new(Bytes(name)))),
            Self::Made => Ok(None),
            Self::Broken => Err(Error::damaged("torn")),
        }
    }
}

struct Dir(Vec<(&'static str, Node)>);

impl Directory for Dir {
    fn ownership(&self) -> Ownership {
        OWNERSHIP
    }

    fn list(&self) -> Result<Arc<Listing>> {
        let entries = self.0.iter();
        let entries = entries.map(|(name, node)| (name.as_bytes().to_vec(), node.clone()));
        Ok(Arc::new(Listing::new(
            entries.collect(),
            vec![(b"refs".to_vec(), "references".into())],
            Vec::new(),
        )))
    }

    fn is_current(&self) -> bool {
        true
    }

    fn info(&self) -> Result<Json> {
        Ok(json!({}))
    }
}

fn file(entry: Entry) -> Node {
    Node::File(Arc::new(entry))
}

fn link(target: &str) -> Node {
    Node::Symlink(Arc::new(Symlink {
        target: target.into(),
        ownership: OWNERSHIP,
    }))
}

fn view(version: Version) -> Arc<dyn Directory> {
    let group = Dir(vec![
        ("x.npy", file(Entry::Array(b"x"))),
        ("up", link("..")),
        ("again.npy", link("x.npy")),
    ]);
    let root: Arc<dyn Directory> = Arc::new(Dir(vec![
        ("a%2Enpy.npy", file(Entry::Array(b"a.npy"))),
        ("labels.npy", file(Entry::Made)),
        ("torn.npy", file(Entry::Broken)),
        (".zz.npy", file(Entry::Array(b".zz"))),
        ("g%41", Node::Directory(Arc::new(group))),
        ("elsewhere", link("g%41")),
        ("nowhere", link("gone")),
    ]));
    let context = Arc::new(Context::new(npyfs_worker::h5_here(), FsOptions::default()));
    open(&root, version, &context)
}

fn names(dir: &Arc<dyn Directory>) -> Vec<String> {
    let listing = dir.list().unwrap();
    let names = listing
        .iter()
        .map(|(name, _)| String::from_utf8(name.into_owned()).unwrap());
    names.collect()
}

fn below(dir: &Arc<dyn Directory>, path: &str) -> Arc<dyn Directory> {
    let mut at = dir.clone();
    for name in path.split('/') {
        at = match at.lookup(name.as_bytes()).unwrap() {
            Some(Node::Directory(dir)) => dir,
            _ => panic!("{name} is no directory"),
        };
    }
    at
}

fn text(node: Option<Node>) -> Vec<u8> {
    let Some(Node::File(file)) = node else {
        panic!("no file");
    };
    let content = file.open().unwrap();
    assert_eq!(file.size().unwrap(), content.len());
    let mut bytes = vec![0; content.len() as usize];
    content.read_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn arrays_and_groups_have_the_names_of_their_links() {
    let root = view(Version::V2);
    let metadata = [".zattrs", ".zgroup", ".zmetadata"];
    assert_eq!(
        names(&root),
        [&metadata[..], &["a.npy", "elsewhere", "gA"]].concat()
    );
    assert_eq!(
        names(&below(&root, "gA")),
        [".zattrs", ".zgroup", "again", "x"]
    );
    assert_eq!(
        names(&below(&root, "elsewhere")),
        [".zattrs", ".zgroup", "again", "x"]
    );
    for gone in [
        "labels",
        "torn",
        ".zz",
        "nowhere",
        "refs",
        "a.npy.npy",
        "zarr.json",
    ] {
        assert!(root.lookup(gone.as_bytes()).unwrap().is_none(), "{gone}");
    }
    let listing = root.list().unwrap();
    let left_out: Vec<_> = listing.left_out.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(left_out, [&b"refs"[..], b".zz", b"nowhere", b"torn"]);
    let above = below(&root, "gA").list().unwrap();
    assert_eq!(above.left_out.last().unwrap().0, b"up");
}

#[test]
fn chunks_that_were_written_are_files() {
    let root = view(Version::V3);
    let array = below(&root, "gA/x");
    assert_eq!(names(&array), ["zarr.json", "2.1"]);
    assert_eq!(text(array.lookup(b"2.1").unwrap()), [2; 8]);
    for gone in ["0.0", "2.2", "2.01", "3.1", "2", ".zarray"] {
        assert!(array.lookup(gone.as_bytes()).unwrap().is_none(), "{gone}");
    }
    // Version 2 has no fill value without `_FillValue`, so every chunk is present.
    assert_eq!(names(&below(&view(Version::V2), "gA/x")).len(), 2 + 6);
}

#[test]
fn the_metadata_of_all_are_in_one_file() {
    let whole = text(view(Version::V2).lookup(b".zmetadata").unwrap());
    let whole: Json = serde_json::from_slice(&whole).unwrap();
    let arrays = [
        "a.npy",
        "gA/x",
        "gA/again",
        "elsewhere/x",
        "elsewhere/again",
    ];
    let metadata = whole["metadata"].as_object().unwrap();
    for array in arrays {
        assert!(
            metadata.contains_key(&format!("{array}/.zarray")),
            "{array}"
        );
    }
    assert_eq!(metadata.len(), 2 * (arrays.len() + 3));
    let whole = text(view(Version::V3).lookup(b"zarr.json").unwrap());
    let whole: Json = serde_json::from_slice(&whole).unwrap();
    let metadata = &whole["consolidated_metadata"]["metadata"];
    assert_eq!(metadata.as_object().unwrap().len(), arrays.len() + 2);
}
