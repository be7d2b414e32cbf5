//! A file of a mount as a part of the object that it belongs to.

use std::sync::Arc;

use npyfs_io::content::Content;

/// The part of an object that a file is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PartPlace {
    /// The object's key: its path in the mount, without the suffix of the last name.
    pub object: String,
    /// The file's path inside the object without its suffix; empty for a file that is the whole object.
    pub member: String,
    /// `.npy`, `.npz`, `.txt`, `.bin` or `.keys`.
    pub suffix: &'static str,
}

/// A file that is to be stored.
#[derive(Clone)]
pub struct Part {
    /// The object that it belongs to, and its part of that.
    pub place: PartPlace,
    /// Whole and unchanged for as long as the call takes.
    pub content: Arc<dyn Content>,
    /// It is what is stored already, and nothing that was written now.
    pub stored: bool,
}
