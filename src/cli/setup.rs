//! `npyfs setup`: lists what of npyfs is on this machine and what mounting needs, and installs the rest for root.
//!
//! The list of what is installed is here, one list for `npyfs setup`, `mountscripts/install` and packages; where it is
//! put, and how it is taken away again, is in `install_root`. A package is filled by the same command, with `--root`
//! and `--prefix`.

pub mod install_root;

use std::fs::{self, File, metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use rustix::process::geteuid;
use serde::Serialize;

use crate::cli::CliError;
use crate::cli::output::{Report, print};
use crate::cli::pages::{self, Shell};
use npyfs_base::printable;

use install_root::{Place, State, items_of};

/// The prefix of files that no package of the distribution owns.
const LOCAL: &str = "/usr/local";
/// The prefix of packages of the distribution. A part that is installed there is not installed a second time.
const PACKAGED: &str = "/usr";

/// List what of npyfs is installed on this machine and what mounting needs, or install it.
///
/// Without options nothing is changed. --install needs root, and may be given again: what is there stays, and what
/// another version put there is brought up to date. --remove takes away what --install put there, unless it was changed
/// since.
///
/// In the list, what is there, is missing, or differs from what this program would install; what is foreign was put
/// there by others and is left alone. JSON is {"commands": those that install the rest, "needs": [{"name", "state":
/// "there" or "missing", "what"}], "parts": [{"name", "state": "there", "missing", "differs" or "foreign", "what"}],
/// "program", "version"}.
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
    if !install_root::is_plain(&args.prefix) {
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
    let items = items(&args.prefix)?;
    let packaged = packaged(args)?;
    let mut wanted: Vec<&Item> = Vec::new();
    for part in with_needed(parts) {
        if packaged
            .as_ref()
            .is_some_and(|it| place.is_packaged(it, part))
        {
            report.push_str(&format!("{} is there, from a package\n", part.name()));
        } else {
            wanted.extend(items_of(&items, part));
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
        .then(|| items(packaged))
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
    let items = items(&args.prefix).map_err(CliError::object)?;
    let packaged = packaged(args).map_err(CliError::object)?;
    let (mut is_complete, mut lets_others_in) = (true, true);
    for part in Part::value_variants().iter().copied() {
        let is_packaged = packaged
            .as_ref()
            .is_some_and(|it| place.is_packaged(it, part));
        let state = match is_packaged {
            true => State::Same,
            // An item that this user cannot read counts as foreign: `setup` did not put it there.
            false => State::of_all(
                items_of(&items, part).map(|it| place.state(it).unwrap_or(State::Foreign)),
            ),
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

/// The names under which mount(8) and umount(8) look for the program.
const HELPERS: [&str; 3] = [
    "/sbin/mount.npyfs",
    "/sbin/mount.fuse.npyfs",
    "/sbin/umount.fuse.npyfs",
];

const MOUNT_FOR: &str = include_str!("../../mountscripts/mount-for");
const SYSTEM_UNIT: &str = include_str!("../../mountscripts/systemd/npyfs@.service");
const USER_UNIT: &str = include_str!("../../mountscripts/systemd/user/npyfs@.service");

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
