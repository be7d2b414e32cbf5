//! A store written as a Zarr store: the files of the view of Zarr, as a copy of a mounted view has them.
//!
//! What the view leaves out is found before anything is written. A chunk that was never written is no file here, either.

use std::ffi::OsStr;
use std::fs::{File, create_dir};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use super::{Args, ConvertProgress, ConvertReport, NewPlace, lies_in, open};
use crate::cli::output::Report;
use crate::cli::place::Place;
use crate::cli::progress::{Progress, end_cleanly};
use crate::cli::{CliError, figures, say};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::options::View;
use npyfs_base::printable;
use npyfs_core::convert::{Listener, Remark};
use npyfs_core::tree::{Directory, Node, VirtualFile};
use npyfs_io::content::read;

/// The number of bytes that are read at a time.
const STEP: usize = 1 << 20;

/// Writes a view of the source as a directory.
pub(super) fn write(args: &Args, view: View) -> std::result::Result<(), CliError> {
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
    if lies_in(&args.new, &source.path) {
        let inside = ErrorKind::Os(libc::EINVAL);
        let why = "it would lie in the directory that is converted";
        return Err(failed(&Error::new(inside, why)));
    }
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
fn left_out(dir: &Arc<dyn Directory>, path: &str, to: &mut Vec<Remark>) -> Result<()> {
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
    fn directory(&mut self, dir: &Arc<dyn Directory>, to: &Path) -> Result<()> {
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

    fn file(&mut self, file: &dyn VirtualFile, to: &Path) -> Result<()> {
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
