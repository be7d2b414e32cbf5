//! A directory of a tree as the root of its own tree.
//!
//! Nothing in it leads outside: symbolic links to outside targets are left out, as the kernel would resolve them
//! relative to the directories above the mount point.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value as Json;

use super::array::StoredArray;
use super::path::{PathError, find_names};
use super::{Directory, Listing, Node, StoreHandle, Symlink, info, suggestion};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_hdf5::Attribute;
use npyfs_io::file::Ownership;

/// The root of a subtree.
pub struct Subtree {
    /// The path of names to it in the whole tree, without links.
    pub names: Vec<Vec<u8>>,
    /// The directory.
    pub root: Arc<dyn Directory>,
}

impl Subtree {
    /// Finds the directory at a path of a tree.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be found; for a missing name, with a suggestion.
    pub fn find(whole: &Arc<dyn Directory>, path: &Path) -> Result<Self> {
        let about = |e: Error| e.about(path.display());
        let found = find_names(whole, path.as_os_str().as_bytes());
        let (names, node) = found.map_err(|not| match not {
            PathError::Missing => {
                let hint = suggestion::for_path(whole, path, path).unwrap_or_default();
                let why = format!("no such path in the store{hint}");
                about(Error::new(ErrorKind::NotFound, why))
            }
            PathError::Failed(e) => about(e),
        })?;
        let Node::Directory(dir) = node else {
            let why = "it is no directory of the store, but a file in one";
            return Err(about(Error::new(ErrorKind::NotDirectory, why)));
        };
        let place = Place::Root {
            whole: whole.clone(),
            names: names.clone(),
            current: Mutex::new(dir),
        };
        Ok(Self {
            root: Arc::new(SubtreeDirectory {
                place,
                top: names.clone().into(),
                below: Vec::new(),
            }),
            names,
        })
    }
}

/// The position of a directory in a subtree.
enum Place {
    /// It is the root, which is looked up again when it is no longer current.
    Root {
        whole: Arc<dyn Directory>,
        names: Vec<Vec<u8>>,
        current: Mutex<Arc<dyn Directory>>,
    },
    Below(Arc<dyn Directory>),
}

struct SubtreeDirectory {
    place: Place,
    /// The path of names to the root of the subtree.
    top: Arc<[Vec<u8>]>,
    /// The path of names from there to this directory.
    below: Vec<Vec<u8>>,
}

impl SubtreeDirectory {
    /// Returns the present directory in the whole tree; fails if it no longer exists.
    fn inner(&self) -> Result<Arc<dyn Directory>> {
        let (whole, names, current) = match &self.place {
            Place::Below(dir) => return Ok(dir.clone()),
            Place::Root {
                whole,
                names,
                current,
            } => (whole, names, current),
        };
        let mut current = current.lock();
        if !current.is_current() {
            let mut dir = whole.clone();
            for name in names {
                dir = match dir.lookup(name)? {
                    Some(Node::Directory(below)) => below,
                    _ => {
                        let path = names.join(&b'/');
                        let why =
                            format!("{}: gone from the store", String::from_utf8_lossy(&path));
                        return Err(Error::new(ErrorKind::NotFound, why));
                    }
                };
            }
            *current = dir;
        }
        Ok(current.clone())
    }

    /// Returns the node of a name in this directory as shown in the subtree.
    fn shown(&self, name: &[u8], node: Node) -> std::result::Result<Node, String> {
        match node {
            Node::Directory(dir) => Ok(Node::Directory(Arc::new(Self {
                place: Place::Below(dir),
                top: self.top.clone(),
                below: [&self.below[..], &[name.to_vec()]].concat(),
            }))),
            Node::Symlink(link) => match target_within(&link.target, &self.top, &self.below) {
                Some(target) => Ok(Node::Symlink(Arc::new(Symlink {
                    target,
                    ownership: link.ownership,
                }))),
                None => {
                    let target = String::from_utf8_lossy(&link.target).into_owned();
                    Err(format!(
                        "link to {target}, which is not in the mounted part"
                    ))
                }
            },
            node @ Node::File(_) => Ok(node),
        }
    }
}

/// Returns the target of a link as spelled in the subtree `top`, for a link in the directory `below` it; `None` if the
/// target may be outside.
fn target_within(target: &[u8], top: &[Vec<u8>], below: &[Vec<u8>]) -> Option<Vec<u8>> {
    let mut names = target.split(|&b| b == b'/').peekable();
    let mut up: usize = 0;
    while names.next_if(|name| *name == b"..").is_some() {
        up += 1;
    }
    let rest: Vec<&[u8]> = names.collect();
    if target.starts_with(b"/") || rest.contains(&&b".."[..]) {
        return None;
    }
    let Some(above) = up.checked_sub(below.len()).filter(|above| *above > 0) else {
        return Some(target.to_vec());
    };
    // Above the root of the subtree, and down to it again.
    let own = top.get(top.len().checked_sub(above)?..)?;
    let rest = rest.get(own.len()..).filter(|_| {
        let mut both = own.iter().zip(&rest);
        both.all(|(own, name)| own == name)
    })?;
    let up = std::iter::repeat_n(&b".."[..], below.len());
    let within: Vec<&[u8]> = up.chain(rest.iter().copied()).collect();
    Some(match within.is_empty() {
        true => b".".to_vec(),
        false => within.join(&b'/'),
    })
}

impl Directory for SubtreeDirectory {
    fn ownership(&self) -> Ownership {
        self.inner()
            .map_or(Ownership::UNKNOWN, |dir| dir.ownership())
    }

    fn list(&self) -> Result<Arc<Listing>> {
        let listing = self.inner()?.list()?;
        let mut left_out = listing.left_out.clone();
        let mut entries = Vec::with_capacity(listing.entries.len());
        for (name, node) in &listing.entries {
            match self.shown(name, node.clone()) {
                Ok(node) => entries.push((name.clone(), node)),
                Err(why) => left_out.push((name.clone(), why)),
            }
        }
        let mut shown = Listing::new(entries, left_out, listing.notes.clone())
            .with_damage(listing.damage.clone());
        // Samples, which contain no links.
        shown.many = listing.many.clone();
        Ok(Arc::new(shown))
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        let found = self.inner()?.lookup(name)?;
        Ok(found.and_then(|node| self.shown(name, node).ok()))
    }

    fn is_current(&self) -> bool {
        // The root is as current as the directory that it was found in.
        self.inner().is_ok_and(|dir| dir.is_current())
    }

    fn at_present(&self) -> Result<Option<Arc<dyn Directory>>> {
        let inner = self.inner()?;
        let place = Place::Below(inner.at_present()?.unwrap_or(inner));
        Ok(Some(Arc::new(Self {
            place,
            top: self.top.clone(),
            below: self.below.clone(),
        })))
    }

    fn is_lasting(&self) -> bool {
        self.inner().is_ok_and(|dir| dir.is_lasting())
    }

    fn is_store(&self) -> bool {
        self.inner().is_ok_and(|dir| dir.is_store())
    }

    fn is_object(&self) -> bool {
        self.inner().is_ok_and(|dir| dir.is_object())
    }

    fn format(&self) -> Result<&'static str> {
        self.inner()?.format()
    }

    fn info(&self) -> Result<Json> {
        let inner = self.inner()?;
        let mut info = inner.info()?;
        let listing = inner.list()?;
        let out = listing.entries.iter().filter_map(|(name, node)| {
            let why = self.shown(name, node.clone()).err()?;
            Some((name.clone(), why))
        });
        if let Some(Json::Array(left_out)) = info.get_mut("left_out")
            && let Json::Array(more) = info::left_out(&out.collect::<Vec<_>>())
        {
            left_out.extend(more);
        }
        Ok(info)
    }

    fn handle(&self) -> Option<StoreHandle> {
        self.inner().ok()?.handle()
    }

    fn array(self: Arc<Self>) -> Result<Option<Arc<dyn StoredArray>>> {
        self.inner()?.array()
    }

    fn warm(&self) {
        if let Ok(dir) = self.inner() {
            dir.warm();
        }
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        self.inner()?.attributes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_what_is_in_the_subtree_or_nowhere() {
        let names = |path: &str| -> Vec<Vec<u8>> {
            let names = path.split('/').filter(|name| !name.is_empty());
            names.map(|name| name.as_bytes().to_vec()).collect()
        };
        let within = |target: &str, below: &str| {
            let target = target_within(target.as_bytes(), &names("foo/bar"), &names(below))?;
            Some(String::from_utf8(target).unwrap())
        };
        for (target, below, shown) in [
            ("a", "", "a"),
            (".", "", "."),
            ("..", "d", ".."),
            ("../a", "d", "../a"),
            ("../../foo/bar/a", "", "a"),
            ("../bar/a/b", "", "a/b"),
            ("../bar", "", "."),
            ("../../../foo/bar/a", "d", "../a"),
            ("../../../../foo/bar", "d/e", "../.."),
        ] {
            assert_eq!(within(target, below).as_deref(), Some(shown), "{target}");
        }
        for (target, below) in [
            ("/a", "d"),
            ("..", ""),
            ("../a", ""),
            ("../../foo/a", ""),
            ("../../../foo/bar/a", ""),
            ("../../a", "d"),
            ("a/../..", "d"),
            ("../barn/a", ""),
        ] {
            assert_eq!(within(target, below), None, "{target}");
        }
    }
}
