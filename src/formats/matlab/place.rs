//! Where a value stands: its store, its path, and the values around it.

use std::sync::Arc;

use crate::dataset::opened::OpenStore;

/// Values in each other that are shown.
const DEEPEST: usize = 64;

/// The place of a value that holds others.
pub(super) struct Place {
    pub store: Arc<OpenStore>,
    /// Its path in the mount, without suffixes; empty for the root.
    pub path: Arc<str>,
    pub addr: u64,
    above: Option<Arc<Place>>,
    depth: usize,
}

impl Place {
    /// The place of the root group.
    pub(super) fn root(store: &Arc<OpenStore>) -> Self {
        Self {
            store: store.clone(),
            path: "".into(),
            addr: store.root,
            above: None,
            depth: 0,
        }
    }

    /// The place of a value in this one.
    pub(super) fn below(self: &Arc<Self>, name: &str, addr: u64) -> Self {
        Self {
            store: self.store.clone(),
            path: self.path_of(name),
            addr,
            above: Some(self.clone()),
            depth: self.depth + 1,
        }
    }

    /// The path of a value in this one.
    pub(super) fn path_of(&self, name: &str) -> Arc<str> {
        format!("{}/{name}", self.path).into()
    }

    /// Checks that a value that holds others can be shown here: it holds not itself, and is not too deep.
    pub(super) fn admits(&self, addr: u64) -> Result<(), String> {
        let mut at = Some(self);
        while let Some(place) = at {
            if place.addr == addr {
                return Err("it holds itself".to_owned());
            }
            at = place.above.as_deref();
        }
        match self.depth < DEEPEST {
            true => Ok(()),
            false => Err(format!("values in each other more than {DEEPEST} deep")),
        }
    }
}
