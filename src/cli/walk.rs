//! Paths inside a store without a kernel: what `ls`, `cat` and `info` have in common.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use crate::checkout::checkouts::Checkouts;
use crate::cli::{CliError, options};
use crate::control;
use crate::fs::Fs;
use crate::h5::{H5, sandbox};
use crate::tree::{Directory, Node};

/// Symbolic links that a path may lead through.
const MOST_LINKS: usize = 40;

/// The store and the view options of a subcommand that reads without mounting.
#[derive(clap::Args, Debug)]
pub struct StoreArgs {
    /// View options as for `npyfs mount`: sep, external, text_limit, cache_size
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,

    /// An HDF5 file, a Hangar repository, or a directory with such
    store: PathBuf,
}

impl StoreArgs {
    pub fn open(&self) -> Result<Fs, CliError> {
        let options =
            options::parse(self.options.iter().map(String::as_str)).map_err(CliError::usage)?;
        let store = self
            .store
            .canonicalize()
            .map_err(|e| CliError::store(format!("{}: {e}", self.store.display())))?;
        let checkouts = Checkouts::of(&store, None);
        let readable = sandbox::readable(&store, options.fs.external);
        let own = readable.is_some().then(|| checkouts.dir().to_owned());
        let own = own.filter(|dir| dir.is_dir());
        let h5 = H5::workers(readable.into_iter().chain(own));
        Fs::open(&store, h5, options.fs, &checkouts)
            .map_err(|refusal| CliError::store(refusal.to_string()))
    }
}

/// The node a path leads to; links are followed, the last one only if `follow_last`.
pub fn find(fs: &Fs, path: &Path, follow_last: bool) -> Result<Node, CliError> {
    use std::os::unix::ffi::OsStrExt;
    let missing = || CliError::object(format!("{}: no such path in the store", path.display()));
    let parts = |bytes: &[u8]| -> Vec<Vec<u8>> {
        bytes
            .split(|&b| b == b'/')
            .filter(|part| !part.is_empty() && *part != b".")
            .map(<[u8]>::to_vec)
            .collect()
    };
    let mut above: Vec<std::sync::Arc<dyn Directory>> = vec![fs.root().clone()];
    let mut left: VecDeque<Vec<u8>> = parts(path.as_os_str().as_bytes()).into();
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if name == b".." {
            if above.len() > 1 {
                above.pop();
            }
            continue;
        }
        let Some(here) = above.last() else {
            return Err(missing());
        };
        let found = if above.len() == 1 && name == control::NAME {
            Some(Node::Directory(fs.control().clone()))
        } else {
            here.lookup(&name)
                .map_err(|e| CliError::object(format!("{}: {e}", path.display())))?
        };
        match found {
            None => return Err(missing()),
            Some(Node::Directory(dir)) => above.push(dir),
            Some(Node::Symlink(link)) if !left.is_empty() || follow_last => {
                links += 1;
                if links > MOST_LINKS {
                    return Err(CliError::object(format!(
                        "{}: too many links",
                        path.display()
                    )));
                }
                for part in parts(&link.target).into_iter().rev() {
                    left.push_front(part);
                }
            }
            Some(node) if left.is_empty() => return Ok(node),
            Some(_) => {
                return Err(CliError::object(format!(
                    "{}: not a directory",
                    path.display()
                )));
            }
        }
    }
    above.pop().map(Node::Directory).ok_or_else(missing)
}
