//! `npyfs ls`: lists a directory as a mount would. Each entry is printed as it is found, and none is kept.

use std::ffi::OsStr;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use serde::Serialize;

use crate::cli::figures::{rounded, shape};
use crate::cli::output::{self, JsonList, Name, OutputFormat, has_colour, kind};
use crate::cli::place::{Place, places};
use crate::cli::progress::Progress;
use crate::cli::store::StoreArgs;
use crate::cli::{CliError, say};
use npyfs_base::journal::utc;
use npyfs_base::npy::parse::Header;
use npyfs_base::printable;
use npyfs_core::tree::{Directory, Node, VirtualFile};
use npyfs_io::content::npy_header;

/// Size in bytes that directories are shown with, as in a mount.
const DIRECTORY_SIZE: u64 = 4096;

/// Characters of a type that are shown at most: the type of a compound can be long.
const LONGEST_TYPE: usize = 24;

/// Characters of a time.
const TIME: usize = "2024-05-06T07:08:09Z".len();

/// The colours of a terminal: blue and bold, cyan, and none.
const DIRECTORY: &str = "\u{1b}[1;34m";
const LINK: &str = "\u{1b}[36m";
const PLAIN: &str = "\u{1b}[0m";

/// List a store, without mounting.
///
/// In the place of STORE and PATH also a mount or something in it, STORE:/PATH, STORE/PATH, or an .npy file.
///
/// Letters that a terminal would act upon, or not show, are spelled \u{NNNN}, bytes that are no UTF-8 \xNN, and a
/// backslash is doubled; -0 and --json give names as they are. JSON is a list of {"name", "kind": "file", "directory"
/// or "link", "size", "time" (null if the store says none), "target" of links, with -l "dtype" and "shape" of arrays},
/// and "name_hex" for names that are no UTF-8. With -R and --tree the names in both are paths.
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

    /// Subdirectories too, as a tree: what is in a directory stands below it, further to the right
    #[arg(long, conflicts_with = "recursive")]
    tree: bool,

    #[command(flatten)]
    format: OutputFormat,

    #[command(flatten)]
    store: StoreArgs,

    /// Directories or files in the store; * and ? are wildcards
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// An entry of a listing.
#[derive(Serialize)]
struct ListedEntry {
    #[serde(flatten)]
    name: Name,
    kind: &'static str,
    size: u64,
    /// `None`: unknown.
    time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dtype: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shape: Option<Vec<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

/// Returns the header of an array; `None` for another file, and for a file that cannot be read, whose reader learns the
/// reason.
fn header(file: &dyn VirtualFile) -> Option<Header> {
    npy_header(&*file.open().ok()?).ok()?.ok()
}

impl ListedEntry {
    /// Describes an entry with its kind, its size in bytes and its time as a mount shows them; an array with type and
    /// shape, if it is to be opened for that.
    fn new(name: &[u8], node: &Node, opens: bool) -> Self {
        let (size, time) = match node {
            Node::Directory(dir) => (DIRECTORY_SIZE, dir.ownership().mtime),
            Node::Symlink(link) => (link.target.len() as u64, link.ownership.mtime),
            Node::File(file) => (file.size().unwrap_or(0), file.ownership().mtime),
        };
        let target = match node {
            Node::Symlink(link) => Some(String::from_utf8_lossy(&link.target).into_owned()),
            _ => None,
        };
        let header = match node {
            Node::File(file) if opens => header(&**file),
            _ => None,
        };
        Self {
            name: Name::new(name),
            kind: kind(node),
            size,
            // An object without a time has this one, such as a file of a web server that does not say when it was
            // modified.
            time: (time != SystemTime::UNIX_EPOCH).then(|| utc(time)),
            dtype: header.as_ref().map(|header| header.dtype.to_string()),
            shape: header.map(|header| header.shape),
            target,
        }
    }

    /// Returns the columns in front of the name; `human`: the size is rounded to three digits.
    fn row(&self, human: bool) -> String {
        let kind = match self.kind {
            "directory" => 'd',
            "link" => 'l',
            _ => '-',
        };
        let size = match human {
            true => rounded(self.size),
            false => self.size.to_string(),
        };
        let none = || "-".to_owned();
        let dtype = self.dtype.as_ref().map_or_else(none, |dtype| {
            match dtype.char_indices().nth(LONGEST_TYPE) {
                Some((at, _)) => format!("{}...", dtype.get(..at).unwrap_or_default()),
                None => dtype.clone(),
            }
        });
        let shape = self.shape.as_deref().map_or_else(none, shape);
        let time = self.time.as_deref().unwrap_or("-");
        format!("{kind} {size:>14} {time:<TIME$} {dtype:<6} {shape:<16} ")
    }
}

/// A listing in progress.
struct Printer<'a> {
    args: &'a Args,
    out: BufWriter<StdoutLock<'static>>,
    /// The output is a terminal: directories have a slash.
    is_terminal: bool,
    /// Directories and links have a colour.
    has_colour: bool,
    /// Counts entries, until some are seen on the terminal.
    progress: Option<Progress>,
    json: JsonList,
    /// The objects that could not be listed, a line each. The rest is listed all the same.
    failures: Vec<String>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    let places = places(&args.store, &args.paths)?;
    let mut printer = Printer {
        args,
        out: BufWriter::new(io::stdout().lock()),
        is_terminal: io::stdout().is_terminal(),
        has_colour: has_colour(),
        progress: Some(Progress::counted("listing")),
        json: JsonList::default(),
        failures: Vec::new(),
    };
    let listed = printer.places(&places);
    // The list is whole, whatever could not be found.
    let ended = match args.format.json {
        true => printer.json.end(&mut printer.out),
        false => Ok(()),
    };
    let ended = ended.and_then(|()| printer.out.flush());
    output::written(listed?.and(ended))?;
    let Printer {
        out,
        mut failures,
        progress,
        ..
    } = printer;
    drop(progress);
    drop(out);
    let last = failures.pop();
    failures.iter().for_each(|failure| say(failure));
    last.map_or(Ok(()), |last| Err(CliError::object(last)))
}

impl Printer<'_> {
    /// Lists what was asked for: of several directories each under its name, as ls does.
    fn places(&mut self, places: &[Place]) -> Result<io::Result<()>, CliError> {
        let is_text = !self.args.format.null && !self.args.format.json;
        let has_titles = places.len() > 1;
        let mut is_first = true;
        for place in places {
            let top = &place.shown;
            let listed = match place.node(true)? {
                Node::Directory(dir) => {
                    let titled = match has_titles && is_text {
                        true => self.title(top, is_first),
                        false => Ok(()),
                    };
                    let below = if has_titles { top } else { Path::new("") };
                    titled.and_then(|()| self.directory(&dir, top, below, 0))
                }
                node => {
                    let name = match has_titles {
                        true => top.as_os_str(),
                        false => top.file_name().unwrap_or_default(),
                    };
                    self.line(name.as_bytes(), &node, 0)
                }
            };
            if listed.is_err() {
                return Ok(listed);
            }
            is_first = false;
        }
        Ok(Ok(()))
    }

    /// Begins the list of one of several directories. With its subdirectories, each names itself.
    fn title(&mut self, path: &Path, is_first: bool) -> io::Result<()> {
        if !is_first {
            writeln!(self.out)?;
        }
        match self.args.recursive {
            true => Ok(()),
            false => writeln!(
                self.out,
                "{}:",
                printable::name(path.as_os_str().as_bytes())
            ),
        }
    }

    /// Lists a directory. `path` is its path in the store, `below` that from where the listing began, so many
    /// directories above.
    fn directory(
        &mut self,
        dir: &Arc<dyn Directory>,
        path: &Path,
        below: &Path,
        depth: usize,
    ) -> io::Result<()> {
        let OutputFormat { null, json } = self.args.format;
        let is_text = !null && !json;
        let Args {
            recursive, tree, ..
        } = *self.args;
        // Else what is below follows, under its own title.
        let is_entered = tree || (recursive && !is_text);
        if recursive && is_text {
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
                let shown = match path.as_os_str().is_empty() {
                    true => Path::new("."),
                    false => path,
                };
                self.failures.push(format!("{}: {e}", shown.display()));
                return Ok(());
            }
        };
        for why in &listing.damage {
            // The line begins with the name of the file in the directory.
            let file = path.join(why);
            self.failures.push(format!("left out: {}", file.display()));
        }
        for (name, node) in listing.iter() {
            let here = below.join(OsStr::from_bytes(&name));
            let shown = if is_text {
                &*name
            } else {
                here.as_os_str().as_bytes()
            };
            self.line(shown, &node, depth)?;
            if let (true, Node::Directory(dir)) = (is_entered, &*node) {
                self.directory(dir, &path.join(OsStr::from_bytes(&name)), &here, depth + 1)?;
            }
        }
        if recursive && is_text {
            for (name, node) in listing.iter() {
                if let Node::Directory(dir) = &*node {
                    let name = OsStr::from_bytes(&name);
                    writeln!(self.out)?;
                    self.directory(dir, &path.join(name), &below.join(name), depth + 1)?;
                }
            }
        }
        Ok(())
    }

    /// Prints one entry, which lies so many directories below where the listing began.
    fn line(&mut self, name: &[u8], node: &Node, depth: usize) -> io::Result<()> {
        let Args {
            long,
            human,
            tree,
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
            let entry = ListedEntry::new(name, node, long);
            return self.json.add(&mut self.out, &entry);
        }
        let mut line = Vec::new();
        if format.null {
            line.extend(name);
            line.push(0);
            return self.out.write_all(&line);
        }
        if long {
            line.extend(ListedEntry::new(name, node, true).row(human).into_bytes());
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
        if tree {
            line.extend(b"  ".repeat(depth));
        }
        write!(line, "{on}{}{off}", printable::name(name))?;
        match node {
            Node::Directory(_) if long || tree || self.is_terminal => line.push(b'/'),
            Node::Symlink(link) if long => write!(line, " -> {}", printable::name(&link.target))?,
            _ => {}
        }
        line.push(b'\n');
        self.out.write_all(&line)?;
        match self.is_terminal {
            true => self.out.flush(),
            false => Ok(()),
        }
    }
}
