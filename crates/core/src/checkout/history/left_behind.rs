//! Finds checkouts that were left behind when their store was moved or renamed within its directory.
//!
//! The store is recognized by its files: their sizes and times survive a move. Only the indexes of checkouts are
//! opened.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::location::{CheckoutsPlace, OWNER, SUFFIX, begun_on};
use crate::store::is_checkouts;
use npyfs_base::printable::shell_word;
use npyfs_io::dir::Dir;
use npyfs_io::rights::Rights;

/// The most names that are read in the store's directory.
const MOST_NAMES: usize = 65_536;

/// The most directories of checkouts that are opened.
const MOST_LOOKS: usize = 64;

/// Checkouts that were left behind by their store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftBehind {
    /// The directory that they are in.
    dir: PathBuf,
    repair: Repair,
}

/// How to return the checkouts to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Repair {
    /// Rename the directory to this.
    Rename(PathBuf),
    /// Record the store in this file of the directory.
    Mark(PathBuf),
}

impl LeftBehind {
    /// Returns the error for writes: new checkouts would occupy the place that these need.
    pub fn refusal(&self) -> String {
        format!(
            "{} has the checkouts of this store, which was moved: before anything is written they go along, or out of that \
             directory: {}",
            self.dir.display(),
            self.command()
        )
    }

    /// Returns the command that returns the checkouts to the store.
    pub fn command(&self) -> String {
        match &self.repair {
            Repair::Rename(to) => format!("mv {} {}", shell_word(&self.dir), shell_word(to)),
            Repair::Mark(store) => {
                let file = self.dir.join(OWNER);
                format!("echo {} > {}", shell_word(store), shell_word(&file))
            }
        }
    }
}

impl fmt::Display for LeftBehind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} has the checkouts of this store, which was moved: they are not shown until {}",
            self.dir.display(),
            self.command()
        )
    }
}

impl CheckoutsPlace {
    /// Returns the checkouts that a store without any has left behind, if its files identify them.
    pub fn left_behind(&self, store: &Path, rights: &Rights) -> Option<LeftBehind> {
        if self.bucket().is_some() || self.dir.symlink_metadata().is_ok() {
            return None;
        }
        let is_its = |dir: &PathBuf| {
            let opened = Dir::open(dir, rights, false);
            opened.is_ok_and(|opened| matches!(begun_on(&opened, store), Ok(Some(true))))
        };
        let (candidates, repair) = match &self.mark {
            Some(own) => {
                let store = PathBuf::from(OsStr::from_bytes(own));
                (self.abandoned.clone(), Repair::Mark(store))
            }
            None if self.follow => return None,
            None => (
                orphans(self.dir.parent()?),
                Repair::Rename(self.dir.clone()),
            ),
        };
        let mut candidates = candidates.into_iter().take(MOST_LOOKS);
        let dir = candidates.find(is_its)?;
        Some(LeftBehind { dir, repair })
    }
}

/// Returns the directories of checkouts in a directory whose stores are not beside them.
fn orphans(dir: &Path) -> Vec<PathBuf> {
    let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let orphan = |path: PathBuf| {
        let store = path
            .as_os_str()
            .as_bytes()
            .strip_suffix(SUFFIX.as_bytes())?;
        let is_gone = Path::new(OsStr::from_bytes(store))
            .symlink_metadata()
            .is_err();
        (is_gone && is_checkouts(&path)).then_some(path)
    };
    let names = names.take(MOST_NAMES);
    let mut orphans: Vec<PathBuf> = names.filter_map(|entry| orphan(entry.path())).collect();
    orphans.sort();
    orphans
}

/// Returns the directory of checkouts of a store that no longer exists at its path.
pub fn orphaned_at(store: &Path) -> Option<PathBuf> {
    if store.symlink_metadata().is_ok() {
        return None;
    }
    let mut dir = store.as_os_str().to_owned();
    dir.push(SUFFIX);
    Some(PathBuf::from(dir)).filter(|dir| is_checkouts(dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_one_for_a_shell() {
        let left = |dir: &str, repair| LeftBehind {
            dir: dir.into(),
            repair,
        };
        let renamed = left(
            "/a/x.h5.checkouts",
            Repair::Rename("/a/it's.checkouts".into()),
        );
        assert_eq!(
            renamed.command(),
            r"mv /a/x.h5.checkouts '/a/it'\''s.checkouts'"
        );
        let marked = left("/all/x.h5.checkouts", Repair::Mark("/b c/x.h5".into()));
        assert_eq!(
            marked.command(),
            "echo '/b c/x.h5' > /all/x.h5.checkouts/.store"
        );
    }
}
