//! Directories of `.npy` files in the layout in which npyfs shows stores, but on disk: sources and targets of
//! conversions.
//!
//! They are not mounted, as they are already directories, so the format is in no registry.

mod directory;

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::dataset::opened::OpenStore;
use crate::store::base::unsupported;
use crate::store::encode::{ObjectKey, single};
use crate::store::format::builder::{Builder, Construction};
use crate::store::format::{Abilities, Accepted, Format, Making};
use crate::store::object::copy;
use crate::store::part::Part;
use crate::tree::Directory;
use crate::tree::name::{is_escaped_number, visible};
use npyfs_base::error::Result;
use npyfs_io::storage::Disk;

pub use directory::{NpyDirectory, holds_arrays};

/// Name of the format.
pub const NAME: &str = "npy";

/// The suffix of the name of an array of keys, which is part of the name here.
const KEYS: &str = ".keys";

/// Directories of `.npy` files.
pub struct Npy;

impl Format for Npy {
    fn name(&self) -> &'static str {
        NAME
    }

    fn root(&self, _store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
        Ok(None)
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities {
            making: Some(self),
            ..Abilities::default()
        }
    }
}

impl Making for Npy {
    fn build(&self, construction: &Construction<'_>) -> Result<Box<dyn Builder>> {
        Ok(Box::new(NpyBuilder::new(construction)?))
    }

    fn accepts(&self) -> Accepted {
        Accepted {
            suffixes: &[".npy", ".txt", ".bin"],
            text_files: false,
            samples: false,
        }
    }
}

/// Opens a directory of arrays.
pub fn open(path: &Path) -> Result<Arc<dyn Directory>> {
    Ok(Arc::new(NpyDirectory::open(path)?))
}

/// A directory of arrays under construction.
struct NpyBuilder {
    top: PathBuf,
    /// All directories, to be synced.
    made: Vec<PathBuf>,
}

impl NpyBuilder {
    /// Begins with an empty directory.
    fn new(construction: &Construction<'_>) -> Result<Self> {
        construction.new.without_axes()?;
        construction.new.without_author()?;
        let top = construction.new.path.to_owned();
        std::fs::create_dir(&top)?;
        Ok(Self {
            made: vec![top.clone()],
            top,
        })
    }

    fn place(&self, key: &ObjectKey, suffix: &str) -> PathBuf {
        let mut path = self.top.clone();
        for group in key.group() {
            path.push(OsStr::from_bytes(&shown(group, "")));
        }
        let name = match key.name().strip_suffix(KEYS) {
            Some(of) if suffix == ".npy" && !of.is_empty() => {
                visible(of.as_bytes(), &format!("{KEYS}{suffix}"))
            }
            _ => shown(key.name(), suffix),
        };
        path.push(OsStr::from_bytes(&name));
        path
    }
}

/// Returns the visible name of an object; an escape that is part of its name is escaped itself.
fn shown(own: &str, suffix: &str) -> Vec<u8> {
    match is_escaped_number(own.as_bytes()) {
        true => [own.as_bytes(), suffix.as_bytes()].concat(),
        false => visible(own.as_bytes(), suffix),
    }
}

impl Builder for NpyBuilder {
    fn group(&mut self, path: &ObjectKey) -> Result<()> {
        let place = self.place(path, "");
        std::fs::create_dir(&place)?;
        self.made.push(place);
        Ok(())
    }

    fn put(&mut self, key: &ObjectKey, parts: &[Part]) -> Result<()> {
        let part = single(parts)?;
        let place = self.place(key, part.place.suffix);
        let file = File::create_new(&place)?;
        let written = copy(&*part.content, &file, 0, &Disk)
            .and_then(|()| Ok(file.set_len(part.content.len())?))
            .and_then(|()| Ok(file.sync_all()?));
        written.inspect_err(|_| {
            // It is removed with its directory at the latest.
            let _ = std::fs::remove_file(&place);
        })
    }

    fn link(&mut self, key: &ObjectKey, target: &[u8]) -> Result<()> {
        if target.starts_with(b"/") {
            return Err(unsupported("a link that leads elsewhere"));
        }
        let suffix = [".npy", ".npz"]
            .into_iter()
            .find(|suffix| target.ends_with(suffix.as_bytes()));
        let place = self.place(key, suffix.unwrap_or(""));
        std::os::unix::fs::symlink(OsStr::from_bytes(target), place)?;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Option<Arc<dyn Directory>>> {
        for dir in self.made.iter().rev() {
            File::open(dir)?.sync_all()?;
        }
        Ok(None)
    }
}
