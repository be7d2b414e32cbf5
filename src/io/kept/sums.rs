//! The checksums of a copy, and what it is of: a small file beside it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes that have one checksum.
pub(super) const BLOCK: u64 = 1 << 20;

/// Bytes of the largest such file that is read: that of a copy of 2 TiB.
const LARGEST: u64 = 32 << 20;

/// What a copy is of, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The store.
    pub store: String,
    /// The path in it.
    pub path: String,
}

/// The checksums of a copy.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sums {
    /// What the copy is of.
    pub about: About,
    /// Its bytes.
    pub len: u64,
    /// A checksum for each block.
    pub blocks: Vec<u64>,
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "damaged checksums")
}

impl Sums {
    /// Reads those of a copy of `len` bytes.
    pub(super) fn read(file: &File, len: u64) -> io::Result<Self> {
        let size = file.metadata()?.len();
        let size = usize::try_from(size.min(LARGEST)).unwrap_or(0);
        let mut bytes = vec![0; size];
        file.read_exact_at(&mut bytes, 0)?;
        let (text, sum) = bytes.split_last_chunk::<8>().ok_or_else(damaged)?;
        let sums: Self = match xxh3_64(text) == u64::from_le_bytes(*sum) {
            true => postcard::from_bytes(text).map_err(|_| damaged())?,
            false => return Err(damaged()),
        };
        let fits = sums.len == len && sums.blocks.len() as u64 == len.div_ceil(BLOCK);
        fits.then_some(sums).ok_or_else(damaged)
    }

    /// Writes them into an empty file.
    pub(super) fn write(&self, file: &File) -> io::Result<()> {
        let mut bytes = postcard::to_stdvec(self).map_err(io::Error::other)?;
        let sum = xxh3_64(&bytes);
        bytes.extend(sum.to_le_bytes());
        file.write_all_at(&bytes, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_that_were_cut_or_changed_are_refused() {
        let sums = Sums {
            about: About {
                store: "s.h5".to_owned(),
                path: "a.npy".to_owned(),
            },
            len: BLOCK + 1,
            blocks: vec![1, u64::MAX],
        };
        let file = tempfile::tempfile().unwrap();
        sums.write(&file).unwrap();
        assert_eq!(Sums::read(&file, BLOCK + 1).unwrap(), sums);
        assert!(Sums::read(&file, BLOCK).is_err());
        let size = file.metadata().unwrap().len();
        for at in 0..size {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1], at).unwrap();
            assert!(Sums::read(&file, BLOCK + 1).is_err(), "{at}");
            file.write_all_at(&byte, at).unwrap();
        }
        for len in 0..size {
            let cut = tempfile::tempfile().unwrap();
            sums.write(&cut).unwrap();
            cut.set_len(len).unwrap();
            assert!(Sums::read(&cut, BLOCK + 1).is_err(), "{len}");
        }
    }
}
