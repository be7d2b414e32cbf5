//! The committed layers of a store, lowest first.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::commits::LayerCommit;
use crate::checkout::mirror::Mirror;
use crate::checkout::records::entry::{LayerEntry, StoredAgain, forget_old_attributes};
use crate::checkout::records::fit::StoreIdentity;
use crate::checkout::records::index::{self, IndexChanges, RestoredObject, StoredObject};
use crate::checkout::records::layer_files::{CommitId, LayerFiles};
use crate::checkout::records::record_log::Unread;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::dir::Dir;

/// The most layers whose directories are held open; others are opened for each use.
const MOST_HELD: usize = 256;

type Stores = BTreeMap<String, StoreIdentity>;

/// Returns the layers of `commits` in the directory of a store's checkouts.
pub(in crate::checkout) fn layers(dir: &Dir, commits: &[LayerCommit]) -> Result<Vec<LayerFiles>> {
    let mut all = Vec::with_capacity(commits.len());
    add_layers(dir, commits, &mut all)?;
    Ok(all)
}

/// Adds the layers of `commits`, which come after those of `all`.
pub(in crate::checkout) fn add_layers(
    dir: &Dir,
    commits: &[LayerCommit],
    all: &mut Vec<LayerFiles>,
) -> Result<()> {
    let held = all.len() + commits.len() <= MOST_HELD;
    let mut known = KnownStores::default();
    for commit in commits {
        let mut files = match recorded_changes(dir, commit)? {
            None => {
                let (layer, changes) = committed(dir, commit, held)?;
                undated(&layer, changes, all)?
            }
            Some(changes) => {
                let layer = match held {
                    true => opened(dir, commit)?,
                    false => dir.below_later(&commit.layer),
                };
                LayerFiles {
                    stores: known.identities(commit)?,
                    ..undated(&layer, changes, all)?
                }
            }
        };
        files
            .entries
            .retain(|path, _| !commit.without.contains(path));
        forget_old_attributes(&mut files.entries, "");
        files.commit(CommitId::parse(&commit.id), commit.time);
        all.push(files);
    }
    Ok(())
}

/// Returns a layer that is not committed as it is on top of others, with the objects that it restores. Its deletions
/// have the time of its index, as they record none.
pub fn on_top(dir: &Dir, changes: IndexChanges, below: &[LayerFiles]) -> Result<LayerFiles> {
    let mut files = undated(dir, changes, below)?;
    let written = || {
        Some(index::nanoseconds(
            dir.metadata_here(index::NAME).ok()?.modified().ok()?,
        ))
    };
    files.date_deletions(written);
    Ok(files)
}

fn undated(dir: &Dir, mut changes: IndexChanges, below: &[LayerFiles]) -> Result<LayerFiles> {
    let restored = std::mem::take(&mut changes.restored);
    let mut files = LayerFiles::new(dir, changes);
    // Most are of a few layers.
    let mut places: HashMap<String, Option<usize>> = HashMap::new();
    for (key, restored) in restored {
        let place = restored.layer.as_ref().map(|name| {
            let find = || below.iter().rposition(|layer| *layer.name == **name);
            *places.entry(name.clone()).or_insert_with(find)
        });
        let entry = entry_of(&restored, &key, below, place).ok_or_else(|| {
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
    if let Some(mirror) = Mirror::find(dir) {
        let about = |e: Error| e.about(mirror.prefix().address(&commit.layer));
        let content = commit.content.as_ref().ok_or_else(|| {
            let why = format!("the commit {} does not say what is in it", commit.id);
            about(Error::damaged(why))
        })?;
        let (layer, part) = mirror.ensure(dir, &commit.layer, content)?;
        let changes = IndexChanges::parse(&part.text).map_err(about)?;
        return Ok((layer, changes));
    }
    let layer = opened(dir, commit)?;
    let Some(changes) = IndexChanges::find(&layer)? else {
        let why = "the index of a committed checkout is gone";
        return Err(Error::damaged(why).about(layer.path().display()));
    };
    match held {
        true => Ok((layer, changes)),
        false => Ok((dir.below_later(&commit.layer), changes)),
    }
}

/// Returns the changes that the record of a commit says, without the stores below; `None` if they are in the layer
/// alone, or in a bucket, where `content` says which files there are.
pub(in crate::checkout) fn recorded_changes(
    dir: &Dir,
    commit: &LayerCommit,
) -> Result<Option<IndexChanges>> {
    let changes = commit
        .changes
        .as_ref()
        .filter(|_| Mirror::find(dir).is_none());
    let changes = changes.map(IndexChanges::of_short);
    changes.transpose().map_err(|e| about(commit, e))
}

fn about(commit: &LayerCommit, error: Error) -> Error {
    error.about(format!("commit {}", commit.id))
}

/// Opens the directory of a commit's layer.
fn opened(dir: &Dir, commit: &LayerCommit) -> Result<Dir> {
    dir.below(&commit.layer).map_err(|e| match e.kind {
        ErrorKind::NotFound => Error::damaged(e.message),
        _ => e,
    })
}

/// The stores of the last commit that was read. Those of the next one are usually the same, and share memory.
#[derive(Default)]
struct KnownStores<'a> {
    last: Option<(&'a Unread, Arc<Stores>)>,
}

impl<'a> KnownStores<'a> {
    /// Returns the identities of the stores that a commit was written over, by key.
    fn identities(&mut self, commit: &'a LayerCommit) -> Result<Arc<Stores>> {
        let Some(base) = &commit.base else {
            return Ok(Arc::default());
        };
        if let Some((last, stores)) = &self.last
            && *last == base
        {
            return Ok(stores.clone());
        }
        let stores: Arc<Stores> = Arc::new(base.read().map_err(|e| about(commit, e))?);
        self.last = Some((base, stores.clone()));
        Ok(stores)
    }
}

/// Returns the entry that restores a key; `None` if the layers below have no such object. `place` is the index of its
/// layer; `None` for the store's own object.
fn entry_of(
    restored: &RestoredObject,
    key: &str,
    below: &[LayerFiles],
    place: Option<Option<usize>>,
) -> Option<LayerEntry> {
    let Some(place) = place else {
        return Some(LayerEntry::Uncovered(restored.time));
    };
    let place = place?;
    let layer = below.get(place)?;
    match layer.entries.get(key)? {
        LayerEntry::Stored(stored) => Some(LayerEntry::Again(StoredAgain {
            layer: place,
            dir: layer.dir.clone(),
            stored: Arc::new(StoredObject {
                time: restored.time,
                ..(**stored).clone()
            }),
        })),
        _ => None,
    }
}
