//! Unmounting: by system call where allowed, otherwise through the setuid helper of FUSE.
//!
//! Never accesses the mount itself, so dead mounts are unmounted the same way.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::UnmountFlags;

use npyfs_base::thread;

/// Unmounts the topmost mount at `mount_point`. `lazy` detaches a busy mount: it leaves the tree at once and ends with
/// its last user. A busy mount is an error of kind `ResourceBusy`.
pub fn unmount(mount_point: &Path, lazy: bool) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let how = if lazy {
            UnmountFlags::DETACH
        } else {
            UnmountFlags::empty()
        };
        return Ok(rustix::mount::unmount(
            mount_point,
            how | UnmountFlags::NOFOLLOW,
        )?);
    }
    let helper = helper()
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "fusermount3 is not installed"))?;
    let mut command = Command::new(helper);
    command
        .arg(if lazy { "-uz" } else { "-u" })
        .arg("--")
        .arg(mount_point)
        // Its messages are compared below.
        .env("LC_ALL", "C")
        .stdin(Stdio::null());
    let output = thread::output(&mut command)?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let busy = words.contains("resource busy");
    Err(io::Error::new(
        if busy {
            io::ErrorKind::ResourceBusy
        } else {
            io::ErrorKind::Other
        },
        words,
    ))
}

/// Returns the program that mounts and unmounts for ordinary users, if it is installed.
pub fn helper() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/bin", "/bin", "/sbin"].map(PathBuf::from);
    let directories: Vec<PathBuf> = std::env::split_paths(&path).chain(usual).collect();
    ["fusermount3", "fusermount"]
        .iter()
        .flat_map(|name| {
            directories
                .iter()
                .map(move |directory| directory.join(name))
        })
        .find(|candidate| candidate.is_absolute() && candidate.is_file())
}
