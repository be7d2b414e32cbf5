//! Groups that are more than groups of plain HDF5: what another format makes of one that bears its mark.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value as Json;

use super::group::GroupDirectory;
use crate::error::Result;
use crate::hdf5::{Attribute, GroupMembers, Value};
use crate::tree::VirtualFile;

/// A kind of group, in any HDF5 file.
pub trait GroupKind: Send + Sync {
    /// The name of the format.
    fn name(&self) -> &'static str;

    /// The member that marks a group as one of this kind; it is not shown. `None`: groups are known by something else.
    fn mark(&self) -> Option<&'static [u8]> {
        None
    }

    /// Returns what is shown of a group; `None`, with a note if it seemed to be, if it is not of this kind.
    fn view(
        &self,
        group: &GroupDirectory,
        members: &GroupMembers,
        notes: &mut Vec<String>,
    ) -> Result<Option<GroupView>>;
}

/// The part of a group that a format shows beside what plain HDF5 shows.
#[derive(Default)]
pub struct GroupView {
    /// Attributes of the mark that are shown as files.
    pub values: Vec<Attribute>,
    /// Groups below that are one object each, by their addresses.
    pub composites: HashMap<u64, Composite>,
    /// What is not shown beside the members, by their names, and why.
    pub left_out: Vec<(Vec<u8>, String)>,
    /// Facts for `info`.
    pub info: Vec<(&'static str, Json)>,
    /// The group itself is one of plain HDF5: only objects in it are of the kind.
    pub is_plain: bool,
}

/// The kinds of groups that are looked for.
pub type Kinds = &'static [&'static dyn GroupKind];

/// Makes the file that stands beside the directory of a composite, and its suffix.
pub type Beside =
    dyn Fn(&GroupDirectory) -> Result<(&'static str, Arc<dyn VirtualFile>)> + Send + Sync;

/// A group that is one object of a kind of group.
#[derive(Clone)]
pub struct Composite {
    /// The name of the kind of group.
    pub kind: &'static str,
    /// Small arrays that are shown as files in it, with their names.
    pub values: Vec<(&'static str, Value)>,
    /// The file that stands beside its directory.
    pub beside: Arc<Beside>,
}
