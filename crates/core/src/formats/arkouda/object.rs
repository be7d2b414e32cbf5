//! An object of one locale file, and the same object in all files of a set.
//!
//! Datasets `NAME_values` and `NAME_segments`, side by side or in a group NAME, are strings in the form of Arkouda's
//! older documentation. They are treated like a group NAME of `values` and `segments`. Objects of that time had no
//! attributes, so a dataset with `ObjType` is a separate array, whatever its name. If another object is called NAME,
//! the two datasets are separate, too. To Arkouda, bytes that are not booleans are always text.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::marks::Marks;
use npyfs_base::npy::dtype::{DType, Kind};
use npyfs_hdf5::{Dataset, ElementType, GroupMember, ScannedMember};

/// An object of one file.
#[derive(Debug)]
pub struct Object {
    pub marks: Marks,
    pub what: HdfObject,
    /// If it is not a group: the names of the adjacent datasets that it is stored as.
    pub stored_as: Option<Vec<Vec<u8>>>,
}

/// The HDF5 object behind it.
#[derive(Debug)]
pub enum HdfObject {
    Dataset(Dataset),
    Group {
        addr: u64,
        /// The number of hard links that its header claims.
        links: u32,
        /// The members; `None` if they have not been read yet.
        members: Option<Members>,
    },
    /// An object that Arkouda does not write, with the reason why it is not shown.
    Foreign(String),
    Damaged(String),
}

/// The members of a group by their names.
type Members = Vec<(Vec<u8>, Arc<Object>)>;

/// Returns how many elements a dataset claims to have.
pub(super) fn elements(dataset: &Dataset) -> u64 {
    let dims = dataset.shape.iter();
    dims.fold(1, |n, &d| n.saturating_mul(d))
}

/// Returns the sum of counts that come from files.
pub(super) fn total(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

/// Returns whether a dataset is 1-D with scalars of one of these kinds.
pub(super) fn is_vector(dataset: &Dataset, kinds: &[Kind]) -> bool {
    dataset.shape.len() == 1 && scalar(dataset).is_some_and(|(kind, _)| kinds.contains(&kind))
}

/// Returns the kind and size of elements that are plain scalars.
pub(super) fn scalar(dataset: &Dataset) -> Option<(Kind, usize)> {
    match &dataset.element {
        ElementType::Fixed {
            dtype: DType::Scalar { kind, size, .. },
            inner,
            ..
        } if inner.is_empty() => Some((*kind, *size)),
        _ => None,
    }
}

/// Returns whether a dataset is a vector of single bytes.
pub(super) fn is_bytes(dataset: &Dataset) -> bool {
    dataset.shape.len() == 1 && scalar(dataset) == Some((Kind::Uint, 1))
}

/// Returns whether a dataset is a vector of integers.
pub(super) fn is_integers(dataset: &Dataset) -> bool {
    is_vector(dataset, &[Kind::Int, Kind::Uint])
}

impl Object {
    pub fn new(scanned: ScannedMember) -> (Vec<u8>, Arc<Self>) {
        let what = match scanned.member {
            GroupMember::Dataset(dataset) => HdfObject::Dataset(dataset),
            GroupMember::Group { addr, links } => HdfObject::Group {
                addr,
                links,
                members: scanned
                    .members
                    .map(|members| members.into_iter().map(Self::new).collect())
                    .map(|members| folded(Some(&scanned.name), members)),
            },
            GroupMember::Soft(_) | GroupMember::External { .. } => {
                HdfObject::Foreign("a link; kind=plain follows it".into())
            }
            GroupMember::Unsupported { reason, .. } => HdfObject::Foreign(reason),
            GroupMember::Damaged(why) => HdfObject::Damaged(why),
        };
        let marks = Marks::from_attributes(&scanned.attributes);
        let object = Self {
            marks,
            what,
            stored_as: None,
        };
        (scanned.name, Arc::new(object))
    }

    pub fn addr(&self) -> Option<u64> {
        match &self.what {
            HdfObject::Dataset(dataset) => Some(dataset.addr),
            HdfObject::Group { addr, .. } => Some(*addr),
            HdfObject::Foreign(_) | HdfObject::Damaged(_) => None,
        }
    }

    pub fn dataset(&self) -> Option<&Dataset> {
        match &self.what {
            HdfObject::Dataset(dataset) => Some(dataset),
            _ => None,
        }
    }

    pub fn members(&self) -> &[(Vec<u8>, Arc<Self>)] {
        match &self.what {
            HdfObject::Group {
                members: Some(members),
                ..
            } => members,
            _ => &[],
        }
    }

    pub fn member(&self, name: &str) -> Option<&Arc<Self>> {
        let mut members = self.members().iter();
        members.find_map(|(n, object)| (n == name.as_bytes()).then_some(object))
    }

    pub fn is_group(&self) -> bool {
        matches!(self.what, HdfObject::Group { .. })
    }

    /// Returns whether this is the dataset of shape (0,) that an empty locale holds in place of any object.
    pub fn is_empty_dataset(&self) -> bool {
        self.dataset().is_some_and(|d| d.shape == [0])
    }
}

/// An object in all files of a set.
#[derive(Clone, Debug)]
pub struct JoinedObject {
    /// The names that lead to it from the root group.
    pub path: Vec<Vec<u8>>,
    /// The object by part; `None` for a part that lacks it.
    pub parts: Vec<Option<Arc<Object>>>,
}

impl JoinedObject {
    /// Returns the path in the HDF5 files.
    pub fn path(&self) -> String {
        let names = self.path.iter().map(|name| String::from_utf8_lossy(name));
        names.fold(String::new(), |path, name| path + "/" + &name)
    }

    pub fn name(&self) -> &[u8] {
        self.path.last().map_or(b"", Vec::as_slice)
    }

    /// Returns the objects of all parts that have it.
    pub fn objects(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.parts.iter().flatten()
    }

    /// Returns a group as if its members had not been read.
    pub fn unread(&self) -> Self {
        let unread = |object: &Arc<Object>| match object.what {
            HdfObject::Group { addr, links, .. } => Arc::new(Object {
                marks: object.marks.clone(),
                what: HdfObject::Group {
                    addr,
                    links,
                    members: None,
                },
                stored_as: object.stored_as.clone(),
            }),
            _ => object.clone(),
        };
        let parts = self.parts.iter();
        Self {
            path: self.path.clone(),
            parts: parts.map(|part| part.as_ref().map(unread)).collect(),
        }
    }

    /// Returns a member by name, in all parts that have it; `None` if none does.
    pub fn member(&self, name: &str) -> Option<Self> {
        let parts: Vec<_> = self
            .parts
            .iter()
            .map(|part| part.as_ref()?.member(name).cloned())
            .collect();
        parts.iter().any(Option::is_some).then(|| Self {
            path: [self.path.as_slice(), &[name.as_bytes().to_vec()]].concat(),
            parts,
        })
    }

    /// Returns all members, in order of name.
    pub fn members(&self) -> Vec<Self> {
        let mut by_name: BTreeMap<&[u8], Vec<Option<Arc<Object>>>> = BTreeMap::new();
        for (number, part) in self.parts.iter().enumerate() {
            for (name, object) in part.iter().flat_map(|object| object.members()) {
                let parts = by_name
                    .entry(name)
                    .or_insert_with(|| vec![None; self.parts.len()]);
                parts[number] = Some(object.clone());
            }
        }
        by_name
            .into_iter()
            .map(|(name, parts)| Self {
                path: [self.path.as_slice(), &[name.to_vec()]].concat(),
                parts,
            })
            .collect()
    }
}

const VALUES: &[u8] = b"_values";
const SEGMENTS: &[u8] = b"_segments";

/// Returns the name of the strings that a dataset of this name may be a part of.
pub(super) fn stem(name: &[u8]) -> Option<&[u8]> {
    let stem = name
        .strip_suffix(VALUES)
        .or_else(|| name.strip_suffix(SEGMENTS));
    stem.filter(|stem| !stem.is_empty())
}

/// Returns members with each pair combined in one object. `name` is that of the group, if it may be such a pair itself.
pub(super) fn folded(name: Option<&[u8]>, members: Members) -> Members {
    let by_name: HashMap<&[u8], &Arc<Object>> = members
        .iter()
        .map(|(own, object)| (&**own, object))
        .collect();
    let find = |name: &[u8]| by_name.get(name).copied();
    if let (2, Some(name)) = (members.len(), name)
        && let Some(pair) = pair(name, &find)
    {
        return pair;
    }
    let mut pairs = Vec::new();
    for (values, _) in &members {
        let stem = values.strip_suffix(VALUES).filter(|stem| !stem.is_empty());
        if let Some(stem) = stem.filter(|stem| find(stem).is_none())
            && let Some(pair) = pair(stem, &find)
        {
            pairs.push((stem.to_vec(), pair));
        }
    }
    if pairs.is_empty() {
        return members;
    }
    let parts_of = |stem: &Vec<u8>| [[stem, VALUES].concat(), [stem, SEGMENTS].concat()];
    let folded: HashSet<Vec<u8>> = pairs.iter().flat_map(|(stem, _)| parts_of(stem)).collect();
    let mut left = members;
    left.retain(|(name, _)| !folded.contains(name));
    for (stem, pair) in pairs {
        let parts = parts_of(&stem);
        let addr = pair.iter().find_map(|(_, object)| object.addr());
        let group = HdfObject::Group {
            addr: addr.unwrap_or_default(),
            links: 1,
            members: Some(pair),
        };
        let object = Object {
            marks: Marks::default(),
            what: group,
            stored_as: Some(parts.into()),
        };
        left.push((stem, Arc::new(object)));
    }
    left
}

/// Returns `values` and `segments` of the strings with a name, if exactly these exist.
fn pair<'a>(name: &[u8], find: &dyn Fn(&[u8]) -> Option<&'a Arc<Object>>) -> Option<Members> {
    let bare = |object: &&Arc<Object>| object.marks.object_type.is_none() && !object.marks.is_bool;
    let values = find(&[name, VALUES].concat()).filter(bare);
    let segments = find(&[name, SEGMENTS].concat()).filter(bare);
    let (values, segments) = values.zip(segments)?;
    if !values.dataset().is_some_and(is_bytes) || !segments.dataset().is_some_and(is_integers) {
        return None;
    }
    Some(vec![
        (b"values".to_vec(), values.clone()),
        (b"segments".to_vec(), segments.clone()),
    ])
}
