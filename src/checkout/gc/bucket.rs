//! Housekeeping of checkouts in a bucket. Copies on machines are left alone.
//!
//! Nothing here depends on how old anything is, but the wish of who frees room: leases tell who writes.

use std::collections::{BTreeSet, HashMap};
use std::time::SystemTime;

use super::{Collected, Garbage, GcWish};
use crate::checkout::commits;
use crate::checkout::mirror::{LayerUse, Mirror};
use crate::checkout::names::REVERT;
use crate::checkout::names::name_of;
use crate::error::Result;
use crate::io::dir::Dir;

/// Removes what nobody names in the bucket that `dir` is a copy of.
pub(super) fn collect(dir: &Dir, mirror: &Mirror, wish: &GcWish) -> Result<Collected> {
    let now = match mirror.now() {
        // Whoever may only look has no other clock.
        Err(_) if wish.dry_run => SystemTime::now(),
        now => now?,
    };
    let before = now
        .checked_sub(wish.older_than)
        .unwrap_or(SystemTime::UNIX_EPOCH);
    let mut done = Collected::default();
    let layers: BTreeSet<String> = mirror.layers()?.into_iter().collect();
    // What was committed after the names were read is seen as committed.
    let all = commits::read(dir)?;
    let committed: HashMap<&str, _> = all
        .iter()
        .map(|commit| (commit.layer.as_str(), commit.content.as_ref()))
        .collect();
    for layer in &layers {
        let content = match committed.get(layer.as_str()) {
            Some(Some(content)) => Some(*content),
            // The commit does not say what is in it.
            Some(None) => continue,
            None if layer.starts_with(REVERT) || name_of(layer).is_some() => None,
            None => continue,
        };
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
