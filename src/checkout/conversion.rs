//! A store as a new one of another format: its objects, walked through as a mount shows them, and what becomes of each.
//!
//! An object is what its array is, wherever it is shown as one; otherwise its members are arrays of a group. A directory in
//! which the new format sees one object is given to it as a whole. What that makes of it is decided by the plan of a write, and
//! so is what it has no counterpart for.

mod comparison;
mod objects;
mod samples;
mod values;
mod walk;
mod watched;

use std::sync::Arc;

use serde::Serialize;

use super::builder::Builder;
use super::format::{Format, Registry};
use crate::error::Result;
use crate::tree::Directory;
use walk::Walk;

/// A listener to a conversion.
pub trait Listener: Send + Sync {
    /// So many more bytes are to be converted.
    fn found(&self, bytes: u64);

    /// So many more bytes are done.
    fn done(&self, bytes: u64);

    /// The object at a path has no counterpart.
    fn lost(&self, path: &str, why: &str);
}

/// A remark about an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remark {
    /// The object's path in the store that is converted.
    pub object: String,
    /// What is said of it.
    pub what: String,
}

/// The outcome of a conversion.
#[derive(Debug, Default)]
pub struct Converted {
    /// Objects that were written.
    pub objects: u64,
    /// Their bytes, as files of a mount.
    pub bytes: u64,
    /// Objects that are not the same any more if they are converted back, and what became of them.
    pub changed: Vec<Remark>,
    /// Objects without counterpart, and why.
    pub without: Vec<Remark>,
}

/// A conversion.
pub struct Conversion<'a> {
    /// All formats.
    pub formats: &'a Registry,
    /// The format of the new store.
    pub to: Arc<dyn Format>,
    /// The character that the source shows in the place of `#`.
    pub sep: u8,
    /// Samples are joined in one array, and taken from one.
    pub stacked: bool,
    /// The group of samples that are in none.
    pub column: &'a str,
    /// The listener.
    pub listener: Arc<dyn Listener>,
}

impl Conversion<'_> {
    /// Adds all objects of `source` to a new store, and completes that unless there are some without counterpart that are not to be
    /// left out.
    pub fn run(
        &self,
        source: &Arc<dyn Directory>,
        builder: Box<dyn Builder>,
        leave_out: bool,
    ) -> Result<Converted> {
        let contents = self.formats_of(&**source)?.contents(source)?;
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
        // A directory of files has a format that no store has.
        Ok(match self.to.name() == name {
            true => self.to.clone(),
            false => self.formats.named(name).clone(),
        })
    }
}
