//! The changes of a store's objects in its layers, as a tree.

use std::collections::BTreeMap;

use npyfs_hdf5::protocol::{ObjectPath, PublishedChange};

/// The changes of an object and of everything below it.
#[derive(Default)]
pub(super) struct Changes<'a> {
    pub(super) own: Option<PublishedChange>,
    pub(super) below: BTreeMap<&'a [u8], Changes<'a>>,
}

impl<'a> Changes<'a> {
    /// Returns true if the object at a path, or an object that contains it, has a change.
    pub(super) fn hide(&self, path: &[Vec<u8>]) -> bool {
        let mut at = Some(self);
        path.iter().any(|name| {
            at = at.and_then(|changes| changes.below.get(name.as_slice()));
            at.is_some_and(|changes| changes.own.is_some())
        })
    }

    pub(super) fn of(all: &'a [(ObjectPath, PublishedChange)]) -> Self {
        let mut root = Self::default();
        for (path, change) in all {
            let mut at = &mut root;
            for name in path {
                at = at.below.entry(name).or_default();
            }
            at.own = Some(*change);
            at.below.clear();
        }
        root
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_at_a_path_hides_what_was_said_of_what_is_below() {
        let path = |path: &str| -> ObjectPath {
            path.split('/')
                .map(|name| name.as_bytes().to_vec())
                .collect()
        };
        let all = [
            (path("g/x"), PublishedChange::Stored(1)),
            (path("g"), PublishedChange::Deleted),
            (path("g/y"), PublishedChange::Stored(2)),
        ];
        let changes = Changes::of(&all);
        let group = &changes.below[&b"g"[..]];
        assert!(matches!(group.own, Some(PublishedChange::Deleted)));
        let names: Vec<_> = group.below.keys().collect();
        assert_eq!(names, [b"y"]);
        for (name, hidden) in [("g/x/z", true), ("g/y", true), ("h", false), ("h/g", false)] {
            assert_eq!(changes.hide(&path(name)), hidden, "{name}");
        }
    }
}
