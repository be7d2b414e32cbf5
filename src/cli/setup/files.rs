//! The files of an installation of npyfs: the one list, for `npyfs setup`, `mountscripts/install` and packages.

use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum;

use super::{LOCAL, PACKAGED};
use crate::cli::pages::{self, Shell};

/// The names under which mount(8) and umount(8) look for the program.
const HELPERS: [&str; 3] = [
    "/sbin/mount.npyfs",
    "/sbin/mount.fuse.npyfs",
    "/sbin/umount.fuse.npyfs",
];

const MOUNT_FOR: &str = include_str!("../../../mountscripts/mount-for");
const SYSTEM_UNIT: &str = include_str!("../../../mountscripts/systemd/npyfs@.service");
const USER_UNIT: &str = include_str!("../../../mountscripts/systemd/user/npyfs@.service");

/// A part of an installation, in the order in which they are installed.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// npyfs and npyfs-mount-for; helpers and units need it
    Program,
    /// The programs that mount(8), fstab and umount(8) look for
    Mount,
    /// npyfs@.service for systemd
    Units,
    /// Pages of the manual
    Man,
    /// Completions for bash, zsh and fish
    Completions,
    /// user_allow_other in /etc/fuse.conf, by which users may let others into their mounts
    AllowOther,
}

impl Part {
    /// Returns the word for the part on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Mount => "mount",
            Self::Units => "units",
            Self::Man => "man",
            Self::Completions => "completions",
            Self::AllowOther => "allow-other",
        }
    }

    /// Returns the purpose of the part.
    pub fn about(self) -> &'static str {
        match self {
            Self::Program => "npyfs for all users, and npyfs-mount-for",
            Self::Mount => "mount -t npyfs, lines of /etc/fstab, what umount prints",
            Self::Units => "npyfs@.service, of the system and of users",
            Self::Man => "man npyfs",
            Self::Completions => "completions for bash, zsh and fish",
            Self::AllowOther => "user_allow_other: users may say -o allow_other",
        }
    }
}

/// The kind of thing at a path.
pub enum Content {
    /// A file with these bytes and permission bits.
    File(Vec<u8>, u32),
    /// A symbolic link to this path.
    Link(PathBuf),
    /// A line of a text file that others write, too.
    Line(&'static str),
}

/// A path of an installation.
pub struct Item {
    /// The part that it belongs to.
    pub part: Part,
    /// The path of the file on the machine that it is installed on.
    pub path: PathBuf,
    /// The kind of thing that it is.
    pub content: Content,
}

/// Returns all that is installed in a prefix, the program with the bytes of the running one.
pub fn items(prefix: &Path) -> Result<Vec<Item>, String> {
    let mut items = Vec::new();
    let mut add = |part, path: PathBuf, content| {
        items.push(Item {
            part,
            path,
            content,
        });
    };
    let running = "/proc/self/exe";
    let program = fs::read(running).map_err(|e| format!("{running}: {e}"))?;
    let bin = prefix.join("bin");
    add(
        Part::Program,
        bin.join("npyfs"),
        Content::File(program, 0o755),
    );
    let script = MOUNT_FOR.as_bytes().to_vec();
    add(
        Part::Program,
        bin.join("npyfs-mount-for"),
        Content::File(script, 0o755),
    );

    for helper in HELPERS {
        add(Part::Mount, helper.into(), Content::Link(bin.join("npyfs")));
    }

    let text = |bytes| Content::File(bytes, 0o644);
    for (whose, unit) in [("system", SYSTEM_UNIT), ("user", USER_UNIT)] {
        let path = prefix
            .join("lib/systemd")
            .join(whose)
            .join("npyfs@.service");
        let prefix = prefix.display().to_string();
        let unit = unit.replace(LOCAL, prefix.trim_end_matches('/'));
        add(Part::Units, path, text(unit.into_bytes()));
    }

    let share = prefix.join("share");
    let pages = pages::manual().map_err(|e| format!("the manual: {e}"))?;
    for page in pages {
        let path = share.join("man").join(page.section).join(page.name);
        add(Part::Man, path, text(page.text));
    }

    // zsh looks into site-functions below /usr/local only.
    let zsh = match prefix == Path::new(PACKAGED) {
        true => "zsh/vendor-completions/_npyfs",
        false => "zsh/site-functions/_npyfs",
    };
    for (shell, path) in [
        (Shell::Bash, "bash-completion/completions/npyfs"),
        (Shell::Zsh, zsh),
        (Shell::Fish, "fish/vendor_completions.d/npyfs.fish"),
    ] {
        let script = pages::completion(shell).map_err(|e| format!("completions: {e}"))?;
        add(Part::Completions, share.join(path), text(script));
    }

    let line = Content::Line("user_allow_other");
    add(Part::AllowOther, "/etc/fuse.conf".into(), line);
    Ok(items)
}
