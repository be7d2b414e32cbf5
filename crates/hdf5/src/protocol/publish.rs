//! A new file of links: what stands in a store and in the files of its layers, as one tree of objects.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::edit::{EditStep, ObjectPath, SourceFile};

/// The attribute of the root group that says of which files a publication consists, as JSON.
pub const PUBLISHED: &str = "npyfs_published";

/// A file of links that is to be made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewPublication {
    /// The files that are linked to. The first is the store's, or the first ones are.
    pub files: Vec<LinkedFile>,
    /// For a store of several files: the steps that join its objects in one, those of groups and datasets alone.
    pub joined: Option<Vec<EditStep>>,
    /// The entries of the layers, by path. An entry hides everything that the store has at its path and below.
    pub changes: Vec<(ObjectPath, PublishedChange)>,
    /// The names of attributes in which a group lists members.
    pub lists: Vec<Vec<u8>>,
    /// The content of the attribute [`PUBLISHED`] besides the linked files: a JSON object.
    pub about: String,
}

/// A file that is linked to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkedFile {
    /// The file.
    pub from: SourceFile,
    /// Its path as links have it: from the directory of the new file.
    pub name: Vec<u8>,
    /// The entry of the file in the attribute [`PUBLISHED`], if the file is linked to: JSON.
    pub about: String,
}

/// The entry of a layer for an object.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum PublishedChange {
    /// Nothing is there.
    Deleted,
    /// The object is at the same path in the file of this number.
    Stored(usize),
}

/// Objects that have no counterpart, and why.
pub type Unpublished = Vec<(ObjectPath, String)>;

/// The outcome of a publication.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PublishedLinks {
    /// Objects that have no counterpart, and why.
    pub lost: Unpublished,
    /// Numbers of the files that are linked to, and of the store's.
    pub used: BTreeSet<usize>,
}
