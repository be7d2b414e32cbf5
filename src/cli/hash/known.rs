//! The hashes that `npyfs hash` computed, for this user: each with the hash of what the bytes depend on, so that it is found
//! for that version of the array alone. The newest are kept.

use std::io::{Read, Write};

use rustix::fs::OFlags;

use npyfs_io::content::Content;
use npyfs_io::own_dir::{OwnDir, cache_home};
use npyfs_io::provenance::Provenance;

/// The file of the newest hashes, a line each; that of older ones ends with `OLD`.
const NAME: &str = "known";
const OLD: &str = "known.old";

/// The size in bytes at which a file is full.
const FULL: u64 = 1 << 20;

/// Returns the hash of what the bytes of a content depend on; `None` if they may change without it.
fn key(content: &dyn Content) -> Option<String> {
    let mut provenance = Provenance::new();
    let is_told = content.tell_provenance(&mut provenance) && provenance.is_settled();
    is_told.then(|| provenance.key())
}

/// Notes the hash of a content. What cannot be noted is computed again.
pub(super) fn note(content: &dyn Content, hash: &str) {
    let Some((key, home)) = key(content).zip(cache_home()) else {
        return;
    };
    let written = || -> std::io::Result<()> {
        let dir = OwnDir::make(&home.join("hashes"))?;
        let open = || dir.file(NAME, OFlags::CREATE | OFlags::APPEND);
        let mut file = open()?;
        if file.metadata()?.len() >= FULL {
            dir.rename(NAME, OLD)?;
            file = open()?;
        }
        file.write_all(format!("{key} {hash}\n").as_bytes())
    };
    let _ = written();
}

/// Returns the hash of a content, if it is known.
pub fn of(content: &dyn Content) -> Option<String> {
    let dir = OwnDir::existing(&cache_home()?.join("hashes")).ok()?;
    let key = key(content)?;
    let found = |name: &str| {
        let mut text = String::new();
        let file = dir.file(name, OFlags::empty()).ok()?;
        file.take(2 * FULL).read_to_string(&mut text).ok()?;
        let mut hashes = text.lines().filter_map(|line| line.split_once(' '));
        let (_, hash) = hashes.find(|(known, _)| *known == key)?;
        let is_hash = hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit());
        is_hash.then(|| hash.to_owned())
    };
    found(NAME).or_else(|| found(OLD))
}
