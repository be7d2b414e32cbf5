//! Changes to the LMDB tables of a directory, and their writer lock, in a separate worker process.
//!
//! liblmdb trusts the pages that it maps, so the daemon neither reads nor writes tables itself. Tables are opened
//! without lock files, as their owners do: a single row, which the format names ([`LockRow`]), excludes other writers.
//! That row is set and read in transactions that nothing guards between processes, so it is read again a moment after
//! it was set. Writers of npyfs exclude each other by flock(2) on its table before that. A table keeps the map size
//! that its owner gave it: a smaller map here is not stored.
//!
//! If the worker is killed, the row stays; the next worker that takes the lock on this host recognises it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, MdbError, WithoutTls};
use rustix::fs::{FlockOperation, flock};
use serde_bytes::ByteBuf;

use super::lmdb::LmdbError;
use npyfs_hdf5::protocol::{
    H5Error, LockRow, TableOp, TableTransaction, TablesOutcome, TablesRequest,
};

/// The prefix of the lock's value while a process of npyfs holds it; the host name follows.
const LOCK_PREFIX: &str = "npyfs:";

/// The time that a process which read the lock before it was taken may need to write its own value.
const SETTLE_TIME: Duration = Duration::from_millis(10);

/// The room in bytes for a table to grow while it is open; it is quadrupled whenever it was too small.
const MAP_ROOM: u64 = 256 << 20;
const MAX_MAP_ROOM: u64 = 4 << 30;

/// The tables of one directory, and the lock while this process holds it.
pub(super) struct Tables {
    folder: PathBuf,
    host: String,
    /// The value of the lock for this process.
    holder: Vec<u8>,
    lock: Option<(File, LockRow)>,
}

fn damaged(error: impl std::fmt::Display) -> H5Error {
    H5Error::Damaged(error.to_string())
}

impl Tables {
    /// Makes the state for the tables in `folder`; the lock is not taken yet.
    pub(super) fn new(folder: &Path) -> Self {
        let host = host();
        let nonce = std::collections::hash_map::RandomState::new();
        let nonce = std::hash::BuildHasher::hash_one(&nonce, std::process::id());
        let holder = format!("{LOCK_PREFIX}{host}:{}:{nonce:016x}", std::process::id());
        Self {
            folder: folder.to_owned(),
            host,
            holder: holder.into_bytes(),
            lock: None,
        }
    }

    /// Answers one request.
    pub(super) fn answer(&mut self, request: &TablesRequest) -> Result<TablesOutcome, H5Error> {
        match request {
            TablesRequest::Take(row) => Ok(self.take(row)?),
            TablesRequest::Write(steps)
                if self.lock.is_none() && steps.iter().any(|step| step.map_size.is_none()) =>
            {
                Err(H5Error::Unsupported("not without the writer lock".into()))
            }
            TablesRequest::Write(steps) => {
                for step in steps {
                    let outcome = self.commit(step)?;
                    if outcome != TablesOutcome::Done {
                        return Ok(outcome);
                    }
                }
                Ok(TablesOutcome::Done)
            }
            TablesRequest::Release => self.release(),
        }
    }

    /// Takes the lock if it is free, or if a dead process of npyfs on this host left it.
    fn take(&mut self, row: &LockRow) -> Result<TablesOutcome, LmdbError> {
        if self.lock.is_some() {
            return Ok(TablesOutcome::Done);
        }
        let path = self.path(&row.table, false)?;
        let file = File::open(&path).map_err(damaged)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(TablesOutcome::Held(match self.value(row)? {
                Some(value) if value.starts_with(LOCK_PREFIX.as_bytes()) => text(&value),
                _ => format!("{LOCK_PREFIX}{}", self.host),
            }));
        }
        let here = format!("{LOCK_PREFIX}{}:", self.host).into_bytes();
        let env = open(&path, MAP_ROOM, true)?;
        let mut txn = env.write_txn()?;
        let table: Database<Bytes, Bytes> = env.create_database(&mut txn, None)?;
        let held = table.get(&txn, &row.key)?.map(<[u8]>::to_vec);
        if let Some(held) =
            held.filter(|value| value[..] != row.free[..] && !value.starts_with(&here))
        {
            return Ok(TablesOutcome::Held(text(&held)));
        }
        table.put(&mut txn, &row.key, &self.holder)?;
        txn.commit()?;
        drop(env);
        std::thread::sleep(SETTLE_TIME);
        match self.value(row)? {
            Some(value) if value == self.holder => {
                self.lock = Some((file, row.clone()));
                Ok(TablesOutcome::Done)
            }
            other => Ok(TablesOutcome::Held(text(&other.unwrap_or_default()))),
        }
    }

    /// Releases the lock. A lock that another process has taken by force stays unchanged.
    pub(super) fn release(&mut self) -> Result<TablesOutcome, H5Error> {
        let Some((file, row)) = self.lock.take() else {
            return Ok(TablesOutcome::Done);
        };
        let holder = Some(ByteBuf::from(self.holder.clone()));
        let ops = vec![
            TableOp::Expect(row.key.clone(), holder),
            TableOp::Put(row.key, row.free),
        ];
        let outcome = self.commit(&TableTransaction::new(&row.table, ops));
        drop(file);
        Ok(outcome?)
    }

    /// Returns the value of the lock.
    fn value(&self, row: &LockRow) -> Result<Option<Vec<u8>>, LmdbError> {
        let env = open(&self.path(&row.table, false)?, MAP_ROOM, true)?;
        let txn = env.read_txn()?;
        let Some(table) = env.open_database::<Bytes, Bytes>(&txn, None)? else {
            return Ok(None);
        };
        Ok(table.get(&txn, &row.key)?.map(<[u8]>::to_vec))
    }

    /// Returns the path of a table or, with `deeper`, of an environment below the directory; an error if the name could
    /// lead elsewhere.
    fn path(&self, name: &str, deeper: bool) -> Result<PathBuf, H5Error> {
        let is_plain = |part: &str| {
            let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
            part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.bytes().all(plain)
        };
        if (!deeper && name.contains('/')) || !name.split('/').all(is_plain) {
            return Err(H5Error::Unsupported(format!("{name:?} names no table")));
        }
        Ok(self.folder.join(name))
    }

    /// Executes one transaction.
    fn commit(&self, step: &TableTransaction) -> Result<TablesOutcome, LmdbError> {
        let path = self.path(&step.table, step.map_size.is_some())?;
        if let Some(map_size) = step.map_size {
            let env = open(&path, map_size, false)?;
            return match change(&env, &step.ops) {
                Err(heed::Error::Mdb(MdbError::MapFull)) => Ok(TablesOutcome::Full),
                outcome => Ok(outcome?),
            };
        }
        let mut room = MAP_ROOM;
        loop {
            let env = open(&path, room, true)?;
            match change(&env, &step.ops) {
                Err(heed::Error::Mdb(MdbError::MapFull)) if room < MAX_MAP_ROOM => room *= 4,
                outcome => return Ok(outcome?),
            }
        }
    }
}

/// Returns the name of this host, without the characters that separate the parts of the lock's value.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    name.trim()
        .chars()
        .map(|c| if plain(c) { c } else { '_' })
        .collect()
}

/// Returns the beginning of a value, for messages.
fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).chars().take(200).collect()
}

/// Opens a table without a directory and a lock file; an environment with a single writer is a directory, and has both.
fn open(path: &Path, room: u64, table: bool) -> Result<Env<WithoutTls>, LmdbError> {
    let mut len = 0;
    if table {
        // liblmdb would create a missing table.
        len = std::fs::metadata(path).map_err(damaged)?.len();
    }
    let page = rustix::param::page_size() as u64;
    let map = usize::try_from((len + room).next_multiple_of(page))
        .map_err(|_| H5Error::TooLarge("LMDB file too large to map".into()))?;
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(map);
    Ok(open_to_write(&options, path, table)?)
}

/// Opens an environment for writing: the one unsafe call.
#[allow(unsafe_code)]
fn open_to_write(
    options: &EnvOpenOptions<WithoutTls>,
    path: &Path,
    table: bool,
) -> heed::Result<Env<WithoutTls>> {
    let mut options = options.clone();
    // SAFETY: only the holder of the writer lock changes the file; other programs' writers keep to that. A fault of a
    // damaged file ends this worker process, and no transaction that was not committed counts.
    unsafe {
        if table {
            options.flags(EnvFlags::NO_LOCK | EnvFlags::NO_SUB_DIR);
        }
        options.open(path)
    }
}

/// Makes all changes in one transaction.
fn change(env: &Env<WithoutTls>, ops: &[TableOp]) -> heed::Result<TablesOutcome> {
    let mut txn = env.write_txn()?;
    let table: Database<Bytes, Bytes> = env.create_database(&mut txn, None)?;
    for op in ops {
        match op {
            TableOp::Put(key, value) => table.put(&mut txn, key, value)?,
            TableOp::Add(key, value) => {
                if table.get(&txn, key)?.is_none() {
                    table.put(&mut txn, key, value)?;
                }
            }
            TableOp::Delete(key) => {
                table.delete(&mut txn, key)?;
            }
            TableOp::Clear => table.clear(&mut txn)?,
            TableOp::Expect(key, wanted) => {
                if table.get(&txn, key)? != wanted.as_ref().map(|wanted| &wanted[..]) {
                    return Ok(TablesOutcome::Differs(text(key)));
                }
            }
        }
    }
    txn.commit()?;
    Ok(TablesOutcome::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRANCHES: &str = "branch.lmdb";
    const LOCK: &[u8] = b"writerlock:";
    const FREE: &[u8] = b"LOCK_AVAILABLE";

    fn take() -> TablesRequest {
        TablesRequest::Take(LockRow {
            table: BRANCHES.into(),
            key: ByteBuf::from(LOCK),
            free: ByteBuf::from(FREE),
        })
    }

    /// Tables as Hangar makes them: large maps, no lock files.
    #[allow(unsafe_code)]
    fn repository() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            BRANCHES,
            "ref.lmdb",
            "hash.lmdb",
            "stage_ref.lmdb",
            "stage_hash.lmdb",
        ] {
            let mut options = EnvOpenOptions::new();
            options.map_size(1 << 30);
            // SAFETY: a test's own file.
            let env = unsafe {
                options.flags(EnvFlags::NO_LOCK | EnvFlags::NO_SUB_DIR);
                options.open(dir.path().join(name)).unwrap()
            };
            let mut txn = env.write_txn().unwrap();
            let table: Database<Bytes, Bytes> = env.create_database(&mut txn, None).unwrap();
            table.put(&mut txn, b"first", b"1").unwrap();
            txn.commit().unwrap();
        }
        dir
    }

    fn get(dir: &Path, table: &str, key: &[u8]) -> Option<Vec<u8>> {
        let env = open(&dir.join(table), MAP_ROOM, true).unwrap();
        let txn = env.read_txn().unwrap();
        let table = env.open_database::<Bytes, Bytes>(&txn, None).unwrap()?;
        table.get(&txn, key).unwrap().map(<[u8]>::to_vec)
    }

    fn set_lock(dir: &Path, value: &str) {
        let env = open(&dir.join(BRANCHES), MAP_ROOM, true).unwrap();
        change(&env, &[TableOp::put(LOCK, value)]).unwrap();
    }

    #[test]
    fn the_lock_is_taken_given_back_and_never_stolen() {
        let dir = repository();
        let (mut one, mut two) = (Tables::new(dir.path()), Tables::new(dir.path()));
        let write = TablesRequest::Write(vec![TableTransaction::new(
            "ref.lmdb",
            vec![TableOp::put("a", "b")],
        )]);
        assert!(one.answer(&write).is_err(), "not without the lock");
        assert_eq!(one.answer(&take()).unwrap(), TablesOutcome::Done);
        let held = get(dir.path(), BRANCHES, LOCK).unwrap();
        assert_eq!(held, one.holder);
        let refused = two.answer(&take()).unwrap();
        assert_eq!(refused, TablesOutcome::Held(text(&held)));
        assert_eq!(one.answer(&write).unwrap(), TablesOutcome::Done);
        assert_eq!(
            one.answer(&TablesRequest::Release).unwrap(),
            TablesOutcome::Done
        );
        assert_eq!(get(dir.path(), BRANCHES, LOCK).unwrap(), FREE);
        assert_eq!(get(dir.path(), "ref.lmdb", b"a").unwrap(), b"b");
        // Locks of Hangar, and of npyfs on another host, are respected.
        for other in [
            "3b9e7a36-4f0c-4a8f-9a3e-6b1f6a3c2d11",
            "npyfs:elsewhere-x:1:00",
        ] {
            set_lock(dir.path(), other);
            let refused = two.answer(&take()).unwrap();
            assert_eq!(refused, TablesOutcome::Held(other.into()));
            assert_eq!(two.release().unwrap(), TablesOutcome::Done);
            assert_eq!(get(dir.path(), BRANCHES, LOCK).unwrap(), other.as_bytes());
        }
        // This is a lock of a dead process of npyfs, whose file lock is gone.
        set_lock(dir.path(), &format!("npyfs:{}:1:00", host()));
        assert_eq!(two.answer(&take()).unwrap(), TablesOutcome::Done);
        // Another process forced the lock and keeps it.
        set_lock(dir.path(), "other");
        assert!(matches!(two.release().unwrap(), TablesOutcome::Differs(_)));
        assert_eq!(get(dir.path(), BRANCHES, LOCK).unwrap(), b"other");
    }

    #[test]
    fn a_step_happens_or_does_not() {
        let dir = repository();
        let mut tables = Tables::new(dir.path());
        tables.answer(&take()).unwrap();
        let expect = |key: &str, value: &str| {
            TableOp::Expect(ByteBuf::from(key), Some(ByteBuf::from(value)))
        };
        let steps = vec![
            TableTransaction::new(
                "hash.lmdb",
                vec![TableOp::add("first", "2"), TableOp::add("k", "v")],
            ),
            TableTransaction::new(
                "stage_ref.lmdb",
                vec![TableOp::Clear, TableOp::put("new", "x"), expect("new", "y")],
            ),
            TableTransaction::new("stage_hash.lmdb", vec![TableOp::Clear]),
        ];
        let outcome = tables.answer(&TablesRequest::Write(steps)).unwrap();
        assert_eq!(outcome, TablesOutcome::Differs("new".into()));
        let dir = dir.path();
        assert_eq!(get(dir, "hash.lmdb", b"first").unwrap(), b"1");
        assert_eq!(get(dir, "hash.lmdb", b"k").unwrap(), b"v");
        assert_eq!(get(dir, "stage_ref.lmdb", b"first").unwrap(), b"1");
        assert_eq!(get(dir, "stage_hash.lmdb", b"first").unwrap(), b"1");
        let mut write = |table: &str, ops| {
            tables.answer(&TablesRequest::Write(vec![TableTransaction::new(
                table, ops,
            )]))
        };
        assert!(write("../ref.lmdb", vec![]).is_err());
        let mut write = |path: &str, ops| {
            let step = TableTransaction::of_one_writer(path, 300_000_000, ops);
            tables.answer(&TablesRequest::Write(vec![step]))
        };
        assert!(write("data/30/../../x", vec![]).is_err());
        std::fs::create_dir_all(dir.join("data/30/abc")).unwrap();
        let put = vec![TableOp::put("0123", "text")];
        assert_eq!(write("data/30/abc", put).unwrap(), TablesOutcome::Done);
        let names = std::fs::read_dir(dir.join("data/30/abc")).unwrap().count();
        assert_eq!(names, 2, "data.mdb and lock.mdb");
        let large = vec![
            TableOp::put("0124", vec![0; 290_000_000]),
            TableOp::put("0125", vec![0; 20_000_000]),
        ];
        assert_eq!(write("data/30/abc", large).unwrap(), TablesOutcome::Full);
    }

    #[test]
    fn a_table_outgrows_its_map() {
        let dir = repository();
        let mut tables = Tables::new(dir.path());
        tables.answer(&take()).unwrap();
        let value = usize::try_from(MAP_ROOM).unwrap() + (1 << 20);
        let step = TableTransaction::new("ref.lmdb", vec![TableOp::put("large", vec![7; value])]);
        let outcome = tables.answer(&TablesRequest::Write(vec![step])).unwrap();
        assert_eq!(outcome, TablesOutcome::Done);
        assert_eq!(get(dir.path(), "ref.lmdb", b"large").unwrap().len(), value);
    }
}
