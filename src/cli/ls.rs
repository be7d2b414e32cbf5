//! `npyfs ls`: what a directory of a mount would list.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cli::CliError;
use crate::cli::walk::{StoreArgs, find};
use crate::journal::utc;
use crate::tree::{Directory, Node};

/// List a store, without mounting.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Kind, size in bytes, time, name
    #[arg(short)]
    long: bool,

    /// Subdirectories too
    #[arg(short = 'R')]
    recursive: bool,

    #[command(flatten)]
    store: StoreArgs,

    /// A directory or file in the store
    path: Option<PathBuf>,
}

struct Printer<'a> {
    args: &'a Args,
    out: io::StdoutLock<'static>,
    /// What could not be listed; the rest is listed all the same.
    failed: Option<String>,
}

pub fn run(args: &Args) -> Result<(), CliError> {
    let fs = args.store.open()?;
    let top = args.path.clone().unwrap_or_default();
    let mut printer = Printer {
        args,
        out: io::stdout().lock(),
        failed: None,
    };
    let printed = match find(&fs, &top, true)? {
        Node::Directory(dir) => printer.directory(&dir, &top),
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
    printer
        .failed
        .map_or(Ok(()), |failed| Err(CliError::object(failed)))
}

impl Printer<'_> {
    fn directory(&mut self, dir: &Arc<dyn Directory>, path: &Path) -> io::Result<()> {
        if self.args.recursive {
            let shown = if path.as_os_str().is_empty() {
                Path::new(".")
            } else {
                path
            };
            writeln!(self.out, "{}:", shown.display())?;
        }
        let listing = match dir.list() {
            Ok(listing) => listing,
            Err(e) => {
                self.failed
                    .get_or_insert_with(|| format!("{}: {e}", path.display()));
                return Ok(());
            }
        };
        for (name, node) in listing.iter() {
            self.line(&name, &node)?;
        }
        if self.args.recursive {
            for (name, node) in listing.iter() {
                if let Node::Directory(below) = &*node {
                    use std::os::unix::ffi::OsStrExt;
                    writeln!(self.out)?;
                    self.directory(below, &path.join(std::ffi::OsStr::from_bytes(&name)))?;
                }
            }
        }
        Ok(())
    }

    fn line(&mut self, name: &[u8], node: &Node) -> io::Result<()> {
        if self.args.long {
            let (kind, size, mtime) = match node {
                Node::Directory(dir) => ('d', 4096, dir.ownership().mtime),
                Node::Symlink(link) => ('l', link.target.len() as u64, link.ownership.mtime),
                Node::File(file) => ('-', file.size().unwrap_or(0), file.ownership().mtime),
            };
            write!(self.out, "{kind} {size:>14} {} ", utc(mtime))?;
        }
        self.out.write_all(name)?;
        if let (true, Node::Symlink(link)) = (self.args.long, node) {
            self.out.write_all(b" -> ")?;
            self.out.write_all(&link.target)?;
        }
        self.out.write_all(b"\n")
    }
}
