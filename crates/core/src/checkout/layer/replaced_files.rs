//! Files of replaced versions: they stay as long as a view may still show the old version.
//!
//! A change is in the layer, and possibly on the disk, before the view shows it. A reader in between is given the old
//! file.

use std::collections::HashSet;
use std::sync::Arc;

use super::Layer;
use super::pending_changes::PendingChanges;
use crate::checkout::records::index::StoredObject;

/// Previous files of objects, which wait to be removed.
#[derive(Default)]
pub(super) struct Replaced {
    /// Paths of objects of which the view may show an old version.
    showing: Vec<String>,
    files: Vec<(String, Arc<StoredObject>)>,
}

/// While this exists, replaced files of some objects are not removed.
pub struct Showing<'a> {
    layer: &'a Layer,
    paths: Vec<String>,
}

impl Layer {
    /// Must be held while objects are changed in the layer and then in the view.
    pub fn showing(&self, paths: impl IntoIterator<Item = String>) -> Showing<'_> {
        let paths: Vec<String> = paths.into_iter().collect();
        let mut replaced = self.replaced.lock();
        replaced.showing.extend(paths.iter().cloned());
        drop(replaced);
        Showing { layer: self, paths }
    }

    /// Removes these files of objects, unless the view may still show them. Readers have them open.
    pub(super) fn remove_replaced(
        &self,
        pending: &PendingChanges,
        files: impl IntoIterator<Item = (String, Arc<StoredObject>)>,
    ) {
        let mut replaced = self.replaced.lock();
        replaced.files.extend(files);
        let Replaced { showing, files } = &mut *replaced;
        let gone: Vec<_> = files
            .extract_if(.., |(path, _)| !showing.contains(path))
            .collect();
        // Other objects may be in the same file.
        let mut stays: HashSet<u64> = files.iter().map(|(_, stored)| stored.file).collect();
        drop(replaced);
        for (_, stored) in gone {
            let is_used = self.published.contains(&stored.file) || pending.uses(stored.file);
            if stays.insert(stored.file) && !is_used {
                // If this fails, the file is removed when the layer is next opened.
                let _ = self.storage.remove(&self.dir, &stored.name());
            }
        }
    }
}

impl Drop for Showing<'_> {
    fn drop(&mut self) {
        let mut replaced = self.layer.replaced.lock();
        for path in &self.paths {
            if let Some(at) = replaced.showing.iter().position(|known| known == path) {
                replaced.showing.swap_remove(at);
            }
        }
        drop(replaced);
        self.layer.remove_replaced(&self.layer.pending.lock(), []);
    }
}
