//! LMDB files, tables of keys and values, read in the worker process.
//!
//! liblmdb trusts the pages it maps, so a damaged file may kill the process that reads it; here that costs a
//! worker. Opened read-only, without a lock file and without a subdirectory, once per file in this process.
//! Without locks a writer may reuse pages under a reader: an answer counts only if no transaction was
//! committed while it was read, otherwise it is read again. Transactions last for one request.

pub mod tables;
pub mod writer;

use std::num::NonZeroUsize;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, RoTxn, WithoutTls};
use lru::LruCache;
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::{Answer, H5, H5Error, Request, Sink};
use crate::io::file::StoreFile;
use crate::io::hex::push_hex;

/// A question about an LMDB file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum LmdbRequest {
    /// Asks for the values of keys.
    Get {
        /// The keys, in any order.
        keys: Vec<ByteBuf>,
    },
    /// Asks for the value of one key, which must be there, as plain bytes.
    Value {
        /// The key.
        key: ByteBuf,
    },
    /// Asks for the values of keys that end in a hash.
    Hashed {
        /// The prefix of the keys.
        prefix: ByteBuf,
        /// Bytes of a hash.
        width: usize,
        /// The hashes, one after the other; a key has one in hexadecimal digits.
        hashes: ByteBuf,
    },
    /// Asks for the lengths of the values of keys, in bytes.
    Lengths {
        /// The keys, in any order.
        keys: Vec<ByteBuf>,
    },
    /// Asks for rows in order of key.
    Rows {
        /// The prefix of the keys.
        prefix: Vec<u8>,
        /// The key behind which the rows begin; `None`: at the first.
        after: Option<Vec<u8>>,
        /// Most rows in the answer.
        most: usize,
        /// Bytes of the longest value wanted; a longer one is left out, and its row has an empty value.
        longest: usize,
    },
}

/// Values one after the other; an empty one where there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedValues {
    /// The bytes of all values.
    pub text: ByteBuf,
    /// The offset at which each value ends.
    pub ends: Vec<u32>,
}

impl PackedValues {
    /// Returns whether these are values of so many keys, and lie within the bytes.
    fn is_valid(&self, keys: usize) -> bool {
        self.ends.len() == keys
            && self.ends.is_sorted()
            && self.ends.last().map_or(0, |&end| end as usize) == self.text.len()
    }
}

/// Environments that are kept open at most.
const MAX_OPEN: usize = 32;

/// The most times that a read is repeated because a writer came in between.
const MAX_TRIES: usize = 100;

/// Most bytes of values in one answer.
const MAX_BYTES: usize = 1 << 30;

/// Room for a file to grow while it is open, in bytes; past it the file is opened again.
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

impl From<heed::Error> for H5Error {
    fn from(error: heed::Error) -> Self {
        Self::Damaged(format!("LMDB: {error}"))
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
        // heed opens a path once: a file that took the place of another one has to wait for its end.
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
            match read(&env, request) {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => failure = None,
                // The file may have outgrown its map, or pages were taken from under us.
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

    /// Opens a file. What was not used lately is closed if there is no room to map it.
    fn opened(&mut self, path: &Path) -> Result<Env<WithoutTls>, H5Error> {
        loop {
            match open(path) {
                Err(_) if self.open.pop_lru().is_some() => {}
                opened => return opened,
            }
        }
    }
}

fn open(path: &Path) -> Result<Env<WithoutTls>, H5Error> {
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

/// Opens an environment to read, without locks: the one unsafe call.
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

/// Reads in one transaction; `None` if another one was committed meanwhile.
fn read(env: &Env<WithoutTls>, request: &LmdbRequest) -> Result<Option<Answer>, H5Error> {
    let txn = env.read_txn()?;
    let Some(table) = env.open_database::<Bytes, Bytes>(&txn, None)? else {
        return Err(H5Error::Damaged("LMDB: no main table".into()));
    };
    let answer = answer(&table, &txn, request);
    // A writer takes pages that were free before the last commit, so a snapshot outlives one more
    // transaction, but not two: that the first was not committed yet is what counts.
    if env.info().last_txn_id != txn.id() {
        return Ok(None);
    }
    answer.map(Some)
}

fn answer(
    table: &Database<Bytes, Bytes>,
    txn: &RoTxn<'_, WithoutTls>,
    request: &LmdbRequest,
) -> Result<Answer, H5Error> {
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
                .collect::<Result<_, H5Error>>()?,
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

impl H5 {
    /// Returns the values of keys of an LMDB file, in their order.
    pub fn values(
        &self,
        file: &StoreFile,
        keys: Vec<Vec<u8>>,
    ) -> Result<Vec<Option<ByteBuf>>, H5Error> {
        let wanted = keys.len();
        let keys = keys.into_iter().map(ByteBuf::from).collect();
        match self.call(file, Request::Lmdb(LmdbRequest::Get { keys }))? {
            Answer::Values(values) if values.len() == wanted => Ok(values),
            _ => Err(H5Error::unexpected_answer()),
        }
    }

    /// Hands on the value of a key of an LMDB file as it comes; see [`H5::stream`].
    pub fn stream_value(
        &self,
        file: &StoreFile,
        key: &[u8],
        sink: &mut Sink<'_>,
    ) -> Result<(), H5Error> {
        let key = ByteBuf::from(key);
        self.stream(file, Request::Lmdb(LmdbRequest::Value { key }), sink)
    }

    /// Returns the values of keys of an LMDB file that are `prefix` and a hash in hexadecimal digits.
    pub fn hashed<const N: usize>(
        &self,
        file: &StoreFile,
        prefix: &[u8],
        hashes: &[[u8; N]],
    ) -> Result<PackedValues, H5Error> {
        let request = LmdbRequest::Hashed {
            prefix: ByteBuf::from(prefix),
            width: N,
            hashes: ByteBuf::from(hashes.as_flattened()),
        };
        match self.call(file, Request::Lmdb(request))? {
            Answer::Packed(packed) if packed.is_valid(hashes.len()) => Ok(packed),
            _ => Err(H5Error::unexpected_answer()),
        }
    }

    /// Returns the lengths of the values of keys of an LMDB file, in bytes, in their order.
    pub fn lengths(
        &self,
        file: &StoreFile,
        keys: Vec<Vec<u8>>,
    ) -> Result<Vec<Option<u64>>, H5Error> {
        let wanted = keys.len();
        let keys = keys.into_iter().map(ByteBuf::from).collect();
        let request = LmdbRequest::Lengths { keys };
        match self.call(file, Request::Lmdb(request))? {
            Answer::Lengths(lengths) if lengths.len() == wanted => Ok(lengths),
            _ => Err(H5Error::unexpected_answer()),
        }
    }

    /// Returns rows of an LMDB file, in order of key; see [`LmdbRequest::Rows`].
    pub fn rows(
        &self,
        file: &StoreFile,
        prefix: &[u8],
        after: Option<Vec<u8>>,
        most: usize,
        longest: usize,
    ) -> Result<Vec<(ByteBuf, ByteBuf)>, H5Error> {
        let request = LmdbRequest::Rows {
            prefix: prefix.to_vec(),
            after,
            most,
            longest,
        };
        match self.call(file, Request::Lmdb(request))? {
            Answer::Rows(rows) => Ok(rows),
            _ => Err(H5Error::unexpected_answer()),
        }
    }
}

/// The most rows that are stepped over before the next one is looked up anew.
const MAX_STEPS: usize = 16;

/// A key and its value.
type KeyValue<'t> = (&'t [u8], &'t [u8]);

/// Rows from a key on.
type RowRange<'t> = heed::RoRange<'t, Bytes, Bytes>;

/// Finds values of keys that are asked for in order: where there are many, their rows lie close together.
struct KeyWalk<'t> {
    table: &'t Database<Bytes, Bytes>,
    txn: &'t RoTxn<'t, WithoutTls>,
    /// The row that was reached, and those behind it.
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

    /// Returns the value of a key, which is not below the key before.
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

/// Returns the values of keys, in their order.
fn values(
    table: &Database<Bytes, Bytes>,
    txn: &RoTxn<'_, WithoutTls>,
    keys: &[ByteBuf],
    take: &mut dyn FnMut(&[u8]) -> Result<ByteBuf, H5Error>,
) -> Result<Vec<Option<ByteBuf>>, H5Error> {
    let mut order: Vec<usize> = (0..keys.len()).filter(|&i| !keys[i].is_empty()).collect();
    order.sort_unstable_by_key(|&i| &keys[i]);
    let mut found = vec![None; keys.len()];
    let mut walk = KeyWalk::new(table, txn);
    for i in order {
        found[i] = walk.value(&keys[i])?.map(&mut *take).transpose()?;
    }
    Ok(found)
}

/// Returns the values of keys that end in hashes, in their order.
fn packed(
    table: &Database<Bytes, Bytes>,
    txn: &RoTxn<'_, WithoutTls>,
    prefix: &[u8],
    hashes: &[&[u8]],
) -> Result<PackedValues, H5Error> {
    // Hexadecimal digits are in the order of the bytes.
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
        return Err(H5Error::TooLarge("LMDB: values of more than 1 GiB".into()));
    }
    let mut packed = PackedValues::default();
    packed.text.reserve_exact(len);
    for value in found {
        packed.text.extend_from_slice(value);
        // No more than `MAX_BYTES`.
        packed.ends.push(packed.text.len() as u32);
    }
    Ok(packed)
}

#[cfg(test)]
mod tests;
