//! The right to write in a layer of a bucket: a numbered object, which its holder creates.
//!
//! The holder of the newest lease rewrites it regularly. A lease that was not rewritten for a while belongs to a dead
//! host, and the next number may be taken. Times are those of the bucket. Validity depends on no clock: names of files
//! and parts begin with the number of the lease, and after each upload of a part the holder checks whether the next
//! lease exists. If it does not, the part is valid: the holder of the next lease reads the parts after it has created
//! the lease, and finds this one.
//!
//! The state of a layer follows from the names of its objects: the leases, and the valid parts (`LayerState`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use super::Mirror;
use super::part::Part;
use crate::checkout::records::form::Form;
use crate::checkout::records::holder;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::thread;
use npyfs_io::remote::{ListedObject, Prefix};

/// The time after which a lease that was not rewritten ends.
const ENDS: Duration = Duration::from_secs(60);

/// The interval at which its holder rewrites it.
const AGAIN: Duration = Duration::from_secs(15);

/// The number of attempts to take a lease when others are faster.
const TRIES: usize = 5;

/// The form of the object of a lease.
const FORM: Form = Form {
    name: "npyfs lease",
    version: 1,
};

/// The state of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LeaseState {
    /// The holder writes in the layer.
    Held,
    /// The lease has been released.
    Free,
    /// The layer is discarded: data written under this lease or an earlier one is not valid.
    Discarded,
}

/// The object of a lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LeaseRecord {
    pub state: LeaseState,
    /// The local copy in which the layer is written.
    pub mirror: String,
    /// The name of its holder, for people.
    pub who: String,
    /// A random value of this lease.
    pub write: String,
}

impl LeaseRecord {
    fn print(&self) -> Result<Vec<u8>> {
        Ok(FORM.print(self)?.into_bytes())
    }

    /// Parses the bytes of an object. One of another form is refused by its number.
    fn parse(bytes: &[u8]) -> Result<Self> {
        FORM.parse(&String::from_utf8_lossy(bytes))
    }
}

/// Returns the name of the object of a lease.
fn object(number: u64) -> String {
    format!("lease.{number:06}")
}

/// A lease of a layer; released on drop.
#[derive(Debug)]
pub struct Lease {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The part in the bucket at the beginning of the lease. If the lease continues the last one of this copy, only its
    /// list of files.
    pub(super) there: Part,
}

/// The state that a new lease follows.
pub(super) enum PriorState {
    /// Any earlier lease, or none.
    Any,
    /// The last lease of this copy, under which the bucket had these files. Another host may take it first.
    Own(u64, Part),
}

#[derive(Debug)]
struct Shared {
    /// The prefix of the layer in the bucket.
    prefix: Prefix,
    number: u64,
    record: LeaseRecord,
    now: Mutex<Confirmation>,
    changed: Condvar,
}

#[derive(Debug)]
struct Confirmation {
    /// The time when the bucket last confirmed the lease.
    written: Instant,
    /// The longest interval between two confirmations.
    longest: Duration,
    is_over: bool,
    lost: Option<Error>,
}

impl Confirmation {
    fn new(written: Instant) -> Self {
        Self {
            written,
            longest: Duration::ZERO,
            is_over: false,
            lost: None,
        }
    }

    /// Records that the bucket confirmed the lease at a time.
    fn wrote(&mut self, at: Instant) {
        self.longest = self.silence(at);
        self.written = at;
    }

    /// Returns the longest interval without a confirmation up to a time. A process that was stopped or cut off may
    /// rewrite its lease before it learns that another host has taken the layer.
    fn silence(&self, at: Instant) -> Duration {
        let last = at.saturating_duration_since(self.written);
        self.longest.max(last)
    }
}

impl Shared {
    /// Rewrites the lease regularly until it ends.
    fn keep(&self) {
        loop {
            let mut now = self.now.lock();
            self.changed
                .wait_while_for(&mut now, |now| !now.is_over, AGAIN);
            if now.is_over {
                return;
            }
            drop(now);
            let written = self
                .record
                .print()
                .and_then(|bytes| self.prefix.put(&object(self.number), &bytes));
            // Uploads detect that another host has taken the layer.
            if written.is_ok() {
                self.now.lock().wrote(Instant::now());
            }
        }
    }
}

impl Lease {
    /// Takes the layer of a prefix, to be written in the copy `copy`; EBUSY, with the name of the holder, if another
    /// host has it. Also returns the previous part, unless this lease continues the last one of this copy.
    pub(super) fn take(
        mirror: &Mirror,
        prefix: Prefix,
        copy: String,
        follows: PriorState,
    ) -> Result<(Self, Option<LayerState>)> {
        let record = LeaseRecord {
            state: LeaseState::Held,
            mirror: copy,
            who: holder::process_name(),
            write: super::unique()?,
        };
        let bytes = record.print()?;
        if let PriorState::Own(last, there) = follows
            && prefix.create_own(&object(last.saturating_add(1)), &bytes)?
        {
            let lease = Self::begin(prefix, last.saturating_add(1), record, there)?;
            return Ok((lease, None));
        }
        for _ in 0..TRIES {
            let seen = LayerState::read_state(&prefix)?;
            if let Some((_, last)) = &seen.lease {
                seen.check_free(last, mirror, &prefix)?;
            }
            let number = seen.lease.as_ref().map_or(0, |(number, _)| *number);
            let number = number.saturating_add(1);
            // What cannot be read is left as it is.
            let there = seen.read(&prefix)?;
            if !prefix.create_own(&object(number), &bytes)? {
                continue;
            }
            let mut lease = Self::begin(prefix.clone(), number, record.clone(), there)?;
            if !matches!(&seen.lease, Some((_, last)) if last.state == LeaseState::Held) {
                // The host that released the layer uploads nothing more.
                return Ok((lease, Some(seen)));
            }
            // Uploads up to this point are valid.
            let seen = LayerState::look_before(&prefix, number)?;
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
            now: Mutex::new(Confirmation::new(Instant::now())),
            changed: Condvar::new(),
        });
        let own = shared.clone();
        Ok(Self {
            shared,
            thread: Some(thread::spawn("lease", move || own.keep())?),
            there,
        })
    }

    /// Returns the number of the lease.
    pub fn number(&self) -> u64 {
        self.shared.number
    }

    pub(super) fn prefix(&self) -> &Prefix {
        &self.shared.prefix
    }

    /// Fails if another host is known to have the layer, or may have it.
    pub(super) fn check(&self) -> Result<()> {
        let now = self.shared.now.lock();
        if let Some(lost) = &now.lost {
            return Err(lost.clone());
        }
        Ok(())
    }

    /// Fails if another host has taken the layer: the last upload may not be valid.
    pub(super) fn check_newest(&self) -> Result<()> {
        let next = object(self.number().saturating_add(1));
        let Some(bytes) = self.prefix().read(&next)? else {
            return Ok(());
        };
        let who = LeaseRecord::parse(&bytes).map(|record| record.who);
        let who = who.unwrap_or_else(|_| "another host".to_owned());
        let silent = self.shared.now.lock().silence(Instant::now()).as_secs();
        let why = format!(
            "the bucket heard nothing of this host for {silent} s, and {who} has taken the checkout over: what was written here \
             since is in the directory on this machine, and not in the bucket"
        );
        Err(self.lose(Error::new(ErrorKind::Stale, why).about(self.prefix().address(""))))
    }

    /// Records why the lease is lost.
    pub(super) fn lose(&self, error: Error) -> Error {
        self.shared.now.lock().lost.get_or_insert(error).clone()
    }

    /// Returns whether the lease is held.
    pub(super) fn is_held(&self) -> bool {
        self.thread.is_some()
    }

    /// Ends the lease without a record: the layer is never written again. False if it had ended before.
    pub(super) fn leave(&mut self) -> bool {
        self.shared.now.lock().is_over = true;
        self.shared.changed.notify_all();
        // The thread waits for nothing but the bucket.
        self.thread.take().map(JoinHandle::join).is_some()
    }

    /// Ends the lease and records its final state.
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
        // If this fails, the lease expires.
        let _ = self.end(LeaseState::Free);
    }
}

/// Returns the name of a part's object: the number of the lease that it was written under, and its own, from 1.
pub(super) fn part_name(lease: u64, number: u64) -> String {
    format!("part.{lease:06}.{number:08}")
}

/// Returns the name of the object of a content, written under a lease.
pub(super) fn content_name(lease: u64) -> String {
    format!("content.{lease:06}")
}

/// The state of a layer in a bucket.
#[derive(Clone, Debug, Default)]
pub(super) struct LayerState {
    /// The newest lease.
    pub lease: Option<(u64, LeaseRecord)>,
    /// The lease under which the valid parts were written, and their number.
    pub parts: Option<(u64, u64)>,
    /// The record of that lease.
    pub writer: Option<LeaseRecord>,
    pub objects: Vec<ListedObject>,
}

impl LayerState {
    /// Reads the state of the layer of a prefix.
    pub(super) fn read_state(prefix: &Prefix) -> Result<Self> {
        Self::look_before(prefix, u64::MAX)
    }

    /// Reads the state of the layer as it was before the lease with a number.
    fn look_before(prefix: &Prefix, before: u64) -> Result<Self> {
        let (objects, _) = prefix.list()?;
        let number = |name: &str| name.strip_prefix("lease.")?.parse::<u64>().ok();
        let leases = objects.iter().filter_map(|object| number(&object.name));
        let leases: BTreeSet<u64> = leases.filter(|&number| number < before).collect();
        let Some(&newest) = leases.last() else {
            return Ok(Self::default());
        };
        let newest_record = record(prefix, newest)?;
        let parts = objects.iter().filter_map(|object| {
            let (lease, number) = object.name.strip_prefix("part.")?.split_once('.')?;
            Some((lease.parse::<u64>().ok()?, number.parse::<u64>().ok()?))
        });
        let parts = parts.filter(|(lease, _)| leases.contains(lease)).max();
        let mut writer = None;
        let mut counting = None;
        if let Some((lease, count)) = parts {
            // A lease that was discarded has removed the parts before it, but some may remain.
            let mut is_discarded = false;
            for &number in leases.range(lease..) {
                let record = match number == newest {
                    true => newest_record.clone(),
                    false => record(prefix, number)?,
                };
                is_discarded |= record.state == LeaseState::Discarded;
                writer.get_or_insert(record);
            }
            match is_discarded {
                true => writer = None,
                false => counting = Some((lease, count)),
            }
        }
        Ok(Self {
            lease: Some((newest, newest_record)),
            parts: counting,
            writer,
            objects,
        })
    }

    /// Returns the names of all objects except leases.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let names = self.objects.iter().map(|object| object.name.as_str());
        names.filter(|name| !name.starts_with("lease."))
    }

    /// Fails if another process writes in the layer, or if it is committed.
    fn check_free(&self, last: &LeaseRecord, mirror: &Mirror, prefix: &Prefix) -> Result<()> {
        match last.state {
            LeaseState::Free | LeaseState::Discarded => return Ok(()),
            // This process holds the lock of the directory: the earlier process has ended.
            LeaseState::Held if last.mirror == mirror.id() => return Ok(()),
            LeaseState::Held => {}
        }
        let silent = self.silence(mirror)?;
        if silent >= ENDS {
            return Ok(());
        }
        let (silent, left) = (silent.as_secs(), (ENDS - silent).as_secs() + 1);
        let why = format!(
            "{} writes in this checkout, and said so {silent} s ago; if it is dead, the checkout is free in {left} s",
            last.who
        );
        Err(Error::new(ErrorKind::Os(libc::EBUSY), why).about(prefix.address("")))
    }

    /// Returns how long ago the newest lease was written, by the bucket's clock.
    fn silence(&self, mirror: &Mirror) -> Result<Duration> {
        let name = object(self.lease.as_ref().map_or(0, |(number, _)| *number));
        let written = self.objects.iter().find(|object| object.name == name);
        let now = mirror.now()?;
        let silence = written.and_then(|written| now.duration_since(written.modified).ok());
        Ok(silence.unwrap_or_default())
    }

    /// Returns the name of the process of another host that writes in the layer.
    pub(super) fn writer_elsewhere(&self, mirror: &Mirror) -> Result<Option<String>> {
        let Some((_, last)) = &self.lease else {
            return Ok(None);
        };
        let is_held = last.state == LeaseState::Held && last.mirror != mirror.id();
        Ok(match is_held && self.silence(mirror)? < ENDS {
            true => Some(last.who.clone()),
            false => None,
        })
    }

    /// Reads the parts as a single one; an empty one if there are none.
    pub(super) fn read(&self, prefix: &Prefix) -> Result<Part> {
        let mut all = Part::default();
        let Some((lease, count)) = self.parts else {
            return Ok(all);
        };
        for number in 1..=count {
            let name = part_name(lease, number);
            let about = |e: Error| e.about(prefix.address(&name));
            let bytes = prefix.read(&name)?.ok_or_else(|| {
                about(Error::damaged(
                    "it is gone, and parts that follow are there",
                ))
            })?;
            Part::parse(&bytes)
                .and_then(|part| all.add(part))
                .map_err(about)?;
        }
        Ok(all)
    }
}

/// Reads the record of a lease.
fn record(prefix: &Prefix, number: u64) -> Result<LeaseRecord> {
    let name = object(number);
    let about = |e: Error| e.about(prefix.address(&name));
    let bytes = prefix
        .read(&name)?
        .ok_or_else(|| about(Error::damaged("it is gone")))?;
    LeaseRecord::parse(&bytes).map_err(about)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_of_another_form_is_refused() {
        let record = LeaseRecord {
            state: LeaseState::Held,
            mirror: "m".into(),
            who: "w".into(),
            write: "x".into(),
        };
        let bytes = record.print().unwrap();
        assert!(bytes.starts_with(br#"{"form":"npyfs lease 1","state":"held","#));
        assert_eq!(LeaseRecord::parse(&bytes).unwrap().who, "w");
        let newer = String::from_utf8(bytes)
            .unwrap()
            .replace("lease 1", "lease 2");
        let refused = LeaseRecord::parse(newer.as_bytes()).unwrap_err();
        assert!(
            refused.message.contains("a newer npyfs: form 2"),
            "{refused}"
        );
    }

    #[test]
    fn the_silence_is_remembered_when_the_lease_is_written_again() {
        let seconds = Duration::from_secs;
        let begun = Instant::now();
        let mut now = Confirmation::new(begun);
        now.wrote(begun + seconds(15));
        assert_eq!(now.silence(begun + seconds(20)), seconds(15));
        now.wrote(begun + seconds(77));
        assert_eq!(now.silence(begun + seconds(77)), seconds(62));
        assert_eq!(now.silence(begun + seconds(177)), seconds(100));
    }
}
