//! A text file that only ever grows by whole lines, each a record.
//!
//! After the first line, which says what the file is, each line is a checksum (CRC-32 in eight hexadecimal digits), a space and
//! a record as JSON. A line that is complete and synced is what makes a change happen: a line cut off at the end never happened,
//! and a bad one in the middle is damage. Whoever adds lines holds a lock that this file knows nothing of; who reads needs none.
//!
//! `docs/checkout-format.md` has the format byte by byte. A file of an older form is read as it is, and gets the first line of
//! the current one before anything is added to it. One of a newer form, and a record that needs what is unknown, are refused.

use std::fs::File;
use std::io::Read;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;

use crate::error::{Error, ErrorKind, Result};
use crate::io::dir::Dir;
use crate::io::storage::Storage;

/// Longest file that is read, in bytes.
const LONGEST: u64 = 1 << 30;

/// Ending of the file that is to take the place of another.
pub const REWRITTEN: &str = ".new";

/// The name of a form of record log, as in the first line of a file, and the newest version that is known.
#[derive(Clone, Copy, Debug)]
pub struct LogForm {
    /// Name of the form, in the first line of a file.
    pub name: &'static str,
    /// One digit, so that a first line can be replaced in place.
    pub version: u8,
}

impl LogForm {
    /// Returns the first line of a file of this form.
    pub fn first(&self) -> String {
        self.first_line(self.version)
    }

    fn first_line(&self, version: u8) -> String {
        format!("{} {version}\n", self.name)
    }

    /// Reads the first line: the version, or `None` if not even this line was written.
    fn version(&self, bytes: &[u8]) -> Result<Option<u8>> {
        let known = (1..=self.version).map(|version| (version, self.first_line(version)));
        for (version, first) in known {
            if bytes.starts_with(first.as_bytes()) {
                return Ok(Some(version));
            }
            if first.as_bytes().starts_with(bytes) {
                return Ok(None);
            }
        }
        let first = bytes.split(|&b| b == b'\n').next().unwrap_or_default();
        let newer = first.strip_prefix(self.name.as_bytes());
        if let Some(version) = newer.and_then(|rest| rest.strip_prefix(b" "))
            && !version.is_empty()
            && version.iter().all(u8::is_ascii_digit)
        {
            let version = String::from_utf8_lossy(version);
            return Err(unknown(format!(
                "written by a newer npyfs: form {version}, and this one knows forms up to {}",
                self.version
            )));
        }
        let what = self.first_line(self.version);
        Err(Error::damaged(format!(
            "does not begin with {:?}",
            what.trim_end()
        )))
    }
}

/// A record, as JSON on one line.
pub trait LogRecord: Sized {
    /// Reads the JSON of a line whose checksum is right.
    fn parse(json: &str) -> std::result::Result<Self, serde_json::Error>;

    /// Returns the record as JSON.
    fn print(&self) -> std::result::Result<String, serde_json::Error>;
}

/// The feature of records that restore what was there before a commit.
pub const RESTORED: &str = "restored";
/// The feature of records of files that are stores.
pub const BEGUN: &str = "begun";
/// The feature of records of objects that share their file with others.
pub const PACKED: &str = "packed";

/// The features that a reader of a record must know.
#[derive(Deserialize)]
struct LogNeeds {
    #[serde(default)]
    needs: Vec<String>,
}

/// A file of records, open to be added to.
pub struct RecordLog<T> {
    dir: Dir,
    name: String,
    path: PathBuf,
    form: LogForm,
    file: File,
    storage: Arc<dyn Storage>,
    /// Bytes that count.
    len: u64,
    /// A failed change could not be taken back: what the disk holds is not known.
    lost: bool,
    _records: PhantomData<fn(&T)>,
}

/// The records of the file `name`, in order; none if there is no such file.
pub fn read<T: LogRecord>(dir: &Dir, name: &str, form: LogForm) -> Result<Vec<T>> {
    let about = |e: Error| e.about(dir.path().join(name).display());
    let mut file = match dir.read(name) {
        Ok(file) => file,
        Err(e) if e.kind == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let bytes = content(&mut file).map_err(about)?;
    match form.version(&bytes).map_err(about)? {
        None => Ok(Vec::new()),
        Some(_) => Ok(parse_all(&bytes, form).map_err(about)?.0),
    }
}

/// Returns records as the whole content of a file.
pub fn print<T: LogRecord>(records: &[T], form: LogForm) -> Result<Vec<u8>> {
    Ok([form.first_line(form.version), text(records)?]
        .concat()
        .into_bytes())
}

/// Returns the records of the whole content of a file that was written to its end.
pub fn parse_whole<T: LogRecord>(bytes: &[u8], form: LogForm) -> Result<Vec<T>> {
    let (records, len) = match form.version(bytes)? {
        Some(_) => parse_all(bytes, form)?,
        None => (Vec::new(), 0),
    };
    match len == bytes.len() as u64 {
        true => Ok(records),
        false => Err(Error::damaged("it ends early")),
    }
}

impl<T: LogRecord> RecordLog<T> {
    /// Opens the file `name` and answers the records in it. A new one is made if `may_make` has nothing against
    /// it; one of an older form becomes one of the current form.
    pub fn open(
        (dir, name): (&Dir, &str),
        form: LogForm,
        storage: Arc<dyn Storage>,
        may_make: impl FnOnce() -> Result<()>,
    ) -> Result<(Self, Vec<T>)> {
        let path = dir.path().join(name);
        let about = |e: Error| e.about(path.display());
        let mut file = match dir.write(name) {
            Err(e) if e.kind == ErrorKind::NotFound => {
                let file = storage.create(dir, name).map_err(|e| about(e.into()))?;
                dir.rights().settle(&file).map_err(|e| about(e.into()))?;
                file
            }
            opened => opened?,
        };
        let bytes = content(&mut file).map_err(about)?;
        let mut lines = Self {
            dir: dir.clone(),
            name: name.to_owned(),
            form,
            file,
            storage,
            len: 0,
            lost: false,
            path: path.clone(),
            _records: PhantomData,
        };
        let Some(version) = form.version(&bytes).map_err(about)? else {
            may_make().map_err(about)?;
            lines.write(form.first_line(form.version).as_bytes())?;
            let synced = lines.storage.sync_dir(dir);
            synced.map_err(|e| about(e.into()))?;
            return Ok((lines, Vec::new()));
        };
        let (records, len) = parse_all(&bytes, form).map_err(about)?;
        lines.len = len;
        // What was cut off must not be the beginning of the next line.
        if len < bytes.len() as u64 {
            let Self { storage, file, .. } = &lines;
            let cut = storage.set_len(file, len);
            cut.and_then(|()| storage.sync(file))
                .map_err(|e| about(e.into()))?;
        }
        // One byte differs: an older program refuses the file from here on, and a newer one reads it either way.
        if version < form.version {
            let Self { storage, file, .. } = &lines;
            let first = form.first_line(form.version);
            let written = storage.write_at(file, first.as_bytes(), 0);
            written
                .and_then(|()| storage.sync(file))
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
        self.write(text(records)?.as_bytes())
    }

    /// Puts records in the place of all that are there, durably. On failure those that were there are there still.
    pub fn rewrite(&mut self, records: &[T]) -> Result<()> {
        let about = |e: std::io::Error| Error::from(e).about(self.path.display());
        let Self { dir, storage, .. } = &*self;
        let new = format!("{}{REWRITTEN}", self.name);
        let first = self.form.first_line(self.form.version);
        let bytes = [first, text(records)?].concat().into_bytes();
        // What a process that died left is of no use.
        let _ = storage.remove(dir, &new);
        let file = storage.create(dir, &new).map_err(about)?;
        let written = dir
            .rights()
            .settle(&file)
            .and_then(|()| storage.write_at(&file, &bytes, 0))
            .and_then(|()| storage.sync(&file))
            .and_then(|()| storage.rename(dir, &new, &self.name));
        // A call that failed may have been done.
        if !dir.leads_to(&self.name, &file) {
            let _ = storage.remove(dir, &new);
            return written.map_err(about);
        }
        let done = written.and_then(|()| storage.sync_dir(dir)).map_err(about);
        self.file = file;
        self.len = bytes.len() as u64;
        // The disk may have either file: what is added to one is not in the other.
        self.lost = done.is_err();
        done
    }

    /// Returns whether a failure has left what nobody knows, and nothing can be added any more.
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

fn text<T: LogRecord>(records: &[T]) -> Result<String> {
    let mut lines = String::new();
    for record in records {
        let json = record.print().map_err(|e| Error::damaged(e.to_string()))?;
        lines += &format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()));
    }
    Ok(lines)
}

/// The records of a whole file, and how many bytes count.
fn parse_all<T: LogRecord>(bytes: &[u8], form: LogForm) -> Result<(Vec<T>, u64)> {
    let first = form.first_line(form.version).len();
    let lines = bytes.get(first..).unwrap_or_default();
    let mut at = first as u64;
    let (mut records, mut len, mut bad) = (Vec::new(), at, None);
    for (number, line) in lines.split_inclusive(|&b| b == b'\n').enumerate() {
        at += line.len() as u64;
        match (whole(line), bad) {
            (Some(_), Some(bad)) => {
                return Err(Error::damaged(format!("line {bad} is damaged")));
            }
            (Some(json), None) => {
                let record = parse(json).map_err(|e| e.about(format!("line {}", number + 2)))?;
                records.push(record);
                len = at;
            }
            (None, first) => bad = first.or(Some(number + 2)),
        }
    }
    Ok((records, len))
}

/// The JSON of a line that was written to its end.
fn whole(line: &[u8]) -> Option<&str> {
    let (sum, json) = line.strip_suffix(b"\n")?.split_at_checked(8)?;
    let json = json.strip_prefix(b" ")?;
    let sum = u32::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
    (crc32fast::hash(json) == sum).then_some(())?;
    std::str::from_utf8(json).ok()
}

/// Reads the JSON of one record. What means nothing here is another program's, and none that never happened.
pub fn parse<T: LogRecord>(json: &str) -> Result<T> {
    let strange = |e: serde_json::Error| unknown(format!("no record that is known: {e}"));
    let LogNeeds { needs } = serde_json::from_str(json).map_err(strange)?;
    let is_known = |name: &&String| [RESTORED, BEGUN, PACKED].contains(&name.as_str());
    if let Some(strange) = needs.iter().find(|name| !is_known(name)) {
        let why = format!("written by a newer npyfs: the record needs {strange}");
        return Err(unknown(why));
    }
    T::parse(json).map_err(strange)
}

fn unknown(why: String) -> Error {
    Error::new(ErrorKind::Os(libc::EOPNOTSUPP), why)
}

#[cfg(test)]
mod tests;
