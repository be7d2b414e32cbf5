//! The calling conventions of mount(8) and umount(8), which run a helper for file systems that they do not know.
//!
//! `mount.TYPE` and `umount.TYPE` are links to this program. `mount.fuse3`, which mount(8) runs for `fuse.npyfs` where
//! no `mount.fuse.npyfs` is installed, runs it as `npyfs STORE MOUNTPOINT -o OPTIONS`. Exit codes are those of
//! mount(8).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::Args;
use crate::cli::options;
use crate::cli::{CliError, EXIT_MOUNT, EXIT_OBJECT, EXIT_STORE, say, umount};

/// A call by mount(8) or umount(8).
pub enum Call {
    /// Mount, with these arguments.
    Mount(Vec<OsString>),
    /// Unmount, with these arguments.
    Unmount(Vec<OsString>),
}

impl Call {
    /// Returns the call that the arguments of this process are, its name first; `None` for one by its own commands.
    pub fn parse(arguments: &[OsString]) -> Option<Self> {
        let (name, rest) = arguments.split_first()?;
        let name = PathBuf::from(name);
        let name = name.file_name()?.to_string_lossy();
        if name.starts_with("mount.") {
            return Some(Self::Mount(arguments.to_vec()));
        }
        if name.starts_with("umount.") {
            return Some(Self::Unmount(arguments.to_vec()));
        }
        // No command has -o but `mount`.
        match rest {
            [store, point, option, _] if option == "-o" => {
                let is_command =
                    store == "mount" || [store, point].iter().any(|it| is_option(it.as_os_str()));
                (!is_command).then(|| Self::Mount(arguments.to_vec()))
            }
            _ => None,
        }
    }
}

fn is_option(argument: &OsStr) -> bool {
    argument.as_encoded_bytes().starts_with(b"-")
}

/// Mount a store, as mount(8) asks for it.
#[derive(clap::Parser, Debug)]
#[command(name = "mount.npyfs", version, after_help = options::help())]
pub struct MountArgs {
    #[arg(help = options::store_help())]
    store: PathBuf,

    /// An empty directory
    #[arg(value_name = "MOUNTPOINT")]
    mount_point: PathBuf,

    /// Mount options, see below; may be given several times
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,

    /// Leave out options that are unknown, rather than refuse them
    #[arg(short)]
    sloppy: bool,

    /// Check the options, and mount nothing
    #[arg(short)]
    fake: bool,

    /// Mount read-only
    #[arg(short, overrides_with = "writable")]
    read_only: bool,

    /// Mount writable
    #[arg(short)]
    writable: bool,

    /// Mount in another mount namespace, such as /proc/1/ns/mnt
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<PathBuf>,

    /// Taken, and means nothing: there is no /etc/mtab to write
    #[arg(short)]
    no_mtab: bool,

    /// Taken, and means nothing
    #[arg(short, action = clap::ArgAction::Count)]
    verbose: u8,

    /// Taken, and means nothing: there is one type
    #[arg(short = 't', value_name = "TYPE")]
    fstype: Option<String>,
}

impl MountArgs {
    /// Runs the command.
    pub fn run(self) -> Result<(), CliError> {
        self.mount().map_err(|error| CliError {
            code: match error.code {
                EXIT_STORE | EXIT_OBJECT => EXIT_MOUNT,
                code => code,
            },
            ..error
        })
    }

    fn mount(mut self) -> Result<(), CliError> {
        if self.sloppy {
            self.leave_out_unknown();
        }
        if self.read_only || self.writable {
            let option = if self.writable { "rw" } else { "ro" };
            self.options.push(option.to_owned());
        }
        if self.fake {
            let lists = self.options.iter().map(String::as_str);
            return options::parse(lists).map(drop).map_err(CliError::usage);
        }
        enter(self.namespace)?;
        super::run(Args {
            foreground: false,
            options: self.options,
            checkout: None,
            checkouts: None,
            announce: false,
            at: None,
            store: self.store,
            mount_point: self.mount_point,
        })
    }

    fn leave_out_unknown(&mut self) {
        for list in &mut self.options {
            let (known, unknown) = options::without_unknown(list);
            *list = known;
            if !unknown.is_empty() {
                say(&format!("options left out: {}", unknown.join(", ")));
            }
        }
    }
}

/// Unmount a store, as umount(8) asks for it.
#[derive(clap::Parser, Debug)]
#[command(name = "umount.npyfs", version)]
pub struct UnmountArgs {
    /// The mount point of the store
    #[arg(value_name = "MOUNTPOINT")]
    mount_point: PathBuf,

    /// Detach even while programs use it; it ends when the last of them is done
    #[arg(short)]
    lazy: bool,

    /// As -l
    #[arg(short)]
    force: bool,

    /// Unmount in another mount namespace, such as /proc/1/ns/mnt
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<PathBuf>,

    /// Taken, and means nothing: there is no /etc/mtab to write
    #[arg(short)]
    no_mtab: bool,

    /// Taken, and means nothing: a mount that cannot go is not made read-only
    #[arg(short)]
    read_only: bool,

    /// Taken, and means nothing
    #[arg(short, action = clap::ArgAction::Count)]
    verbose: u8,

    /// Taken, and means nothing: there is one type
    #[arg(short = 't', value_name = "TYPE")]
    fstype: Option<String>,
}

impl UnmountArgs {
    /// Runs the command. Files that were not stored are reported; the unmount succeeds all the same.
    pub fn run(self) -> Result<(), CliError> {
        enter(self.namespace)?;
        let lazy = self.lazy || self.force;
        match umount::run(umount::Args::new(self.mount_point, lazy)) {
            Err(error) if error.code == EXIT_OBJECT => {
                say(&error.message);
                Ok(())
            }
            done => done,
        }
    }
}

/// Moves this process into a mount namespace. There must be no other thread yet.
fn enter(namespace: Option<PathBuf>) -> Result<(), CliError> {
    let Some(path) = namespace else { return Ok(()) };
    File::open(&path)
        .and_then(|file| {
            let entered = move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Mount));
            Ok(entered?)
        })
        .map_err(|error| {
            let shown = path.display();
            CliError::mount(format!("cannot enter the namespace {shown}: {error}"))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(line: &str) -> &'static str {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        match Call::parse(&arguments) {
            Some(Call::Mount(_)) => "mount",
            Some(Call::Unmount(_)) => "umount",
            None => "command",
        }
    }

    #[test]
    fn calls_are_told_by_name_and_form() {
        for (line, expected) in [
            ("/sbin/mount.npyfs a b -o ro", "mount"),
            ("mount.fuse.npyfs a b", "mount"),
            ("/sbin/umount.fuse.npyfs b", "umount"),
            ("npyfs a b -o rw,dev,suid", "mount"),
            ("npyfs /s /dev/fd/3 -o rw", "mount"),
            ("npyfs ls b -o rw", "mount"),
            ("npyfs mount a b -o ro", "command"),
            ("npyfs mount a -o ro", "command"),
            ("npyfs -x b -o ro", "command"),
            ("npyfs a b", "command"),
            ("npyfs ls a", "command"),
            ("/opt/mount.d/npyfs ls a", "command"),
        ] {
            assert_eq!(kind(line), expected, "{line}");
        }
    }
}
