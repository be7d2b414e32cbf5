//! A group as a directory: the variables of a file, or the fields of a struct.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::array::{MatlabArray, as_stored, reversed};
use super::cells::CellDirectory;
use super::characters::Characters;
use super::empty::{EmptyArray, EmptyDirectory};
use super::format::NAME;
use super::position::Place;
use super::recognition;
use super::sparse::{SparseArchive, SparseDirectory, SparseMatrix};
use super::value::{Class, Form, NAMES, NotShown, judge};
use crate::formats::plain::small::BrokenFile;
use crate::tree::info;
use crate::tree::name::visible_with;
use crate::tree::{Directory, Learnt, Listing, Node, VirtualFile};
use npyfs_base::error::{Error, Result};
use npyfs_hdf5::{Attribute, ElementType, ScannedMember};
use npyfs_io::file::Ownership;

/// Groups of the root that are not variables: the targets of cells' references, and the parts of opaque objects.
const HIDDEN: [&[u8]; 2] = [b"#refs#", b"#subsystem#"];

/// The variables of a file, or the fields of a struct.
pub(super) struct StructDirectory {
    place: Arc<Place>,
    listed: Learnt<KnownStruct>,
}

/// The listing, and, for an array of structs, a field that refers to its values.
#[derive(Clone)]
struct KnownStruct {
    listing: Arc<Listing>,
    field: Option<u64>,
}

impl StructDirectory {
    pub(super) fn new(place: Arc<Place>) -> Self {
        Self {
            place,
            listed: Learnt::default(),
        }
    }

    fn is_root(&self) -> bool {
        self.place.path.is_empty()
    }

    fn listed(&self) -> Result<KnownStruct> {
        let h5 = &self.place.store.context.h5;
        self.listed.get(h5, |_| true, || self.build())
    }

    fn build(&self) -> Result<KnownStruct> {
        let store = &self.place.store;
        let h5 = &store.context.h5;
        let (most, keep) = ((usize::MAX, 0), |scanned: ScannedMember| scanned);
        let scan = h5.scan(&store.file, self.place.addr, &NAMES, most, keep)?;
        let damage = scan
            .damage
            .iter()
            .map(|why| format!("the group is damaged, some members are missing: {why}"));
        let damage: Vec<_> = damage.collect();
        let (mut entries, mut left_out) = (Vec::new(), Vec::new());
        let mut field = None;
        for scanned in scan.members {
            if self.is_root() && HIDDEN.contains(&scanned.name.as_slice()) {
                continue;
            }
            let shown = |suffix| visible_with(&scanned.name, suffix, store.context.options.sep);
            let name = String::from_utf8_lossy(&scanned.name);
            let (addr, form) = match judge(&scanned).and_then(|found| self.admit(&name, found)) {
                Ok(found) => found,
                Err(NotShown::LeftOut(why)) => {
                    left_out.push((scanned.name.clone(), why));
                    continue;
                }
                Err(NotShown::Damaged(why)) => {
                    let file = broken(&self.place, &name, Error::damaged(why));
                    entries.push((shown(".npy"), file));
                    continue;
                }
            };
            if let (Form::Cells { is_field: true }, None) = (&form, field) {
                field = Some(addr);
            }
            for suffix in form.suffixes() {
                let node = node(&self.place, &name, addr, &form, suffix);
                entries.push((shown(suffix), node));
            }
        }
        let journal = &store.context.journal;
        for why in &damage {
            let (file, path) = (store.file.path.display(), &self.place.path);
            journal.add(&format!("{file}: {path}/{why}"));
        }
        let listing = Listing::new(entries, left_out, damage.clone()).with_damage(damage);
        Ok(KnownStruct {
            listing: Arc::new(listing),
            field,
        })
    }

    /// Checks that a value can be shown here.
    fn admit(
        &self,
        name: &str,
        (addr, form): (u64, Form),
    ) -> std::result::Result<(u64, Form), NotShown> {
        let checked = match form {
            Form::Struct | Form::Cells { .. } => self.place.admits(name, addr),
            Form::Sparse { class, rows } => {
                let store = self.place.store.clone();
                let matrix = SparseMatrix::new(store, "".into(), addr, (class, rows));
                matrix.members().map(drop).map_err(|e| e.message)
            }
            _ => Ok(()),
        };
        checked.map_err(NotShown::LeftOut)?;
        Ok((addr, form))
    }

    /// Returns the shape of a group that is an array of structs, in MATLAB's order.
    fn shape(&self, field: Option<u64>) -> Result<Vec<u64>> {
        let Some(field) = field else {
            return Ok(vec![1, 1]);
        };
        let store = &self.place.store;
        let targets = store.context.h5.targets(&store.file, field, &[], 0, drop)?;
        Ok(reversed(&targets.shape))
    }
}

impl Directory for StructDirectory {
    fn ownership(&self) -> Ownership {
        self.place.store.ownership(self.place.addr)
    }

    fn list(&self) -> Result<Arc<Listing>> {
        Ok(self.listed()?.listing)
    }

    fn is_current(&self) -> bool {
        self.place.store.file.is_current()
    }

    fn format(&self) -> Result<&'static str> {
        Ok(NAME)
    }

    fn info(&self) -> Result<Json> {
        let KnownStruct { listing, field } = self.listed()?;
        let store = &self.place.store;
        let mut info = json!({
            "kind": NAME,
            "file": store.file.path.to_string_lossy(),
            "path": if self.is_root() { "/" } else { &self.place.path },
            "entries": listing.len(),
            "left_out": info::left_out(&listing.left_out),
            "notes": listing.notes,
            "attributes": info::attributes(&self.attributes()?),
        });
        match self.is_root() {
            true => info["header"] = json!(recognition::header(store)?),
            false => {
                info["class"] = json!(Class::Struct.name());
                info["shape"] = json!(self.shape(field)?);
            }
        }
        Ok(info)
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        let store = &self.place.store;
        Ok(store.context.h5.attributes(&store.file, self.place.addr)?)
    }
}

/// Returns a file for a value that cannot be read.
pub(super) fn broken(place: &Place, name: &str, error: Error) -> Node {
    Node::File(Arc::new(BrokenFile {
        store: place.store.clone(),
        path: place.path_of(name).to_string(),
        error,
    }))
}

/// Returns the node of a value: that for `suffix`, one of the suffixes of its form.
pub(super) fn node(place: &Arc<Place>, name: &str, addr: u64, form: &Form, suffix: &str) -> Node {
    let path = place.path_of(name);
    let stored = |element: &ElementType, shape: &[u64]| {
        as_stored(&place.store, &path, addr, element.clone(), shape.to_vec())
    };
    let file = |made: Result<Arc<dyn VirtualFile>>| match made {
        Ok(file) => Node::File(file),
        Err(e) => broken(place, name, e),
    };
    match form {
        Form::Array {
            class,
            element,
            shape,
        } => {
            let array = MatlabArray::new(stored(element, shape), *class);
            file(array.map(|array| Arc::new(array) as _))
        }
        Form::Characters {
            unit,
            element,
            shape,
        } => Node::File(Arc::new(Characters::new(stored(element, shape), *unit))),
        Form::Empty {
            class,
            element,
            rank,
        } => {
            let empty = EmptyArray::new(stored(element, &[*rank]), *class);
            match class {
                Class::Cell | Class::Struct => Node::Directory(Arc::new(EmptyDirectory(empty))),
                _ => Node::File(Arc::new(empty)),
            }
        }
        Form::Cells { is_field } => {
            let place = Arc::new(place.below(name, addr));
            Node::Directory(Arc::new(CellDirectory::new(place, *is_field)))
        }
        Form::Struct => {
            let place = Arc::new(place.below(name, addr));
            Node::Directory(Arc::new(StructDirectory::new(place)))
        }
        Form::Sparse { class, rows } => {
            let matrix = SparseMatrix::new(place.store.clone(), path, addr, (*class, *rows));
            match suffix.is_empty() {
                true => Node::Directory(Arc::new(SparseDirectory(matrix))),
                false => Node::File(Arc::new(SparseArchive(matrix))),
            }
        }
    }
}
