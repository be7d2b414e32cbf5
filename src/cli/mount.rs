//! `npyfs mount`: checks everything that can be checked beforehand, mounts, and stays in front or in the background.
//!
//! In the background a second process does all of it, checks included: it detaches from the process in front, and
//! serves. The word between them is one line on a pipe: the device number of the mount, or that a descriptor is served.
//! It is sent only after the mount answers requests. The process in front waits for the word, and sees for itself that
//! the mount answers. If the process in front is gone by then, the mount is taken back.
//!
//! The process that serves keeps neither terminal nor standard streams nor working directory of the caller. It never
//! forks without executing. Descriptors above 2 that the caller left open to its children stay open.

pub mod helper;

use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Dev, major, minor};
use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process, setrlimit};

use crate::cli::options::{self, MountOptions};
use crate::cli::{CliError, log, say, store, users};
use crate::mount::fs::{Fs, OpenError};
use crate::mount::fuse::inherited::{self, Inherited};
use crate::mount::fuse::session::{Appearance, Session};
use crate::mount::fuse::table::{self, unmount};
use npyfs_base::options::FsOptions;
use npyfs_core::checkout::history::checkouts::Checkouts;
use npyfs_core::checkout::records::holder;
use npyfs_core::formats;
use npyfs_core::formats::store_path::StorePath;
use npyfs_hdf5::{H5, Reach};
use npyfs_io::kept::kept_path;
use npyfs_io::remote::{Address, cache_path};
use npyfs_io::storage::Disk;

/// Mount a store as a directory of .npy files.
///
/// Returns when the mount answers; a process in the background serves it until it is unmounted.
#[derive(clap::Args, Debug)]
#[command(after_help = options::help())]
pub struct Args {
    /// Stay in front, and end by SIGINT or SIGTERM
    #[arg(short, long)]
    foreground: bool,

    /// Mount options, see below; may be given several times
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,

    /// Make the mount writable: what is written goes to the checkout NAME, never to the store
    #[arg(long, value_name = "NAME")]
    checkout: Option<String>,

    /// As the store was after a commit: its number, the first digits of its id, HEAD, HEAD~1; see npyfs checkout log
    #[arg(long, value_name = "COMMIT", conflicts_with = "checkout")]
    at: Option<String>,

    /// Directory of the checkouts, here or in a bucket; by default STORE.checkouts
    #[arg(long, value_name = "DIR")]
    checkouts: Option<PathBuf>,

    /// Said by the process in front to the one in the background: announce the mount, then let go
    /// of everything
    #[arg(long, hide = true)]
    announce: bool,

    #[arg(help = options::store_help())]
    store: PathBuf,

    /// An empty directory; or /dev/fd/N, a descriptor of /dev/fuse that another program opened and mounted
    #[arg(value_name = "MOUNTPOINT")]
    mount_point: PathBuf,
}

/// Runs the command.
pub fn run(mut args: Args) -> Result<(), CliError> {
    let mut options =
        options::parse(args.options.iter().map(String::as_str)).map_err(CliError::usage)?;
    args.checkout = one_of("checkout", args.checkout, options.checkout.clone())?;
    args.checkouts = one_of("checkouts", args.checkouts, options.checkouts.clone())?;
    args.at = one_of("at", args.at, options.at.clone())?;
    if args.at.is_some() && args.checkout.is_some() {
        return Err(CliError::usage(
            "at and checkout exclude each other: what a commit left cannot be written",
        ));
    }
    if options.fs.follow.is_some() && (args.at.is_some() || args.checkout.is_some()) {
        return Err(CliError::usage(
            "follow is for mounts of what is committed: a checkout stays on the commits that it was mounted on, and so does at",
        ));
    }
    if options.fs.aligned && args.checkout.is_some() && options.writable != Some(false) {
        return Err(CliError::usage(
            "aligned is for mounts that are only read: what is written is shown as np.save wrote it; add ro",
        ));
    }
    if let Some(view) = options.fs.view.filter(|_| options.writable == Some(true)) {
        return Err(CliError::usage(format!(
            "view={} and rw exclude each other: a view cannot be written",
            view.name()
        )));
    }
    let StorePath { store, inside } = StorePath::parse(&args.store);
    options.show_only(inside).map_err(CliError::usage)?;
    if store.is_dir() && args.mount_point.is_file() {
        // Said before the directory is found to be no store.
        let shown = args.mount_point.display();
        return Err(CliError::mount(format!(
            "mount point {shown} is not a directory (the order is STORE MOUNTPOINT)"
        )));
    }
    if !args.announce {
        options.warn();
    }
    if !args.foreground {
        return start(&args);
    }
    if args.announce {
        take_secrets();
    }
    args.store = store;
    // Before anything else is opened.
    let inherited = inherited::number(&args.mount_point)
        .map(|number| inherited::take(number).map_err(|why| unusable(&args.mount_point, &why)));
    serve(&args, options, inherited.transpose()?)
}

/// Returns the error of a descriptor that cannot be served.
fn unusable(mount_point: &Path, reason: &io::Error) -> CliError {
    CliError::mount(format!("descriptor {} {reason}", mount_point.display()))
}

/// Returns the value of an argument, or of the mount option of the same name.
fn one_of<T: PartialEq>(
    name: &str,
    argument: Option<T>,
    option: Option<T>,
) -> Result<Option<T>, CliError> {
    match (argument, option) {
        (Some(argument), Some(option)) if argument != option => Err(CliError::usage(format!(
            "--{name} and -o {name}= say different things"
        ))),
        (argument, option) => Ok(argument.or(option)),
    }
}

/// Raises the limit of open files to the most that is allowed: a tree of many stores holds many open.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If the limit stays, opening one file too many fails with its own error.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Mounts, and serves until the mount ends.
fn serve(args: &Args, options: MountOptions, inherited: Option<Inherited>) -> Result<(), CliError> {
    raise_file_limit();
    if args.announce {
        leave_terminal(&args.mount_point);
    }
    let far = Address::parse(&args.store).is_some();
    check_cache(&options.fs, far, &args.mount_point)?;
    // If this fails, opening the store reports the reason.
    let store = StorePath::resolved(&args.store)
        .or_else(|_| std::path::absolute(&args.store))
        .unwrap_or(args.store.clone());
    let is_view = options.fs.view.is_some();
    let writable = args.checkout.is_some() && options.writable != Some(false) && !is_view;
    let mount_point = std::path::absolute(&args.mount_point).unwrap_or_default();
    holder::begin(format!("npyfs mount at {}", mount_point.display()), say);
    let checkouts = match writable {
        true => store::checkouts_to_write(&store, args.checkouts.as_deref()),
        false => store::checkouts(&store, args.checkouts.as_deref()),
    };
    let checkouts = checkouts.map_err(|e| CliError::store(e.message))?;
    let checkouts = checkouts.asking(&options.fs.remote);
    let Some(name) = args.checkout.as_deref().filter(|_| writable) else {
        return serve_store(args, options, &store, &checkouts, writable, inherited);
    };
    let missing = checkouts
        .missing(name)
        .map_err(|e| CliError::store(e.message))?;
    let mounted = serve_store(args, options, &store, &checkouts, writable, inherited);
    // A mount that failed removes the directories that it made. One in which anything was written stays.
    if mounted.is_err() {
        let taken_back = checkouts.take_back(name, &missing);
        taken_back.unwrap_or_else(|e| say(&e.message));
    }
    mounted
}

/// Refuses a cache directory below the mount point: the mount would wait for itself.
fn check_cache(options: &FsOptions, far: bool, mount_point: &Path) -> Result<(), CliError> {
    let settings = &options.remote;
    let objects = cache_path(settings).filter(|_| far && settings.disk_cache > 0);
    let keeps = options.kept_bytes(far) > 0;
    let copies = kept_path(settings).filter(|_| keeps);
    let Some(kept) = objects.clone().or(copies) else {
        return Ok(());
    };
    let mut above = kept.ancestors();
    let there = above.find_map(|above| above.canonicalize().ok());
    match (there, mount_point.canonicalize()) {
        (Some(there), Ok(point)) if there.starts_with(&point) => {
            let kept = kept.display();
            let none = match (&objects, keeps) {
                (None, _) => "without keep=",
                (Some(_), true) if options.keep.is_some() => {
                    "none with disk_cache=0 and without keep="
                }
                _ => "none with disk_cache=0",
            };
            Err(CliError::usage(format!(
                "{kept} lies in the mount point: name another directory with -o cache_dir=, or {none}"
            )))
        }
        _ => Ok(()),
    }
}

/// Mounts an open store or checkout, and serves until the mount ends.
fn serve_store(
    args: &Args,
    options: MountOptions,
    store: &Path,
    checkouts: &Checkouts,
    writable: bool,
    inherited: Option<Inherited>,
) -> Result<(), CliError> {
    let spelled = shown_store(store, &options.fs);
    let says_read_only = options.writable == Some(true) && args.checkout.is_none();
    let fs = open(args, store, options.fs.clone(), checkouts, writable)?;
    match fs.followed() {
        None if options.fs.follow.is_some() => {
            say("follow: this store shows its commits itself, as they are made");
        }
        Some(0) => say(&format!(
            "{}: no commits yet; they are shown as they are made",
            checkouts.shown()
        )),
        _ => {}
    }
    let (session, shown) = match inherited {
        Some(inherited) => {
            log::keep(&fs, store, &args.mount_point, !args.announce);
            let session = Session::serve(fs, inherited);
            let session = session.map_err(|why| {
                CliError::mount(format!(
                    "cannot serve {}: {why}",
                    args.mount_point.display()
                ))
            })?;
            (session, args.mount_point.display().to_string())
        }
        None => {
            let mount_point = check_mount_point(&args.mount_point, store)?;
            log::keep(&fs, store, &mount_point, !args.announce);
            let session = mount(fs, &mount_point, options, store, writable)?;
            (session, mount_point.display().to_string())
        }
    };
    if says_read_only {
        say(
            "mounted read-only: rw needs --checkout NAME (-o checkout=NAME), the checkout that what is written goes to",
        );
    }
    if args.announce {
        // If the process in front is gone, dropping the session unmounts.
        detach(session.device())
            .map_err(|reason| CliError::mount(format!("cannot mount at {shown}: {reason}")))?;
    } else {
        let read_ahead = session.read_ahead().map_or_else(
            |reason| format!("read-ahead stays as it is: {reason}"),
            |kib| format!("read-ahead {kib} KiB"),
        );
        say(&format!("mounted {spelled} at {shown}; {read_ahead}"));
        notify(&format!("READY=1\nSTATUS=Serving {spelled} at {shown}"));
    }
    let at_end = || {
        if !args.announce {
            notify("STOPPING=1");
        }
    };
    session
        .run(at_end)
        .map_err(|reason| CliError::mount(format!("serving {shown} ended: {reason}")))
}

/// Returns the store as the user spells it, without secrets.
fn shown_store(store: &Path, options: &FsOptions) -> String {
    match &options.subpath {
        None => store.to_string_lossy().into_owned(),
        Some(inside) => {
            let inside = inside.to_string_lossy();
            format!("{}:/{}", store.display(), inside.trim_start_matches('/'))
        }
    }
}

/// Mounts at an empty directory.
fn mount(
    fs: Fs,
    mount_point: &Path,
    options: MountOptions,
    store: &Path,
    writable: bool,
) -> Result<Session, CliError> {
    check_rights(options.allow_other)?;
    let appearance = Appearance {
        fsname: options
            .fsname
            .unwrap_or_else(|| shown_store(store, &options.fs)),
        allow_other: options.allow_other,
        default_permissions: options.default_permissions,
        writable,
    };
    Session::mount(fs, mount_point, &appearance).map_err(|reason| {
        CliError::mount(format!(
            "cannot mount at {}: {reason}",
            mount_point.display()
        ))
    })
}

/// Opens the store, with the checkout that is to be shown or written.
fn open(
    args: &Args,
    store: &Path,
    options: FsOptions,
    checkouts: &Checkouts,
    writable: bool,
) -> Result<Fs, CliError> {
    let h5 = H5::workers(Reach::of_store(store, options.external).with(checkouts.dir()));
    let formats = formats::registry();
    let refused = |refusal: OpenError| {
        let hint = store::hint(&args.store);
        let begin = match args.checkout {
            Some(_) if hint.is_empty() && !store.exists() && Address::parse(store).is_none() => {
                "; npyfs new makes an empty store"
            }
            _ => "",
        };
        CliError::store(format!("{refusal}{hint}{begin}"))
    };
    let name = match &args.checkout {
        Some(name) if writable => name,
        shown => {
            let opened = match shown {
                Some(name) => {
                    Fs::open_checkout_to_read(store, h5, options, &formats, checkouts, name)
                }
                None => match &args.at {
                    Some(at) => Fs::open_at(store, h5, options, &formats, checkouts, at),
                    None => Fs::open(store, h5, options, &formats, checkouts),
                },
            };
            return opened.map_err(refused);
        }
    };
    // Workers look for the directory of checkouts when they start.
    let dir = checkouts.make(&Disk).map_err(|e| {
        let message = e.message;
        CliError::store(format!("no directory for checkouts: {message}"))
    })?;
    let kept = dir.own_metadata().ok();
    if let Some(why) = kept.and_then(|dir| checkouts.rights().keeps_out_owner(&dir)) {
        say(&format!("{}: {why}", dir.path().display()));
    }
    Fs::open_checkout(store, h5, options, &formats, checkouts, name).map_err(refused)
}

/// Returns the mount point as the mount table will spell it, or why nothing can be mounted there.
fn check_mount_point(given: &Path, store: &Path) -> Result<PathBuf, CliError> {
    let shown = given.display();
    let refuse = |reason: &str| Err(CliError::mount(format!("mount point {shown} {reason}")));
    let failed =
        |error: io::Error| CliError::mount(format!("mount point {shown} cannot be used: {error}"));
    let top = match table::resolve(given) {
        Ok(path) => table::at(&path).map_err(failed)?,
        Err(error) if error.kind() == ErrorKind::NotFound => return refuse("does not exist"),
        Err(error) => return Err(failed(error)),
    };
    // For a second after its process ended, a mount still answers `stat` from memory, but not this.
    let answer = match &top {
        Some(top) if top.fstype.starts_with("fuse") => rustix::fs::statfs(given).map(drop),
        _ => Ok(()),
    };
    match answer
        .map_err(io::Error::from)
        .and_then(|()| given.metadata())
    {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return refuse("is not a directory (the order is STORE MOUNTPOINT)"),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            let remedy = if top.is_some_and(|top| top.is_ours()) {
                "npyfs umount"
            } else {
                "fusermount3 -uz"
            };
            return refuse(&format!(
                "holds a dead mount; clear it with: {remedy} {shown}"
            ));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return refuse("does not exist"),
        // Another user's mount.
        Err(error) if error.kind() == ErrorKind::PermissionDenied && top.is_some() => {}
        Err(error) => return Err(failed(error)),
    }
    let waiting = match top {
        Some(top) if top.is_ours() => {
            return refuse(&format!("is already mounted by npyfs{}", by_whom(&top)));
        }
        // Reading an automount point would trigger the very mount that this process makes.
        Some(top) if top.is_automount() => true,
        Some(top) => {
            let (fstype, by_whom) = (&top.fstype, by_whom(&top));
            return refuse(&format!("is already mounted ({fstype}{by_whom})"));
        }
        None => false,
    };
    let path = given.canonicalize().map_err(failed)?;
    if path.starts_with(store) {
        return refuse("lies inside the store");
    }
    if store.starts_with(&path) {
        return refuse("has the store inside it");
    }
    if !waiting && path.read_dir().map_err(failed)?.next().is_some() {
        return refuse("is not empty");
    }
    Ok(path)
}

/// Returns `, by USER` if the mount is another user's.
fn by_whom(top: &table::Mounted) -> String {
    let me = rustix::process::geteuid().as_raw();
    match top.owner {
        Some(owner) if owner != me => format!(", by {}", users::name_of_user(owner)),
        _ => String::new(),
    }
}

/// Checks for the usual reasons for which the kernel or the helper would refuse.
fn check_rights(allow_other: bool) -> Result<(), CliError> {
    match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(CliError::mount(
                "/dev/fuse does not exist; load the kernel module with: modprobe fuse",
            ));
        }
        Err(error) => {
            return Err(CliError::mount(format!(
                "/dev/fuse cannot be opened by this user: {error}"
            )));
        }
    }
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    if table::fuse_helper().is_none() {
        return Err(CliError::mount(
            "fusermount3 is not installed (package fuse3); only root can mount without it",
        ));
    }
    if allow_other && !user_allow_other() {
        return Err(CliError::mount(
            "option allow_other: only for root, unless /etc/fuse.conf says user_allow_other",
        ));
    }
    Ok(())
}

/// Returns whether `/etc/fuse.conf` lets users mount for others.
fn user_allow_other() -> bool {
    std::fs::read_to_string("/etc/fuse.conf")
        .is_ok_and(|text| text.lines().any(|line| line.trim() == "user_allow_other"))
}

/// Sends a state, such as `READY=1`, to the service manager as sd_notify(3) does. Without `NOTIFY_SOCKET` there is
/// none.
fn notify(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send_state(name.as_bytes(), state) {
        let name = name.display();
        say(&format!(
            "the service manager cannot be told at {name}: {error}"
        ));
    }
}

/// Sends to a socket: a path, or a name without a file after `@`.
fn send_state(name: &[u8], state: &str) -> std::io::Result<()> {
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

/// The time that a mount may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The time for a late process to clean up.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes that are read from the process in front at most.
const LONGEST: u64 = 1 << 20;

/// Takes over the addresses with secrets that the process in front was given. They come through the standard input:
/// command lines and environments can be read by others, and are handed on.
fn take_secrets() {
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
fn start(args: &Args) -> Result<(), CliError> {
    let shown = args.mount_point.display();
    let descriptor = inherited::number(&args.mount_point);
    if let Some(number) = descriptor {
        // The child inherits this.
        inherited::check(number).map_err(|why| unusable(&args.mount_point, &why))?;
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
/// The serving process calls this before anything else. At an automount point this does nothing yet: the kernel lets in
/// only the process group that mounts there, and any other process would wait for the mount that it is about to make.
fn leave_terminal(mount_point: &Path) {
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
fn detach(device: Option<Dev>) -> io::Result<()> {
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
