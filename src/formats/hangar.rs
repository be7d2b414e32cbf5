//! Hangar repositories: every branch, commit, column and sample as files.
//!
//! Source: Hangar 0.5.2. A repository is five LMDB tables and the data files they name: `branch.lmdb` says which
//! commit a branch is at, `ref.lmdb` which samples a commit has, `hash.lmdb` where each sample lives, `stage_ref.lmdb`
//! what the next commit will have, `stage_hash.lmdb` what of that is new. Samples are shared by all commits and columns; where one lives says nothing about
//! the column it is shown in. Nothing is written or locked from here: `crate::formats::hangar::stage` does that.

mod blocks;
mod by_record;
mod collection;
pub mod column;
pub mod commit;
mod demo;
pub mod digest;
mod directory;
mod elsewhere;
mod far_blocks;
mod fetch;
mod folder;
pub mod format;
mod history;
pub mod key;
mod keys;
mod lazy_repository;
mod lazy_snapshot;
mod locate;
mod numpy;
pub mod record;
pub mod repository;
pub mod root;
mod rows;
pub mod sample;
pub mod schema;
mod snapshot;
mod stack;
pub mod stage;
mod standalone;
mod table;
mod time_cache;
mod verify;
mod whole;

use std::sync::Arc;

use crate::tree::Directory;
use repository::Repository;

/// The repository that a directory is the root of.
pub fn repository_of(dir: &dyn Directory) -> Option<Arc<Repository>> {
    dir.handle()?.downcast().ok()
}
