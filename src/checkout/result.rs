//! The rules of a format, checked on what layers make of a store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::format::{Depth, Format};
use super::view::View;
use crate::error::Result;
use crate::tree::name::unescape;
use crate::tree::{Directory, Node};

/// Returns what breaks the rules of the store that a view shows, of all that the changes of these keys concern; a line for each
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
        let Some((dir, format)) = directory(view, group)? else {
            continue;
        };
        let own = |name: &&str| String::from_utf8_lossy(&unescape(name.as_bytes())).into_owned();
        let names = names.iter().map(own).collect();
        let found = format.broken(&*dir, sep, Some(&names), Depth::Outline)?;
        let about = |line: String| match group {
            "" => line,
            group => format!("{group}/{line}"),
        };
        broken.extend(found.into_iter().map(about));
    }
    Ok(broken)
}

/// A directory, and the format of the store that it is or lies in.
pub type Formatted = (Arc<dyn Directory>, Arc<dyn Format>);

/// Returns the directory of a group with its format; `None` if there is no such directory.
pub fn directory(view: &Arc<View>, group: &str) -> Result<Option<Formatted>> {
    let mut dir = view.root();
    let mut format = view.formats().of(&*dir)?;
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
        // A new group has no store below it that says of what format it is.
        if !format.has_groups() {
            format = view.formats().of(&*dir)?;
        }
    }
    Ok(Some((dir, format.clone())))
}
