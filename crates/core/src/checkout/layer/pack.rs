//! Small objects that share one new file, before that file is written.
//!
//! Objects of one store can share a file, in which each is at its own path, as in a store with just these objects. So
//! their groups must have the same attributes, and each path must occur once: an object that conflicts with the others
//! begins another file.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::checkout::records::unwritten::{Elements, PackWriter, Unwritten, UnwrittenObject};
use crate::store::object::{NewFile, PackScope, check_len};
use npyfs_base::error::Result;
use npyfs_base::npy;
use npyfs_base::npy::dtype::{DType, Kind};
use npyfs_hdf5::{NewAttribute, NewDataset, NewElement, NewLayout};
use npyfs_io::content::{Content, InMemory};

/// The most bytes of a small object, and of all objects that wait for their files.
const LARGEST: u64 = 256 << 10;
pub(in crate::checkout) const MOST_BYTES: u64 = 8 << 20;

/// The most objects in a file.
const MOST_OBJECTS: usize = 4096;

/// Approximate bytes that HDF5 needs for an object in addition to its elements.
pub(in crate::checkout) const OVERHEAD: u64 = 1 << 10;

const PAGE: u64 = 4096;

/// The most dimensions of a dataset.
const MAX_RANK: usize = 32;

/// An object that is small enough, and certainly has a representation in HDF5.
pub struct SmallObject<'a> {
    new: &'a NewFile,
    scope: &'a PackScope,
    dataset: &'a NewDataset,
    path: String,
    object: Arc<UnwrittenObject>,
    /// Further datasets that its format needs in its file, such as the axes of the object.
    others: Vec<SharedDataset>,
}

/// A dataset that several objects of a file have in common.
#[derive(Clone, PartialEq, Eq)]
struct SharedDataset {
    dataset: NewDataset,
    data: Vec<u8>,
}

impl<'a> SmallObject<'a> {
    /// Reads the elements of a new object into memory; `None` if it needs a file of its own.
    pub fn read(new: &'a NewFile, writer: &Weak<dyn PackWriter>) -> Result<Option<Self>> {
        let all = || new.outline.datasets.iter().zip(&new.data);
        let (Some(scope), Some(size)) = (&new.scope, new.size) else {
            return Ok(None);
        };
        let Some((dataset, data)) = all().find(|(dataset, _)| dataset.path == scope.path) else {
            return Ok(None);
        };
        let NewElement::Array(dtype) = &dataset.element else {
            return Ok(None);
        };
        let header = npy::header(dtype, &dataset.shape);
        let bytes = all().fold(0, |sum: u64, (_, data)| sum.saturating_add(data.len()));
        if bytes > LARGEST
            || size != data.len().saturating_add(header.len() as u64)
            || !is_number(dtype)
            || !surely_fits(new, dataset)
        {
            return Ok(None);
        }
        let mut others = Vec::new();
        for (dataset, data) in all().filter(|(dataset, _)| dataset.path != scope.path) {
            check_len(dataset, &**data)?;
            let mut bytes = vec![0; usize::try_from(data.len()).unwrap_or(0)];
            data.read_at(0, &mut bytes)?;
            others.push(SharedDataset {
                dataset: dataset.clone(),
                data: bytes,
            });
        }
        check_len(dataset, &**data)?;
        let start = header.len();
        let mut bytes = header;
        bytes.resize(usize::try_from(size).unwrap_or(start), 0);
        data.read_at(0, bytes.get_mut(start..).unwrap_or_default())?;
        Ok(Some(Self {
            new,
            scope,
            dataset,
            path: dataset.path.join("/"),
            object: Arc::new(UnwrittenObject {
                bytes,
                header: start,
                writer: writer.clone(),
            }),
            others,
        }))
    }

    /// Returns the most bytes that it takes in a file; it takes about as many in memory.
    pub fn bytes(&self) -> u64 {
        let others = self.others.iter().map(|other| other.data.len() as u64);
        others.fold(room(self.object.len()), |sum, len| sum + room(len))
    }

    /// Returns a reference to the object.
    pub fn unwritten(&self) -> Unwritten {
        Unwritten(Arc::downgrade(&self.object))
    }

    /// Returns each group that contains the object or that it describes, by path, with its attributes.
    fn groups(&self) -> impl Iterator<Item = (&str, &[NewAttribute])> {
        let above = self.path.match_indices('/').map(|(at, _)| at);
        let above = above.filter_map(|at| self.path.get(..at));
        std::iter::once("").chain(above).map(|path| {
            let is_it = |known: &[String]| known.join("/") == path;
            let mut marked = self.new.outline.groups.iter();
            let marked = marked.find(|group| is_it(&group.path));
            (path, marked.map_or(&[][..], |group| &*group.attributes))
        })
    }
}

/// Returns the most bytes that a dataset with `len` bytes of elements takes in a file.
fn room(len: u64) -> u64 {
    // Elements of a page or more are aligned to a page.
    let whole = if len < PAGE {
        len
    } else {
        len.next_multiple_of(PAGE)
    };
    whole.saturating_add(OVERHEAD)
}

fn is_number(dtype: &DType) -> bool {
    matches!(dtype, DType::Scalar { kind, size: 1..=16, .. }
        if matches!(kind, Kind::Bool | Kind::Int | Kind::Uint | Kind::Float | Kind::Complex))
}

/// Returns whether libhdf5 will certainly accept this dataset. libhdf5 itself is asked only when other objects wait in
/// the same file.
fn surely_fits(new: &NewFile, own: &NewDataset) -> bool {
    let is_bytes = |element: &NewElement| {
        matches!(
            element,
            NewElement::Array(DType::Scalar {
                kind: Kind::Bytes,
                size: 1..,
                ..
            })
        )
    };
    let is_simple = |element: &NewElement| {
        is_bytes(element) || matches!(element, NewElement::Array(dtype) if is_number(dtype))
    };
    let holds = |name: &String| !matches!(name.as_str(), "" | ".") && !name.contains(['/', '\0']);
    let is_above = |path: &[String]| own.path.starts_with(path) && path != own.path;
    let is_beside = |path: &[String]| {
        path.len() == own.path.len()
            && path.split_last().map(|p| p.1) == own.path.split_last().map(|p| p.1)
    };
    let datasets = &new.outline.datasets;
    let groups = &new.outline.groups;
    let attributes = groups.iter().flat_map(|group| &group.attributes);
    datasets.iter().all(|dataset| {
        matches!(dataset.layout, NewLayout::Contiguous)
            && is_simple(&dataset.element)
            && dataset.shape.len() <= MAX_RANK
            && dataset.path.iter().all(holds)
            && is_beside(&dataset.path)
    }) && !own.path.is_empty()
        && new.begins.is_none()
        && new.outline.links.is_empty()
        && new.outline.large_at.is_none()
        && groups.iter().all(|group| is_above(&group.path))
        && attributes
            .chain(datasets.iter().flat_map(|dataset| &dataset.attributes))
            .all(|a| !a.name.is_empty() && !a.name.contains('\0') && a.value.data.len() < 4096)
}

/// Objects that will share a file.
pub struct Pack {
    /// The number of the file.
    pub number: u64,
    /// The objects, ready to be written.
    pub new: NewFile,
    /// The bytes that they take in memory.
    pub bytes: u64,
    /// The bytes of disk space that were reserved for them.
    pub reserved: u64,
    /// The time when the first was written, in nanoseconds since 1970.
    pub time: i64,
    store: String,
    groups: HashMap<String, Vec<NewAttribute>>,
    /// The datasets by path, with those that others may share.
    datasets: HashMap<String, Option<SharedDataset>>,
}

impl Pack {
    /// Begins a file with this number for an object.
    pub fn new((number, time): (u64, i64), first: &SmallObject) -> Self {
        Self {
            number,
            new: NewFile::default(),
            bytes: 0,
            reserved: 0,
            time,
            store: first.scope.store.clone(),
            groups: HashMap::new(),
            datasets: HashMap::new(),
        }
    }

    /// Adds an object; false if it conflicts with the others.
    pub fn add(&mut self, small: &SmallObject) -> bool {
        let goes = |(path, marks): (&str, &[NewAttribute])| {
            let known = self.groups.get(path);
            known.is_none_or(|known| known == marks) && !self.datasets.contains_key(path)
        };
        let is_there = |path| self.datasets.contains_key(path) || self.groups.contains_key(path);
        let is_same = |other: &SharedDataset| {
            let path = other.dataset.path.join("/");
            let known = self.datasets.get(&path);
            known.is_none_or(|known| known.as_ref() == Some(other))
                && !self.groups.contains_key(&path)
        };
        if self.datasets.len() >= MOST_OBJECTS
            || self.store != small.scope.store
            || is_there(&small.path)
            || !small.others.iter().all(is_same)
            || !small.groups().all(goes)
        {
            return false;
        }
        for (path, marks) in small.groups() {
            if !self.groups.contains_key(path) {
                self.groups.insert(path.to_owned(), marks.to_vec());
                if !marks.is_empty() {
                    let names = path.split('/').filter(|name| !name.is_empty());
                    let names: Vec<String> = names.map(str::to_owned).collect();
                    self.new.mark(&names, marks.to_vec());
                }
            }
        }
        for other in &small.others {
            let path = other.dataset.path.join("/");
            if !self.datasets.contains_key(&path) {
                self.bytes = self.bytes.saturating_add(room(other.data.len() as u64));
                self.datasets.insert(path, Some(other.clone()));
                let data = Arc::new(InMemory(other.data.clone()));
                self.new.add(other.dataset.clone(), data);
            }
        }
        self.datasets.insert(small.path.clone(), None);
        let elements = Arc::new(Elements(small.object.clone()));
        self.new.add(small.dataset.clone(), elements);
        self.bytes = self.bytes.saturating_add(room(small.object.len()));
        self.reserved = self.reserved.saturating_add(small.bytes());
        true
    }
}
