//! Stores that are begun in a mounted directory: a directory whose name ends as files of a format do.

use std::time::SystemTime;

use super::group::Group;
use super::{LayerTarget, refused};
use crate::checkout::target::{Made, PathNames};
use crate::error::Result;

impl LayerTarget {
    /// Begins the store that a directory is by its name, in a directory that is none.
    pub(super) fn begin_store(&self, path: &PathNames, time: SystemTime) -> Result<Made> {
        let Some((name, above)) = path.split_last() else {
            return Err(refused(libc::EPERM, "the root of the mount"));
        };
        let formats = self.view.formats();
        let kind = self.context.options.kind.as_deref();
        let Some(format) = formats.begun_as(kind, name) else {
            let why = format!(
                "no store: nothing can be made here but a store, by a name with {}",
                formats.endings()
            );
            return Err(refused(libc::EPERM, &why));
        };
        let dir = self.directory(above)?;
        if dir.as_ref().is_some_and(|dir| dir.handle().is_some()) {
            let why = "this store keeps its changes itself: no store can be in it";
            return Err(refused(libc::EPERM, why));
        }
        if formats
            .set_of(None, self.layer.dir().path(), name)
            .is_some()
        {
            let why = "a file of this name is one of several that are a store";
            return Err(refused(libc::EINVAL, why));
        }
        let mut new = format.begin(&Group { target: self, dir })?;
        new.begins = Some(format.name());
        let key = self.view.key(path)?;
        let _showing = self.layer.showing([key.clone()]);
        let stored = self.layer.put(&key, &new, time)?;
        self.view.put(&key, &stored, true);
        Ok(Made::Stored)
    }
}
