//! A descriptor of `/dev/fuse` that another program opened, mounted, and passed to this one: `/dev/fd/N`.
//!
//! The mount belongs to that program, in this and in other mount namespaces: it is served, but neither created nor
//! removed.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Dev, OFlags, fcntl_getfl, fcntl_setfl, makedev};
use rustix::io::{FdFlags, fcntl_setfd};

/// The device number of `/dev/fuse`.
const FUSE: (u32, u32) = (10, 229);

/// A descriptor to be served.
pub struct Inherited {
    pub(super) descriptor: OwnedFd,
    /// The device number of the mount, if the kernel reports it.
    pub(super) device: Option<Dev>,
}

/// Returns the number of the descriptor that is given in place of a mount point.
pub fn number(mount_point: &Path) -> Option<RawFd> {
    mount_point
        .to_str()?
        .strip_prefix("/dev/fd/")?
        .parse()
        .ok()
        .filter(|&number| number >= 0)
}

/// Checks a descriptor that is to be served; the error says what is wrong.
pub fn check(number: RawFd) -> io::Result<()> {
    let refuse = |reason: &str| Err(io::Error::other(reason.to_owned()));
    let Ok(metadata) = std::fs::metadata(format!("/proc/self/fd/{number}")) else {
        return refuse("is not open");
    };
    if !metadata.file_type().is_char_device() || metadata.rdev() != makedev(FUSE.0, FUSE.1) {
        return refuse("is not one of /dev/fuse");
    }
    // Descriptors that this process opened itself have the flag.
    let flags = field(number, "flags:").and_then(|flags| u32::from_str_radix(&flags, 8).ok());
    if flags.is_none_or(|flags| OFlags::from_bits_retain(flags).contains(OFlags::CLOEXEC)) {
        return refuse("was not left to this program");
    }
    Ok(())
}

/// Takes ownership of a descriptor, once; child processes do not inherit it.
#[allow(unsafe_code)]
pub fn take(number: RawFd) -> io::Result<Inherited> {
    check(number)?;
    // SAFETY: the descriptor is open, and nothing in this process owns it: all descriptors opened here have the
    // close-on-exec flag, which this one lacks. The next line sets the flag, so the descriptor cannot be taken again.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&descriptor, FdFlags::CLOEXEC)?;
    // Threads block in read(2) for requests.
    fcntl_setfl(&descriptor, fcntl_getfl(&descriptor)? - OFlags::NONBLOCK)?;
    let connection = field(number, "fuse_connection:").and_then(|number| number.parse().ok());
    Ok(Inherited {
        descriptor,
        device: connection.map(|connection| makedev(0, connection)),
    })
}

/// Returns a field that the kernel reports for an open descriptor.
fn field(number: RawFd, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn numbers() {
        let of = |path: &str| number(Path::new(path));
        assert_eq!((of("/dev/fd/3"), of("/dev/fd/0")), (Some(3), Some(0)));
        for other in [
            "/dev/fd/",
            "/dev/fd/-1",
            "/dev/fd/3/x",
            "/dev/fd",
            "fd/3",
            "/mnt",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn only_what_others_left_is_taken() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let refused = |number| check(number).unwrap_err().to_string();
        assert_eq!(refused(file.as_raw_fd()), "is not one of /dev/fuse");
        assert_eq!(refused(1_000_000), "is not open");
        if let Ok(own) = std::fs::File::open("/dev/fuse") {
            assert_eq!(refused(own.as_raw_fd()), "was not left to this program");
        }
    }
}
