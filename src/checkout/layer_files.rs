//! The files of a layer as readers know them, and those of all committed layers.

use std::collections::{BTreeMap, HashMap};

use crate::checkout::commits::LayerCommit;
use crate::checkout::entry::{LayerEntry, StoredAgain};
use crate::checkout::fit::StoreIdentity;
use crate::checkout::index::{self, IndexChanges, RestoredObject, StoredObject};
use crate::checkout::mirror::Mirror;
use crate::checkout::names::checkout_of;
use crate::error::{Error, ErrorKind, Result};
use crate::io::dir::Dir;

/// Layers whose directories are held open, at most; others are opened each time they are wanted.
const MOST_HELD: usize = 256;

/// The files of a layer and what they are.
#[derive(Clone, Debug)]
pub struct LayerFiles {
    /// The layer's directory.
    pub dir: Dir,
    /// Every object that was changed, by its key.
    pub entries: BTreeMap<String, LayerEntry>,
    /// The identities of the stores that objects were written over, by key.
    pub stores: BTreeMap<String, StoreIdentity>,
    /// The id of the commit that it became.
    pub commit: Option<String>,
}

impl LayerFiles {
    /// The layer in `dir` that a checkout writes, of which the index says this.
    pub fn of(dir: &Dir, changes: IndexChanges) -> Self {
        Self {
            stores: changes.stores,
            ..Self::bare(dir, changes.entries)
        }
    }

    /// A layer that nothing is known of but its objects; `None`: one was deleted.
    pub fn bare(dir: &Dir, entries: BTreeMap<String, Option<StoredObject>>) -> Self {
        let entries = entries.into_iter();
        Self {
            dir: dir.clone(),
            entries: entries.map(|(key, stored)| (key, stored.into())).collect(),
            stores: BTreeMap::new(),
            commit: None,
        }
    }

    /// The name of the checkout that it belongs to.
    pub fn checkout(&self) -> String {
        checkout_of(&self.dir.name()).to_owned()
    }
}

/// The layers of `commits` in the directory of a store's checkouts.
pub(in crate::checkout) fn layers(dir: &Dir, commits: &[LayerCommit]) -> Result<Vec<LayerFiles>> {
    let mut all = Vec::with_capacity(commits.len());
    add_layers(dir, commits, &mut all)?;
    Ok(all)
}

/// Adds the layers of those of `commits` that are not among `all` yet.
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
        let (layer, mut changes) = committed(dir, commit, commits.len() <= MOST_HELD)?;
        let restored = std::mem::take(&mut changes.restored);
        let mut files = LayerFiles::of(&layer, changes);
        for (key, restored) in restored {
            let entry = entry_of(&restored, &key, &places, all).ok_or_else(|| {
                let why = format!("{key}: what it was before is not there");
                Error::damaged(why).about(layer.path().join(index::NAME).display())
            })?;
            files.entries.insert(key, entry);
        }
        files
            .entries
            .retain(|path, _| !commit.without.contains(path));
        files.commit = Some(commit.id.clone());
        places.insert(&commit.layer, all.len());
        all.push(files);
    }
    Ok(())
}

/// Returns the directory of the layer of a commit, and what its index says.
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
    let layer = match held {
        true => dir.below(&commit.layer),
        false => dir.below_unheld(&commit.layer),
    };
    let layer = layer.map_err(|e| match e.kind {
        ErrorKind::NotFound => Error::damaged(e.message),
        _ => e,
    })?;
    if let Err(e) = layer.metadata(index::NAME) {
        let message = "the index of a committed checkout is gone";
        return Err(match e.kind {
            ErrorKind::NotFound => Error::damaged(message).about(layer.path().display()),
            _ => e,
        });
    }
    let changes = IndexChanges::read(&layer)?;
    Ok((layer, changes))
}

/// Returns the entry that restores a key, out of the layers below; `None` if they have no such object.
fn entry_of(
    restored: &RestoredObject,
    key: &str,
    places: &HashMap<&str, usize>,
    below: &[LayerFiles],
) -> Option<LayerEntry> {
    let Some(name) = &restored.layer else {
        return Some(LayerEntry::Uncovered(restored.time));
    };
    let place = *places.get(name.as_str())?;
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
