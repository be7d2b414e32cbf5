//! The way of samples from memory to data files, and from there into the tables.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Checkout, ColumnChange, ColumnSchema, StageData, UnstagedSample};
use crate::formats::hangar::column::Layout;
use crate::formats::hangar::digest;
use crate::formats::hangar::record::Record;
use crate::formats::hangar::stage::data::HeldSample;
use crate::formats::hangar::stage::markers::DataFile;
use crate::formats::hangar::stage::sample::{NewSample, SampleId, SamplePlace};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_hdf5::{TableOp, TableTransaction};

/// The number of samples that are written at once, and of their bytes.
const BATCH: usize = 1024;
const BATCH_BYTES: u64 = 8 << 20;

impl Checkout {
    /// Writes all held samples.
    pub(super) fn write(&self, data: &mut StageData) -> Result<()> {
        loop {
            let mut batch = Vec::new();
            {
                let changes = self.changes();
                let mut bytes = 0;
                for (schema, sample) in changes.held.iter().take(BATCH) {
                    bytes += sample.len;
                    if bytes > BATCH_BYTES && !batch.is_empty() {
                        break;
                    }
                    batch.push((schema.clone(), sample.clone()));
                }
            }
            if batch.is_empty() {
                self.changes().failed = None;
                return Ok(());
            }
            let done = self.write_batch(data, &batch);
            let mut changes = self.changes();
            match done {
                Ok(()) => {
                    changes.held.drain(..batch.len());
                    let bytes: u64 = batch.iter().map(|(_, sample)| sample.len).sum();
                    changes.held_bytes -= bytes;
                    self.queue.moved.notify_all();
                }
                Err(e) => {
                    changes.failed = Some(e.clone());
                    self.queue.moved.notify_all();
                    return Err(e);
                }
            }
        }
    }

    fn write_batch(
        &self,
        data: &mut StageData,
        batch: &[(Arc<ColumnSchema>, Arc<NewSample>)],
    ) -> Result<()> {
        let keys = batch.iter().map(|(_, sample)| sample.key());
        let known = self.repository().hashes.values(keys.collect())?;
        let mut seen = HashSet::new();
        let mut groups: Vec<(&Arc<ColumnSchema>, Vec<HeldSample>)> = Vec::new();
        for ((schema, sample), known) in batch.iter().zip(&known) {
            let id = sample.id();
            let here = known.as_ref().is_some_and(|record| is_here(record));
            if here || data.written.contains_key(&id) || !seen.insert(id) {
                continue;
            }
            let Some(bytes) = sample.held() else {
                continue;
            };
            let held = HeldSample {
                sample: sample.clone(),
                bytes,
            };
            match groups
                .iter_mut()
                .find(|(other, _)| other.digest == schema.digest)
            {
                Some((_, group)) => group.push(held),
                None => groups.push((schema, vec![held])),
            }
        }
        for (schema, group) in groups {
            let records = data
                .writer
                .write(&self.stage, &schema.digest, &schema.schema, &group)?;
            for (held, record) in group.iter().zip(records) {
                data.written.insert(held.sample.id(), record);
            }
        }
        for (_, sample) in batch {
            let written = data.written.get(&sample.id());
            sample.moved(written.map_or(SamplePlace::Known, |record| {
                SamplePlace::Written(record.clone())
            }));
        }
        Ok(())
    }

    /// Stages everything that was written; returns once Hangar sees it and it would survive a loss of power.
    pub fn sync(&self) -> Result<()> {
        let mut data = self.data();
        self.write(&mut data)?;
        let columns = {
            let mut changes = self.changes();
            changes.columns.retain(|_, change| {
                change.new.is_some() || change.removed || !change.rows.is_empty()
            });
            let mut columns = changes.columns.clone();
            // Samples that arrived since then are left for the next sync.
            let is_written = |row: &Option<UnstagedSample>| {
                row.as_ref().is_none_or(|entry| !entry.sample.is_held())
            };
            for change in columns.values_mut() {
                change.rows.retain(|_, row| is_written(row));
            }
            columns
        };
        if columns.is_empty() {
            return Ok(());
        }
        data.writer.sync()?;
        let mut locked = self.stage.lock()?;
        self.repository().look_again();
        let (branch, _) = self.stage.head()?;
        if branch != self.branch {
            return Err(Error::new(
                ErrorKind::Os(libc::EBUSY),
                format!(
                    "the staging area belongs to branch {branch} now, this checkout to {}",
                    self.branch
                ),
            ));
        }
        let (steps, committed) = self.steps(&mut data, &columns)?;
        data.writer.mark(&committed)?;
        self.stage.write(&mut locked, steps)?;
        drop(locked);
        self.repository().look_again();
        let mut changes = self.changes();
        for (name, done) in &columns {
            let Some(change) = changes.columns.get_mut(name) else {
                continue;
            };
            if let (Some(new), Some(done)) = (&change.new, &done.new)
                && Arc::ptr_eq(new, done)
            {
                change.new = None;
            }
            change.removed &= !done.removed;
            for (key, done) in &done.rows {
                let same = match (change.rows.get(key), done) {
                    (Some(Some(now)), Some(done)) => now.is(done),
                    (Some(None), None) => true,
                    _ => false,
                };
                if same {
                    change.rows.remove(key);
                }
            }
        }
        changes.columns.retain(|_, change| {
            change.new.is_some()
                || change.removed
                || !change.rows.is_empty()
                || !change.emptied.is_empty()
        });
        drop(changes);
        data.written.clear();
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Returns the rows of changes, in an order in which Hangar can take over after each step: first `stage_hash.lmdb`,
    /// which only says what a reset forgets, then `hash.lmdb`, then the list.
    ///
    /// A sample that commits already have, but whose bytes were only at the remote, is present from now on, whatever
    /// becomes of the staging area: no reset may forget it. The second result is the files that hold such samples.
    fn steps(
        &self,
        data: &mut StageData,
        columns: &BTreeMap<Vec<u8>, ColumnChange>,
    ) -> Result<(Vec<TableTransaction>, BTreeSet<DataFile>)> {
        let folder = &self.repository().folder.path;
        let rows = columns.values().flat_map(|change| change.rows.values());
        let mut samples: Vec<SampleId> = rows.flatten().map(|row| row.sample.id()).collect();
        // The order is that of the table.
        samples.sort_unstable();
        samples.dedup();
        let keys: Vec<Vec<u8>> = samples
            .iter()
            .map(|(kind, hash)| digest::key(*kind, hash))
            .collect();
        let known = self.repository().hashes.values(keys.clone())?;
        let (mut new, mut fetched) = (Vec::new(), Vec::new());
        let mut committed = BTreeSet::new();
        let mut lost = HashSet::new();
        // Many samples share a file.
        let mut there: HashMap<(&str, &str), bool> = HashMap::new();
        for ((id, key), known) in samples.iter().zip(keys).zip(&known) {
            let record = data.written.get(id);
            match known {
                Some(text) if is_here(text) || record.is_none() => continue,
                Some(_) | None => {}
            }
            let file = record.and_then(|record| Some((record.backend(), record.uid()?)));
            let is_there = file.is_some_and(|file| {
                let exists = || DataFile::new(file.0, file.1).path(folder).exists();
                *there.entry(file).or_insert_with(exists)
            });
            let (Some(record), Some((backend, uid)), true) = (record, file, is_there) else {
                lost.insert(*id);
                continue;
            };
            let row = TableOp::put(key, record.to_string());
            match known {
                None => new.push(row),
                Some(_) => {
                    committed.insert(DataFile::new(backend, uid));
                    fetched.push(row);
                }
            }
        }
        if !lost.is_empty() {
            return Err(self.give_up(&lost));
        }
        let stage_hash: Vec<TableOp> = new;
        let mut hash: Vec<TableOp> = stage_hash.iter().cloned().chain(fetched).collect();
        let mut list = Vec::new();
        for (name, change) in columns {
            if change.removed
                && let Some(old) = self.repository().staged()?.columns.get(name)
            {
                list.push(TableOp::delete(schema_key(name, old.layout)));
            }
            let layout = match &change.new {
                Some(new) => {
                    if let Some(record) = &new.record {
                        hash.push(TableOp::add(format!("s:{}", new.digest), record.as_bytes()));
                    }
                    list.push(TableOp::put(
                        schema_key(name, new.layout),
                        new.digest.as_bytes(),
                    ));
                    new.layout
                }
                None => match self.repository().staged()?.columns.get(name) {
                    Some(staged) => staged.layout,
                    // The column was removed meanwhile: its rows are gone with it.
                    None => continue,
                },
            };
            let old = self.repository().staged()?.columns.get(name).cloned();
            for (key, row) in &change.rows {
                match row {
                    Some(entry) => {
                        let digest = entry.sample.digest();
                        list.push(TableOp::put(row_key(name, layout, key), digest));
                    }
                    None => {
                        let layout = old.as_ref().map_or(layout, |old| old.layout);
                        list.push(TableOp::delete(row_key(name, layout, key)));
                    }
                }
            }
        }
        let steps = [
            ("stage_hash.lmdb", stage_hash),
            ("hash.lmdb", hash),
            ("stage_ref.lmdb", list),
        ];
        let steps = steps
            .map(|(table, ops)| TableTransaction::new(table, ops))
            .into();
        Ok((steps, committed))
    }

    /// Forgets samples whose data were removed by another process: Hangar's reset removes uncommitted data.
    fn give_up(&self, lost: &HashSet<SampleId>) -> Error {
        let mut changes = self.changes();
        for change in changes.columns.values_mut() {
            change.rows.retain(|_, row| match row {
                Some(entry) => !lost.contains(&entry.sample.id()),
                None => true,
            });
        }
        Error::damaged(format!(
            "{} samples were lost: somebody reset the staging area while they were being written",
            lost.len()
        ))
    }
}

/// Returns true if a record of `hash.lmdb` locates the bytes in this repository, and not at a remote.
fn is_here(record: &[u8]) -> bool {
    let record = Record::parse(&String::from_utf8_lossy(record));
    !matches!(record, Ok(Record::Remote { .. }))
}

fn schema_key(column: &[u8], layout: Layout) -> Vec<u8> {
    let layout = match layout {
        Layout::Flat => &b":f"[..],
        Layout::Nested => b":n",
    };
    [b"s:", column, layout].concat()
}

fn row_key(column: &[u8], layout: Layout, key: &[u8]) -> Vec<u8> {
    let prefix = match layout {
        Layout::Flat => &b"f:"[..],
        Layout::Nested => b"n:",
    };
    [prefix, column, b":", key].concat()
}
