//! Mounting in the background: the process in front, and the process that detaches from it and serves.
//!
//! The word between them is one line on a pipe: the device number of the mount, or that a descriptor is served. It is sent only
//! after the mount answers requests. If the process in front is gone by then, the mount is taken
//! back.

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Dev, major, minor};
use rustix::process::{Pid, Signal, kill_process};

use super::Args;
use crate::cli::{CliError, options};
use crate::mount::fuse::unmount::unmount;
use crate::mount::fuse::{inherited, table};
use npyfs_io::remote::Address;

/// The time that a mount may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The time for a late process to clean up.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes that are read from the process in front at most.
const LONGEST: u64 = 1 << 20;

/// Takes over the addresses with secrets that the process in front was given. They come through the standard input: command lines
/// and environments can be read by others, and are handed on.
pub(super) fn take_secrets() {
    let mut given = String::new();
    // A process without them fails with an error about the address.
    let _ = io::stdin().take(LONGEST).read_to_string(&mut given);
    for address in given.lines() {
        Address::hide_secret(Path::new(address));
        Address::hide_user(address);
    }
}

/// Hands the addresses with secrets to the process in the background.
fn hand_over(child: &mut Child) {
    if let Some(mut pipe) = child.stdin.take() {
        // A child that has ended has printed the reason.
        let _ = pipe.write_all(Address::secrets().join("\n").as_bytes());
    }
}

/// Mounts in another process and returns when the mount has answered this one.
pub(super) fn start(args: &Args) -> Result<(), CliError> {
    let shown = args.mount_point.display();
    let descriptor = inherited::number(&args.mount_point);
    if let Some(number) = descriptor {
        // The child inherits this.
        inherited::check(number).map_err(|why| super::unusable(&args.mount_point, &why))?;
    }
    // If the working directory is the mount point, a relative path still leads to the directory below the mount.
    let path = table::resolve(&args.mount_point).unwrap_or_else(|_| args.mount_point.clone());
    let mut child = command(args).spawn().map_err(|error| {
        CliError::mount(format!("cannot start a process in the background: {error}"))
    })?;
    hand_over(&mut child);
    let seen = descriptor.is_none().then_some(path.as_path());
    let word = child.stdout.take().map(|pipe| wait(pipe, seen));
    match word {
        Some(Announcement::Matches) => Ok(()),
        Some(Announcement::Mismatch) => {
            stop(&mut child, &path);
            Err(CliError::mount(format!(
                "mount point {shown} shows something else than the new mount"
            )))
        }
        Some(Announcement::TimedOut) => {
            stop(&mut child, &path);
            Err(CliError::mount(format!(
                "the mount at {shown} did not answer in {} seconds",
                ANSWER_TIMEOUT.as_secs()
            )))
        }
        Some(Announcement::Ended) | None => Err(outcome(&mut child, &args.mount_point)),
    }
}

/// Returns the command line of the process in the background.
fn command(args: &Args) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("npyfs")
        .args(["mount", "--foreground", "--announce"]);
    for list in &args.options {
        // One argument, so that a list may begin with a hyphen.
        command.arg(format!("-o{}", options::without_secrets(list)));
    }
    if let Some(name) = &args.checkout {
        command.arg("--checkout").arg(name);
    }
    if let Some(id) = &args.at {
        command.arg("--at").arg(id);
    }
    if let Some(dir) = &args.checkouts {
        command.arg("--checkouts").arg(dir);
    }
    // A query may hold a secret, and everybody can read a command line.
    let store = Address::hide_secret(&args.store);
    command.arg("--").arg(store).arg(&args.mount_point);
    let input = match Address::secrets().is_empty() {
        true => Stdio::null(),
        false => Stdio::piped(),
    };
    command.stdin(input).stdout(Stdio::piped());
    command
}

/// The answer of the process in the background.
enum Announcement {
    /// The announced mount answers.
    Matches,
    /// The mount point answers, but as something else.
    Mismatch,
    /// The pipe ended without an announcement.
    Ended,
    /// The time is over.
    TimedOut,
}

/// Waits for the announcement, in a thread of its own: neither reading the pipe nor `stat` of a mount has a time limit.
/// Without a mount point to look at, the announcement is enough.
fn wait(pipe: ChildStdout, mount_point: Option<&Path>) -> Announcement {
    let (sender, heard) = channel();
    let mount_point = mount_point.map(Path::to_owned);
    thread::spawn(move || {
        let mut line = String::new();
        let read = BufReader::new(pipe).read_line(&mut line);
        let heard = if read.is_ok() && line.ends_with('\n') {
            match mount_point.map(|path| path.metadata()) {
                None => Announcement::Matches,
                Some(Ok(seen)) if announcement(Some(seen.dev())) == line => Announcement::Matches,
                Some(_) => Announcement::Mismatch,
            }
        } else {
            Announcement::Ended
        };
        let _ = sender.send(heard);
    });
    match heard.recv_timeout(ANSWER_TIMEOUT) {
        Ok(word) => word,
        Err(RecvTimeoutError::Timeout) => Announcement::TimedOut,
        Err(RecvTimeoutError::Disconnected) => Announcement::Ended,
    }
}

/// Returns the line that announces a mount, by its device number if it has been made here.
fn announcement(device: Option<Dev>) -> String {
    match device {
        Some(device) => format!("{}:{}\n", major(device), minor(device)),
        None => "served\n".to_owned(),
    }
}

/// Returns the error of a child that has ended, or is about to, and has printed why.
fn outcome(child: &mut Child, mount_point: &Path) -> CliError {
    let shown = mount_point.display();
    match child.wait() {
        Ok(status) => match status.code().and_then(|code| u8::try_from(code).ok()) {
            Some(code @ 1..) => CliError {
                code,
                message: String::new(),
            },
            _ => CliError::mount(format!(
                "mounting at {shown} was stopped before it was done ({status})"
            )),
        },
        Err(error) => CliError::mount(format!(
            "the process that mounts at {shown} is lost: {error}"
        )),
    }
}

/// Ends the child, and takes back what it mounted.
fn stop(child: &mut Child, mount_point: &Path) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // The child may have ended by itself.
        let _ = kill_process(pid, Signal::TERM);
    }
    let deadline = Instant::now() + CLEANUP_TIMEOUT;
    while Instant::now() < deadline {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
    let _ = child.kill();
    let _ = child.wait();
    if table::at(mount_point).is_ok_and(|top| top.is_some_and(|top| top.is_ours())) {
        let _ = unmount(mount_point, true);
    }
}

/// Takes this process, and what it will start, away from the caller's terminal.
///
/// The serving process calls this before anything else. At an automount point this does nothing yet: the kernel lets in only
/// the process group that mounts there, and any other process would wait for the mount that it is about to make.
pub(super) fn leave_terminal(mount_point: &Path) {
    let top = table::resolve(mount_point).and_then(|path| table::at(&path));
    if !matches!(top, Ok(Some(top)) if top.is_automount()) {
        own_session();
    }
}

/// Makes this process the leader of a session of its own.
fn own_session() {
    // Fails only for the leader of a process group, which needs no new session.
    let _ = rustix::process::setsid();
}

/// Announces the mount to the process in front, and closes everything inherited from the caller.
pub(super) fn detach(device: Option<Dev>) -> io::Result<()> {
    own_session();
    // Process lists would show the name of the link it was started by.
    let _ = rustix::thread::set_name(c"npyfs");
    std::env::set_current_dir("/")?;
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    let mut stdout = io::stdout();
    stdout.write_all(announcement(device).as_bytes())?;
    stdout.flush()?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}
