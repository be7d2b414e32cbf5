//! The metadata of a whole store in one file, so that a reader need not look into every group and array.

use std::sync::Arc;

use super::View;
use super::array::ArrayNode;
use super::group::{GroupNow, Member};
use super::metadata::{self, Documents};
use npyfs_base::error::{ErrorKind, Result};
use npyfs_base::thread;

/// The largest number of arrays, and of groups, whose metadata are consolidated.
const MOST: usize = 10_000;

/// The least number of arrays that one thread describes.
const LEAST_EACH: usize = 64;

/// The metadata of a whole store.
pub(super) struct Whole {
    /// The text of the file.
    pub(super) text: Arc<Vec<u8>>,
    /// Paths of arrays that cannot be read or that Zarr cannot hold, with the reasons.
    pub(super) left_out: Vec<(String, String)>,
}

/// Returns the metadata; `None` if the group has more below it than the limits allow, or contains stores, each of which
/// has its own such file.
pub(super) fn text(view: &View, top: &GroupNow) -> Result<Option<Whole>> {
    let mut groups: Vec<(String, Arc<Documents>)> = Vec::new();
    let mut arrays: Vec<(String, Arc<ArrayNode>)> = Vec::new();
    let mut left = vec![(String::new(), top.members()?)];
    while let Some((path, members)) = left.pop() {
        for (name, member) in members.members {
            // A name that is not UTF-8 is no member.
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
    all.extend(known.filter_map(|((path, _), of)| Some((&path[..], of.as_ref().ok()?))));
    let (_, text) = metadata::consolidated(view.version, &*top.documents()?, all);
    let known = arrays.iter().zip(&described);
    let left_out = known.filter_map(|((path, _), of)| Some((path.clone(), of.clone().err()?)));
    Ok(Some(Whole {
        text: Arc::new(text),
        left_out: left_out.collect(),
    }))
}

/// The metadata of an array, or the reason why it has none.
type Described = std::result::Result<Documents, String>;

/// Returns the metadata of arrays.
fn describe(view: &View, arrays: &[(String, Arc<ArrayNode>)]) -> Result<Vec<Described>> {
    let one = |(_, array): &(String, Arc<ArrayNode>)| match array.described() {
        Ok(described) => Ok(Ok(described.documents.clone())),
        Err(e) if e.is_passing() || e.kind == ErrorKind::Stale => Err(e),
        Err(e) => Ok(Err(e.message)),
    };
    let threads = view.context.decoders.processors();
    let part = arrays.len().div_ceil(threads.max(1)).max(LEAST_EACH);
    let parts: Vec<Result<Vec<_>>> = thread::scope(|scope| {
        let parts: Vec<_> = arrays
            .chunks(part)
            .map(|part| scope.spawn(move || part.iter().map(one).collect()))
            .collect();
        let failed = || npyfs_base::error::Error::damaged("a thread that reads metadata failed");
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
