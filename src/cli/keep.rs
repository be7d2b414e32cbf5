//! `npyfs keep`: makes copies of arrays beforehand, which mounts with `-o keep=SIZE` serve.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use crate::cli::progress::Progress;
use crate::cli::store::{StoreArgs, find};
use crate::cli::{CliError, figures, say};
use crate::error::Error;
use crate::io::content::Content;
use crate::io::kept::{About, KeptDir, Making, NotKept, fill, kept_path};
use crate::io::provenance::Provenance;
use crate::printable;
use crate::tree::{Directory, Node, VirtualFile};

/// Make copies of arrays, decoded and as files, that mounts with -o keep=SIZE serve: at the speed of a file.
///
/// They lie in ~/.cache/npyfs/kept, or where -o cache_dir= says. With -o keep=SIZE, all copies take no more than that, and those
/// that were used least go first. A copy belongs to the version of the store that it was made of.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,

    /// The files, as a mount would name them, or directories: all files below
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

/// The time after which files are looked at again that changed just now, and how often.
const SETTLING: (Duration, u32) = (Duration::from_millis(500), 10);

/// The time after which a copy is asked for again that somebody else has begun, and how often: a mount that nobody reads it from
/// any more gives it up after a minute.
const BEGUN: (Duration, u32) = (Duration::from_millis(500), 240);

/// A file that is to be kept.
struct Wanted {
    path: String,
    file: Arc<dyn VirtualFile>,
}

/// What became of a file.
enum Outcome {
    Kept(u64),
    Before,
    Unknown,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    let options = args.store.parsed()?.fs;
    let fs = args.store.open()?;
    let place = kept_path(&options.remote).ok_or_else(|| {
        CliError::usage("there is no home directory: name one with -o cache_dir=")
    })?;
    let limit = options.keep.filter(|&bytes| bytes > 0).unwrap_or(u64::MAX);
    let refused = |e: &dyn std::fmt::Display| CliError::mount(format!("{}: {e}", place.display()));
    let dir = Arc::new(KeptDir::open(&place, limit).map_err(|e| refused(&e))?);
    let mut wanted = Vec::new();
    for path in &args.paths {
        match find(&fs, path, true)? {
            Node::File(file) => wanted.push(Wanted {
                path: shown(path.as_os_str().as_bytes()),
                file,
            }),
            Node::Directory(below) => {
                let above = path.as_os_str().as_bytes();
                collect(&below, above, &mut wanted)
                    .map_err(|e| CliError::object(format!("{}: {e}", path.display())))?;
            }
            Node::Symlink(_) => {}
        }
    }
    let total = wanted.iter().map(|one| one.file.size().unwrap_or(0)).sum();
    let progress = Progress::bytes("keeping", total);
    let store = args.store.path()?.to_string_lossy().into_owned();
    let (mut count, mut bytes, mut before, mut failed) = (0_u64, 0_u64, 0_u64, 0_u64);
    for one in &wanted {
        let end = progress.position() + one.file.size().unwrap_or(0);
        match keep(&dir, &store, one, &progress) {
            Ok(Outcome::Kept(size)) => {
                count += 1;
                bytes = bytes.saturating_add(size);
            }
            Ok(Outcome::Before) => before += 1,
            Ok(Outcome::Unknown) => {
                failed += 1;
                say(&format!(
                    "{}: not kept: which files its bytes come from is not known",
                    printable::line(&one.path)
                ));
            }
            Err(why) => {
                failed += 1;
                say(&format!("{}: not kept: {why}", printable::line(&one.path)));
            }
        }
        progress.set(end);
    }
    drop(progress);
    let mut text = format!(
        "kept {}, {}",
        figures::count(count, "array"),
        figures::bytes(bytes)
    );
    if before > 0 {
        text += &format!("; {before} were kept before");
    }
    say(&text);
    match failed {
        0 => Ok(()),
        _ => Err(CliError::object(format!(
            "{} not kept",
            figures::count(failed, "array")
        ))),
    }
}

/// Returns a path in the store as people see it: without a slash in front.
fn shown(path: &[u8]) -> String {
    let path = String::from_utf8_lossy(path);
    path.trim_start_matches('/').to_owned()
}

/// Collects all files below a directory.
fn collect(dir: &Arc<dyn Directory>, path: &[u8], wanted: &mut Vec<Wanted>) -> Result<(), Error> {
    let listing = dir.list()?;
    for (name, node) in listing.iter() {
        let below =
            Path::new(std::ffi::OsStr::from_bytes(path)).join(std::ffi::OsStr::from_bytes(&name));
        match &*node {
            Node::File(file) => wanted.push(Wanted {
                path: shown(below.as_os_str().as_bytes()),
                file: file.clone(),
            }),
            Node::Directory(dir) => collect(dir, below.as_os_str().as_bytes(), wanted)?,
            Node::Symlink(_) => {}
        }
    }
    Ok(())
}

/// Opens a file, and tells what its bytes come from.
fn open(file: &dyn VirtualFile) -> Result<(Arc<dyn Content>, Option<Provenance>), String> {
    let content = file.open().map_err(|e| e.message)?;
    let mut provenance = Provenance::new();
    let told = content.tell_provenance(&mut provenance);
    Ok((content, told.then_some(provenance)))
}

/// Begins a copy; `None` if there is one. Waits for somebody else who has begun it.
fn begin(dir: &Arc<KeptDir>, key: &str, len: u64) -> Result<Option<Making>, String> {
    for _ in 0..BEGUN.1 {
        match dir.begin(key, len) {
            Ok(making) => return Ok(Some(making)),
            Err(NotKept::Taken) if dir.has(key) => return Ok(None),
            Err(NotKept::Taken) => sleep(BEGUN.0),
            Err(why) => return Err(why.to_string()),
        }
    }
    Err(NotKept::Taken.to_string())
}

fn keep(
    dir: &Arc<KeptDir>,
    store: &str,
    wanted: &Wanted,
    progress: &Progress,
) -> Result<Outcome, String> {
    let file = &*wanted.file;
    let (mut content, mut from) = open(file)?;
    for _ in 0..SETTLING.1 {
        if from.as_ref().is_none_or(Provenance::is_settled) {
            break;
        }
        sleep(SETTLING.0);
        (content, from) = open(file)?;
    }
    let Some(from) = from else {
        return Ok(Outcome::Unknown);
    };
    let changed = || "the store changes meanwhile".to_owned();
    if !from.is_settled() {
        return Err(changed());
    }
    let (key, len) = (from.key(), content.len());
    let Some(making) = begin(dir, &key, len)? else {
        return Ok(Outcome::Before);
    };
    let all = |bytes| {
        progress.advance(bytes);
        true
    };
    fill(&making, &*content, all).map_err(|e| e.message)?;
    let (_, now) = open(file)?;
    if !file.is_current() || now.is_none_or(|now| now.key() != key) {
        return Err(changed());
    }
    let about = About {
        store: store.to_owned(),
        path: wanted.path.clone(),
    };
    making.finish(about).map_err(|e| e.to_string())?;
    Ok(Outcome::Kept(len))
}
