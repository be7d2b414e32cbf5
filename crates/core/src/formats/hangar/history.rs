//! Times of the last changes of samples and columns, along the history of first parents.
//!
//! The time of a sample is that of the commit that gave it its present content. The time of a column is that of the
//! last commit that changed anything in it. Times follow from a commit's digest and never change.

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
use npyfs_base::error::Result;

/// The number of commits whose times are kept in memory.
const KEPT: usize = 8;

/// The times of a column's samples in nanoseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnTimes {
    /// The time of the last change in the column.
    pub changed: i64,
    /// The distinct times.
    times: Vec<i64>,
    /// The index into `times` for each sample; empty if there is only one time.
    which: Vec<u32>,
    /// The number of samples.
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

    /// Returns the time of a sample.
    pub fn of(&self, at: usize) -> i64 {
        let which = self.which.get(at).copied().unwrap_or(0);
        self.times
            .get(which as usize)
            .copied()
            .unwrap_or(self.changed)
    }

    /// Returns true if these can be the times of a column.
    fn fit(&self, column: &Column) -> bool {
        let which = self.which.is_empty() || self.which.len() == self.samples;
        self.samples == column.len() && which
    }
}

/// The times of all columns of a commit, by name.
pub(super) type Times = BTreeMap<Vec<u8>, Arc<ColumnTimes>>;

/// The known times of a repository.
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
        if let Some(times) = self.history.known(commit) {
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
    /// Returns true if the times of a commit may be known without its history.
    fn remembers(&self, digest: &str) -> bool {
        let kept = self.kept.lock().unwrap_or_else(|e| e.into_inner());
        kept.contains(digest) || self.time_cache.has(digest)
    }
}
