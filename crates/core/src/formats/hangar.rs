//! Hangar repositories: every branch, commit, column and sample as files. A repository is a directory; one of its
//! collection files can be a store alone.
//!
//! Source: Hangar 0.5.2. A repository is five LMDB tables and the data files they name: `branch.lmdb` says which commit
//! a branch is at, `ref.lmdb` which samples a commit has, `hash.lmdb` where each sample lives, `stage_ref.lmdb` what
//! the next commit will have, `stage_hash.lmdb` what of that is new. Samples are shared by all commits and columns;
//! where one lives says nothing about the column it is shown in. Nothing is written or locked from here:
//! `crate::formats::hangar::stage` does that.
//!
//! liblmdb trusts the pages that it maps, so it runs in worker processes: one read transaction for a request, no lock,
//! and an answer counts only if nothing was committed meanwhile. From there on everything is plain data:
//!
//! * `repository` has the tables and the files. It finds times of changes, which `time_cache` keeps in memory and on
//!   disk.
//! * `root` is the tree, `snapshot` one commit, `directory` a commit, its columns, and a column as one array.
//! * `commit` and `column` sort records into packed columns, which the commits that have them share.
//! * `sample` is one sample. `fetch` gets bytes by record and checks them. `blocks` finds records by digest, a batch at
//!   a time. Samples and columns are read in blocks (`crate::dataset::blocks`): a sample is one, and a block of a
//!   column has many.
//!
//! A directory of samples makes its nodes when they are asked for: a sample costs some 30 bytes. Geometry comes from
//! the record and the dataset, the type from the schema; a listing opens no data file. A collection may grow under a
//! reader: its maps stay right for the rows that they know. In a bucket (`folder`) the tables are copies of one moment.
//!
//! `stage` writes. Its tables are changed by a worker of their own: a fault of liblmdb costs that process, and a daemon
//! that is killed leaves no lock. Hangar opens tables without lock files, and its lock is a row that two processes may
//! set at once, so the worker looks at the row again a moment later. A commit clears `stage_hash.lmdb` and moves the
//! markers before it writes the commit and the branch: in Hangar's order, a process that dies in between leaves samples
//! that a later reset takes from a commit. `close` leaves a sample in memory; a thread writes hundreds at a time. A
//! data file has no marker until `sync` gives it one, just before the first row that names the file.

mod blocks;
mod collection;
pub mod column;
pub mod commit;
mod demo;
pub mod digest;
mod directory;
mod fetch;
mod folder;
pub mod key;
pub mod record;
pub mod repository;
pub mod root;
mod rows;
pub mod sample;
pub mod schema;
mod snapshot;
pub mod stage;
mod standalone;
mod table;
mod time_cache;
mod verify;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::repository::Repository;
use self::root::{LazyRepository, RootDirectory};
use self::stage::builder::StageBuilder;
use self::stage::checkout::Checkout;
use self::stage::commit::Author;
use self::stage::target::StageTarget;
use self::stage::{Stage, create};
use crate::dataset::context::Context;
use crate::dataset::opened::OpenStore;
use crate::store::base::{Base, invalid, unsupported};
use crate::store::encode::{ObjectKey, Plan};
use crate::store::format::builder::{Builder, Construction};
use crate::store::format::{
    Abilities, Accepted, DirectoryStores, Format, Making, Rules, Source, Staged, Tables, Verified,
    VerifyReport, Writing,
};
use crate::store::new_store::{NewAxis, NewStore};
use crate::store::object::NewFile;
use crate::store::part::Part;
use crate::store::staging::Staging;
use crate::store::table::Found;
use crate::store::target::{CheckoutDirectory, Target};
use crate::tree::name::visible;
use crate::tree::path::walk;
use crate::tree::{Directory, Node};
use npyfs_base::error::{Error, Result};
use npyfs_hdf5::program::program;
use npyfs_io::remote::{Entries, Listing};

/// Name of the format.
pub const NAME: &str = "hangar";

/// The table that every repository has.
const BRANCHES: &str = "branch.lmdb";

/// The format of Hangar.
pub struct Hangar;

impl Format for Hangar {
    fn name(&self) -> &'static str {
        NAME
    }

    fn root(&self, store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
        standalone::root(store)
    }

    fn demonstrate(&self, dir: &Path, program: Option<&Path>) -> Result<Vec<(PathBuf, bool)>> {
        let written = program.map(|program| demo::write(dir, program));
        Ok(written.transpose()?.into_iter().collect())
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities {
            tables: self,
            rules: self,
            source: self,
            writing: Some(self),
            making: Some(self),
            directories: Some(self),
            staged: Some(self),
            ..Abilities::default()
        }
    }
}

impl Tables for Hangar {
    fn table(&self, _dir: &Arc<dyn Directory>, _sep: u8) -> Result<Option<Found>> {
        // Samples are no columns.
        Ok(None)
    }
}

impl Rules for Hangar {
    fn verify(&self, dir: &dyn Directory, report: &dyn VerifyReport) -> Option<Result<Verified>> {
        let repository = repository_of(dir)?;
        Some(verify::verify(&repository, report))
    }
}

impl Source for Hangar {
    fn contents(&self, root: &Arc<dyn Directory>) -> Result<Arc<dyn Directory>> {
        let Some(repository) = repository_of(&**root) else {
            return Ok(root.clone());
        };
        let staged_on = repository.heads()?.staged_on.clone();
        let branch = staged_on.unwrap_or_default();
        let path = [&b"branches"[..], &visible(branch.as_bytes(), "")];
        let dir = walk(root.clone(), path)?.and_then(Node::directory);
        dir.ok_or_else(|| invalid(format!("there is no branch {branch:?}")))
    }

    fn repeats(&self, dir: &dyn Directory, shown: &[u8], stacked: bool) -> Result<bool> {
        let is_directory =
            |name: &[u8]| Ok::<_, Error>(matches!(dir.lookup(name)?, Some(Node::Directory(_))));
        let column = shown.strip_suffix(b".npy");
        let column = column.map(|name| name.strip_suffix(b".keys").unwrap_or(name));
        match column {
            Some(column) => Ok(!stacked && is_directory(column)?),
            None if stacked => Ok(dir.lookup(&[shown, b".keys.npy"].concat())?.is_some()),
            None => Ok(false),
        }
    }

    fn is_mark(&self, attribute: &[u8]) -> bool {
        attribute == b"HANGAR_VERSION"
    }
}

impl Writing for Hangar {
    fn plan(&self, _base: &dyn Base, _key: &ObjectKey, _parts: &[Part]) -> Result<Plan> {
        Err(unsupported(
            "a collection file of Hangar is written by its repository only",
        ))
    }

    fn begin(&self, _base: &dyn Base, _axes: &[NewAxis]) -> Result<NewFile> {
        Err(unsupported("a Hangar repository is no HDF5 file"))
    }
}

impl Making for Hangar {
    fn build(&self, construction: &Construction<'_>) -> Result<Box<dyn Builder>> {
        construction.new.without_axes()?;
        let author = author(construction.new)?;
        Ok(Box::new(StageBuilder::new(construction, &author)?))
    }

    fn accepts(&self) -> Accepted {
        Accepted {
            suffixes: &[".npy", ".txt", ".bin"],
            text_files: true,
            samples: true,
        }
    }

    fn create(&self, new: &NewStore) -> Result<()> {
        new.without_axes()?;
        let author = author(new)?;
        new.write_directory(|top| create(top, &author, new.program).map(drop))
    }

    fn has_author(&self) -> bool {
        true
    }
}

impl DirectoryStores for Hangar {
    fn noun(&self) -> &'static str {
        "Hangar repository"
    }

    fn is_store(&self, dir: &Path) -> bool {
        repository::folder(dir).is_some()
    }

    fn open(&self, dir: &Path, context: &Arc<Context>) -> Result<Option<Arc<dyn Directory>>> {
        let Some(folder) = repository::folder(dir) else {
            return Ok(None);
        };
        let repository = Repository::open(&folder, context)?;
        Ok(Some(Arc::new(RootDirectory::new(repository))))
    }

    fn open_lazily(&self, dir: &Path, context: &Arc<Context>) -> Option<Arc<dyn Directory>> {
        let folder = repository::folder(dir)?;
        Some(Arc::new(LazyRepository::new(&folder, context)))
    }

    fn open_prefix(
        &self,
        listing: &Listing,
        entries: &Entries,
        context: &Arc<Context>,
    ) -> Result<Option<Arc<dyn Directory>>> {
        let Some(name) = repository::folder_below(entries) else {
            return Ok(None);
        };
        let folder = listing.below(name);
        if !folder.entries()?.has_object(BRANCHES) {
            return Ok(None);
        }
        let repository = Repository::open_elsewhere(folder, context)?;
        Ok(Some(Arc::new(RootDirectory::new(repository))))
    }
}

impl Staged for Hangar {
    fn staging(&self, store: &Path) -> Result<Box<dyn Staging>> {
        Ok(Box::new(Stage::at(store)?))
    }

    fn target(
        &self,
        base: &Arc<dyn Directory>,
        name: &str,
        hold: &dyn Fn() -> Result<Box<dyn CheckoutDirectory>>,
    ) -> Result<Option<Arc<dyn Target>>> {
        let Some(repository) = repository_of(&**base) else {
            return Ok(None);
        };
        repository.folder.check_writable()?;
        let checkout = Checkout::open(&repository, hold()?, name, program())?;
        Ok(Some(Arc::new(StageTarget::new(checkout, base.clone()))))
    }
}

/// Returns the repository that a directory is the root of.
fn repository_of(dir: &dyn Directory) -> Option<Arc<Repository>> {
    dir.handle()?.downcast().ok()
}

/// Returns the author of the commits of a new repository.
fn author(new: &NewStore<'_>) -> Result<Author> {
    let Some((name, email)) = new.author.clone() else {
        return Err(invalid("a repository names an author: --name and --email"));
    };
    Author::new(name, email)
}
