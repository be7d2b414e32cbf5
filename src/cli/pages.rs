//! `npyfs man` and `npyfs completions`: pages of the manual, and what shells need to complete commands. `npyfs setup`
//! installs both. They are made from the commands themselves, so that they say what `--help` says.

use std::io;
use std::path::PathBuf;

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

/// A page of the manual.
pub struct Page {
    /// The directory of its section, `man1`.
    pub section: &'static str,
    /// The name of the file.
    pub name: String,
    /// The page, in roff.
    pub text: Vec<u8>,
}

/// Returns a page for each command, and the one of mount.npyfs.
pub fn manual() -> io::Result<Vec<Page>> {
    let mut found = Vec::new();
    pages(Cli::command(), "npyfs", &mut found)?;
    let helper = MountArgs::command().name("mount.npyfs");
    let helper = Man::new(helper).section("8");
    found.push(page(helper, "man8", "mount.npyfs.8".to_owned())?);
    Ok(found)
}

/// Adds the page of a command, and of those below it: `npyfs-checkout-ls.1`.
fn pages(command: Command, name: &str, found: &mut Vec<Page>) -> io::Result<()> {
    for below in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        let name = format!("{name}-{}", below.get_name());
        pages(below.clone(), &name, found)?;
    }
    // The page of a command is called as it is, and its lines say what is typed.
    let typed = name.replace('-', " ");
    let command = command.disable_help_subcommand(true);
    let command = command.display_name(name.to_owned()).bin_name(typed);
    found.push(page(Man::new(command), "man1", format!("{name}.1"))?);
    Ok(())
}

fn page(man: Man, section: &'static str, name: String) -> io::Result<Page> {
    let man = man.source(concat!("npyfs ", env!("CARGO_PKG_VERSION")));
    let man = man.manual("npyfs");
    let mut text = Vec::new();
    man.render(&mut text)?;
    Ok(Page {
        section,
        name,
        text,
    })
}

/// Writes the pages of the manual into a directory.
pub fn man(args: &ManArgs) -> Result<(), CliError> {
    let written = || {
        for page in manual()? {
            let dir = args.dir.join(page.section);
            std::fs::create_dir_all(&dir)?;
            std::fs::write(dir.join(page.name), page.text)?;
        }
        Ok(())
    };
    written().map_err(|e: io::Error| CliError::object(format!("{}: {e}", args.dir.display())))
}

/// Returns what a shell needs to complete commands.
pub fn completion(shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "npyfs", &mut text);
    text
}

/// Prints the completions of a shell.
pub fn completions(args: &CompletionArgs) -> Result<(), CliError> {
    print(&completion(args.shell))
}
