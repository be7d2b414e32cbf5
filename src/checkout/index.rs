//! Which object each file of a layer is: a text file that only ever grows by whole lines.
//!
//! After the first line each line is a checksum (CRC-32 in eight hexadecimal digits), a space and a record
//! as JSON; of several records of an object the last counts. A line that is complete and synced is what makes a
//! change happen: a line cut off at the end never happened, and a bad one in the middle is damage.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::storage::Storage;
use crate::error::{Error, ErrorKind, Result};

/// The name of the file.
pub const NAME: &str = "index";

const FIRST_LINE: &[u8] = b"npyfs checkout 1\n";

/// Longest index that is read, in bytes.
const LONGEST: u64 = 1 << 30;

/// A file of the layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// Its number, which is its name.
    pub file: u64,
    /// When the object was written, in nanoseconds since 1970.
    pub time: i64,
}

/// What became of an object: a file, or nothing when it was deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The path of the object as the mount shows it.
    pub path: String,
    pub stored: Option<Stored>,
}

/// The index of one layer, open to be added to.
pub struct Index {
    path: PathBuf,
    file: File,
    storage: Arc<dyn Storage>,
    /// Bytes that count.
    len: u64,
    entries: BTreeMap<String, Option<Stored>>,
    /// A failed change could not be taken back: what the disk holds is not known.
    lost: bool,
}

impl Index {
    /// Reads the index of the layer in `dir`. A new one is made, unless the layer has objects already.
    pub fn open(dir: &Path, storage: Arc<dyn Storage>, has_objects: bool) -> Result<Self> {
        let path = dir.join(NAME);
        let about = |e: std::io::Error| Error::from(e).about(path.display());
        let mut file = match File::options().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                storage.create(&path).map_err(about)?
            }
            Err(e) => return Err(about(e)),
        };
        let mut bytes = Vec::new();
        if file.metadata().map_err(about)?.len() > LONGEST {
            let message = format!("longer than {LONGEST} bytes");
            return Err(Error::new(ErrorKind::TooLarge, message).about(path.display()));
        }
        (&mut file)
            .take(LONGEST)
            .read_to_end(&mut bytes)
            .map_err(about)?;
        let mut index = Self {
            file,
            storage,
            len: 0,
            entries: BTreeMap::new(),
            lost: false,
            path: path.clone(),
        };
        if FIRST_LINE.starts_with(&bytes) && bytes.len() < FIRST_LINE.len() {
            if has_objects {
                let message = "it is gone, but the files of the checkout are there";
                return Err(Error::damaged(message).about(path.display()));
            }
            index.write(FIRST_LINE)?;
            index.storage.sync_dir(dir).map_err(about)?;
        } else {
            index.read(&bytes).map_err(|e| e.about(path.display()))?;
            // What was cut off must not be the beginning of the next line.
            if index.len < bytes.len() as u64 {
                let Self {
                    storage, file, len, ..
                } = &index;
                storage.set_len(file, *len).map_err(about)?;
                storage.sync(file).map_err(about)?;
            }
        }
        Ok(index)
    }

    /// Takes in the lines of `bytes`.
    fn read(&mut self, bytes: &[u8]) -> Result<()> {
        let lines = bytes
            .strip_prefix(FIRST_LINE)
            .ok_or_else(|| Error::damaged("not the index of a checkout that this version knows"))?;
        self.len = FIRST_LINE.len() as u64;
        let mut bad = None;
        let mut at = self.len;
        for (number, line) in lines.split_inclusive(|&b| b == b'\n').enumerate() {
            at += line.len() as u64;
            match (parse(line), bad) {
                (Some(_), Some(bad)) => {
                    return Err(Error::damaged(format!("line {bad} is damaged")));
                }
                (Some(record), None) => {
                    self.entries.insert(record.path, record.stored);
                    self.len = at;
                }
                (None, first) => bad = first.or(Some(number + 2)),
            }
        }
        Ok(())
    }

    /// Every object that was changed; `None`: it was deleted.
    pub fn entries(&self) -> &BTreeMap<String, Option<Stored>> {
        &self.entries
    }

    /// Makes a change happen, durably. On failure nothing changed; what stood there before, stands.
    pub fn add(&mut self, record: Record) -> Result<()> {
        let json = serde_json::to_string(&record).map_err(|e| Error::damaged(e.to_string()))?;
        let line = format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()));
        self.write(line.as_bytes())?;
        self.entries.insert(record.path, record.stored);
        Ok(())
    }

    fn write(&mut self, line: &[u8]) -> Result<()> {
        let Self {
            storage, file, len, ..
        } = &*self;
        let about = |e: std::io::Error| Error::from(e).about(self.path.display());
        if self.lost {
            let message = "an earlier change failed half-way: mount again to write";
            return Err(Error::new(ErrorKind::Os(libc::EIO), message).about(self.path.display()));
        }
        let written = storage
            .write_at(file, line, *len)
            .and_then(|()| storage.sync(file));
        if let Err(e) = written {
            let undone = storage
                .set_len(file, *len)
                .and_then(|()| storage.sync(file));
            let error = about(e);
            self.lost = undone.is_err();
            return Err(error);
        }
        self.len += line.len() as u64;
        Ok(())
    }
}

fn parse(line: &[u8]) -> Option<Record> {
    let (sum, json) = line.strip_suffix(b"\n")?.split_at_checked(8)?;
    let json = json.strip_prefix(b" ")?;
    let sum = u32::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
    (crc32fast::hash(json) == sum).then_some(())?;
    serde_json::from_slice(json).ok()
}

#[cfg(test)]
mod tests {
    use super::super::storage::Disk;
    use super::*;

    fn record(path: &str, file: Option<u64>) -> Record {
        let stored = file.map(|file| Stored { file, time: -5 });
        Record {
            path: path.into(),
            stored,
        }
    }

    fn open(dir: &Path) -> Result<Index> {
        Index::open(dir, Arc::new(Disk), false)
    }

    #[test]
    fn the_last_record_of_an_object_counts() {
        let dir = tempfile::tempdir().unwrap();
        let mut index = open(dir.path()).unwrap();
        for (path, file) in [("a\nb", Some(1)), ("c", Some(2)), ("c", None)] {
            index.add(record(path, file)).unwrap();
        }
        let again = open(dir.path()).unwrap();
        assert_eq!(again.entries(), index.entries());
        assert_eq!(again.entries()["a\nb"].as_ref().unwrap().file, 1);
        assert_eq!(again.entries()["c"], None);
    }

    #[test]
    fn wherever_it_is_cut_off_whole_lines_count_and_more_can_be_added() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let mut index = open(dir.path()).unwrap();
        index.add(record("a", Some(1))).unwrap();
        let one = std::fs::metadata(&path).unwrap().len();
        index.add(record("b", Some(2))).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for end in 0..=whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            let mut index = open(dir.path()).unwrap();
            let has = |name: &str| index.entries().contains_key(name);
            assert_eq!(has("a"), end as u64 >= one, "{end}");
            assert_eq!(has("b"), end == whole.len(), "{end}");
            index.add(record("c", None)).unwrap();
            assert!(open(dir.path()).unwrap().entries().contains_key("c"));
        }
    }

    #[test]
    fn damage_in_the_middle_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let mut index = open(dir.path()).unwrap();
        index.add(record("a", Some(1))).unwrap();
        index.add(record("b", Some(2))).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[FIRST_LINE.len() + 20] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let error = open(dir.path()).err().unwrap();
        assert!(error.message.contains("line 2 is damaged"), "{error}");
        std::fs::write(&path, "something else\n").unwrap();
        assert!(open(dir.path()).is_err());
    }

    #[test]
    fn an_index_that_is_gone_is_not_made_again_over_objects() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Index::open(dir.path(), Arc::new(Disk), true).is_err());
    }
}
