//! The datasets of a group, each as one file, or as a directory if its elements have no common width.
//!
//! The datasets of a group are rows of a table, unless the group has few, and their files are made on demand.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::GroupKind;
use super::{GroupDirectory, GroupListing};
use crate::dataset::opened::OpenStore;
use crate::dataset::text;
use crate::formats::plain::array::{ArrayFile, KnownSize};
use crate::formats::plain::small::BrokenFile;
use crate::formats::plain::text::TextDirectory;
use crate::tree::name::{ArrayNames, visible_with};
use crate::tree::{LazyEntries, Node, VirtualFile};
use npyfs_base::error::Error;
use npyfs_hdf5::{Dataset, ElementType, SequenceArray};

/// The number of members from which on a table takes less memory than files.
pub(super) const MANY: usize = 4;

/// The largest number of element types and forms that a table tells apart. A dataset with another type is an entry of
/// its own, and another form gets its own row.
const MOST_KNOWN: usize = 256;

/// The datasets of a group. Each takes 16 bytes and its name; if most differ in type or shape, each takes some 10 bytes
/// more, and with text among them, or inside their elements, 8 bytes more.
pub(super) struct DatasetTable {
    store: Arc<OpenStore>,
    group: Arc<str>,
    kind: &'static str,
    names: ArrayNames,
    /// The address of each dataset.
    addrs: Vec<u64>,
    /// The index in `forms` for each dataset.
    form_of: Vec<u32>,
    elements: Vec<ElementType>,
    /// The sizes of the files with text by row, once they have been measured; empty if there is no text.
    sizes: Arc<[AtomicU64]>,
    /// For each form: the size of the file or 0 for text, the number of the type in `elements`, the rank, the
    /// dimensions, each as bytes of 7 bits, the lowest first, the last one without the highest bit.
    forms: Vec<u8>,
    /// The indices of forms, while the table is being made.
    known: HashMap<(u64, Vec<u64>), u32>,
    /// Visible names that other entries have, while the table is being made.
    taken: HashSet<Vec<u8>>,
    /// The kind of the group, whose last datasets are entries of their own.
    of: Option<&'static dyn GroupKind>,
}

impl DatasetTable {
    /// Makes an empty table. Datasets whose visible name is `taken` do not fit into it, nor do those that come last in
    /// a group of the kind `of`.
    pub(super) fn new(
        store: &Arc<OpenStore>,
        group: &Arc<str>,
        kind: &'static str,
        taken: HashSet<Vec<u8>>,
        of: Option<&'static dyn GroupKind>,
    ) -> Self {
        Self {
            store: store.clone(),
            group: group.clone(),
            kind,
            names: ArrayNames::new(store.context.options.sep),
            addrs: Vec::new(),
            form_of: Vec::new(),
            elements: Vec::new(),
            sizes: Arc::default(),
            forms: Vec::new(),
            known: HashMap::new(),
            taken,
            of,
        }
    }

    /// Adds a dataset; returns `None` if it does not fit into the table.
    fn add(&mut self, file: &ArrayFile) -> Option<()> {
        let is_plain = !file.dataset.outside
            && Arc::ptr_eq(&file.store, &self.store)
            && !self.of.is_some_and(|kind| kind.comes_last(&file.name));
        if !is_plain {
            return None;
        }
        let sep = self.store.context.options.sep;
        let is_taken = || self.taken.contains(&visible_with(&file.name, ".npy", sep));
        if !self.taken.is_empty() && is_taken() {
            return None;
        }
        let form = self.form(file)?;
        self.names.add(&file.name)?;
        self.addrs.push(file.dataset.addr);
        self.form_of.push(form);
        Some(())
    }

    /// Returns the index of the form of a dataset.
    fn form(&mut self, file: &ArrayFile) -> Option<u32> {
        let element = &file.dataset.element;
        let number = match self.elements.iter().position(|known| known == element) {
            Some(number) => number,
            None if self.elements.len() < MOST_KNOWN => {
                self.elements.push(element.clone());
                self.elements.len() - 1
            }
            None => return None,
        };
        let key = (number as u64, file.dataset.shape.clone());
        if let Some(known) = self.known.get(&key) {
            return Some(*known);
        }
        // Text is measured once it is looked at.
        let size = match element {
            _ if has_text(element) => 0,
            _ => file.size().ok()?,
        };
        let form = u32::try_from(self.forms.len()).ok()?;
        let (number, shape) = &key;
        for &value in [size, *number, shape.len() as u64].iter().chain(shape) {
            write_number(&mut self.forms, value);
        }
        if self.known.len() < MOST_KNOWN {
            self.known.insert(key, form);
        }
        Some(form)
    }

    /// Gives back the memory that was only needed to make the table.
    pub(super) fn finish(mut self) -> Self {
        self.names.shrink_to_fit();
        self.addrs.shrink_to_fit();
        self.form_of.shrink_to_fit();
        self.forms.shrink_to_fit();
        self.known = HashMap::new();
        self.taken = HashSet::new();
        if self.elements.iter().any(has_text) {
            self.sizes = self.addrs.iter().map(|_| AtomicU64::new(0)).collect();
        }
        self
    }

    fn node(&self, at: usize) -> Option<Node> {
        let addr = *self.addrs.get(at)?;
        let mut form = self.forms.get(*self.form_of.get(at)? as usize..)?.iter();
        let size = read_number(&mut form)?;
        let number = read_number(&mut form)?;
        let rank = read_number(&mut form)?;
        let shape = (0..rank).map(|_| read_number(&mut form));
        let shape = shape.collect::<Option<_>>()?;
        let element = self.elements.get(usize::try_from(number).ok()?)?.clone();
        Some(Node::File(Arc::new(ArrayFile {
            store: self.store.clone(),
            dataset: Dataset {
                addr,
                element,
                shape,
                outside: false,
            },
            group: self.group.clone(),
            name: self.names.get(at).into(),
            kind: self.kind,
            size: match size {
                0 => KnownSize::new(&self.sizes, at),
                size => size.into(),
            },
            is_remade: true,
        })))
    }
}

fn has_text(element: &ElementType) -> bool {
    !matches!(element, ElementType::Fixed { .. })
}

fn write_number(to: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        to.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    to.push(value.to_le_bytes()[0]);
}

fn read_number<'a>(from: &mut impl Iterator<Item = &'a u8>) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = from.next()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

impl LazyEntries for DatasetTable {
    fn len(&self) -> usize {
        self.names.len()
    }

    fn get(&self, at: usize) -> (Vec<u8>, Node) {
        // Every row has a form.
        let node = self.node(at).unwrap_or_else(|| {
            Node::File(Arc::new(BrokenFile {
                store: self.store.clone(),
                path: self.group.to_string(),
                error: Error::damaged("no such dataset"),
            }))
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

impl GroupDirectory {
    pub(super) fn add_dataset(
        &self,
        store: &Arc<OpenStore>,
        name: &[u8],
        dataset: Dataset,
        to: &mut GroupListing,
    ) {
        let file = ArrayFile {
            store: store.clone(),
            dataset,
            group: self.group.clone(),
            name: name.into(),
            kind: to.kind,
            size: KnownSize::default(),
            is_remade: false,
        };
        match text::is_over_limit(store, &file.dataset) {
            Ok(true) => {
                let directory = Arc::new(TextDirectory::of_text(Arc::new(file)));
                to.entries
                    .push((self.visible(name, ""), Node::Directory(directory)));
            }
            Err(e) if e.is_passing() => to.passing = Some(e),
            // The open of a text dataset that cannot be measured reports the error.
            Ok(false) | Err(_) => {
                let table = to.table.as_mut();
                if table.and_then(|table| table.add(&file)).is_none() {
                    let node = Node::File(Arc::new(file));
                    to.entries.push((self.visible(name, ".npy"), node));
                }
            }
        }
    }

    pub(super) fn add_sequences(
        &self,
        store: &Arc<OpenStore>,
        name: &[u8],
        addr: u64,
        sequences: SequenceArray,
        to: &mut GroupListing,
    ) {
        let SequenceArray { dtype, shape } = sequences;
        let element = ElementType::Text {
            fixed: None,
            utf8: false,
        };
        let file = ArrayFile {
            store: store.clone(),
            dataset: Dataset {
                addr,
                element,
                shape,
                outside: false,
            },
            group: self.group.clone(),
            name: name.into(),
            kind: to.kind,
            size: KnownSize::default(),
            is_remade: false,
        };
        let directory = Arc::new(TextDirectory::of_sequences(file, dtype));
        to.entries
            .push((self.visible(name, ""), Node::Directory(directory)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_written() {
        let values = [0, 1, 127, 128, 300, 1 << 21, u64::MAX - 1, u64::MAX];
        let mut bytes = Vec::new();
        for value in values {
            write_number(&mut bytes, value);
        }
        let mut from = bytes.iter();
        for value in values {
            assert_eq!(read_number(&mut from), Some(value));
        }
        assert_eq!(read_number(&mut from), None);
    }
}
