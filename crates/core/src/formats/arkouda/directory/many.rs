//! The arrays of numbers of a large group: rows of a table, whose files are made on demand.

use std::sync::Arc;

use crate::formats::arkouda::array::{ArrayNode, BrokenArray, Origin};
use crate::formats::arkouda::marks::Marks;
use crate::formats::arkouda::numbers::{NumberKind, NumbersOf};
use crate::formats::arkouda::object::{HdfObject, JoinedObject, Object};
use crate::formats::arkouda::set::LocaleSet;
use crate::tree::name::ArrayNames;
use crate::tree::{LazyEntries, Node};
use npyfs_base::error::Error;
use npyfs_hdf5::Dataset;

/// The largest number of forms that a table tells apart. An array with another form is an entry of its own.
const MOST_FORMS: usize = 256;

/// What many arrays have in common in a part.
#[derive(PartialEq)]
struct Form {
    object_type: &'static str,
    meaning: NumberKind,
    /// The marks and the dataset, without its address and its length if it has one dimension; `None` for a part without
    /// the array.
    object: Option<(Marks, Dataset)>,
}

/// The arrays of numbers of a group. Each takes its name and 4 bytes, and 20 bytes for each part.
pub(super) struct NumberTable {
    set: Arc<LocaleSet>,
    /// The path of the group.
    group: Vec<Vec<u8>>,
    names: ArrayNames,
    forms: Vec<Form>,
    /// For each array and part: the address of the dataset, its length, and its form.
    addrs: Vec<u64>,
    lens: Vec<u64>,
    form_of: Vec<u32>,
}

impl NumberTable {
    pub(super) fn new(set: &Arc<LocaleSet>, group: &JoinedObject) -> Self {
        Self {
            set: set.clone(),
            group: group.path.clone(),
            names: ArrayNames::new(set.context.options.sep),
            forms: Vec::new(),
            addrs: Vec::new(),
            lens: Vec::new(),
            form_of: Vec::new(),
        }
    }

    /// Adds an array; returns `None` if it does not fit into the table.
    pub(super) fn add(&mut self, origin: &Origin, meaning: NumberKind) -> Option<()> {
        let parts = origin.joined.parts.iter();
        let rows = parts.map(|part| self.row(part.as_deref(), origin.object_type, meaning));
        let rows: Vec<_> = rows.collect::<Option<_>>()?;
        self.names.add(origin.joined.name())?;
        for (addr, len, form) in rows {
            self.addrs.push(addr);
            self.lens.push(len);
            self.form_of.push(form);
        }
        Some(())
    }

    /// Returns the address, the length and the form of an array in a part.
    fn row(
        &mut self,
        part: Option<&Object>,
        object_type: &'static str,
        meaning: NumberKind,
    ) -> Option<(u64, u64, u32)> {
        let (mut addr, mut len) = (0, 0);
        let object = match part {
            None => None,
            Some(object) => {
                let mut dataset = object.dataset()?.clone();
                addr = std::mem::take(&mut dataset.addr);
                if let [only] = &mut *dataset.shape {
                    len = std::mem::take(only);
                }
                if object.stored_as.is_some() {
                    return None;
                }
                Some((object.marks.clone(), dataset))
            }
        };
        let form = Form {
            object_type,
            meaning,
            object,
        };
        let number = match self.forms.iter().position(|known| *known == form) {
            Some(number) => number,
            None if self.forms.len() < MOST_FORMS => {
                self.forms.push(form);
                self.forms.len() - 1
            }
            None => return None,
        };
        Some((addr, len, u32::try_from(number).ok()?))
    }

    /// Gives back the memory that further arrays would take.
    pub(super) fn finish(mut self) -> Self {
        self.names.shrink_to_fit();
        self.addrs.shrink_to_fit();
        self.lens.shrink_to_fit();
        self.form_of.shrink_to_fit();
        self
    }

    fn joined(&self, at: usize, parts: Vec<Option<Arc<Object>>>) -> JoinedObject {
        let name = self.names.get(at).to_vec();
        JoinedObject {
            path: [self.group.as_slice(), &[name]].concat(),
            parts,
        }
    }

    /// Returns the origin of an array, and what its numbers mean.
    fn origin(&self, at: usize) -> Option<(Origin, NumberKind)> {
        let count = self.set.parts.len();
        let mut known = None;
        let mut parts = Vec::with_capacity(count);
        for row in at.checked_mul(count)?..at.checked_add(1)?.checked_mul(count)? {
            let (addr, len) = (*self.addrs.get(row)?, *self.lens.get(row)?);
            let form = self.forms.get(*self.form_of.get(row)? as usize)?;
            known = Some((form.object_type, form.meaning));
            parts.push(form.object.as_ref().map(|(marks, dataset)| {
                let mut dataset = dataset.clone();
                dataset.addr = addr;
                if let [only] = &mut *dataset.shape {
                    *only = len;
                }
                Arc::new(Object {
                    marks: marks.clone(),
                    what: HdfObject::Dataset(dataset),
                    stored_as: None,
                })
            }));
        }
        let (object_type, meaning) = known?;
        let origin = Origin {
            set: self.set.clone(),
            joined: self.joined(at, parts),
            object_type,
        };
        Some((origin, meaning))
    }

    fn node(&self, at: usize) -> Option<Node> {
        let (origin, meaning) = self.origin(at)?;
        let origin = Arc::new(origin);
        let array = Arc::new(NumbersOf(origin.clone(), meaning));
        Some(Node::File(Arc::new(ArrayNode {
            origin,
            array,
            is_remade: true,
        })))
    }
}

impl LazyEntries for NumberTable {
    fn len(&self) -> usize {
        self.names.len()
    }

    fn get(&self, at: usize) -> (Vec<u8>, Node) {
        // Every array has its rows.
        let node = self.node(at).unwrap_or_else(|| {
            let origin = Arc::new(Origin {
                set: self.set.clone(),
                joined: self.joined(at, vec![None; self.set.parts.len()]),
                object_type: "unknown",
            });
            let error = Error::damaged("no such array");
            Node::File(Arc::new(BrokenArray { origin, error }))
        });
        (self.names.shown(at), node)
    }

    fn find(&self, name: &[u8]) -> Option<Node> {
        self.node(self.names.find(name)?)
    }

    fn are_objects(&self) -> bool {
        true
    }
}
