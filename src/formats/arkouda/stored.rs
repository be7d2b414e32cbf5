//! For `info`: how the datasets of an object are stored in each file.

use serde_json::{Map, Value as Json, json};

use super::object::{Joined, Object};
use super::set::LocaleSet;
use crate::tree::info;

/// The datasets of one part's object, with layout, chunks, filters and stored size.
pub(super) fn datasets(set: &LocaleSet, joined: &Joined, number: usize) -> Vec<Json> {
    let Some(Some(object)) = joined.parts.get(number) else {
        return Vec::new();
    };
    let path = joined.path();
    let below = object.members().iter().map(|(name, member)| {
        let name = String::from_utf8_lossy(name);
        (format!("{path}/{name}"), member.as_ref())
    });
    std::iter::once((path.clone(), object.as_ref()))
        .chain(below)
        .filter_map(|(path, object)| dataset(set, number, path, object))
        .collect()
}

fn dataset(set: &LocaleSet, number: usize, path: String, object: &Object) -> Option<Json> {
    let addr = object.dataset()?.addr;
    let store = &set.parts.get(number)?.store;
    let mut map = Map::new();
    map.insert("path".into(), json!(path));
    match set.context.h5.describe(&store.file, addr) {
        Ok(details) => info::stored(&details, &mut map),
        Err(e) => {
            map.insert("error".into(), json!(e.to_string()));
        }
    }
    Some(map.into())
}

/// Says of an object as a whole what is the same in all its datasets, and how much they take together.
pub(super) fn summary(locales: &[Vec<Json>], into: &mut Map<String, Json>) {
    let all: Vec<&Json> = locales.iter().flatten().collect();
    for key in ["layout", "chunks", "filters"] {
        let mut values = all.iter().map(|dataset| &dataset[key]);
        if let Some(first) = values.next()
            && values.all(|value| value == first)
        {
            into.insert(key.into(), first.clone());
        }
    }
    let mut sizes = all.iter().map(|dataset| dataset["stored_size"].as_u64());
    let total = sizes.try_fold(0_u64, |sum, size| sum.checked_add(size?));
    into.insert("stored_size".into(), json!(total));
}
