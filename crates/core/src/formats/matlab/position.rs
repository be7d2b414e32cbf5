//! The position of a value: its store, its path, and the values around it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use xxhash_rust::xxh3::xxh3_64;

use crate::dataset::opened::OpenStore;

/// The deepest nesting of values that is shown.
const DEEPEST: usize = 64;

/// The position of a value that contains others.
pub(super) struct Place {
    pub store: Arc<OpenStore>,
    /// Its path in the mount, without suffixes; empty for the root.
    pub path: Arc<str>,
    pub addr: u64,
    above: Option<Arc<Place>>,
    depth: usize,
    /// The addresses of container values, each with a digest of the path at which it was first seen.
    seen: Arc<Mutex<HashMap<u64, u64>>>,
}

impl Place {
    /// Returns the position of the root group.
    pub(super) fn root(store: &Arc<OpenStore>) -> Self {
        Self {
            store: store.clone(),
            path: "".into(),
            addr: store.root,
            above: None,
            depth: 0,
            seen: Arc::default(),
        }
    }

    /// Returns the position of a value in this one.
    pub(super) fn below(self: &Arc<Self>, name: &str, addr: u64) -> Self {
        Self {
            store: self.store.clone(),
            path: self.path_of(name),
            addr,
            above: Some(self.clone()),
            depth: self.depth + 1,
            seen: self.seen.clone(),
        }
    }

    /// Returns the path of a value in this one.
    pub(super) fn path_of(&self, name: &str) -> Arc<str> {
        format!("{}/{name}", self.path).into()
    }

    /// Checks that a container value can be shown here with this name: it does not contain itself, is not too deep, and
    /// is not shown elsewhere. MATLAB refers to each value once. If shared values contained shared values, the number
    /// of paths would grow exponentially.
    pub(super) fn admits(&self, name: &str, addr: u64) -> Result<(), String> {
        let mut at = Some(self);
        while let Some(place) = at {
            if place.addr == addr {
                return Err("it holds itself".to_owned());
            }
            at = place.above.as_deref();
        }
        if self.depth >= DEEPEST {
            return Err(format!("values in each other more than {DEEPEST} deep"));
        }
        let own = xxh3_64(self.path_of(name).as_bytes());
        let mut seen = self.seen.lock().unwrap_or_else(|e| e.into_inner());
        match *seen.entry(addr).or_insert(own) == own {
            true => Ok(()),
            false => Err("it is shown at another path".to_owned()),
        }
    }
}
