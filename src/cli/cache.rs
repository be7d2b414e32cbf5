//! `npyfs cache`: what is kept on disk of stores in buckets and on web servers.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;

use crate::cli::output::{print, print_json};
use crate::cli::{CliError, figures};
use crate::io::kept::{KeptDir, Listed as Copy, kept_path};
use crate::io::remote::{Address, CacheDir, KeptVersion, cache_path};
use crate::options::RemoteSettings;
use crate::printable;

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
/// JSON is a list of {"url", "version", "size", "kept", "used", "in_use"}: bytes of the object, bytes on disk, the time of the
/// last use, and whether a mount has it open. Addresses are shown without their query.
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

/// A version, in JSON.
#[derive(Serialize)]
struct Listed<'a> {
    url: Option<&'a str>,
    version: Option<&'a str>,
    size: Option<u64>,
    kept: u64,
    used: String,
    in_use: bool,
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
    let mut versions = dir.versions().map_err(|e| failed(path, &e))?;
    versions.sort_by_key(|version| std::cmp::Reverse(version.used));
    Ok(versions)
}

fn time(used: SystemTime) -> String {
    jiff::Timestamp::try_from(used).map_or_else(
        |_| String::new(),
        |time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
    )
}

/// Returns the address of a version, or what stands for one that is not known.
fn url(version: &KeptVersion) -> &str {
    version.about["url"].as_str().unwrap_or("?")
}

fn ls(args: &LsArgs) -> Result<(), CliError> {
    if args.kept {
        return list_copies(args);
    }
    let versions = match args.place.open()? {
        Some((path, dir)) => versions(&path, &dir)?,
        None => Vec::new(),
    };
    if args.json {
        let list: Vec<_> = versions
            .iter()
            .map(|version| Listed {
                url: version.about["url"].as_str(),
                version: version.about["version"].as_str(),
                size: version.about["size"].as_u64(),
                kept: version.kept,
                used: time(version.used),
                in_use: version.in_use,
            })
            .collect();
        return print_json(&list);
    }
    let rows = versions.iter().map(|version| {
        let size = version.about["size"].as_u64();
        [
            figures::rounded(version.kept),
            size.map_or_else(|| "?".to_owned(), figures::rounded),
            time(version.used),
            if version.in_use { "in use" } else { "" }.to_owned(),
            printable::line(url(version)).to_string(),
            printable::line(version.about["version"].as_str().unwrap_or_default()).to_string(),
        ]
    });
    let head = ["kept", "of", "used", "", "object", "version"];
    print_table(head, rows.collect(), 2)
}

/// Prints rows below their heads, if there are any: the first `right` columns flush right.
fn print_table<const N: usize>(
    head: [&str; N],
    mut rows: Vec<[String; N]>,
    right: usize,
) -> Result<(), CliError> {
    if !rows.is_empty() {
        rows.insert(0, head.map(str::to_owned));
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..N).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, &width))| match column < right {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    print(text.as_bytes())
}

/// A copy, in JSON.
#[derive(Serialize)]
struct ListedCopy<'a> {
    store: Option<&'a str>,
    path: Option<&'a str>,
    kept: u64,
    used: String,
    in_use: bool,
}

/// Lists copies of arrays, the one that was used last in front.
fn list_copies(args: &LsArgs) -> Result<(), CliError> {
    let mut copies: Vec<Copy> = match args.place.copies()? {
        Some((path, dir)) => dir.list().map_err(|e| failed(&path, &e))?,
        None => Vec::new(),
    };
    copies.sort_by_key(|copy| std::cmp::Reverse(copy.used));
    if args.json {
        let list: Vec<_> = copies
            .iter()
            .map(|copy| ListedCopy {
                store: copy.about.as_ref().map(|about| about.store.as_str()),
                path: copy.about.as_ref().map(|about| about.path.as_str()),
                kept: copy.room,
                used: time(copy.used),
                in_use: copy.in_use,
            })
            .collect();
        return print_json(&list);
    }
    let rows = copies.iter().map(|copy| {
        let about = copy.about.as_ref();
        let line = |text: Option<&str>| printable::line(text.unwrap_or("?")).to_string();
        [
            figures::rounded(copy.room),
            time(copy.used),
            if copy.in_use { "in use" } else { "" }.to_owned(),
            line(about.map(|about| about.store.as_str())),
            line(about.map(|about| about.path.as_str())),
        ]
    });
    print_table(["kept", "used", "", "store", "path"], rows.collect(), 1)
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
        if dir.discard(version).map_err(|e| failed(&path, &e))? {
            count += 1;
            bytes = bytes.saturating_add(version.kept);
        } else {
            text += &format!("left: {}, in use\n", printable::line(url(version)));
        }
    }
    let removed = figures::count(count, "version");
    text += &format!("removed: {removed}, {}\n", figures::bytes(bytes));
    print(text.as_bytes())
}
