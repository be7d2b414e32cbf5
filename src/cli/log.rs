//! `npyfs log`: what a mount refused, one line each, while it lives and afterwards.
//!
//! A log outlives its mount: it lies in the user's state directory, by mount point, and in the checkout that was
//! written. A log is as private as its directory; the state directory belongs to the user alone. Without a directory
//! that can be written the mount works all the same, and `status.json` says so.

use std::fmt;
use std::fs::DirBuilder;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use xxhash_rust::xxh3::xxh3_64;

use crate::cli::output::print;
use crate::cli::users::out_of_reach;
use crate::cli::{CliError, say, store};
use crate::mount::fs::Fs;
use crate::mount::fuse::table;
use npyfs_base::error::{self, ErrorKind};
use npyfs_base::journal::{Line, LineSink, utc};
use npyfs_core::checkout::history::checkouts::{self, LOG};
use npyfs_core::formats::store_path::StorePath;
use npyfs_io::dir::Dir;
use npyfs_io::log_file::{Heading, LogFile, OLD};

/// The log of a mount, in its `.npyfs`.
const LIVE: &str = ".npyfs/errors.jsonl";

/// The pause between two looks at a log that is followed.
const PAUSE: Duration = Duration::from_millis(300);

/// Files that `umount` names at most.
const NAMED: usize = 10;

/// Show what a mount refused, and why: one line each, the latest last.
///
/// The log of a dead mount, and of earlier mounts at the same place, comes from the user's state directory
/// (XDG_STATE_HOME, or .local/state in the home directory). --checkout shows the log of a checkout, of all its mounts.
///
/// JSON is an object on each line: {"number", "time", "message", "count", "path", "operation", "errno"}, of which
/// the last three are there if a program asked for something; "waits" is true if what was to be durable is tried again.
/// {"store", "mounted_at", "since"} begins the lines of a mount that is gone.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Go on with what is refused from now on, until the mount ends
    #[arg(short, long)]
    follow: bool,

    /// JSON, an object on each line
    #[arg(long)]
    json: bool,

    /// The log of the checkout NAME, of which STORE is given
    #[arg(long, value_name = "NAME")]
    checkout: Option<String>,

    /// Directory of the checkouts, here or in a bucket; by default STORE.checkouts
    #[arg(long, value_name = "DIR", requires = "checkout")]
    checkouts: Option<PathBuf>,

    /// A mount point, or something below it; with --checkout a store
    #[arg(value_name = "MOUNTPOINT")]
    place: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    if let Some(name) = &args.checkout {
        if args.follow {
            return Err(CliError::usage(
                "--follow is for a mount, not for --checkout",
            ));
        }
        return show(&of_checkout(args, name)?, args.json);
    }
    store::refuse_address(&args.place)?;
    let path = table::resolve(&args.place).unwrap_or_else(|_| args.place.clone());
    let path = match table::above(&path) {
        None => path,
        Some(mount) if !is_dead(&mount) => return live(&mount, args),
        // The log that the mount wrote while it lived.
        Some(mount) => mount,
    };
    let path = std::path::absolute(path).map_err(|e| CliError::usage(e.to_string()))?;
    let shown = args.place.display();
    let is_dead = table::above(&path).is_some();
    let state = match is_dead {
        true => "is a mount whose process is gone",
        false => "is not mounted",
    };
    if args.follow {
        return Err(CliError::mount(format!("{shown} {state}")));
    }
    match saved_of_mount(&path).map_err(|e| CliError::mount(e.message))? {
        Some(entries) => show(&entries, args.json),
        None => Err(CliError::mount(format!(
            "{shown} {state}, and no mount there refused anything"
        ))),
    }
}

/// Returns whether the process of a mount is gone.
fn is_dead(mount: &Path) -> bool {
    let opened = std::fs::File::open(mount);
    let errno = opened.err().and_then(|e| e.raw_os_error());
    matches!(errno, Some(libc::ENOTCONN | libc::ECONNABORTED))
}

/// Returns the log of a checkout: the refusals of all its mounts.
fn of_checkout(args: &Args, name: &str) -> Result<Vec<LogEntry>, CliError> {
    let refused = |e: npyfs_base::error::Error| CliError::store(e.message);
    let StorePath { store, .. } = StorePath::parse(&args.place);
    store::check_place(&store, args.checkouts.as_deref()).map_err(refused)?;
    let store = StorePath::resolved(&store).map_err(|e| {
        let hint = store::hint(&store);
        CliError::store(format!("{}: {e}{hint}", store.display()))
    })?;
    let checkouts = store::checkouts(&store, args.checkouts.as_deref()).map_err(refused)?;
    let mut all = Vec::new();
    for dir in checkouts.directories(name).map_err(refused)? {
        match read_saved(&dir, checkouts::LOG) {
            Err(e) if e.kind == ErrorKind::NotFound => {}
            read => all.extend(read.map_err(refused)?),
        }
    }
    Ok(all)
}

/// Returns the log of a mount so far.
fn lines(mount: &Path) -> io::Result<Vec<Line>> {
    let text = std::fs::read_to_string(mount.join(LIVE))?;
    let lines = text.lines().map(serde_json::from_str);
    Ok(lines.collect::<Result<_, _>>()?)
}

/// Prints the log of a mount, and with `--follow` goes on until the mount ends.
fn live(mount: &Path, args: &Args) -> Result<(), CliError> {
    let failed = |e: io::Error| CliError::mount(out_of_reach(mount, &e));
    let mut last = 0;
    let mut now = lines(mount).map_err(failed)?;
    loop {
        now.retain(|line| line.number > last);
        last = now.last().map_or(last, |line| line.number);
        let entries: Vec<LogEntry> = now.into_iter().map(LogEntry::Line).collect();
        show(&entries, args.json)?;
        if !args.follow {
            return Ok(());
        }
        thread::sleep(PAUSE);
        now = match lines(mount) {
            Ok(lines) => lines,
            // The mount has ended.
            Err(_) => return Ok(()),
        };
    }
}

fn show(entries: &[LogEntry], json: bool) -> Result<(), CliError> {
    let mut text = String::new();
    for entry in entries {
        match json {
            true => text += &entry.json(),
            false => text += &entry.to_string(),
        }
        text.push('\n');
    }
    print(text.as_bytes())
}

/// Returns the requests of programs that a mount refused.
pub fn refused(mount: &Path) -> io::Result<Vec<Line>> {
    let mut lines = lines(mount)?;
    lines.retain(|line| line.refusal.is_some());
    Ok(lines)
}

/// Returns the number of the last line of a mount's log.
pub fn last(mount: &Path) -> u64 {
    let lines = lines(mount).unwrap_or_default();
    lines.last().map_or(0, |line| line.number)
}

/// Returns the message of the latest refusal with this errno, after the line of number `behind`.
pub fn reason(mount: &Path, behind: u64, errno: i32) -> Option<String> {
    let lines = lines(mount).ok()?.into_iter();
    let is_meant = |line: &Line| {
        let refusal = line.refusal.as_ref();
        line.number > behind && refusal.is_some_and(|refusal| refusal.errno == errno)
    };
    lines.rev().find(is_meant).map(|line| line.message)
}

/// Returns the message of the latest refusal with this errno about a path of the mount.
pub fn reason_for(mount: &Path, path: &str, errno: i32) -> Option<String> {
    let is_meant = |line: &Line| {
        let refusal = line.refusal.as_ref();
        refusal.is_some_and(|refusal| refusal.errno == errno && refusal.path == path)
    };
    let lines = lines(mount).ok()?.into_iter();
    lines.rev().find(is_meant).map(|line| line.message)
}

/// Prints the refusals of a mount before its log is gone. All writes that waited are on the disk by now.
pub fn print_refusals(lines: &[Line], mount: &Path) {
    let waits = |line: &&Line| line.refusal.as_ref().is_some_and(|refusal| refusal.waits);
    let (later, refused): (Vec<&Line>, Vec<&Line>) = lines.iter().partition(waits);
    for (what, lines) in [("refused", refused), ("stored later", later)] {
        for line in lines.iter().take(NAMED) {
            say(&format!("{what}: {line}"));
        }
        if let Some(more @ 1..) = lines.len().checked_sub(NAMED) {
            say(&format!(
                "{what}: {more} more, see npyfs log {}",
                mount.display()
            ));
        }
    }
}

/// Ending of the name of a log.
const ENDING: &str = ".jsonl";

/// Logs of mount points that are kept at most; the one that was written longest ago goes first.
const MOST: usize = 64;

/// Bytes of a log that are read at most: more than are ever written.
const READ: u64 = 8 << 20;

/// A line of a log.
enum LogEntry {
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
fn create_dir(path: &Path) -> error::Result<Dir> {
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
        let log = LogFile::new(place, &name, move || create_dir(&path), heading.clone());
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
fn saved_of_mount(mount_point: &Path) -> error::Result<Option<Vec<LogEntry>>> {
    let Some(path) = directory().filter(|path| path.is_dir()) else {
        return Ok(None);
    };
    match read_saved(&Dir::alone(&path)?, &name_of(mount_point)) {
        Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
        entries => entries.map(Some),
    }
}

/// Reads a log, older lines first. Skips what is no line of a log: a daemon that is killed may leave half a line.
fn read_saved(dir: &Dir, name: &str) -> error::Result<Vec<LogEntry>> {
    let mut text = String::new();
    let mut add = |name: &str| -> error::Result<()> {
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
        let dir = create_dir(&path).unwrap();
        for i in 0..MOST + 5 {
            let file = dir.write_or_create(&format!("mount-{i}{ENDING}")).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(i as u64);
            file.set_modified(time).unwrap();
        }
        create_dir(&path).unwrap();
        let names = dir.names().unwrap();
        assert_eq!(names.len(), MOST - 1);
        assert!(!path.join(format!("mount-5{ENDING}")).exists());
        assert!(path.join(format!("mount-6{ENDING}")).exists());
    }
}
