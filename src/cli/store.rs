//! The store of a command that reads without mounting, and the paths in it.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::cli::options::MountOptions;
use crate::cli::progress::Progress;
use crate::cli::{CliError, options, place};
use crate::formats;
use crate::formats::place::StorePlace;
use crate::hdf5::H5;
use crate::hdf5::permit::Reach;
use crate::io::remote::Address;
use crate::mount::fs::Fs;
use crate::options::External;
use crate::tree::Node;
use crate::tree::control;
use crate::tree::path::{self, PathError};
use crate::tree::suggestion;

/// The store and the view options of a subcommand that reads without mounting.
#[derive(clap::Args, Debug)]
pub struct StoreArgs {
    /// Options as for `npyfs mount`: sep, external, text_limit, cache_size, kind, locales; endpoint, profile, header and so on
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,

    /// With the checkout NAME on top, which is not committed yet
    #[arg(long, value_name = "NAME", conflicts_with = "at")]
    checkout: Option<String>,

    /// As the store was after a commit: its id, or the beginning of that
    #[arg(long, value_name = "ID")]
    at: Option<String>,

    /// Directory of the checkouts, here or in a bucket; by default STORE.checkouts
    #[arg(long, value_name = "DIR")]
    checkouts: Option<PathBuf>,

    #[arg(help = options::store_help())]
    store: PathBuf,
}

impl StoreArgs {
    /// Returns the name of the checkout and the directory of the checkouts that are asked for; `None` if the store is to be
    /// shown as it was earlier, or not as a whole.
    pub fn checkout(&self) -> Option<(Option<&str>, Option<&Path>)> {
        let options = options::parse(self.options.iter().map(String::as_str)).ok()?;
        let inside = options.fs.subpath.or(StorePlace::of(&self.store).inside);
        let is_whole = self.at.is_none() && inside.is_none();
        is_whole.then_some((self.checkout.as_deref(), self.checkouts.as_deref()))
    }

    /// Returns the store as it was given, without what may be secret.
    pub fn given(&self) -> PathBuf {
        Address::local(&self.store).unwrap_or_else(|| Address::hide_secret(&self.store))
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

    /// Opens the store with everything that is committed, or as the arguments say.
    pub fn open(&self) -> Result<Fs, CliError> {
        let _progress = Progress::waiting("opening the store");
        let mut options = self.parsed()?;
        // Commands that read once gain nothing by copies.
        options.fs.keep = Some(0);
        let inside = StorePlace::of(&self.store).inside;
        options.show_only(inside).map_err(CliError::usage)?;
        let store = self.path()?;
        let formats = formats::registry();
        let checkouts = place::checkouts(&store, self.checkouts.as_deref())
            .map_err(|e| CliError::store(e.message))?
            .asking(&options.fs.remote);
        let reach = Reach::of(&store, options.fs.external).with(checkouts.dir());
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

impl StoreArgs {
    /// Returns the path of the store, without links.
    pub fn path(&self) -> Result<PathBuf, CliError> {
        let store = StorePlace::of(&self.store).store;
        StorePlace::resolved(&store).map_err(|e| {
            let hint = place::hint(&store);
            CliError::store(format!("{}: {e}{hint}", store.display()))
        })
    }

    /// Returns what may be read outside of the store.
    pub fn external(&self) -> Result<External, CliError> {
        Ok(self.parsed()?.fs.external)
    }
}

/// Returns the node that a path leads to. Links are followed, the last one only if `follow_last`.
pub fn find(fs: &Fs, path: &Path, follow_last: bool) -> Result<Node, CliError> {
    let _progress = Progress::waiting("looking for the path");
    let hidden = (control::NAME, fs.control());
    let bytes = path.as_os_str().as_bytes();
    path::find(fs.root(), Some(hidden), bytes, follow_last).map_err(|not| match not {
        PathError::Missing => {
            let hint = suggestion::for_path(fs.root(), path).unwrap_or_default();
            CliError::object(format!(
                "{}: no such path in the store{hint}",
                path.display()
            ))
        }
        PathError::Failed(e) => CliError::object(format!("{}: {e}", path.display())),
    })
}
