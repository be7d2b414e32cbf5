//! Garbage collection for checkouts in a bucket. Local copies are not touched.
//!
//! Nothing here depends on ages except the user's limit: leases tell whether a process writes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use super::{Collected, Garbage, GcWish, NEVER_WRITTEN};
use crate::checkout::history::checkouts::{Checkouts, dir_of, layer_below};
use crate::checkout::history::commits::{self, LayerCommit};
use crate::checkout::layer::lock::LayerLock;
use crate::checkout::mirror::{LayerUse, Mirror};
use crate::checkout::records::index::IndexChanges;
use crate::checkout::records::names::REVERT;
use crate::checkout::records::names::name_of;
use crate::checkout::verbs::commit::discard;
use npyfs_base::error::{ErrorKind, Result};
use npyfs_io::dir::Dir;
use npyfs_io::file::time;
use npyfs_io::storage::Storage;

/// Removes unreferenced objects from the bucket that `dir` is a copy of.
pub(super) fn collect(
    checkouts: &Checkouts,
    dir: &Dir,
    mirror: &Mirror,
    wish: &GcWish,
    storage: &Arc<dyn Storage>,
) -> Result<Collected> {
    let now = match mirror.now() {
        // Without the right to write, the local clock is used.
        Err(_) if wish.dry_run => SystemTime::now(),
        now => now?,
    };
    let before = now
        .checked_sub(wish.older_than)
        .unwrap_or(SystemTime::UNIX_EPOCH);
    let mut done = Collected::default();
    let layers: BTreeSet<String> = mirror.layers()?.into_iter().collect();
    // A layer that is committed after the names were listed must be seen as committed.
    let all = commits::read(dir)?;
    let committed: HashMap<&str, _> = all
        .iter()
        .map(|commit| (commit.layer.as_str(), commit.content.as_ref()))
        .collect();
    for layer in &layers {
        let content = match committed.get(layer.as_str()) {
            Some(Some(content)) => Some(*content),
            // The commit does not list its content.
            Some(None) => continue,
            None if layer.starts_with(REVERT) || name_of(layer).is_some() => None,
            None => continue,
        };
        if content.is_none()
            && let Some((name, begun)) = left(dir, layer, &all)?
        {
            let garbage = Garbage {
                path: layer.clone(),
                bytes: 0,
                why: NEVER_WRITTEN,
            };
            if begun > before {
                done.young.push(garbage);
                continue;
            }
            let removed = match wish.dry_run {
                true => Ok(()),
                false => discard(checkouts, &name, false, &**storage).map(drop),
            };
            match removed {
                Ok(()) => done.garbage.push(garbage),
                Err(e) if e.errno() == libc::EBUSY => done.in_use.push(layer.clone()),
                Err(e) => done.left.push(e.to_string()),
            }
            continue;
        }
        match mirror.garbage(dir, layer, content, !wish.dry_run) {
            Err(e) => done.left.push(e.to_string()),
            Ok(LayerUse::Written) => done.in_use.push(layer.clone()),
            Ok(LayerUse::Garbage(found)) => {
                let may_remove = content.is_some() || found.is_alone();
                for object in &found.objects {
                    let garbage = Garbage {
                        path: format!("{layer}/{}", object.name),
                        bytes: object.size,
                        why: "of no object",
                    };
                    if object.modified > before {
                        done.young.push(garbage);
                        continue;
                    }
                    let removed = match wish.dry_run || !may_remove {
                        true => Ok(()),
                        false => mirror.remove_garbage(layer, object),
                    };
                    match removed {
                        Ok(()) => done.garbage.push(garbage),
                        Err(e) => done.left.push(e.to_string()),
                    }
                }
            }
        }
    }
    Ok(done)
}

/// Returns the name of a checkout in which a mount went on after its commit and nothing was written since, and when that
/// was; `None` if a layer is none, or is in use.
fn left(dir: &Dir, layer: &str, commits: &[LayerCommit]) -> Result<Option<(String, SystemTime)>> {
    let name = match name_of(layer) {
        Some(name) if name != layer && dir_of(name, commits) == layer => name,
        _ => return Ok(None),
    };
    let layer = match layer_below(dir, layer) {
        Err(e) if e.kind == ErrorKind::NotFound => return Ok(None),
        layer => layer?,
    };
    let changes = IndexChanges::read(&layer)?;
    let is_empty = changes.count_changed() == 0 && changes.incomplete.is_empty();
    let is_free = is_empty && LayerLock::look(&layer)?.is_none();
    let begun = changes.begun.map(|begun| time(begun.time));
    Ok(is_free.then(|| (name.to_owned(), begun.unwrap_or(SystemTime::UNIX_EPOCH))))
}
