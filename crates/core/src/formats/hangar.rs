//! Hangar repositories: every branch, commit, column and sample as files.
//!
//! Source: Hangar 0.5.2. A repository is five LMDB tables and the data files they name: `branch.lmdb` says which
//! commit a branch is at, `ref.lmdb` which samples a commit has, `hash.lmdb` where each sample lives, `stage_ref.lmdb`
//! what the next commit will have, `stage_hash.lmdb` what of that is new. Samples are shared by all commits and
//! columns; where one lives says nothing about the column it is shown in. Nothing is written or locked from here:
//! `crate::formats::hangar::stage` does that.
//!
//! liblmdb trusts the pages that it maps, so it runs in worker processes: one read transaction for a request, no lock,
//! and an answer counts only if nothing was committed meanwhile. From there on everything is plain data:
//!
//! * `repository` has the tables and the files, `root` the tree, `lazy_snapshot` and `snapshot` one commit.
//! * `commit` and `column` sort records into packed columns, which the commits that have them share.
//! * `sample` is one sample, `stack` a column as one array, `keys` its keys. `fetch` gets bytes by record and checks them.
//!   Both are read in blocks (`crate::dataset::blocks`): a sample is one, and a block of a column has many (`blocks`).
//! * `locate` finds records by digest, a batch at a time. `history` finds times, which `time_cache` keeps in
//!   memory and on disk.
//!
//! A directory of samples makes its nodes when they are asked for: a sample costs some 30 bytes. Geometry comes from the
//! record and the dataset, the type from the schema; a listing opens no data file. A collection may grow under a reader: its
//! maps stay right for the rows that they know. In a bucket (`elsewhere`) the tables are copies of one moment.
//!
//! `stage` writes. Its tables are changed by a worker of their own: a fault of liblmdb costs that process, and a daemon that
//! is killed leaves no lock. Hangar opens tables without lock files, and its lock is a row that two processes may set at
//! once, so the worker looks at the row again a moment later. A commit clears `stage_hash.lmdb` and moves the markers before
//! it writes the commit and the branch: in Hangar's order, a process that dies in between leaves samples that a later reset
//! takes from a commit. `close` leaves a sample in memory; a thread writes hundreds at a time. A data file has no marker
//! until `sync` gives it one, just before the first row that names the file.

mod blocks;
mod by_record;
mod collection;
pub mod column;
pub mod commit;
mod demo;
pub mod digest;
mod directory;
mod elsewhere;
mod fetch;
mod folder;
pub mod format;
mod history;
pub mod key;
mod keys;
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

/// Name of the format.
pub const NAME: &str = "hangar";

/// The table that every repository has.
const BRANCHES: &str = "branch.lmdb";
