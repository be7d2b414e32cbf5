//! Unneeded objects of a layer in a bucket: parts, files and contents to which no commit and no checkout refers.
//!
//! Leases stay: their numbers are never reused. A process that removes objects of an uncommitted layer holds its lease,
//! so that a writer that was cut off for long notices before it refers to a removed object.

use std::collections::BTreeSet;

use super::Mirror;
use super::lease::{Follows, Lease};
use super::part::LayerContent;
use super::state::{self, LayerState};
use crate::checkout::records::index::files_named;
use npyfs_base::error::{Error, Result};
use npyfs_io::dir::Dir;
use npyfs_io::remote::ListedObject;

/// Whether a layer is in use, with regard to garbage.
pub enum LayerUse {
    /// A process of this or another host writes in it.
    Written,
    /// The layer's unneeded objects.
    Garbage(LayerGarbage),
}

/// Unneeded objects of a layer.
pub struct LayerGarbage {
    /// The objects.
    pub objects: Vec<ListedObject>,
    /// A lease that excludes writers, if there can be any.
    lease: Option<Lease>,
}

impl Mirror {
    /// Returns the unneeded objects of a layer; `content` is that of its commit, if it is committed. With `alone`,
    /// writers are excluded while the result exists.
    pub fn garbage(
        &self,
        top: &Dir,
        layer: &str,
        content: Option<&LayerContent>,
        alone: bool,
    ) -> Result<LayerUse> {
        let prefix = self.prefix.below(layer);
        let mut state = LayerState::look(&prefix)?;
        if let Some(content) = content {
            let (_, part) = self.ensure(top, layer, content)?;
            let mut needed = files_named(&part.text, true)?;
            needed.extend(content.object.clone());
            return Ok(LayerUse::Garbage(LayerGarbage::of(&state, &needed, None)));
        }
        if state.writer_elsewhere(self)?.is_some() {
            return Ok(LayerUse::Written);
        }
        let mut needed = needed_now(&state, self, layer)?;
        let found = LayerGarbage::of(&state, &needed, None);
        if !alone || found.objects.is_empty() {
            return Ok(LayerUse::Garbage(found));
        }
        // Objects of earlier leases are not affected: this lease belongs to no copy.
        let taken = Lease::take(self, prefix.clone(), super::unique()?, Follows::Any);
        let lease = match taken {
            Err(e) if e.errno() == libc::EBUSY => return Ok(LayerUse::Written),
            taken => {
                let (lease, seen) = taken?;
                state = seen.unwrap_or_default();
                lease
            }
        };
        needed = needed_now(&state, self, layer)?;
        let found = LayerGarbage::of(&state, &needed, Some(lease));
        Ok(LayerUse::Garbage(found))
    }

    /// Removes an object of a layer.
    pub fn remove_garbage(&self, layer: &str, object: &ListedObject) -> Result<()> {
        self.prefix.below(layer).remove(&object.name)
    }
}

/// Returns the names of the valid parts and of the objects that they refer to.
fn needed_now(state: &LayerState, mirror: &Mirror, layer: &str) -> Result<BTreeSet<String>> {
    let Some((lease, count)) = state.parts else {
        return Ok(BTreeSet::new());
    };
    let prefix = mirror.prefix.below(layer);
    let there = state.read(&prefix)?;
    let about = |e: Error| e.about(prefix.address(""));
    let mut needed = files_named(&there.text, true).map_err(about)?;
    needed.extend((1..=count).map(|number| state::part(lease, number)));
    Ok(needed)
}

impl LayerGarbage {
    fn of(state: &LayerState, needed: &BTreeSet<String>, lease: Option<Lease>) -> Self {
        let is_known = |name: &str| {
            let begins = ["part.", "content."];
            super::is_finished(name) || begins.iter().any(|begin| name.starts_with(begin))
        };
        let objects = state.objects.iter().filter(|object| {
            let name = object.name.as_str();
            is_known(name) && !needed.contains(name)
        });
        Self {
            objects: objects.cloned().collect(),
            lease,
        }
    }

    /// Returns whether writers are excluded.
    pub fn is_alone(&self) -> bool {
        self.lease.is_some()
    }
}
