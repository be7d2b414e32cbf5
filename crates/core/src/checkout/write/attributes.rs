//! Attributes that programs write or remove, and those that an object takes along when it is renamed.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value as Json;

use super::{LayerTarget, refused};
use crate::checkout::records::attribute as record;
use crate::checkout::view::dimensions::{ATTRIBUTE, list_of};
use crate::checkout::view::stem;
use crate::store::attribute;
use crate::store::object::NewFile;
use crate::store::target::{AttributeChange, PathNames};
use crate::tree::{Directory, Node, VirtualFile};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_hdf5::{Attribute, NewAttribute};
use npyfs_io::content::complete_npy_header;

/// The suffixes of files that are shown of one object.
const FORMS: [&str; 4] = [".npy", ".npz", ".txt", ".bin"];

impl LayerTarget {
    /// Sets or removes an attribute of the object or group at a path of the mount.
    pub(super) fn change_attribute(
        &self,
        path: &PathNames,
        name: &[u8],
        change: AttributeChange<'_>,
    ) -> Result<()> {
        let name = attribute::check_name(name)?;
        let _changing = self.changing.read();
        let (node, object) = self.object(path)?;
        self.check_attribute(path, &node, name)?;
        let attributes = match &node {
            Node::Directory(dir) => dir.attributes()?,
            Node::File(file) => file.attributes()?,
            Node::Symlink(_) => Vec::new(),
        };
        let before = attributes.iter().find(|a| a.name == name.as_bytes());
        let key = record::key(&object, name);
        let text = match (change, before) {
            (AttributeChange::Add(_), Some(_)) => {
                return Err(refused(libc::EEXIST, "the attribute is there already"));
            }
            (AttributeChange::Replace(_) | AttributeChange::Remove, None) => {
                return Err(refused(libc::ENODATA, "no such attribute"));
            }
            (AttributeChange::Remove, Some(_)) => {
                self.know_store(&object)?;
                let layer = self.layer();
                let _showing = layer.showing([key.clone()]);
                layer.remove(&key)?;
                self.view.put_attribute(&key, None);
                return Ok(());
            }
            (
                AttributeChange::Set(text)
                | AttributeChange::Add(text)
                | AttributeChange::Replace(text),
                _,
            ) => text,
        };
        let before = before.and_then(|before| before.value.as_ref().ok());
        self.put_attribute(&object, attribute::parse(name, text, before)?)
    }

    fn put_attribute(&self, object: &str, new: NewAttribute) -> Result<()> {
        self.know_store(object)?;
        let key = record::key(object, &new.name);
        let layer = self.layer();
        let _showing = layer.showing([key.clone()]);
        let stored = layer.put_attribute(&key, &file_of(new), SystemTime::now())?;
        self.view.put_attribute(&key, Some(&stored));
        Ok(())
    }

    /// Returns the node at a path of the mount, and its key.
    fn object(&self, path: &PathNames) -> Result<(Node, String)> {
        let node = self.node(path)?;
        let node = node.ok_or_else(|| Error::new(ErrorKind::NotFound, "no such object"))?;
        let key = match (&node, path.split_last()) {
            (Node::Directory(_), _) => self.view.key(path)?,
            (Node::File(_), Some((last, above))) => {
                let names = [above, &[stem(last).to_vec()]].concat();
                self.view.key(&names)?
            }
            _ => return Err(refused(libc::EPERM, "a symbolic link has no attributes")),
        };
        Ok((node, key))
    }

    /// Gives the variable of a netCDF-4 store at a path of the mount dimensions by their names; without names it has
    /// none.
    pub fn set_dimensions(&self, path: &PathNames, given: &[String]) -> Result<()> {
        let _changing = self.changing.read();
        let (node, object) = self.object(path)?;
        let Node::File(file) = node else {
            return Err(refused(libc::EINVAL, "a directory has no dimensions"));
        };
        self.check_writable(path, self.store_depth(path)?)?;
        let shape = complete_npy_header(&*file.open()?)?.shape;
        self.view.named_dimensions(&object, &shape, given)?;
        self.put_attribute(&object, given_dimensions(given))
    }

    /// Refuses attributes that the format of a store reserves, and stores that cannot be written.
    fn check_attribute(&self, path: &PathNames, node: &Node, name: &str) -> Result<()> {
        let depth = self.store_depth(path)?;
        self.check_writable(path, depth)?;
        let holder = match (node, path.split_last()) {
            (Node::Directory(dir), _) => Some(dir.clone()),
            (_, Some((_, above))) => self.directory(above)?,
            (_, None) => None,
        };
        let format = self.format(holder.as_deref())?;
        format.writable()?;
        if let Some(why) = format.rules().refuses_attribute(name) {
            return Err(refused(libc::EPERM, &why));
        }
        let (store, own) = path.split_at(depth.min(path.len()));
        match (own, self.directory(store)?) {
            ([_, ..], Some(store)) => self.check_file(&*store, node),
            _ => Ok(()),
        }
    }

    /// Refuses an object of the store that lies in another file, to which a link leads: an export has the link.
    fn check_file(&self, store: &dyn Directory, node: &Node) -> Result<()> {
        let about = match node {
            Node::Directory(dir) => dir.info()?,
            Node::File(file) => file.info()?,
            Node::Symlink(_) => return Ok(()),
        };
        // What cannot be opened may lie anywhere.
        if let (Some(why), Json::Null) = (about["error"].as_str(), &about["shape"]) {
            return Err(refused(libc::EPERM, why));
        }
        let Some(file) = about["file"]
            .as_str()
            .filter(|_| about["checkout"].is_null())
        else {
            return Ok(());
        };
        // The report on a root takes longer.
        if Path::new(file) == self.checkouts.store() || store.info()?["file"] == file {
            return Ok(());
        }
        let why = format!("it lies in another file, {file}, to which this one has a link");
        Err(refused(libc::EPERM, &why))
    }

    /// Returns the attributes that an object takes along to another key when it is renamed.
    pub(super) fn attributes_of(
        &self,
        gone: &[String],
        object: &str,
    ) -> Result<Vec<(String, NewFile)>> {
        let [from] = gone else {
            return Ok(Vec::new());
        };
        let shown = self.view.shown(from);
        let Some((last, above)) = shown.split_last() else {
            return Ok(Vec::new());
        };
        let Some(dir) = self.directory(above)? else {
            return Ok(Vec::new());
        };
        let format = self.format(Some(&*dir))?.clone();
        let mut found: Vec<Attribute> = Vec::new();
        let mut dimensions = None;
        for suffix in FORMS {
            let name = [last, suffix.as_bytes()].concat();
            if let Some(Node::File(file)) = dir.lookup(&name)? {
                // An object that cannot be read may be renamed.
                found = file.attributes().unwrap_or_default();
                dimensions = self.dimensions_of(from, &file, object);
                break;
            }
        }
        let taken = found.iter().filter_map(|attribute| {
            let name = attribute::check_name(&attribute.name).ok()?;
            let value = attribute.value.as_ref().ok()?;
            let new = attribute::from_value(name, value)?;
            let is_free = format.rules().refuses_attribute(name).is_none();
            is_free.then(|| (record::key(object, name), file_of(new)))
        });
        Ok(taken.chain(dimensions).collect())
    }

    /// Returns the dimensions of a variable as those that it is given at another key, if it has some and can have them
    /// there.
    fn dimensions_of(
        &self,
        from: &str,
        file: &Arc<dyn VirtualFile>,
        to: &str,
    ) -> Option<(String, NewFile)> {
        let info = file.info().ok()?;
        let given: Vec<String> = serde_json::from_value(info["axes"].clone()).ok()?;
        let shape: Vec<u64> = serde_json::from_value(info["shape"].clone()).ok()?;
        let own = from.rsplit('/').next().unwrap_or(from);
        // A coordinate is another dimension's, or none's, under another name.
        let is_coordinate = given.len() == 1 && given[0] == own;
        let fits = self.view.named_dimensions(to, &shape, &given).is_ok();
        let key = record::key(to, ATTRIBUTE);
        (fits && !is_coordinate).then(|| (key, file_of(given_dimensions(&given))))
    }

    fn node(&self, path: &PathNames) -> Result<Option<Node>> {
        let Some((last, above)) = path.split_last() else {
            return Ok(Some(Node::Directory(self.view.root())));
        };
        match self.directory(above)? {
            Some(dir) => dir.lookup(last),
            None => Ok(None),
        }
    }
}

/// Returns the attribute by which a layer gives an object dimensions.
fn given_dimensions(given: &[String]) -> NewAttribute {
    NewAttribute {
        name: ATTRIBUTE.to_owned(),
        value: list_of(given),
    }
}

/// Returns the file of a layer that holds an attribute.
fn file_of(new: NewAttribute) -> NewFile {
    let mut file = NewFile::default();
    file.mark_root(new);
    file
}
