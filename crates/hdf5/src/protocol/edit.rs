//! What the editing worker makes: changes to a new file, step by step, with the objects of other files that they take;
//! and a new file of links, which shows what stands in a store and in the files of its layers as one tree of objects.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::create::FilterSpec;
use npyfs_io::file::Identity;
use npyfs_io::file::members::Layout;

/// Attribute of an object: when it was written, in nanoseconds since 1970 (I64). It has a meaning in files with
/// `TIMES`.
pub const TIME: &[u8] = b"npyfs_time";

/// Attribute of the root group: the time of all objects that have none of their own, as above.
pub const TIMES: &[u8] = b"npyfs_times";

/// The name of a new object in the root group until it takes the place of the one it is made from.
pub const WORKPLACE: &[u8] = b"npyfs_export";

/// The attribute of the root group that says of which files a publication consists, as JSON.
pub const PUBLISHED: &str = "npyfs_published";

/// Names from the root group to an object.
pub type ObjectPath = Vec<Vec<u8>>;

/// The meaning of attributes to the formats.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Holders {
    /// The own names of datasets whose attributes are objects of the group that they lie in: an object that a path
    /// names may be such an attribute.
    pub datasets: Vec<Vec<u8>>,
    /// The names of attributes in which a group lists members.
    pub lists: Vec<Vec<u8>>,
}

/// A file that is copied from: its path, and its device and inode, as the path may lead elsewhere by the time it is
/// opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    path: Vec<u8>,
    identity: (u64, u64),
}

impl SourceFile {
    /// Names the file at `path`, whose metadata are `found`.
    pub fn new(path: &Path, found: &Metadata) -> Self {
        Self {
            path: path.as_os_str().as_bytes().to_vec(),
            identity: (found.dev(), found.ino()),
        }
    }

    /// Names the file at `path` that has this identity.
    pub fn identified(path: &Path, identity: &Identity) -> Self {
        Self {
            path: path.as_os_str().as_bytes().to_vec(),
            identity: (identity.dev, identity.ino),
        }
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }

    /// Returns the device and the inode of the file.
    pub fn identity(&self) -> (u64, u64) {
        self.identity
    }
}

/// An object of a file that is copied from, by its address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceObject {
    /// The file.
    pub file: SourceFile,
    /// The address of the object.
    pub addr: u64,
}

/// A run of elements of a dataset of rank 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The dataset; `None`: zeros.
    pub from: Option<SourceObject>,
    /// The first element.
    pub start: u64,
    /// The number of elements.
    pub count: u64,
    /// A number that is added to each.
    pub add: i64,
}

/// The properties of a new file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileForm {
    /// Data of this many bytes or more begins at a multiple of this number.
    pub alignment: Option<u64>,
    /// The file is divided into pages of this many bytes, of metadata or of elements; its chunk indexes and groups are
    /// those that libhdf5 has since 1.10.
    pub page: Option<u64>,
    /// Bytes in front of what libhdf5 writes: none, or a power of two from 512 on.
    pub user_block: u64,
}

/// One change to the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum EditStep {
    /// Takes out the object at a path, if there is one.
    Remove {
        /// The path.
        path: ObjectPath,
    },
    /// Copies the object at a path of another file to the same path, in the place of what is there.
    Copy {
        /// The file that it is copied from.
        from: SourceFile,
        /// The path in both files.
        path: ObjectPath,
        /// The time at which the object was written, in nanoseconds since 1970. It is noted in a file with times.
        time: Option<i64>,
    },
    /// Copies an attribute of the root group of another file to the object at a path, in the place of one of that name.
    Attribute {
        /// The file that it is copied from; `None`: the attribute is removed, if there is one.
        from: Option<SourceFile>,
        /// The path of the object; empty for the root group.
        path: ObjectPath,
        /// The name of the attribute.
        name: Vec<u8>,
    },
    /// Has the dimensions of a dataset be those of dimension scales, as netCDF-4 notes it.
    Dimensions {
        /// The path of the dataset.
        path: ObjectPath,
        /// The paths of the scales, one for each dimension; none: its dimensions have no names.
        scales: Vec<ObjectPath>,
    },
    /// Makes a group with the attributes of another; what is in that one stays there.
    Group {
        /// The group that gives attributes.
        like: Option<SourceObject>,
        /// The path of the new one; empty for the root group, which there is already.
        path: ObjectPath,
        /// Attributes that are set to other integers.
        marks: Vec<(String, i64)>,
    },
    /// Makes a contiguous dataset of rank 1 out of pieces of others, with type and attributes of one of them.
    Join {
        /// The dataset that gives type and attributes.
        like: SourceObject,
        /// The path of the new one; nothing is there.
        path: ObjectPath,
        /// The elements, in order.
        pieces: Vec<Piece>,
    },
    /// Sets the time of the object at a path, and of what is below it, in nanoseconds since 1970; nothing if there is
    /// none, or if the file has no times.
    Time {
        /// The path.
        path: ObjectPath,
        /// The time.
        time: i64,
    },
    /// Makes it a file with times, and sets the time of all objects that have none of their own, in nanoseconds since
    /// 1970, unless it is one.
    Times(i64),
    /// Writes the dataset at a path again, in another form. One that has several links stays as it is.
    Recode {
        /// The path.
        path: ObjectPath,
        /// The form.
        form: NewForm,
        /// Shape of the blocks in which it is read.
        block: Vec<u64>,
    },
    /// Makes a dataset without elements in the workplace, with type, extent and attributes of that at a path.
    Declare {
        /// The path.
        path: ObjectPath,
        /// The form.
        form: NewForm,
    },
    /// Moves the object in the workplace to a path, in the place of the dataset there.
    Replace {
        /// The path.
        path: ObjectPath,
    },
    /// Fills the file, which is empty, with all objects of another, and so leaves its unused space behind.
    Gather {
        /// The path of the other file.
        from: Vec<u8>,
        /// The places of the members, if the object is stored as several.
        members: Option<Layout>,
        /// The properties of the new one.
        form: FileForm,
    },
}

/// The form in which a dataset is written again.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NewForm {
    /// Shape of a chunk; `None`: contiguous, which does not grow.
    pub chunk: Option<Vec<u64>>,
    /// Filters, in the order of writing.
    pub filters: Vec<FilterSpec>,
    /// The index of its chunks is one of those that libhdf5 has since 1.10.
    pub recent: bool,
}

impl EditStep {
    /// Returns the path of the object that it changes, if it is one.
    pub fn path(&self) -> Option<&ObjectPath> {
        match self {
            Self::Remove { path }
            | Self::Copy { path, .. }
            | Self::Attribute { path, .. }
            | Self::Dimensions { path, .. }
            | Self::Group { path, .. }
            | Self::Join { path, .. }
            | Self::Time { path, .. }
            | Self::Recode { path, .. }
            | Self::Declare { path, .. }
            | Self::Replace { path } => Some(path),
            Self::Times(_) | Self::Gather { .. } => None,
        }
    }

    /// Returns about how many bytes pieces have together.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Join { pieces, .. } => {
                let rows = pieces.iter().map(|piece| piece.count);
                rows.fold(0, u64::saturating_add).saturating_mul(8)
            }
            _ => 0,
        }
    }
}

/// Returns a path as [`EditStep::Gather`] has it.
pub fn source(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

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
