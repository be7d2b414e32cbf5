//! `npyfs log`: what a mount refused, one line each, while it lives and afterwards.

pub mod kept;

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::checkout::checkouts;
use crate::cli::output::print;
use crate::cli::{CliError, place, say};
use crate::error::ErrorKind;
use crate::formats::place::StorePlace;
use crate::journal::Line;
use crate::mount::fuse::table;

use kept::LogEntry;

/// The log of a mount, in its `.npyfs`.
const LIVE: &str = ".npyfs/errors.jsonl";

/// How often a log that is followed is looked at.
const PAUSE: Duration = Duration::from_millis(300);

/// Files that `umount` names at most.
const NAMED: usize = 10;

/// Show what a mount refused, and why: one line each, the latest last.
///
/// Of a mount that is gone, and those before it at the same place, from the user's state directory
/// (XDG_STATE_HOME, or .local/state in the home directory). With --checkout from the checkout itself, whoever mounted it.
///
/// JSON is an object on each line: {"number", "time", "message", "count", "path", "operation", "errno"}, of which
/// the last three are there if a program asked for something. {"store", "mounted_at", "since"} begins the lines of a mount
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
    place::refuse_address(&args.place)?;
    let path = table::resolve(&args.place).unwrap_or_else(|_| args.place.clone());
    if let Some(mount) = mount_of(&path) {
        return live(&mount, args);
    }
    let path = std::path::absolute(path).map_err(|e| CliError::usage(e.to_string()))?;
    let shown = args.place.display();
    if args.follow {
        return Err(CliError::mount(format!("{shown} is not mounted")));
    }
    match kept::of_mount(&path).map_err(|e| CliError::mount(e.message))? {
        Some(entries) => show(&entries, args.json),
        None => Err(CliError::mount(format!(
            "{shown} is not mounted, and no mount there refused anything"
        ))),
    }
}

/// Returns the mount of npyfs that a path is in.
fn mount_of(path: &Path) -> Option<PathBuf> {
    let ours = |path: &&Path| matches!(table::at(path), Ok(Some(top)) if top.is_ours());
    path.ancestors().find(ours).map(Path::to_owned)
}

/// Returns what the mounts of a checkout refused.
fn of_checkout(args: &Args, name: &str) -> Result<Vec<LogEntry>, CliError> {
    let refused = |e: crate::error::Error| CliError::store(e.message);
    let StorePlace { store, .. } = StorePlace::of(&args.place);
    place::check_place(&store, args.checkouts.as_deref()).map_err(refused)?;
    let store = StorePlace::resolved(&store).map_err(|e| {
        let hint = place::hint(&store);
        CliError::store(format!("{}: {e}{hint}", store.display()))
    })?;
    let checkouts = place::checkouts(&store, args.checkouts.as_deref()).map_err(refused)?;
    let dir = checkouts.directory(name).map_err(refused)?;
    match kept::read(&dir, checkouts::LOG) {
        Err(e) if e.kind == ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map_err(refused),
    }
}

/// Returns what a mount has refused so far.
fn lines(mount: &Path) -> io::Result<Vec<Line>> {
    let text = std::fs::read_to_string(mount.join(LIVE))?;
    let lines = text.lines().map(serde_json::from_str);
    Ok(lines.collect::<Result<_, _>>()?)
}

/// Prints the log of a mount, and goes on for as long as it is to be followed.
fn live(mount: &Path, args: &Args) -> Result<(), CliError> {
    let failed = |e: io::Error| CliError::mount(format!("{}: {e}", mount.display()));
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

/// Returns what a mount refused to programs.
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

/// Returns what a mount's log says behind the line of a number of a request that failed with this errno.
pub fn reason(mount: &Path, behind: u64, errno: i32) -> Option<String> {
    let lines = lines(mount).ok()?.into_iter();
    let is_meant = |line: &Line| {
        let refusal = line.refusal.as_ref();
        line.number > behind && refusal.is_some_and(|refusal| refusal.errno == errno)
    };
    lines.rev().find(is_meant).map(|line| line.message)
}

/// Tells of what a mount refused, before it is forgotten.
pub fn tell(lines: &[Line], mount: &Path) {
    for line in lines.iter().take(NAMED) {
        say(&format!("refused: {line}"));
    }
    if let Some(more @ 1..) = lines.len().checked_sub(NAMED) {
        say(&format!(
            "refused: {more} more, see npyfs log {}",
            mount.display()
        ));
    }
}
