//! The mount table of this process: `/proc/self/mountinfo`, parsed. Unmounting: by system call where allowed, otherwise
//! through the setuid helper of FUSE.
//!
//! Never accesses the mounts themselves, which may be dead or hang: dead mounts are found and unmounted the same way.
//! Assumes that given paths are absolute and contain no symbolic links.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Dev, makedev};
use rustix::mount::UnmountFlags;

use npyfs_base::thread;

/// The file system type of npyfs mounts.
const FSTYPE: &str = "fuse.npyfs";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The id of the mount.
    pub id: u64,
    /// The device number of what is mounted.
    pub device: Dev,
    /// Its absolute path.
    pub mount_point: PathBuf,
    /// The type of file system.
    pub fstype: String,
    /// The source that it names.
    pub source: OsString,
    /// Whether the mount is read-only.
    pub read_only: bool,
    /// The numeric id of the user that made the mount; FUSE mounts only.
    pub owner: Option<u32>,
}

impl Mounted {
    /// Returns true for a mount of npyfs.
    pub fn is_ours(&self) -> bool {
        self.fstype == FSTYPE
    }

    /// Returns true for an automount point that has not been triggered yet.
    pub fn is_automount(&self) -> bool {
        self.fstype == "autofs"
    }
}

/// Returns the mount at `path`, if `path` is a mount point: the topmost if several are stacked.
pub fn at(path: &Path) -> io::Result<Option<Mounted>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(topmost(&table, path))
}

/// Returns the mount point of npyfs that a path is at or below.
pub fn above(path: &Path) -> Option<PathBuf> {
    let ours = |path: &&Path| matches!(at(path), Ok(Some(top)) if top.is_ours());
    path.ancestors().find(ours).map(Path::to_owned)
}

/// Returns all mounts of npyfs that are not hidden below others at the same place, in the order in which they were
/// made.
pub fn ours() -> io::Result<Vec<Mounted>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    let mut seen = std::collections::HashSet::new();
    let lines = table.rsplit(|&byte| byte == b'\n').filter_map(parse);
    let tops = lines.filter(|mounted| seen.insert(mounted.mount_point.clone()));
    let mut ours: Vec<Mounted> = tops.filter(Mounted::is_ours).collect();
    ours.reverse();
    Ok(ours)
}

/// Returns where npyfs mounts a store, given the source name of a mount.
pub fn of_source(source: &OsStr) -> io::Result<Vec<PathBuf>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    Ok(showing(&table, source))
}

fn showing(table: &[u8], source: &OsStr) -> Vec<PathBuf> {
    let mounts = table.split(|&byte| byte == b'\n').filter_map(parse);
    let ours = mounts.filter(|mounted| mounted.is_ours() && mounted.source == source);
    ours.map(|mounted| mounted.mount_point).collect()
}

fn topmost(table: &[u8], path: &Path) -> Option<Mounted> {
    table
        .split(|&byte| byte == b'\n')
        .filter_map(parse)
        .rfind(|mounted| mounted.mount_point == path)
}

/// `36 35 98:0 /root /mount\040point rw,noatime shared:1 - fuse.npyfs source rw`
fn parse(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|&byte| byte == b' ');
    let id = number(fields.next()?)?;
    let _parent = fields.next()?;
    let mut device = fields.next()?.splitn(2, |&byte| byte == b':');
    let (major, minor) = (number(device.next()?)?, number(device.next()?)?);
    let _root = fields.next()?;
    let mount_point = unescape(fields.next()?);
    let mut options = fields.next()?.split(|&byte| byte == b',');
    let read_only = options.any(|option| option == b"ro");
    // The separator follows zero or more optional fields.
    fields.find(|field| field == b"-")?;
    let fstype = unescape(fields.next()?);
    let source = unescape(fields.next()?);
    let owner = fields.next().and_then(|options| {
        let mut options = options.split(|&byte| byte == b',');
        let id = options.find_map(|option| option.strip_prefix(b"user_id="))?;
        u32::try_from(number(id)?).ok()
    });
    Some(Mounted {
        id,
        device: makedev(u32::try_from(major).ok()?, u32::try_from(minor).ok()?),
        mount_point: PathBuf::from(mount_point),
        fstype: fstype.to_string_lossy().into_owned(),
        source,
        read_only,
        owner,
    })
}

fn number(field: &[u8]) -> Option<u64> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Decodes octal escapes: the kernel writes space, tab, newline, backslash and `#` as three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        match tail {
            [
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ] if first == b'\\' => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}

/// Returns `path` as spelled in the table, without accessing the mount at its end: if `path` itself does not respond,
/// only its parent directory is resolved.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    let refusal = match path.canonicalize() {
        Ok(resolved) => return Ok(resolved),
        Err(refusal) => refusal,
    };
    let absolute = std::path::absolute(path)?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(above), Some(name)) if name.as_bytes() != b".." => {
            Ok(above.canonicalize()?.join(name))
        }
        _ => Err(refusal),
    }
}

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
    let helper = fuse_helper()
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
pub fn fuse_helper() -> Option<PathBuf> {
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

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 8:1 / / rw,relatime - ext4 /dev/root rw\n\
        40 22 0:50 / /mnt/a\\040b\\134c ro,nosuid shared:7 master:2 - fuse.npyfs /data/x\\054y.h5 ro,user_id=7,group_id=0\n\
        41 22 0:51 / /auto rw - autofs systemd-1 rw,fd=30\n\
        42 41 0:52 / /auto ro - fuse.npyfs /data/z.h5 ro\n\
        torn line\n";

    #[test]
    fn escapes_and_optional_fields() {
        let mounted = topmost(TABLE, Path::new("/mnt/a b\\c")).unwrap();
        assert_eq!((mounted.id, mounted.device), (40, makedev(0, 50)));
        assert_eq!(mounted.source, "/data/x,y.h5");
        assert!(mounted.is_ours() && mounted.read_only);
        assert_eq!(mounted.owner, Some(7));
        let root = topmost(TABLE, Path::new("/")).unwrap();
        assert!(!root.read_only && root.owner.is_none());
    }

    #[test]
    fn mounts_of_a_source() {
        let of = |source: &str| showing(TABLE, OsStr::new(source));
        assert_eq!(of("/data/x,y.h5"), [Path::new("/mnt/a b\\c")]);
        assert_eq!(of("/data/z.h5"), [Path::new("/auto")]);
        assert!(of("/dev/root").is_empty());
    }

    #[test]
    fn the_last_of_a_stack_is_on_top() {
        assert_eq!(topmost(TABLE, Path::new("/auto")).unwrap().id, 42);
        assert_eq!(topmost(TABLE, Path::new("/mnt")), None);
    }
}
