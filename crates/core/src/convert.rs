//! Converts a store into a new one of another format: walks through its objects as a mount shows them, and adds each to
//! the new store.
//!
//! An object that is shown as an array is converted as that array; otherwise its members become the arrays of a group.
//! A directory that is a single object in the new format is converted as a whole. The write plan of the new format
//! determines the result, and which objects cannot be represented.

mod comparison;
mod objects;
mod samples;
mod values;
mod walk;
mod watched;

use std::sync::Arc;

use serde::Serialize;

use crate::store::format::builder::Builder;
use crate::store::format::{Format, Registry};
use crate::tree::Directory;
use npyfs_base::error::Result;
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
