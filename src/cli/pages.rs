//! `npyfs man` and `npyfs completions`: pages of the manual, and what shells need to complete commands. `npyfs setup`
//! installs both. They are made from the commands themselves, so that they say what `--help` says.

use std::io;
use std::path::PathBuf;

use clap::{Command, CommandFactory};
use clap_complete::env::{self, EnvCompleter};
use clap_mangen::Man;

use crate::cli::complete::VARIABLE;
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
    #[arg(value_enum)]
    shell: Shell,
}

/// A shell that is told how to complete commands.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// The exit codes of all commands.
const EXIT_STATUS: [(&str, &str); 6] = [
    ("0", "All was done."),
    ("1", "The call was wrong."),
    ("2", "The store cannot be opened, or no command was given."),
    (
        "3",
        "An object cannot be found, read or stored, or something is damaged; the rest was done where that makes sense.",
    ),
    ("32", "Mounting or unmounting failed."),
    ("130", "It was interrupted with Ctrl-C."),
];

/// What the page of a command shows as examples: what is done, and the call.
const EXAMPLES: &[(&str, &[(&str, &str)])] = &[
    (
        "npyfs",
        &[
            (
                "Mount a store, read an array with NumPy, and unmount it",
                "npyfs mount cells.h5ad mnt",
            ),
            ("Look at a store without mounting", "npyfs show cells.h5ad"),
        ],
    ),
    (
        "npyfs-mount",
        &[
            ("To be read", "npyfs mount cells.h5ad mnt"),
            (
                "To be written; what is written goes to a checkout",
                "npyfs mount --checkout work cells.h5ad mnt",
            ),
            (
                "A directory of a store in a bucket",
                "npyfs mount s3://bucket/cells.h5ad:/obs mnt",
            ),
        ],
    ),
    ("npyfs-umount", &[("Unmount a store", "npyfs umount mnt")]),
    (
        "npyfs-log",
        &[("What did the mount refuse?", "npyfs log mnt")],
    ),
    ("npyfs-status", &[("What is mounted?", "npyfs status")]),
    (
        "npyfs-ls",
        &[
            (
                "What is in a group, with types and shapes?",
                "npyfs ls -l cells.h5ad obs",
            ),
            ("All of it, as a tree", "npyfs ls --tree cells.h5ad"),
        ],
    ),
    (
        "npyfs-cat",
        &[(
            "Copy an array to a file",
            "npyfs cat cells.h5ad X.npy | dd of=X.npy",
        )],
    ),
    (
        "npyfs-info",
        &[(
            "All that is known of an array",
            "npyfs info --json cells.h5ad X.npy",
        )],
    ),
    (
        "npyfs-show",
        &[
            ("A store at a glance", "npyfs show cells.h5ad"),
            ("An array in a mount", "npyfs show mnt/X.npy"),
        ],
    ),
    (
        "npyfs-find",
        &[
            ("Arrays by name", "npyfs find cells.h5ad 'score*'"),
            (
                "Arrays in mV of three columns",
                "npyfs find run.h5 --attr unit=mV --shape *,3",
            ),
        ],
    ),
    (
        "npyfs-hash",
        &[("Is it still the same array?", "npyfs hash cells.h5ad X.npy")],
    ),
    (
        "npyfs-bench",
        &[(
            "Which codec is the fastest for an array?",
            "npyfs bench cells.h5ad X.npy",
        )],
    ),
    (
        "npyfs-verify",
        &[("Is anything damaged?", "npyfs verify cells.h5ad")],
    ),
    ("npyfs-cache", &[("What is kept?", "npyfs cache ls")]),
    (
        "npyfs-cache-ls",
        &[("What is kept of arrays?", "npyfs cache ls --kept")],
    ),
    (
        "npyfs-cache-clear",
        &[("Remove all that is kept", "npyfs cache clear")],
    ),
    (
        "npyfs-keep",
        &[("Keep an array as a file", "npyfs keep cells.h5ad X.npy")],
    ),
    (
        "npyfs-pack",
        &[("Make a pack of a store", "npyfs pack cells.h5ad")],
    ),
    (
        "npyfs-checkout",
        &[("What was written?", "npyfs checkout diff cells.h5ad work")],
    ),
    (
        "npyfs-checkout-ls",
        &[("Which checkouts are there?", "npyfs checkout ls cells.h5ad")],
    ),
    (
        "npyfs-checkout-log",
        &[("Which commits are there?", "npyfs checkout log cells.h5ad")],
    ),
    (
        "npyfs-checkout-status",
        &[("What is staged?", "npyfs checkout status repository")],
    ),
    (
        "npyfs-checkout-diff",
        &[("What was written?", "npyfs checkout diff cells.h5ad work")],
    ),
    (
        "npyfs-checkout-commit",
        &[
            (
                "Commit a checkout",
                "npyfs checkout commit -m totals cells.h5ad work",
            ),
            (
                "Commit what was written so far, and keep the mount",
                "npyfs checkout commit -m totals mnt",
            ),
        ],
    ),
    (
        "npyfs-checkout-restore",
        &[
            (
                "Forget what was written over an array",
                "npyfs checkout restore cells.h5ad obs/score.npy",
            ),
            (
                "Bring a group back as it was before the last commit",
                "npyfs checkout restore --at HEAD~1 --checkout work cells.h5ad obsm/",
            ),
        ],
    ),
    (
        "npyfs-checkout-revert",
        &[(
            "Take a commit back",
            "npyfs checkout revert cells.h5ad 1f3a",
        )],
    ),
    (
        "npyfs-checkout-discard",
        &[(
            "Forget a checkout",
            "npyfs checkout discard cells.h5ad work",
        )],
    ),
    (
        "npyfs-checkout-gc",
        &[(
            "What could be freed?",
            "npyfs checkout gc --dry-run cells.h5ad",
        )],
    ),
    (
        "npyfs-checkout-export",
        &[(
            "Write a new file with a checkout in it",
            "npyfs checkout export cells.h5ad work new.h5ad",
        )],
    ),
    (
        "npyfs-checkout-publish",
        &[(
            "Write a file that shows a checkout",
            "npyfs checkout publish cells.h5ad work shown.h5ad",
        )],
    ),
    (
        "npyfs-checkout-sync",
        &[("Store what was written so far", "npyfs checkout sync mnt")],
    ),
    (
        "npyfs-checkout-reset",
        &[(
            "Take back what is staged",
            "npyfs checkout reset repository",
        )],
    ),
    (
        "npyfs-attr",
        &[(
            "The units of an array, in a checkout",
            "npyfs attr set --checkout work plain.h5 images/stack.npy units=mV",
        )],
    ),
    (
        "npyfs-attr-set",
        &[(
            "The units of an array",
            "npyfs attr set --checkout work plain.h5 images/stack.npy units=mV",
        )],
    ),
    (
        "npyfs-attr-get",
        &[(
            "The units of an array",
            "npyfs attr get plain.h5 images/stack.npy units",
        )],
    ),
    (
        "npyfs-attr-ls",
        &[(
            "All attributes of an array",
            "npyfs attr ls plain.h5 images/stack.npy",
        )],
    ),
    (
        "npyfs-attr-rm",
        &[(
            "An attribute less",
            "npyfs attr rm --checkout work plain.h5 images/stack.npy units",
        )],
    ),
    (
        "npyfs-attr-dims",
        &[
            (
                "The dimensions of a new variable",
                "npyfs attr dims --checkout work air.nc mean.npy lat,lon",
            ),
            (
                "The dimensions that it has",
                "npyfs attr dims --checkout work air.nc mean.npy",
            ),
        ],
    ),
    (
        "npyfs-column",
        &[(
            "A column of pictures",
            "npyfs column create --dtype uint8 --shape 28,28 repository images",
        )],
    ),
    (
        "npyfs-column-create",
        &[(
            "A column of pictures",
            "npyfs column create --dtype uint8 --shape 28,28 repository images",
        )],
    ),
    (
        "npyfs-new",
        &[(
            "An empty store, to be written through a mount",
            "npyfs new daf new.h5df",
        )],
    ),
    (
        "npyfs-convert",
        &[(
            "A directory of .npy files as an HDF5 file",
            "npyfs convert arrays arrays.h5",
        )],
    ),
    ("npyfs-demo", &[("Stores to try with", "npyfs demo stores")]),
    (
        "npyfs-setup",
        &[("What of npyfs is on this machine?", "npyfs setup")],
    ),
];

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
    let mut beside = vec!["mount.npyfs(8)".to_owned()];
    beside.extend(
        name.rsplit_once('-')
            .map(|(above, _)| format!("{above}(1)")),
    );
    for below in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        let name = format!("{name}-{}", below.get_name());
        beside.push(format!("{name}(1)"));
        pages(below.clone(), &name, found)?;
    }
    // The page is named `npyfs-COMMAND`; its synopsis shows `npyfs COMMAND`.
    let typed = name.replace('-', " ");
    let command = command.disable_help_subcommand(true);
    let command = command.display_name(name.to_owned()).bin_name(typed);
    let mut page = page(Man::new(command), "man1", format!("{name}.1"))?;
    page.text.extend(more(name, &beside).into_bytes());
    found.push(page);
    Ok(())
}

/// Returns the last sections of a page: exit status, examples, and other pages.
fn more(name: &str, beside: &[String]) -> String {
    let plain = |text: &str| text.replace('\\', "\\e").replace('-', "\\-");
    let mut text = ".SH EXIT STATUS\n".to_owned();
    for (codes, what) in EXIT_STATUS {
        text += &format!(".TP\n\\fB{codes}\\fR\n{what}\n");
    }
    let known = EXAMPLES.iter().find(|(page, _)| *page == name);
    if let Some((_, examples)) = known {
        text += ".SH EXAMPLES\n";
        for (what, call) in *examples {
            text += &format!(".TP\n{}\n\\fB{}\\fR\n", plain(what), plain(call));
        }
    }
    text + &format!(".SH SEE ALSO\n{}\n", plain(&beside.join(", ")))
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

/// Returns what a shell needs to complete commands: it asks npyfs.
pub fn completion(shell: Shell) -> io::Result<Vec<u8>> {
    let completer: &dyn EnvCompleter = match shell {
        Shell::Bash => &env::Bash,
        Shell::Zsh => &env::Zsh,
        Shell::Fish => &env::Fish,
    };
    let mut text = Vec::new();
    completer.write_registration(VARIABLE, "npyfs", "npyfs", "npyfs", &mut text)?;
    Ok(text)
}

/// Prints the completions of a shell.
pub fn completions(args: &CompletionArgs) -> Result<(), CliError> {
    let text = completion(args.shell);
    print(&text.map_err(|e| CliError::object(format!("standard output: {e}")))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn the_examples_are_calls_and_every_command_has_one() {
        let mut pages = Vec::new();
        super::pages(Cli::command(), "npyfs", &mut pages).unwrap();
        for (page, examples) in EXAMPLES {
            assert!(
                pages.iter().any(|known| known.name == format!("{page}.1")),
                "{page}"
            );
            for (what, call) in *examples {
                let call = call.split(" | ").next().unwrap_or_default();
                let words = call.split_whitespace().map(|word| word.trim_matches('\''));
                assert!(Cli::try_parse_from(words).is_ok(), "{page}: {what}: {call}");
            }
        }
        let lacking = pages.iter().map(|page| page.name.trim_end_matches(".1"));
        let lacking = lacking.filter(|page| !EXAMPLES.iter().any(|(known, _)| known == page));
        assert_eq!(lacking.collect::<Vec<_>>(), Vec::<&str>::new());
    }
}
