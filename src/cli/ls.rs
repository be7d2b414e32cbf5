//! `npyfs ls`: lists a directory as a mount would.

mod entry;

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cli::CliError;
use crate::cli::output::{OutputFormat, has_colour, print_json};
use crate::cli::progress::Progress;
use crate::cli::store::{StoreArgs, find};
use crate::printable;
use crate::tree::{Directory, Node};

use entry::{ListedEntry, Row};

/// The colours of a terminal: blue and bold, cyan, and none.
const DIRECTORY: &str = "\u{1b}[1;34m";
const LINK: &str = "\u{1b}[36m";
const PLAIN: &str = "\u{1b}[0m";

/// List a store, without mounting.
///
/// Letters that a terminal would act upon, or not show, are spelled \u{NNNN}, bytes that are no UTF-8 \xNN, and a
/// backslash is doubled; -0 and --json give names as they are. JSON is a list of {"name", "kind": "file", "directory"
/// or "link", "size", "time", "target" of links, with -l "dtype" and "shape" of arrays}, and "name_hex" for names that are no UTF-8. With -R the names in
/// both are paths.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,

    /// Kind, size in bytes, time, type, shape, name; JSON has type and shape, too
    #[arg(short, conflicts_with = "null")]
    long: bool,

    /// Sizes in K, M, G and T, powers of 1024
    #[arg(short = 'h', long = "human-readable")]
    human: bool,

    /// Subdirectories too
    #[arg(short = 'R')]
    recursive: bool,

    #[command(flatten)]
    format: OutputFormat,

    #[command(flatten)]
    store: StoreArgs,

    /// A directory or file in the store
    path: Option<PathBuf>,
}

/// A listing in progress.
struct Printer<'a> {
    args: &'a Args,
    out: io::StdoutLock<'static>,
    /// The output is a terminal: directories have a slash.
    is_terminal: bool,
    /// Directories and links have a colour.
    has_colour: bool,
    /// Counts entries, until some are seen on the terminal.
    progress: Option<Progress>,
    /// The entries of the JSON list.
    entries: Vec<ListedEntry>,
    /// The first failure. What can be listed is listed all the same.
    failed: Option<String>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    let fs = args.store.open()?;
    let top = args.path.clone().unwrap_or_default();
    let mut printer = Printer {
        args,
        out: io::stdout().lock(),
        is_terminal: io::stdout().is_terminal(),
        has_colour: has_colour(),
        progress: Some(Progress::counted("listing")),
        entries: Vec::new(),
        failed: None,
    };
    let printed = match find(&fs, &top, true)? {
        Node::Directory(dir) => printer.directory(&dir, &top, Path::new("")),
        node => {
            let name = top.file_name().unwrap_or_default().as_encoded_bytes();
            printer.line(name, &node)
        }
    };
    match printed.and_then(|()| printer.out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            return Err(CliError::object(format!("standard output: {e}")));
        }
        _ => {}
    }
    let Printer {
        out,
        entries,
        failed,
        progress,
        ..
    } = printer;
    drop(progress);
    drop(out);
    if args.format.json {
        print_json(&entries)?;
    }
    failed.map_or(Ok(()), |failed| Err(CliError::object(failed)))
}

/// Returns the path for messages: `.` for the root.
fn named(path: &Path) -> &Path {
    if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    }
}

impl Printer<'_> {
    /// Lists a directory. `path` is its path in the store, `below` that from where the listing began.
    fn directory(&mut self, dir: &Arc<dyn Directory>, path: &Path, below: &Path) -> io::Result<()> {
        let OutputFormat { null, json } = self.args.format;
        let is_text = !null && !json;
        if self.args.recursive && is_text {
            let shown = match path.as_os_str().as_bytes() {
                b"" => b".",
                path => path,
            };
            if self.is_terminal {
                self.progress = None;
            }
            writeln!(self.out, "{}:", printable::name(shown))?;
        }
        let listing = match dir.list() {
            Ok(listing) => listing,
            Err(e) => {
                self.failed
                    .get_or_insert_with(|| format!("{}: {e}", named(path).display()));
                return Ok(());
            }
        };
        for why in &listing.damage {
            self.failed
                .get_or_insert_with(|| format!("{}: {why}", named(path).display()));
        }
        for (name, node) in listing.iter() {
            let here = below.join(OsStr::from_bytes(&name));
            let shown = if is_text {
                &*name
            } else {
                here.as_os_str().as_bytes()
            };
            self.line(shown, &node)?;
            if let (false, true, Node::Directory(dir)) = (is_text, self.args.recursive, &*node) {
                self.directory(dir, &path.join(OsStr::from_bytes(&name)), &here)?;
            }
        }
        if self.args.recursive && is_text {
            for (name, node) in listing.iter() {
                if let Node::Directory(dir) = &*node {
                    let name = OsStr::from_bytes(&name);
                    writeln!(self.out)?;
                    self.directory(dir, &path.join(name), &below.join(name))?;
                }
            }
        }
        Ok(())
    }

    /// Prints one entry, or keeps it for the JSON.
    fn line(&mut self, name: &[u8], node: &Node) -> io::Result<()> {
        let Args {
            long,
            human,
            format,
            ..
        } = *self.args;
        self.progress
            .iter()
            .for_each(|progress| progress.advance(1));
        if self.is_terminal && !format.json {
            self.progress = None;
        }
        if format.json {
            self.entries.push(ListedEntry::new(name, node, long));
            return Ok(());
        }
        let mut line = Vec::new();
        if format.null {
            format.push("", name, &mut line);
            return self.out.write_all(&line);
        }
        if long {
            write!(line, "{}", Row::new(node, human))?;
        }
        let colour = match node {
            Node::Directory(_) => DIRECTORY,
            Node::Symlink(_) => LINK,
            Node::File(_) => "",
        };
        let (on, off) = match self.has_colour && !colour.is_empty() {
            true => (colour, PLAIN),
            false => ("", ""),
        };
        write!(line, "{on}{}{off}", printable::name(name))?;
        match node {
            Node::Directory(_) if long || self.is_terminal => line.push(b'/'),
            Node::Symlink(link) if long => write!(line, " -> {}", printable::name(&link.target))?,
            _ => {}
        }
        line.push(b'\n');
        self.out.write_all(&line)
    }
}
