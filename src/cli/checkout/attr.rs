//! `npyfs attr`: the attributes of objects, as a checkout shows and changes them.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{XattrFlags, removexattr, setxattr};
use serde_json::Value as Json;

use super::layers::{BaseStore, CheckoutArgs, OPTION, in_use, print, refused};
use crate::cli::{CliError, log, place};
use crate::mount::fuse::table;
use npyfs_base::printable;
use npyfs_core::checkout::view::forms;
use npyfs_core::checkout::write::LayerTarget;
use npyfs_core::formats;
use npyfs_core::store::target::{AttributeChange, Target};
use npyfs_core::tree::{Node, info};

/// List and change attributes of objects, groups and the root of a store; changes go to a checkout.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// List the attributes of an object, one a line
    Ls(Object),
    /// Print the value of an attribute
    #[command(override_usage = "npyfs attr get [OPTIONS] <STORE> <PATH> <NAME>")]
    Get {
        #[command(flatten)]
        object: Object,

        /// The attribute
        #[arg(value_name = "NAME")]
        words: Vec<String>,
    },
    /// Set attributes: numbers, arrays of them as JSON, or text
    ///
    /// A value that is a JSON number, array or quoted text is that, and anything else is text. An attribute that is
    /// there already keeps its type where the value fits. While the checkout is mounted, name the mount point: the
    /// mount sets them, as it does for setfattr.
    #[command(override_usage = "npyfs attr set [OPTIONS] <STORE> <PATH> <NAME=VALUE>...")]
    Set {
        #[command(flatten)]
        object: Object,

        /// What is set: units=mV, gain=2.5, range='[0, 10]'
        #[arg(value_name = "NAME=VALUE")]
        words: Vec<String>,
    },
    /// Print the dimensions of a variable of a netCDF-4 store, or give a new one some
    ///
    /// A new variable has the dimensions of the one that it takes the place of, or those that its shape names: each of
    /// its lengths is that of one dimension only, and occurs once. All others are given theirs, by the names that are
    /// defined in its group and above it.
    #[command(override_usage = "npyfs attr dims [OPTIONS] <STORE> <PATH> [NAMES]")]
    Dims {
        #[command(flatten)]
        object: Object,

        /// The names, in order: time,lat,lon
        #[arg(value_name = "NAMES", conflicts_with = "none")]
        words: Vec<String>,

        /// It has no dimensions, whatever its shape says
        #[arg(long)]
        none: bool,
    },
    /// Remove attributes
    #[command(override_usage = "npyfs attr rm [OPTIONS] <STORE> <PATH> <NAME>...")]
    Rm {
        #[command(flatten)]
        object: Object,

        /// The attributes
        #[arg(value_name = "NAME")]
        words: Vec<String>,
    },
}

/// The object that a command is about.
#[derive(clap::Args, Debug)]
struct Object {
    #[command(flatten)]
    which: CheckoutArgs,

    /// The checkout; by default that of the mount that is named, or the only one that is not committed
    #[arg(long = "checkout", value_name = "NAME")]
    name: Option<String>,

    /// The object, as a mount names it; . is the root. STORE/PATH and a path in a mount name it, too
    path: Option<PathBuf>,
}

impl Object {
    /// Returns the object by the store or mount that it lies in and its path there, and the words behind it.
    fn split(mut self, words: &[String]) -> Result<(Self, Vec<String>), CliError> {
        let mut words = words.to_vec();
        if let Some((whole, inside)) = place::inside(&self.which.store) {
            if let Some(first) = self.path.replace(inside) {
                words.insert(0, first.to_string_lossy().into_owned());
            }
            self.which.store = whole;
        }
        match self.path {
            Some(_) => Ok((self, words)),
            None => Err(CliError::usage(format!(
                "{}: an object in it is missing; . is the root",
                self.which.store.display()
            ))),
        }
    }

    fn path(&self) -> &Path {
        self.path.as_deref().unwrap_or(Path::new("."))
    }

    fn names(&self) -> Vec<Vec<u8>> {
        let names = self.path().components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.as_bytes().to_vec()),
            _ => None,
        });
        names.collect()
    }

    fn failed(&self, why: &dyn std::fmt::Display) -> CliError {
        CliError::object(format!("{}: {why}", self.path().display()))
    }

    /// Returns the mount that is named in the place of the store, unless another checkout is meant than its own.
    fn mount(&self) -> Option<PathBuf> {
        let at = table::resolve(&self.which.store).ok()?;
        let mounted = table::at(&at).ok()??;
        (self.name.is_none() && mounted.is_ours()).then_some(at)
    }

    /// Returns the object as it is shown.
    fn node(&self) -> Result<Node, CliError> {
        if let Some(at) = self.mount() {
            return self.below(Node::Directory(place::mounted(&at)?));
        }
        let found = self.which.find_if_any(self.name.as_deref())?;
        let mut layers = found.checkouts.committed().map_err(refused)?;
        if let Some(name) = found.name_if_shown()? {
            let summary = found.checkouts.find(&name).map_err(refused)?;
            let own = summary.on_top(&layers).map_err(refused)?;
            layers.push(own);
        }
        let root = BaseStore::open(&found.checkouts)?.with(&layers).root();
        self.below(Node::Directory(root))
    }

    /// Returns the object, from the root of what it lies in.
    fn below(&self, root: Node) -> Result<Node, CliError> {
        let mut node = root;
        for name in self.names() {
            let below = match &node {
                Node::Directory(dir) => dir.lookup(&name).map_err(refused)?,
                Node::File(_) | Node::Symlink(_) => None,
            };
            node = below.ok_or_else(|| self.failed(&"no such object"))?;
        }
        Ok(node)
    }

    /// Returns the names of the dimensions of the object, as far as they have some.
    fn dimensions(&self) -> Result<String, CliError> {
        let info = match self.node()? {
            Node::File(file) => file.info().map_err(refused)?,
            _ => return Err(self.failed(&"not an array")),
        };
        let axes = info["axes"].as_array().cloned().unwrap_or_default();
        let axes: Vec<&str> = axes
            .iter()
            .map(|name| name.as_str().unwrap_or("?"))
            .collect();
        Ok(axes.join(","))
    }

    /// Returns the attributes that can be shown, by name, as text.
    fn shown(&self) -> Result<Vec<(String, String)>, CliError> {
        let node = self.node()?;
        if self.mount().is_some() {
            // A mount reports values, and not how they are stored.
            let report = match &node {
                Node::Directory(dir) => dir.info(),
                Node::File(file) => file.info(),
                Node::Symlink(_) => return Err(self.failed(&"a symbolic link")),
            };
            let report = report.map_err(refused)?;
            let attributes = report["attributes"].as_object().into_iter().flatten();
            let shown = attributes.map(|(name, value)| (name.clone(), text(value.clone())));
            return Ok(shown.collect());
        }
        let attributes = match &node {
            Node::Directory(dir) => dir.attributes(),
            Node::File(file) => file.attributes(),
            Node::Symlink(_) => return Err(self.failed(&"a symbolic link")),
        };
        let attributes = attributes.map_err(refused)?.into_iter();
        let shown = attributes.filter_map(|attribute| {
            let name = String::from_utf8_lossy(&attribute.name).into_owned();
            Some((name, text(info::value(&attribute.value.ok()?))))
        });
        Ok(shown.collect())
    }

    /// Makes changes, one after the other.
    fn change(
        &self,
        changes: impl Iterator<Item = impl FnOnce(&LayerTarget) -> npyfs_base::error::Result<()>>,
    ) -> Result<(), CliError> {
        let found = self.which.find(self.name.as_deref())?;
        let name = found.name_or_only(OPTION)?;
        let base = BaseStore::open(&found.checkouts)?;
        let (root, registry) = (base.base.clone(), formats::registry());
        let target = LayerTarget::open(root, &base.context, &registry, &found.checkouts, &name);
        let target = target.map_err(|e| {
            in_use(
                e,
                "change it; attributes are also set with the mount point in the place of the store",
            )
        })?;
        for change in changes {
            change(&target).map_err(|e| self.failed(&e.message))?;
        }
        target.sync().map_err(refused)
    }

    /// Has the mount that is named change attributes.
    fn change_in<'a>(
        &self,
        mount: &Path,
        changes: impl Iterator<Item = (&'a str, AttributeChange<'a>)>,
    ) -> Result<(), CliError> {
        let object = mount.join(self.path().strip_prefix("/").unwrap_or(self.path()));
        for (name, change) in changes {
            let name = format!("user.{name}");
            let before = log::last(mount);
            let set = |value: &[u8], flags| setxattr(&object, &name, value, flags);
            let done = match change {
                AttributeChange::Set(value) => set(value, XattrFlags::empty()),
                AttributeChange::Add(value) => set(value, XattrFlags::CREATE),
                AttributeChange::Replace(value) => set(value, XattrFlags::REPLACE),
                AttributeChange::Remove => removexattr(&object, &name),
            };
            done.map_err(|e| match log::reason(mount, before, e.raw_os_error()) {
                Some(reason) => CliError::object(reason),
                None => self.failed(&io::Error::from(e)),
            })?;
        }
        Ok(())
    }

    /// Changes attributes.
    fn change_attributes<'a>(
        &self,
        changes: impl Iterator<Item = (&'a str, AttributeChange<'a>)>,
    ) -> Result<(), CliError> {
        if let Some(mount) = self.mount() {
            return self.change_in(&mount, changes);
        }
        let path = &self.names();
        self.change(changes.map(|(name, change)| {
            move |target: &LayerTarget| target.set_attribute(path, name.as_bytes(), change)
        }))
    }
}

/// Returns a value as it is printed: text as it is, all else as JSON.
fn text(value: Json) -> String {
    match value {
        Json::String(text) => text,
        json => json.to_string(),
    }
}

/// Refuses a call that lacks something behind the object.
fn needed<T>(words: &[T], what: &str) -> Result<(), CliError> {
    match words.is_empty() {
        true => Err(CliError::usage(format!(
            "{what} is missing behind the object"
        ))),
        false => Ok(()),
    }
}

/// Refuses words behind all that a command takes.
fn no_more(words: &[String]) -> Result<(), CliError> {
    match words.first() {
        Some(word) => Err(CliError::usage(format!("{word}: one object at a time"))),
        None => Ok(()),
    }
}

/// Runs the command.
pub fn run(args: Args) -> Result<(), CliError> {
    match args.command {
        Command::Ls(mut object) => {
            if object.path.is_none() && place::inside(&object.which.store).is_none() {
                object.path = Some(".".into());
            }
            let (object, words) = object.split(&[])?;
            no_more(&words)?;
            let line = |(name, text): &(String, String)| {
                format!("{}={}\n", printable::line(name), printable::line(text))
            };
            print(&object.shown()?.iter().map(line).collect::<String>())
        }
        Command::Get { object, words } => {
            let (object, words) = object.split(&words)?;
            needed(&words, "the name of an attribute")?;
            no_more(&words[1..])?;
            let all = object.shown()?;
            let found = all.iter().find(|(known, _)| *known == words[0]);
            let no = || object.failed(&format!("no attribute {:?}", words[0]));
            let (_, text) = found.ok_or_else(no)?;
            print(&format!("{text}\n"))
        }
        Command::Set { object, words } => {
            let (object, words) = object.split(&words)?;
            needed(&words, "NAME=VALUE")?;
            let split = |given: &String| {
                given
                    .split_once('=')
                    .map(|(n, v)| (n.to_owned(), v.to_owned()))
                    .ok_or_else(|| CliError::usage(format!("{given}: not of the form NAME=VALUE")))
            };
            let pairs = words.iter().map(split).collect::<Result<Vec<_>, _>>()?;
            let pairs = pairs.iter();
            object.change_attributes(
                pairs.map(|(n, v)| (n.as_str(), AttributeChange::Set(v.as_bytes()))),
            )
        }
        Command::Dims {
            object,
            words,
            none,
        } => {
            let (object, words) = object.split(&words)?;
            let names = words.iter().flat_map(|word| word.split(','));
            let names: Vec<String> = names.map(str::to_owned).collect();
            if names.is_empty() && !none {
                return print(&format!("{}\n", object.dimensions()?));
            }
            let path = object.names();
            let set = |target: &LayerTarget| target.set_dimensions(&path, &names);
            object.change(std::iter::once(set))
        }
        Command::Rm { object, words } => {
            let (object, words) = object.split(&words)?;
            needed(&words, "the name of an attribute")?;
            let names = words.iter();
            object.change_attributes(names.map(|name| (name.as_str(), AttributeChange::Remove)))
        }
    }
}

/// Returns the attribute that a layer's key names, with the path of its object in the mount and what it is now.
pub(super) fn described(
    root: &std::sync::Arc<dyn npyfs_core::tree::Directory>,
    object: &str,
    name: &str,
) -> npyfs_base::error::Result<(String, Option<String>)> {
    let (path, node) = match object {
        "" => ("./".to_owned(), Some(Node::Directory(root.clone()))),
        object => match forms(root, object)?.into_iter().next() {
            Some((path, node)) => (path, Some(node)),
            None => (object.to_owned(), None),
        },
    };
    let attributes = match &node {
        Some(Node::Directory(dir)) => dir.attributes()?,
        Some(Node::File(file)) => file.attributes()?,
        _ => Vec::new(),
    };
    let found = attributes.into_iter().find(|a| a.name == name.as_bytes());
    let text = found
        .and_then(|a| a.value.ok())
        .map(|value| info::value(&value).to_string());
    Ok((path, text))
}
