//! Times: when samples and columns changed last, on the history of first parents.
//!
//! A sample has the time of the commit since which it has been what it is; a column that of the last commit
//! that changed anything in it. Times follow from a commit's digest and never change.

use std::collections::{BTreeMap, HashSet};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex};

use lru::LruCache;
use serde::{Deserialize, Serialize};

use super::column::Column;
use super::commit::Commit;
use super::repository::Repository;
use super::time_cache::TimeCache;
use crate::error::Result;

/// Commits whose times are kept in memory.
const KEPT: usize = 8;

/// Times of a column's samples in nanoseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnTimes {
    /// The time of the last change of anything in it.
    pub changed: i64,
    /// The times that occur.
    times: Vec<i64>,
    /// The index of each sample's own time among them; empty if there is but one.
    which: Vec<u32>,
    /// Samples in all.
    samples: usize,
}

impl ColumnTimes {
    pub fn new(times: &[i64], changed: i64) -> Self {
        let mut distinct = times.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let place = |time: &i64| distinct.binary_search(time).ok();
        let which = match distinct.len() {
            0 | 1 => Vec::new(),
            _ => times
                .iter()
                .map(|time| place(time).and_then(|n| u32::try_from(n).ok()).unwrap_or(0))
                .collect(),
        };
        Self {
            changed,
            samples: times.len(),
            times: distinct,
            which,
        }
    }

    /// The time of a sample.
    pub fn of(&self, at: usize) -> i64 {
        let which = self.which.get(at).copied().unwrap_or(0);
        self.times
            .get(which as usize)
            .copied()
            .unwrap_or(self.changed)
    }

    /// Returns whether these can be the times of a column.
    fn fit(&self, column: &Column) -> bool {
        let which = self.which.is_empty() || self.which.len() == self.samples;
        self.samples == column.len() && which
    }
}

/// Times of all columns of a commit, by name.
pub(super) type Times = BTreeMap<Vec<u8>, Arc<ColumnTimes>>;

/// The times of a repository, as far as they are known.
pub struct History {
    kept: Mutex<LruCache<String, Arc<Times>>>,
    time_cache: TimeCache,
}

impl History {
    pub fn new(folder: &Path) -> Self {
        Self {
            kept: Mutex::new(LruCache::new(
                NonZeroUsize::new(KEPT).unwrap_or(NonZeroUsize::MIN),
            )),
            time_cache: TimeCache::new(folder),
        }
    }

    fn known(&self, commit: &Commit) -> Option<Arc<Times>> {
        let mut kept = self.kept.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(times) = kept.get(&commit.digest) {
            return Some(times.clone());
        }
        let times = Arc::new(self.time_cache.load(&commit.digest)?);
        let fit = times.len() == commit.columns.len()
            && commit
                .columns
                .iter()
                .all(|(name, column)| times.get(name).is_some_and(|t| t.fit(column)));
        fit.then(|| {
            kept.put(commit.digest.clone(), times.clone());
            times
        })
    }

    fn keep(&self, digest: &str, times: &Arc<Times>) {
        let mut kept = self.kept.lock().unwrap_or_else(|e| e.into_inner());
        kept.put(digest.to_owned(), times.clone());
    }
}

/// Times of `commit`, of which `before` is the first parent with its times.
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
    /// The times of a commit or of the staging area; found once, and kept in the cache for commits.
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
        if let Some(times) = self.history.known(commit) {
            return Ok(times);
        }
        // Back to where times are known, or to the root; then forward again.
        let mut chain: Vec<String> = Vec::new();
        let mut seen = HashSet::new();
        let mut parent = commit.parents.first().cloned();
        let mut start = None;
        while let Some(digest) = parent.take() {
            // A history that is not here begins with its first commit that is.
            let Ok((parents, _)) = self.describe(&digest) else {
                break;
            };
            if !seen.insert(digest.clone()) {
                break;
            }
            if self.history.remembers(&digest)
                && let Ok(known) = self.commit(&digest)
                && let Some(times) = self.history.known(&known)
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
            self.history.keep(digest, &times);
            start = Some((next, times));
        }
        let before = start.as_ref().map(|(commit, times)| (&**commit, &**times));
        let times = Arc::new(follow(commit, before));
        self.history.keep(&commit.digest, &times);
        self.history.time_cache.save(&commit.digest, &times);
        Ok(times)
    }
}

impl History {
    /// Returns whether the times of a commit may be known without its history.
    fn remembers(&self, digest: &str) -> bool {
        let kept = self.kept.lock().unwrap_or_else(|e| e.into_inner());
        kept.contains(digest) || self.time_cache.has(digest)
    }
}
