//! Converts a store into a new one of another format: walks through its objects as a mount shows them, and adds each to
//! the new store.
//!
//! An object that is shown as an array is converted as that array; otherwise its members become the arrays of a group.
//! A directory that is a single object in the new format is converted as a whole. The write plan of the new format
//! determines the result, and which objects cannot be represented.
//!
//! What is read reports its progress to a listener, and remembers the failure of a read (`Watched`). In the end the
//! arrays of the new store, as it shows them, are compared with those that it was made from (`Comparison`).

mod samples;
mod walk;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::Serialize;

use crate::store::encode::ObjectKey;
use crate::store::format::builder::Builder;
use crate::store::format::{Format, Registry};
use crate::store::part::Part;
use crate::tree::name::visible;
use crate::tree::path;
use crate::tree::{Directory, Node};
use npyfs_base::error::{Error, Result};
use npyfs_base::npy::dtype::DType;
use npyfs_base::npy::parse::Header;
use npyfs_io::content::{Content, Data, complete_npy_header};
use walk::Walk;

/// A listener to a conversion.
pub trait Listener: Send + Sync {
    /// Reports that additional bytes are to be converted.
    fn found(&self, bytes: u64);

    /// Reports that additional bytes are done.
    fn done(&self, bytes: u64);

    /// Reports that the object at a path cannot be represented.
    fn lost(&self, path: &str, why: &str);
}

/// A remark on an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remark {
    /// The object's path in the source.
    pub object: String,
    /// The text of the remark.
    pub what: String,
}

/// The outcome of a conversion.
#[derive(Debug, Default)]
pub struct Converted {
    /// The number of objects written.
    pub objects: u64,
    /// Their size in bytes, as files of a mount.
    pub bytes: u64,
    /// Objects that would differ if they were converted back, and how.
    pub changed: Vec<Remark>,
    /// Objects that cannot be represented, with the reasons.
    pub without: Vec<Remark>,
}

/// A conversion.
pub struct Conversion<'a> {
    /// All formats.
    pub formats: &'a Registry,
    /// The format of the new store.
    pub to: Arc<dyn Format>,
    /// The character that the source shows in place of `#`.
    pub sep: u8,
    /// Whether samples are joined in one array, and split from one.
    pub stacked: bool,
    /// The group of samples that are not in a group.
    pub column: &'a str,
    /// The listener.
    pub listener: Arc<dyn Listener>,
}

impl Conversion<'_> {
    /// Adds all objects of `source` to a new store. Completes the store, unless there are objects that cannot be
    /// represented and may not be left out.
    pub fn run(
        &self,
        source: &Arc<dyn Directory>,
        builder: Box<dyn Builder>,
        leave_out: bool,
    ) -> Result<Converted> {
        let contents = self.formats_of(&**source)?.source().contents(source)?;
        let mut walk = Walk::new(self, builder);
        walk.directory(&contents, &[], "", None)?;
        let Walk {
            builder,
            mut converted,
            comparison,
            seen,
            ..
        } = walk;
        if !converted.without.is_empty() && !leave_out {
            return Ok(converted);
        }
        let result = builder.finish()?;
        if let Some(result) = result {
            converted.changed.extend(comparison.differences(&result)?);
        }
        seen.check()?;
        Ok(converted)
    }

    fn formats_of(&self, dir: &dyn Directory) -> Result<Arc<dyn Format>> {
        let name = dir.format()?;
        // A directory of files has a format of its own, which no store has.
        Ok(match self.to.name() == name {
            true => self.to.clone(),
            false => self.formats.named(name).clone(),
        })
    }
}

/// The type, shape and element order in a file's header.
#[derive(Debug, PartialEq, Eq)]
struct FileFace {
    /// Its path in a mount of the new store.
    path: Vec<Vec<u8>>,
    dtype: DType,
    shape: Vec<u64>,
    fortran_order: bool,
}

impl FileFace {
    /// Returns the header fields of a part of an object; `None` if it is not an array.
    fn new(key: &ObjectKey, part: &Part) -> Option<Self> {
        if part.place.suffix != ".npy" {
            return None;
        }
        let head = complete_npy_header(&*part.content).ok()?;
        let groups = key.path().iter().map(|name| visible(name.as_bytes(), ""));
        let mut path: Vec<Vec<u8>> = groups.collect();
        let members = part.place.member.split('/').filter(|name| !name.is_empty());
        path.extend(members.map(|name| name.as_bytes().to_vec()));
        path.last_mut()?.extend_from_slice(b".npy");
        Some(Self {
            path,
            dtype: head.dtype,
            shape: head.shape,
            fortran_order: head.fortran_order,
        })
    }
}

/// The files that were added to a new store.
#[derive(Default)]
struct Comparison {
    /// The files, each with the object it came from.
    files: Vec<(Box<str>, FileFace)>,
}

impl Comparison {
    /// Adds a file of an object.
    fn add(&mut self, object: &str, face: FileFace) {
        self.files.push((object.into(), face));
    }

    /// Returns a remark for each file that the new store shows differently.
    fn differences(&self, result: &Arc<dyn Directory>) -> Result<Vec<Remark>> {
        let mut remarks = Vec::new();
        for (object, face) in &self.files {
            let what = match find(result, &face.path)? {
                None => "not shown as an array".to_owned(),
                Some(new) if (&new.dtype, &new.shape) != (&face.dtype, &face.shape) => format!(
                    "{} {} in the place of {} {}",
                    new.dtype.name(),
                    npyfs_base::npy::repr::tuple(&new.shape),
                    face.dtype.name(),
                    npyfs_base::npy::repr::tuple(&face.shape)
                ),
                Some(new) if new.fortran_order != face.fortran_order => {
                    let order = |fortran| match fortran {
                        true => "Fortran order",
                        false => "C order",
                    };
                    let (new, old) = (order(new.fortran_order), order(face.fortran_order));
                    format!("in {new} in the place of {old}")
                }
                Some(_) => continue,
            };
            let is_member = face.path.len() > 1 && !object.ends_with(".npy");
            let what = match face.path.last().filter(|_| is_member) {
                Some(member) => format!("{}: {what}", String::from_utf8_lossy(member)),
                None => what,
            };
            remarks.push(Remark {
                object: object.to_string(),
                what,
            });
        }
        Ok(remarks)
    }
}

/// Returns the header of the array at a path; `None` if there is no array.
fn find(root: &Arc<dyn Directory>, path: &[Vec<u8>]) -> Result<Option<Header>> {
    match path::walk(root.clone(), path)? {
        Some(Node::File(file)) => Ok(Some(complete_npy_header(&*file.open()?)?)),
        _ => Ok(None),
    }
}

/// A content with a listener.
struct Watched {
    inner: Arc<dyn Content>,
    listener: Arc<dyn Listener>,
    /// Bytes that were reported as done.
    told: AtomicU64,
    failure: Mutex<Option<Error>>,
}

impl Watched {
    /// Wraps a content.
    fn new(inner: Arc<dyn Content>, listener: &Arc<dyn Listener>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            listener: listener.clone(),
            told: AtomicU64::new(0),
            failure: Mutex::new(None),
        })
    }

    /// Returns the reason of a failed read.
    fn failure(&self) -> Option<Error> {
        let failure = self.failure.lock();
        failure.clone()
    }

    /// Reports the rest as done.
    fn finish(&self) {
        self.report(u64::MAX);
    }

    /// Reports additional bytes, of which some may have been read before.
    fn report(&self, more: u64) {
        let told = self.told.load(Ordering::Relaxed);
        let now = told.saturating_add(more).min(self.inner.len());
        // With two concurrent readers one may report too few bytes; `finish` reports the rest.
        self.told.store(now, Ordering::Relaxed);
        self.listener.done(now.saturating_sub(told));
    }

    fn keep_failure<T>(&self, done: Result<T>) -> Result<T> {
        done.inspect_err(|e| {
            let mut failure = self.failure.lock();
            failure.get_or_insert_with(|| e.clone());
        })
    }
}

impl Content for Watched {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.keep_failure(self.inner.read_at(offset, buf))?;
        self.report(buf.len() as u64);
        Ok(())
    }

    fn read_whole(&self, buf: &mut [u8]) -> Result<()> {
        self.keep_failure(self.inner.read_whole(buf))?;
        self.report(buf.len() as u64);
        Ok(())
    }

    fn written(&self, from: u64) -> Result<Option<Range<u64>>> {
        self.keep_failure(self.inner.written(from))
    }

    fn stored(&self, from: u64) -> Option<Range<u64>> {
        self.inner.stored(from)
    }

    fn repeats(&self, from: u64) -> Option<(u64, u64)> {
        self.inner.repeats(from)
    }

    fn is_costly(&self) -> bool {
        self.inner.is_costly()
    }

    fn share(&self, offset: u64, len: usize) -> Result<Option<Data>> {
        let shared = self.keep_failure(self.inner.share(offset, len))?;
        if shared.is_some() {
            self.report(len as u64);
        }
        Ok(shared)
    }
}
