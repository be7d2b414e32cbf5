//! Everything that the bytes of a content depend on, as one hash: versions of files and places in them.
//!
//! Contents with the same provenance have the same bytes. The hash is collision-resistant, as it covers data from
//! stores, which are untrusted.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use blake2b_simd::{Params, State};

use super::file::Identity;
use super::hex;

/// Bytes of the hash.
const BYTES: usize = 20;

/// The time within which a file may change without a trace, as times are counted in kernel ticks or whole seconds.
const TRACELESS: i64 = 2;

/// The provenance of a content, built part by part.
pub struct Provenance {
    state: State,
    now: i64,
    settled: bool,
}

impl Default for Provenance {
    fn default() -> Self {
        Self::new()
    }
}

impl Provenance {
    /// Begins with the version of this program, as the program produces the bytes.
    pub fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        let mut own = Self {
            state: Params::new().hash_length(BYTES).to_state(),
            now,
            settled: true,
        };
        own.add("npyfs", env!("CARGO_PKG_VERSION").as_bytes());
        own
    }

    /// Adds bytes with a meaning.
    pub fn add(&mut self, meaning: &str, bytes: &[u8]) {
        for part in [meaning.as_bytes(), bytes] {
            self.state.update(&(part.len() as u64).to_le_bytes());
            self.state.update(part);
        }
    }

    /// Adds numbers with a meaning.
    pub fn numbers(&mut self, meaning: &str, numbers: &[u64]) {
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        self.add(meaning, &bytes);
    }

    /// Adds a version of a file, with its path if it has one. Device numbers may differ after a restart, so they do not
    /// count. Inode numbers are unreliable on some network file systems, so the path counts.
    pub fn file(&mut self, path: &Path, identity: &Identity) {
        self.add("path", path.as_os_str().as_encoded_bytes());
        let times = identity.times();
        self.numbers("file", &[identity.ino, identity.size]);
        for (seconds, nanos) in times {
            self.numbers("time", &[seconds.cast_unsigned(), nanos.cast_unsigned()]);
            self.settled &= seconds.abs_diff(self.now) > TRACELESS.unsigned_abs();
        }
    }

    /// Returns true if every later change of the files changes their times.
    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// Returns the hash of everything that was added, as a name.
    pub fn key(&self) -> String {
        hex::encode(self.state.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(parts: &[(&str, &[u8])]) -> String {
        let mut provenance = Provenance::new();
        for (meaning, bytes) in parts {
            provenance.add(meaning, bytes);
        }
        provenance.key()
    }

    #[test]
    fn no_part_runs_into_the_next() {
        assert_eq!(key(&[("a", b"b")]), key(&[("a", b"b")]));
        assert_ne!(key(&[("a", b"bc")]), key(&[("ab", b"c")]));
        assert_ne!(key(&[("a", b"b"), ("c", b"")]), key(&[("a", b"bc")]));
        assert_eq!(key(&[]).len(), 2 * BYTES);
    }

    #[test]
    fn a_file_of_just_now_is_not_settled() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let of = || {
            let mut provenance = Provenance::new();
            let meta = file.as_file().metadata().unwrap();
            provenance.file(file.path(), &Identity::from_metadata(&meta));
            provenance
        };
        let (new, again) = (of(), of());
        assert!(!new.is_settled());
        assert_eq!(new.key(), again.key());
        // The change time cannot be set.
        file.as_file().set_modified(UNIX_EPOCH).unwrap();
        assert!(!of().is_settled());
        assert_ne!(of().key(), new.key());
    }
}
