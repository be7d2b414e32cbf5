//! `npyfs umount`: takes away a mount of ours, alive or dead.
//!
//! Never asks the mount itself anything: a dead one answers only with errors, a stuck one not at
//! all.

use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::cli::CliError;
use crate::fuse::table;
use crate::fuse::unmount::unmount;

/// How long an accepted unmount may take to show in the mount table.
const LIMIT: Duration = Duration::from_secs(10);

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
