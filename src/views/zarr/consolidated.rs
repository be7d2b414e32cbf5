//! The metadata of a whole store in one file, so that a reader need not look into every group and array.

use std::sync::Arc;

use super::View;
use super::array::ArrayNode;
use super::group::{GroupNow, Member};
use super::metadata::{self, Documents};
use crate::error::{ErrorKind, Result};
use crate::io::thread;

/// Most arrays, and most groups, whose metadata are put together.
const MOST: usize = 10_000;

/// Arrays that one thread asks for, at least.
const LEAST_EACH: usize = 64;

/// Returns the text of the file; `None` if there is more below the group than is put together, or if there are stores, each of which has
/// such a file itself.
pub(super) fn text(view: &View, top: &GroupNow) -> Result<Option<Vec<u8>>> {
    let mut groups: Vec<(String, Arc<Documents>)> = Vec::new();
    let mut arrays: Vec<(String, Arc<ArrayNode>)> = Vec::new();
    let mut left = vec![(String::new(), top.members()?)];
    while let Some((path, members)) = left.pop() {
        for (name, member) in members.members {
            // Names that are not UTF-8 are no members.
            let Ok(name) = String::from_utf8(name) else {
                continue;
            };
            let path = match path.is_empty() {
                true => name,
                false => format!("{path}/{name}"),
            };
            match member {
                Member::Array(array) => arrays.push((path, array)),
                Member::Group(group) => {
                    if crate::tree::Directory::is_store(&*group) {
                        return Ok(None);
                    }
                    let now = group.now()?;
                    groups.push((path.clone(), now.documents()?));
                    left.push((path, now.members()?));
                }
            }
            if arrays.len() > MOST || groups.len() > MOST {
                return Ok(None);
            }
        }
    }
    let described = describe(view, &arrays)?;
    let mut all: Vec<(&str, &Documents)> = Vec::with_capacity(groups.len() + arrays.len());
    all.extend(groups.iter().map(|(path, of)| (&path[..], &**of)));
    let known = arrays.iter().zip(&described);
    all.extend(known.filter_map(|((path, _), of)| Some((&path[..], of.as_ref()?))));
    let (_, text) = metadata::consolidated(view.version, &*top.documents()?, all);
    Ok(Some(text))
}

/// Returns the metadata of arrays; `None` for one that cannot be read, or that Zarr cannot hold.
fn describe(view: &View, arrays: &[(String, Arc<ArrayNode>)]) -> Result<Vec<Option<Documents>>> {
    let one = |(_, array): &(String, Arc<ArrayNode>)| match array.described() {
        Ok(described) => Ok(Some(described.documents.clone())),
        Err(e) if e.is_passing() || e.kind == ErrorKind::Stale => Err(e),
        Err(_) => Ok(None),
    };
    let threads = view.context.decoders.processors();
    let part = arrays.len().div_ceil(threads.max(1)).max(LEAST_EACH);
    let parts: Vec<Result<Vec<_>>> = thread::scope(|scope| {
        let parts: Vec<_> = arrays
            .chunks(part)
            .map(|part| scope.spawn(move || part.iter().map(one).collect()))
            .collect();
        let failed = || crate::error::Error::damaged("a thread that reads metadata failed");
        let joined = parts.into_iter().map(|part| part.join());
        joined
            .map(|part| part.unwrap_or_else(|_| Err(failed())))
            .collect()
    });
    let mut all = Vec::with_capacity(arrays.len());
    for part in parts {
        all.extend(part?);
    }
    Ok(all)
}
