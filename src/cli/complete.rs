//! What a shell is offered for a word that is being typed: commands and options, mount options by name, names in
//! stores.
//!
//! The shell asks this program, by the environment. Only what lies on this machine is looked into. Whatever fails is no
//! candidate, and nothing is said.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::{Arg, Command, CommandFactory};
use clap_complete::CompleteEnv;
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};

use crate::cli::place::places;
use crate::cli::store::StoreArgs;
use crate::cli::{Cli, options};
use npyfs_core::formats::store_path::StorePath;
use npyfs_core::tree::Node;
use npyfs_io::remote::Address;

/// The variable by which a shell asks.
pub const VARIABLE: &str = "NPYFS_COMPLETE";

/// The most names of a directory that are offered.
const MOST: usize = 1000;

/// Answers a shell, if one asks.
pub fn answered(arguments: &[OsString]) -> bool {
    if std::env::var_os(VARIABLE).is_none() {
        return false;
    }
    // The terminal is the shell's.
    if let Ok(null) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    let asked = CompleteEnv::with_factory(command).var(VARIABLE);
    let here = std::env::current_dir().ok();
    asked
        .try_complete(arguments.iter().cloned(), here.as_deref())
        .unwrap_or(true)
}

/// Returns the commands, with what each of their arguments may be.
fn command() -> Command {
    with_values(Cli::command())
}

fn with_values(command: Command) -> Command {
    let value = |arg: Arg| {
        let of = |name: &str| {
            let names = arg.get_value_names().unwrap_or_default();
            names.iter().any(|known| known == name)
        };
        match arg.get_id().as_str() {
            "options" if of("OPTIONS") => arg.add(ArgValueCompleter::new(mount_options)),
            "store" => arg.add(ArgValueCompleter::new(stores)),
            "paths" | "path" if arg.is_positional() => arg.add(ArgValueCompleter::new(paths)),
            _ => arg,
        }
    };
    command.mut_args(value).mut_subcommands(with_values)
}

/// Offers the options of a mount, for the last of a list.
fn mount_options(current: &OsStr) -> Vec<CompletionCandidate> {
    let text = current.to_string_lossy();
    let (before, last) = match text.rfind(',') {
        Some(comma) => text.split_at(comma + 1),
        None => ("", &*text),
    };
    let known = options::names().filter(|(name, _)| name.starts_with(last));
    let candidate = |(name, help): (String, String)| {
        CompletionCandidate::new(format!("{before}{name}")).help(Some(help.into()))
    };
    known.map(candidate).collect()
}

/// Offers stores, and what lies in one behind `STORE:` or a slash.
fn stores(current: &OsStr) -> Vec<CompletionCandidate> {
    let words = Words::typed();
    // bash takes a colon for the end of a word.
    if let Some(store) = words.before_colon() {
        return names(&store, current.as_bytes(), b"/");
    }
    let place = StorePath::parse(Path::new(current));
    if let Some(inside) = place.inside {
        let store = place.store;
        let before = [store.as_os_str().as_bytes(), b":/"].concat();
        let inside = inside.as_os_str().as_bytes();
        return names(&store, inside, &before);
    }
    let above = Path::new(current).ancestors().skip(1);
    if let Some(store) = above.into_iter().find(|above| above.is_file()) {
        let before = [store.as_os_str().as_bytes(), b"/"].concat();
        let inside = current.as_bytes().get(before.len()..).unwrap_or_default();
        return names(store, inside, &before);
    }
    PathCompleter::any().complete(current)
}

/// Offers paths in the store that was typed before, or stores.
fn paths(current: &OsStr) -> Vec<CompletionCandidate> {
    let words = Words::typed();
    match words.store() {
        Some(store) if words.before_colon().is_none() => names(&store, current.as_bytes(), b""),
        _ => stores(current),
    }
}

/// Returns what a path in a store may go on with, with `before` in front of each.
fn names(store: &Path, inside: &[u8], before: &[u8]) -> Vec<CompletionCandidate> {
    let inside = inside.strip_prefix(b"/").unwrap_or(inside);
    let slash = inside.iter().rposition(|&byte| byte == b'/');
    let (above, begun) = inside.split_at(slash.map_or(0, |slash| slash + 1));
    let args = StoreArgs::new(store.to_owned());
    let place = match above.is_empty() {
        true => places(&args, &[]),
        false => places(&args, &[PathBuf::from(OsStr::from_bytes(above))]),
    };
    let Some(place) = place.ok().and_then(|mut places| places.pop()) else {
        return Vec::new();
    };
    let Ok(Node::Directory(dir)) = place.node(true) else {
        return Vec::new();
    };
    let Ok(listing) = dir.list() else {
        return Vec::new();
    };
    let fitting = listing.iter().filter(|(name, _)| name.starts_with(begun));
    let candidate = |name: &[u8], node: &Node| {
        let behind: &[u8] = match node {
            Node::Directory(_) => b"/",
            _ => b"",
        };
        let path = [before, above, name, behind].concat();
        CompletionCandidate::new(OsStr::from_bytes(&path).to_owned())
    };
    fitting
        .take(MOST)
        .map(|(name, node)| candidate(&name, &node))
        .collect()
}

/// The words that were typed before the one that is completed.
struct Words(Vec<OsString>);

impl Words {
    fn typed() -> Self {
        let typed = std::env::args_os().skip_while(|word| word != "--").skip(1);
        let index = std::env::var("_CLAP_COMPLETE_INDEX").ok();
        let index = index.and_then(|index| index.parse().ok());
        Self(typed.take(index.unwrap_or(0)).collect())
    }

    /// Returns the path in front of a colon, if a colon was typed last.
    fn before_colon(&self) -> Option<PathBuf> {
        match &self.0[..] {
            [.., path, colon] if colon == ":" => is_here(path).then(|| PathBuf::from(path)),
            _ => None,
        }
    }

    /// Returns the first word that is something on this machine.
    fn store(&self) -> Option<PathBuf> {
        let behind_command = self.0.iter().skip(2);
        let mut stores = behind_command.filter(|word| is_here(word));
        stores.next().map(PathBuf::from)
    }
}

/// Returns whether a word is a store, or something in one, on this machine.
fn is_here(word: &OsString) -> bool {
    let path = Path::new(word);
    Address::parse(path).is_none() && StorePath::parse(path).store.exists()
}
