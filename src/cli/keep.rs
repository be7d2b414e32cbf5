//! `npyfs keep`: makes copies of arrays beforehand, which mounts with `-o keep=SIZE` serve.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use serde::Serialize;

use crate::cli::output::print_json;
use crate::cli::place::places_in_stores;
use crate::cli::progress::Progress;
use crate::cli::store::StoreArgs;
use crate::cli::{CliError, figures, say};
use crate::mount::fs::Fs;
use npyfs_base::error::Error;
use npyfs_base::printable;
use npyfs_core::tree::{Directory, Node, VirtualFile};
use npyfs_io::content::Content;
use npyfs_io::kept::{About, KeptDir, Making, NotKept, fill, kept_path};
use npyfs_io::provenance::Provenance;

/// Make copies of arrays, decoded and as files, that mounts with -o keep=SIZE serve: at the speed of a file.
///
/// They lie in ~/.cache/npyfs/kept, or where -o cache_dir= says. With -o keep=SIZE, all copies take no more than that,
/// and those that were used least go first. A copy belongs to the version of the store that it was made of.
///
/// In the place of STORE and PATH also something in a mount that is not written, STORE:/PATH or STORE/PATH. JSON is
/// {"before": number of arrays that were kept already, "bytes", "failed", "kept"}.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,

    /// Files, as a mount would name them, or directories: all files below, of / all; * and ? are wildcards
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// The pause before another look at a file that changed just now, and the number of looks.
const SETTLING: (Duration, u32) = (Duration::from_millis(500), 10);

/// The pause before another look at a copy that another process has begun, and the number of looks: a mount gives a
/// copy up after a minute without readers.
const BEGUN: (Duration, u32) = (Duration::from_millis(500), 240);

/// A file that is to be kept.
struct WantedFile {
    store: Arc<str>,
    path: String,
    file: Arc<dyn VirtualFile>,
}

/// The outcome of keeping a file.
enum Outcome {
    Kept(u64),
    Before,
    Unknown,
}

/// The result. The fields of the JSON stand in the order of their names.
#[derive(Default, Serialize)]
struct KeepReport {
    before: u64,
    bytes: u64,
    failed: u64,
    kept: u64,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    let options = args.store.parsed()?.fs;
    let places = places_in_stores(&args.store, &args.paths)?;
    if args.paths.is_empty() && places.iter().any(|place| place.as_store().is_some()) {
        return Err(CliError::usage(
            "what of the store is to be kept? / behind it is all that it has",
        ));
    }
    let dir = kept_path(&options.remote).ok_or_else(|| {
        CliError::usage("there is no home directory: name one with -o cache_dir=")
    })?;
    let limit = options.keep.filter(|&bytes| bytes > 0).unwrap_or(u64::MAX);
    let refused = |e: &dyn std::fmt::Display| CliError::mount(format!("{}: {e}", dir.display()));
    let dir = Arc::new(KeptDir::open(&dir, limit).map_err(|e| refused(&e))?);
    let mut wanted = Vec::new();
    for place in &places {
        let store = place.fs().map_or(Path::new(""), Fs::store_path);
        let store: Arc<str> = store.to_string_lossy().into();
        let path = place.path.as_os_str().as_bytes();
        match place.node(true)? {
            Node::File(file) => wanted.push(WantedFile {
                store,
                path: shown(path),
                file,
            }),
            Node::Directory(below) => {
                collect(&below, &store, path, &mut wanted).map_err(|e| place.failed(&e))?;
            }
            Node::Symlink(_) => {}
        }
    }
    let total = wanted.iter().map(|one| one.file.size().unwrap_or(0)).sum();
    let progress = Progress::bytes("keeping", total);
    let mut report = KeepReport::default();
    for one in &wanted {
        let end = progress.position() + one.file.size().unwrap_or(0);
        let failure = match keep(&dir, one, &progress) {
            Ok(Outcome::Kept(size)) => {
                report.kept += 1;
                report.bytes = report.bytes.saturating_add(size);
                None
            }
            Ok(Outcome::Before) => {
                report.before += 1;
                None
            }
            Ok(Outcome::Unknown) => Some("which files its bytes come from is not known".to_owned()),
            Err(why) => Some(why),
        };
        if let Some(why) = failure {
            report.failed += 1;
            say(&format!("{}: not kept: {why}", printable::line(&one.path)));
        }
        progress.set(end);
    }
    drop(progress);
    let KeepReport {
        before,
        bytes,
        failed,
        kept,
    } = report;
    if args.json {
        print_json(&report)?;
    } else {
        let arrays = figures::count(kept, "array");
        let mut text = format!("kept {arrays}, {}", figures::bytes(bytes));
        if before > 0 {
            text += &format!("; {before} were kept before");
        }
        say(&text);
    }
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
fn collect(
    dir: &Arc<dyn Directory>,
    store: &Arc<str>,
    path: &[u8],
    wanted: &mut Vec<WantedFile>,
) -> Result<(), Error> {
    let listing = dir.list()?;
    for (name, node) in listing.iter() {
        let below =
            Path::new(std::ffi::OsStr::from_bytes(path)).join(std::ffi::OsStr::from_bytes(&name));
        match &*node {
            Node::File(file) => wanted.push(WantedFile {
                store: store.clone(),
                path: shown(below.as_os_str().as_bytes()),
                file: file.clone(),
            }),
            Node::Directory(dir) => collect(dir, store, below.as_os_str().as_bytes(), wanted)?,
            Node::Symlink(_) => {}
        }
    }
    Ok(())
}

/// Opens a file, and returns where its bytes come from, if that is known.
fn open(file: &dyn VirtualFile) -> Result<(Arc<dyn Content>, Option<Provenance>), String> {
    let content = file.open().map_err(|e| e.message)?;
    let mut provenance = Provenance::new();
    let told = content.tell_provenance(&mut provenance);
    Ok((content, told.then_some(provenance)))
}

/// Begins a copy; `None` if there is one already. Waits for another process that has begun the copy.
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

fn keep(dir: &Arc<KeptDir>, wanted: &WantedFile, progress: &Progress) -> Result<Outcome, String> {
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
        store: wanted.store.to_string(),
        path: wanted.path.clone(),
    };
    making.finish(about).map_err(|e| e.to_string())?;
    Ok(Outcome::Kept(len))
}
