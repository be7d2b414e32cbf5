//! The staging area of a Hangar repository: the contents of the next commit, and the steps that make it a commit.
//!
//! Source: Hangar 0.5.2. Every step follows Hangar, under its writer lock, so that Hangar and npyfs can take turns.
//! Changes to tables go through the worker that keeps the lock (`npyfs_hdf5::LmdbWriter`); tables are read like those
//! of any repository. Between any two steps Hangar accepts the repository. If Hangar's own order of steps leaves a
//! moment in which it would not, the order here differs, and a comment says so.
//!
//! A reset takes the staging area back to its branch, as Hangar's `reset_staging_area` does. Hangar removes the samples
//! first and resets the list last. Here the list comes first, so that a process that dies in between leaves samples
//! without names, and never names without samples. Samples that the commit has are never removed: Hangar's own commit,
//! if interrupted at the wrong moment, leaves them among the new ones.
//!
//! Columns and samples have names in two forms: the one that a mount shows, and the one that Hangar accepts. `create`
//! makes a repository as `hangar init` does (`context.py`, `init_repo`).

pub mod builder;
pub mod checkout;
pub mod commit;
pub mod data;
pub mod geometry;
pub mod markers;
pub mod records;
pub mod sample;
pub mod schema;
pub mod target;
pub mod tree;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_bytes::ByteBuf;

use self::commit::Author;
use self::markers::DataFile;
use self::records::{CommitRecords, RecordChange, difference};
use self::schema::{ColumnCompression, NewColumn, NewSamples, dtype_named};
use super::key::shown;
use super::record::Record;
use super::repository::{self, Repository};
use super::{BRANCHES, key};
use crate::dataset::context::Context;
use crate::store::staging::{
    ColumnError, ColumnRequest, Expected, SamplesKind, StagedKind, Staging,
};
use crate::store::target::check_name as check_shown_name;
use crate::tree::name::{unescape, visible};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::options::FsOptions;
use npyfs_base::printable;
use npyfs_hdf5::program::program;
use npyfs_hdf5::{
    H5, H5Error, LmdbWriter, LockError, LockRow, Reach, TableOp, TableTransaction, TablesOutcome,
    WriterLock,
};
use npyfs_io::owner::Owner;

/// The key of the writer lock in `branch.lmdb` (`records/heads.py`).
const LOCK: &[u8] = b"writerlock:";

/// The value of the writer lock while it is free.
const FREE: &[u8] = b"LOCK_AVAILABLE";

/// A repository whose staging area can be changed.
pub struct Stage {
    /// The repository.
    pub repository: Arc<Repository>,
    writer: LmdbWriter,
}

/// A state of the staging area, and the commit that it is based on.
pub struct StageState {
    /// The branch of the next commit.
    pub branch: String,
    /// The latest commit of the branch; `None` before the first.
    pub head: Option<String>,
    /// The records of that commit.
    pub base: CommitRecords,
    /// The records of the staging area.
    pub staged: CommitRecords,
}

impl StageState {
    /// Returns true if the staging area differs from its base; Hangar calls this DIRTY.
    pub fn is_changed(&self) -> bool {
        self.base != self.staged
    }
}

impl Stage {
    /// Opens the staging area of the repository at a path.
    pub fn at(store: &Path) -> Result<Self> {
        let about = |e: Error| e.about(store.display());
        let store = &store.canonicalize().map_err(|e| about(e.into()))?;
        let no_repository = || about(Error::damaged("no Hangar repository"));
        let folder = repository::folder(store).ok_or_else(no_repository)?;
        let options = FsOptions::default();
        let h5 = H5::workers(Reach::of_store(store, options.external));
        let context = Arc::new(Context::new(h5, options));
        Self::open(&Repository::open(&folder, &context)?, program())
    }

    /// Opens the staging area. `program` becomes the worker that writes tables; see `npyfs_hdf5::LmdbWriter`. A
    /// server's repository has no stage.
    pub fn open(repository: &Arc<Repository>, program: &Path) -> Result<Self> {
        if !repository.stage.path.is_file() {
            let why = format!("{}: has no staging area", repository.folder.path.display());
            return Err(Error::new(ErrorKind::Os(libc::EOPNOTSUPP), why));
        }
        let writer = table_writer(program, &repository.folder.path)
            .map_err(|e| Error::from(e).about(repository.folder.path.display()))?;
        Ok(Self {
            repository: repository.clone(),
            writer,
        })
    }

    /// Returns the owner of the repository, for files that root creates on the owner's behalf.
    pub fn owner(&self) -> Owner {
        self.writer.owner()
    }

    fn about(&self, error: impl Into<Error>) -> Error {
        error.into().about(self.repository.folder.path.display())
    }

    /// Takes the writer lock. Fails with EBUSY and the name of the holder if another process has it.
    pub fn lock(&self) -> Result<WriterLock<'_>> {
        self.writer.lock().map_err(|e| {
            self.about(match e {
                LockError::Held(who) => busy(&who),
                LockError::Failed(e) => e.into(),
            })
        })
    }

    /// Returns the present staging area. A caller without the lock may see a state between two of Hangar's steps.
    pub fn state(&self) -> Result<StageState> {
        let (branch, head) = self.head()?;
        let base = match &head {
            Some(digest) => CommitRecords::of_commit(&self.repository, digest)?,
            None => CommitRecords::default(),
        };
        Ok(StageState {
            branch,
            head,
            base,
            staged: CommitRecords::staged(&self.repository)?,
        })
    }

    /// Returns the branch that the staging area is based on, and its commit.
    pub fn head(&self) -> Result<(String, Option<String>)> {
        let branches = &self.repository.branches;
        let text = |value: Vec<u8>| String::from_utf8_lossy(&value).into_owned();
        let head = branches.value(b"head")?.map(text);
        let head = head
            .filter(|head| head.starts_with("branch:"))
            .ok_or_else(|| self.about(Error::damaged("branch.lmdb names no branch as head")))?;
        let digest = branches.value(head.as_bytes())?.ok_or_else(|| {
            self.about(Error::damaged(format!("there is no {head} in branch.lmdb")))
        })?;
        let digest = Some(text(digest)).filter(|digest| !digest.is_empty());
        Ok((head["branch:".len()..].to_owned(), digest))
    }

    /// Returns the holder of the writer lock, in words; `None` if the lock is free.
    pub fn holder(&self) -> Result<Option<String>> {
        let value = self.repository.branches.value(LOCK)?;
        let held = value.filter(|value| value != FREE);
        Ok(held.map(|value| busy(&String::from_utf8_lossy(&value)).message))
    }

    /// Stages a column without samples.
    fn stage_column(&self, name: &str, new: &NewColumn) -> Result<()> {
        check_name(name.as_bytes(), "column")?;
        let (record, digest) = new.record()?;
        let mut locked = self.lock()?;
        let keys = [b'f', b'n'].map(|layout| format!("s:{name}:{}", char::from(layout)));
        let found = self
            .repository
            .stage
            .values(keys.map(String::into_bytes).into())?;
        if found.iter().any(Option::is_some) {
            let why = format!("there is a column {name}");
            return Err(self.about(Error::new(ErrorKind::Os(libc::EEXIST), why)));
        }
        let layout = if new.nested { 'n' } else { 'f' };
        let steps = vec![
            TableTransaction::new(
                "hash.lmdb",
                vec![TableOp::add(format!("s:{digest}"), record.as_bytes())],
            ),
            TableTransaction::new(
                "stage_ref.lmdb",
                vec![TableOp::put(
                    format!("s:{name}:{layout}"),
                    digest.as_bytes(),
                )],
            ),
        ];
        self.write(&mut locked, steps)
    }

    /// Writes values into a file of samples of this checkout; needs no lock.
    pub fn write_values(&self, steps: Vec<TableTransaction>) -> Result<TablesOutcome> {
        let done = self.writer.write_values(steps);
        done.map_err(|e| self.about(e))
    }

    /// Makes changes. Only the holder of the lock can have made changes since it was taken.
    fn write(&self, locked: &mut WriterLock<'_>, steps: Vec<TableTransaction>) -> Result<()> {
        match locked.write(steps).map_err(|e: H5Error| self.about(e))? {
            TablesOutcome::Done => Ok(()),
            TablesOutcome::Differs(key) => Err(self.about(Error::new(
                ErrorKind::Stale,
                format!("{key} was changed by somebody who does not have the writer lock"),
            ))),
            TablesOutcome::Full | TablesOutcome::Held(_) => {
                Err(self.about(Error::damaged("a table is full")))
            }
        }
    }
}

/// Makes the daemon's end of the worker that writes the tables in `folder`.
fn table_writer(program: &Path, folder: &Path) -> io::Result<LmdbWriter> {
    let lock = LockRow {
        table: BRANCHES.into(),
        key: ByteBuf::from(LOCK),
        free: ByteBuf::from(FREE),
    };
    LmdbWriter::new(program, folder, lock)
}

/// Returns the error that names the holder of the writer lock. Hangar's writers are known by a random number only.
fn busy(who: &str) -> Error {
    let ours: Vec<&str> = who.split(':').collect();
    let message = match ours[..] {
        ["npyfs", host, process, _] => {
            format!("npyfs on host {host}, process {process}, has the writer lock")
        }
        ["npyfs", host] => format!("another npyfs on host {host} has the writer lock"),
        _ => format!(
            "a writer of Hangar ({who}) has the writer lock; if it crashed, \
             `hangar writer-lock --force-release` takes it away"
        ),
    };
    Error::new(ErrorKind::Os(libc::EBUSY), message)
}

/// The number of changed samples of a column.
#[derive(Default)]
struct Count {
    added: u64,
    modified: u64,
    deleted: u64,
}

impl Staging for Stage {
    fn status(&self) -> Result<String> {
        let state = self.state()?;
        let holder = self.holder()?;
        let mut columns: BTreeMap<Vec<u8>, Count> = BTreeMap::new();
        difference(&state.base, &state.staged, |key, change| {
            let Some((_, column, below)) = parts(key) else {
                return;
            };
            let count = columns.entry(visible(column, "")).or_default();
            // The record of the column itself is no sample.
            match change {
                _ if below.is_none() => {}
                RecordChange::Added(_) => count.added += 1,
                RecordChange::Changed(_) => count.modified += 1,
                RecordChange::Removed(_) => count.deleted += 1,
            }
        });
        let head = state.head.as_deref().unwrap_or("no commit yet");
        let branch = printable::line(&state.branch);
        let mut out = format!("branch {branch}, {head}\n");
        if let Some(holder) = holder {
            out += &format!("{}\n", printable::line(&holder));
        }
        if !state.is_changed() {
            out += "nothing is staged\n";
        }
        for (column, count) in columns {
            let Count {
                added,
                modified,
                deleted,
            } = count;
            let column = printable::name(&column);
            out += &format!("{column}: {added} added, {modified} modified, {deleted} deleted\n");
        }
        Ok(out)
    }

    fn each(&self, see: &mut dyn FnMut(StagedKind, &[u8])) -> Result<()> {
        let state = self.state()?;
        let names = StagedNames::new(self, &state);
        difference(&state.base, &state.staged, |key, change| {
            let kind = match change {
                RecordChange::Added(_) => StagedKind::Added,
                RecordChange::Changed(_) => StagedKind::Modified,
                RecordChange::Removed(_) => StagedKind::Deleted,
            };
            see(kind, &names.name(key));
        });
        Ok(())
    }

    fn commit(&self, message: &str, expected: &Expected) -> Result<String> {
        Self::commit(self, message, expected)
    }

    fn reset(&self) -> Result<String> {
        let removed = Self::reset(self)?;
        let (records, samples, files) = (removed.records, removed.samples, removed.files);
        Ok(format!(
            "{records} records set back, {samples} samples and {files} data files removed\n"
        ))
    }

    fn create_column(&self, new: &ColumnRequest) -> std::result::Result<(), ColumnError> {
        let column = NewColumn {
            nested: new.nested,
            samples: samples(new)?,
        };
        Ok(self.stage_column(&new.name, &column)?)
    }
}

/// Returns the samples of a new column.
fn samples(new: &ColumnRequest) -> std::result::Result<NewSamples, ColumnError> {
    let usage = |why: String| ColumnError::Usage(why);
    let (dtype, shape) = match (new.kind, &new.dtype, &new.shape) {
        (SamplesKind::Text, ..) => return Ok(NewSamples::Text),
        (SamplesKind::Bytes, ..) => return Ok(NewSamples::Bytes),
        (SamplesKind::Arrays, Some(dtype), Some(shape)) => (dtype, shape),
        (SamplesKind::Arrays, ..) => {
            return Err(usage("a column of arrays needs a dtype and a shape".into()));
        }
    };
    let no_dtype = || usage(format!("{dtype}: no dtype that Hangar takes"));
    let compression = new.compression.as_deref().map(ColumnCompression::parse);
    Ok(NewSamples::Arrays {
        dtype: dtype_named(dtype).ok_or_else(no_dtype)?,
        shape: shape.clone(),
        fixed: !new.variable,
        backend: new.backend.clone(),
        compression: compression.transpose().map_err(|e| usage(e.message))?,
    })
}

/// The kind, column and key of a record; the record of the column itself has no key.
type Parts<'a> = (u8, &'a [u8], Option<&'a [u8]>);

/// Splits the key of a record.
fn parts(key: &[u8]) -> Option<Parts<'_>> {
    let [kind @ (b'f' | b'n' | b's'), b':', rest @ ..] = key else {
        return None;
    };
    let at = rest.iter().position(|&b| b == b':')?;
    let below = (*kind != b's').then_some(&rest[at + 1..]);
    Some((*kind, &rest[..at], below))
}

/// The names below `stage/` as a mount shows them.
struct StagedNames {
    suffixes: HashMap<Vec<u8>, &'static str>,
}

impl StagedNames {
    /// Collects the suffixes of the columns.
    fn new(stage: &Stage, state: &StageState) -> Self {
        let mut suffixes = HashMap::new();
        for (key, digest) in state.base.iter().chain(state.staged.iter()) {
            if let Some((b's', column, _)) = parts(key)
                && let Ok(digest) = std::str::from_utf8(digest)
                && let Ok(schema) = stage.repository.schema(digest)
            {
                suffixes.insert(column.to_vec(), schema.suffix());
            }
        }
        Self { suffixes }
    }

    /// Returns the name of a record.
    fn name(&self, key: &[u8]) -> Vec<u8> {
        let Some((kind, column, below)) = parts(key) else {
            return visible(key, "");
        };
        let suffix = self.suffixes.get(column).copied().unwrap_or_default();
        let mut name = visible(column, "");
        name.push(b'/');
        let Some(below) = below else {
            return name;
        };
        let nested = (kind == b'n').then(|| below.iter().position(|&b| b == b':'));
        match nested.flatten() {
            Some(at) => {
                name.extend(shown(&below[..at], ""));
                name.push(b'/');
                name.extend(shown(&below[at + 1..], suffix));
            }
            None => name.extend(shown(below, suffix)),
        }
        name
    }
}

/// The longest row of `stage_hash.lmdb`.
const LONGEST: usize = 4096;

/// The counts of what a reset removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovedCounts {
    /// The number of records that were reset.
    pub records: u64,
    /// The number of samples that only the staging area had.
    pub samples: u64,
    /// The number of data files.
    pub files: u64,
}

impl Stage {
    /// Removes all staged changes.
    pub fn reset(&self) -> Result<RemovedCounts> {
        let folder = &self.repository.folder.path;
        let mut locked = self.lock()?;
        let state = self.state()?;
        let mut removed = RemovedCounts::default();
        let mut back = Vec::new();
        difference(&state.staged, &state.base, |key, change| {
            removed.records += 1;
            back.push(match change {
                RecordChange::Removed(_) => TableOp::delete(key),
                RecordChange::Added(value) | RecordChange::Changed(value) => {
                    TableOp::put(key, value)
                }
            });
        });
        let (forgotten, kept) = self.new_samples(&state)?;
        removed.samples = forgotten.len() as u64;
        let forget = forgotten.into_iter().map(TableOp::delete).collect();
        let steps = vec![
            TableTransaction::new("stage_ref.lmdb", back),
            TableTransaction::new("hash.lmdb", forget),
            TableTransaction::new("stage_hash.lmdb", vec![TableOp::Clear]),
        ];
        self.write(&mut locked, steps)?;
        for file in markers::staged(folder)? {
            if kept.contains(&file) {
                markers::store(folder, self.owner(), std::slice::from_ref(&file))?;
            } else if !file.is_stored(folder) {
                file.remove(folder)?;
                removed.files += 1;
            }
            file.unstage(folder)?;
        }
        Ok(removed)
    }

    /// Returns the keys of `hash.lmdb` that were added since the last commit and are not in it, and the files of the
    /// keys that are in it.
    fn new_samples(&self, state: &StageState) -> Result<(Vec<Vec<u8>>, HashSet<DataFile>)> {
        let mut new = Vec::new();
        self.repository.stage_hashes.rows(b"h:", LONGEST, |rows| {
            new.extend(rows.into_iter().map(|(key, value)| (key.into_vec(), value)));
            Ok(())
        })?;
        let mut forgotten = Vec::new();
        let mut kept = HashSet::new();
        let committed: HashSet<&[u8]> = match new.is_empty() {
            true => HashSet::new(),
            false => state.base.iter().map(|(_, digest)| digest).collect(),
        };
        for (key, value) in new {
            if !committed.contains(&key[2..]) {
                forgotten.push(key);
                continue;
            }
            let record = Record::parse(&String::from_utf8_lossy(&value)).ok();
            if let Some((backend, uid)) =
                record.as_ref().and_then(|r| Some((r.backend(), r.uid()?)))
            {
                kept.insert(DataFile::new(backend, uid));
            }
        }
        Ok((forgotten, kept))
    }
}

/// The longest key and the longest name of a column (`utils.py`, `is_suitable_user_key`).
const LONGEST_NAME: usize = 64;

/// The place of a sample in the repository.
pub struct RecordPlace {
    /// Name of the column.
    pub column: Vec<u8>,
    /// The stored key; that of a subsample begins with the key of its sample.
    pub key: Vec<u8>,
    /// The column is nested: its samples are sets of samples.
    pub nested: bool,
}

/// Returns the column and key for the names behind `stage`, the last without its suffix.
pub fn at(names: &[Vec<u8>]) -> Result<RecordPlace> {
    let (column, keys) = stored_names(names);
    if !matches!(keys.len(), 1 | 2) {
        return Err(Error::new(
            ErrorKind::Os(libc::EROFS),
            "samples stand in columns, subsamples in samples, and nothing below them",
        ));
    }
    check_name(&column, "column")?;
    for key in &keys {
        check_name(key, "key")?;
    }
    Ok(RecordPlace {
        column,
        nested: keys.len() == 2,
        key: keys.join(&b':'),
    })
}

/// Refuses a name that Hangar would refuse.
pub fn check_name(name: &[u8], what: &str) -> Result<()> {
    let digits = key::digits(name).unwrap_or(name);
    let fits = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    if digits.is_empty() || digits.len() > LONGEST_NAME || !digits.iter().all(fits) {
        let shown = String::from_utf8_lossy(digits);
        let why = format!(
            "{what} {shown:?}: Hangar takes at most {LONGEST_NAME} letters, digits, dots, - and _"
        );
        return Err(Error::new(ErrorKind::Os(libc::EINVAL), why));
    }
    Ok(())
}

/// Checks that the mount would show column and keys under the names behind `stage`, the last with `suffix`.
pub fn check_shown(names: &[Vec<u8>], suffix: &str) -> Result<()> {
    for (at, name) in names.iter().enumerate() {
        let suffix = if at + 1 == names.len() { suffix } else { "" };
        let as_shown = match at {
            0 => visible(&unescape(name), suffix),
            _ => key::shown(&key::stored(name), suffix),
        };
        check_shown_name(name, suffix, as_shown)?;
    }
    Ok(())
}

/// Returns the stored names of a column and, behind it, of a sample.
pub fn stored_names(names: &[Vec<u8>]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let (column, keys) = names
        .split_first()
        .map_or((&[][..], names), |(c, k)| (&c[..], k));
    (
        unescape(column),
        keys.iter().map(|k| key::stored(k)).collect(),
    )
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_the_lock_is_named() {
        assert_eq!(
            busy("npyfs:there:17:0123456789abcdef").message,
            "npyfs on host there, process 17, has the writer lock"
        );
        let other = busy("MERGE_PROCESS");
        assert!(other.message.contains("Hangar (MERGE_PROCESS)"));
        assert_eq!(other.errno(), libc::EBUSY);
    }

    #[test]
    fn records_are_named_as_in_a_mount() {
        let names = StagedNames {
            suffixes: HashMap::from([(b"a".to_vec(), ".npy"), (b"t".to_vec(), ".txt")]),
        };
        for (key, name) in [
            ("f:a:#5", "a/5.npy"),
            ("f:a:5", "a/%35.npy"),
            ("n:t:#1:de", "t/1/de.txt"),
            ("s:a:f", "a/"),
        ] {
            assert_eq!(names.name(key.as_bytes()), name.as_bytes());
        }
    }

    #[test]
    fn a_name_that_stands_for_another_is_refused() {
        let path = |path: &str| -> Vec<Vec<u8>> {
            path.split('/')
                .map(|name| name.as_bytes().to_vec())
                .collect()
        };
        for good in ["a/5", "a/%35", "a%2Enpy/x%2Enpy/7", "a/00012", "a/-1"] {
            assert!(check_shown(&path(good), ".npy").is_ok(), "{good}");
        }
        for bad in [
            "a/x.npy",
            "a/%41",
            "a/..",
            "a.npy/5",
            "a/%310x",
            "a/x.txt/5",
        ] {
            let refused = check_shown(&path(bad), ".npy").unwrap_err();
            assert_eq!(refused.errno(), libc::EINVAL, "{bad}");
        }
    }

    #[test]
    fn what_hangar_refuses_is_refused() {
        for name in [&b"a"[..], b"#5", b"..", b"-x_1.npy", &[b'a'; 64]] {
            assert!(check_name(name, "key").is_ok());
        }
        for name in [
            &b""[..],
            b"a b",
            b"a:b",
            b"#",
            "\u{e9}".as_bytes(),
            &[b'a'; 65],
        ] {
            assert!(check_name(name, "key").is_err());
        }
    }
}
