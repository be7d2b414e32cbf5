//! The committed state of a store as others go on with it: a thread asks for the next commit by its number, and puts its layer on
//! top of what is shown.
//!
//! One name is asked for at a time, and nothing is listed. A commit or a layer that cannot be read leaves everything as it was;
//! it is asked for again. What is open is not concerned: a layer that is below others keeps its files.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::checkouts::{Checkouts, LayerFiles};
use super::commits::LayerCommit;
use super::format::Registry;
use super::layer_files::add_layers;
use super::layers;
use super::view::View;
use crate::dataset::context::Context;
use crate::error::{Error, Result};
use crate::io::dir::Dir;
use crate::io::thread;
use crate::tree::Directory;

/// How far the thread is.
#[derive(Default)]
struct Progress {
    /// Commits that are shown, and the id of the last.
    shown: (usize, Option<String>),
    /// The failure of the last look.
    failed: Option<String>,
    /// The failure that the log was told.
    told: Option<String>,
    is_over: bool,
}

/// What the thread and the mount share.
#[derive(Default)]
struct Shared {
    progress: Mutex<Progress>,
    changed: Condvar,
}

impl Shared {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// A view that shows new commits as long as this lives.
pub struct Follower {
    shared: Arc<Shared>,
    every: Duration,
}

impl Follower {
    /// Returns the store with what is committed on top, and what goes on with it.
    pub fn start(
        base: Arc<dyn Directory>,
        context: &Arc<Context>,
        formats: &Registry,
        checkouts: &Checkouts,
        every: Duration,
    ) -> Result<(Arc<dyn Directory>, Self)> {
        let (mut commits, layers) = checkouts.committed_until_now()?;
        let view = layers::over(base, context, formats, layers);
        let root = view.root();
        let shared = Arc::new(Shared::default());
        shared.progress().shown = last(&commits);
        commits.iter_mut().for_each(shorten);
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

    /// Returns how many commits are shown.
    pub fn shown(&self) -> usize {
        self.shared.progress().shown.0
    }

    /// Returns what makes the report on it in `status.json`.
    pub fn report(&self) -> impl Fn() -> Json + Send + Sync + 'static {
        let (shared, seconds) = (self.shared.clone(), self.every.as_secs());
        move || {
            let progress = shared.progress();
            let (number, id) = &progress.shown;
            json!({ "seconds": seconds, "commit": number, "id": id, "stays_because": progress.told })
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // It is not waited for: the disk that it asks may not answer.
        self.shared.progress().is_over = true;
        self.shared.changed.notify_all();
    }
}

/// The committed layers of a store as they are shown.
struct CommittedView {
    view: Arc<View>,
    checkouts: Checkouts,
    /// Their directory as it was opened last.
    dir: Option<Dir>,
    context: Arc<Context>,
}

impl CommittedView {
    fn follow(&mut self, mut commits: Vec<LayerCommit>, shared: &Shared, every: Duration) {
        loop {
            let waited = shared
                .changed
                .wait_timeout_while(shared.progress(), every, |progress| !progress.is_over);
            let is_over = waited.map_or_else(|e| e.into_inner().0.is_over, |(p, _)| p.is_over);
            if is_over {
                return;
            }
            let looked = self.look(&mut commits);
            if let Some(line) = shared.progress().note(&commits, looked) {
                let line = format!("{}: {line}", self.checkouts.store().display());
                self.context.journal.add(&line);
            }
        }
    }

    /// Shows the commits behind those that are known, as far as they and their layers can be read.
    fn look(&mut self, commits: &mut Vec<LayerCommit>) -> Result<()> {
        let known = commits.len();
        let read = self.checkouts.read_on(&mut self.dir, commits);
        if commits.len() == known {
            return read;
        }
        let mut layers: Vec<LayerFiles> = self.view.layers();
        let laid = match &self.dir {
            Some(dir) => add_layers(dir, commits, &mut layers),
            None => Ok(()),
        };
        commits.truncate(layers.len());
        let new = layers.split_off(known.min(layers.len()));
        if !new.is_empty() {
            self.view.add_layers(new);
        }
        commits.iter_mut().skip(known).for_each(shorten);
        laid.and(read)
    }
}

impl Progress {
    /// Notes what came of a look, and returns the line that the log is to have, if there is something new to say.
    fn note(&mut self, commits: &[LayerCommit], looked: Result<()>) -> Option<String> {
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
            // What is being made on another host may be seen in part for a moment.
            Some(why) if again && self.told != self.failed => {
                self.told.clone_from(&self.failed);
                Some(format!("the mount stays at commit {number}: {why}"))
            }
            Some(_) => None,
        }
    }
}

/// Returns how many commits there are, and the id of the last.
fn last(commits: &[LayerCommit]) -> (usize, Option<String>) {
    (commits.len(), commits.last().map(|last| last.id.clone()))
}

/// Leaves of a commit that is shown what later ones are read by.
fn shorten(commit: &mut LayerCommit) {
    let LayerCommit { id, layer, .. } = std::mem::take(commit);
    *commit = LayerCommit {
        id,
        layer,
        ..LayerCommit::default()
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_once_and_not_at_first_sight() {
        let mut progress = Progress::default();
        let commits = [LayerCommit::default()];
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
