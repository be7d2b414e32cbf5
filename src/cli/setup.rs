//! `npyfs setup`: lists what of npyfs is on this machine and what mounting needs, and installs the rest for root.
//!
//! The list of what is installed is in `files`; where it is put, and how it is taken away again, is in `place`. A package is
//! filled by the same command, with `--root` and `--prefix`.

pub mod files;
pub mod install_root;
pub mod record;

use std::fs::{File, metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use rustix::process::geteuid;
use serde::Serialize;

use crate::cli::CliError;
use crate::cli::output::{Report, print};
use npyfs_base::printable;

use files::{Item, Part};
use install_root::{Place, State, of};

/// The prefix of files that no package of the distribution owns.
const LOCAL: &str = "/usr/local";
/// The prefix of packages of the distribution. A part that is installed there is not installed a second time.
const PACKAGED: &str = "/usr";

/// List what of npyfs is installed on this machine and what mounting needs, or install it.
///
/// Without options nothing is changed. --install needs root, and may be given again: what is there stays, and what another
/// version put there is brought up to date. --remove takes away what --install put there, unless it was changed since.
///
/// In the list, what is there, is missing, or differs from what this program would install; what is foreign was put
/// there by others and is left alone. JSON is {"commands": those that install the rest, "needs": [{"name", "state": "there" or
/// "missing", "what"}], "parts": [{"name", "state": "there", "missing", "differs" or "foreign", "what"}], "program", "version"}.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// JSON, of the list
    #[arg(long, conflicts_with_all = ["install", "remove"])]
    json: bool,

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
        return listing(args, &place)?.print(args.json);
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

/// Installs the missing parts.
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

/// A line of the list. The fields of the JSON stand in the order of their names.
#[derive(Serialize)]
struct Entry {
    name: &'static str,
    state: &'static str,
    what: String,
}

/// The state of this machine.
#[derive(Serialize)]
struct SetupReport {
    commands: Vec<String>,
    needs: Vec<Entry>,
    parts: Vec<Entry>,
    program: String,
    version: &'static str,
    /// The purpose of the commands.
    #[serde(skip)]
    purposes: Vec<&'static str>,
}

impl Report for SetupReport {
    fn text(&self) -> String {
        let Self {
            program, version, ..
        } = self;
        let mut text = format!("npyfs {version} is {program}\n\n");
        for Entry { name, state, what } in self.needs.iter().chain(&self.parts) {
            text.push_str(&format!("{state:<8} {name:<12} {what}\n"));
        }
        for (command, purpose) in self.commands.iter().zip(&self.purposes) {
            text.push_str(&format!("\nTo {purpose}:\n    {command}\n"));
        }
        text
    }
}

/// Returns what is installed, and the commands that install the rest.
fn listing(args: &Args, place: &Place) -> Result<SetupReport, CliError> {
    let needs = match args.root {
        None => checks().into_iter().map(Check::entry).collect(),
        Some(_) => Vec::new(),
    };
    let mut parts = Vec::new();
    let items = files::items(&args.prefix).map_err(CliError::object)?;
    let packaged = packaged(args).map_err(CliError::object)?;
    let (mut is_complete, mut lets_others_in) = (true, true);
    for part in Part::value_variants().iter().copied() {
        let is_packaged = packaged
            .as_ref()
            .is_some_and(|it| place.is_packaged(it, part));
        let state = match is_packaged {
            true => State::Same,
            // An item that this user cannot read counts as foreign: `setup` did not put it there.
            false => {
                State::of_all(of(&items, part).map(|it| place.state(it).unwrap_or(State::Foreign)))
            }
        };
        let is_done = !matches!(state, State::Missing | State::Differs);
        match part {
            Part::AllowOther => lets_others_in = is_done,
            _ => is_complete &= is_done,
        }
        parts.push(Entry {
            name: part.name(),
            state: state.mark(),
            what: part.about().to_owned(),
        });
    }
    let command = command(args)?;
    let remedies = [
        (is_complete, "--install", "install what is missing"),
        (
            lets_others_in,
            "--install allow-other",
            "let users share their mounts",
        ),
    ];
    let remedies = remedies.into_iter().filter(|(is_well, ..)| !is_well);
    let remedies = remedies.map(|(_, options, purpose)| (format!("{command} {options}"), purpose));
    let (commands, purposes) = remedies.unzip();
    Ok(SetupReport {
        commands,
        needs,
        parts,
        program: shown(&program()?),
        version: env!("CARGO_PKG_VERSION"),
        purposes,
    })
}

/// Returns the command line of this program for root, whose PATH differs.
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

/// A thing that mounting needs.
struct Check {
    /// The name.
    name: &'static str,
    /// True if it is there and works.
    is_well: bool,
    /// The finding, and the remedy if it is not well.
    what: String,
}

impl Check {
    fn new(name: &'static str, found: Result<String, String>) -> Self {
        let is_well = found.is_ok();
        let what = found.unwrap_or_else(|why| why);
        Self {
            name,
            is_well,
            what,
        }
    }

    fn entry(self) -> Entry {
        Entry {
            name: self.name,
            state: if self.is_well { "there" } else { "missing" },
            what: self.what,
        }
    }
}

/// Looks at this machine.
fn checks() -> [Check; 2] {
    [
        Check::new("/dev/fuse", device()),
        Check::new("fusermount3", fusermount()),
    ]
}

fn device() -> Result<String, String> {
    match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Ok("can be opened".to_owned()),
        Err(e) if e.kind() == ErrorKind::PermissionDenied => Err(
            "is not yours to open: sudo chmod 666 /dev/fuse; for a container: docker run --device /dev/fuse"
                .to_owned(),
        ),
        // ENODEV, of a node without a driver, has the same remedy.
        Err(_) => Err(
            "the kernel's FUSE: sudo modprobe fuse; for a container: docker run --device /dev/fuse --cap-add SYS_ADMIN"
                .to_owned(),
        ),
    }
}

fn fusermount() -> Result<String, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .chain(["/usr/bin", "/bin"].map(PathBuf::from))
        .map(|dir| dir.join("fusermount3"))
        .find_map(|path| Some((metadata(&path).ok().filter(|it| it.is_file())?, path)));
    let why = "users other than root mount with it";
    match found {
        None => Err(format!("{why}: sudo apt-get install fuse3")),
        Some((meta, path)) if meta.uid() != 0 || meta.permissions().mode() & 0o4000 == 0 => {
            let shown = shown(&path);
            Err(format!(
                "{why}, but {shown} is not setuid root: sudo apt-get install --reinstall fuse3"
            ))
        }
        Some((_, path)) => Ok(format!("{why} ({})", shown(&path))),
    }
}
