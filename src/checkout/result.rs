//! Whether what layers make of a store keeps the rules of its format.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::view::View;
use crate::error::Result;
use crate::formats::{Depth, arkouda, daf};
use crate::options::StoreKind;
use crate::tree::name::unescape;
use crate::tree::{Directory, Node};

/// What breaks the rules of the store that a view shows, of all that the changes of these keys concern; a line for each
/// object.
pub fn broken<'a>(
    view: &Arc<View>,
    sep: u8,
    changed: impl Iterator<Item = &'a str>,
) -> Result<Vec<String>> {
    let mut groups: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for key in changed {
        let (group, name) = key.rsplit_once('/').unwrap_or(("", key));
        groups.entry(group).or_default().insert(name);
    }
    let mut broken = Vec::new();
    for (group, names) in groups {
        let Some((dir, kind)) = directory(view, group)? else {
            continue;
        };
        let found = match kind {
            // What concerns no axis breaks no rule.
            StoreKind::Daf if names.iter().any(|name| name.contains('#')) => {
                let own =
                    |name: &&str| String::from_utf8_lossy(&unescape(name.as_bytes())).into_owned();
                let names: BTreeSet<String> = names.iter().map(own).collect();
                daf::check::broken(&*dir, sep, &|own| names.contains(own), Depth::Outline)?
            }
            StoreKind::Arkouda => {
                let shown = names.iter().flat_map(|name| view.shown(name)).collect();
                arkouda::check::broken_of(&*dir, sep, &shown, Depth::Outline)?
            }
            _ => continue,
        };
        let about = |line: String| match group {
            "" => line,
            group => format!("{group}/{line}"),
        };
        broken.extend(found.into_iter().map(about));
    }
    Ok(broken)
}

/// The directory of a group, and the kind of store that it is or lies in.
fn directory(view: &Arc<View>, group: &str) -> Result<Option<(Arc<dyn Directory>, StoreKind)>> {
    let mut dir = view.root();
    let mut kind = dir.kind()?;
    let names = if group.is_empty() {
        Vec::new()
    } else {
        view.shown(group)
    };
    for name in names {
        match dir.lookup(&name)? {
            Some(Node::Directory(below)) => dir = below,
            _ => return Ok(None),
        }
        // A new group in Arkouda's files has no store below it that says so.
        kind = match dir.kind()? {
            StoreKind::Plain if kind == StoreKind::Arkouda => kind,
            kind => kind,
        };
    }
    Ok(Some((dir, kind)))
}
