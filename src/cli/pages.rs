//! `npyfs man` and `npyfs completions`: pages of the manual, and what shells need to complete commands. For packages, and
//! `mountscripts/install`; both are made from the commands themselves, so that they say what `--help` says.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::mount::helper::MountArgs;
use crate::cli::output::print;
use crate::cli::{Cli, CliError};

/// Write the pages of the manual.
#[derive(clap::Args, Debug)]
#[command(hide = true)]
pub struct ManArgs {
    /// A directory, which is made: man1 and man8 below it
    dir: PathBuf,
}

/// Print what a shell needs to complete commands.
#[derive(clap::Args, Debug)]
#[command(hide = true)]
pub struct CompletionArgs {
    /// The shell
    shell: Shell,
}

/// Writes a page for each command, and the one of mount.npyfs.
pub fn man(args: &ManArgs) -> Result<(), CliError> {
    let written = || {
        let (first, eighth) = (args.dir.join("man1"), args.dir.join("man8"));
        std::fs::create_dir_all(&first)?;
        std::fs::create_dir_all(&eighth)?;
        pages(Cli::command(), "npyfs", &first)?;
        let helper = MountArgs::command().name("mount.npyfs");
        page(Man::new(helper).section("8"), &eighth.join("mount.npyfs.8"))
    };
    written().map_err(|e: io::Error| CliError::object(format!("{}: {e}", args.dir.display())))
}

/// Writes the page of a command, and of those below it: `npyfs-checkout-ls.1`.
fn pages(command: Command, name: &str, dir: &Path) -> io::Result<()> {
    for below in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        let name = format!("{name}-{}", below.get_name());
        pages(below.clone(), &name, dir)?;
    }
    // The page of a command is called as it is, and its lines say what is typed.
    let typed = name.replace('-', " ");
    let command = command.disable_help_subcommand(true);
    let command = command.display_name(name).bin_name(typed);
    page(Man::new(command), &dir.join(format!("{name}.1")))
}

fn page(man: Man, path: &Path) -> io::Result<()> {
    let man = man.source(concat!("npyfs ", env!("CARGO_PKG_VERSION")));
    let man = man.manual("npyfs");
    let mut file = File::create(path)?;
    man.render(&mut file)?;
    file.flush()
}

/// Prints the completions of a shell.
pub fn completions(args: &CompletionArgs) -> Result<(), CliError> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "npyfs", &mut text);
    print(&text)
}
