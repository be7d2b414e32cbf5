//! LMDB files, tables of keys and values: questions about them, and changes to those of a directory.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

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
    pub fn is_valid(&self, keys: usize) -> bool {
        self.ends.len() == keys
            && self.ends.is_sorted()
            && self.ends.last().map_or(0, |&end| end as usize) == self.text.len()
    }
}

/// The row that is the writer lock: the process that has set it to a value of its own may write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRow {
    /// The table that it is in.
    pub table: String,
    /// The key.
    pub key: ByteBuf,
    /// Its value while no process has the lock.
    pub free: ByteBuf,
}

/// One change to a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TableOp {
    /// Sets the value of a key.
    Put(ByteBuf, ByteBuf),
    /// Sets the value of a key that has none.
    Add(ByteBuf, ByteBuf),
    /// Removes a key, if it is there.
    Delete(ByteBuf),
    /// Removes all keys.
    Clear,
    /// Demands that a key has this value, or none; else this transaction and those behind it are not made.
    Expect(ByteBuf, Option<ByteBuf>),
}

impl TableOp {
    /// Sets the value of a key.
    pub fn put(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        Self::Put(ByteBuf::from(key.into()), ByteBuf::from(value.into()))
    }

    /// Sets the value of a key that has none.
    pub fn add(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        Self::Add(ByteBuf::from(key.into()), ByteBuf::from(value.into()))
    }

    /// Removes a key, if it is there.
    pub fn delete(key: impl Into<Vec<u8>>) -> Self {
        Self::Delete(ByteBuf::from(key.into()))
    }
}

/// Changes to one table, made in one transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableTransaction {
    /// The name of a table, or the path of an environment of one writer; below the directory.
    pub table: String,
    /// The map size of an environment of one writer, in bytes: a directory with a lock file of its own, written without
    /// the writer lock. `None` for a table.
    pub map_size: Option<u64>,
    /// The changes, in their order.
    pub ops: Vec<TableOp>,
}

impl TableTransaction {
    /// Makes a transaction on a table, which is written under the writer lock.
    pub fn new(table: &str, ops: Vec<TableOp>) -> Self {
        Self {
            table: table.to_owned(),
            map_size: None,
            ops,
        }
    }

    /// Makes a transaction on an environment of one writer, which may grow to `map_size` bytes.
    pub fn of_one_writer(path: &str, map_size: u64, ops: Vec<TableOp>) -> Self {
        Self {
            table: path.to_owned(),
            map_size: Some(map_size),
            ops,
        }
    }
}

/// A request to the worker that writes tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TablesRequest {
    /// Takes the writer lock.
    Take(LockRow),
    /// Makes one transaction after the other. Environments of one writer are written without the lock, too.
    Write(Vec<TableTransaction>),
    /// Gives the writer lock back.
    Release,
}

/// The outcome of a [`TablesRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TablesOutcome {
    /// All of it is done.
    Done,
    /// Somebody else has the writer lock: its value.
    Held(String),
    /// This key has not the value that was demanded.
    Differs(String),
    /// The environment of one writer has no more room.
    Full,
}
