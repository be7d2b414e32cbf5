//! The command line: subcommands, and the errors and exit codes that they end with.

pub mod bench;
pub mod cache;
pub mod cat;
pub mod checkout;
pub mod complete;
pub mod convert;
pub mod figures;
pub mod find;
pub mod hash;
pub mod info;
pub mod keep;
pub mod log;
pub mod ls;
pub mod mount;
pub mod new;
pub mod options;
pub mod output;
pub mod overview;
pub mod pack;
pub mod pages;
pub mod pattern;
pub mod place;
pub mod progress;
pub mod setup;
pub mod show;
pub mod status;
pub mod store;
pub mod umount;
mod users;
pub mod verify;

use std::io::Write;
use std::process::ExitCode;

use npyfs_base::printable;

/// Wrong usage, such as an unknown option.
pub const EXIT_USAGE: u8 = 1;
/// No command was given: the help is printed.
pub const EXIT_HELP: u8 = 2;
/// The store cannot be opened.
pub const EXIT_STORE: u8 = 2;
/// An object in the store cannot be found or read.
pub const EXIT_OBJECT: u8 = 3;
/// Mounting or unmounting failed; the number that mount(8) uses.
pub const EXIT_MOUNT: u8 = 32;

/// Shows HDF5 stores as directories of virtual .npy files.
#[derive(clap::Parser, Debug)]
#[command(name = "npyfs", version, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Mount(mount::Args),
    Umount(umount::Args),
    Log(log::Args),
    Status(status::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    Info(info::Args),
    Show(show::Args),
    Find(find::Args),
    Hash(hash::Args),
    Bench(bench::Args),
    Verify(verify::Args),
    Cache(cache::Args),
    Keep(keep::Args),
    Pack(pack::Args),
    Checkout(checkout::Args),
    Column(checkout::staging::ColumnArgs),
    Attr(checkout::attr::Args),
    New(new::Args),
    Convert(convert::Args),
    Demo(new::DemoArgs),
    Setup(setup::Args),
    Man(pages::ManArgs),
    Completions(pages::CompletionArgs),
}

impl Cli {
    /// Runs the subcommand.
    pub fn run(self) -> Result<(), CliError> {
        match self.command {
            Command::Mount(args) => mount::run(args),
            Command::Umount(args) => umount::run(args),
            Command::Log(args) => log::run(&args),
            Command::Status(args) => status::run(&args),
            Command::Ls(args) => ls::run(&args),
            Command::Cat(args) => cat::run(&args),
            Command::Info(args) => info::run(&args),
            Command::Show(args) => show::run(&args),
            Command::Find(args) => find::run(&args),
            Command::Hash(args) => hash::run(&args),
            Command::Bench(args) => bench::run(&args),
            Command::Verify(args) => verify::run(&args),
            Command::Cache(args) => cache::run(&args),
            Command::Keep(args) => keep::run(&args),
            Command::Pack(args) => pack::run(&args),
            Command::Checkout(args) => checkout::run(args),
            Command::Column(args) => checkout::staging::column(args),
            Command::Attr(args) => checkout::attr::run(args),
            Command::New(args) => new::run(&args),
            Command::Convert(args) => convert::run(&args),
            Command::Demo(args) => new::demo(&args),
            Command::Setup(args) => setup::run(&args),
            Command::Man(args) => pages::man(&args),
            Command::Completions(args) => pages::completions(&args),
        }
    }
}

/// The failure of a subcommand: one line for people and the exit code.
#[derive(Clone, Debug)]
pub struct CliError {
    /// The exit code.
    pub code: u8,
    /// The line; empty if another process has printed it already.
    pub message: String,
}

impl CliError {
    /// Creates the error for wrong usage.
    pub fn usage(message: impl Into<String>) -> Self {
        Self {
            code: EXIT_USAGE,
            message: message.into(),
        }
    }

    /// Creates the error for a store that cannot be opened.
    pub fn store(message: impl Into<String>) -> Self {
        Self {
            code: EXIT_STORE,
            message: message.into(),
        }
    }

    /// Creates the error for an object that cannot be found, read or stored.
    pub fn object(message: impl Into<String>) -> Self {
        Self {
            code: EXIT_OBJECT,
            message: message.into(),
        }
    }

    /// Creates the error for a failed mount or unmount.
    pub fn mount(message: impl Into<String>) -> Self {
        Self {
            code: EXIT_MOUNT,
            message: message.into(),
        }
    }

    /// Prints the message, if there is one, and returns the exit code.
    pub fn report(&self) -> ExitCode {
        if !self.message.is_empty() {
            say(&self.message);
        }
        ExitCode::from(self.code)
    }
}

/// Prints exactly one line on stderr, whatever the text holds. A closed stderr is not an error.
pub fn say(text: &str) {
    let line = printable::line(text.trim());
    let _ = writeln!(std::io::stderr(), "npyfs: {line}");
}
