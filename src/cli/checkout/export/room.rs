//! The place where the new files of an export are made, and get their names once all of them are there.

use std::fs::File;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::plan::{ExportPlan, ExportShape, above, directory};
use crate::checkout::workplace::{WHOLE, Workplace};
use crate::cli::CliError;
use crate::io::rights::Rights;
use crate::options::External;

/// A place for new files. What is left in it goes with it.
pub(super) struct Room {
    out: PathBuf,
    /// The directory that the result is to be in.
    parent: PathBuf,
    /// `None` for one file, which has its own.
    workplace: Option<Workplace>,
    /// The directory in which files are made.
    dir: PathBuf,
}

fn failed(path: &Path, e: &dyn std::fmt::Display) -> CliError {
    CliError::object(format!("{}: {e}", path.display()))
}

impl Room {
    /// An error if the name is taken, or inside of what is exported.
    pub(super) fn open(plan: &ExportPlan, out: &Path) -> Result<Self, CliError> {
        let parent = above(out);
        let mut room = Self {
            out: out.to_owned(),
            dir: parent.clone(),
            parent,
            workplace: None,
        };
        if let ExportShape::File = plan.shape {
            return Ok(room);
        }
        room.check(plan)?;
        let temporary = Workplace::new_in(&room.parent).map_err(|e| failed(&room.parent, &e))?;
        room.dir = temporary.path().join(WHOLE);
        room.workplace = Some(temporary);
        let dirs = plan.folders.iter().map(|folder| room.dir.join(folder));
        for dir in std::iter::once(room.dir.clone()).chain(dirs) {
            std::fs::create_dir(&dir).map_err(|e| failed(out, &e))?;
        }
        Ok(room)
    }

    fn check(&self, plan: &ExportPlan) -> Result<(), CliError> {
        let taken = match &plan.shape {
            // Whoever looks for the files of a set finds all that are called so.
            ExportShape::Set(set) => {
                let parts = set.parts(&self.parent, External::Allow);
                !parts.map_err(|e| failed(&self.parent, &e))?.is_empty()
            }
            _ => self.out.symlink_metadata().is_ok(),
        };
        if taken {
            return Err(failed(&self.out, &"it is there already"));
        }
        let inside = |path: &PathBuf| {
            let base = path.canonicalize().ok();
            let to = directory(&self.out);
            base.zip(to).is_some_and(|(base, to)| to.starts_with(base))
        };
        if plan.top.as_ref().is_some_and(inside) {
            return Err(failed(&self.out, &"it would be part of the store"));
        }
        Ok(())
    }

    /// Returns where a file is made.
    pub(super) fn of(&self, name: &Path) -> PathBuf {
        match self.workplace {
            Some(_) => self.dir.join(name),
            None => self.out.clone(),
        }
    }

    /// Gives everything its name, durably.
    pub(super) fn finish(self, plan: &ExportPlan) -> Result<(), CliError> {
        let done = match plan.shape {
            ExportShape::File => Ok(()),
            ExportShape::Directory => self.finish_directory(plan),
            ExportShape::Set(_) => self.finish_set(plan),
        };
        done.map_err(|e| failed(&self.out, &e))
    }

    fn finish_directory(&self, plan: &ExportPlan) -> io::Result<()> {
        for (link, target) in &plan.links {
            symlink(target, self.dir.join(link))?;
        }
        let top = Path::new("");
        for folder in plan.folders.iter().map(PathBuf::as_path).chain([top]) {
            let dir = File::open(self.dir.join(folder))?;
            let base = plan.top.as_ref().map(|base| base.join(folder));
            if let Some(base) = base.filter(|base| base.is_dir()) {
                Rights::copy_of(&base)?.settle(&dir)?;
            }
            dir.sync_all()?;
        }
        if let Some(workplace) = &self.workplace {
            workplace.name(&self.dir, &self.out)?;
        }
        File::open(&self.parent)?.sync_all()
    }

    /// The first file comes last: without it nobody takes the others for a set.
    fn finish_set(&self, plan: &ExportPlan) -> io::Result<()> {
        let files = plan.stores.iter().flat_map(|store| &store.files);
        let names: Vec<&Path> = files.rev().map(|file| &*file.name).collect();
        if let Some(workplace) = &self.workplace {
            workplace.name_all(&names)?;
        }
        File::open(&self.parent)?.sync_all()
    }
}
