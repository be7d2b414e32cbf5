//! Objects that an export has in another form than their layers: as the library of their format would write them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::checkout::records::attribute;
use crate::checkout::view::View;
use crate::store::encode::ObjectKey;
use crate::store::encode::array::NpyArray;
use crate::store::object;
use crate::tree::{Directory, Node};
use npyfs_base::error::{Result, readable};
use npyfs_hdf5::Creator;
use npyfs_hdf5::program::program;
use npyfs_io::dir::Dir;
use npyfs_io::storage::Disk;

/// Returns the new files, by the keys of their objects, of all entries at these keys. `place` makes the directory for them.
pub fn encoded<'a>(
    view: &Arc<View>,
    keys: impl Iterator<Item = &'a str>,
    place: &dyn Fn() -> Result<Dir>,
) -> Result<BTreeMap<String, PathBuf>> {
    let (mut made, mut files) = (None, BTreeMap::new());
    for key in keys.filter(|key| attribute::split(key).is_none() && view.is_stored(key)) {
        let shown = view.shown(key);
        let (Some((name, above)), Some(depth)) = (shown.split_last(), view.store_depth(&shown))
        else {
            continue;
        };
        let Some(dir) = view.directory(above)? else {
            continue;
        };
        let format = view.formats().of(&*dir)?;
        let Some(writing) = format.writing() else {
            continue;
        };
        // What cannot be read is named by the export.
        let Some(array) = readable(array(&*dir, name))?.flatten() else {
            continue;
        };
        let inside: Vec<&str> = key.split('/').skip(depth).collect();
        let inside = ObjectKey::of_path(&inside.join("/"))?;
        let Some(new) = writing.exported(&*dir, &inside, &array)? else {
            continue;
        };
        let to = match &made {
            Some(dir) => dir,
            None => made.insert(place()?),
        };
        let name = files.len().to_string();
        let creator = Creator::worker(program(), &to.path_of_descriptor());
        object::write((to, &name), &new, &creator, &Disk)?;
        files.insert(key.to_owned(), to.path().join(name));
    }
    Ok(files)
}

/// Returns an array that is shown as one file and nothing else: what was written in parts has the form that its writer
/// wants.
fn array(dir: &dyn Directory, name: &[u8]) -> Result<Option<NpyArray>> {
    match (
        dir.lookup(name)?,
        dir.lookup(&[name, &b".npy"[..]].concat())?,
    ) {
        (None, Some(Node::File(file))) => NpyArray::shown(&file.open()?).map(Some),
        _ => Ok(None),
    }
}
