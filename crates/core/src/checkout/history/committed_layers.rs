//! The committed layers of a store, lowest first.

use std::collections::HashMap;

use super::commits::LayerCommit;
use crate::checkout::mirror::Mirror;
use crate::checkout::records::entry::{LayerEntry, StoredAgain, forget_old_attributes};
use crate::checkout::records::index::{self, IndexChanges, RestoredObject, StoredObject};
use crate::checkout::records::layer_files::LayerFiles;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::dir::Dir;

/// The most layers whose directories are held open; others are opened for each use.
const MOST_HELD: usize = 256;

/// Returns the layers of `commits` in the directory of a store's checkouts.
pub(in crate::checkout) fn layers(dir: &Dir, commits: &[LayerCommit]) -> Result<Vec<LayerFiles>> {
    let mut all = Vec::with_capacity(commits.len());
    add_layers(dir, commits, &mut all)?;
    Ok(all)
}

/// Adds the layers of the commits that are not in `all` yet.
pub(in crate::checkout) fn add_layers(
    dir: &Dir,
    commits: &[LayerCommit],
    all: &mut Vec<LayerFiles>,
) -> Result<()> {
    let known = commits.iter().take(all.len()).zip(0..);
    let mut places: HashMap<&str, usize> = known
        .map(|(commit, place)| (commit.layer.as_str(), place))
        .collect();
    for commit in commits.iter().skip(all.len()) {
        let (layer, changes) = committed(dir, commit, commits.len() <= MOST_HELD)?;
        let mut files = laid(&layer, changes, all, |name| places.get(name).copied())?;
        files
            .entries
            .retain(|path, _| !commit.without.contains(path));
        forget_old_attributes(&mut files.entries, "");
        files.commit = Some(commit.id.clone());
        places.insert(&commit.layer, all.len());
        all.push(files);
    }
    Ok(())
}

/// Returns a layer that is not committed, as it is on top of these layers.
pub fn on_top(dir: &Dir, changes: IndexChanges, below: &[LayerFiles]) -> Result<LayerFiles> {
    let place = |name: &str| below.iter().position(|layer| layer.dir.name() == name);
    laid(dir, changes, below, place)
}

/// Returns a layer with the objects that it restores. `place` finds a layer by the name of its directory.
fn laid(
    dir: &Dir,
    mut changes: IndexChanges,
    below: &[LayerFiles],
    place: impl Fn(&str) -> Option<usize>,
) -> Result<LayerFiles> {
    let restored = std::mem::take(&mut changes.restored);
    let mut files = LayerFiles::of(dir, changes);
    for (key, restored) in restored {
        let entry = entry_of(&restored, &key, below, &place).ok_or_else(|| {
            let why = format!("{key}: what it was before is not there");
            Error::damaged(why).about(dir.path().join(index::NAME).display())
        })?;
        files.entries.insert(key, entry);
    }
    Ok(files)
}

/// Returns the directory of a commit's layer, and the content of its index.
pub(in crate::checkout) fn committed(
    dir: &Dir,
    commit: &LayerCommit,
    held: bool,
) -> Result<(Dir, IndexChanges)> {
    if let Some(mirror) = Mirror::of(dir) {
        let about = |e: Error| e.about(mirror.prefix().address(&commit.layer));
        let content = commit.content.as_ref().ok_or_else(|| {
            let why = format!("the commit {} does not say what is in it", commit.id);
            about(Error::damaged(why))
        })?;
        let (layer, part) = mirror.ensure(dir, &commit.layer, content)?;
        let changes = IndexChanges::parse(&part.text).map_err(about)?;
        return Ok((layer, changes));
    }
    let layer = dir.below(&commit.layer).map_err(|e| match e.kind {
        ErrorKind::NotFound => Error::damaged(e.message),
        _ => e,
    })?;
    let Some(changes) = IndexChanges::find(&layer)? else {
        let why = "the index of a committed checkout is gone";
        return Err(Error::damaged(why).about(layer.path().display()));
    };
    match held {
        true => Ok((layer, changes)),
        false => Ok((dir.below_later(&commit.layer), changes)),
    }
}

/// Returns the entry from the layers below that restores a key; `None` if they have no such object.
fn entry_of(
    restored: &RestoredObject,
    key: &str,
    below: &[LayerFiles],
    place: impl Fn(&str) -> Option<usize>,
) -> Option<LayerEntry> {
    let Some(name) = &restored.layer else {
        return Some(LayerEntry::Uncovered(restored.time));
    };
    let place = place(name)?;
    let layer = below.get(place)?;
    match layer.entries.get(key)? {
        LayerEntry::Stored(stored) => Some(LayerEntry::Again(StoredAgain {
            layer: place,
            dir: layer.dir.clone(),
            stored: StoredObject {
                time: restored.time,
                ..stored.clone()
            },
        })),
        _ => None,
    }
}
