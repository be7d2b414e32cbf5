//! The checkouts of HDF5 stores, which are layers of new files: how a command names one, `commit` and `discard`, and
//! the store below them, opened to look at it with layers on top.

use std::cell::LazyCell;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value as Json;

use super::mounted;
use crate::cli::progress::Progress;
use crate::cli::users::out_of_reach;
use crate::cli::{CliError, options, output, say, store};
use crate::mount::fuse::table;
use npyfs_base::error::{self, Error, ErrorKind};
use npyfs_base::npy::parse::{self, LONGEST_HEADER};
use npyfs_base::options::{FsOptions, RemoteSettings};
use npyfs_base::printable;
use npyfs_core::checkout::history::checkouts::{Checkouts, Summary};
use npyfs_core::checkout::records::attribute;
use npyfs_core::checkout::records::fit::Misfit;
use npyfs_core::checkout::records::index::KeptObject;
use npyfs_core::checkout::records::layer_files::LayerFiles;
use npyfs_core::checkout::verbs::commit::{
    self, Candidate, CommitOptions, CommitRefusal, Committed, Outcome,
};
use npyfs_core::checkout::verbs::conflict::Conflict;
use npyfs_core::checkout::view::View;
use npyfs_core::checkout::view::is_empty_group;
use npyfs_core::dataset::context::Context;
use npyfs_core::formats;
use npyfs_core::formats::store_path::StorePath;
use npyfs_core::store::target::describe_incomplete;
use npyfs_core::tree::{Directory, Node};
use npyfs_hdf5::{H5, Reach};
use npyfs_io::content::Content;
use npyfs_io::remote::Address;
use npyfs_io::storage::Disk;

/// The most conflicts that are printed.
pub(super) const MOST_SHOWN: usize = 100;

/// How a command is told the name of a checkout: as an argument, or as an option.
pub(super) const BEHIND: &str = "its NAME goes behind the store";
pub(super) const OPTION: &str = "--checkout NAME says so";

/// The most checkouts that are named where one of them is meant.
const MOST_NAMED: usize = 10;

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
    /// The mount that writes in the selected checkout, if it was named.
    pub(super) mount: Option<PathBuf>,
}

impl CheckoutArgs {
    /// Names a store, and the directory of its checkouts if that is not beside it.
    pub(super) fn new(store: &Path, checkouts: Option<&Path>, options: &[String]) -> Self {
        Self {
            options: options.to_vec(),
            checkouts: checkouts.map(Path::to_owned),
            store: store.to_owned(),
        }
    }

    /// Finds the checkouts of the store. If it is given by a mount point, the name is that of the mounted checkout.
    pub(super) fn find(&self, name: Option<&str>) -> Result<Selected, CliError> {
        let store = StorePath::parse(&self.store).store;
        store::check_place(&store, self.checkouts.as_deref()).map_err(refused)?;
        self.find_if_any(name)
    }

    /// Finds the checkouts of the store for a command that makes sense without any.
    pub(super) fn find_if_any(&self, name: Option<&str>) -> Result<Selected, CliError> {
        let place = StorePath::parse(&self.store);
        if place.inside.is_some() {
            return Err(CliError::usage(format!(
                "{}: a checkout is one of the whole store: say {}",
                self.store.display(),
                place.store.display()
            )));
        }
        if Address::parse(&place.store).is_some() {
            if name.is_some() {
                store::check_place(&place.store, self.checkouts.as_deref()).map_err(refused)?;
            }
            return Ok(Selected {
                checkouts: self.checkouts_of(&place.store)?,
                name: name.map(str::to_owned),
                waiting: None,
                mount: None,
            });
        }
        let given = &place.store;
        let shown = given.display();
        let fail = |e: &dyn std::fmt::Display| CliError::store(format!("{shown}: {e}"));
        let missing = |e: std::io::Error| fail(&format!("{e}{}", store::hint(given)));
        let path = table::resolve(given).map_err(missing)?;
        let mounted = table::at(&path).map_err(|e| fail(&e))?;
        if mounted.is_some_and(|mounted| mounted.is_ours()) {
            return self.mounted(&path, name);
        }
        let store = given.canonicalize().map_err(missing)?;
        Ok(Selected {
            checkouts: self.checkouts_of(&store)?,
            name: name.map(str::to_owned),
            waiting: None,
            mount: None,
        })
    }

    /// Returns the arguments for the whole store, and the path of the directory in it that was named.
    pub(super) fn whole(&self) -> (Self, Option<PathBuf>) {
        let StorePath { store, inside } = StorePath::parse(&self.store);
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
        let checkouts = store::checkouts(store, self.checkouts.as_deref()).map_err(refused)?;
        Ok(checkouts.asking(&self.remote()?))
    }

    /// Returns the settings for a remote store.
    fn remote(&self) -> Result<Arc<RemoteSettings>, CliError> {
        let options = options::parse(self.options.iter().map(String::as_str));
        Ok(options.map_err(CliError::usage)?.fs.remote)
    }

    /// Finds the checkouts of the store that is mounted at `path`, from the mount's status.
    fn mounted(&self, path: &Path, name: Option<&str>) -> Result<Selected, CliError> {
        let shown = path.display();
        let fail = |e: &dyn std::fmt::Display| CliError::store(format!("{shown}: {e}"));
        let status = std::fs::read(path.join(".npyfs/status.json"));
        let status = status.map_err(|e| CliError::store(out_of_reach(path, &e)))?;
        let status: Json = serde_json::from_slice(&status).map_err(|e| fail(&e))?;
        let store = status["store"].as_str().ok_or_else(|| fail(&"no store"))?;
        let store = Path::new(store);
        let layer = status["checkout"]["dir"].as_str().map(Path::new);
        let own = status["checkout"]["name"].as_str();
        Ok(Selected {
            checkouts: match layer.and_then(Path::parent) {
                Some(dir) if self.checkouts.is_none() => {
                    Checkouts::of_store(store, Some(dir), &formats::registry())
                        .asking(&self.remote()?)
                }
                _ => self.checkouts_of(store)?,
            },
            name: name.or(own).map(str::to_owned),
            waiting: (name.is_none() || name == own).then(|| waiting(&status["checkout"])),
            mount: (own.is_some() && (name.is_none() || name == own))
                .then(|| path.to_owned())
                .filter(|_| status["checkout"]["read_only"] != true),
        })
    }
}

impl Selected {
    /// Returns the name of the checkout that a look at the store shows: the selected one, that of the mount that was
    /// named, or the only one that is not committed.
    pub(super) fn name_if_shown(&self) -> Result<Option<String>, CliError> {
        match (&self.name, &self.waiting) {
            (None, None) => self.only(),
            (name, _) => Ok(name.clone()),
        }
    }

    /// Returns the name of the selected checkout, or of the only one that is not committed; `how` one is told.
    pub(super) fn name_or_only(&self, how: &str) -> Result<String, CliError> {
        match (&self.name, self.only()?) {
            (None, Some(only)) => Ok(only),
            (None, None) => Err(self.unnamed(how)?),
            (Some(name), _) => Ok(name.clone()),
        }
    }

    /// Returns the name of the only checkout that is not committed.
    fn only(&self) -> Result<Option<String>, CliError> {
        let open = self.open()?;
        // One that a mount goes on in after its commit counts once something was written.
        let mut written = open.iter().filter(|summary| !summary.is_empty());
        Ok(match (&open[..], written.next(), written.next()) {
            ([only], ..) | (_, Some(only), None) => Some(only.name.clone()),
            _ => None,
        })
    }

    /// Returns the checkouts that are not committed.
    fn open(&self) -> Result<Vec<Summary>, CliError> {
        let (mut all, _) = self.checkouts.list().map_err(refused)?;
        all.retain(|summary| summary.commit.is_none());
        Ok(all)
    }

    /// Returns the name of the selected checkout, or an error if there is none.
    pub(super) fn name(&self) -> Result<&str, CliError> {
        match &self.name {
            Some(name) => Ok(name),
            None => Err(self.unnamed(BEHIND)?),
        }
    }

    /// Returns the error of a command that needs the name of a checkout, which is told as `how` says.
    fn unnamed(&self, how: &str) -> Result<CliError, CliError> {
        let names = self.open()?;
        let names = names
            .iter()
            .map(|summary| printable::name(summary.name.as_bytes()));
        let names: Vec<String> = names.take(MOST_NAMED).collect();
        let open = match names.is_empty() {
            true => "none is open".to_owned(),
            false => format!("open: {}", names.join(", ")),
        };
        let store = self.checkouts.store().display();
        Ok(CliError::usage(format!(
            "{store}: which checkout? {how} ({open}; npyfs checkout ls lists all)"
        )))
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

/// Prints the objects that are not shown, the reasons, and the remedies.
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
    wish: &CommitOptions,
) -> Result<(), CliError> {
    let found = which.find(name)?;
    let (checkouts, name) = (&found.checkouts, found.name()?);
    let progress = Progress::waiting("checking what is committed");
    let done = match &found.mount {
        Some(mount) => mounted::commit(mount, wish)?,
        None => commit_named(checkouts, name, wish)?,
    };
    drop(progress);
    let Committed {
        number,
        id,
        objects,
        dropped,
        incomplete,
        misfits,
    } = match done {
        Ok(done) => done,
        Err(CommitRefusal::Failed(e)) => return Err(in_use(e, "commit it")),
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
            printable::line(&format!(
                "{}: {}",
                attribute::shown(&misfit.key),
                misfit.why
            ))
        );
    }
    for key in &dropped {
        let _ = writeln!(
            text,
            "left out: {}",
            printable::line(&attribute::shown(key))
        );
    }
    for object in &incomplete {
        let _ = writeln!(text, "left out: {}", printable::line(&line_of(object)));
    }
    print(&format!(
        "{text}commit {number}: {objects} changes, {id:.SHORT_ID$}\n"
    ))
}

/// Commits a checkout, or has the mount of this machine commit it that writes in it.
fn commit_named(
    checkouts: &Checkouts,
    name: &str,
    wish: &CommitOptions,
) -> Result<Result<Committed, CommitRefusal>, CliError> {
    let find = || Candidate::find(checkouts, name, Arc::new(Disk));
    let mut found = find();
    let held = found.as_ref().ok().and_then(|found| found.held().ok()?);
    if let Some(layer) = held.and_then(|dir| dir.path().canonicalize().ok()) {
        // The mount may wait for the lock.
        drop(found);
        if let Some(mount) = mounted::writing_in(&layer) {
            return mounted::commit(&mount, wish);
        }
        found = find();
    }
    let candidate = match found {
        Err(e) => return Ok(Err(e.into())),
        Ok(candidate) => candidate,
    };
    // Opened only when a check needs it.
    let base = LazyCell::new(|| BaseStore::try_open(checkouts));
    let is_group = |layer: &LayerFiles, key: &str| {
        let base = LazyCell::force(&base).as_ref();
        base.is_ok_and(|base| base.is_group(layer, key))
    };
    let lay = |layers| match LazyCell::force(&base) {
        Ok(base) => Ok(base.outcome(layers)),
        Err(e) => Err(e.clone()),
    };
    Ok(candidate.commit(wish, &is_group, &lay))
}

/// Returns the mount of this machine that writes in a checkout, if there is one that answers.
pub(super) fn writing_mount(checkouts: &Checkouts, name: &str) -> Option<PathBuf> {
    let summary = checkouts.find(name).ok()?;
    summary.holder.as_ref()?;
    mounted::writing_in(&summary.dir.path().canonicalize().ok()?)
}

/// Prints what both sides did in each conflict, and returns the error, which names the remedies.
fn conflicts(checkouts: &Checkouts, met: &[Conflict]) -> CliError {
    let (listed, _) = checkouts.list().unwrap_or_default();
    for conflict in met.iter().take(MOST_SHOWN) {
        let Conflict {
            ours,
            theirs,
            commit,
            deleted,
        } = conflict;
        let (ours, theirs) = (attribute::shown(ours), attribute::shown(theirs));
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
pub(super) fn in_use(error: Error, command: &str) -> CliError {
    let hint = match error.kind {
        ErrorKind::Os(libc::EBUSY) => format!("; unmount it to {command}"),
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
    let done = commit::discard(&found.checkouts, name, force, &Disk);
    for out in done.map_err(|e| in_use(e, "discard it"))? {
        say(&format!("{}: cannot be read any more", out.display()));
    }
    let objects = summary.changes.count_changed();
    let name = printable::name(name.as_bytes());
    print(&format!("discarded {name}: {objects} changes\n"))
}

/// The most members of an object that are named.
const MOST_MEMBERS: usize = 8;

/// The number of bytes of a file in which its header is looked for first.
const SHORT_HEAD: usize = 4096;

/// An open store, without layers.
pub(super) struct BaseStore {
    /// The cache, the workers and the options.
    pub(super) context: Arc<Context>,
    /// The root of the store.
    pub(super) base: Arc<dyn Directory>,
}

impl BaseStore {
    /// Opens the store of these checkouts, with the error of a command.
    pub(super) fn open(checkouts: &Checkouts) -> Result<Self, CliError> {
        Self::try_open(checkouts).map_err(|e| CliError::store(e.message))
    }

    /// Opens the store of these checkouts.
    pub(super) fn try_open(checkouts: &Checkouts) -> error::Result<Self> {
        let options = FsOptions {
            remote: checkouts.remote().clone(),
            ..FsOptions::default()
        };
        let reach = Reach::of_store(checkouts.store(), options.external).with(checkouts.dir());
        let h5 = H5::workers(reach);
        let context = Arc::new(Context::new(h5, options));
        let base = formats::open(checkouts.store(), &context, &formats::registry(), || true)?;
        Ok(Self { context, base })
    }

    /// Returns the store with layers on top, lowest first.
    pub(super) fn with<'a>(&self, layers: impl IntoIterator<Item = &'a LayerFiles>) -> Arc<View> {
        self.over(layers.into_iter().cloned().collect())
    }

    /// Returns what a commit would make of the store, with its layers on top.
    pub(super) fn outcome(&self, layers: Vec<LayerFiles>) -> Box<dyn Outcome> {
        Box::new(self.over(layers))
    }

    fn over(&self, layers: Vec<LayerFiles>) -> Arc<View> {
        View::over(
            self.base.clone(),
            &self.context,
            &formats::registry(),
            layers,
        )
    }

    /// Returns whether the object of a layer is a group with nothing in it.
    fn is_group(&self, layer: &LayerFiles, key: &str) -> bool {
        is_empty_group(layer, key, &|layer| self.with([layer]))
    }
}

/// Describes the type and shape of a node in a few words.
pub(super) fn describe(node: &Node) -> String {
    let described = match node {
        Node::Symlink(link) => Ok(format!("-> {}", String::from_utf8_lossy(&link.target))),
        Node::File(file) => file.open().and_then(|content| head(&*content)),
        Node::Directory(dir) => members(&**dir),
    };
    described.unwrap_or_else(|e| format!("cannot be read: {e}"))
}

/// Describes a file by its header.
fn head(content: &dyn Content) -> error::Result<String> {
    let read = |most: usize| {
        let len = usize::try_from(content.len()).unwrap_or(usize::MAX);
        let mut head = vec![0; len.min(most)];
        content.read_at(0, &mut head).map(|()| head)
    };
    let header = match parse::parse(&read(SHORT_HEAD)?) {
        Ok(header) => Ok(header),
        Err(_) => parse::parse(&read(LONGEST_HEADER)?),
    };
    Ok(match header {
        Ok(header) => {
            let shape: Vec<_> = header.shape.iter().map(u64::to_string).collect();
            let comma = if shape.len() == 1 { "," } else { "" };
            format!("{} ({}{comma})", header.dtype.name(), shape.join(", "))
        }
        // An .npz or a text.
        Err(_) => format!("{} bytes", content.len()),
    })
}

/// Describes a directory by its members.
fn members(dir: &dyn Directory) -> error::Result<String> {
    let listing = dir.list()?;
    if dir.is_store() {
        return Ok(format!("{} store", dir.format()?));
    }
    if listing.is_empty() {
        return Ok("empty group".to_owned());
    }
    if listing.len() > MOST_MEMBERS {
        return Ok(format!("{} members", listing.len()));
    }
    let shown = listing.iter().map(|(name, node)| {
        let name = String::from_utf8_lossy(&name).into_owned();
        match &*node {
            Node::Directory(_) => format!("{name}/"),
            node => format!("{name} {}", describe(node)),
        }
    });
    Ok(shown.collect::<Vec<_>>().join("; "))
}
