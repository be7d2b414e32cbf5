//! The layers of a store as the target of a writable mount: what is finished goes into the layer of one
//! checkout, and the view shows it.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value as Json, json};

use super::checkouts::{Checkouts, LayerFiles, name_of};
use super::layer::Layer;
use super::scratch::Scratch;
use super::storage::Disk;
use super::target::{Made, Names, Outcome, Part, Place, Role, Target};
use super::view::View;
use crate::error::{Error, ErrorKind, Result};
use crate::h5::Creator;
use crate::store::Context;
use crate::tree::name::unescape;
use crate::tree::{Directory, Node};

/// A view and the layer on top of it that is written to.
pub struct LayerTarget {
    view: Arc<View>,
    layer: Layer,
    /// The checkout's name.
    name: String,
    context: Arc<Context>,
}

impl LayerTarget {
    /// Opens the checkout `name` of the store that `base` shows, on top of what is committed.
    pub fn open(
        base: Arc<dyn Directory>,
        context: &Arc<Context>,
        checkouts: &Checkouts,
        name: &str,
    ) -> Result<Self> {
        let creator = |dir: &Path| Creator::worker(Path::new("/proc/self/exe"), dir);
        let opened = checkouts.open(name, Arc::new(Disk), creator)?;
        let view = over(base, context, &opened.below);
        Ok(Self::new(view, opened.layer, name, context))
    }

    /// `layer` is shown on top of `view` from now on.
    pub fn new(view: Arc<View>, layer: Layer, name: &str, context: &Arc<Context>) -> Self {
        view.add_layer(layer.dir(), &layer.entries(), name);
        Self {
            view,
            layer,
            name: name.to_owned(),
            context: context.clone(),
        }
    }

    /// The names inside its store of the object with a key.
    fn inside(&self, key: &str) -> Result<Vec<String>> {
        let names = self.view.inside(key);
        let own = names.iter().map(|name| {
            String::from_utf8(unescape(&self.view.key_name(name)))
                .map_err(|_| refused(libc::EILSEQ, "the name is not UTF-8"))
        });
        own.collect()
    }
}

/// A store with what is committed on top.
pub fn committed(
    base: Arc<dyn Directory>,
    context: &Arc<Context>,
    checkouts: &Checkouts,
) -> Result<Arc<dyn Directory>> {
    let layers = checkouts.committed()?;
    Ok(if layers.is_empty() {
        base
    } else {
        over(base, context, &layers).root()
    })
}

fn over(base: Arc<dyn Directory>, context: &Arc<Context>, layers: &[LayerFiles]) -> Arc<View> {
    let view = View::new(base, context.clone());
    for layer in layers {
        let dir = layer.dir.file_name().unwrap_or_default().to_string_lossy();
        let name = name_of(&dir).unwrap_or(&dir);
        view.add_layer(&layer.dir, &layer.entries, name);
    }
    view
}

fn refused(errno: i32, message: &str) -> Error {
    Error::new(ErrorKind::Os(errno), message)
}

impl Target for LayerTarget {
    fn root(&self) -> Arc<dyn Directory> {
        self.view.root()
    }

    fn role(&self, path: &Names) -> Result<Role> {
        let Some((last, above)) = path.split_last() else {
            return Err(refused(libc::EPERM, "the root of the mount"));
        };
        if self.view.store_depth(above).is_none() {
            return Err(refused(libc::EPERM, "no store: nothing can be made here"));
        }
        let Some(stem) = last.strip_suffix(b".npy").filter(|stem| !stem.is_empty()) else {
            return Ok(Role::Scratch);
        };
        let mut names = above.to_vec();
        names.push(stem.to_vec());
        Ok(Role::Stored(Place {
            object: self.view.key(&names)?,
            member: String::new(),
            suffix: ".npy",
        }))
    }

    fn scratch(&self) -> Result<Scratch> {
        self.layer.scratch()
    }

    fn disk(&self) -> &Path {
        self.layer.dir()
    }

    fn store(&self, object: &str, parts: &[Part], time: SystemTime) -> Result<Outcome> {
        let [part] = parts else {
            return Err(refused(libc::EINVAL, "several files make no such object"));
        };
        let inside = self.inside(object)?;
        let stored = self.layer.put(object, &inside, &*part.content, time)?;
        let path = self.layer.path(&stored);
        self.view.put(object, &path, time, &self.name, false);
        Ok(Outcome::Stored)
    }

    fn remove(&self, object: &str) -> Result<()> {
        self.layer.remove(object)?;
        self.view.remove(object);
        Ok(())
    }

    fn set_time(&self, object: &str, time: SystemTime) -> Result<bool> {
        match self.layer.set_time(object, time) {
            Ok(()) => {
                self.view.set_time(object, time);
                Ok(true)
            }
            Err(e) if e.kind == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn make_directory(&self, path: &Names, time: SystemTime) -> Result<Made> {
        self.role(path)?;
        let _ = (time, &self.context);
        Ok(Made::Scratch)
    }

    fn remove_directory(&self, path: &Names) -> Result<()> {
        match self
            .view
            .root()
            .lookup(path.first().map_or(&[], Vec::as_slice))?
        {
            Some(Node::Directory(_)) => self.remove(&self.view.key(path)?),
            _ => Err(Error::new(ErrorKind::NotFound, "no such directory")),
        }
    }

    fn sync(&self) -> Result<()> {
        // Whatever is stored is durable at once.
        Ok(())
    }

    fn status(&self) -> Json {
        let entries = self.layer.entries();
        let deleted = entries.values().filter(|stored| stored.is_none()).count();
        json!({
            "name": self.name,
            "dir": self.layer.dir().to_string_lossy(),
            "objects": entries.len() - deleted,
            "deleted": deleted,
        })
    }
}
