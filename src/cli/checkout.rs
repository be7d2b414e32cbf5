//! `npyfs checkout`: shows, commits, discards and exports what was written over a store.

pub(super) mod attr;
mod diff;
mod export;
mod gc;
mod layers;
mod log;
mod ls;
mod mounted;
mod publish;
mod revert;
pub(super) mod staging;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::output::OutputFormat;
use super::{CliError, say, umount};
use npyfs_core::checkout::export::layout::Layout;
use npyfs_core::checkout::records::holder;
use npyfs_core::checkout::verbs::commit::{CommitOptions, Side};
use npyfs_core::checkout::verbs::gc::GcWish;
use npyfs_core::formats;
use npyfs_core::store::format::Parts;
use npyfs_core::store::staging::Expected;

use export::ExportWish;
use layers::CheckoutArgs;

pub(super) use export::Exported;

/// What writes a store with a staging area as HDF5 files.
const CONVERTED: &str = ": npyfs convert writes it as an HDF5 file";

/// Writes a store as new files of the same kind: with the checkout of this name on top, or with what is committed.
pub(super) fn copy(
    store: (&Path, Option<&Path>),
    options: &[String],
    checkout: Option<&str>,
    out: &Path,
    leave_out: bool,
) -> Result<Exported, CliError> {
    let which = CheckoutArgs::new(store.0, store.1, options);
    let wish = ExportWish {
        layout: Layout::default(),
        parts: None,
        times: false,
        leave_out,
    };
    export::write(&which, checkout, out, &wish)
}

/// Show what was written, and commit it or take it back.
#[derive(clap::Args, Debug)]
#[command(arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// List the checkouts of a store: what is in them, who writes in them, which are committed
    ///
    /// -0 gives names alone. JSON is a list of {"name", "objects", "deleted", "waiting", "bytes", "begun", "commit",
    /// "committed", "in_use"}; times are UTC, and null is what is not so.
    Ls {
        #[command(flatten)]
        format: OutputFormat,

        #[command(flatten)]
        which: CheckoutArgs,
    },
    /// List the commits of a store, the newest first: id, time, author, what they changed, message
    ///
    /// npyfs mount --at ID shows the store as it was after a commit. -0 gives ids alone. JSON is a list of {"id",
    /// "number", "committed", "author", "message", "reverts", "checkout", "objects", "deleted"}; "reverts" is the id of
    /// the commit that it takes back, or null.
    Log {
        #[command(flatten)]
        format: OutputFormat,

        #[command(flatten)]
        which: CheckoutArgs,

        /// This commit and those before it: a number, the first digits of an id, HEAD, HEAD~1
        #[arg(value_name = "COMMIT")]
        until: Option<String>,
    },
    #[command(about = format!("Say what is staged in a {}, and who writes in it; see npyfs status for mounts", formats::registry().staged_names()))]
    Status {
        #[arg(help = format!("A {}", formats::registry().staged_names()))]
        store: PathBuf,
    },
    /// List what a checkout changes, or what is staged in a store: A added, M modified,
    /// D deleted
    ///
    /// -0 gives the letter, a blank and the name. JSON is {"changes": [{"change": "added", "modified" or "deleted",
    /// "name", "description"}], "incomplete": [...], "changed_below": [...]}: objects of which members are missing,
    /// and files of the store that are not what they were when the checkout was begun.
    Diff {
        #[command(flatten)]
        format: OutputFormat,

        #[command(flatten)]
        which: CheckoutArgs,

        /// The checkout; by default the only one that is not committed; not for a store with a staging area
        name: Option<String>,
    },
    /// Commit a checkout, for all later mounts, or what is staged in a store
    ///
    /// A checkout that is mounted on this host is committed by its mount, which goes on: what is stored so far is in
    /// the commit; files that are being written and objects that are not complete stay in the checkout. STORE may be
    /// the mount point.
    Commit {
        /// Message of the commit; a commit of what is staged needs one
        #[arg(short, long)]
        message: Option<String>,

        /// Refuse unless the staging area belongs to this branch
        #[arg(long)]
        branch: Option<String>,

        /// Refuse unless the branch is still at this commit, as `status` said it
        #[arg(long, value_name = "DIGEST")]
        head: Option<String>,

        /// Where another commit changed the same object since, keep what is in the checkout
        #[arg(long, conflicts_with = "theirs")]
        ours: bool,

        /// Where another commit changed the same object since, keep what was committed before
        #[arg(long)]
        theirs: bool,

        /// Do without objects that are not complete: what there is of them is forgotten. And without those that do
        /// not fit the store any more
        #[arg(long)]
        leave_out: bool,

        #[command(flatten)]
        which: CheckoutArgs,

        /// The checkout; not for a store with a staging area
        name: Option<String>,
    },
    /// Restore objects in a checkout: what was written over or deleted is as it is below the checkout again, or as it
    /// was after a commit
    ///
    /// A group is restored with everything in it. Without --at the changes of the checkout are forgotten, and objects
    /// have their earlier time again; with it they are changes of the checkout, and have the time of the restoration.
    /// Nothing is copied. Either all paths are restored or none: refused are paths that do not exist, and what would
    /// leave other objects without their axis.
    Restore {
        /// The checkout; by default the only one that is not committed. With --at it is begun if there is none of this
        /// name
        #[arg(long, value_name = "NAME")]
        checkout: Option<String>,

        /// As it was after this commit: a number, the first digits of an id, HEAD, HEAD~1; see npyfs checkout log
        #[arg(long, value_name = "COMMIT")]
        at: Option<String>,

        #[command(flatten)]
        which: CheckoutArgs,

        /// Objects and groups, as a mount or `diff` names them: g/x.npy, g/x, g/
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<String>,
    },
    /// Take a commit back: a new commit after which all that the other changed is as it was before
    ///
    /// Objects that come back have the time of the new commit. Refused if later commits changed the same objects. The
    /// commit that took one back can be taken back, too.
    Revert {
        /// Message of the new commit; by default that of the one that is taken back, with `revert ID` in front
        #[arg(short, long)]
        message: Option<String>,

        /// List what would change, as diff does, and commit nothing
        #[arg(long, conflicts_with = "message")]
        dry_run: bool,

        #[command(flatten)]
        format: OutputFormat,

        #[command(flatten)]
        which: CheckoutArgs,

        /// The commit: its number, the first digits of its id, HEAD, HEAD~1; see npyfs checkout log
        #[arg(value_name = "COMMIT")]
        id: String,
    },
    /// Forget a checkout and everything that was written in it
    Discard {
        /// Even if publications show what is in it: they cannot be read any more
        #[arg(long)]
        force: bool,

        #[command(flatten)]
        which: CheckoutArgs,

        /// The checkout
        name: Option<String>,
    },
    /// Free the room of what no commit and no checkout names: remains of processes that were killed, files of objects
    /// that were written again
    ///
    /// What the log names stays, and so does what a commit that is taken back would bring. Checkouts that are not
    /// committed stay, too: discard forgets one. -0 gives names alone. JSON is a list of {"name", "bytes", "why"}.
    Gc {
        /// Leave what was changed in this time: a number with s, m, h, d or w
        #[arg(long, value_name = "AGE", default_value = "7d", value_parser = gc::age)]
        older_than: Duration,

        /// List what would go, and its size, and remove nothing
        #[arg(long)]
        dry_run: bool,

        #[command(flatten)]
        format: OutputFormat,

        #[command(flatten)]
        which: CheckoutArgs,
    },
    /// Write the store with a checkout, or with what is committed, as new HDF5 files
    ///
    /// One file for a store that is one, a set of files for a set, a directory for a directory; --single and --locales
    /// change the number of files of a store of Arkouda. A new file is a
    /// copy of the store's in which objects were replaced: what was not changed stays as it is stored, unless
    /// --for or --compress is given. OUT must not exist. It appears when it is complete.
    #[command(override_usage = "npyfs checkout export [OPTIONS] <STORE> [NAME] <OUT>")]
    Export {
        /// Lay arrays out for a use: mmap (contiguous, at page boundaries), samples (chunks of whole samples, with the
        /// codec that is fastest to read here), archive (gzip level 9) or cloud (metadata together, chunks of 1 to 8
        /// MiB)
        #[arg(long = "for", value_name = "USE")]
        purpose: Option<String>,

        /// Compress arrays of 4 KiB or more: gzip, lzf or blosc:CODEC, with :LEVEL behind; off undoes compression, none
        /// leaves arrays as they are
        #[arg(long, value_name = "METHOD")]
        compress: Option<String>,

        /// Write the files of a set as one
        #[arg(long, conflicts_with = "locales")]
        single: bool,

        /// Write a set of so many files, divided as Arkouda divides arrays among locales
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=9999))]
        locales: Option<u32>,

        /// Keep the times of objects, in attributes npyfs_time and npyfs_times: to make, the new file's objects are as
        /// old as those of the store
        #[arg(long)]
        times: bool,

        /// Do without objects that cannot be carried over, are not complete or do not fit the store any more; they are
        /// listed
        #[arg(long)]
        leave_out: bool,

        #[command(flatten)]
        which: CheckoutArgs,

        /// The checkout, without which what is committed is written, and the new file or directory
        #[arg(required = true, num_args = 1..=2, value_name = "[NAME] OUT")]
        words: Vec<OsString>,
    },
    /// Write a small HDF5 file of links, in which other programs see the store with a checkout, or with what is
    /// committed
    ///
    /// Nothing is copied: what it shows lies in the store's file and in the checkouts. It prints which files these are;
    /// they are named from the directory of OUT, so that it can be moved together with them. -0 gives their names
    /// alone. JSON is {"name", "bytes", "files": [{"name"}]}. No program can write through OUT: it opens for reading
    /// only. OUT must not exist. It appears when it is complete.
    #[command(override_usage = "npyfs checkout publish [OPTIONS] <STORE> [NAME] <OUT>")]
    Publish {
        /// Do without objects that have no counterpart, are not complete or do not fit the store any more; they are
        /// listed
        #[arg(long)]
        leave_out: bool,

        #[command(flatten)]
        format: OutputFormat,

        #[command(flatten)]
        which: CheckoutArgs,

        /// The checkout, without which what is committed is shown, and the new file
        #[arg(required = true, num_args = 1..=2, value_name = "[NAME] OUT")]
        words: Vec<OsString>,
    },
    /// Store and stage what was written through a mount so far
    Sync {
        /// The mount point of the checkout
        mount_point: PathBuf,
    },
    #[command(about = format!("Take back all that is staged in a {}", formats::registry().staged_names()))]
    Reset {
        #[arg(help = format!("A {}", formats::registry().staged_names()))]
        store: PathBuf,
    },
}

impl Command {
    /// Returns its name.
    fn name(&self) -> &'static str {
        match self {
            Self::Ls { .. } => "ls",
            Self::Log { .. } => "log",
            Self::Status { .. } => "status",
            Self::Diff { .. } => "diff",
            Self::Commit { .. } => "commit",
            Self::Restore { .. } => "restore",
            Self::Revert { .. } => "revert",
            Self::Discard { .. } => "discard",
            Self::Gc { .. } => "gc",
            Self::Export { .. } => "export",
            Self::Publish { .. } => "publish",
            Self::Sync { .. } => "sync",
            Self::Reset { .. } => "reset",
        }
    }

    /// Returns the argument that names the store.
    fn store_mut(&mut self) -> Option<&mut PathBuf> {
        match self {
            Self::Ls { which, .. }
            | Self::Log { which, .. }
            | Self::Diff { which, .. }
            | Self::Commit { which, .. }
            | Self::Restore { which, .. }
            | Self::Revert { which, .. }
            | Self::Discard { which, .. }
            | Self::Gc { which, .. }
            | Self::Export { which, .. }
            | Self::Publish { which, .. } => Some(&mut which.store),
            Self::Status { store } | Self::Reset { store } => Some(store),
            Self::Sync { .. } => None,
        }
    }
}

/// Runs the command.
pub fn run(args: Args) -> Result<(), CliError> {
    let mut command = args.command;
    holder::begin(format!("npyfs checkout {}", command.name()), say);
    let shows_staged = matches!(command, Command::Diff { .. });
    if let Some(store) = command.store_mut()
        && let Some(repository) = staging::mounted_at(store)
    {
        if shows_staged {
            mounted::sync_for_a_look(store);
        }
        *store = repository;
    }
    let is_staged = |which: &CheckoutArgs| staged(which).is_some();
    match command {
        Command::Ls { format, which } => {
            unless_staged(
                &which,
                ", which has one staging area, and no checkouts by name: npyfs checkout status says what is staged",
            )?;
            ls::ls(&which, format)
        }
        Command::Log {
            format,
            which,
            until,
        } => {
            unless_staged(
                &which,
                ", whose log its own program prints; npyfs ls lists its commits in the directory commits",
            )?;
            log::log(&which, until.as_deref(), format)
        }
        Command::Status { store } => staging::status(&store),
        Command::Diff {
            format,
            which,
            name,
        } if is_staged(&which) => {
            no_name(name)?;
            staging::diff(&which.store, format)
        }
        Command::Diff {
            format,
            which,
            name,
        } => diff::diff(&which, name.as_deref(), format),
        Command::Commit {
            message,
            branch,
            head,
            ours,
            theirs,
            leave_out,
            which,
            name,
        } if is_staged(&which) => {
            no_name(name)?;
            if ours || theirs || leave_out {
                return Err(CliError::usage(format!(
                    "--ours, --theirs and --leave-out are not for a {}",
                    staging::stores()
                )));
            }
            let needed =
                || CliError::usage(format!("a commit in a {} needs -m", staging::stores()));
            let expected = Expected {
                branch,
                head: head.map(Some),
            };
            staging::commit(&which.store, &message.ok_or_else(needed)?, &expected)
        }
        Command::Commit {
            message,
            branch,
            head,
            ours,
            theirs,
            leave_out,
            which,
            name,
        } => {
            if branch.is_some() || head.is_some() {
                return Err(CliError::usage(format!(
                    "--branch and --head are for a {}",
                    staging::stores()
                )));
            }
            let side = match (ours, theirs) {
                (true, _) => Some(Side::Ours),
                (_, true) => Some(Side::Theirs),
                _ => None,
            };
            let wish = CommitOptions {
                side,
                leave_out,
                message: message.unwrap_or_default(),
            };
            layers::commit(&which, name.as_deref(), &wish)
        }
        Command::Restore {
            checkout,
            at,
            which,
            paths,
        } => {
            unless_staged(
                &which,
                ": npyfs checkout reset takes back all that is staged, and not a part of it",
            )?;
            revert::restore(&which, checkout.as_deref(), at.as_deref(), &paths)
        }
        Command::Revert {
            message,
            dry_run,
            format,
            which,
            id,
        } => {
            unless_staged(
                &which,
                ", which has no commit that takes another back: go on from an earlier commit in a branch of its own; \
                 npyfs checkout reset takes back what is staged",
            )?;
            match dry_run {
                true => revert::dry_run(&which, &id, format),
                false if format.json || format.null => {
                    Err(CliError::usage("--json and -0 are for --dry-run"))
                }
                false => revert::revert(&which, &id, message.as_deref()),
            }
        }
        Command::Discard { force, which, name } => {
            unless_staged(
                &which,
                ": npyfs checkout reset takes back all that is staged",
            )?;
            layers::discard(&which, name.as_deref(), force)
        }
        Command::Gc {
            older_than,
            dry_run,
            format,
            which,
        } => {
            unless_staged(&which, ", whose room its own program frees")?;
            let wish = GcWish {
                older_than,
                dry_run,
            };
            gc::gc(&which, &wish, format)
        }
        Command::Export {
            purpose,
            compress,
            single,
            locales,
            times,
            leave_out,
            which,
            words,
        } => {
            unless_staged(&which, CONVERTED)?;
            let layout = export::layout(purpose.as_deref(), compress.as_deref())?;
            let (name, out) = export::words(words)?;
            let parts = match locales {
                Some(count) => Some(Parts::Set(count as usize)),
                None => single.then_some(Parts::Single),
            };
            let wish = ExportWish {
                layout,
                parts,
                times,
                leave_out,
            };
            export::export(&which, name.as_deref(), &out, &wish)
        }
        Command::Publish {
            leave_out,
            format,
            which,
            words,
        } => {
            unless_staged(&which, CONVERTED)?;
            let (name, out) = export::words(words)?;
            publish::publish(&which, name.as_deref(), &out, leave_out, format)
        }
        Command::Sync { mount_point } => umount::sync(&mount_point),
        Command::Reset { store } => staging::reset(&store),
    }
}

/// Refuses a name, which is not for a staging area.
fn no_name(name: Option<String>) -> Result<(), CliError> {
    match name {
        Some(name) => Err(CliError::usage(format!(
            "{name}: a {} has one staging area, and no checkouts by name",
            staging::stores()
        ))),
        None => Ok(()),
    }
}

/// Returns what people call a store that has a staging area.
fn staged(which: &CheckoutArgs) -> Option<&'static str> {
    formats::registry()
        .staged(&which.store)
        .map(|staged| staged.noun())
}

/// Refuses a store with a staging area; `why` goes on after what the store is.
fn unless_staged(which: &CheckoutArgs, why: &str) -> Result<(), CliError> {
    match staged(which) {
        Some(name) => Err(CliError::usage(format!(
            "{} is a {name}{why}",
            which.store.display()
        ))),
        None => Ok(()),
    }
}
