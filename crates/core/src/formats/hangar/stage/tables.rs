//! Hangar's tables, as described to the worker that writes them.

use std::io;
use std::path::Path;

use serde_bytes::ByteBuf;

use crate::formats::hangar::BRANCHES;
use npyfs_hdf5::{LmdbWriter, LockRow};

/// The tables beside [`BRANCHES`].
pub const OTHERS: [&str; 4] = ["ref.lmdb", "hash.lmdb", "stage_ref.lmdb", "stage_hash.lmdb"];

/// The key of the writer lock (`records/heads.py`).
pub const LOCK: &[u8] = b"writerlock:";

/// The value of the writer lock while it is free.
pub const FREE: &[u8] = b"LOCK_AVAILABLE";

/// The map size of a file of samples, in bytes: past it a new file begins (`backends/lmdb_30.py`).
pub const SAMPLES_MAP_SIZE: u64 = 300_000_000;

/// Makes the daemon's end of the worker that writes the tables in `folder`.
pub fn writer(program: &Path, folder: &Path) -> io::Result<LmdbWriter> {
    let lock = LockRow {
        table: BRANCHES.into(),
        key: ByteBuf::from(LOCK),
        free: ByteBuf::from(FREE),
    };
    LmdbWriter::new(program, folder, lock)
}
