//! Stores that are begun in a checkout: by a directory in a mounted directory whose name has the suffix of a format,
//! and by files written into a new group of a store.

use std::time::SystemTime;

use super::group::Group;
use super::{LayerTarget, refused};
use crate::checkout::records::fit::StoreIdentity;
use crate::store::format::Writing;
use crate::store::part::Part;
use crate::store::target::{Made, PathNames, Role, Target};
use crate::tree::Node;
use npyfs_base::error::Result;

impl LayerTarget {
    /// Turns a group created in this checkout into a store of a format, and stores its content again, as far as the
    /// format can represent it.
    pub(super) fn begin_group(&self, writing: &dyn Writing, path: &PathNames) -> Result<()> {
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
        let layer = self.layer();
        let _showing = layer.showing([object.clone()]);
        let new = writing.begin_group(&key)?;
        let stored = layer.put(&object, &new, SystemTime::now())?;
        self.view.put_group(&object, &stored);
        for (part, time) in there {
            let object = part.place.object.clone();
            // An object that the format cannot represent stays a plain object.
            if let Err(e) = self.store_object(&object, &[part], time) {
                let line = format!("{object}: stays as it is: {}", e.message);
                self.context.journal.add(&line);
            }
        }
        Ok(())
    }

    /// Begins the store that a directory is by its name, outside of any store.
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
            .set_of(None, self.layer().dir().path(), name)
            .is_some()
        {
            let why = "a file of this name is one of several that are a store";
            return Err(refused(libc::EINVAL, why));
        }
        let base = Group {
            target: self,
            dir,
            store: path.to_vec(),
        };
        let mut new = format.writable()?.begin(&base, &[])?;
        new.begins = Some(format.name());
        let key = self.view.key(path)?;
        // A store that was deleted here: the new one is shown in its place as long as the same store is below.
        if let Some(hidden) = self.view.store(&key) {
            let identity = || StoreIdentity::of(&hidden, &*self.view, self.view.formats());
            self.layer().know(&key, identity)?;
        }
        let layer = self.layer();
        let _showing = layer.showing([key.clone()]);
        let stored = layer.put(&key, &new, time)?;
        self.view.put(&key, &stored, true);
        Ok(Made::Stored)
    }
}
