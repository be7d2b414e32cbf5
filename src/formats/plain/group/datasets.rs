//! Datasets of a group: as one file, or as a directory where elements have no common width.

use std::sync::{Arc, OnceLock};

use super::{GroupDirectory, GroupListing};
use crate::dataset::opened::OpenStore;
use crate::dataset::text;
use crate::formats::plain::array::ArrayFile;
use crate::formats::plain::text::TextDirectory;
use crate::hdf5::{Dataset, ElementType, SequenceArray};
use crate::tree::Node;

impl GroupDirectory {
    pub(super) fn add_dataset(
        &self,
        store: &Arc<OpenStore>,
        name: &[u8],
        dataset: Dataset,
        to: &mut GroupListing,
    ) {
        let file = Arc::new(ArrayFile {
            store: store.clone(),
            dataset,
            group: self.group.clone(),
            name: name.into(),
            kind: to.kind,
            size: OnceLock::new(),
        });
        match text::is_over_limit(store, &file.dataset) {
            Ok(true) => {
                let directory = Arc::new(TextDirectory::of_text(file));
                to.entries
                    .push((self.visible(name, ""), Node::Directory(directory)));
            }
            Err(e) if e.is_passing() => to.passing = Some(e),
            // A text dataset that cannot be measured says so when it is opened.
            Ok(false) | Err(_) => to
                .entries
                .push((self.visible(name, ".npy"), Node::File(file))),
        }
    }

    pub(super) fn add_sequences(
        &self,
        store: &Arc<OpenStore>,
        name: &[u8],
        addr: u64,
        sequences: SequenceArray,
        to: &mut GroupListing,
    ) {
        let SequenceArray { dtype, shape } = sequences;
        let element = ElementType::Text {
            fixed: None,
            utf8: false,
        };
        let file = ArrayFile {
            store: store.clone(),
            dataset: Dataset {
                addr,
                element,
                shape,
                outside: false,
            },
            group: self.group.clone(),
            name: name.into(),
            kind: to.kind,
            size: OnceLock::new(),
        };
        let directory = Arc::new(TextDirectory::of_sequences(file, dtype));
        to.entries
            .push((self.visible(name, ""), Node::Directory(directory)));
    }
}
