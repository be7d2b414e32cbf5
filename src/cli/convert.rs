//! `npyfs convert`: writes a store as a new one of another kind.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::checkout::builder::Construction;
use crate::checkout::conversion::{Conversion, Converted, Listener, Remark};
use crate::checkout::format::Format;
use crate::checkout::new_store::NewStore;
use crate::checkout::workplace::Workplace;
use crate::cli::checkout::{self, Exported};
use crate::cli::figures;
use crate::cli::progress::{Progress, end_cleanly, suspend};
use crate::cli::store::StoreArgs;
use crate::cli::{CliError, output, say};
use crate::error::{Error, ErrorKind};
use crate::formats::{self, npy};
use crate::hdf5::program::program;
use crate::mount::fs::Fs;
use crate::printable;
use crate::tree::Directory;

/// Write a store as a new one of another kind: an HDF5 file, a Hangar repository, or a directory of .npy files.
///
/// The source is a store, or a directory of .npy files. What has no counterpart in the other kind is listed, and nothing is
/// written without --leave-out. JSON is {"destination", "kind", "written", "objects", "bytes", "changed",
/// "without_counterpart"}; the last two are lists of {"object", "what"}.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The kind of the new store: plain, daf, arkouda, hangar or npy; by default its name tells
    #[arg(long, value_name = "KIND")]
    to: Option<String>,

    /// Do without objects that have no counterpart
    #[arg(long)]
    leave_out: bool,

    /// Hangar: write the samples of a column as one array and their keys; take them from such arrays
    #[arg(long)]
    stacked: bool,

    /// hangar: the column of arrays that stand in no directory; by default the source's name
    #[arg(long, value_name = "NAME")]
    column: Option<String>,

    /// hangar: the name of the author of the commit
    #[arg(long, requires = "email")]
    name: Option<String>,

    /// hangar: the author's address
    #[arg(long, requires = "name")]
    email: Option<String>,

    /// JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    source: StoreArgs,

    /// The new store, whose path nothing has yet; .h5df: daf, .h5 and .hdf5: plain, no ending: a directory of .npy files
    #[arg(value_name = "NEW")]
    new: PathBuf,
}

/// The progress of a conversion on a terminal.
struct ConvertProgress(Progress);

impl Listener for ConvertProgress {
    fn found(&self, bytes: u64) {
        self.0.found(bytes);
    }

    fn done(&self, bytes: u64) {
        self.0.advance(bytes);
    }

    fn lost(&self, path: &str, why: &str) {
        suspend(|| say(&format!("{path}: {why}")));
    }
}

/// What is converted.
struct Source {
    root: Arc<dyn Directory>,
    sep: u8,
    /// The store is open as long as this is.
    _fs: Option<Fs>,
}

/// The report in JSON.
#[derive(Serialize)]
struct Report<'a> {
    destination: String,
    kind: &'a str,
    written: bool,
    /// `None`: all that the file has.
    objects: Option<u64>,
    bytes: u64,
    changed: &'a [Remark],
    without_counterpart: &'a [Remark],
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    let to = destination(args)?;
    let shown = printable::name(args.new.as_os_str().as_encoded_bytes());
    let failed = |e: &Error| CliError::store(format!("{}: {e}", args.new.display()));
    if args.new.symlink_metadata().is_ok() {
        let exists = ErrorKind::Os(libc::EEXIST);
        return Err(failed(&Error::new(exists, "it is there already")));
    }
    let author = args.name.clone().zip(args.email.clone());
    if to.has_author() && author.is_none() {
        return Err(CliError::usage(
            "a new repository names an author: --name and --email",
        ));
    }
    let source = open(&args.source)?;
    let path = &*args.source.given();
    if let Some((checkout, dir)) = args.source.checkout()
        && is_one_file(&source, &*to, path)
    {
        drop(source);
        let copied = checkout::copy(
            (path, dir),
            args.source.options(),
            checkout,
            &args.new,
            args.leave_out,
        )?;
        return tell_copied(args, to.name(), &copied);
    }
    if lies_in(&args.new, path) {
        let inside = ErrorKind::Os(libc::EINVAL);
        let why = "it would lie in the directory that is converted";
        return Err(failed(&Error::new(inside, why)));
    }
    end_cleanly().map_err(|e| CliError::store(e.to_string()))?;
    let place = Place::new(&args.new).map_err(|e| failed(&e))?;
    let message = format!("npyfs convert {}", path.display());
    let new = NewStore {
        path: &place.built,
        axes: Vec::new(),
        author,
        program: program(),
    };
    let registry = formats::registry();
    let construction = Construction {
        new: &new,
        scratch: &place.scratch,
        message: &message,
        formats: &registry,
    };
    let builder = to.build(&construction).map_err(|e| failed(&e))?;
    let column = match &args.column {
        Some(column) => column.clone(),
        None => stem(path),
    };
    let conversion = Conversion {
        formats: &registry,
        to: to.clone(),
        sep: source.sep,
        stacked: args.stacked,
        column: &column,
        listener: Arc::new(ConvertProgress(Progress::bytes("converting", 0))),
    };
    let done = conversion.run(&source.root, builder, args.leave_out);
    drop(conversion);
    let done = done.map_err(|e| {
        let shown = match e.kind {
            ErrorKind::Stale => path.display(),
            _ => args.new.display(),
        };
        CliError::object(format!("{shown}: {e}"))
    })?;
    let written = done.without.is_empty() || args.leave_out;
    if written {
        place.finish().map_err(|e| failed(&e))?;
    }
    tell(args, &done, to.name(), &shown, written)?;
    match written {
        true => Ok(()),
        false => Err(CliError::object(format!(
            "{}: not written: {} objects have no counterpart; --leave-out does without them",
            args.new.display(),
            done.without.len()
        ))),
    }
}

/// Returns whether a store is one file of the kind that is wanted: it is copied with all that it holds.
fn is_one_file(source: &Source, to: &dyn Format, path: &Path) -> bool {
    let root = &*source.root;
    let is_same = root.is_store() && root.format().is_ok_and(|name| name == to.name());
    is_same && to.files(root, path).is_ok_and(|files| files.len() == 1)
}

/// Prints what was copied.
fn tell_copied(args: &Args, kind: &str, copied: &Exported) -> Result<(), CliError> {
    if !args.json {
        return output::print(copied.line.as_bytes());
    }
    let remark = |line: &String| {
        let (object, what) = line.split_once(": ").unwrap_or(("", line));
        Remark {
            object: object.to_owned(),
            what: what.to_owned(),
        }
    };
    let left_out: Vec<Remark> = copied.left_out.iter().map(remark).collect();
    output::print_json(&Report {
        destination: args.new.to_string_lossy().into_owned(),
        kind,
        written: true,
        objects: None,
        bytes: copied.bytes,
        changed: &[],
        without_counterpart: &left_out,
    })
}

/// Prints what became of the objects.
fn tell(
    args: &Args,
    done: &Converted,
    kind: &str,
    shown: &str,
    written: bool,
) -> Result<(), CliError> {
    if args.json {
        return output::print_json(&Report {
            destination: args.new.to_string_lossy().into_owned(),
            kind,
            written,
            objects: Some(done.objects),
            bytes: done.bytes,
            changed: &done.changed,
            without_counterpart: &done.without,
        });
    }
    if !written {
        return Ok(());
    }
    let mut text = String::new();
    for Remark { object, what } in &done.changed {
        text += &format!(
            "{}: {}\n",
            printable::name(object.as_bytes()),
            printable::line(what)
        );
    }
    text += &format!(
        "{shown}: {kind}, {} objects, {}\n",
        done.objects,
        figures::bytes(done.bytes)
    );
    output::print(text.as_bytes())
}

/// Returns the format of the new store.
fn destination(args: &Args) -> Result<Arc<dyn Format>, CliError> {
    let all = formats::destinations();
    let names: Vec<&str> = all.iter().map(|format| format.name()).collect();
    let names = names.join(", ");
    let name = args.new.to_string_lossy();
    let find = |name: &str| all.iter().find(|format| format.name() == name).cloned();
    if let Some(kind) = &args.to {
        return find(kind).ok_or_else(|| {
            CliError::usage(format!("{kind}: no kind of store; there are {names}"))
        });
    }
    let by_ending = all.iter().find(|format| {
        let mut endings = format.endings().iter();
        endings.any(|ending| name.ends_with(ending))
    });
    match by_ending {
        Some(format) => Ok(format.clone()),
        None if args.new.extension().is_none() || name.ends_with('/') => {
            find(npy::NAME).ok_or_else(|| CliError::usage(format!("--to: {names}")))
        }
        None => Err(CliError::usage(format!(
            "{name}: its name does not tell what it is to be: --to is one of {names}"
        ))),
    }
}

/// Opens a store, or a directory of arrays.
fn open(source: &StoreArgs) -> Result<Source, CliError> {
    let path = &*source.given();
    let registry = formats::registry();
    let is_store = registry.iter().any(|format| format.is_store(path));
    if path.is_dir() && !is_store && npy::holds_arrays(path) {
        let _progress = Progress::waiting("opening the directory");
        return Ok(Source {
            root: npy::open(path).map_err(|e| CliError::store(e.message))?,
            sep: b'#',
            _fs: None,
        });
    }
    let fs = source.open()?;
    let root = fs.root().clone();
    if path.is_dir() && !is_store {
        return Err(CliError::store(format!(
            "{}: a directory of stores: name one of them",
            path.display()
        )));
    }
    Ok(Source {
        root,
        sep: fs.sep(),
        _fs: Some(fs),
    })
}

/// Returns whether what is to be made at `new` would lie in a directory.
fn lies_in(new: &Path, dir: &Path) -> bool {
    let parent = match new.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match (parent.canonicalize(), dir.canonicalize()) {
        (Ok(parent), Ok(dir)) => parent.starts_with(dir),
        // What is not there is told by those who need it.
        _ => false,
    }
}

/// Returns the name of a path without its ending.
fn stem(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let stem = path.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

/// The place where a store is built: nothing is left of it if the store does not become complete.
struct Place<'a> {
    workplace: Workplace,
    built: PathBuf,
    scratch: PathBuf,
    parent: PathBuf,
    to: &'a Path,
}

impl<'a> Place<'a> {
    fn new(to: &'a Path) -> Result<Self, Error> {
        let Some(name) = to.file_name() else {
            return Err(Error::new(ErrorKind::Os(libc::EINVAL), "it has no name"));
        };
        let parent = match to.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let about = |e: std::io::Error| Error::from(e).about(parent.display());
        let workplace = Workplace::new_in(&parent).map_err(about)?;
        // The name may say something about the store, so it has it from the beginning.
        let above = workplace.path().join("new");
        let scratch = workplace.path().join("scratch");
        std::fs::create_dir(&above).map_err(about)?;
        std::fs::create_dir(&scratch).map_err(about)?;
        Ok(Self {
            built: above.join(name),
            scratch,
            workplace,
            parent,
            to,
        })
    }

    /// Gives the store its name.
    fn finish(self) -> Result<(), Error> {
        self.workplace.name(&self.built, self.to)?;
        File::open(&self.parent)?.sync_all()?;
        Ok(())
    }
}
