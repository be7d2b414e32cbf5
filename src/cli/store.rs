//! The store of a command that reads without mounting, and the paths in it; the checkouts of the store that any command
//! is given.
//!
//! Says so where a moved store left its checkouts behind, where a name is nearly that of a store, and where an address
//! stands in the place of a mount point or of a new store.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value as Json;

use crate::cli::options::{self, MountOptions};
use crate::cli::progress::Progress;
use crate::cli::{CliError, say};
use crate::mount::fs::Fs;
use crate::mount::fuse::table;
use npyfs_base::error::{self, Error, ErrorKind};
use npyfs_core::checkout::history::checkouts::Checkouts;
use npyfs_core::checkout::history::location::orphaned_at;
use npyfs_core::formats;
use npyfs_core::formats::store_path::StorePath;
use npyfs_core::tree::path::{self, PathError};
use npyfs_core::tree::suggestion::{self, nearest};
use npyfs_core::tree::{Directory, Node, control};
use npyfs_hdf5::{H5, Reach};
use npyfs_io::remote::{Address, Scheme};

/// The store and the view options of a subcommand that reads without mounting.
#[derive(clap::Args, Clone, Debug)]
pub struct StoreArgs {
    /// Options as for `npyfs mount`: sep, external, text_limit, cache_size, kind, locales; endpoint, profile, header
    /// and so on
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,

    /// With the checkout NAME on top, which is not committed yet
    #[arg(long, value_name = "NAME", conflicts_with = "at")]
    checkout: Option<String>,

    /// As the store was after a commit: its number, the first digits of its id, HEAD, HEAD~1
    #[arg(long, value_name = "COMMIT")]
    at: Option<String>,

    /// Directory of the checkouts, here or in a bucket; by default STORE.checkouts
    #[arg(long, value_name = "DIR")]
    checkouts: Option<PathBuf>,

    /// The directory of the checkouts of a mounted store itself, where it is not beside the store.
    #[arg(skip)]
    checkouts_at: Option<PathBuf>,

    #[arg(help = options::store_help())]
    store: PathBuf,
}

impl StoreArgs {
    /// Names a store, about which nothing else is said.
    pub fn new(store: PathBuf) -> Self {
        Self {
            options: Vec::new(),
            checkout: None,
            at: None,
            checkouts: None,
            checkouts_at: None,
            store,
        }
    }

    /// Returns the store, the name of the checkout and the directory of the checkouts that are asked for; `None` if the
    /// store is to be shown as it was earlier, or not as a whole.
    pub fn whole(&self) -> Option<(PathBuf, Option<&str>, Option<&Path>)> {
        let options = options::parse(self.options.iter().map(String::as_str)).ok()?;
        let options = options.fs;
        let inside = options.subpath.or(StorePath::parse(&self.store).inside);
        let is_viewed = options.view.is_some() || options.join.is_some();
        let is_whole = self.at.is_none() && inside.is_none() && !is_viewed;
        let is_whole = is_whole && self.checkouts_at.is_none();
        let without_secret =
            || Address::local(&self.store).unwrap_or_else(|| Address::hide_secret(&self.store));
        is_whole.then_some((
            without_secret(),
            self.checkout.as_deref(),
            self.checkouts.as_deref(),
        ))
    }

    /// Returns the arguments that show the store of a mount as the mount does, with these options on top.
    pub fn of_mount(&self, at: &Path) -> io::Result<Self> {
        let status = std::fs::read(at.join(".npyfs/status.json"))?;
        let status: Json = serde_json::from_slice(&status)?;
        let text = |json: &Json| match json {
            Json::String(text) => Some(text.clone()),
            Json::Number(number) => Some(number.to_string()),
            _ => None,
        };
        let option = |(name, value): (&str, &Json)| Some(options::written(name, &text(value)?));
        let named = ["external", "sep", "kind", "locales", "text_limit"];
        let named = named.map(|name| (name, &status["options"][name]));
        let whole = ["subpath", "view", "join"].map(|name| (name, &status[name]));
        let shown = named.into_iter().chain(whole).filter_map(option);
        let store = text(&status["store"]);
        let store = store.ok_or_else(|| io::Error::other("it does not say what it shows"))?;
        let store = PathBuf::from(store);
        let beside = Checkouts::of_store(&store, None, &formats::registry());
        let checkouts_at = text(&status["checkouts"]).map(PathBuf::from);
        let checkouts_at = checkouts_at.filter(|dir| dir != beside.dir());
        Ok(Self {
            options: shown.chain(self.options.iter().cloned()).collect(),
            checkout: text(&status["checkout"]["name"]),
            at: text(&status["at"]),
            checkouts: None,
            checkouts_at,
            store,
        })
    }

    /// Returns the options as they were given.
    pub fn options(&self) -> &[String] {
        &self.options
    }

    /// Returns the options.
    pub fn parsed(&self) -> Result<MountOptions, CliError> {
        let options = self.options.iter().map(String::as_str);
        options::parse(options).map_err(CliError::usage)
    }

    /// Returns the argument that is a store, or whatever stands in its place.
    pub fn first(&self) -> &Path {
        &self.store
    }

    /// Returns whether it was said what of the store is to be shown.
    pub fn names_state(&self) -> bool {
        self.checkout.is_some() || self.at.is_some() || self.checkouts.is_some()
    }

    /// Returns whether anything was said about how a store is to be shown.
    pub fn has_view(&self) -> bool {
        self.names_state() || !self.options.is_empty()
    }

    /// Opens a store, or a directory in it, with everything that is committed, or as the arguments say.
    pub fn open_at(&self, store: &Path, inside: Option<&Path>) -> Result<Fs, CliError> {
        let _progress = Progress::waiting("opening the store");
        let mut options = self.parsed()?;
        options.warn();
        // A command that reads once gains nothing from kept copies.
        options.fs.keep = Some(0);
        let inside = inside.map(Path::to_owned);
        options.show_only(inside).map_err(CliError::usage)?;
        let store = resolved(store)?;
        let formats = formats::registry();
        let checkouts = match &self.checkouts_at {
            Some(dir) => Checkouts::of_store(&store, Some(dir), &formats),
            None => checkouts(&store, self.checkouts.as_deref())
                .map_err(|e| CliError::store(e.message))?,
        };
        let checkouts = checkouts.asking(&options.fs.remote);
        let reach = Reach::of_store(&store, options.fs.external).with(checkouts.dir());
        let h5 = H5::workers(reach);
        let opened = match (&self.checkout, &self.at) {
            (Some(name), _) => {
                Fs::open_checkout_to_read(&store, h5, options.fs, &formats, &checkouts, name)
            }
            (None, Some(at)) => Fs::open_at(&store, h5, options.fs, &formats, &checkouts, at),
            (None, None) => Fs::open(&store, h5, options.fs, &formats, &checkouts),
        };
        opened.map_err(|refusal| CliError::store(refusal.to_string()))
    }
}

/// Returns the path of a store, without links.
fn resolved(store: &Path) -> Result<PathBuf, CliError> {
    StorePath::resolved(store).map_err(|e| {
        let hint = hint(store);
        CliError::store(format!("{}: {e}{hint}", store.display()))
    })
}

/// Returns the node that a path leads to from a root, with `.npyfs` in it. People are told the path as `shown`.
pub fn find_below(
    root: &Arc<dyn Directory>,
    control: Option<&Arc<dyn Directory>>,
    path: &Path,
    shown: &Path,
    follow_last: bool,
) -> Result<Node, CliError> {
    let _progress = Progress::waiting("looking for the path");
    let hidden = control.map(|control| (control::NAME, control));
    let bytes = path.as_os_str().as_bytes();
    path::find(root, hidden, bytes, follow_last).map_err(|not| match not {
        PathError::Missing => {
            let hint = suggestion::for_path(root, path, shown).unwrap_or_default();
            let shown = shown.display();
            CliError::object(format!("{shown}: no such path in the store{hint}"))
        }
        PathError::Failed(e) => CliError::object(format!("{}: {e}", shown.display())),
    })
}

/// Returns the checkouts of a store, below `dir` or beside it. Warns if a moved store left its checkouts behind.
pub(super) fn checkouts(store: &Path, dir: Option<&Path>) -> error::Result<Checkouts> {
    let checkouts = find_checkouts(store, dir)?;
    if let Some(left) = checkouts.left_behind() {
        say(&left.to_string());
    }
    Ok(checkouts)
}

/// Returns the checkouts of a store that is going to be written. An error if a moved store left its checkouts behind:
/// new checkouts would take their place.
pub(super) fn checkouts_to_write(store: &Path, dir: Option<&Path>) -> error::Result<Checkouts> {
    check_place(store, dir)?;
    let checkouts = find_checkouts(store, dir)?;
    match checkouts.left_behind() {
        None => Ok(checkouts),
        Some(left) => Err(Error::new(ErrorKind::Stale, left.refusal())),
    }
}

/// Refuses checkouts beside a store on a web server, where none can be.
pub(super) fn check_place(store: &Path, dir: Option<&Path>) -> error::Result<()> {
    let is_web = |address: &Address| address.scheme() == Scheme::Web;
    let on_web =
        |path: &Path| matches!(Address::parse(path), Some(Ok(address)) if is_web(&address));
    if dir.is_some() || !on_web(store) {
        return Ok(());
    }
    let message = format!(
        "{}: a web server takes nothing: --checkouts DIR says where what is written over it is kept, here or in a bucket",
        store.display()
    );
    Err(Error::new(ErrorKind::Os(libc::EROFS), message))
}

fn find_checkouts(store: &Path, dir: Option<&Path>) -> error::Result<Checkouts> {
    let dir = match dir.map(|dir| (dir, Address::parse(dir))) {
        Some((_, Some(Ok(address)))) if address.scheme() == Scheme::Web => {
            let message = format!(
                "{address}: a web server takes nothing: checkouts are in a directory or a bucket"
            );
            return Err(Error::new(ErrorKind::Os(libc::EINVAL), message));
        }
        Some((_, Some(Err(why)))) => return Err(Error::new(ErrorKind::Os(libc::EINVAL), why)),
        Some((dir, Some(Ok(_)))) => Some(dir.to_owned()),
        Some((dir, None)) => Some(std::path::absolute(dir)?),
        None => None,
    };
    Checkouts::below(store, dir.as_deref(), &formats::registry())
}

/// Names in the directory of a missing store that are compared with its name.
const COMPARED: usize = 100_000;

/// Returns the end of the error about a missing store: where its checkouts still are, or what was probably meant.
pub(super) fn hint(store: &Path) -> String {
    match orphaned_at(store) {
        None => meant(store).unwrap_or_default(),
        Some(dir) => format!(
            "; its checkouts are still there: move {} along to where the store is, as STORE.checkouts",
            dir.display()
        ),
    }
}

/// Returns the nearest name in the directory of a missing store, or that it would be an address of no known kind.
fn meant(store: &Path) -> Option<String> {
    if Address::parse(store).is_some() || store.symlink_metadata().is_ok() {
        return None;
    }
    let text = store.to_string_lossy();
    if let Some((scheme, _)) = text.split_once("://") {
        let is_word = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        if !scheme.is_empty() && scheme.chars().all(is_word) {
            return Some(format!(
                "; {scheme}:// is not known: addresses begin with https://, http://, s3://, gs://, az:// or file://"
            ));
        }
    }
    // STORE:path, as other programs spell it.
    if let Some((file, inside)) = text.split_once(':')
        && Path::new(file).is_file()
    {
        return Some(format!("; did you mean {file}:/{inside}?"));
    }
    let above = match store.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        _ => Path::new("."),
    };
    let entries = std::fs::read_dir(above).ok()?.flatten().take(COMPARED);
    let names = entries.map(|entry| entry.file_name().into_vec());
    let near = nearest(store.file_name()?.as_bytes(), names)?;
    let near = store.with_file_name(OsStr::from_bytes(&near));
    Some(format!("; did you mean {}?", near.display()))
}

/// Refuses an address where a new store is to be written.
pub(super) fn refuse_to_write_at(out: &Path) -> Result<(), CliError> {
    let Some(address) = Address::parse(out) else {
        return Ok(());
    };
    let shown = address.map_or_else(|_| "an address".to_owned(), |address| address.to_string());
    Err(CliError::usage(format!(
        "{shown}: nothing is written there: write a file of this machine, and copy it"
    )))
}

/// Refuses the address of a store where a mount point is wanted, and says where it is mounted.
pub(super) fn refuse_address(given: &Path) -> Result<(), CliError> {
    let Some(Ok(address)) = Address::parse(given) else {
        return Ok(());
    };
    let shown = address.to_string();
    let mounts = table::of_source(OsStr::new(&shown)).unwrap_or_default();
    let mounts: Vec<_> = mounts
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let why = match mounts.is_empty() {
        true => "and not mounted: name the directory that a store is mounted at".to_owned(),
        false => format!("mounted at {}: name that", mounts.join(", ")),
    };
    Err(CliError::mount(format!(
        "{shown} is the address of a store, {why}"
    )))
}
