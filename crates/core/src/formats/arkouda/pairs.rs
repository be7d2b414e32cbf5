//! Strings in the form of Arkouda's older documentation: datasets `NAME_values` and `NAME_segments`, side by side or in
//! a group NAME. They are treated like a group NAME of `values` and `segments`.
//!
//! Objects of that time had no attributes, so a dataset with `ObjType` is a separate array, whatever its name. If
//! another object is called NAME, the two datasets are separate, too. To Arkouda, bytes that are not booleans are
//! always text.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::object::{Object, What};
use super::recognition::{is_bytes, is_integers};

const VALUES: &[u8] = b"_values";
const SEGMENTS: &[u8] = b"_segments";

/// The members of a group by their names.
type Members = Vec<(Vec<u8>, Arc<Object>)>;

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
        let group = What::Group {
            addr: addr.unwrap_or_default(),
            links: 1,
            members: Some(pair),
        };
        let object = Object {
            marks: super::marks::Marks::default(),
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
