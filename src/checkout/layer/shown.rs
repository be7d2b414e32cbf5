//! Files of versions that were replaced for good: they stay as long as the version may still be shown.
//!
//! A change is in the layer before the view shows it, and the disk may have it earlier as well. Whoever looks in between is
//! led to the old file.

use std::collections::HashSet;

use super::super::index::StoredObject;
use super::super::pending_changes::PendingChanges;
use super::Layer;

/// Files that objects had before, which wait to be removed.
#[derive(Default)]
pub(super) struct Replaced {
    /// Paths of objects of which the view may show an old version.
    showing: Vec<String>,
    files: Vec<(String, StoredObject)>,
}

/// As long as it lives, files of some objects stay that were replaced.
pub struct Showing<'a> {
    layer: &'a Layer,
    paths: Vec<String>,
}

impl Layer {
    /// To be held by whoever changes objects in the layer and then in what is shown of it.
    pub fn showing(&self, paths: impl IntoIterator<Item = String>) -> Showing<'_> {
        let paths: Vec<String> = paths.into_iter().collect();
        let mut replaced = self.replaced.lock().unwrap_or_else(|e| e.into_inner());
        replaced.showing.extend(paths.iter().cloned());
        drop(replaced);
        Showing { layer: self, paths }
    }

    /// Nobody needs these files of objects once others are shown. Readers have them open.
    pub(super) fn remove_replaced(
        &self,
        pending: &PendingChanges,
        files: impl IntoIterator<Item = (String, StoredObject)>,
    ) {
        let mut replaced = self.replaced.lock().unwrap_or_else(|e| e.into_inner());
        replaced.files.extend(files);
        let Replaced { showing, files } = &mut *replaced;
        let gone: Vec<_> = files
            .extract_if(.., |(path, _)| !showing.contains(path))
            .collect();
        // Others may be in the same file.
        let mut stays: HashSet<u64> = files.iter().map(|(_, stored)| stored.file).collect();
        drop(replaced);
        for (_, stored) in gone {
            let is_used = self.published.contains(&stored.file) || pending.uses(stored.file);
            if stays.insert(stored.file) && !is_used {
                // What cannot be removed now goes when the layer is next opened.
                let _ = self.storage.remove(&self.dir, &stored.name());
            }
        }
    }
}

impl Drop for Showing<'_> {
    fn drop(&mut self) {
        let mut replaced = self
            .layer
            .replaced
            .lock()
            .unwrap_or_else(|e| e.into_inner());
        for path in &self.paths {
            if let Some(at) = replaced.showing.iter().position(|known| known == path) {
                replaced.showing.swap_remove(at);
            }
        }
        drop(replaced);
        self.layer.remove_replaced(&self.layer.pending(), []);
    }
}
