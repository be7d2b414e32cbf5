//! Earlier commits: the store as of one of them, and checkouts that are committed.

use super::checkouts::{Checkouts, LayerFiles, check_name, dir_of, layers, name_of};
use super::commits::{self, LayerCommit};
use crate::error::{Error, ErrorKind, Result};
use crate::io::dir::Dir;

impl Checkouts {
    /// The layers that were committed when a commit had been made, lowest first. `at`: its id, or the beginning of that;
    /// ENOENT if there is none.
    pub fn committed_at(&self, at: &str) -> Result<Vec<LayerFiles>> {
        let none = |why: String| {
            let message = format!("{}: {why}", self.shown());
            Error::new(ErrorKind::NotFound, message)
        };
        let dir = self.opened_to_read()?;
        let dir = dir.ok_or_else(|| none("nothing was ever committed".to_owned()))?;
        let mut commits = commits::read(&dir)?;
        let number = commits::find(&commits, at).map_err(none)?;
        commits.truncate(number);
        layers(&dir, &commits)
    }

    /// Returns all commits, and their layers, lowest first.
    pub(super) fn committed_until_now(&self) -> Result<(Vec<LayerCommit>, Vec<LayerFiles>)> {
        let Some(dir) = self.opened_to_read()? else {
            return Ok((Vec::new(), Vec::new()));
        };
        let commits = commits::read(&dir)?;
        let layers = layers(&dir, &commits)?;
        Ok((commits, layers))
    }

    /// Adds the commits that were made since; those in front of one that cannot be read are added nevertheless. `dir` is the
    /// directory as it was opened last.
    pub(super) fn read_on(
        &self,
        dir: &mut Option<Dir>,
        commits: &mut Vec<LayerCommit>,
    ) -> Result<()> {
        if !dir.as_ref().is_some_and(Dir::is_in_place) {
            *dir = self.opened_to_read()?;
        }
        match dir {
            Some(dir) => commits::read_on(dir, commits),
            None if commits.is_empty() => Ok(()),
            None => {
                let why = "the checkouts are gone";
                Err(Error::damaged(why).about(self.shown()))
            }
        }
    }

    /// Opens the directory of the checkout `name`, or of the last one of that name that was committed; ENOENT if there is none.
    pub fn directory(&self, name: &str) -> Result<Dir> {
        check_name(name)?;
        let none = || {
            let message = format!("{}: no checkout {name}", self.shown());
            Error::new(ErrorKind::NotFound, message)
        };
        let dir = self.opened()?.ok_or_else(none)?;
        let commits = commits::read(&dir)?;
        match dir.below(&dir_of(name, &commits)) {
            Err(e) if e.kind == ErrorKind::NotFound => {
                let of_name = |commit: &&LayerCommit| name_of(&commit.layer) == Some(name);
                let last = commits.iter().rev().find(of_name).ok_or_else(none)?;
                dir.below(&last.layer)
            }
            layer => layer,
        }
    }
}
