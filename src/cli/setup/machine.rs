//! The machine's own part in mounting: the device, and the program that mounts for users.

use std::fs::{File, metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

/// A thing that mounting needs.
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// True if it is there and of use.
    pub is_well: bool,
    /// The finding, and the remedy if it is not well.
    pub what: String,
}

impl Check {
    fn new(name: &'static str, found: Result<String, String>) -> Self {
        let is_well = found.is_ok();
        let what = found.unwrap_or_else(|why| why);
        Self {
            name,
            is_well,
            what,
        }
    }
}

/// Looks at this machine.
pub fn checks() -> [Check; 2] {
    [
        Check::new("/dev/fuse", device()),
        Check::new("fusermount3", fusermount()),
    ]
}

fn device() -> Result<String, String> {
    match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Ok("can be opened".to_owned()),
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Err(
            "is not yours to open: sudo chmod 666 /dev/fuse; for a container: docker run --device /dev/fuse"
                .to_owned(),
        ),
        // What ENODEV says of a node without a driver is the same.
        Err(_) => Err(
            "the kernel's FUSE: sudo modprobe fuse; for a container: docker run --device /dev/fuse --cap-add SYS_ADMIN"
                .to_owned(),
        ),
    }
}

fn fusermount() -> Result<String, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .chain(["/usr/bin", "/bin"].map(PathBuf::from))
        .map(|dir| dir.join("fusermount3"))
        .find_map(|path| Some((metadata(&path).ok().filter(|it| it.is_file())?, path)));
    let why = "users other than root mount with it";
    match found {
        None => Err(format!("{why}: sudo apt-get install fuse3")),
        Some((meta, path)) if meta.uid() != 0 || meta.permissions().mode() & 0o4000 == 0 => {
            let shown = super::shown(&path);
            Err(format!(
                "{why}, but {shown} is not setuid root: sudo apt-get install --reinstall fuse3"
            ))
        }
        Some((_, path)) => Ok(format!("{why} ({})", super::shown(&path))),
    }
}
