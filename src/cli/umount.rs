//! `npyfs umount`: takes away a mount of ours, alive or dead.
//!
//! Asks the mount itself for one thing only, and for a limited time: to make durable what was written there. A
//! dead mount answers only with errors, a stuck one not at all.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::cli::CliError;
use crate::fuse::table;
use crate::fuse::unmount::unmount;

/// How long an accepted unmount may take to show in the mount table.
const LIMIT: Duration = Duration::from_secs(10);

/// How long a writable mount may take to store what was written.
const PATIENCE: Duration = Duration::from_secs(120);

/// Unmount a store.
///
/// Works on dead mounts too, whose npyfs process is gone.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where the store is mounted
    #[arg(value_name = "MOUNTPOINT")]
    mount_point: PathBuf,

    /// Detach even while programs use it; it ends when the last of them is done
    #[arg(short, long)]
    lazy: bool,
}

pub fn run(args: Args) -> Result<(), CliError> {
    let shown = args.mount_point.display();
    let failed = |reason: &dyn std::fmt::Display| {
        CliError::mount(format!("cannot unmount {shown}: {reason}"))
    };
    let path = table::resolve(&args.mount_point).map_err(|reason| failed(&reason))?;
    let mounted = match table::at(&path).map_err(|reason| failed(&reason))? {
        None => return Err(CliError::mount(format!("{shown} is not mounted"))),
        Some(other) if !other.is_ours() => {
            return Err(CliError::mount(format!(
                "{shown} is not a mount of npyfs but of {}",
                other.fstype
            )));
        }
        Some(ours) => ours,
    };
    if !args.lazy && !mounted.read_only {
        sync(&path).map_err(|reason| {
            CliError::mount(format!(
                "what was written at {shown} cannot be made durable: {reason} (npyfs umount --lazy {shown} \
                 unmounts all the same)"
            ))
        })?;
    }
    unmount(&path, args.lazy).map_err(|refusal| match refusal.kind() {
        io::ErrorKind::ResourceBusy => CliError::mount(format!(
            "{shown} is busy: a program uses it (npyfs umount --lazy {shown} detaches it)"
        )),
        _ => failed(&refusal),
    })?;
    let deadline = Instant::now() + LIMIT;
    while table::at(&path)
        .map_err(|reason| failed(&reason))?
        .is_some_and(|top| top.id == mounted.id)
    {
        if Instant::now() >= deadline {
            return Err(failed(&"it is still in the mount table"));
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Has a writable mount store what was written. Who does not answer is taken for stored.
pub fn sync(path: &Path) -> io::Result<()> {
    let (sender, answer) = std::sync::mpsc::channel();
    let path = path.to_owned();
    // A stuck mount keeps this thread for ever; it ends with the process.
    thread::spawn(move || {
        let synced = File::open(path).and_then(|dir| dir.sync_all());
        // Nobody may wait for it any more.
        let _ = sender.send(synced);
    });
    match answer.recv_timeout(PATIENCE) {
        Ok(Err(e)) => match e.raw_os_error() {
            // Read-only, dead, not ours to open, or a kernel that cannot.
            Some(
                libc::EROFS
                | libc::ENOTCONN
                | libc::EACCES
                | libc::EPERM
                | libc::ENOSYS
                | libc::EINVAL
                | libc::ECONNABORTED,
            )
            | None => Ok(()),
            Some(_) => Err(e),
        },
        Ok(Ok(())) | Err(_) => Ok(()),
    }
}
