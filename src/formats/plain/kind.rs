//! Groups that are more than groups of plain HDF5: what another format makes of one that bears its mark.

use std::collections::HashMap;
use std::sync::Arc;

use super::group::GroupDirectory;
use crate::dataset::opened::OpenStore;
use crate::error::Result;
use crate::hdf5::{Attribute, GroupMembers, Value};
use crate::tree::VirtualFile;

/// A kind of group, in any HDF5 file.
pub trait GroupKind: Send + Sync {
    /// The name of the format.
    fn name(&self) -> &'static str;

    /// The member that marks a group as one of this kind; it is not shown.
    fn mark(&self) -> &'static [u8];

    /// Returns what is shown of a group that bears the mark; `None`, with a note, if it is of this kind after all not.
    fn view(
        &self,
        store: &OpenStore,
        group: u64,
        members: &GroupMembers,
        notes: &mut Vec<String>,
    ) -> Result<Option<GroupView>>;

    /// Returns the file that stands beside the directory of a composite, and its suffix.
    fn archive(&self, composite: &GroupDirectory) -> Result<(&'static str, Arc<dyn VirtualFile>)>;
}

/// The part of a group that a format shows beside what plain HDF5 shows.
#[derive(Default)]
pub struct GroupView {
    /// Attributes of the mark that are shown as files.
    pub values: Vec<Attribute>,
    /// Groups below that are one object each, by their addresses: their attributes that are shown as files in them.
    pub composites: HashMap<u64, Vec<(&'static str, Value)>>,
}

/// The kinds of groups that are looked for.
pub type Kinds = &'static [&'static dyn GroupKind];

/// A group that is one object of a kind of group, with the attributes that are shown as files in it.
#[derive(Clone)]
pub struct Composite {
    /// The kind of group.
    pub kind: &'static dyn GroupKind,
    /// Small arrays, with their names.
    pub values: Vec<(&'static str, Value)>,
}
