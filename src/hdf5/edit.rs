//! Changes to a new file: a copy of a store file, with objects of a checkout put in and others taken out.
//!
//! Objects are copied as they are stored: chunks are not decoded, types and attributes stay what they are. The
//! file that is changed has no reader yet; the files that are copied from are only read.

mod client;
mod join;
pub(super) mod lists;
mod rewrite;

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::H5Error;
pub use super::ffi::FileForm;
use super::ffi::{self, Failure, FilterSpec, Id, RawLink};
use crate::io::file::members::Layout;
use crate::io::file::{Identity, StoreFile};
pub use client::{Editor, Elements};
pub use join::{Piece, SourceObject};
use rewrite::free_workplace;

/// Attribute of an object: when it was written, in nanoseconds since 1970 (I64).
pub const TIME: &[u8] = b"npyfs_time";

/// Attribute of the root group: the time of all objects that have none of their own, as above.
pub(super) const TIMES: &[u8] = b"npyfs_times";

/// Bytes of an attribute that every object has room for: its header holds 64 KiB.
pub(super) const MAX_SMALL_ATTRIBUTE: usize = 60_000;

/// The name of a new object in the root group until it takes the place of the one it is made from.
const WORKPLACE: &[u8] = b"npyfs_export";

/// Names from the root group to an object.
pub type ObjectPath = Vec<Vec<u8>>;

/// What attributes mean to the formats.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Holders {
    /// The own names of datasets whose attributes are objects of the group that they lie in: an object that a path names may be
    /// such an attribute.
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

    /// Opens the file, and refuses another one at its path.
    pub(super) fn open(&self) -> Result<Id, Failure> {
        let path = OsStr::from_bytes(&self.path);
        let failed = |e: std::io::Error| Failure(format!("{}: {e}", path.display()));
        let plain = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = File::options().read(true).custom_flags(plain).open(path);
        let file = file.map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        if (meta.dev(), meta.ino()) != self.identity || !meta.is_file() {
            let other = std::io::Error::other("it was replaced by another file");
            return Err(failed(other));
        }
        ffi::open_source(format!("/proc/self/fd/{}", file.as_raw_fd()).as_bytes())
    }
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
        /// The time at which the object was written, in nanoseconds since 1970; `None`: it is not noted.
        time: Option<i64>,
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
        /// Its elements, in order.
        pieces: Vec<Piece>,
    },
    /// Sets the time of the object at a path, and of what is below it, in nanoseconds since 1970; nothing if there is none.
    Time {
        /// The path.
        path: ObjectPath,
        /// The time.
        time: i64,
    },
    /// Sets the time of all objects that have none of their own, in nanoseconds since 1970, unless the file has one.
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
        /// Where its members are, if it is stored as several.
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

/// A dataset that could be written again.
pub struct Recodable {
    /// Its path.
    pub path: ObjectPath,
    /// Its own shape, without the dimensions of an array datatype.
    pub shape: Vec<u64>,
    /// Bytes of an element.
    pub element: u64,
    /// Type of the elements, as people write it.
    pub kind: String,
    addr: u64,
}

impl Recodable {
    /// Returns its address, whatever path leads to it.
    pub fn addr(&self) -> u64 {
        self.addr
    }
}

/// Changes `file` in this process; returns for each step the reason why it was refused, if it was.
pub(super) fn edit(
    file: &StoreFile,
    steps: &[EditStep],
    holders: &Holders,
) -> Result<Vec<Result<(), String>>, H5Error> {
    ffi::locked(|| {
        let held = file.file().map_err(H5Error::from)?;
        let path = held.path();
        let target = rewrite::open(path.as_bytes(), file.identity.size == 0, steps)?;
        let mut done = Vec::with_capacity(steps.len());
        for step in steps {
            done.push(apply(&target, step, holders).map_err(|e| H5Error::Damaged(step.about(&e)))?);
        }
        ffi::finish(target)?;
        Ok(done)
    })
}

impl EditStep {
    /// Returns the path of the object that it changes, if it is one.
    pub fn path(&self) -> Option<&ObjectPath> {
        match self {
            Self::Remove { path }
            | Self::Copy { path, .. }
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

    /// Formats a failure with the object that the step is about in front.
    fn about(&self, failure: &Failure) -> String {
        match self.path() {
            Some(path) => format!("{}: {failure}", String::from_utf8_lossy(&path.join(&b'/'))),
            None => failure.to_string(),
        }
    }
}

/// Does a step. It is refused, with the reason, if its object cannot be had; a failure, such as a full disk, is
/// one of the whole file.
pub(super) fn apply(
    target: &Id,
    step: &EditStep,
    holders: &Holders,
) -> Result<Result<(), String>, Failure> {
    match step {
        EditStep::Remove { path } => {
            remove_object(target, path, holders)?;
            lists::remove(target, path, holders).map(Ok)
        }
        EditStep::Copy { from, path, time } => {
            let source = match from.open() {
                Ok(source) => source,
                Err(e) => return Ok(Err(e.0)),
            };
            if ffi::exists(&source, path)? {
                let is_new = !ffi::exists(target, path)?;
                remove_object(target, path, holders)?;
                ffi::copy_object(&source, path, target, path)?;
                if is_new {
                    lists::add(target, path, holders)?;
                }
                // Its attributes are objects, and so would this be.
                let is_holder = path
                    .last()
                    .is_some_and(|name| holders.datasets.contains(name));
                return match time {
                    Some(time) if !is_holder => {
                        ffi::set_int_attribute(&ffi::open_at(target, path)?, TIME, *time).map(Ok)
                    }
                    _ => Ok(Ok(())),
                };
            }
            let Some(held) = held_object(&source, path, holders)? else {
                return Ok(Err("the file of the checkout does not have it".into()));
            };
            if !ffi::exists(target, &held.at)? {
                let missing = held.at.join(&b'/');
                let missing = String::from_utf8_lossy(&missing);
                return Ok(Err(format!("there is no {missing} that would hold it")));
            }
            remove_object(target, path, holders)?;
            if ffi::attribute_bytes(&held.holder, held.name)? > MAX_SMALL_ATTRIBUTE {
                make_room(target, &held.at)?;
            }
            let holder = ffi::open_at(target, &held.at)?;
            // Exports of earlier versions left it.
            if ffi::int_attribute(&holder, TIME)?.is_some() {
                ffi::remove_attribute(&holder, TIME)?;
            }
            ffi::copy_attribute(&held.holder, &holder, held.name).map(Ok)
        }
        EditStep::Group { like, path, marks } => join::group(target, like.as_ref(), path, marks),
        EditStep::Join { like, path, pieces } => join::join(target, like, path, pieces),
        EditStep::Time { path, time } => {
            // The attributes of a holder are objects, and so would this be.
            if path
                .last()
                .is_some_and(|name| holders.datasets.contains(name))
            {
                return Ok(Ok(()));
            }
            match own_object(target, path)? {
                Some(object) => ffi::set_int_attribute(&object, TIME, *time).map(Ok),
                None => Ok(Ok(())),
            }
        }
        EditStep::Times(time) => {
            let root = ffi::open_at(target, &[])?;
            match ffi::has_attribute(&root, TIMES)? {
                true => Ok(Ok(())),
                false => ffi::set_int_attribute(&root, TIMES, *time).map(Ok),
            }
        }
        EditStep::Recode { path, form, block } => {
            rewrite::recode(target, path, form, block).map(Ok)
        }
        EditStep::Declare { path, form } => rewrite::declare(target, path, form).map(Ok),
        EditStep::Replace { path } => rewrite::replace(target, path).map(Ok),
        EditStep::Gather { from, members, .. } => {
            let source = match members {
                Some(layout) => ffi::open_members(layout)?,
                None => ffi::open_source(from)?,
            };
            rewrite::gather(target, &source).map(Ok)
        }
    }
}

/// Makes the small dataset at a path anew, so that it has room for large attributes.
fn make_room(target: &Id, path: &ObjectPath) -> Result<(), Failure> {
    /// Bytes of the dataset.
    const MAX_BYTES: usize = 1 << 16;
    let old = ffi::open_at(target, path)?;
    let place = free_workplace(target)?;
    let ty = ffi::dataset_type(&old)?;
    let Some((shape, _)) = ffi::extent(&ffi::dataset_space(&old)?)? else {
        return Err(Failure("a dataset without elements".into()));
    };
    let start = vec![0; shape.len()];
    let elements = shape.iter().try_fold(1_u64, |n, &d| n.checked_mul(d));
    let bytes = elements.and_then(|n| n.checked_mul(ffi::size(&ty) as u64));
    if bytes.is_none_or(|bytes| bytes > MAX_BYTES as u64) {
        return Err(Failure("it is too large to be made anew".into()));
    }
    let data = ffi::read_block(&old, &ty, &start, &shape, ffi::size(&ty))?;
    let new = ffi::dataset_for_attributes(target, &place.join(&b'/'), &ty, &shape)?;
    ffi::write_all(&new, &ty, &shape, &data)?;
    copy_attributes(&old, &new)?;
    drop((old, new));
    ffi::unlink(target, path)?;
    ffi::rename(target, &place, path)
}

/// Copies all attributes of an object to another.
pub(super) fn copy_attributes(from: &Id, to: &Id) -> Result<(), Failure> {
    for (name, _) in ffi::attributes(from)? {
        ffi::copy_attribute(from, to, &name)?;
    }
    Ok(())
}

/// Opens the object at a path, if all its links are hard ones.
fn own_object(file: &Id, path: &ObjectPath) -> Result<Option<Id>, Failure> {
    let mut object = ffi::open_at(file, &[])?;
    for name in path {
        if !matches!(ffi::kind(&object), ffi::ObjectKind::Group) {
            return Ok(None);
        }
        match ffi::link(&object, name)? {
            Some(RawLink::Hard(addr)) => object = ffi::open_object(file, addr)?,
            _ => return Ok(None),
        }
    }
    Ok(Some(object))
}

fn remove_object(target: &Id, path: &ObjectPath, holders: &Holders) -> Result<(), Failure> {
    if ffi::exists(target, path)? {
        return ffi::unlink(target, path);
    }
    match held_object(target, path, holders)? {
        Some(held) => ffi::remove_attribute(&held.holder, held.name),
        None => Ok(()),
    }
}

/// An object that is an attribute.
struct HeldObject<'a> {
    /// The dataset that has the attribute, and its path.
    holder: Id,
    at: ObjectPath,
    /// The name of the object, and of the attribute.
    name: &'a [u8],
}

/// Returns the attribute that a path stands for; `None` if it stands for none.
fn held_object<'a>(
    file: &Id,
    path: &'a ObjectPath,
    holders: &Holders,
) -> Result<Option<HeldObject<'a>>, Failure> {
    let Some((name, group)) = path.split_last() else {
        return Ok(None);
    };
    for own in &holders.datasets {
        let at = [group, std::slice::from_ref(own)].concat();
        if !ffi::exists(file, &at)? {
            continue;
        }
        let holder = ffi::open_at(file, &at)?;
        if ffi::has_attribute(&holder, name)? {
            return Ok(Some(HeldObject { holder, at, name }));
        }
    }
    Ok(None)
}

/// Returns a path as [`EditStep::Gather`] has it.
pub fn source(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}
