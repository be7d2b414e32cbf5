//! A text file that only ever grows by whole lines, each a record.
//!
//! After the first line, which says what the file is, each line is a checksum (CRC-32 in eight hexadecimal
//! digits), a space and a record as JSON. A line that is complete and synced is what makes a change happen:
//! a line cut off at the end never happened, and a bad one in the middle is damage. Who adds lines holds a
//! lock that this file knows nothing of; who reads needs none.

use std::fs::File;
use std::io::{ErrorKind as IoKind, Read};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::storage::Storage;
use crate::error::{Error, ErrorKind, Result};

/// Longest file that is read, in bytes.
const LONGEST: u64 = 1 << 30;

/// A file of records, open to be added to.
pub struct Lines<T> {
    path: PathBuf,
    file: File,
    storage: Arc<dyn Storage>,
    /// Bytes that count.
    len: u64,
    /// A failed change could not be taken back: what the disk holds is not known.
    lost: bool,
    _records: PhantomData<fn(&T)>,
}

/// The records of the file at `path`, in order; none if there is no such file.
pub fn read<T: DeserializeOwned>(path: &Path, first: &[u8]) -> Result<Vec<T>> {
    let about = |e: Error| e.about(path.display());
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == IoKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(about(e.into())),
    };
    let bytes = content(&mut file).map_err(about)?;
    if is_cut_off(&bytes, first) {
        return Ok(Vec::new());
    }
    Ok(parse_all(&bytes, first).map_err(about)?.0)
}

impl<T: Serialize + DeserializeOwned> Lines<T> {
    /// Opens the file at `path` and answers the records in it. A new one is made, with `first` as its
    /// first line, if `may_make` has nothing against it.
    pub fn open(
        path: &Path,
        first: &[u8],
        storage: Arc<dyn Storage>,
        may_make: impl FnOnce() -> Result<()>,
    ) -> Result<(Self, Vec<T>)> {
        let about = |e: Error| e.about(path.display());
        let mut file = match File::options().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == IoKind::NotFound => {
                storage.create(path).map_err(|e| about(e.into()))?
            }
            Err(e) => return Err(about(e.into())),
        };
        let bytes = content(&mut file).map_err(about)?;
        let mut lines = Self {
            file,
            storage,
            len: 0,
            lost: false,
            path: path.to_owned(),
            _records: PhantomData,
        };
        if is_cut_off(&bytes, first) {
            may_make().map_err(about)?;
            lines.write(first)?;
            if let Some(dir) = path.parent() {
                let synced = lines.storage.sync_dir(dir);
                synced.map_err(|e| about(e.into()))?;
            }
            return Ok((lines, Vec::new()));
        }
        let (records, len) = parse_all(&bytes, first).map_err(about)?;
        lines.len = len;
        // What was cut off must not be the beginning of the next line.
        if len < bytes.len() as u64 {
            let Self { storage, file, .. } = &lines;
            let cut = storage.set_len(file, len);
            cut.and_then(|()| storage.sync(file))
                .map_err(|e| about(e.into()))?;
        }
        Ok((lines, records))
    }

    /// Makes a change happen, durably. On failure nothing changed.
    pub fn add(&mut self, record: &T) -> Result<()> {
        self.add_all(std::slice::from_ref(record))
    }

    /// Makes changes happen, durably: on failure none of them. If the process dies meanwhile, the first few
    /// may have happened.
    pub fn add_all(&mut self, records: &[T]) -> Result<()> {
        let mut lines = String::new();
        for record in records {
            let json = serde_json::to_string(record).map_err(|e| Error::damaged(e.to_string()))?;
            lines += &format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()));
        }
        self.write(lines.as_bytes())
    }

    /// Whether a failure has left what nobody knows, and nothing can be added any more.
    pub fn is_lost(&self) -> bool {
        self.lost
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

fn content(file: &mut File) -> Result<Vec<u8>> {
    if file.metadata()?.len() > LONGEST {
        let message = format!("longer than {LONGEST} bytes");
        return Err(Error::new(ErrorKind::TooLarge, message));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether not even the first line was written.
fn is_cut_off(bytes: &[u8], first: &[u8]) -> bool {
    first.starts_with(bytes) && bytes.len() < first.len()
}

/// The records of a whole file, and how many bytes count.
fn parse_all<T: DeserializeOwned>(bytes: &[u8], first: &[u8]) -> Result<(Vec<T>, u64)> {
    let lines = bytes.strip_prefix(first).ok_or_else(|| {
        let what = String::from_utf8_lossy(first);
        Error::damaged(format!("does not begin with {:?}", what.trim_end()))
    })?;
    let mut at = first.len() as u64;
    let (mut records, mut len, mut bad) = (Vec::new(), at, None);
    for (number, line) in lines.split_inclusive(|&b| b == b'\n').enumerate() {
        at += line.len() as u64;
        match (parse(line), bad) {
            (Some(_), Some(bad)) => {
                return Err(Error::damaged(format!("line {bad} is damaged")));
            }
            (Some(record), None) => {
                records.push(record);
                len = at;
            }
            (None, first) => bad = first.or(Some(number + 2)),
        }
    }
    Ok((records, len))
}

fn parse<T: DeserializeOwned>(line: &[u8]) -> Option<T> {
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

    const FIRST: &[u8] = b"a test 1\n";

    fn open(path: &Path) -> Result<(Lines<String>, Vec<String>)> {
        Lines::open(path, FIRST, Arc::new(Disk), || Ok(()))
    }

    #[test]
    fn wherever_it_is_cut_off_whole_lines_count_and_more_can_be_added() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut lines = open(&path).unwrap().0;
        lines.add(&"a\nb".into()).unwrap();
        let one = std::fs::metadata(&path).unwrap().len();
        lines.add(&"c".into()).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for end in 0..=whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            let seen: Vec<String> = read(&path, FIRST).unwrap();
            assert_eq!(
                seen.len() as u64,
                u64::from(end as u64 >= one) + u64::from(end == whole.len())
            );
            let (mut lines, mut records) = open(&path).unwrap();
            assert_eq!(records, seen, "{end}");
            lines.add(&"d".into()).unwrap();
            records.push("d".into());
            assert_eq!(read::<String>(&path, FIRST).unwrap(), records, "{end}");
        }
    }

    #[test]
    fn damage_in_the_middle_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut lines = open(&path).unwrap().0;
        lines.add(&"a".into()).unwrap();
        lines.add(&"b".into()).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[FIRST.len() + 10] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        for error in [open(&path).err(), read::<String>(&path, FIRST).err()] {
            let error = error.unwrap();
            assert!(error.message.contains("line 2 is damaged"), "{error}");
        }
        std::fs::write(&path, "something else\n").unwrap();
        assert!(open(&path).is_err());
    }

    #[test]
    fn none_is_made_against_the_will_of_the_caller() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let refused =
            Lines::<String>::open(&path, FIRST, Arc::new(Disk), || Err(Error::damaged("no")));
        assert!(refused.is_err());
        assert!(read::<String>(&path, FIRST).unwrap().is_empty());
    }
}
