//! Adds one commit on top of all others while other processes do the same.

use std::time::{Duration, Instant};

use super::numbered::NumberedCommits;
use super::probe;
use super::record::{self, CommitRecords, LayerCommit, next_time};
use crate::store::against::digest;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::pause::Pause;

/// How long a process retries that keeps losing to others or gets no clear response.
const PATIENCE: Duration = Duration::from_secs(60);

/// All commits of a place, to which one is added.
pub(super) struct Committer {
    numbered: NumberedCommits,
    all: CommitRecords,
    /// Distinguishes this commit from all others.
    write: String,
    /// The deadline, set by the first attempt.
    until: Option<Instant>,
    pause: Pause,
    is_tried: bool,
}

impl Committer {
    /// Begins a commit on top of `all`, the commits read from the place.
    pub(super) fn new(numbered: NumberedCommits, all: CommitRecords) -> Result<Self> {
        Ok(Self {
            is_tried: !all.is_empty(),
            numbered,
            all,
            write: record::write_id()?,
            until: None,
            pause: Pause::after_others(),
        })
    }

    /// Returns all commits.
    pub(super) fn all(&self) -> &CommitRecords {
        &self.all
    }

    /// Begins another commit on top of the last one.
    #[cfg(test)]
    pub(super) fn tried_again(&mut self) {
        self.until = None;
        self.write = record::write_id().unwrap();
    }

    /// Begins another commit on top of those that there are by now, as a process does whose host has the earlier ones.
    #[cfg(test)]
    pub(super) fn begin_again(&mut self) -> Result<()> {
        self.tried_again();
        self.all.forget();
        self.numbered.read_on(&mut self.all)
    }

    /// Adds the commit, as described at [`super::Commits::add`].
    pub(super) fn add(&mut self, commit: LayerCommit) -> Result<bool> {
        if !self.is_tried {
            probe::probe(&self.numbered.place())?;
            self.is_tried = true;
        }
        let last = self.all.last();
        let mut commit = LayerCommit {
            parents: last.map(|last| last.id.clone()).into_iter().collect(),
            write: self.write.clone(),
            time: match commit.time {
                0 => next_time(self.all.read()),
                time => time,
            },
            author: record::author(),
            tool: concat!("npyfs ", env!("CARGO_PKG_VERSION")).to_owned(),
            ..commit
        };
        let json = serde_json::to_string(&commit).map_err(|e| Error::damaged(e.to_string()))?;
        commit.id = digest(json.as_bytes());
        let now = Instant::now();
        let until = *self.until.get_or_insert_with(|| now + PATIENCE);
        let number = self.all.len() as u64 + 1;
        if self.numbered.put(number, &commit, until)? {
            self.all.push(commit);
            self.numbered.remember(&self.all);
            return Ok(true);
        }
        loop {
            self.numbered.place().wait(self.pause.length());
            let is_late = Instant::now() >= until;
            match self.numbered.extend(&mut self.all, 0) {
                Err(e) if !is_late && matches!(e.kind, ErrorKind::Os(_)) => {}
                Ok(()) if is_late => {
                    let why = "others commit again and again: nothing was committed";
                    let busy = Error::new(ErrorKind::Os(libc::EBUSY), why);
                    return Err(busy.about(self.numbered.place().path("")));
                }
                read => return read.map(|()| false),
            }
        }
    }
}
