//! `npyfs attr`: the attributes of objects, as a checkout shows and changes them.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, PathBuf};

use serde_json::Value as Json;

use super::base::BaseStore;
use super::layers::{CheckoutArgs, print, refused};
use crate::cli::CliError;
use npyfs_base::printable;
use npyfs_core::checkout::view::path::forms;
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
    Get {
        #[command(flatten)]
        object: Object,

        /// The attribute
        #[arg(value_name = "NAME")]
        attribute: String,
    },
    /// Set attributes: numbers, arrays of them as JSON, or text
    ///
    /// A value that is a JSON number, array or quoted text is that, and anything else is text. An attribute that is there
    /// already keeps its type where the value fits. A mount of the checkout must not be there: setfattr does the same in it.
    Set {
        #[command(flatten)]
        object: Object,

        /// What is set: units=mV, gain=2.5, range='[0, 10]'
        #[arg(value_name = "NAME=VALUE", required = true)]
        values: Vec<String>,
    },
    /// Print the dimensions of a variable of a netCDF-4 store, or give a new one some
    ///
    /// A new variable has the dimensions of the one that it takes the place of, or those that its shape names: each of its
    /// lengths is that of one dimension only, and occurs once. All others are given theirs, by the names that are defined in its
    /// group and above it.
    Dims {
        #[command(flatten)]
        object: Object,

        /// The names, in order: time,lat,lon
        #[arg(value_name = "NAMES", value_delimiter = ',', conflicts_with = "none")]
        names: Vec<String>,

        /// It has no dimensions, whatever its shape says
        #[arg(long)]
        none: bool,
    },
    /// Remove attributes
    Rm {
        #[command(flatten)]
        object: Object,

        /// The attributes
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
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

    /// The object, as a mount names it; . is the root
    path: PathBuf,
}

impl Object {
    fn names(&self) -> Vec<Vec<u8>> {
        let names = self.path.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.as_bytes().to_vec()),
            _ => None,
        });
        names.collect()
    }

    fn failed(&self, why: &dyn std::fmt::Display) -> CliError {
        CliError::object(format!("{}: {why}", self.path.display()))
    }

    /// Returns the object as it is shown.
    fn node(&self) -> Result<Node, CliError> {
        let found = self.which.find_if_any(self.name.as_deref())?;
        let mut layers = found.checkouts.committed().map_err(refused)?;
        if let Some(name) = found.name_if_shown()? {
            let summary = found.checkouts.find(&name).map_err(refused)?;
            let own = summary.on_top(&layers).map_err(refused)?;
            layers.push(own);
        }
        let mut node = Node::Directory(BaseStore::open(&found.checkouts)?.with(&layers).root());
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
        let attributes = match &node {
            Node::Directory(dir) => dir.attributes(),
            Node::File(file) => file.attributes(),
            Node::Symlink(_) => return Err(self.failed(&"a symbolic link")),
        };
        let attributes = attributes.map_err(refused)?.into_iter();
        let shown = attributes.filter_map(|attribute| {
            let name = String::from_utf8_lossy(&attribute.name).into_owned();
            let text = match info::value(&attribute.value.ok()?) {
                Json::String(text) => text,
                json => json.to_string(),
            };
            Some((name, text))
        });
        Ok(shown.collect())
    }

    /// Makes changes, one after the other.
    fn change(
        &self,
        changes: impl Iterator<Item = impl FnOnce(&LayerTarget) -> npyfs_base::error::Result<()>>,
    ) -> Result<(), CliError> {
        let found = self.which.find(self.name.as_deref())?;
        let name = found.name_or_only()?;
        let base = BaseStore::open(&found.checkouts)?;
        let (root, registry) = (base.base.clone(), formats::registry());
        let target = LayerTarget::open(root, &base.context, &registry, &found.checkouts, &name);
        let target = target.map_err(refused)?;
        for change in changes {
            change(&target).map_err(|e| self.failed(&e.message))?;
        }
        target.sync().map_err(refused)
    }

    /// Changes attributes.
    fn change_attributes<'a>(
        &self,
        changes: impl Iterator<Item = (&'a str, AttributeChange<'a>)>,
    ) -> Result<(), CliError> {
        let path = &self.names();
        self.change(changes.map(|(name, change)| {
            move |target: &LayerTarget| target.set_attribute(path, name.as_bytes(), change)
        }))
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    match &args.command {
        Command::Ls(object) => {
            let line = |(name, text): &(String, String)| {
                format!("{}={}\n", printable::line(name), printable::line(text))
            };
            print(&object.shown()?.iter().map(line).collect::<String>())
        }
        Command::Get { object, attribute } => {
            let all = object.shown()?;
            let found = all.iter().find(|(known, _)| known == attribute);
            let no = || object.failed(&format!("no attribute {attribute:?}"));
            let (_, text) = found.ok_or_else(no)?;
            print(&format!("{text}\n"))
        }
        Command::Set { object, values } => {
            let split = |given: &'_ String| {
                given
                    .split_once('=')
                    .map(|(n, v)| (n.to_owned(), v.to_owned()))
                    .ok_or_else(|| CliError::usage(format!("{given}: not of the form NAME=VALUE")))
            };
            let pairs = values.iter().map(split).collect::<Result<Vec<_>, _>>()?;
            let pairs = pairs.iter();
            object.change_attributes(
                pairs.map(|(n, v)| (n.as_str(), AttributeChange::Set(v.as_bytes()))),
            )
        }
        Command::Dims {
            object,
            names,
            none: false,
        } if names.is_empty() => print(&format!("{}\n", object.dimensions()?)),
        Command::Dims { object, names, .. } => {
            let path = object.names();
            let set = |target: &LayerTarget| target.set_dimensions(&path, names);
            object.change(std::iter::once(set))
        }
        Command::Rm { object, names } => {
            let names = names.iter();
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
