//! The checkout commands on HDF5 stores, whose checkouts are layers of new files.

use std::cell::LazyCell;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value as Json;

use super::base::BaseStore;
use crate::checkout::checkouts::{Checkouts, LayerFiles};
use crate::checkout::commit::{CommitRefusal, Committed, Wish};
use crate::checkout::conflict::Conflict;
use crate::checkout::fit::Misfit;
use crate::checkout::index::KeptObject;
use crate::checkout::result;
use crate::checkout::target::describe_incomplete;
use crate::cli::output;
use crate::cli::progress::Progress;
use crate::cli::{CliError, options, place, say};
use crate::error::{Error, ErrorKind};
use crate::formats;
use crate::formats::place::StorePlace;
use crate::io::remote::Address;
use crate::io::storage::Disk;
use crate::mount::fuse::table;
use crate::options::RemoteSettings;
use crate::printable;

/// The most conflicts that are printed.
pub(super) const MOST_SHOWN: usize = 100;

/// The number of digits of a commit's id that are shown.
pub(super) const SHORT_ID: usize = 12;

/// The arguments that name a store and its checkouts.
#[derive(clap::Args, Debug)]
pub(super) struct CheckoutArgs {
    /// Options of a store that lies elsewhere, as for `npyfs mount`: endpoint, region, profile, header and so on
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,

    /// Directory of the checkouts, here or in a bucket; by default STORE.checkouts
    #[arg(long, value_name = "DIR")]
    checkouts: Option<PathBuf>,

    /// An HDF5 file, its URL, or a directory with such, or the mount point of a checkout
    pub(super) store: PathBuf,
}

/// The checkouts of a store, and the one that a command is about.
pub(super) struct Selected {
    /// The checkouts.
    pub(super) checkouts: Checkouts,
    /// The name of the one that was selected.
    pub(super) name: Option<String>,
    /// Objects that are not complete in the mount, a line for each; `None` if no mount was asked.
    pub(super) waiting: Option<Vec<String>>,
}

impl CheckoutArgs {
    /// Names a store, and the directory of its checkouts if that is not beside it.
    pub(super) fn of(store: &Path, checkouts: Option<&Path>, options: &[String]) -> Self {
        Self {
            options: options.to_vec(),
            checkouts: checkouts.map(Path::to_owned),
            store: store.to_owned(),
        }
    }

    /// Finds the checkouts of the store. If it is given by a mount point, the name is that of the mounted checkout.
    pub(super) fn find(&self, name: Option<&str>) -> Result<Selected, CliError> {
        let store = StorePlace::of(&self.store).store;
        place::check_place(&store, self.checkouts.as_deref()).map_err(refused)?;
        self.find_if_any(name)
    }

    /// Finds the checkouts of the store for a command that makes sense without any.
    pub(super) fn find_if_any(&self, name: Option<&str>) -> Result<Selected, CliError> {
        let place = StorePlace::of(&self.store);
        if place.inside.is_some() {
            return Err(CliError::usage(format!(
                "{}: a checkout is one of the whole store: say {}",
                self.store.display(),
                place.store.display()
            )));
        }
        if Address::parse(&place.store).is_some() {
            if name.is_some() {
                place::check_place(&place.store, self.checkouts.as_deref()).map_err(refused)?;
            }
            return Ok(Selected {
                checkouts: self.checkouts_of(&place.store)?,
                name: name.map(str::to_owned),
                waiting: None,
            });
        }
        let given = &place.store;
        let shown = given.display();
        let fail = |e: &dyn std::fmt::Display| CliError::store(format!("{shown}: {e}"));
        let path = table::resolve(given).map_err(|e| fail(&e))?;
        let mounted = table::at(&path).map_err(|e| fail(&e))?;
        if mounted.is_some_and(|mounted| mounted.is_ours()) {
            return self.mounted(&path, name);
        }
        let store = given
            .canonicalize()
            .map_err(|e| fail(&format!("{e}{}", place::hint(given))))?;
        Ok(Selected {
            checkouts: self.checkouts_of(&store)?,
            name: name.map(str::to_owned),
            waiting: None,
        })
    }

    /// Returns the arguments for the whole store, and the path of the directory in it that was named.
    pub(super) fn whole(&self) -> (Self, Option<PathBuf>) {
        let StorePlace { store, inside } = StorePlace::of(&self.store);
        let (options, checkouts) = (self.options.clone(), self.checkouts.clone());
        let whole = Self {
            options,
            checkouts,
            store,
        };
        (whole, inside)
    }

    /// Returns the checkouts of a store.
    fn checkouts_of(&self, store: &Path) -> Result<Checkouts, CliError> {
        let checkouts = place::checkouts(store, self.checkouts.as_deref()).map_err(refused)?;
        Ok(checkouts.asking(&self.remote()?))
    }

    /// Returns how a store that lies elsewhere is asked for.
    fn remote(&self) -> Result<Arc<RemoteSettings>, CliError> {
        let options = options::parse(self.options.iter().map(String::as_str));
        Ok(options.map_err(CliError::usage)?.fs.remote)
    }

    /// Finds the checkouts of the store that is mounted at `path`, from the mount's status.
    fn mounted(&self, path: &Path, name: Option<&str>) -> Result<Selected, CliError> {
        let shown = path.display();
        let fail = |e: &dyn std::fmt::Display| CliError::store(format!("{shown}: {e}"));
        let status = std::fs::read(path.join(".npyfs/status.json")).map_err(|e| fail(&e))?;
        let status: Json = serde_json::from_slice(&status).map_err(|e| fail(&e))?;
        let store = status["store"].as_str().ok_or_else(|| fail(&"no store"))?;
        let store = Path::new(store);
        let layer = status["checkout"]["dir"].as_str().map(Path::new);
        let own = status["checkout"]["name"].as_str();
        Ok(Selected {
            checkouts: match layer.and_then(Path::parent) {
                Some(dir) if self.checkouts.is_none() => {
                    Checkouts::of(store, Some(dir), &formats::registry()).asking(&self.remote()?)
                }
                _ => self.checkouts_of(store)?,
            },
            name: name.or(own).map(str::to_owned),
            waiting: (name.is_none() || name == own).then(|| waiting(&status["checkout"])),
        })
    }
}

impl Selected {
    /// Returns the name of the selected checkout, or an error if there is none.
    pub(super) fn name(&self) -> Result<&str, CliError> {
        self.name.as_deref().ok_or_else(|| {
            let store = self.checkouts.store().display();
            CliError::usage(format!(
                "{store}: which checkout? npyfs checkout ls lists them"
            ))
        })
    }
}

/// Returns the line about an object that is not complete.
pub(super) fn line_of(incomplete: &KeptObject) -> String {
    let why = incomplete.why.as_deref();
    describe_incomplete(&incomplete.object, &incomplete.missing, why)
}

/// Returns the lines of a mount's status about objects that are not complete.
fn waiting(checkout: &Json) -> Vec<String> {
    if let Some(list) = checkout["waiting"].as_array() {
        let shown = |item: &Json| {
            item.as_str()
                .map_or_else(|| item.to_string(), str::to_owned)
        };
        return list.iter().map(shown).collect();
    }
    match checkout["scratch_files"].as_u64() {
        Some(n) if n > 0 => vec![format!("{n} scratch files")],
        _ => Vec::new(),
    }
}

/// Returns the error of a command from that of an object.
pub(super) fn refused(error: Error) -> CliError {
    CliError::object(error.message)
}

/// Writes to the standard output; a reader that went away is no error.
pub(super) fn print(text: &str) -> Result<(), CliError> {
    output::print(text.as_bytes())
}

/// Prints which objects are not shown, why, and what can be done.
pub(super) fn print_misfits(misfits: &[Misfit]) {
    for misfit in misfits.iter().take(MOST_SHOWN) {
        say(&misfit.to_string());
    }
    if misfits.len() > MOST_SHOWN {
        say(&format!("and {} more", misfits.len() - MOST_SHOWN));
    }
    if !misfits.is_empty() {
        say(
            "with the store as it was they are shown again; commit and export do without them with --leave-out, \
             discard forgets a checkout that is not committed",
        );
    }
}

/// Runs `commit`.
pub(super) fn commit(
    which: &CheckoutArgs,
    name: Option<&str>,
    wish: &Wish,
) -> Result<(), CliError> {
    let found = which.find(name)?;
    let (checkouts, name) = (&found.checkouts, found.name()?);
    let progress = Progress::waiting("checking what is committed");
    // Opened only if there is a question that it answers.
    let base = LazyCell::new(|| BaseStore::try_open(checkouts));
    let is_group = |layer: &LayerFiles, key: &str| {
        let base = LazyCell::force(&base).as_ref();
        base.is_ok_and(|base| base.is_group(layer, key))
    };
    let fitting = |layers: &[LayerFiles]| match LazyCell::force(&base) {
        Ok(base) => Ok(base.with(layers).misfits()),
        Err(e) => Err(e.clone()),
    };
    let broken = |layers: &[LayerFiles]| {
        let Some((new, _)) = layers.split_last() else {
            return Ok(Vec::new());
        };
        let keys = new.entries.keys().map(String::as_str);
        match LazyCell::force(&base) {
            Ok(base) => result::broken(&base.with(layers), base.context.options.sep, keys),
            Err(e) => Err(e.clone()),
        }
    };
    let disk = Arc::new(Disk);
    let done = checkouts.commit(name, wish, disk, &is_group, &fitting, &broken);
    drop(progress);
    let Committed {
        number,
        objects,
        dropped,
        incomplete,
        misfits,
    } = match done {
        Ok(done) => done,
        Err(CommitRefusal::Failed(e)) => return Err(in_use(e, "commit")),
        Err(CommitRefusal::Conflicts(met)) => return Err(conflicts(checkouts, &met)),
        Err(CommitRefusal::Broken(lines)) => {
            return Err(CliError::object(format!(
                "nothing was committed: the store would break the rules of its format: {}",
                lines.join("; ")
            )));
        }
        Err(CommitRefusal::Misfits(misfits)) => {
            print_misfits(&misfits);
            return Err(CliError::object(format!(
                "nothing was committed: {} objects do not fit the store any more",
                misfits.len()
            )));
        }
        Err(CommitRefusal::Incomplete(objects)) => {
            let lines: Vec<_> = objects.iter().map(line_of).collect();
            return Err(CliError::object(format!(
                "nothing was committed: not complete: {}; mount the checkout to write or delete it, or \
                 --leave-out forgets what there is",
                lines.join("; ")
            )));
        }
    };
    let Some(number) = number else {
        return print("nothing to commit\n");
    };
    let mut text = String::new();
    for misfit in &misfits {
        let _ = writeln!(
            text,
            "left out: {}",
            printable::line(&format!("{}: {}", misfit.key, misfit.why))
        );
    }
    for key in &dropped {
        let _ = writeln!(text, "left out: {}", printable::line(key));
    }
    for object in &incomplete {
        let _ = writeln!(text, "left out: {}", printable::line(&line_of(object)));
    }
    print(&format!("{text}commit {number}: {objects} changes\n"))
}

/// Prints what both sides did in each conflict, and returns the error that says what can be done.
fn conflicts(checkouts: &Checkouts, met: &[Conflict]) -> CliError {
    let (listed, _) = checkouts.list().unwrap_or_default();
    for conflict in met.iter().take(MOST_SHOWN) {
        let Conflict {
            ours,
            theirs,
            commit,
            deleted,
        } = conflict;
        let did = |deleted: bool| if deleted { "deleted" } else { "changed" };
        let by = listed
            .iter()
            .find(|summary| {
                summary
                    .commit
                    .as_ref()
                    .is_some_and(|(n, _)| *n == commit + 1)
            })
            .map_or_else(String::new, |summary| format!(" ({})", summary.name));
        say(&format!(
            "{ours} is {} here, {theirs} was {} by commit {}{by}",
            did(deleted.0),
            did(deleted.1),
            commit + 1,
        ));
    }
    if met.len() > MOST_SHOWN {
        say(&format!("and {} more", met.len() - MOST_SHOWN));
    }
    CliError::object(
        "nothing was committed: --ours keeps what is here, --theirs what was committed before",
    )
}

/// Returns the error of a command, with a hint if the checkout is in use.
fn in_use(error: Error, command: &str) -> CliError {
    let hint = match error.kind {
        ErrorKind::Os(libc::EBUSY) => format!("; unmount it to {command} it"),
        _ => String::new(),
    };
    CliError::object(format!("{error}{hint}"))
}

/// Runs `discard`.
pub(super) fn discard(
    which: &CheckoutArgs,
    name: Option<&str>,
    force: bool,
) -> Result<(), CliError> {
    let found = which.find(name)?;
    let name = found.name()?;
    let summary = found.checkouts.find(name).map_err(refused)?;
    let done = found.checkouts.discard(name, force, &Disk);
    for out in done.map_err(|e| in_use(e, "discard"))? {
        say(&format!("{}: cannot be read any more", out.display()));
    }
    let objects = summary.changes.entries.len();
    let name = printable::name(name.as_bytes());
    print(&format!("discarded {name}: {objects} changes\n"))
}
