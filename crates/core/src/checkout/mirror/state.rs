//! The state of one layer in a bucket, from the names of its objects: leases, and the valid parts.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Mirror;
use super::lease::{self, ENDS, LeaseRecord, LeaseState};
use super::part::Part;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::remote::{ListedObject, Prefix};

/// Returns the name of a part's object: the number of the lease that it was written under, and its own, from 1.
pub(super) fn part(lease: u64, number: u64) -> String {
    format!("part.{lease:06}.{number:08}")
}

/// Returns the name of the object of a content, written under a lease.
pub(super) fn content(lease: u64) -> String {
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
    pub(super) fn look(prefix: &Prefix) -> Result<Self> {
        Self::look_before(prefix, u64::MAX)
    }

    /// Reads the state of the layer as it was before the lease with a number.
    pub(super) fn look_before(prefix: &Prefix, before: u64) -> Result<Self> {
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
    pub(super) fn check_free(
        &self,
        last: &LeaseRecord,
        mirror: &Mirror,
        prefix: &Prefix,
    ) -> Result<()> {
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
        let name = lease::object(self.lease.as_ref().map_or(0, |(number, _)| *number));
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
            let name = part(lease, number);
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
    let name = lease::object(number);
    let about = |e: Error| e.about(prefix.address(&name));
    let bytes = prefix
        .read(&name)?
        .ok_or_else(|| about(Error::damaged("it is gone")))?;
    LeaseRecord::parse(&bytes).map_err(about)
}
