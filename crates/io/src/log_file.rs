//! A log that outlives its mount: one JSON object per line, in a file of bounded size.
//!
//! The file is created with the first line, and another one once its directory is another. Existing lines stay. A full
//! file is renamed to `NAME.old`, which replaces an earlier `.old`. Lines are not synced one by one: a power failure
//! loses the last log lines, never data.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::PathBuf;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::dir::Dir;
use npyfs_base::error::Result;
use npyfs_base::journal::{Line, LineSink};

/// The size in bytes at which a file is full.
const FULL: u64 = 1 << 20;

/// The suffix of the previous file.
pub const OLD: &str = ".old";

/// The mount that the following lines belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heading {
    /// The store.
    pub store: String,
    /// The mount point.
    pub mounted_at: String,
    /// The time of the mount: UTC, ISO 8601.
    pub since: String,
}

/// A function that opens or creates the directory of the log.
type DirectoryOpener = Box<dyn Fn() -> Result<Dir> + Send + Sync>;

/// The log of one mount in a file.
pub struct LogFile {
    place: PathBuf,
    name: String,
    directory: DirectoryOpener,
    heading: Heading,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The open file and its length, once a line was written.
    open: Option<(Dir, File, u64)>,
    failed: Option<String>,
}

impl LogFile {
    /// Creates the log `name` in a directory, which is created with the first line, and may become another one. `place`
    /// is its path, for messages, before there is one.
    pub fn new(
        place: PathBuf,
        name: &str,
        directory: impl Fn() -> Result<Dir> + Send + Sync + 'static,
        heading: Heading,
    ) -> Self {
        Self {
            place,
            name: name.to_owned(),
            directory: Box::new(directory),
            heading,
            state: Mutex::default(),
        }
    }

    fn append(&self, state: &mut State, line: &Line) -> Result<()> {
        let mut text = Vec::new();
        let full = state.open.as_ref().is_some_and(|(_, _, len)| *len >= FULL);
        if full && let Some((dir, ..)) = state.open.take() {
            dir.rename(&self.name, &format!("{}{OLD}", self.name))?;
        }
        let now = match (self.directory)() {
            Err(e) if state.open.is_none() => return Err(e),
            now => now.ok(),
        };
        let is_in = |now: &Dir| {
            let open = state.open.as_ref();
            open.is_some_and(|(dir, ..)| dir.path() == now.path())
        };
        if let Some(dir) = now.filter(|now| !is_in(now)) {
            let mut file = dir.write_or_create(&self.name)?;
            let len = file.seek(SeekFrom::End(0))?;
            put(&mut text, &self.heading)?;
            state.open = Some((dir, file, len));
        }
        put(&mut text, line)?;
        if let Some((_, file, len)) = &mut state.open {
            file.write_all(&text)?;
            *len += text.len() as u64;
        }
        Ok(())
    }
}

fn put(text: &mut Vec<u8>, value: &impl Serialize) -> Result<()> {
    serde_json::to_writer(&mut *text, value).map_err(io::Error::from)?;
    text.push(b'\n');
    Ok(())
}

impl LineSink for LogFile {
    fn add(&self, line: &Line) {
        let mut state = self.state.lock();
        let added = self.append(&mut state, line);
        state.failed = added.err().map(|e| e.message);
    }

    fn status(&self) -> (String, Option<String>) {
        let state = self.state.lock();
        let open = state.open.as_ref();
        let place = open.map_or(self.place.clone(), |(dir, ..)| dir.path().join(&self.name));
        (place.display().to_string(), state.failed.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_base::journal::Journal;

    fn log_in(path: &std::path::Path) -> LogFile {
        let heading = Heading {
            store: "s.h5".to_owned(),
            mounted_at: "/mnt".to_owned(),
            since: "2026-01-01T00:00:00Z".to_owned(),
        };
        let below = path.to_owned();
        LogFile::new(path.join("x"), "x", move || Dir::alone(&below), heading)
    }

    #[test]
    fn lines_stay_and_a_full_file_makes_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logs");
        let journal = Journal::default();
        journal.keep(Box::new(log_in(&path)));
        assert!(!path.exists());
        journal.add("one");
        journal.add("two");
        let lines = |name: &str| {
            let text = std::fs::read_to_string(path.join(name)).unwrap();
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let first = lines("x");
        assert_eq!(first.len(), 3);
        let heading: Heading = serde_json::from_str(&first[0]).unwrap();
        assert_eq!(heading.mounted_at, "/mnt");
        // The next mount appends to the file.
        let journal = Journal::default();
        journal.keep(Box::new(log_in(&path)));
        for i in 0..1500 {
            journal.add(&format!("{i}{}", "x".repeat(1000)));
        }
        assert_eq!(journal.kept()[0].1, None);
        assert_eq!(lines("x.old")[..3], first);
        let newest: Line = serde_json::from_str(lines("x").last().unwrap()).unwrap();
        assert!(newest.message.starts_with("1499x"));
        assert!(std::fs::metadata(path.join("x")).unwrap().len() < FULL + (1 << 16));
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a file");
        std::fs::write(&path, b"").unwrap();
        let journal = Journal::default();
        journal.keep(Box::new(log_in(&path.join("logs"))));
        journal.add("one");
        assert!(journal.kept()[0].1.is_some());
    }
}
