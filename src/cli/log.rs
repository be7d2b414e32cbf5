//! `npyfs log`: what a mount refused, one line each, while it lives and afterwards.

pub mod saved;

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::cli::out_of_reach::out_of_reach;
use crate::cli::output::print;
use crate::cli::{CliError, say, store_checkouts};
use crate::mount::fuse::table;
use npyfs_base::error::ErrorKind;
use npyfs_base::journal::Line;
use npyfs_core::checkout::history::checkouts;
use npyfs_core::formats::store_path::StorePath;

use saved::LogEntry;

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
/// the last three are there if a program asked for something; "waits" is true if what was to be durable is tried again. {"store", "mounted_at", "since"} begins the lines of a mount
/// that is gone.
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
    store_checkouts::refuse_address(&args.place)?;
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
    match saved::of_mount(&path).map_err(|e| CliError::mount(e.message))? {
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
    let StorePath { store, .. } = StorePath::of(&args.place);
    store_checkouts::check_place(&store, args.checkouts.as_deref()).map_err(refused)?;
    let store = StorePath::resolved(&store).map_err(|e| {
        let hint = store_checkouts::hint(&store);
        CliError::store(format!("{}: {e}{hint}", store.display()))
    })?;
    let checkouts =
        store_checkouts::checkouts(&store, args.checkouts.as_deref()).map_err(refused)?;
    let mut all = Vec::new();
    for dir in checkouts.directories(name).map_err(refused)? {
        match saved::read(&dir, checkouts::LOG) {
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
pub fn tell(lines: &[Line], mount: &Path) {
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
