//! Values that contain others as directories: a group, which is the variables of a file or the fields of a struct, and
//! a dataset of references, which is a cell array or a field of an array of structs. Each may contain the other.
//!
//! The values of a dataset of references are named by their positions, `1`, `2`, ..., which MATLAB counts down the
//! columns: the order in which they are stored. Its directory stores a few bytes for each value, and creates nodes on
//! demand.
//!
//! A `Place` is the position of a value: its store, its path, and the values around it. No value is shown inside of
//! itself, or more than 64 levels deep.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;
use serde_json::{Value as Json, json};
use xxhash_rust::xxh3::xxh3_64;

use super::array::{Characters, EmptyArray, EmptyDirectory, MatlabArray, as_stored, reversed};
use super::sparse::{SparseArchive, SparseDirectory, SparseMatrix};
use super::value::{Class, Form, NAMES, NotShown, judge};
use super::{NAME, user_block_text};
use crate::dataset::opened::OpenStore;
use crate::formats::plain::small::BrokenFile;
use crate::tree::name::visible_with;
use crate::tree::{CachedFact, Directory, LazyEntries, Listing, Node, VirtualFile, info};
use npyfs_base::error::{Error, Result};
use npyfs_hdf5::{Attribute, ElementType, ScannedMember};
use npyfs_io::file::Ownership;

/// Groups of the root that are not variables: the targets of cells' references, and the parts of opaque objects.
const HIDDEN: [&[u8]; 2] = [b"#refs#", b"#subsystem#"];

/// The number of container values that the directory of a dataset of references caches.
const KEPT: usize = 64;

/// The most values of a dataset of references whose omission is reported by name.
const MOST_LEFT_OUT: usize = 1000;

/// The variables of a file, or the fields of a struct.
pub(super) struct StructDirectory {
    place: Arc<Place>,
    listed: CachedFact<KnownStruct>,
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
            listed: CachedFact::default(),
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
            true => info["header"] = json!(user_block_text(store)?),
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

/// A cell array, or a field of an array of structs.
struct CellDirectory {
    place: Arc<Place>,
    is_field: bool,
    known: CachedFact<KnownCells>,
}

/// The listing, and the shape in MATLAB's order.
#[derive(Clone)]
struct KnownCells {
    listing: Arc<Listing>,
    shape: Vec<u64>,
}

/// One entry of a dataset of references.
struct Slot {
    addr: u64,
    /// The position of the value, from 1.
    number: u32,
    /// The number of its form.
    form: u32,
    /// The number of its suffix among those of its form.
    suffix: u8,
}

/// The distinct forms of values: many cells have the same.
#[derive(Default)]
struct Forms {
    numbers: HashMap<Form, u32>,
}

impl Forms {
    fn number(&mut self, form: Form) -> u32 {
        // A listing has fewer than 2^32 objects.
        let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
        match self.numbers.entry(form) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => *new.insert(next),
        }
    }

    fn in_order(self) -> Vec<Form> {
        let mut forms: Vec<_> = self.numbers.into_iter().collect();
        forms.sort_by_key(|(_, number)| *number);
        forms.into_iter().map(|(form, _)| form).collect()
    }
}

impl CellDirectory {
    fn new(place: Arc<Place>, is_field: bool) -> Self {
        Self {
            place,
            is_field,
            known: CachedFact::default(),
        }
    }

    fn known(&self) -> Result<KnownCells> {
        let h5 = &self.place.store.context.h5;
        self.known.get(h5, |_| true, || self.build())
    }

    fn build(&self) -> Result<KnownCells> {
        let store = &self.place.store;
        let forms = Mutex::<Forms>::default();
        let judged = |scanned: ScannedMember| {
            let (addr, form) = judge(&scanned)?;
            let mut forms = forms.lock();
            Ok((addr, forms.number(form)))
        };
        let h5 = &store.context.h5;
        let targets = h5.targets(&store.file, self.place.addr, &NAMES, usize::MAX, judged)?;
        let forms = forms.into_inner();
        let forms = forms.in_order();
        let form_of = |number: u32| forms.get(number as usize);
        let mut slots = Vec::with_capacity(targets.targets.len());
        let (mut left_out, mut more) = (Vec::new(), 0);
        for (number, target) in (1_u32..).zip(targets.targets) {
            let is_container = |form| form_of(form).is_some_and(Form::is_container);
            let admitted = match target {
                Ok((addr, form)) if is_container(form) => {
                    let admitted = self.place.admits(&number.to_string(), addr);
                    admitted.map(|()| (addr, form)).map_err(NotShown::LeftOut)
                }
                other => other,
            };
            let why = match admitted {
                Ok((addr, form)) => {
                    let suffixes = form_of(form).map_or(&[""][..], Form::suffixes);
                    slots.extend((0..).zip(suffixes).map(|(suffix, _)| Slot {
                        addr,
                        number,
                        form,
                        suffix,
                    }));
                    continue;
                }
                Err(NotShown::LeftOut(why)) => why,
                Err(NotShown::Damaged(why)) => format!("a reference to nothing: {why}"),
            };
            match left_out.len() < MOST_LEFT_OUT {
                true => left_out.push((number.to_string().into_bytes(), why)),
                false => more += 1,
            }
        }
        let notes = (more > 0).then(|| format!("{more} more values are left out"));
        let entries = CellEntries {
            place: self.place.clone(),
            slots,
            forms,
            containers: Mutex::new(LruCache::new(
                NonZeroUsize::new(KEPT).unwrap_or(NonZeroUsize::MIN),
            )),
        };
        Ok(KnownCells {
            listing: Arc::new(Listing {
                many: Some(Arc::new(entries)),
                left_out,
                notes: notes.into_iter().collect(),
                ..Listing::default()
            }),
            shape: reversed(&targets.shape),
        })
    }
}

impl Directory for CellDirectory {
    fn ownership(&self) -> Ownership {
        self.place.store.ownership(self.place.addr)
    }

    fn list(&self) -> Result<Arc<Listing>> {
        Ok(self.known()?.listing)
    }

    fn is_current(&self) -> bool {
        self.place.store.file.is_current()
    }

    fn format(&self) -> Result<&'static str> {
        Ok(NAME)
    }

    fn info(&self) -> Result<Json> {
        let known = self.known()?;
        let class = match self.is_field {
            true => "field of a struct array",
            false => "cell",
        };
        Ok(json!({
            "kind": NAME,
            "file": self.place.store.file.path.to_string_lossy(),
            "path": &*self.place.path,
            "class": class,
            "shape": known.shape,
            "entries": known.listing.len(),
            "left_out": info::left_out(&known.listing.left_out),
            "notes": known.listing.notes,
            "attributes": info::attributes(&self.attributes()?),
        }))
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        let store = &self.place.store;
        Ok(store.context.h5.attributes(&store.file, self.place.addr)?)
    }
}

/// The values of a directory, in order of position.
struct CellEntries {
    place: Arc<Place>,
    slots: Vec<Slot>,
    forms: Vec<Form>,
    /// The most recently requested containers, by position: they cache their content.
    containers: Mutex<LruCache<u32, Node>>,
}

impl CellEntries {
    fn entry(&self, slot: &Slot) -> Option<(String, Node)> {
        let form = self.forms.get(slot.form as usize)?;
        let suffix = form.suffixes().get(usize::from(slot.suffix))?;
        let number = slot.number.to_string();
        let make = || node(&self.place, &number, slot.addr, form, suffix);
        let node = match form.is_container() {
            true => {
                let mut known = self.containers.lock();
                known.get_or_insert(slot.number, make).clone()
            }
            false => make(),
        };
        Some((number + suffix, node))
    }
}

impl LazyEntries for CellEntries {
    fn len(&self) -> usize {
        self.slots.len()
    }

    fn get(&self, at: usize) -> (Vec<u8>, Node) {
        // Each slot has a form and one of its suffixes.
        let entry = self.slots.get(at).and_then(|slot| self.entry(slot));
        let missing = || {
            let error = Error::damaged("no such value");
            (at.to_string(), broken(&self.place, "", error))
        };
        let (name, node) = entry.unwrap_or_else(missing);
        (name.into_bytes(), node)
    }

    fn find(&self, name: &[u8]) -> Option<Node> {
        let text = std::str::from_utf8(name).ok()?;
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let number: u32 = text.get(..digits)?.parse().ok()?;
        let first = self.slots.partition_point(|slot| slot.number < number);
        let same = self.slots.get(first..)?.iter();
        let mut same = same.take_while(|slot| slot.number == number);
        same.find_map(|slot| {
            let (shown, node) = self.entry(slot)?;
            (shown == text).then_some(node)
        })
    }
}

/// Returns a file for a value that cannot be read.
fn broken(place: &Place, name: &str, error: Error) -> Node {
    Node::File(Arc::new(BrokenFile {
        store: place.store.clone(),
        path: place.path_of(name).to_string(),
        error,
    }))
}

/// Returns the node of a value: that for `suffix`, one of the suffixes of its form.
fn node(place: &Arc<Place>, name: &str, addr: u64, form: &Form, suffix: &str) -> Node {
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

/// The deepest nesting of values that is shown.
const DEEPEST: usize = 64;

/// The position of a value that contains others.
pub(super) struct Place {
    pub store: Arc<OpenStore>,
    /// Its path in the mount, without suffixes; empty for the root.
    pub path: Arc<str>,
    pub addr: u64,
    above: Option<Arc<Place>>,
    depth: usize,
    /// The addresses of container values, each with a digest of the path at which it was first seen.
    seen: Arc<Mutex<HashMap<u64, u64>>>,
}

impl Place {
    /// Returns the position of the root group.
    pub(super) fn root(store: &Arc<OpenStore>) -> Self {
        Self {
            store: store.clone(),
            path: "".into(),
            addr: store.root,
            above: None,
            depth: 0,
            seen: Arc::default(),
        }
    }

    /// Returns the position of a value in this one.
    pub(super) fn below(self: &Arc<Self>, name: &str, addr: u64) -> Self {
        Self {
            store: self.store.clone(),
            path: self.path_of(name),
            addr,
            above: Some(self.clone()),
            depth: self.depth + 1,
            seen: self.seen.clone(),
        }
    }

    /// Returns the path of a value in this one.
    pub(super) fn path_of(&self, name: &str) -> Arc<str> {
        format!("{}/{name}", self.path).into()
    }

    /// Checks that a container value can be shown here with this name: it does not contain itself, is not too deep, and
    /// is not shown elsewhere. MATLAB refers to each value once. If shared values contained shared values, the number
    /// of paths would grow exponentially.
    fn admits(&self, name: &str, addr: u64) -> std::result::Result<(), String> {
        let mut at = Some(self);
        while let Some(place) = at {
            if place.addr == addr {
                return Err("it holds itself".to_owned());
            }
            at = place.above.as_deref();
        }
        if self.depth >= DEEPEST {
            return Err(format!("values in each other more than {DEEPEST} deep"));
        }
        let own = xxh3_64(self.path_of(name).as_bytes());
        let mut seen = self.seen.lock();
        match *seen.entry(addr).or_insert(own) == own {
            true => Ok(()),
            false => Err("it is shown at another path".to_owned()),
        }
    }
}
