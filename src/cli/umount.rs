//! `npyfs umount`: takes away a mount of npyfs, alive or dead.
//!
//! Asks the mount for two things only, and for a limited time: to make writes durable, and which writes would be lost
//! or wait for another mount. A dead mount answers only with errors; a stuck mount does not answer at all.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Deserialize;

use crate::cli::users::{self, told, users_of};
use crate::cli::{CliError, log, say, store};
use crate::mount::fuse::table::{self, unmount};
use npyfs_base::journal::Line;

/// The number of attempts at a mount that is busy, and the pause between two: some programs use a mount for a moment
/// only.
const ATTEMPTS: usize = 40;
const GLANCE: Duration = Duration::from_millis(20);

/// The time that an accepted unmount may take to show in the mount table.
const TABLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The time that the process of a mount may take to end. It stays as long as another mount namespace has a copy of the
/// mount.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of looks at files that a program may still be writing before `umount` reports them.
const LOOKS: usize = 25;

/// The time that a writable mount may take to store what was written.
const SYNC_TIMEOUT: Duration = Duration::from_secs(120);

/// Unmount a store.
///
/// Works on dead mounts too, whose npyfs process is gone.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The mount point of the store
    #[arg(value_name = "MOUNTPOINT")]
    mount_point: PathBuf,

    /// Detach even while programs use it; it ends when the last of them is done
    #[arg(short, long)]
    lazy: bool,
}

impl Args {
    /// The arguments of a call by another command.
    pub(super) fn new(mount_point: PathBuf, lazy: bool) -> Self {
        Self { mount_point, lazy }
    }
}

/// Runs the command.
pub fn run(args: Args) -> Result<(), CliError> {
    store::refuse_address(&args.mount_point)?;
    let shown = args.mount_point.display();
    let failed = |reason: &dyn std::fmt::Display| {
        CliError::mount(format!("cannot unmount {shown}: {reason}"))
    };
    let path = table::resolve(&args.mount_point).map_err(|reason| failed(&reason))?;
    let mounted = mounted_at(&path, &args.mount_point).map_err(CliError::mount)?;
    // A process that works in a directory of the mount keeps it busy; this one may have been started there.
    let _ = std::env::set_current_dir("/");
    if let Some(reason) = belongs_to_others(&mounted, &args.mount_point) {
        return Err(CliError::mount(reason));
    }
    let WriteStatus {
        unfinished,
        waiting,
        refused,
        daemon,
    } = match mounted.read_only {
        true => WriteStatus::default(),
        false => sync_and_report(&path, args.lazy).map_err(|reason| {
            CliError::mount(format!(
                "what was written at {shown} cannot be made durable: {reason} (npyfs umount --lazy {shown} \
                 unmounts all the same)"
            ))
        })?,
    };
    unmount_idle(&path, args.lazy).map_err(|refusal| match refusal.kind() {
        io::ErrorKind::ResourceBusy => CliError::mount(format!(
            "{shown} is busy: {} (npyfs umount --lazy {shown} detaches it)",
            told(&users_of(&path))
        )),
        _ => failed(&refusal),
    })?;
    let deadline = Instant::now() + TABLE_TIMEOUT;
    while table::at(&path)
        .map_err(|reason| failed(&reason))?
        .is_some_and(|top| top.id == mounted.id)
    {
        if Instant::now() >= deadline {
            return Err(failed(&"it is still in the mount table"));
        }
        thread::sleep(Duration::from_millis(20));
    }
    if let (Some(daemon), false) = (daemon, args.lazy) {
        wait_for_end(&daemon);
    }
    log::print_refusals(&refused, &args.mount_point);
    for object in &waiting {
        say(&format!("{object}; what is there waits for another mount"));
    }
    for LostFile { path, reason, .. } in &unfinished {
        say(&format!(
            "{path}: not stored, and gone with the mount: {reason}"
        ));
    }
    let arrays = unfinished.iter().filter(|file| file.is_array).count();
    match arrays {
        0 => Ok(()),
        _ => Err(CliError::object(format!(
            "{shown} is unmounted, and {arrays} of its files never became arrays"
        ))),
    }
}

/// Unmounts. `npyfs status` and the like keep a mount busy for a moment.
fn unmount_idle(path: &Path, lazy: bool) -> io::Result<()> {
    for _ in 1..ATTEMPTS {
        match unmount(path, lazy) {
            Err(refusal) if refusal.kind() == io::ErrorKind::ResourceBusy => thread::sleep(GLANCE),
            outcome => return outcome,
        }
    }
    unmount(path, lazy)
}

/// Returns the mount at a path, or why there is none of npyfs.
fn mounted_at(path: &Path, shown: &Path) -> Result<table::Mounted, String> {
    let shown = shown.display();
    match table::at(path) {
        Err(reason) => Err(format!("the mount table cannot be read: {reason}")),
        Ok(None) => Err(format!("{shown} is not mounted")),
        Ok(Some(mounted)) if !mounted.is_ours() => {
            let fstype = mounted.fstype;
            Err(format!("{shown} is not a mount of npyfs but of {fstype}"))
        }
        Ok(Some(mounted)) => Ok(mounted),
    }
}

/// Returns the reason if this user may not unmount.
fn belongs_to_others(mounted: &table::Mounted, shown: &Path) -> Option<String> {
    let me = rustix::process::geteuid();
    let owner = mounted.owner.filter(|&owner| owner != me.as_raw())?;
    if me.is_root() {
        return None;
    }
    let name = users::name_of_user(owner);
    let who = match owner {
        0 => "root".to_owned(),
        _ => format!("{name} and root"),
    };
    let shown = shown.display();
    Some(format!(
        "{shown} is a mount of {name}: only {who} can unmount it"
    ))
}

/// A written file that did not become an object.
#[derive(Deserialize)]
struct LostFile {
    path: String,
    reason: String,
    /// Its name is that of an array.
    is_array: bool,
    /// A program may still write it.
    is_open: bool,
}

/// The part of `status.json` that is read here.
#[derive(Deserialize)]
struct Status {
    pid: i32,
    checkout: Option<WriteStatus>,
}

/// The part of `status.json` about what was written.
#[derive(Default, Deserialize)]
struct WriteStatus {
    #[serde(default)]
    unfinished: Vec<LostFile>,
    /// Objects that are not complete, and what they lack.
    #[serde(default)]
    waiting: Vec<String>,
    /// The requests that programs were refused since the mount began, from its log.
    #[serde(skip)]
    refused: Vec<Line>,
    /// The process that serves the mount, if it is one of this machine that can be waited for.
    #[serde(skip)]
    daemon: Option<OwnedFd>,
}

/// Makes a writable mount store all writes, and returns the writes that were not stored. With `may_fail`, a failure
/// counts as all stored. So does a mount that is dead or another user's, which cannot be asked.
fn sync_and_report(path: &Path, may_fail: bool) -> io::Result<WriteStatus> {
    let asked = path.to_owned();
    let answer = with_timeout(SYNC_TIMEOUT, move || {
        sync_with_reason(&asked)?;
        // The kernel reports the last close after the program has gone on: an open file may be stored a moment later.
        for _ in 0..LOOKS {
            let written = written(&asked)?;
            let mut files = written.unfinished.iter();
            if !files.any(|file| file.is_array && file.is_open) {
                return Ok(written);
            }
            thread::sleep(Duration::from_millis(20));
        }
        written(&asked)
    });
    match answer {
        Err(e) if may_fail || is_out_of_reach(&e) => Ok(WriteStatus::default()),
        answer => answer,
    }
}

/// Returns what would be lost, or wait, if the mount ended now.
fn written(mount: &Path) -> io::Result<WriteStatus> {
    let status = std::fs::read(mount.join(".npyfs/status.json"))?;
    let status: Status = serde_json::from_slice(&status)?;
    let mut written = status.checkout.unwrap_or_default();
    written.refused = log::refused(mount)?;
    written.daemon = daemon(status.pid);
    Ok(written)
}

/// Opens the process of a mount. `None` if the number is another process here: the mount is of another PID namespace.
fn daemon(pid: i32) -> Option<OwnedFd> {
    let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    (name.trim_end() == "npyfs").then_some(process)
}

/// Waits until the process of a mount has ended, because the next command may need its lock on the checkout. The wait
/// is limited: everything is stored already.
fn wait_for_end(daemon: &OwnedFd) {
    let timeout = Timespec {
        tv_sec: END_TIMEOUT.as_secs() as i64,
        tv_nsec: 0,
    };
    // A pidfd is readable once the process has ended.
    let _ = poll(&mut [PollFd::new(daemon, PollFlags::IN)], Some(&timeout));
}

/// Returns whether the error means that a mount cannot be opened: it is dead, or another user's.
fn is_out_of_reach(e: &io::Error) -> bool {
    e.get_ref().is_some_and(|inner| inner.is::<OutOfReach>())
}

/// The error of a mount point that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct OutOfReach(io::Error);

/// Syncs a mount, without a time limit.
fn sync_now(path: &Path) -> io::Result<()> {
    let dir = File::open(path).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOTCONN | libc::ECONNABORTED | libc::EACCES | libc::EPERM) => {
            io::Error::new(e.kind(), OutOfReach(e))
        }
        _ => e,
    })?;
    dir.sync_all()
}

/// Syncs a mount as `sync_now` does. A failure carries the reason from the mount's log, such as the holder of a lock.
fn sync_with_reason(path: &Path) -> io::Result<()> {
    let before = log::last(path);
    sync_now(path).map_err(|e| match e.raw_os_error() {
        Some(errno) => match log::reason(path, before, errno) {
            Some(reason) => io::Error::new(e.kind(), format!("{e}: {reason}")),
            None => e,
        },
        None => e,
    })
}

/// Makes a writable mount store all writes.
pub fn sync(mount_point: &Path) -> Result<(), CliError> {
    let shown = mount_point.display();
    let failed = |reason: io::Error| CliError::object(format!("{shown}: {reason}"));
    store::refuse_address(mount_point)?;
    let path = table::resolve(mount_point).map_err(failed)?;
    mounted_at(&path, mount_point).map_err(CliError::object)?;
    with_timeout(SYNC_TIMEOUT, move || sync_with_reason(&path)).map_err(failed)
}

/// Returns the answer of a mount, or an error when the time is over.
pub(super) fn with_timeout<T: Send + 'static>(
    timeout: Duration,
    ask: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (sender, answer) = std::sync::mpsc::channel();
    // A stuck mount keeps this thread for ever; it ends with the process.
    thread::spawn(move || {
        // The receiver is gone if the time is over.
        let _ = sender.send(ask());
    });
    answer.recv_timeout(timeout).unwrap_or_else(|_| {
        let seconds = timeout.as_secs();
        Err(io::Error::other(format!(
            "no answer within {seconds} seconds"
        )))
    })
}
