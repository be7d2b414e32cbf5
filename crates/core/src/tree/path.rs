//! Path lookup without a kernel: one name after the other, following symbolic links.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Directory, Node};
use npyfs_base::error::{Error, ErrorKind};

/// The most symbolic links in a path.
const MAX_LINKS: usize = 40;

/// The reason why a path cannot be resolved.
#[derive(Clone, Debug)]
pub enum PathError {
    /// The path does not exist.
    Missing,
    /// A directory on the way could not be read, or there are too many links.
    Failed(Error),
}

/// A directory of the root that its listing lacks, with its name.
type Hidden<'a> = Option<(&'a [u8], &'a Arc<dyn Directory>)>;

/// Returns the node at a path from `root`; no path leads above it. Links are followed, the last one only with
/// `follow_last`. `hidden` is a directory of the root that its listing lacks.
pub fn find(
    root: &Arc<dyn Directory>,
    hidden: Hidden<'_>,
    path: &[u8],
    follow_last: bool,
) -> Result<Node, PathError> {
    resolve(root, hidden, path, follow_last).map(|(_, node)| node)
}

/// Returns the node that [`find`] finds when it follows the last link, and its path of names without links.
pub fn find_names(
    root: &Arc<dyn Directory>,
    path: &[u8],
) -> Result<(Vec<Vec<u8>>, Node), PathError> {
    resolve(root, None, path, true)
}

/// Returns the node at shown names below `root`, which is that of no names; `None` if it does not exist. Links are not
/// followed.
pub fn walk<N: AsRef<[u8]>>(
    root: Arc<dyn Directory>,
    names: impl IntoIterator<Item = N>,
) -> npyfs_base::error::Result<Option<Node>> {
    let mut node = Node::Directory(root);
    for name in names {
        let Node::Directory(dir) = node else {
            return Ok(None);
        };
        match dir.lookup(name.as_ref())? {
            Some(below) => node = below,
            None => return Ok(None),
        }
    }
    Ok(Some(node))
}

fn resolve(
    root: &Arc<dyn Directory>,
    hidden: Hidden<'_>,
    path: &[u8],
    follow_last: bool,
) -> Result<(Vec<Vec<u8>>, Node), PathError> {
    let parts = |bytes: &[u8]| -> Vec<Vec<u8>> {
        bytes
            .split(|&b| b == b'/')
            .filter(|part| !part.is_empty() && *part != b".")
            .map(<[u8]>::to_vec)
            .collect()
    };
    let mut above: Vec<Arc<dyn Directory>> = vec![root.clone()];
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut left: VecDeque<Vec<u8>> = parts(path).into();
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if name == b".." {
            if above.len() > 1 {
                above.pop();
                names.pop();
            }
            continue;
        }
        let here = above.last().ok_or(PathError::Missing)?;
        let found = match hidden {
            Some((known, dir)) if above.len() == 1 && name == known => {
                Some(Node::Directory(dir.clone()))
            }
            _ => here.lookup(&name).map_err(PathError::Failed)?,
        };
        match found {
            None => return Err(PathError::Missing),
            Some(Node::Directory(dir)) => {
                above.push(dir);
                names.push(name);
            }
            Some(Node::Symlink(link)) if !left.is_empty() || follow_last => {
                links += 1;
                if links > MAX_LINKS {
                    let e = Error::new(ErrorKind::Os(libc::ELOOP), "too many links");
                    return Err(PathError::Failed(e));
                }
                for part in parts(&link.target).into_iter().rev() {
                    left.push_front(part);
                }
            }
            Some(node) if left.is_empty() => {
                names.push(name);
                return Ok((names, node));
            }
            Some(_) => {
                let e = Error::new(ErrorKind::NotDirectory, "not a directory");
                return Err(PathError::Failed(e));
            }
        }
    }
    let last = above.pop().map(Node::Directory);
    Ok((names, last.ok_or(PathError::Missing)?))
}
