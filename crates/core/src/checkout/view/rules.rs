//! Checks the rules of a format on a store with layers on top.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::View;
use crate::checkout::records::attribute;
use crate::store::format::{Depth, Format, Inspection};
use crate::tree::name::unescape;
use crate::tree::{Directory, Node};
use npyfs_base::error::Result;

/// Returns the violations of the rules of the store in a view, among everything that changes of these keys affect; one
/// line per object.
pub fn broken<'a>(
    view: &Arc<View>,
    sep: u8,
    changed: impl Iterator<Item = &'a str>,
) -> Result<Vec<String>> {
    let mut groups: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    // The rules are about objects; a change of the root's attributes is none of an object.
    for key in changed
        .map(attribute::object_of)
        .filter(|key| !key.is_empty())
    {
        let (group, name) = key.rsplit_once('/').unwrap_or(("", key));
        groups.entry(group).or_default().insert(name);
    }
    let mut broken = Vec::new();
    // The groups above come later.
    while let Some((group, names)) = groups.pop_last() {
        let Some((dir, format)) = directory(view, group)? else {
            continue;
        };
        let own = |name: &&str| String::from_utf8_lossy(&unescape(name.as_bytes())).into_owned();
        let inspection = Inspection {
            sep,
            changed: Some(&names.iter().map(own).collect()),
            depth: Depth::Outline,
        };
        let rules = format.rules();
        if !group.is_empty() && rules.reaches_up(&*dir, &inspection)? {
            let (above, name) = group.rsplit_once('/').unwrap_or(("", group));
            groups.entry(above).or_default().insert(name);
        }
        let found = rules.broken(&*dir, &inspection)?;
        let about = |line: String| match group {
            "" => line,
            group => format!("{group}/{line}"),
        };
        broken.extend(found.into_iter().map(about).rev());
    }
    broken.reverse();
    Ok(broken)
}

/// A directory, and the format of its store.
pub type Formatted = (Arc<dyn Directory>, Arc<dyn Format>);

/// Returns the directory of a group with its format; `None` if it does not exist.
pub fn directory(view: &Arc<View>, group: &str) -> Result<Option<Formatted>> {
    let mut dir = view.root();
    let mut format = view.formats().format_of(&*dir)?;
    let names = if group.is_empty() {
        Vec::new()
    } else {
        view.shown(group)
    };
    for name in names {
        dir = match dir.lookup(&name)?.and_then(Node::directory) {
            Some(below) => below,
            None => return Ok(None),
        };
        // A new group has no underlying store that determines its format.
        if !format.objects().has_groups() {
            format = view.formats().format_of(&*dir)?;
        }
    }
    Ok(Some((dir, format.clone())))
}
