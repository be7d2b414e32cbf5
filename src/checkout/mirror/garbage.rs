//! The objects of a layer in a bucket that nobody needs: of parts, files and contents that no commit and no checkout names.
//!
//! Leases stay: their numbers are never used again. Whoever removes anything of a layer that is not committed has its lease, so
//! that a writer that was silent for long finds out before it names what is gone.

use std::collections::BTreeSet;

use super::Mirror;
use super::lease::{Follows, Lease};
use super::part::LayerContent;
use super::state::{self, LayerState};
use crate::checkout::index::files_named;
use crate::error::{Error, Result};
use crate::io::dir::Dir;
use crate::io::remote::ListedObject;

/// The use of a layer, as far as garbage is concerned.
pub enum LayerUse {
    /// A process of another host, or of this one, writes in it.
    Written,
    /// These objects of it nobody names.
    Garbage(LayerGarbage),
}

/// Objects of a layer that nobody names.
pub struct LayerGarbage {
    /// The objects.
    pub objects: Vec<ListedObject>,
    /// Keeps writers out, where there could be any.
    lease: Option<Lease>,
}

impl Mirror {
    /// Returns what of a layer is not needed; `content` is what its commit says, if it is committed. With `alone` writers are kept out
    /// as long as the answer lives.
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
        // What was written under earlier leases is not touched: this one is of no copy.
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

/// Returns the names of objects that the parts which count are, or name.
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

    /// Returns whether writers are kept out.
    pub fn is_alone(&self) -> bool {
        self.lease.is_some()
    }
}
