//! Groups with an additional meaning: the view of another format on a group that bears its mark.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value as Json;

use super::GroupDirectory;
use crate::tree::VirtualFile;
use npyfs_base::error::Result;
use npyfs_hdf5::{Attribute, GroupMembers, Value};

/// A kind of group, in any HDF5 file.
pub trait GroupKind: Send + Sync {
    /// The name of the format.
    fn name(&self) -> &'static str;

    /// The member that marks a group as one of this kind; it is not shown. `None` if groups are recognized otherwise.
    fn mark(&self) -> Option<&'static [u8]> {
        None
    }

    /// The attribute that marks a group as one of this kind; `None` if groups are recognized otherwise.
    fn attribute(&self) -> Option<&'static str> {
        None
    }

    /// Returns whether a dataset is listed behind all others, since it can only be deleted after them.
    fn comes_last(&self, _name: &[u8]) -> bool {
        false
    }

    /// Returns the view of a group; `None` if it is not of this kind, with a note if it appeared to be.
    fn view(
        &self,
        group: &GroupDirectory,
        members: &GroupMembers,
        notes: &mut Vec<String>,
    ) -> Result<Option<GroupView>>;
}

/// The entries that a format adds to a group of plain HDF5.
#[derive(Default)]
pub struct GroupView {
    /// Attributes of the mark that are shown as files.
    pub values: Vec<Attribute>,
    /// Groups below that are single objects, by their addresses.
    pub composites: HashMap<u64, Composite>,
    /// Objects other than members that are not shown, by name, with the reasons.
    pub left_out: Vec<(Vec<u8>, String)>,
    /// Facts for `info`.
    pub info: Vec<(&'static str, Json)>,
    /// Whether the group itself is plain HDF5, and only objects in it are of the kind.
    pub is_plain: bool,
}

/// The kinds of groups to check for.
pub type Kinds = &'static [&'static dyn GroupKind];

/// Makes the file beside the directory of a composite, and its suffix.
pub type Beside =
    dyn Fn(&GroupDirectory) -> Result<(&'static str, Arc<dyn VirtualFile>)> + Send + Sync;

/// A group that is a single object of some kind.
#[derive(Clone)]
pub struct Composite {
    /// The name of the kind of group.
    pub kind: &'static str,
    /// Small arrays that are shown as files in it, with their names.
    pub values: Vec<(&'static str, Value)>,
    /// Makes the file beside its directory.
    pub beside: Arc<Beside>,
}
