//! Creation of a repository, as `hangar init` does it (`context.py`, `init_repo`).

use std::fs::File;
use std::path::{Path, PathBuf};

use super::author::Author;
use super::table_writer;
use crate::formats::hangar::BRANCHES;
use npyfs_base::error::{Error, Result};
use npyfs_hdf5::{LockError, TableOp, TableTransaction, TablesOutcome};

/// The version of Hangar that has this format.
const VERSION: &str = "0.5.2";

/// The tables beside [`BRANCHES`].
const OTHERS: [&str; 4] = ["ref.lmdb", "hash.lmdb", "stage_ref.lmdb", "stage_hash.lmdb"];

const README: &str = "This directory holds a Hangar repository: https://hangar-py.readthedocs.io\n\
    Do not edit, rename or remove anything in it by hand.\n";

/// Makes a repository in `top`, which must not have one. Returns the directory with the tables.
pub fn create(top: &Path, author: &Author, program: &Path) -> Result<PathBuf> {
    let folder = top.join(".hangar");
    let about = |e: std::io::Error| Error::from(e).about(folder.display());
    std::fs::create_dir(&folder).map_err(about)?;
    for name in ["store_data", "stage_data", "remote_data", "data"] {
        std::fs::create_dir(folder.join(name)).map_err(about)?;
    }
    let escaped = |text: &str| text.replace('%', "%%");
    let (name, email) = (escaped(&author.name), escaped(&author.email));
    let config = format!("[USER]\nname = {name}\nemail = {email}\n\n");
    std::fs::write(folder.join("config_user.ini"), config).map_err(about)?;
    std::fs::write(folder.join("README.txt"), README).map_err(about)?;
    // liblmdb makes a table out of an empty file; the worker that writes tables may not create files.
    for name in OTHERS.into_iter().chain([BRANCHES]) {
        File::create_new(folder.join(name)).map_err(about)?;
    }
    let mut steps: Vec<TableTransaction> = OTHERS
        .into_iter()
        .map(|table| TableTransaction::new(table, Vec::new()))
        .collect();
    let rows = [
        ("software_version", VERSION),
        ("branch:master", ""),
        ("head", "branch:master"),
    ];
    let rows = rows.map(|(key, value)| TableOp::put(key, value));
    steps.push(TableTransaction::new(BRANCHES, rows.into()));
    let writer = table_writer(program, &folder).map_err(about)?;
    let failed = |e: LockError| Error::damaged(e.to_string()).about(folder.display());
    let mut locked = writer.lock().map_err(failed)?;
    match locked.write(steps)? {
        TablesOutcome::Done => drop(locked),
        other => return Err(Error::damaged(format!("{other:?}")).about(folder.display())),
    }
    Ok(folder)
}
