//! `npyfs setup`: lists what of npyfs is on this machine and what mounting needs, and installs the rest for root.
//!
//! The list of what is installed is in `files`; where it is put, and how it is taken away again, is in `place`. A package is
//! filled by the same command, with `--root` and `--prefix`.

pub mod files;
pub mod machine;
pub mod place;
pub mod record;

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use rustix::process::geteuid;

use crate::cli::CliError;
use crate::cli::output::print;
use crate::printable;

use files::{Item, Part};
use place::{Place, State, of};

/// Where things are installed that are not of the distribution.
const LOCAL: &str = "/usr/local";
/// Where packages of the distribution put theirs; what is there is not installed a second time.
const PACKAGED: &str = "/usr";

/// List what of npyfs is installed on this machine and what mounting needs, or install it.
///
/// Without options nothing is changed. --install needs root, and may be given again: what is there stays, and what another
/// version put there is brought up to date. --remove takes away what --install put there, unless it was changed since.
///
/// In the list, what is there, is missing, or differs from what this program would install; what is foreign was put
/// there by others and is left alone.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Install these parts; all but allow-other if none is named
    #[arg(long, value_name = "WHAT", num_args = 0.., value_enum)]
    install: Option<Vec<Part>>,

    /// Take away what --install put there
    #[arg(long, conflicts_with = "install")]
    remove: bool,

    /// Look and install below DIR, as for a package
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    /// The directory for programs, pages and units
    #[arg(long, value_name = "DIR", default_value = LOCAL)]
    prefix: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    if !record::is_plain(&args.prefix) {
        let prefix = shown(&args.prefix);
        return Err(CliError::usage(format!(
            "--prefix {prefix}: not an absolute path without \"..\""
        )));
    }
    let place = Place::new(args.root.as_deref(), &args.prefix);
    if args.install.is_none() && !args.remove {
        return print(listing(args, &place)?.as_bytes());
    }
    if args.root.is_none() && !geteuid().is_root() {
        let doing = if args.remove { "remove" } else { "install" };
        return Err(CliError::usage(format!(
            "setup --{doing} needs root: {} --{doing}",
            command(args)?
        )));
    }
    let mut report = String::new();
    let done = match &args.install {
        Some(parts) => install(args, &place, parts, &mut report),
        None => place.remove(&mut report),
    };
    print(report.as_bytes())?;
    done.map_err(CliError::object)
}

/// Installs what is not there.
fn install(args: &Args, place: &Place, parts: &[Part], report: &mut String) -> Result<(), String> {
    let items = files::items(&args.prefix)?;
    let packaged = packaged(args)?;
    let mut wanted: Vec<&Item> = Vec::new();
    for part in with_needed(parts) {
        if packaged
            .as_ref()
            .is_some_and(|it| place.is_packaged(it, part))
        {
            report.push_str(&format!("{} is there, from a package\n", part.name()));
        } else {
            wanted.extend(of(&items, part));
        }
    }
    let before = report.len();
    let in_the_way = place.install(&wanted, report)?;
    if let Some(path) = in_the_way.first() {
        return Err(format!(
            "{} was put there by others, and stays as it is",
            shown(path)
        ));
    }
    if report.len() == before && !wanted.is_empty() {
        report.push_str("all of it is there\n");
    }
    Ok(())
}

/// Returns the parts that are asked for, with what they need, in the order of the list.
fn with_needed(parts: &[Part]) -> impl Iterator<Item = Part> {
    let is_wanted = |part: Part| match part {
        _ if parts.contains(&part) => true,
        Part::AllowOther => false,
        // Helpers and units start the program where it is installed.
        Part::Program => {
            parts.is_empty()
                || parts
                    .iter()
                    .any(|it| [Part::Mount, Part::Units].contains(it))
        }
        _ => parts.is_empty(),
    };
    let all = Part::value_variants().iter().copied();
    all.filter(move |part| is_wanted(*part))
}

/// Returns what a package of the distribution would have installed, unless it is the package that is being made.
fn packaged(args: &Args) -> Result<Option<Vec<Item>>, String> {
    let packaged = Path::new(PACKAGED);
    (args.prefix != packaged)
        .then(|| files::items(packaged))
        .transpose()
}

/// Returns what is there, a line each, and the commands for what is not.
fn listing(args: &Args, place: &Place) -> Result<String, CliError> {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!("npyfs {version} is {}\n\n", shown(&program()?));
    let mut line = |mark: &str, name: &str, what: &str| {
        text.push_str(&format!("{mark:<8} {name:<12} {what}\n"));
    };
    if args.root.is_none() {
        for check in machine::checks() {
            let mark = if check.is_well { "there" } else { "missing" };
            line(mark, check.name, &check.what);
        }
    }
    let items = files::items(&args.prefix).map_err(CliError::object)?;
    let packaged = packaged(args).map_err(CliError::object)?;
    let (mut is_complete, mut lets_others_in) = (true, true);
    for part in Part::value_variants().iter().copied() {
        let is_packaged = packaged
            .as_ref()
            .is_some_and(|it| place.is_packaged(it, part));
        let state = match is_packaged {
            true => State::Same,
            // What cannot be looked at was not put there by `setup`.
            false => {
                State::of_all(of(&items, part).map(|it| place.state(it).unwrap_or(State::Foreign)))
            }
        };
        let is_done = !matches!(state, State::Missing | State::Differs);
        match part {
            Part::AllowOther => lets_others_in = is_done,
            _ => is_complete &= is_done,
        }
        line(state.mark(), part.name(), part.about());
    }
    let command = command(args)?;
    if !is_complete {
        text.push_str(&format!(
            "\nTo install what is missing:\n    {command} --install\n"
        ));
    }
    if !lets_others_in {
        text.push_str(&format!(
            "\nTo let users share their mounts:\n    {command} --install allow-other\n"
        ));
    }
    Ok(text)
}

/// Returns the command line of this program for root, who has another PATH.
fn command(args: &Args) -> Result<String, CliError> {
    let mut command = match args.root {
        None => format!("sudo {} setup", printable::shell_word(&program()?)),
        Some(_) => format!("{} setup", printable::shell_word(&program()?)),
    };
    if let Some(root) = &args.root {
        command.push_str(&format!(" --root {}", printable::shell_word(root)));
    }
    if args.prefix != Path::new(LOCAL) {
        command.push_str(&format!(
            " --prefix {}",
            printable::shell_word(&args.prefix)
        ));
    }
    Ok(command)
}

/// Returns the file that this process runs.
fn program() -> Result<PathBuf, CliError> {
    std::env::current_exe().map_err(|e| CliError::object(format!("/proc/self/exe: {e}")))
}

fn shown(path: &Path) -> String {
    printable::name(path.as_os_str().as_encoded_bytes())
}
