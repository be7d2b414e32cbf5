//! A new repository under construction: samples go to its staging area, and are committed at the end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

use super::Stage;
use super::checkout::Checkout;
use super::commit::Author;
use super::target::StageTarget;
use super::tree::STAGE;
use super::{check_name, stored_names};
use crate::dataset::context::Context;
use crate::formats::hangar::repository::Repository;
use crate::formats::hangar::root::RootDirectory;
use crate::formats::hangar::stage;
use crate::formats::hangar::verify::verify;
use crate::store::base::invalid;
use crate::store::encode::{ObjectKey, single};
use crate::store::format::VerifyReport;
use crate::store::format::builder::{Builder, Construction};
use crate::store::part::Part;
use crate::store::staging::Expected;
use crate::store::target::{Role, StoreOutcome, Target};
use crate::tree::Directory;
use crate::tree::name::converted;
use npyfs_base::error::{Error, Result};
use npyfs_base::options::FsOptions;
use npyfs_hdf5::{H5, Reach};
use npyfs_io::dir::Dir;

/// A repository under construction.
pub struct StageBuilder {
    checkout: Arc<Checkout>,
    target: StageTarget,
    message: String,
    /// The directory of the tables.
    folder: PathBuf,
    /// The number of samples that were added.
    samples: u64,
}

impl StageBuilder {
    /// Begins with an empty repository of this author.
    pub fn new(construction: &Construction<'_>, author: &Author) -> Result<Self> {
        let new = construction.new;
        std::fs::create_dir(new.path)?;
        let folder = stage::create(new.path, author, new.program)?;
        let repository = open(&folder)?;
        let dir = Dir::alone(construction.scratch)?;
        let checkout = Checkout::open(&repository, Box::new(dir), "convert", new.program)?;
        let root = Arc::new(RootDirectory::new(repository));
        Ok(Self {
            target: StageTarget::new(checkout.clone(), root),
            checkout,
            message: construction.message.to_owned(),
            folder,
            samples: 0,
        })
    }
}

/// Opens a repository by the directory of its tables.
fn open(folder: &Path) -> Result<Arc<Repository>> {
    let options = FsOptions::default();
    let top = folder.parent().unwrap_or(folder);
    let h5 = H5::workers(Reach::of_store(top, options.external));
    Repository::open(folder, &Arc::new(Context::new(h5, options)))
}

/// Reads a whole repository: a write error of the disk after the close of a file is found in no other way.
fn check(folder: &Path) -> Result<()> {
    let found = Findings::default();
    verify(&open(folder)?, &found)?;
    let wrong = found.0.into_inner();
    match wrong {
        None => Ok(()),
        Some(why) => Err(Error::damaged(why)),
    }
}

/// Collects the first defect of a repository.
#[derive(Default)]
struct Findings(Mutex<Option<String>>);

impl VerifyReport for Findings {
    fn found(&self, _count: u64) {}

    fn checked(&self) {}

    fn wrong(&self, why: &str) {
        let mut first = self.0.lock();
        first.get_or_insert_with(|| why.to_owned());
    }
}

impl Builder for StageBuilder {
    fn group(&mut self, path: &ObjectKey) -> Result<()> {
        let names: Vec<Vec<u8>> = path.path().iter().map(|name| converted(name, "")).collect();
        let (column, keys) = stored_names(&names);
        check_name(&column, "column")?;
        keys.iter().try_for_each(|key| check_name(key, "key"))?;
        match keys.len() {
            0 | 1 => Ok(()),
            _ => Err(invalid("subsamples have none of their own")),
        }
    }

    fn put(&mut self, key: &ObjectKey, parts: &[Part]) -> Result<()> {
        let part = single(parts)?;
        let groups = key.group().iter().map(|name| converted(name, ""));
        let mut path: Vec<Vec<u8>> = [STAGE.to_vec()].into_iter().chain(groups).collect();
        path.push(converted(key.name(), part.place.suffix));
        let Role::Stored(place) = self.target.role(&path)? else {
            return Err(invalid("neither an array nor text"));
        };
        let object = place.object.clone();
        let part = Part {
            place,
            ..part.clone()
        };
        let stored = self.target.store(&object, &[part], SystemTime::now())?;
        match stored {
            StoreOutcome::Stored => self.samples += 1,
            StoreOutcome::Incomplete(_) => return Err(invalid("not complete")),
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Option<Arc<dyn Directory>>> {
        self.target.sync()?;
        if self.samples > 0 {
            let stage: &Stage = &self.checkout.stage;
            stage.commit(&self.message, &Expected::default())?;
        }
        self.checkout.close_files()?;
        let Self {
            checkout,
            target,
            folder,
            ..
        } = *self;
        drop((target, checkout));
        check(&folder)?;
        Ok(None)
    }
}
