//! The options of mount(8) that every type of file system takes.
//!
//! A helper is called with them, whatever its file system. They change nothing here: most speak to mount(8), systemd
//! or udev, and a mount of npyfs is always nosuid, nodev, noexec and noatime. `ro` and `rw` are npyfs's own, too.

/// Options without an effect.
const NAMES: &[&str] = &[
    "_netdev",
    "async",
    "atime",
    "auto",
    "comment",
    "defaults",
    "dev",
    "diratime",
    "dirsync",
    "exec",
    "group",
    "iversion",
    "lazytime",
    "loud",
    "mand",
    "noatime",
    "noauto",
    "nodev",
    "nodiratime",
    "noexec",
    "nofail",
    "nogroup",
    "noiversion",
    "nolazytime",
    "nomand",
    "noowner",
    "norelatime",
    "nostrictatime",
    "nosuid",
    "nouser",
    "nousers",
    "owner",
    "pamconsole",
    "relatime",
    "silent",
    "strictatime",
    "suid",
    "symfollow",
    "sync",
    "user",
    "users",
];

/// Returns whether an option is one of mount(8) and has no effect here.
pub(super) fn is_taken(name: &str) -> bool {
    NAMES.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
}
