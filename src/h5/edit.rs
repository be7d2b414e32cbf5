//! A new file made from others: a copy of a store file, with objects of a checkout put in and others taken out.
//!
//! Objects are copied as they are stored: chunks are not decoded, types and attributes stay what they are. The
//! file that is changed is nobody's yet; the files that are copied from are only read.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::budget::Budget;
use super::editor;
use super::ffi::{self, Failure, Id};
use super::pool::Worker;
use super::{Answer, H5Error, Request};
use crate::raw::StoreFile;

/// Attribute of an object: when it was written, in nanoseconds since 1970 (I64).
pub const TIME: &[u8] = b"npyfs_time";

/// Attribute of the root group: the time of all objects that have none of their own, as above.
pub const TIMES: &[u8] = b"npyfs_times";

/// The dataset whose attributes are the 0-D items of a daf store.
const ITEMS: &[u8] = b"__daf__";

/// Names from the root group to an object.
pub type ObjectPath = Vec<Vec<u8>>;

/// One change to the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Step {
    /// Takes out the object at a path, if there is one.
    Remove { path: ObjectPath },
    /// Copies the object at a path of another file to the same path, in the place of what is there.
    Copy {
        /// Path of the file, as the system spells it.
        from: Vec<u8>,
        path: ObjectPath,
        /// When the object was written, in nanoseconds since 1970.
        time: i64,
    },
    /// Sets the time of all objects that have none of their own, unless the file says it.
    Times(i64),
}

/// The worker process that makes such files.
pub struct Editor {
    worker: Worker,
}

impl Editor {
    /// A worker that may read below `readable` and change files that exist below `dir`: `program`, which
    /// becomes one when it is started with `editor::ARGUMENT`.
    pub fn start(program: &Path, dir: &Path, readable: &[PathBuf]) -> std::io::Result<Self> {
        let dirs = std::iter::once(dir).chain(readable.iter().map(PathBuf::as_path));
        let tables = Arc::new(Budget::default());
        let worker = Worker::start(program, (editor::ARGUMENT, dirs), &tables)?;
        Ok(Self { worker })
    }

    /// Changes `file`; says for each step why it was not done, if it was not.
    pub fn edit(
        &mut self,
        file: &StoreFile,
        steps: Vec<Step>,
    ) -> Result<Vec<Result<(), String>>, H5Error> {
        let failed =
            |e: std::io::Error| H5Error::Damaged(format!("the editing worker failed: {e}"));
        let request = Request::Edit(steps);
        match self
            .worker
            .ask(file, &request, &mut None)
            .map_err(failed)??
        {
            Answer::Edited(done) => Ok(done),
            _ => Err(H5Error::Damaged("answer to another request".into())),
        }
    }
}

/// Changes `file` in this process.
pub fn edit(file: &StoreFile, steps: &[Step]) -> Result<Vec<Result<(), String>>, H5Error> {
    ffi::locked(|| {
        let target = ffi::open_to_edit(file.path_of_descriptor().as_bytes())?;
        let done = steps
            .iter()
            .map(|step| apply(&target, step).map_err(|e| e.0))
            .collect();
        ffi::finish(target)?;
        Ok(done)
    })
}

fn apply(target: &Id, step: &Step) -> Result<(), Failure> {
    match step {
        Step::Remove { path } => remove(target, path),
        Step::Copy { from, path, time } => {
            let source = ffi::open_source(from)?;
            remove(target, path)?;
            if ffi::exists(&source, path)? {
                ffi::copy_object(&source, path, target, path)?;
                return ffi::set_number(&ffi::open_at(target, path)?, TIME, *time);
            }
            match item(&source, path)? {
                Some((items, name)) => {
                    let home = home_of_items(path);
                    if !ffi::exists(target, &home)? {
                        return Err(Failure("not in a daf store".into()));
                    }
                    ffi::copy_attribute(&items, &ffi::open_at(target, &home)?, name)
                }
                None => Err(Failure("the file of the checkout does not have it".into())),
            }
        }
        Step::Times(time) => {
            let root = ffi::open_at(target, &[])?;
            match ffi::has_attribute(&root, TIMES)? {
                true => Ok(()),
                false => ffi::set_number(&root, TIMES, *time),
            }
        }
    }
}

fn remove(target: &Id, path: &ObjectPath) -> Result<(), Failure> {
    if ffi::exists(target, path)? {
        return ffi::unlink(target, path);
    }
    match item(target, path)? {
        Some((items, name)) => ffi::remove_attribute(&items, name),
        None => Ok(()),
    }
}

fn home_of_items(path: &ObjectPath) -> ObjectPath {
    let mut home = path.clone();
    home.pop();
    home.push(ITEMS.to_vec());
    home
}

/// What holds the 0-D item of a daf store that a path stands for, and its name there.
fn item<'a>(file: &Id, path: &'a ObjectPath) -> Result<Option<(Id, &'a [u8])>, Failure> {
    let Some(name) = path.last() else {
        return Ok(None);
    };
    let home = home_of_items(path);
    if !ffi::exists(file, &home)? {
        return Ok(None);
    }
    let items = ffi::open_at(file, &home)?;
    Ok(ffi::has_attribute(&items, name)?.then_some((items, name)))
}

/// A path as a step names it.
pub fn source(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}
