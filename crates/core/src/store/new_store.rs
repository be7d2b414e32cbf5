//! A store that is made from nothing: its format says what is in it, and it is there as a whole or not at all.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use super::base::{Base, invalid};
use super::object::{self, NewFile};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_hdf5::Creator;
use npyfs_io::content::Content;
use npyfs_io::content::scratch::Scratch;
use npyfs_io::dir::Dir;
use npyfs_io::rights::Rights;
use npyfs_io::storage::Disk;
use npyfs_io::workplace::Workplace;

/// The name that a store has until it is complete.
const UNFINISHED: &str = "store";

/// An axis of a new store: its name, and an `.npy` file of its entries.
pub type NewAxis = (String, Arc<dyn Content>);

/// Refuses axes: EINVAL.
pub(super) fn without_axes(axes: &[NewAxis]) -> Result<()> {
    match axes {
        [] => Ok(()),
        _ => Err(invalid("a store of this kind has no axes")),
    }
}

/// The description of a store to make.
pub struct NewStore<'a> {
    /// The path, which nothing may have.
    pub path: &'a Path,
    /// The axes that it begins with.
    pub axes: Vec<NewAxis>,
    /// Name and address of the author of its commits.
    pub author: Option<(String, String)>,
    /// The program that workers that write are started from.
    pub program: &'a Path,
}

/// The store below of one that is new: there is none.
struct NoStore(Dir);

impl Base for NoStore {
    fn npy(&self, _name: &str) -> Result<Option<Arc<dyn Content>>> {
        Ok(None)
    }

    fn scratch(&self) -> Scratch {
        Scratch::new(&self.0, Arc::new(Disk))
    }
}

impl NewStore<'_> {
    /// Returns an error if there are axes.
    pub fn without_axes(&self) -> Result<()> {
        without_axes(&self.axes)
    }

    /// Returns an error if there is an author.
    pub fn without_author(&self) -> Result<()> {
        match &self.author {
            None => Ok(()),
            Some(_) => Err(invalid("a store of this kind names no author")),
        }
    }

    /// Writes it as one HDF5 file, with what `fill` says.
    pub fn write_file(&self, fill: impl FnOnce(&dyn Base) -> Result<NewFile>) -> Result<()> {
        self.make(|workplace| {
            let dir = Dir::alone(workplace)?;
            let new = fill(&NoStore(dir.clone()))?;
            let creator = Creator::worker(self.program, &dir.path_of_descriptor());
            let file = object::write((&dir, UNFINISHED), &new, &creator, &Disk)?;
            Rights::of_new().settle(&file)?;
            file.sync_all()?;
            Ok(())
        })
    }

    /// Writes it as a directory, which `fill` is given empty.
    pub fn write_directory(&self, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        self.make(|workplace| {
            let top = workplace.join(UNFINISHED);
            std::fs::create_dir(&top)?;
            fill(&top)?;
            File::open(&top)?.sync_all()?;
            Ok(())
        })
    }

    /// Has `write` make it in a directory that goes away with everything else, and gives it its name.
    fn make(&self, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        if self.path.symlink_metadata().is_ok() {
            let why = "it is there already";
            return Err(Error::new(ErrorKind::Os(libc::EEXIST), why));
        }
        let parent = match self.path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => return Err(invalid("it has no name")),
        };
        let about = |e: std::io::Error| Error::from(e).about(parent.display());
        let workplace = Workplace::new_in(parent).map_err(about)?;
        write(workplace.path())?;
        workplace.name(&workplace.path().join(UNFINISHED), self.path)?;
        File::open(parent)?.sync_all()?;
        Ok(())
    }
}
