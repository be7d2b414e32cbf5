//! Logs that outlive their mounts: in the user's state directory, by mount point, and in the checkout that was written.
//!
//! A log is as private as its directory; the state directory belongs to the user alone. Without a directory that can be written
//! the mount works all the same, and `status.json` says so.

use std::fmt;
use std::fs::DirBuilder;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use xxhash_rust::xxh3::xxh3_64;

use crate::cli::say;
use crate::mount::fs::Fs;
use npyfs_base::error::{ErrorKind, Result};
use npyfs_base::journal::{Line, LineSink, utc};
use npyfs_core::checkout::history::checkouts::LOG;
use npyfs_io::dir::Dir;
use npyfs_io::log_file::{Heading, LogFile, OLD};

/// Ending of the name of a log.
const ENDING: &str = ".jsonl";

/// Logs of mount points that are kept at most; the one that was written longest ago goes first.
const MOST: usize = 64;

/// Bytes of a log that are read at most: more than are ever written.
const READ: u64 = 8 << 20;

/// A line of a log.
pub enum LogEntry {
    /// The lines below it are of this mount.
    Heading(Heading),
    /// A failure.
    Line(Line),
}

impl LogEntry {
    fn parse(text: &str) -> Option<Self> {
        let line = || serde_json::from_str(text).map(Self::Line).ok();
        serde_json::from_str(text)
            .map(Self::Heading)
            .ok()
            .or_else(line)
    }

    /// Returns it as JSON.
    pub fn json(&self) -> String {
        let json = match self {
            Self::Heading(heading) => serde_json::to_string(heading),
            Self::Line(line) => serde_json::to_string(line),
        };
        // Both are always valid JSON.
        json.unwrap_or_default()
    }
}

impl fmt::Display for LogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Heading(Heading {
                store,
                mounted_at,
                since,
            }) => write!(f, "{since} {store} mounted at {mounted_at}"),
            Self::Line(line) => line.fmt(f),
        }
    }
}

/// Returns the user's directory of logs: `npyfs` in XDG_STATE_HOME, or in `.local/state` of the home directory.
fn directory() -> Option<PathBuf> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let given = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    // Without HOME, as systemd mounts fstab, that of the user's entry in the passwd database.
    let home = || Some(std::env::home_dir().filter(absolute)?.join(".local/state"));
    let state = given.filter(absolute).or_else(home);
    Some(state?.join("npyfs"))
}

/// Returns the name of the log of a mount point.
fn name_of(mount_point: &Path) -> String {
    let last = mount_point.file_name().unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let last: String = last
        .to_string_lossy()
        .chars()
        .filter(|&c| plain(c))
        .collect();
    let last: String = last.chars().take(64).collect();
    let hash = xxh3_64(mount_point.as_os_str().as_bytes());
    format!("mount-{last}-{hash:016x}{ENDING}")
}

/// Makes the user's directory of logs, with room for one more.
fn made(path: &Path) -> Result<Dir> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let dir = Dir::alone(path)?;
    let mut logs: Vec<(SystemTime, String)> = dir
        .names()?
        .into_iter()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| name.ends_with(ENDING))
        .filter_map(|name| Some((dir.metadata(&name).ok()?.modified().ok()?, name)))
        .collect();
    logs.sort();
    let surplus = logs.len().saturating_sub(MOST - 1);
    for (_, name) in logs.iter().take(surplus) {
        for name in [name.clone(), format!("{name}{OLD}")] {
            // Another mount may have removed it meanwhile.
            let _ = dir.remove(&name);
        }
    }
    Ok(dir)
}

/// Prints each line as it comes.
struct Terminal;

impl LineSink for Terminal {
    fn add(&self, line: &Line) {
        say(&line.message);
    }

    fn status(&self) -> (String, Option<String>) {
        ("standard error".to_owned(), None)
    }
}

/// Makes a mount keep a log of its refusals. A mount in front writes them to the terminal as well.
pub fn keep(fs: &Fs, store: &Path, mount_point: &Path, in_front: bool) {
    let heading = Heading {
        store: store.display().to_string(),
        mounted_at: mount_point.display().to_string(),
        since: utc(SystemTime::now()),
    };
    if let Some(path) = directory() {
        let name = name_of(mount_point);
        let place = path.join(&name);
        let log = LogFile::new(place, &name, move || made(&path), heading.clone());
        fs.keep_lines(Box::new(log));
    }
    if let Some(directory) = fs.log_directory() {
        let place = directory().map_or_else(|_| LOG.into(), |dir| dir.path().join(LOG));
        let log = LogFile::new(place, LOG, directory, heading);
        fs.keep_lines(Box::new(log));
    }
    if in_front {
        fs.keep_lines(Box::new(Terminal));
    }
}

/// Returns the log of the earlier mounts at a path; `None` if there is none.
pub fn of_mount(mount_point: &Path) -> Result<Option<Vec<LogEntry>>> {
    let Some(path) = directory().filter(|path| path.is_dir()) else {
        return Ok(None);
    };
    match read(&Dir::alone(&path)?, &name_of(mount_point)) {
        Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
        entries => entries.map(Some),
    }
}

/// Reads a log, older lines first. Skips what is no line of a log: a daemon that is killed may leave half a line.
pub fn read(dir: &Dir, name: &str) -> Result<Vec<LogEntry>> {
    let mut text = String::new();
    let mut add = |name: &str| -> Result<()> {
        let mut bytes = Vec::new();
        dir.read(name)?.take(READ).read_to_end(&mut bytes)?;
        text += &String::from_utf8_lossy(&bytes);
        Ok(())
    };
    match add(&format!("{name}{OLD}")) {
        Err(e) if e.kind == ErrorKind::NotFound => {}
        read => read?,
    }
    add(name)?;
    Ok(text.lines().filter_map(LogEntry::parse).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_a_name_of_its_own_for_each_mount_point() {
        let name = name_of(Path::new("/mnt/a b\u{e9}"));
        assert!(
            name.starts_with("mount-ab-") && name.ends_with(".jsonl"),
            "{name}"
        );
        assert_ne!(name, name_of(Path::new("/mnt/ab")));
        assert!(name_of(Path::new("/")).starts_with("mount--"));
    }

    #[test]
    fn the_oldest_logs_make_room() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/npyfs");
        let dir = made(&path).unwrap();
        for i in 0..MOST + 5 {
            let file = dir.write_or_create(&format!("mount-{i}{ENDING}")).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(i as u64);
            file.set_modified(time).unwrap();
        }
        made(&path).unwrap();
        let names = dir.names().unwrap();
        assert_eq!(names.len(), MOST - 1);
        assert!(!path.join(format!("mount-5{ENDING}")).exists());
        assert!(path.join(format!("mount-6{ENDING}")).exists());
    }
}
