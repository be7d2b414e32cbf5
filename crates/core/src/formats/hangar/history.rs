//! Times of the last changes of samples and columns, along the history of first parents.
//!
//! The time of a sample is that of the commit that gave it its present content. The time of a column is that of the
//! last commit that changed anything in it. Times follow from a commit's digest and never change.

use std::collections::HashSet;
use std::sync::Arc;

use super::column::Column;
use super::commit::Commit;
use super::repository::Repository;
use super::time_cache::{ColumnTimes, Times};
use npyfs_base::error::Result;

/// Returns the times of `commit`; `before` is its first parent with its times.
fn follow(commit: &Commit, before: Option<(&Commit, &Times)>) -> Times {
    let now = commit.spec.time;
    let column = |(name, column): (&Vec<u8>, &Arc<Column>)| {
        let old =
            before.and_then(|(commit, times)| Some((commit.columns.get(name)?, times.get(name)?)));
        let times = match old {
            Some((old, times)) if old.content == column.content => times.clone(),
            Some((old, times)) => {
                let same = old.same_in(column);
                let each = same.map(|at| at.map_or(now, |at| times.of(at)));
                Arc::new(ColumnTimes::new(&each.collect::<Vec<_>>(), now))
            }
            None => Arc::new(ColumnTimes::new(&vec![now; column.len()], now)),
        };
        (name.clone(), times)
    };
    commit.columns.iter().map(column).collect()
}

impl Repository {
    /// Returns the times of a commit or of the staging area. They are found once, and are kept in the cache for
    /// commits.
    pub fn times(&self, commit: &Commit) -> Result<Arc<Times>> {
        if commit.digest.is_empty() {
            let before = match commit.parents.first() {
                Some(parent) => {
                    let parent = self.commit(parent)?;
                    let times = self.times(&parent)?;
                    Some((parent, times))
                }
                None => None,
            };
            let before = before.as_ref().map(|(commit, times)| (&**commit, &**times));
            return Ok(Arc::new(follow(commit, before)));
        }
        if let Some(times) = self.time_cache.known(commit) {
            return Ok(times);
        }
        // The walk goes back to a commit with known times or to the root, then forward again.
        let mut chain: Vec<String> = Vec::new();
        let mut seen = HashSet::new();
        let mut parent = commit.parents.first().cloned();
        let mut start = None;
        while let Some(digest) = parent.take() {
            // An incomplete history begins with its first present commit.
            let Ok((parents, _)) = self.describe(&digest) else {
                break;
            };
            if !seen.insert(digest.clone()) {
                break;
            }
            if self.time_cache.remembers(&digest)
                && let Ok(known) = self.commit(&digest)
                && let Some(times) = self.time_cache.known(&known)
            {
                start = Some((known, times));
                break;
            }
            chain.push(digest);
            parent = parents.into_iter().next();
        }
        for digest in chain.iter().rev() {
            let Ok(next) = self.commit(digest) else {
                start = None;
                continue;
            };
            let before = start
                .as_ref()
                .map(|(commit, times): &(Arc<Commit>, Arc<Times>)| (&**commit, &**times));
            let times = Arc::new(follow(&next, before));
            self.time_cache.keep(digest, &times);
            start = Some((next, times));
        }
        let before = start.as_ref().map(|(commit, times)| (&**commit, &**times));
        let times = Arc::new(follow(commit, before));
        self.time_cache.keep(&commit.digest, &times);
        self.time_cache.save(&commit.digest, &times);
        Ok(times)
    }
}
