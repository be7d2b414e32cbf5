//! `npyfs convert`: writes a store as a new one of another kind.
//!
//! A new Zarr store has the files of the view of Zarr, as a copy of a mounted view has them. What the view leaves out
//! is found before anything is written. A chunk that was never written is no file here, either.

use std::ffi::OsStr;
use std::fs::{File, create_dir};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::cli::checkout::{self, Exported};
use crate::cli::output::Report;
use crate::cli::place::{Place, is_in_view, places_in_stores};
use crate::cli::progress::{Progress, end_cleanly, suspend};
use crate::cli::store::{self, StoreArgs};
use crate::cli::{CliError, figures, say};
use npyfs_base::error::{self, Error, ErrorKind};
use npyfs_base::options::View;
use npyfs_base::printable;
use npyfs_core::convert::{Conversion, Listener, Remark};
use npyfs_core::formats::{self, npy};
use npyfs_core::store::format::Format;
use npyfs_core::store::format::builder::{self, Construction};
use npyfs_core::store::new_store::NewStore;
use npyfs_core::tree::{Directory, Node, VirtualFile};
use npyfs_hdf5::program::program;
use npyfs_io::content::read;
use npyfs_io::workplace::Workplace;

/// Write a store as a new one of another kind: an HDF5 file, a Hangar repository, a Zarr store, or a directory of .npy
/// files.
///
/// The source is a store, or a directory in one, by any path, a mount, or a directory of .npy files. What has no
/// counterpart in the other kind is listed, and nothing is written without --leave-out. JSON is {"destination", "kind",
/// "written", "objects", "bytes", "changed", "without_counterpart"}; the last two are lists of {"object", "what"}.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The kind of the new store: plain, daf, arkouda, hangar, zarr, zarr3 or npy; by default its name tells
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

    /// The new store, whose path nothing has yet; .h5df: daf, .h5 and .hdf5: plain, .zarr: zarr, no ending: a directory
    /// of .npy files
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

/// The source of the conversion.
struct Source {
    root: Arc<dyn Directory>,
    sep: u8,
    /// The path as people are told it.
    path: PathBuf,
    /// Keeps the store open; `None` for a directory of arrays.
    place: Option<Place>,
}

/// The outcome of a conversion.
#[derive(Serialize)]
struct ConvertReport {
    destination: String,
    kind: &'static str,
    written: bool,
    /// `None`: all that the file has.
    objects: Option<u64>,
    bytes: u64,
    changed: Vec<Remark>,
    without_counterpart: Vec<Remark>,
    /// The line about the new store, for people.
    #[serde(skip)]
    line: String,
}

impl Report for ConvertReport {
    /// Empty if nothing was written: lines on standard error have given the reasons.
    fn text(&self) -> String {
        if !self.written {
            return String::new();
        }
        let mut text = String::new();
        for Remark { object, what } in &self.changed {
            let object = printable::name(object.as_bytes());
            text += &format!("{object}: {}\n", printable::line(what));
        }
        text + &self.line
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    store::refuse_to_write_at(&args.new)?;
    let view = view(args)?;
    let shown = printable::name(args.new.as_os_str().as_encoded_bytes());
    let failed = |e: &Error| CliError::store(format!("{}: {e}", args.new.display()));
    if args.new.symlink_metadata().is_ok() {
        let exists = ErrorKind::Os(libc::EEXIST);
        return Err(failed(&Error::new(exists, "it is there already")));
    }
    if let Some(view) = view {
        return write_zarr(args, view);
    }
    let to = destination(args)?;
    let author = args.name.clone().zip(args.email.clone());
    let has_author = to.making().is_some_and(|making| making.has_author());
    if has_author && author.is_none() {
        return Err(CliError::usage(
            "a new repository names an author: --name and --email",
        ));
    }
    let source = open(&args.source, false)?;
    let path = &*source.path;
    let shown_so = source.place.as_ref().and_then(Place::as_store).cloned();
    if let Some(shown_so) = &shown_so
        && let Some((store, checkout, dir)) = shown_so.whole()
        && is_one_file(&source, &*to, &store)
    {
        drop(source);
        let copied = checkout::copy(
            (&store, dir),
            shown_so.options(),
            checkout,
            &args.new,
            args.leave_out,
        )?;
        return copied_report(args, to.name(), copied).print(args.json);
    }
    check_outside(&args.new, path).map_err(|e| failed(&e))?;
    end_cleanly().map_err(|e| CliError::store(e.to_string()))?;
    let place = NewPlace::new(&args.new).map_err(|e| failed(&e))?;
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
    let builder = builder::build(&to, &construction).map_err(|e| failed(&e))?;
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
    let left_out = done.without.len();
    let report = ConvertReport {
        destination: args.new.to_string_lossy().into_owned(),
        kind: to.name(),
        written,
        objects: Some(done.objects),
        bytes: done.bytes,
        changed: done.changed,
        without_counterpart: done.without,
        line: format!(
            "{shown}: {}, {} objects, {}\n",
            to.name(),
            done.objects,
            figures::bytes(done.bytes)
        ),
    };
    report.print(args.json)?;
    match written {
        true => Ok(()),
        false => Err(CliError::object(format!(
            "{}: not written: {} objects have no counterpart; --leave-out does without them",
            args.new.display(),
            left_out
        ))),
    }
}

/// Returns whether a store is one file of the wanted kind, which is copied as a whole.
fn is_one_file(source: &Source, to: &dyn Format, path: &Path) -> bool {
    let root = &*source.root;
    let is_same = root.is_store() && root.format().is_ok_and(|name| name == to.name());
    is_same && to.files(root, path).is_ok_and(|files| files.len() == 1)
}

/// Returns the report on a store that was copied as a whole.
fn copied_report(args: &Args, kind: &'static str, copied: Exported) -> ConvertReport {
    let remark = |line: &String| {
        let (object, what) = line.split_once(": ").unwrap_or(("", line));
        Remark {
            object: object.to_owned(),
            what: what.to_owned(),
        }
    };
    ConvertReport {
        destination: args.new.to_string_lossy().into_owned(),
        kind,
        written: true,
        objects: None,
        bytes: copied.bytes,
        changed: Vec::new(),
        without_counterpart: copied.left_out.iter().map(remark).collect(),
        line: copied.line,
    }
}

/// Returns the view that the new store is to be as, if it is one of Zarr.
fn view(args: &Args) -> Result<Option<View>, CliError> {
    let is_called_so = args.new.extension().is_some_and(|ending| ending == "zarr");
    let name = match &args.to {
        Some(kind) => kind.as_str(),
        None if is_called_so => View::Zarr.name(),
        None => return Ok(None),
    };
    let view = [View::Zarr, View::Zarr3]
        .into_iter()
        .find(|view| view.name() == name);
    let for_others = args.stacked || args.column.is_some() || args.name.is_some();
    match view.is_some() && for_others {
        true => Err(CliError::usage(
            "--stacked, --column, --name and --email are not for a Zarr store",
        )),
        false => Ok(view),
    }
}

/// Returns the format of the new store.
fn destination(args: &Args) -> Result<Arc<dyn Format>, CliError> {
    let all = formats::destinations();
    let names: Vec<&str> = all.iter().map(|format| format.name()).collect();
    let names = format!("{}, zarr, zarr3", names.join(", "));
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

/// Opens a store or something in it, or a directory of arrays; `takes_many`: also a directory of stores.
fn open(source: &StoreArgs, takes_many: bool) -> Result<Source, CliError> {
    let path = source.first();
    let registry = formats::registry();
    let holds_arrays =
        |path: &Path| path.is_dir() && !registry.is_store(path) && npy::holds_arrays(path);
    if !is_in_view(path) && holds_arrays(path) {
        let _progress = Progress::waiting("opening the directory");
        return Ok(Source {
            root: npy::open(path).map_err(|e| CliError::store(e.message))?,
            sep: b'#',
            place: None,
            path: path.to_owned(),
        });
    }
    let mut places = places_in_stores(source, &[])?;
    let (Some(place), true) = (places.pop(), places.is_empty()) else {
        return Err(CliError::usage("convert takes one store"));
    };
    let Some(fs) = place.fs() else {
        return Err(place.failed(&"holds no arrays of which a store can be made"));
    };
    let Node::Directory(root) = place.node(true)? else {
        return Err(place.failed(&"is a file: name a directory in a store"));
    };
    let store = fs.store_path();
    let is_whole = place.as_store().is_some();
    if is_whole && !takes_many && store.is_dir() && !registry.is_store(store) {
        return Err(CliError::store(format!(
            "{}: a directory of stores: name one of them",
            place.named().display()
        )));
    }
    Ok(Source {
        root,
        sep: fs.sep(),
        path: place.named().to_owned(),
        place: Some(place),
    })
}

/// Refuses a path `new` that lies in the directory that is converted.
fn check_outside(new: &Path, dir: &Path) -> error::Result<()> {
    let parent = match new.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match (parent.canonicalize(), dir.canonicalize()) {
        (Ok(parent), Ok(dir)) if parent.starts_with(&dir) => Err(Error::new(
            ErrorKind::Os(libc::EINVAL),
            "it would lie in the directory that is converted",
        )),
        // A missing path is an error of the step that needs it.
        _ => Ok(()),
    }
}

/// Returns the name of a path without its ending.
fn stem(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let stem = path.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

/// The place where a store is built. It is removed, unless the store becomes complete.
struct NewPlace<'a> {
    workplace: Workplace,
    built: PathBuf,
    scratch: PathBuf,
    parent: PathBuf,
    to: &'a Path,
}

impl<'a> NewPlace<'a> {
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
        // A format may derive something from the name, so the store has its name from the beginning.
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

/// The number of bytes that are read at a time.
const STEP: usize = 1 << 20;

/// Writes a view of the source as a directory.
fn write_zarr(args: &Args, view: View) -> Result<(), CliError> {
    let new = args.new.display();
    let failed = |e: &Error| CliError::store(format!("{new}: {e}"));
    let source = open(&args.source, true)?;
    let is_root = |place: &&Place| place.path.as_os_str().is_empty();
    let fs = source.place.as_ref().filter(is_root);
    let Some(fs) = fs.and_then(|place| place.fs()) else {
        return Err(CliError::usage(format!(
            "{}: a Zarr store is made of a store, or of STORE:/PATH; convert it to HDF5 first",
            source.path.display()
        )));
    };
    check_outside(&args.new, &source.path).map_err(|e| failed(&e))?;
    end_cleanly().map_err(|e| CliError::store(e.to_string()))?;
    let root = fs.view(view);
    let refused = |e: Error| CliError::object(format!("{}: {e}", source.path.display()));
    let mut without = Vec::new();
    left_out(&root, "", &mut without).map_err(refused)?;
    let written = without.is_empty() || args.leave_out;
    let mut copy = Copy {
        progress: ConvertProgress(Progress::bytes("converting", 0)),
        files: 0,
        bytes: 0,
    };
    if written {
        let place = NewPlace::new(&args.new).map_err(|e| failed(&e))?;
        copy.directory(&root, &place.built).map_err(refused)?;
        let synced = File::open(&place.built).and_then(|dir| Ok(rustix::fs::syncfs(&dir)?));
        synced.map_err(|e| failed(&e.into()))?;
        place.finish().map_err(|e| failed(&e))?;
    }
    let Copy {
        progress,
        files,
        bytes,
    } = copy;
    drop(progress);
    let count = without.len();
    let shown = printable::name(args.new.as_os_str().as_encoded_bytes());
    let report = ConvertReport {
        destination: args.new.to_string_lossy().into_owned(),
        kind: view.name(),
        written,
        objects: None,
        bytes,
        changed: Vec::new(),
        without_counterpart: without,
        line: format!(
            "{shown}: {}, {}, {}\n",
            view.name(),
            figures::count(files, "file"),
            figures::bytes(bytes)
        ),
    };
    for Remark { object, what } in &report.without_counterpart {
        say(&format!("{object}: {what}"));
    }
    report.print(args.json)?;
    match written {
        true => Ok(()),
        false => Err(CliError::object(format!(
            "{new}: not written: {count} objects have no counterpart; --leave-out does without them"
        ))),
    }
}

/// Collects what is left out of a view.
fn left_out(dir: &Arc<dyn Directory>, path: &str, to: &mut Vec<Remark>) -> error::Result<()> {
    let listing = dir.list()?;
    for (name, why) in &listing.left_out {
        to.push(Remark {
            object: format!("{path}{}", String::from_utf8_lossy(name)),
            what: why.clone(),
        });
    }
    // The chunks of an array are no objects.
    for (name, node) in listing.objects() {
        if let Node::Directory(below) = &*node {
            let path = format!("{path}{}/", String::from_utf8_lossy(&name));
            left_out(below, &path, to)?;
        }
    }
    Ok(())
}

/// A copy in progress.
struct Copy {
    progress: ConvertProgress,
    files: u64,
    bytes: u64,
}

impl Copy {
    fn directory(&mut self, dir: &Arc<dyn Directory>, to: &Path) -> error::Result<()> {
        create_dir(to)?;
        for (name, node) in dir.list()?.iter() {
            let to = to.join(OsStr::from_bytes(&name));
            let copied = match &*node {
                Node::Directory(below) => self.directory(below, &to),
                Node::File(file) => self.file(&**file, &to),
                Node::Symlink(link) => {
                    let target = OsStr::from_bytes(&link.target);
                    std::os::unix::fs::symlink(target, &to).map_err(Error::from)
                }
            };
            copied.map_err(|e| e.about(String::from_utf8_lossy(&name)))?;
        }
        Ok(())
    }

    fn file(&mut self, file: &dyn VirtualFile, to: &Path) -> error::Result<()> {
        let content = file.open()?;
        let len = content.len();
        self.progress.found(len);
        let mut out = File::create_new(to)?;
        let pool = Arc::default();
        let mut at = 0;
        while at < len {
            let data = read(&*content, at, STEP, &pool)?;
            let bytes = data.as_ref();
            out.write_all(bytes)?;
            at += bytes.len() as u64;
            self.progress.done(bytes.len() as u64);
        }
        self.files += 1;
        self.bytes += len;
        Ok(())
    }
}
