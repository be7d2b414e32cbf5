//! The right to write in a layer of a bucket: a numbered object that is created once, by whoever has the layer from then on.
//!
//! The holder of the newest lease writes it again and again; one that nobody wrote for a while is of a host that died, and the
//! next number may be taken. The time is that of the bucket. No clock decides what counts: names of files and parts begin with the
//! number of the lease, and whoever has uploaded a part looks whether the next lease is there already. If it is not, its holder,
//! who reads the parts after it has the lease, finds that part.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Mirror;
use super::part::Part;
use super::state::LayerState;
use crate::checkout::holder;
use crate::error::{Error, ErrorKind, Result};
use crate::io::remote::Prefix;
use crate::io::thread;

/// The time after which a lease that was not written again ends.
pub(super) const ENDS: Duration = Duration::from_secs(60);

/// The time after which its holder writes it again.
const AGAIN: Duration = Duration::from_secs(15);

/// Times that whoever wants a lease looks anew because somebody was faster.
const TRIES: usize = 5;

/// What has become of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LeaseState {
    /// Its holder writes in the layer.
    Held,
    /// Nobody does.
    Free,
    /// The layer is forgotten: what was written under this lease and earlier ones does not count.
    Discarded,
}

/// The object of a lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LeaseRecord {
    pub state: LeaseState,
    /// The directory that the layer is written in.
    pub mirror: String,
    /// Its holder, for people.
    pub who: String,
    /// Made up for this lease.
    pub write: String,
}

impl LeaseRecord {
    pub(super) fn print(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|e| Error::damaged(e.to_string()))
    }
}

/// Returns the name of the object of a lease.
pub(super) fn object(number: u64) -> String {
    format!("lease.{number:06}")
}

/// A lease of a layer; it ends with this.
#[derive(Debug)]
pub struct Lease {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// What the bucket has of the layer, as of the beginning of the lease; of one that begins where the last of this copy ended, the
    /// files alone.
    pub(super) there: Part,
}

/// What a lease follows.
pub(super) enum Follows {
    /// Whatever there is.
    Any,
    /// The last one, which this copy had, and with which the bucket had these files: others may have been faster.
    Own(u64, Part),
}

#[derive(Debug)]
struct Shared {
    /// The prefix of the layer.
    prefix: Prefix,
    number: u64,
    record: LeaseRecord,
    now: Mutex<Now>,
    changed: Condvar,
}

#[derive(Debug)]
struct Now {
    /// When the bucket last said that it has the lease.
    written: Instant,
    is_over: bool,
    lost: Option<Error>,
}

impl Shared {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Writes the lease again and again until it is over.
    fn keep(&self) {
        loop {
            let now = self.now();
            let waited = self
                .changed
                .wait_timeout_while(now, AGAIN, |now| !now.is_over);
            let (now, _) = waited.unwrap_or_else(|e| e.into_inner());
            if now.is_over {
                return;
            }
            drop(now);
            let written = self
                .record
                .print()
                .and_then(|bytes| self.prefix.put(&object(self.number), &bytes));
            // That others took it, whoever uploads finds out.
            if written.is_ok() {
                self.now().written = Instant::now();
            }
        }
    }
}

impl Lease {
    /// Takes the layer of a prefix, to be written in the copy `copy`; EBUSY, with the name of the other, if another host has it. Answers
    /// what there was before, too, unless that is what the last lease of this copy has left.
    pub(super) fn take(
        mirror: &Mirror,
        prefix: Prefix,
        copy: String,
        follows: Follows,
    ) -> Result<(Self, Option<LayerState>)> {
        let record = LeaseRecord {
            state: LeaseState::Held,
            mirror: copy,
            who: holder::own(),
            write: super::unique()?,
        };
        let bytes = record.print()?;
        if let Follows::Own(last, there) = follows
            && prefix.create_own(&object(last.saturating_add(1)), &bytes)?
        {
            let lease = Self::begin(prefix, last.saturating_add(1), record, there)?;
            return Ok((lease, None));
        }
        for _ in 0..TRIES {
            let seen = LayerState::look(&prefix)?;
            if let Some((_, last)) = &seen.lease {
                seen.check_free(last, mirror, &prefix)?;
            }
            let number = seen.lease.as_ref().map_or(0, |(number, _)| *number);
            let number = number.saturating_add(1);
            if !prefix.create_own(&object(number), &bytes)? {
                continue;
            }
            let mut lease = Self::begin(prefix.clone(), number, record.clone(), Part::default())?;
            // What was uploaded until then counts. Whoever has freed the layer uploads nothing more.
            let seen = match seen.lease.as_ref().map(|(_, last)| last.state) {
                Some(LeaseState::Held) => LayerState::look_before(&prefix, number)?,
                _ => seen,
            };
            lease.there = seen.read(&prefix)?;
            return Ok((lease, Some(seen)));
        }
        let why = "others begin to write in this checkout again and again";
        Err(Error::new(ErrorKind::Os(libc::EBUSY), why).about(prefix.address("")))
    }

    fn begin(prefix: Prefix, number: u64, record: LeaseRecord, there: Part) -> Result<Self> {
        let shared = Arc::new(Shared {
            prefix,
            number,
            record,
            now: Mutex::new(Now {
                written: Instant::now(),
                is_over: false,
                lost: None,
            }),
            changed: Condvar::new(),
        });
        let own = shared.clone();
        Ok(Self {
            shared,
            thread: Some(thread::spawn("lease", move || own.keep())?),
            there,
        })
    }

    /// Returns its number.
    pub fn number(&self) -> u64 {
        self.shared.number
    }

    pub(super) fn prefix(&self) -> &Prefix {
        &self.shared.prefix
    }

    /// An error if it is known that others have the layer, or that they may.
    pub(super) fn check(&self) -> Result<()> {
        let now = self.shared.now();
        if let Some(lost) = &now.lost {
            return Err(lost.clone());
        }
        Ok(())
    }

    /// An error if others have the layer by now: what was uploaded may not count.
    pub(super) fn check_newest(&self) -> Result<()> {
        let next = object(self.number().saturating_add(1));
        let Some(bytes) = self.prefix().read(&next)? else {
            return Ok(());
        };
        let who = serde_json::from_slice(&bytes).map(|record: LeaseRecord| record.who);
        let who = who.unwrap_or_else(|_| "another host".to_owned());
        let silent = self.shared.now().written.elapsed().as_secs();
        let why = format!(
            "the bucket heard nothing of this host for {silent} s, and {who} has taken the checkout over: what was written here \
             since is in the directory on this machine, and not in the bucket"
        );
        Err(self.lose(Error::new(ErrorKind::Stale, why).about(self.prefix().address(""))))
    }

    /// Remembers why the layer is lost.
    pub(super) fn lose(&self, error: Error) -> Error {
        self.shared.now().lost.get_or_insert(error).clone()
    }

    /// Returns whether it has not ended.
    pub(super) fn is_held(&self) -> bool {
        self.thread.is_some()
    }

    /// Ends the lease without a word: nobody ever writes in the layer again. False if it had ended.
    pub(super) fn leave(&mut self) -> bool {
        self.shared.now().is_over = true;
        self.shared.changed.notify_all();
        // It only ever waits for the bucket.
        self.thread.take().map(JoinHandle::join).is_some()
    }

    /// Ends the lease, and says what has become of it.
    pub(super) fn end(&mut self, state: LeaseState) -> Result<()> {
        if !self.leave() {
            return Ok(());
        }
        self.check()?;
        let record = LeaseRecord {
            state,
            ..self.shared.record.clone()
        };
        self.prefix().put(&object(self.number()), &record.print()?)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // If it cannot be said, it ends by itself.
        let _ = self.end(LeaseState::Free);
    }
}
