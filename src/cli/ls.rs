//! `npyfs ls`: lists a directory as a mount would.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::cli::CliError;
use crate::cli::output::{Name, OutputFormat, print_json};
use crate::cli::store::{StoreArgs, find};
use crate::journal::utc;
use crate::printable;
use crate::tree::{Directory, Node};

/// List a store, without mounting.
///
/// Letters that a terminal would act upon, or not show, are spelled \u{NNNN}, bytes that are no UTF-8 \xNN, and a
/// backslash is doubled; -0 and --json give names as they are. JSON is a list of {"name", "kind": "file", "directory"
/// or "link", "size", "time", "target" of links}, and "name_hex" for names that are no UTF-8. With -R the names in
/// both are paths.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Kind, size in bytes, time, name
    #[arg(short, conflicts_with_all = ["null", "json"])]
    long: bool,

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

/// An entry of the JSON list.
#[derive(Serialize)]
struct ListedEntry {
    #[serde(flatten)]
    name: Name,
    kind: &'static str,
    size: u64,
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl ListedEntry {
    fn new(name: &[u8], node: &Node) -> Self {
        let (kind, size, mtime) = match node {
            Node::Directory(dir) => ("directory", 4096, dir.ownership().mtime),
            Node::Symlink(link) => ("link", link.target.len() as u64, link.ownership.mtime),
            Node::File(file) => ("file", file.size().unwrap_or(0), file.ownership().mtime),
        };
        let target = match node {
            Node::Symlink(link) => Some(String::from_utf8_lossy(&link.target).into_owned()),
            _ => None,
        };
        Self {
            name: Name::new(name),
            kind,
            size,
            time: utc(mtime),
            target,
        }
    }
}

/// A listing in progress.
struct Printer<'a> {
    args: &'a Args,
    out: io::StdoutLock<'static>,
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
        ..
    } = printer;
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
        if self.args.format.json {
            self.entries.push(ListedEntry::new(name, node));
            return Ok(());
        }
        let mut line = Vec::new();
        if self.args.long {
            let (kind, size, mtime) = match node {
                Node::Directory(dir) => ('d', 4096, dir.ownership().mtime),
                Node::Symlink(link) => ('l', link.target.len() as u64, link.ownership.mtime),
                Node::File(file) => ('-', file.size().unwrap_or(0), file.ownership().mtime),
            };
            write!(line, "{kind} {size:>14} {} ", utc(mtime))?;
        }
        self.args.format.push("", name, &mut line);
        if let (true, Node::Symlink(link)) = (self.args.long, node) {
            line.pop();
            writeln!(line, " -> {}", printable::name(&link.target))?;
        }
        self.out.write_all(&line)
    }
}
