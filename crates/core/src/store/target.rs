//! The seam of a writable mount: below it objects are stored, above it programs write files.
//!
//! `fs/write` knows names, handles and scratch files, and asks a target what a name would be and to store
//! what is finished. A target knows objects: which files of the mount make one, what may be stored and
//! where it goes. It never sees a half-written file, an inode or a handle.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value as Json;

use super::part::{Part, PartPlace};
use crate::tree::{Directory, name};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::content::scratch::Scratch;
use npyfs_io::dir::Dir;

/// A path in the mount, from the root down, as its directories show the names.
pub type PathNames = [Vec<u8>];

/// Refuses a name that a mount would show otherwise, or not at all; see `tree::name::check`.
pub fn check_name(stem: &[u8], suffix: &str, as_shown: Vec<u8>) -> Result<()> {
    let checked = name::check(stem, suffix, as_shown);
    checked.map_err(|why| {
        let shown = String::from_utf8_lossy(stem);
        let why = format!(
            "the name {:?} cannot be stored: {why}",
            format!("{shown}{suffix}")
        );
        Error::new(ErrorKind::Os(libc::EINVAL), why)
    })
}

/// The use that a name may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// A file of that name is stored, as soon as its object is complete.
    Stored(PartPlace),
    /// No object has such a name: the file is kept for this mount only, until it is renamed.
    Scratch,
}

/// A change of an attribute.
#[derive(Clone, Copy, Debug)]
pub enum AttributeChange<'a> {
    /// The attribute gets this value.
    Set(&'a [u8]),
    /// The attribute gets this value and must not be there before.
    Add(&'a [u8]),
    /// The attribute gets this value and must be there before.
    Replace(&'a [u8]),
    /// The attribute goes.
    Remove,
}

/// The outcome of making a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectoryOutcome {
    /// The directory is stored, empty.
    Stored,
    /// The directory may become an object; it is kept for this mount only, until its members are there.
    Scratch,
}

/// The effect on an object when one of its files is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The object is deleted, too, with all its files.
    Object,
    /// The object loses a member, the files at and below this path inside it, and is stored anew from all others.
    Member(String),
}

/// A part of an object that is not complete.
pub struct Unstored {
    /// The file.
    pub part: Part,
    /// The time of its last modification.
    pub time: SystemTime,
    /// The earlier state as which the content was kept, if it is the same still.
    pub kept: Option<u64>,
}

/// A part of an object that is not complete, which an earlier mount kept.
pub struct Restored {
    /// In the mount.
    pub path: Vec<Vec<u8>>,
    /// The bytes.
    pub content: Scratch,
    /// The time of its last modification.
    pub time: SystemTime,
    /// The state as which the content was kept.
    pub kept: u64,
}

/// An object that is not complete, and that an earlier mount kept.
pub struct IncompleteObject {
    /// Key of the object.
    pub object: String,
    /// The members that were kept.
    pub parts: Vec<Restored>,
    /// Names of the members that are missing.
    pub missing: Vec<String>,
    /// The reason why it cannot be stored, if no member is missing.
    pub why: Option<String>,
}

/// The outcome of storing parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    /// The object is stored, durably from the next `sync` on, and the tree shows it.
    Stored,
    /// Nothing was stored: these members are missing.
    Incomplete(Vec<String>),
}

/// An object that is not complete, in one line.
pub fn describe_incomplete(object: &str, missing: &[String], why: Option<&str>) -> String {
    match (missing, why) {
        ([], Some(why)) => format!("{object}: its parts do not fit each other: {why}"),
        ([], None) => format!("{object}: its parts do not fit each other"),
        _ => format!("{object}: {} missing", missing.join(", ")),
    }
}

/// The directory of a checkout whose store keeps its changes itself, held for as long as the value lives: no other
/// process has it.
pub trait CheckoutDirectory: Send + Sync {
    /// Returns the directory.
    fn dir(&self) -> &Dir;

    /// Removes the directory if it holds nothing but `files`, and the directory of all checkouts if it is empty then.
    fn remove(&self, files: &[&str]) -> Result<()>;
}

/// A directory that one process made for itself: it needs no lock, and its maker removes it.
impl CheckoutDirectory for Dir {
    fn dir(&self) -> &Dir {
        self
    }

    fn remove(&self, _files: &[&str]) -> Result<()> {
        Ok(())
    }
}

/// The store of a writable mount for what is finished. All methods may be called from any thread. A call that
/// fails changes nothing.
pub trait Target: Send + Sync {
    /// The tree of what is stored: the store below with all changes.
    fn root(&self) -> Arc<dyn Directory>;

    /// Returns whether anything can be changed in a directory or below it.
    fn is_writable(&self, _path: &PathNames) -> bool {
        true
    }

    /// Returns what a file of that path would be; an error where no file can be made.
    fn role(&self, path: &PathNames) -> Result<Role>;

    /// An empty scratch file on the disk that things are stored on.
    fn scratch(&self) -> Scratch;

    /// A directory on that disk, to ask for free space.
    fn disk(&self) -> &Path;

    /// Returns the directory in which the log of a mount outlives it, if there is one.
    fn log_directory(&self) -> Option<Dir> {
        None
    }

    /// Stores one object from all its parts, in the place of what has its key now. EINVAL and the like if they
    /// cannot be such an object.
    fn store(&self, object: &str, parts: &[Part], time: SystemTime) -> Result<StoreOutcome>;

    /// Stores an object as `store` does and, if it is complete, deletes others with it: durably when it returns, and
    /// nothing is shown before.
    fn replace(
        &self,
        object: &str,
        parts: &[Part],
        time: SystemTime,
        gone: &[String],
    ) -> Result<StoreOutcome>;

    /// Returns whether `store` takes no longer than reading what is stored.
    fn stores_quickly(&self) -> bool {
        false
    }

    /// Returns what the deletion of a stored file means for its object. An error, ENOTEMPTY for what others need, if it
    /// may not be deleted.
    fn deletion(&self, _place: &PartPlace) -> Result<Deletion> {
        Ok(Deletion::Object)
    }

    /// Deletes an object, in all its forms.
    fn remove(&self, object: &str) -> Result<()>;

    /// Gives an object another key without its content going through the mount, where that can be done;
    /// `false` if it cannot: then it is stored anew and removed.
    fn rename(&self, _from: &str, _to: &str) -> Result<bool> {
        Ok(false)
    }

    /// Sets the time of an object; `false` if that needs the object to be stored anew.
    fn set_time(&self, object: &str, time: SystemTime) -> Result<bool>;

    /// Sets an attribute of the object or group at a path, or removes it: durable when it returns. The value is a text,
    /// as mounts show it.
    fn set_attribute(
        &self,
        _path: &PathNames,
        _name: &[u8],
        _change: AttributeChange<'_>,
    ) -> Result<()> {
        let why = "this store has no attributes that could be changed";
        Err(Error::new(ErrorKind::Os(libc::EPERM), why))
    }

    /// Makes a directory where there is nothing.
    fn make_directory(&self, path: &PathNames, time: SystemTime) -> Result<DirectoryOutcome>;

    /// Removes a stored directory, which is empty, or an object that is shown as a directory.
    fn remove_directory(&self, path: &PathNames) -> Result<()>;

    /// Keeps the parts of an object that is not complete for later mounts, in the place of those that were kept
    /// before; without parts it is forgotten. Durable when it returns. Answers as what each part was kept.
    fn keep(
        &self,
        _object: &str,
        parts: &[Unstored],
        _missing: &[String],
        _why: Option<&str>,
    ) -> Result<Vec<u64>> {
        match parts {
            [] => Ok(Vec::new()),
            _ => Err(Error::new(
                ErrorKind::Os(libc::EOPNOTSUPP),
                "no such objects",
            )),
        }
    }

    /// Returns what earlier mounts kept.
    fn kept(&self) -> Vec<IncompleteObject> {
        Vec::new()
    }

    /// Returns once everything that was stored would survive a loss of power.
    fn sync(&self) -> Result<()>;

    /// Commits what is stored while the mount goes on, and returns the report; the request and the report are those of
    /// the target's own kind.
    fn commit(&self, _request: &Json) -> Result<Json> {
        let why = "what is written here cannot be committed while it is mounted";
        Err(Error::new(ErrorKind::Os(libc::EOPNOTSUPP), why))
    }

    /// Writes a line to the log of the mount, about something for which no program waits.
    fn note(&self, _line: &str) {}

    /// Returns what `status.json` says of the checkout.
    fn status(&self) -> Json;
}
