//! Follows the commits of a store: a thread asks for the next commit by its number, and adds its layer on top of the
//! view.
//!
//! It opens one name at a time and lists nothing. A commit or layer that cannot be read changes nothing and is tried
//! again. Open files are not affected: a layer below others keeps its files.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use serde_json::{Value as Json, json};

use super::View;
use crate::checkout::history::checkouts::Checkouts;
use crate::checkout::history::commits::CommitRecords;
use crate::checkout::history::committed_layers::add_layers;
use crate::checkout::records::layer_files::LayerFiles;
use crate::dataset::context::Context;
use crate::store::format::Registry;
use crate::tree::Directory;
use npyfs_base::error::{Error, Result};
use npyfs_base::thread;
use npyfs_io::dir::Dir;

/// The progress of the thread.
#[derive(Default)]
struct Progress {
    /// The number of commits that are shown, and the id of the last.
    shown: (usize, Option<String>),
    /// The failure of the last attempt.
    failed: Option<String>,
    /// The failure that was logged.
    told: Option<String>,
    is_over: bool,
}

/// The state that the thread and the mount share.
#[derive(Default)]
struct Shared {
    progress: Mutex<Progress>,
    changed: Condvar,
}

/// A view that shows new commits as long as this value exists.
pub struct Follower {
    shared: Arc<Shared>,
    every: Duration,
}

impl Follower {
    /// Returns the store with its commits on top, and the follower that updates it.
    pub fn start(
        base: Arc<dyn Directory>,
        context: &Arc<Context>,
        formats: &Registry,
        checkouts: &Checkouts,
        every: Duration,
    ) -> Result<(Arc<dyn Directory>, Self)> {
        let (mut commits, layers) = checkouts.committed_until_now()?;
        let view = View::over(base, context, formats, layers);
        let root = view.root();
        let shared = Arc::new(Shared::default());
        shared.progress.lock().shown = last(&commits);
        commits.forget();
        let mut look = CommittedView {
            view,
            checkouts: checkouts.clone(),
            dir: None,
            context: context.clone(),
        };
        let follower = Self {
            shared: shared.clone(),
            every,
        };
        thread::spawn("follow", move || look.follow(commits, &shared, every))?;
        Ok((root, follower))
    }

    /// Returns the number of commits that are shown.
    pub fn shown(&self) -> usize {
        self.shared.progress.lock().shown.0
    }

    /// Returns a function that makes the report for `status.json`.
    pub fn report(&self) -> impl Fn() -> Json + Send + Sync + 'static {
        let (shared, seconds) = (self.shared.clone(), self.every.as_secs());
        move || {
            let progress = shared.progress.lock();
            let (number, id) = &progress.shown;
            json!({ "seconds": seconds, "commit": number, "id": id, "stays_because": progress.told })
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // The thread is not joined: the disk that it reads may not respond.
        self.shared.progress.lock().is_over = true;
        self.shared.changed.notify_all();
    }
}

/// The view of the committed layers of a store.
struct CommittedView {
    view: Arc<View>,
    checkouts: Checkouts,
    /// Their directory, as last opened.
    dir: Option<Dir>,
    context: Arc<Context>,
}

impl CommittedView {
    fn follow(&mut self, mut commits: CommitRecords, shared: &Shared, every: Duration) {
        loop {
            let mut progress = shared.progress.lock();
            let goes_on = |progress: &mut Progress| !progress.is_over;
            shared.changed.wait_while_for(&mut progress, goes_on, every);
            if progress.is_over {
                return;
            }
            drop(progress);
            let looked = self.show_new_commits(&mut commits);
            if let Some(line) = shared.progress.lock().note(&commits, looked) {
                let line = format!("{}: {line}", self.checkouts.store().display());
                self.context.journal.add(&line);
            }
        }
    }

    /// Shows new commits, as far as they and their layers can be read.
    fn show_new_commits(&mut self, commits: &mut CommitRecords) -> Result<()> {
        let known = commits.len();
        let read = self.checkouts.read_on(&mut self.dir, commits);
        if commits.len() == known {
            return read;
        }
        let mut layers: Vec<LayerFiles> = self.view.layers();
        let laid = match &self.dir {
            Some(dir) => add_layers(dir, commits.after(known).unwrap_or_default(), &mut layers),
            None => Ok(()),
        };
        commits.truncate(layers.len());
        let new = layers.split_off(known.min(layers.len()));
        if !new.is_empty() {
            self.view.add_layers(new);
        }
        commits.forget();
        laid.and(read)
    }
}

impl Progress {
    /// Records the result of an attempt, and returns a line for the log if there is news.
    fn note(&mut self, commits: &CommitRecords, looked: Result<()>) -> Option<String> {
        self.shown = last(commits);
        let number = commits.len();
        let failed = looked.err().map(|e: Error| e.message);
        let again = failed == self.failed;
        self.failed = failed;
        match &self.failed {
            None => {
                let told = self.told.take();
                told.map(|_| format!("the mount follows commits again: it shows commit {number}"))
            }
            // A commit in progress on another host may be partly visible for a moment.
            Some(why) if again && self.told != self.failed => {
                self.told.clone_from(&self.failed);
                Some(format!("the mount stays at commit {number}: {why}"))
            }
            Some(_) => None,
        }
    }
}

/// Returns the number of commits and the id of the last.
fn last(commits: &CommitRecords) -> (usize, Option<String>) {
    (commits.len(), commits.last_id().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkout::history::commits::LayerCommit;

    #[test]
    fn a_failure_is_told_once_and_not_at_first_sight() {
        let mut progress = Progress::default();
        let commits = CommitRecords::from(vec![LayerCommit::default()]);
        let bad = |why: &str| Err(Error::damaged(why));
        assert_eq!(progress.note(&commits, bad("a")), None);
        assert_eq!(progress.note(&commits, Ok(())), None);
        assert_eq!(progress.note(&commits, bad("a")), None);
        let told = progress.note(&commits, bad("a"));
        assert_eq!(told.as_deref(), Some("the mount stays at commit 1: a"));
        assert_eq!(progress.note(&commits, bad("a")), None);
        assert_eq!(progress.note(&commits, bad("b")), None);
        assert!(progress.note(&commits, bad("b")).is_some());
        assert!(progress.note(&commits, Ok(())).is_some());
        assert_eq!(progress.note(&commits, Ok(())), None);
    }
}
