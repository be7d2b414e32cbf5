//! LMDB files, tables of keys and values, read in the worker process.
//!
//! liblmdb trusts the pages that it maps, so a damaged file may kill the process that reads it; here that costs a
//! worker. Files are opened read-only, without a lock file and without a subdirectory, once per file in this process.
//! Without locks a writer may reuse pages under a reader: an answer counts only if no transaction was committed during
//! the read, and is read again otherwise. A transaction lasts for one request.

use std::num::NonZeroUsize;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, RoTxn, WithoutTls};
use lru::LruCache;
use serde_bytes::ByteBuf;

use npyfs_hdf5::protocol::{Answer, H5Error, LmdbRequest, PackedValues};
use npyfs_io::file::StoreFile;
use npyfs_io::hex::push_hex;

/// The largest number of environments that are kept open.
const MAX_OPEN: usize = 32;

/// The largest number of times that a read is repeated because a writer committed meanwhile.
const MAX_TRIES: usize = 100;

/// The largest total size in bytes of the values in one answer.
const MAX_BYTES: usize = 1 << 30;

/// The room in bytes for a file to grow while it is open; beyond it the file is opened again.
const MAP_ROOM: u64 = 256 << 20;

/// The open environments, by path, each with the device and inode that the path led to.
pub(super) struct Environments {
    open: LruCache<PathBuf, ((u64, u64), Env<WithoutTls>)>,
}

impl Default for Environments {
    fn default() -> Self {
        Self {
            open: LruCache::new(NonZeroUsize::new(MAX_OPEN).unwrap_or(NonZeroUsize::MIN)),
        }
    }
}

/// The error of a call to liblmdb, or of the use of its result.
#[derive(Debug)]
pub(super) struct LmdbError(H5Error);

impl From<heed::Error> for LmdbError {
    fn from(error: heed::Error) -> Self {
        Self(H5Error::Damaged(format!("LMDB: {error}")))
    }
}

impl From<H5Error> for LmdbError {
    fn from(error: H5Error) -> Self {
        Self(error)
    }
}

impl From<LmdbError> for H5Error {
    fn from(error: LmdbError) -> Self {
        error.0
    }
}

impl Environments {
    /// Answers one request about one file.
    pub(super) fn answer(
        &mut self,
        file: &StoreFile,
        request: &LmdbRequest,
    ) -> Result<Answer, H5Error> {
        let inode = (file.identity.dev, file.identity.ino);
        // heed opens a path once: a file that replaced another one has to wait for the end of the old environment.
        if self
            .open
            .peek(&file.path)
            .is_some_and(|(known, _)| *known != inode)
        {
            self.open.pop(&file.path);
        }
        let mut failure = None;
        for attempt in 0..MAX_TRIES {
            if attempt > 0 {
                // The writer has just committed; its next commit is some milliseconds away.
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            let env = match self.open.get(&file.path) {
                Some((_, env)) => env.clone(),
                None => {
                    let env = self.opened(&file.path)?;
                    self.open.put(file.path.clone(), (inode, env.clone()));
                    env
                }
            };
            match read(&env, request).map_err(H5Error::from) {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => failure = None,
                // The file may have outgrown its map, or a writer may have reused pages during the read.
                Err(e) => {
                    drop(env);
                    self.open.pop(&file.path);
                    if failure.as_ref() == Some(&e.to_string()) && attempt > 2 {
                        return Err(e);
                    }
                    failure = Some(e.to_string());
                }
            }
        }
        Err(H5Error::Damaged(failure.unwrap_or_else(|| {
            "LMDB: a writer commits all the time".into()
        })))
    }

    /// Opens a file. Environments that were not used recently are closed if there is no room to map it.
    fn opened(&mut self, path: &Path) -> Result<Env<WithoutTls>, LmdbError> {
        loop {
            match open(path) {
                Err(_) if self.open.pop_lru().is_some() => {}
                opened => return opened,
            }
        }
    }
}

fn open(path: &Path) -> Result<Env<WithoutTls>, LmdbError> {
    let len = std::fs::metadata(path)
        .map_err(|e| H5Error::Damaged(e.to_string()))?
        .len();
    let page = rustix::param::page_size() as u64;
    let map = usize::try_from((len + MAP_ROOM).next_multiple_of(page))
        .map_err(|_| H5Error::TooLarge("LMDB file too large to map".into()))?;
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(map);
    Ok(open_unlocked(&options, path)?)
}

/// Opens an environment for reading, without locks: the one unsafe call.
#[allow(unsafe_code)]
fn open_unlocked(
    options: &EnvOpenOptions<WithoutTls>,
    path: &Path,
) -> heed::Result<Env<WithoutTls>> {
    let mut options = options.clone();
    // SAFETY: the flags make a reader that writes nothing. Others may change or truncate the mapped file:
    // what is read meanwhile is thrown away (`read`), and a fault ends this worker process only.
    unsafe {
        options.flags(EnvFlags::READ_ONLY | EnvFlags::NO_LOCK | EnvFlags::NO_SUB_DIR);
        options.open(path)
    }
}

/// Reads in one transaction; returns `None` if another one was committed meanwhile.
fn read(env: &Env<WithoutTls>, request: &LmdbRequest) -> Result<Option<Answer>, LmdbError> {
    let txn = env.read_txn()?;
    let Some(table) = env.open_database::<Bytes, Bytes>(&txn, None)? else {
        return Err(H5Error::Damaged("LMDB: no main table".into()).into());
    };
    let answer = answer(&table, &txn, request);
    // A writer reuses pages that were free before the last commit, so a snapshot survives one more transaction, but not
    // two. The check is therefore that the first of them was not committed yet.
    if env.info().last_txn_id != txn.id() {
        return Ok(None);
    }
    answer.map(Some)
}

fn answer(
    table: &Database<Bytes, Bytes>,
    txn: &RoTxn<'_, WithoutTls>,
    request: &LmdbRequest,
) -> Result<Answer, LmdbError> {
    let mut room = MAX_BYTES;
    let mut take = |value: &[u8]| {
        room = room
            .checked_sub(value.len())
            .ok_or_else(|| H5Error::TooLarge("LMDB: values of more than 1 GiB".into()))?;
        Ok::<_, H5Error>(ByteBuf::from(value))
    };
    // liblmdb refuses empty keys.
    let get = |key: &ByteBuf| match key.is_empty() {
        true => Ok(None),
        false => table.get(txn, key),
    };
    Ok(match request {
        LmdbRequest::Get { keys } => Answer::Values(values(table, txn, keys, &mut take)?),
        LmdbRequest::Value { key } => {
            let value = get(key)?.ok_or_else(|| H5Error::Damaged("there is no such row".into()))?;
            Answer::Bytes(take(value)?.into_vec())
        }
        LmdbRequest::Hashed {
            prefix,
            width,
            hashes,
        } => {
            let hashes: Vec<&[u8]> = hashes.chunks_exact((*width).max(1)).collect();
            Answer::Packed(packed(table, txn, prefix, &hashes)?)
        }
        LmdbRequest::Lengths { keys } => Answer::Lengths(
            keys.iter()
                .map(|key| Ok(get(key)?.map(|value| value.len() as u64)))
                .collect::<Result<_, LmdbError>>()?,
        ),
        LmdbRequest::Rows {
            prefix,
            after,
            most,
            longest,
        } => {
            let from = match after {
                Some(after) => Bound::Excluded(after.as_slice()),
                None if prefix.is_empty() => Bound::Unbounded,
                None => Bound::Included(prefix.as_slice()),
            };
            let mut rows = Vec::new();
            for row in table.range(txn, &(from, Bound::Unbounded))?.take(*most) {
                let (key, value) = row?;
                if !key.starts_with(prefix) {
                    break;
                }
                let shown = if value.len() > *longest { &[] } else { value };
                rows.push((take(key)?, take(shown)?));
            }
            Answer::Rows(rows)
        }
    })
}

/// The largest number of rows that are skipped one by one before a look-up from the root.
const MAX_STEPS: usize = 16;

/// A key and its value.
type KeyValue<'t> = (&'t [u8], &'t [u8]);

/// The rows from a key on.
type RowRange<'t> = heed::RoRange<'t, Bytes, Bytes>;

/// Finds the values of keys that come in order: the rows of many keys lie close together.
struct KeyWalk<'t> {
    table: &'t Database<Bytes, Bytes>,
    txn: &'t RoTxn<'t, WithoutTls>,
    /// The current row, and the rows behind it.
    at: Option<(Option<KeyValue<'t>>, RowRange<'t>)>,
}

impl<'t> KeyWalk<'t> {
    fn new(table: &'t Database<Bytes, Bytes>, txn: &'t RoTxn<'t, WithoutTls>) -> Self {
        Self {
            table,
            txn,
            at: None,
        }
    }

    fn seek(&self, key: &[u8]) -> heed::Result<RowRange<'t>> {
        let from = (Bound::Included(key), Bound::Unbounded);
        self.table.range(self.txn, &from)
    }

    /// Returns the value of a key, which must not precede the previous key.
    fn value(&mut self, key: &[u8]) -> heed::Result<Option<&'t [u8]>> {
        let (mut row, mut rows) = match self.at.take() {
            Some(at) => at,
            None => {
                let mut rows = self.seek(key)?;
                (rows.next().transpose()?, rows)
            }
        };
        let mut steps = 0;
        while row.is_some_and(|(found, _)| found < key) {
            if steps == MAX_STEPS {
                rows = self.seek(key)?;
            }
            row = rows.next().transpose()?;
            steps += 1;
        }
        self.at = Some((row, rows));
        Ok(row
            .filter(|(found, _)| *found == key)
            .map(|(_, value)| value))
    }
}

/// Returns the values of keys, in order.
fn values(
    table: &Database<Bytes, Bytes>,
    txn: &RoTxn<'_, WithoutTls>,
    keys: &[ByteBuf],
    take: &mut dyn FnMut(&[u8]) -> Result<ByteBuf, H5Error>,
) -> Result<Vec<Option<ByteBuf>>, LmdbError> {
    let mut order: Vec<usize> = (0..keys.len()).filter(|&i| !keys[i].is_empty()).collect();
    order.sort_unstable_by_key(|&i| &keys[i]);
    let mut found = vec![None; keys.len()];
    let mut walk = KeyWalk::new(table, txn);
    for i in order {
        found[i] = walk.value(&keys[i])?.map(&mut *take).transpose()?;
    }
    Ok(found)
}

/// Returns the values of keys that end in hashes, in order.
fn packed(
    table: &Database<Bytes, Bytes>,
    txn: &RoTxn<'_, WithoutTls>,
    prefix: &[u8],
    hashes: &[&[u8]],
) -> Result<PackedValues, LmdbError> {
    // Hexadecimal digits sort like the bytes.
    let mut order: Vec<usize> = (0..hashes.len()).collect();
    order.sort_unstable_by_key(|&i| hashes[i]);
    let mut found: Vec<&[u8]> = vec![&[]; hashes.len()];
    let mut walk = KeyWalk::new(table, txn);
    let mut key = prefix.to_vec();
    for i in order {
        key.truncate(prefix.len());
        push_hex(hashes[i], &mut key);
        found[i] = walk.value(&key)?.unwrap_or_default();
    }
    let len: usize = found.iter().map(|value| value.len()).sum();
    if len > MAX_BYTES {
        return Err(H5Error::TooLarge("LMDB: values of more than 1 GiB".into()).into());
    }
    let mut packed = PackedValues::default();
    packed.text.reserve_exact(len);
    for value in found {
        packed.text.extend_from_slice(value);
        // The length is at most `MAX_BYTES`.
        packed.ends.push(packed.text.len() as u32);
    }
    Ok(packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a file as Hangar makes it: no subdirectory, no lock file.
    #[allow(unsafe_code)]
    fn write(path: &Path, rows: &[(&str, &str)]) {
        let mut options = EnvOpenOptions::new();
        options.map_size(1 << 20);
        // SAFETY: a test's own file.
        let env = unsafe {
            options.flags(EnvFlags::NO_LOCK | EnvFlags::NO_SUB_DIR);
            options.open(path).unwrap()
        };
        let mut txn = env.write_txn().unwrap();
        let table: Database<Bytes, Bytes> = env.create_database(&mut txn, None).unwrap();
        for (key, value) in rows {
            table
                .put(&mut txn, key.as_bytes(), value.as_bytes())
                .unwrap();
        }
        txn.commit().unwrap();
    }

    #[test]
    fn rows_are_found_and_the_next_commit_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.lmdb");
        write(
            &path,
            &[
                ("a:1", "one"),
                ("a:2", "two"),
                ("b:1", ""),
                ("h:0c", "twelve"),
                ("h:1a", "twenty-six"),
            ],
        );
        let file = StoreFile::open(&path).unwrap();
        let before = std::fs::read(&path).unwrap();
        let mut environments = Environments::default();
        let mut ask = |request| environments.answer(&file, &request).unwrap();
        let bytes = |text: &str| ByteBuf::from(text.as_bytes());
        let keys: Vec<_> = ["a:2", "no", "", "b:1"].map(bytes).into();
        let Answer::Values(values) = ask(LmdbRequest::Get { keys: keys.clone() }) else {
            panic!("another answer");
        };
        assert_eq!(values, [Some(bytes("two")), None, None, Some(bytes(""))]);
        let hashes = ByteBuf::from([0x1a, 0x0c, 0xff, 0x0c]);
        let hashed = |width, hashes: &ByteBuf| LmdbRequest::Hashed {
            prefix: bytes("h:"),
            width,
            hashes: hashes.clone(),
        };
        let Answer::Packed(packed) = ask(hashed(1, &hashes)) else {
            panic!("another answer");
        };
        assert_eq!(packed.text, bytes("twenty-sixtwelvetwelve"));
        assert_eq!(packed.ends, [10, 16, 16, 22]);
        assert!(packed.is_valid(4) && !packed.is_valid(3));
        let Answer::Lengths(lengths) = ask(LmdbRequest::Lengths { keys }) else {
            panic!("another answer");
        };
        assert_eq!(lengths, [Some(3), None, None, Some(0)]);
        let mut rows = |after: Option<&str>, longest| {
            let request = LmdbRequest::Rows {
                prefix: b"a:".to_vec(),
                after: after.map(|a| a.as_bytes().to_vec()),
                most: 10,
                longest,
            };
            match ask(request) {
                Answer::Rows(rows) => rows,
                _ => panic!("another answer"),
            }
        };
        assert_eq!(
            rows(None, 0),
            [(bytes("a:1"), bytes("")), (bytes("a:2"), bytes(""))]
        );
        assert_eq!(rows(Some("a:1"), 3), [(bytes("a:2"), bytes("two"))]);
        assert_eq!(std::fs::read(&path).unwrap(), before);
        let names = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(names, 1, "no lock file");
    }
}
