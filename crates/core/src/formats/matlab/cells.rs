//! A dataset of references as a directory: a cell array, or a field of an array of structs.
//!
//! The values are named by their positions, `1`, `2`, ..., which MATLAB counts down the columns: the order in which
//! they are stored. A directory stores a few bytes for each value, and creates nodes on demand.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use lru::LruCache;
use serde_json::{Value as Json, json};

use super::array::reversed;
use super::directory::node;
use super::format::NAME;
use super::position::Place;
use super::value::{Form, NAMES, NotShown, judge};
use crate::tree::info;
use crate::tree::{Directory, LazyEntries, Learnt, Listing, Node};
use npyfs_base::error::Result;
use npyfs_hdf5::{Attribute, ScannedMember};
use npyfs_io::file::Ownership;

/// The number of container values that a directory caches.
const KEPT: usize = 64;

/// The most values whose omission is reported by name.
const MOST_LEFT_OUT: usize = 1000;

/// A cell array, or a field of an array of structs.
pub(super) struct CellDirectory {
    place: Arc<Place>,
    is_field: bool,
    known: Learnt<KnownCells>,
}

/// The listing, and the shape in MATLAB's order.
#[derive(Clone)]
struct KnownCells {
    listing: Arc<Listing>,
    shape: Vec<u64>,
}

/// One entry.
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
    pub(super) fn new(place: Arc<Place>, is_field: bool) -> Self {
        Self {
            place,
            is_field,
            known: Learnt::default(),
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
            let mut forms = forms.lock().unwrap_or_else(|e| e.into_inner());
            Ok((addr, forms.number(form)))
        };
        let h5 = &store.context.h5;
        let targets = h5.targets(&store.file, self.place.addr, &NAMES, usize::MAX, judged)?;
        let forms = forms.into_inner().unwrap_or_else(|e| e.into_inner());
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
                let mut known = self.containers.lock().unwrap_or_else(|e| e.into_inner());
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
        let broken = || {
            let error = npyfs_base::error::Error::damaged("no such value");
            (
                at.to_string(),
                super::directory::broken(&self.place, "", error),
            )
        };
        let (name, node) = entry.unwrap_or_else(broken);
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
