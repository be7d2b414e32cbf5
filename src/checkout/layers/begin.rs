//! Stores that are begun in a checkout: by a directory whose name ends as files of a format do, in a mounted directory, and by
//! what is written into a new group of a file.

use std::time::SystemTime;

use super::group::Group;
use super::{LayerTarget, refused};
use crate::checkout::format::Format;
use crate::checkout::target::{Made, Part, PathNames, Role, Target};
use crate::error::Result;
use crate::tree::Node;

impl LayerTarget {
    /// Makes a group that was made in this checkout a store of a format, and stores anew what is in it, as far as the format has
    /// a form for that.
    pub(super) fn begin_group(&self, format: &dyn Format, path: &PathNames) -> Result<()> {
        let object = self.view.key(path)?;
        let (key, _) = self.place(&object)?;
        let mut there = Vec::new();
        if let Some(dir) = self.directory(path)? {
            for (name, node) in dir.list()?.iter() {
                let path = [path, &[name.to_vec()]].concat();
                if let Node::File(file) = &*node
                    && let Role::Stored(place) = self.role(&path)?
                    && place.member.is_empty()
                {
                    let part = Part {
                        place,
                        content: file.open()?,
                        stored: true,
                    };
                    there.push((part, file.ownership().mtime));
                }
            }
        }
        let _showing = self.layer.showing([object.clone()]);
        let new = format.begin_group(&key)?;
        let stored = self.layer.put(&object, &new, SystemTime::now())?;
        self.view.put_group(&object, &stored);
        for (part, time) in there {
            let object = part.place.object.clone();
            // What the format has no form for stays a plain object.
            if let Err(e) = self.store(&object, &[part], time) {
                let line = format!("{object}: stays as it is: {}", e.message);
                self.context.journal.add(&line);
            }
        }
        Ok(())
    }

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
        let mut new = format.begin(&Group {
            target: self,
            dir,
            store: path.to_vec(),
        })?;
        new.begins = Some(format.name());
        let key = self.view.key(path)?;
        let _showing = self.layer.showing([key.clone()]);
        let stored = self.layer.put(&key, &new, time)?;
        self.view.put(&key, &stored, true);
        Ok(Made::Stored)
    }
}
