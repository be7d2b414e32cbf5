//! `npyfs cache`: the blocks and copies of remote stores that are kept on disk.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;

use crate::cli::output::{Report, columns, print};
use crate::cli::{CliError, figures};
use npyfs_base::options::RemoteSettings;
use npyfs_base::printable;
use npyfs_io::kept::{KeptDir, ListedCopy as Copy, kept_path};
use npyfs_io::remote::{Address, CacheDir, KeptVersion, cache_path};

/// Show what is kept on disk of stores that lie elsewhere, or remove it.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    Ls(LsArgs),
    Clear(ClearArgs),
}

/// List the versions of objects of which something is kept, the one that was used last in front.
///
/// JSON is a list of {"url", "version", "size", "kept", "used", "in_use"}: bytes of the object, bytes on disk, the time
/// of the last use, and whether a mount has it open. Addresses are shown without their query.
#[derive(clap::Args, Debug)]
struct LsArgs {
    /// JSON
    #[arg(long)]
    json: bool,

    /// The copies of arrays that are kept, instead: {"store", "path", "kept", "used", "in_use"}
    #[arg(long)]
    kept: bool,

    #[command(flatten)]
    place: PlaceArgs,
}

/// Remove what is kept, of one object or of all. What a mount has open stays, and is named.
#[derive(clap::Args, Debug)]
struct ClearArgs {
    #[command(flatten)]
    place: PlaceArgs,

    /// The copies of arrays that are kept, instead
    #[arg(long, conflicts_with = "url")]
    kept: bool,

    /// The address of an object; by default all
    url: Option<PathBuf>,
}

/// The directory.
#[derive(clap::Args, Debug)]
struct PlaceArgs {
    /// The directory that `-o cache_dir=` names; by default ~/.cache/npyfs
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// A version of an object, as it is listed.
#[derive(Serialize)]
struct ListedVersion {
    url: Option<String>,
    version: Option<String>,
    size: Option<u64>,
    kept: u64,
    used: String,
    in_use: bool,
}

#[derive(Serialize)]
#[serde(transparent)]
struct VersionList(Vec<ListedVersion>);

/// A copy of an array, as it is listed.
#[derive(Serialize)]
struct ListedCopy {
    store: Option<String>,
    path: Option<String>,
    kept: u64,
    used: String,
    in_use: bool,
}

#[derive(Serialize)]
#[serde(transparent)]
struct CopyList(Vec<ListedCopy>);

impl Report for VersionList {
    fn text(&self) -> String {
        let row = |listed: &ListedVersion| {
            let size = listed.size;
            [
                figures::rounded(listed.kept),
                size.map_or_else(|| "?".to_owned(), figures::rounded),
                listed.used.clone(),
                in_use(listed.in_use),
                printable::line(listed.url.as_deref().unwrap_or("?")),
                printable::line(listed.version.as_deref().unwrap_or_default()),
            ]
        };
        let head = ["kept", "of", "used", "", "object", "version"];
        table(head, self.0.iter().map(row), 2)
    }
}

impl Report for CopyList {
    fn text(&self) -> String {
        let line = |text: &Option<String>| printable::line(text.as_deref().unwrap_or("?"));
        let row = |listed: &ListedCopy| {
            [
                figures::rounded(listed.kept),
                listed.used.clone(),
                in_use(listed.in_use),
                line(&listed.store),
                line(&listed.path),
            ]
        };
        let head = ["kept", "used", "", "store", "path"];
        table(head, self.0.iter().map(row), 1)
    }
}

fn in_use(is_in_use: bool) -> String {
    if is_in_use { "in use" } else { "" }.to_owned()
}

/// Returns rows below their heads, if there are any rows: the first `right` columns flush right.
fn table<const N: usize>(
    head: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
    right: usize,
) -> String {
    let mut all = vec![head.map(str::to_owned)];
    all.extend(rows);
    match all.len() {
        1 => String::new(),
        _ => columns(&all, 0..right),
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    match &args.command {
        Command::Ls(args) => ls(args),
        Command::Clear(args) => clear(args),
    }
}

fn failed(path: &Path, e: &io::Error) -> CliError {
    CliError::store(format!("{}: {e}", path.display()))
}

impl PlaceArgs {
    fn settings(&self) -> RemoteSettings {
        RemoteSettings {
            cache_dir: self.dir.clone(),
            ..RemoteSettings::default()
        }
    }

    /// Opens a directory; `None`: there is none.
    fn opened<T>(
        path: Option<PathBuf>,
        open: impl FnOnce(&Path) -> io::Result<T>,
    ) -> Result<Option<(PathBuf, T)>, CliError> {
        let none = || CliError::usage("there is no home directory: name the directory with --dir");
        let path = path.ok_or_else(none)?;
        match open(&path) {
            Ok(dir) => Ok(Some((path, dir))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(failed(&path, &e)),
        }
    }

    /// Opens the directory of objects; `None`: there is none.
    fn open(&self) -> Result<Option<(PathBuf, CacheDir)>, CliError> {
        Self::opened(cache_path(&self.settings()), CacheDir::existing)
    }

    /// Opens the directory of copies; `None`: there is none.
    fn copies(&self) -> Result<Option<(PathBuf, KeptDir)>, CliError> {
        Self::opened(kept_path(&self.settings()), KeptDir::existing)
    }
}

/// Returns the versions in a directory, the one that was used last in front.
fn versions(path: &Path, dir: &CacheDir) -> Result<Vec<KeptVersion>, CliError> {
    let mut versions = dir.list().map_err(|e| failed(path, &e))?;
    versions.sort_by_key(|version| std::cmp::Reverse(version.used));
    Ok(versions)
}

fn time(used: SystemTime) -> String {
    jiff::Timestamp::try_from(used).map_or_else(
        |_| String::new(),
        |time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    )
}

/// Returns the address of a version, or `?`.
fn url(version: &KeptVersion) -> &str {
    let about = version.about.as_ref();
    about.and_then(|about| about["url"].as_str()).unwrap_or("?")
}

fn ls(args: &LsArgs) -> Result<(), CliError> {
    if args.kept {
        return list_copies(args);
    }
    let versions = match args.place.open()? {
        Some((path, dir)) => versions(&path, &dir)?,
        None => Vec::new(),
    };
    let listed = |version: &KeptVersion| {
        let about = |key: &str| version.about.as_ref().map(|about| &about[key]);
        let text = |key: &str| about(key)?.as_str().map(str::to_owned);
        ListedVersion {
            url: text("url"),
            version: text("version"),
            size: about("size").and_then(|size| size.as_u64()),
            kept: version.room,
            used: time(version.used),
            in_use: version.in_use,
        }
    };
    VersionList(versions.iter().map(listed).collect()).print(args.json)
}

/// Lists copies of arrays, the one that was used last in front.
fn list_copies(args: &LsArgs) -> Result<(), CliError> {
    let mut copies: Vec<Copy> = match args.place.copies()? {
        Some((path, dir)) => dir.list().map_err(|e| failed(&path, &e))?,
        None => Vec::new(),
    };
    copies.sort_by_key(|copy| std::cmp::Reverse(copy.used));
    let listed = |copy: Copy| {
        let (store, path) = copy.about.map(|about| (about.store, about.path)).unzip();
        ListedCopy {
            store,
            path,
            kept: copy.room,
            used: time(copy.used),
            in_use: copy.in_use,
        }
    };
    CopyList(copies.into_iter().map(listed).collect()).print(args.json)
}

/// Removes copies of arrays.
fn clear_copies(args: &ClearArgs) -> Result<(), CliError> {
    let Some((path, dir)) = args.place.copies()? else {
        return print(b"nothing is kept\n");
    };
    let (mut count, mut bytes, mut left) = (0_u64, 0_u64, 0_u64);
    for copy in dir.list().map_err(|e| failed(&path, &e))? {
        if dir.remove(&copy).map_err(|e| failed(&path, &e))? {
            count += 1;
            bytes = bytes.saturating_add(copy.room);
        } else {
            left += 1;
        }
    }
    let removed = figures::count(count, "array");
    let mut text = format!("removed: {removed}, {}\n", figures::bytes(bytes));
    if left > 0 {
        text += &format!("left: {}, in use\n", figures::count(left, "array"));
    }
    print(text.as_bytes())
}

fn clear(args: &ClearArgs) -> Result<(), CliError> {
    if args.kept {
        return clear_copies(args);
    }
    let wanted = match &args.url {
        None => None,
        Some(url) => match Address::parse(url) {
            Some(Ok(address)) => Some(address.to_string()),
            Some(Err(why)) => return Err(CliError::usage(why)),
            None => {
                let why = format!("{}: not the address of an object", url.display());
                return Err(CliError::usage(why));
            }
        },
    };
    let Some((path, dir)) = args.place.open()? else {
        return print(b"nothing is kept\n");
    };
    let mut versions = versions(&path, &dir)?;
    versions.retain(|version| {
        wanted
            .as_deref()
            .is_none_or(|wanted| wanted == url(version))
    });
    let (mut count, mut bytes) = (0_u64, 0_u64);
    let mut text = String::new();
    for version in &versions {
        if dir.remove(version).map_err(|e| failed(&path, &e))? {
            count += 1;
            bytes = bytes.saturating_add(version.room);
        } else {
            text += &format!("left: {}, in use\n", printable::line(url(version)));
        }
    }
    let removed = figures::count(count, "version");
    text += &format!("removed: {removed}, {}\n", figures::bytes(bytes));
    print(text.as_bytes())
}
