//! A text file of records to which whole lines are appended.
//!
//! The first line identifies the file. Each other line is a checksum (CRC-32 in eight hexadecimal digits), a space and
//! a record as JSON. A change takes effect when its line is complete and synced. An incomplete line at the end never
//! took effect; an invalid line elsewhere is damage. A writer holds a lock that this module does not know; a reader
//! needs none. The file is locked, too: a host that a server of NFS no longer hears loses its locks, and its client
//! then writes to no file that it had locked.
//!
//! JSON inside a record may stay unparsed until it is needed (`Unread`): a history of thousands of commits is read to
//! look at a few of their fields.
//!
//! `docs/checkout-format.md` specifies the format byte by byte. A file of another form, and records that need unknown
//! features, are refused by name, and stay as they are.

use std::fs::File;
use std::io::Read;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::form::Form;
use super::holder::lock_soon;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::dir::Dir;
use npyfs_io::storage::Storage;

/// Longest file that is read, in bytes.
const LONGEST: u64 = 1 << 30;

/// The suffix of a file that will replace another.
pub const REWRITTEN: &str = ".new";

/// A record, as JSON on one line.
pub trait LogRecord: Sized {
    /// Parses the JSON of a line whose checksum is correct.
    fn parse(json: &str) -> std::result::Result<Self, serde_json::Error>;

    /// Prints the record as JSON.
    fn print(&self) -> std::result::Result<String, serde_json::Error>;
}

/// The feature of records that restore an earlier state.
pub const RESTORED: &str = "restored";
/// The feature of records of files that are whole stores.
pub const BEGUN: &str = "begun";
/// The feature of records of objects that share a file.
pub const PACKED: &str = "packed";
/// The feature of records of attributes.
pub const ATTRIBUTES: &str = "attributes";

/// The features that a reader must know to understand a record.
#[derive(Default, Deserialize)]
struct LogNeeds {
    #[serde(default)]
    needs: Vec<String>,
}

/// A file of records, open for appending.
pub struct RecordLog<T> {
    dir: Dir,
    name: String,
    path: PathBuf,
    form: Form,
    file: File,
    storage: Arc<dyn Storage>,
    /// The length of the valid part in bytes.
    len: u64,
    /// Whether a failed change could not be undone, so that the state on the disk is unknown.
    lost: bool,
    _records: PhantomData<fn(&T)>,
}

/// Returns the records of the file `name`, in order; `None` if the file does not exist.
pub fn read<T: LogRecord>(dir: &Dir, name: &str, form: Form) -> Result<Option<Vec<T>>> {
    let about = |e: Error| e.about(dir.path().join(name).display());
    let mut file = match dir.read(name) {
        Ok(file) => file,
        Err(e) if e.kind == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let bytes = content(&mut file).map_err(about)?;
    match form.is_begun(&bytes).map_err(about)? {
        false => Ok(Some(Vec::new())),
        true => Ok(Some(parse_all(&bytes, form).map_err(about)?.0)),
    }
}

/// Returns the content of a file with these records.
pub fn print<T: LogRecord>(records: &[T], form: Form) -> Result<Vec<u8>> {
    Ok([form.first(), text(records)?].concat().into_bytes())
}

/// Parses the whole content of a complete file.
pub fn parse_whole<T: LogRecord>(bytes: &[u8], form: Form) -> Result<Vec<T>> {
    let (records, len) = match form.is_begun(bytes)? {
        true => parse_all(bytes, form)?,
        false => (Vec::new(), 0),
    };
    match len == bytes.len() as u64 {
        true => Ok(records),
        false => Err(Error::damaged("it ends early")),
    }
}

impl<T: LogRecord> RecordLog<T> {
    /// Opens the file `name` and returns its records. Creates a new file if `may_make` allows it.
    pub fn open(
        (dir, name): (&Dir, &str),
        form: Form,
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
        lock(&file).map_err(about)?;
        // Left by a process that died. Of a host that is cut off, it must not become the file later.
        let _ = storage.remove(dir, &format!("{name}{REWRITTEN}"));
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
        if !form.is_begun(&bytes).map_err(about)? {
            may_make().map_err(about)?;
            lines.write(form.first().as_bytes())?;
            let synced = lines.storage.sync_dir(dir);
            synced.map_err(|e| about(e.into()))?;
            return Ok((lines, Vec::new()));
        }
        let (records, len) = parse_all(&bytes, form).map_err(about)?;
        lines.len = len;
        // An incomplete line must not become the beginning of the next one.
        if len < bytes.len() as u64 {
            let Self { storage, file, .. } = &lines;
            let cut = storage.set_len(file, len);
            cut.and_then(|()| storage.sync(file))
                .map_err(|e| about(e.into()))?;
        }
        Ok((lines, records))
    }

    /// Appends a record, durably. On failure nothing has changed.
    pub fn add(&mut self, record: &T) -> Result<()> {
        self.add_all(std::slice::from_ref(record))
    }

    /// Appends records, durably: on failure none of them. If the process dies, the first few may have been appended.
    pub fn add_all(&mut self, records: &[T]) -> Result<()> {
        self.write(text(records)?.as_bytes())
    }

    /// Replaces all records, durably. On failure the previous ones remain.
    pub fn rewrite(&mut self, records: &[T]) -> Result<()> {
        let about = |e: std::io::Error| Error::from(e).about(self.path.display());
        let Self { dir, storage, .. } = &*self;
        let new = format!("{}{REWRITTEN}", self.name);
        let first = self.form.first();
        let bytes = [first, text(records)?].concat().into_bytes();
        // Left by an attempt that failed.
        let _ = storage.remove(dir, &new);
        let file = storage.create(dir, &new).map_err(about)?;
        lock(&file).map_err(|e| e.about(self.path.display()))?;
        let written = dir
            .rights()
            .settle(&file)
            .and_then(|()| storage.write_at(&file, &bytes, 0))
            .and_then(|()| storage.sync(&file))
            .and_then(|()| storage.rename(dir, &new, &self.name));
        // A failed call may have taken effect.
        if !dir.leads_to(&self.name, &file) {
            let _ = storage.remove(dir, &new);
            return written.map_err(about);
        }
        let done = written.and_then(|()| storage.sync_dir(dir)).map_err(about);
        self.file = file;
        self.len = bytes.len() as u64;
        // Either file may be on the disk, and lines appended to one are not in the other.
        self.lost = done.is_err();
        done
    }

    /// Returns whether an earlier failure left an unknown state, so that nothing can be appended any more.
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

fn lock(file: &File) -> Result<()> {
    match lock_soon(file)? {
        true => Ok(()),
        false => {
            let why = "another process writes in it";
            Err(Error::new(ErrorKind::Os(libc::EBUSY), why))
        }
    }
}

fn content(file: &mut File) -> Result<Vec<u8>> {
    let len = file.metadata()?.len();
    if len > LONGEST {
        let message = format!("longer than {LONGEST} bytes");
        return Err(Error::new(ErrorKind::TooLarge, message));
    }
    // One more than the length: the read that finds the end needs room, too.
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(0) + 1);
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

/// Parses a whole file; returns its records and the length of its valid part.
fn parse_all<T: LogRecord>(bytes: &[u8], form: Form) -> Result<(Vec<T>, u64)> {
    let first = form.first().len();
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

/// Returns the JSON of a complete line.
fn whole(line: &[u8]) -> Option<&str> {
    let (sum, json) = line.strip_suffix(b"\n")?.split_at_checked(8)?;
    let json = json.strip_prefix(b" ")?;
    let sum = u32::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
    (crc32fast::hash(json) == sum).then_some(())?;
    std::str::from_utf8(json).ok()
}

/// Parses the JSON of a record. An unknown record was written by another program: it is refused, not skipped like a
/// line that never took effect.
pub fn parse<T: LogRecord>(json: &str) -> Result<T> {
    let strange = |e: serde_json::Error| unknown(format!("no record that is known: {e}"));
    // Most records need nothing, and are read only once.
    let LogNeeds { needs } = match json.contains("\"needs\"") {
        true => serde_json::from_str(json).map_err(strange)?,
        false => LogNeeds::default(),
    };
    let is_known = |name: &&String| [RESTORED, BEGUN, PACKED, ATTRIBUTES].contains(&name.as_str());
    if let Some(strange) = needs.iter().find(|name| !is_known(name)) {
        let why = format!("written by a newer npyfs: the record needs {strange}");
        return Err(unknown(why));
    }
    T::parse(json).map_err(strange)
}

fn unknown(why: String) -> Error {
    Error::new(ErrorKind::Os(libc::EOPNOTSUPP), why)
}

/// A JSON value. It is written again as it was read, byte by byte.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Unread(Box<RawValue>);

impl PartialEq for Unread {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Eq for Unread {}

impl Unread {
    /// Returns the JSON of a value.
    pub fn serialize(value: &impl Serialize) -> Result<Self> {
        to_raw_value(value).map(Self).map_err(damaged)
    }

    /// Returns the list of these JSON values.
    pub fn list(values: &[String]) -> Result<Self> {
        let text = format!("[{}]", values.join(","));
        RawValue::from_string(text).map(Self).map_err(damaged)
    }

    /// Returns the JSON.
    pub fn text(&self) -> &str {
        self.0.get()
    }

    /// Parses the value.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T> {
        serde_json::from_str(self.text()).map_err(damaged)
    }

    /// Returns the JSON of each value of a list.
    pub fn values(&self) -> Result<Vec<&str>> {
        let values: Vec<&RawValue> = self.read()?;
        Ok(values.into_iter().map(RawValue::get).collect())
    }
}

fn damaged(e: serde_json::Error) -> Error {
    Error::damaged(e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_io::storage::Disk;
    use std::path::Path;

    const FORM: Form = Form {
        name: "a test",
        version: 2,
    };

    #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Text {
        text: String,
    }

    impl From<&str> for Text {
        fn from(text: &str) -> Self {
            let text = text.to_owned();
            Self { text }
        }
    }

    impl LogRecord for Text {
        fn parse(json: &str) -> serde_json::Result<Self> {
            serde_json::from_str(json)
        }

        fn print(&self) -> serde_json::Result<String> {
            serde_json::to_string(self)
        }
    }

    fn open(path: &Path) -> Result<(RecordLog<Text>, Vec<Text>)> {
        let dir = Dir::own(path.parent().unwrap());
        RecordLog::open((&dir, "file"), FORM, Arc::new(Disk), || Ok(()))
    }

    fn read(path: &Path) -> Result<Vec<Text>> {
        super::read(&Dir::own(path.parent().unwrap()), "file", FORM).map(Option::unwrap_or_default)
    }

    fn line(json: &str) -> String {
        format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()))
    }

    #[test]
    fn what_another_program_wrote_is_refused_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let needs = line(r#"{"text":"a","needs":["wings"]}"#);
        let strange = line(r#"{"feather":1}"#);
        for (content, why) in [
            ("a test 3\n".to_owned(), "a newer npyfs: form 3"),
            ("a test 1\n".to_owned(), "an older npyfs: form 1"),
            (format!("a test 2\n{needs}"), "needs wings"),
            (format!("a test 2\n{strange}"), "line 2"),
        ] {
            std::fs::write(&path, &content).unwrap();
            for error in [open(&path).err(), read(&path).err()] {
                let error = error.unwrap();
                assert_eq!(error.errno(), libc::EOPNOTSUPP, "{error}");
                assert!(error.message.contains(why), "{error}");
            }
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
        let more = line(r#"{"text":"a","colour":"red"}"#);
        std::fs::write(&path, format!("a test 2\n{more}")).unwrap();
        assert_eq!(read(&path).unwrap(), [Text::from("a")]);
    }

    #[test]
    fn wherever_it_is_cut_off_whole_lines_count_and_more_can_be_added() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut lines = open(&path).unwrap().0;
        lines.add(&"a\nb".into()).unwrap();
        let one = std::fs::metadata(&path).unwrap().len();
        lines.add(&"c".into()).unwrap();
        drop(lines);
        let whole = std::fs::read(&path).unwrap();
        for end in 0..=whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            let seen: Vec<Text> = read(&path).unwrap();
            assert_eq!(
                seen.len() as u64,
                u64::from(end as u64 >= one) + u64::from(end == whole.len())
            );
            let (mut lines, mut records) = open(&path).unwrap();
            assert_eq!(records, seen, "{end}");
            lines.add(&"d".into()).unwrap();
            records.push("d".into());
            assert_eq!(read(&path).unwrap(), records, "{end}");
        }
    }

    #[test]
    fn damage_in_the_middle_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut lines = open(&path).unwrap().0;
        lines.add(&"a".into()).unwrap();
        lines.add(&"b".into()).unwrap();
        drop(lines);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[20] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        for error in [open(&path).err(), read(&path).err()] {
            let error = error.unwrap();
            assert!(error.message.contains("line 2 is damaged"), "{error}");
        }
        std::fs::write(&path, "something else\n").unwrap();
        assert!(open(&path).is_err());
    }

    #[test]
    fn records_are_replaced_or_not_whatever_fails() {
        use npyfs_io::storage::faulty::Faulty;
        let words = |words: &[&str]| {
            words
                .iter()
                .map(|&word| Text::from(word))
                .collect::<Vec<_>>()
        };
        for (at, dead) in (0..8).flat_map(|at| [(at, false), (at, true)]) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("file");
            let own = Dir::own(dir.path());
            open(&path)
                .unwrap()
                .0
                .add_all(&words(&["a", "b", "c"]))
                .unwrap();
            let faulty = Arc::new(Faulty::new(at, libc::EIO, dead));
            let (mut lines, _) =
                RecordLog::<Text>::open((&own, "file"), FORM, faulty, || Ok(())).unwrap();
            let replaced = lines.rewrite(&words(&["c"])).is_ok();
            let now = read(&path).unwrap();
            assert!(
                now == words(&["c"]) || (!replaced && now == words(&["a", "b", "c"])),
                "{at} {dead}: {now:?}"
            );
            // A later append continues the existing lines.
            if lines.add(&"d".into()).is_ok() {
                let after = read(&path).unwrap();
                assert_eq!(after, [now, words(&["d"])].concat(), "{at} {dead}");
            }
            assert!(lines.is_lost() || replaced || !dead || at > 0);
            drop(lines);
            let mut lines = open(&path).unwrap().0;
            lines.rewrite(&words(&["e"])).unwrap();
            assert_eq!(read(&path).unwrap(), words(&["e"]));
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn the_file_of_a_writer_is_locked_and_a_new_one_too() {
        let top = tempfile::tempdir().unwrap();
        let path = top.path().join("file");
        let left = top.path().join(format!("file{REWRITTEN}"));
        std::fs::write(&left, "of a host that was cut off").unwrap();
        let (mut log, _) = open(&path).unwrap();
        assert!(!left.exists());
        let refused = open(&path).err().unwrap();
        assert_eq!(refused.errno(), libc::EBUSY);
        log.rewrite(&["a".into()]).unwrap();
        assert!(open(&path).is_err());
        drop(log);
        assert_eq!(open(&path).unwrap().1, ["a".into()]);
    }

    #[test]
    fn none_is_made_against_the_will_of_the_caller() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let own = Dir::own(dir.path());
        let refused = RecordLog::<Text>::open((&own, "file"), FORM, Arc::new(Disk), || {
            Err(Error::damaged("no"))
        });
        assert!(refused.is_err());
        assert!(read(&path).unwrap().is_empty());
    }
}
