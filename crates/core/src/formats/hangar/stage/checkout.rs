//! A writable checkout of a repository: samples and columns that were written to the staging area and are not in its
//! tables yet.
//!
//! A stored sample is held in memory, checked and with its digest. A thread writes held samples to data files, many at
//! a time. `sync` writes the rest and puts all present rows into the tables at once, under the writer lock. From then
//! on Hangar sees the rows, and the checkout forgets them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::Stage;
use super::data::{HeldSample, Lanes};
use super::markers::DataFile;
use super::sample::{NewSample, SampleId, SamplePlace};
use super::schema::{NewColumn, NewSamples};
use crate::formats::hangar::column::{Column, Layout};
use crate::formats::hangar::commit::Commit;
use crate::formats::hangar::digest;
use crate::formats::hangar::record::Record;
use crate::formats::hangar::repository::Repository;
use crate::formats::hangar::schema::{SampleKind, Schema};
use crate::store::base::invalid;
use crate::store::target::CheckoutDirectory;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::thread;
use npyfs_hdf5::{TableOp, TableTransaction};
use npyfs_io::dir::Dir;

/// The number of held bytes that is worth a write, and the number of held samples.
const ENOUGH: u64 = 2 << 20;
const MANY: usize = 256;

/// The number of held bytes above which a thread that stores another sample waits.
const MOST_HELD: u64 = 16 << 20;

/// A writable checkout. All methods may be called from any thread.
pub struct Checkout {
    /// The staging area.
    pub stage: Stage,
    /// Name of the checkout.
    pub name: String,
    /// The branch whose staging area this is.
    branch: String,
    queue: Arc<UnstagedQueue>,
    data: Mutex<StageData>,
    /// The schemas of the columns of a version of the staging area.
    schemas: Mutex<Option<(Arc<Commit>, Schemas)>>,
    /// Counts changes.
    pub generation: AtomicU64,
    held: Box<dyn CheckoutDirectory>,
}

/// Schemas by the name of the column.
type Schemas = HashMap<Vec<u8>, Arc<ColumnSchema>>;

/// Changes that are not staged yet, and a condition variable.
#[derive(Default)]
struct UnstagedQueue {
    changes: Mutex<UnstagedChanges>,
    /// Notified when the amount of unwritten data changes.
    moved: Condvar,
}

impl UnstagedQueue {
    fn lock(&self) -> MutexGuard<'_, UnstagedChanges> {
        // The changes are consistent between any two statements that can panic.
        self.changes.lock()
    }
}

/// Changes that are not staged yet.
#[derive(Default)]
struct UnstagedChanges {
    columns: BTreeMap<Vec<u8>, ColumnChange>,
    /// Held samples in order, each with the schema of its column.
    held: Vec<(Arc<ColumnSchema>, Arc<NewSample>)>,
    held_bytes: u64,
    /// The reason why samples could not be written; they are still held.
    failed: Option<Error>,
}

struct StageData {
    writer: Lanes,
    /// Samples in files of this checkout that `hash.lmdb` does not name yet.
    written: HashMap<SampleId, Record>,
}

/// The schema of a column.
#[derive(Debug)]
pub struct ColumnSchema {
    /// The layout by which keys lead to samples.
    pub layout: Layout,
    /// The digest of the schema.
    pub digest: String,
    /// The schema.
    pub schema: Schema,
    /// The record of the schema, for a column that is not staged yet.
    record: Option<String>,
}

/// A change of a column that is not staged yet.
#[derive(Clone, Default)]
pub struct ColumnChange {
    /// The schema of a column that is new or replaces a removed one.
    pub new: Option<Arc<ColumnSchema>>,
    /// True if the rows of the column in the tables are removed.
    pub removed: bool,
    /// The samples by stored key; `None` removes the sample.
    pub rows: BTreeMap<Vec<u8>, Option<UnstagedSample>>,
    /// Samples of a nested column whose last subsample was removed.
    pub emptied: BTreeSet<Vec<u8>>,
}

/// A sample at its key.
#[derive(Clone)]
pub struct UnstagedSample {
    /// The sample.
    pub sample: Arc<NewSample>,
    /// The time of its last modification.
    pub time: SystemTime,
}

impl UnstagedSample {
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.sample, &other.sample)
    }
}

impl Checkout {
    /// Opens the checkout whose own directory is held.
    pub fn open(
        repository: &Arc<Repository>,
        held: Box<dyn CheckoutDirectory>,
        name: &str,
        program: &Path,
    ) -> Result<Arc<Self>> {
        let stage = Stage::open(repository, program)?;
        let (branch, _) = stage.head()?;
        let writer = Lanes::open(&repository.folder.path, held.dir(), program, stage.owner())?;
        let checkout = Arc::new(Self {
            stage,
            name: name.to_owned(),
            branch,
            queue: Arc::default(),
            data: Mutex::new(StageData {
                writer,
                written: HashMap::new(),
            }),
            schemas: Mutex::default(),
            generation: AtomicU64::new(0),
            held,
        });
        let (queue, weak) = (checkout.queue.clone(), Arc::downgrade(&checkout));
        thread::spawn("stage", move || write_in_background(&queue, &weak))?;
        Ok(checkout)
    }

    /// Returns the checkout's own directory.
    pub fn dir(&self) -> &Dir {
        self.held.dir()
    }

    /// Returns the repository.
    pub fn repository(&self) -> &Arc<Repository> {
        &self.stage.repository
    }

    /// Passes the pending change of a column to `at`, which must not call a method of `self`.
    pub fn with_change<T>(&self, column: &[u8], at: impl FnOnce(Option<&ColumnChange>) -> T) -> T {
        at(self.queue.lock().columns.get(column))
    }

    /// Returns true if the rows of a column in the tables are removed.
    pub fn is_removed(&self, column: &[u8]) -> bool {
        self.with_change(column, |change| change.is_some_and(|c| c.removed))
    }

    /// Returns true if a column has pending changes.
    pub fn is_changed(&self, column: &[u8]) -> bool {
        self.with_change(column, |change| change.is_some())
    }

    /// Returns the pending change of a sample: `None` if there is none, `Some(None)` if the sample is removed.
    pub fn row(&self, column: &[u8], key: &[u8]) -> Option<Option<UnstagedSample>> {
        self.queue
            .lock()
            .columns
            .get(column)?
            .rows
            .get(key)
            .cloned()
    }

    /// Returns the names of columns with changes, and whether each is shown.
    pub fn changed(&self) -> Vec<(Vec<u8>, bool)> {
        let changes = self.queue.lock();
        let columns = changes.columns.iter();
        columns
            .map(|(name, change)| (name.clone(), change.new.is_some() || !change.removed))
            .collect()
    }

    /// Returns a column as the tables have it.
    pub fn staged(&self, column: &[u8]) -> Result<Option<Arc<Column>>> {
        if self.is_removed(column) {
            return Ok(None);
        }
        Ok(self.repository().staged()?.columns.get(column).cloned())
    }

    /// Returns the schema of a column; `None` if there is no such column.
    pub fn schema(&self, column: &[u8]) -> Result<Option<Arc<ColumnSchema>>> {
        if let Some(new) = self.with_change(column, |change| change?.new.clone()) {
            return Ok(Some(new));
        }
        if self.is_removed(column) {
            return Ok(None);
        }
        let staged = self.repository().staged()?;
        if let Some((of, known)) = &*self.schemas.lock()
            && Arc::ptr_eq(of, &staged)
            && let Some(schema) = known.get(column)
        {
            return Ok(Some(schema.clone()));
        }
        let Some(found) = staged.columns.get(column) else {
            return Ok(None);
        };
        let schema = Arc::new(ColumnSchema {
            layout: found.layout,
            digest: found.schema.clone(),
            schema: (*self.repository().schema(&found.schema)?).clone(),
            record: None,
        });
        let mut known = self.schemas.lock();
        if !matches!(&*known, Some((of, _)) if Arc::ptr_eq(of, &staged)) {
            *known = Some((staged, Schemas::new()));
        }
        if let Some((_, known)) = &mut *known {
            known.insert(column.to_vec(), schema.clone());
        }
        Ok(Some(schema))
    }

    /// Removes a column, which has no samples.
    pub fn remove_column(&self, name: &[u8]) -> Result<()> {
        let staged = self.staged(name)?;
        let mut changes = self.queue.lock();
        let change = changes.columns.entry(name.to_vec()).or_default();
        change.new = None;
        change.removed |= staged.is_some();
        if !change.removed {
            changes.columns.remove(name);
        }
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Puts a sample into a column, which is created if necessary. `nested` says that the key is that of a subsample.
    pub fn put(
        &self,
        column: &[u8],
        key: &[u8],
        nested: bool,
        sample: NewSample,
        time: SystemTime,
    ) -> Result<()> {
        let schema = match self.schema(column)? {
            Some(schema) => schema,
            None => Arc::new(column_schema(&column_for(&sample, nested))?),
        };
        if (schema.layout == Layout::Nested) != nested {
            return Err(invalid(match nested {
                true => "the column has no subsamples",
                false => "the samples of this column have subsamples",
            }));
        }
        sample.check(&schema.schema)?;
        let sample = Arc::new(sample);
        let mut changes = self.queue.lock();
        while changes.held_bytes > MOST_HELD {
            if let Some(failed) = &changes.failed {
                return Err(failed.clone());
            }
            self.queue.moved.notify_all();
            self.queue.moved.wait(&mut changes);
        }
        let staged = self.repository().staged()?.columns.contains_key(column);
        let change = changes.columns.entry(column.to_vec()).or_default();
        if change.new.is_none() && (!staged || change.removed) {
            change.new = Some(schema.clone());
        }
        if let Some(sample) = group(key).filter(|_| nested) {
            change.emptied.remove(sample);
        }
        let entry = UnstagedSample {
            sample: sample.clone(),
            time,
        };
        change.rows.insert(key.to_vec(), Some(entry));
        if sample.is_held() {
            changes.held_bytes += sample.len;
            changes.held.push((schema, sample));
            if changes.held_bytes > ENOUGH || changes.held.len() >= MANY {
                self.queue.moved.notify_all();
            }
        }
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Removes a sample. Fails with ENOENT if there is none.
    pub fn remove(&self, column: &[u8], key: &[u8]) -> Result<()> {
        let staged = self.staged(column)?;
        let there = staged.is_some_and(|staged| staged.find(key).is_some());
        let nested = self
            .schema(column)?
            .is_some_and(|s| s.layout == Layout::Nested);
        let mut changes = self.queue.lock();
        let change = changes.columns.entry(column.to_vec()).or_default();
        let known = change.rows.contains_key(key);
        if there {
            change.rows.insert(key.to_vec(), None);
        } else {
            change.rows.remove(key);
        }
        if let Some(sample) = group(key).filter(|_| nested) {
            change.emptied.insert(sample.to_vec());
        }
        self.generation.fetch_add(1, Ordering::Release);
        match there || known {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::NotFound, "no such sample")),
        }
    }

    /// Returns the sample at a key, staged or pending.
    pub fn find(&self, column: &[u8], key: &[u8]) -> Result<Option<UnstagedSample>> {
        if let Some(row) = self.row(column, key) {
            return Ok(row);
        }
        let Some(staged) = self.staged(column)? else {
            return Ok(None);
        };
        let Some(at) = staged.find(key) else {
            return Ok(None);
        };
        let schema = self.repository().schema(&staged.schema)?;
        let record = self.repository().record(&staged, at)?;
        let length = match record.shape() {
            Some(_) => None,
            None => self.repository().length(&staged, at)?,
        };
        let hash = *staged.hash(at);
        let shape = match (&record, &schema.samples) {
            // The sample was not fetched: its record does not have the shape.
            (Record::Remote { .. }, SampleKind::Arrays { shape, fixed, .. }) if *fixed => {
                Some(&shape[..])
            }
            _ => record.shape(),
        };
        let sample = NewSample::known(&schema, staged.kind, hash, shape, length)?;
        Ok(Some(UnstagedSample {
            sample: Arc::new(sample),
            time: SystemTime::now(),
        }))
    }

    /// Sets the time of a sample that is not staged yet; Hangar itself stores no times.
    pub fn set_time(&self, column: &[u8], key: &[u8], time: SystemTime) {
        let mut changes = self.queue.lock();
        let change = changes.columns.get_mut(column);
        if let Some(Some(entry)) = change.and_then(|change| change.rows.get_mut(key)) {
            entry.time = time;
        }
    }

    /// Forgets that a sample of a nested column was emptied.
    pub fn forget_group(&self, column: &[u8], sample: &[u8]) {
        if let Some(change) = self.queue.lock().columns.get_mut(column) {
            change.emptied.remove(sample);
        }
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Returns the numbers of columns, rows and bytes that are not staged yet.
    pub fn waiting(&self) -> (usize, usize, u64) {
        let changes = self.queue.lock();
        let rows = changes.columns.values().map(|c| c.rows.len()).sum();
        (changes.columns.len(), rows, changes.held_bytes)
    }
}

impl Checkout {
    /// Closes all data files. Returns an error if one of them may be unreadable now.
    pub fn close_files(&self) -> Result<()> {
        self.data.lock().writer.close()
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        // A program that needs durability has synced and got the error then; nothing is left here that could take one.
        let synced = self.sync();
        let _ = self.data.lock().writer.close();
        // The next process that opens the checkout must know the remaining files.
        if synced.is_ok() && self.data.lock().writer.leaves_nothing() {
            let _ = self.held.remove(&[super::data::MADE]);
        }
    }
}

/// Writes held samples for as long as the checkout exists. While it waits, it does not keep the checkout alive.
fn write_in_background(queue: &UnstagedQueue, checkout: &Weak<Checkout>) {
    /// The time after which the thread checks whether the checkout still exists, and retries after a failure.
    const PATIENCE: std::time::Duration = std::time::Duration::from_millis(200);
    let enough =
        |changes: &UnstagedChanges| changes.held_bytes > ENOUGH || changes.held.len() >= MANY;
    while checkout.strong_count() > 0 {
        let mut changes = queue.lock();
        queue
            .moved
            .wait_while_for(&mut changes, |changes| !enough(changes), PATIENCE);
        let work = enough(&changes);
        drop(changes);
        if let Some(open) = checkout.upgrade().filter(|_| work) {
            // The error is kept for a thread that syncs or waits.
            let failed = open.write(&mut open.data.lock()).is_err();
            drop(open);
            if failed {
                std::thread::sleep(PATIENCE);
            }
        }
    }
}

/// Returns the column that is created for a first sample.
fn column_for(sample: &NewSample, nested: bool) -> NewColumn {
    let samples = match (&sample.dtype, sample.kind) {
        (Some(dtype), _) => NewSamples::Arrays {
            dtype: dtype.clone(),
            shape: sample.shape.clone(),
            fixed: true,
            backend: None,
            compression: None,
        },
        (None, b'2') => NewSamples::Text,
        (None, _) => NewSamples::Bytes,
    };
    NewColumn { nested, samples }
}

fn column_schema(new: &NewColumn) -> Result<ColumnSchema> {
    let (record, digest) = new.record()?;
    Ok(ColumnSchema {
        layout: match new.nested {
            true => Layout::Nested,
            false => Layout::Flat,
        },
        digest,
        schema: Schema::parse(record.as_bytes())?,
        record: Some(record),
    })
}

/// Returns the sample that a subsample belongs to.
fn group(key: &[u8]) -> Option<&[u8]> {
    let at = key.iter().position(|&b| b == b':')?;
    Some(&key[..at])
}

/// The number of samples that are written at once, and of their bytes.
const BATCH: usize = 1024;
const BATCH_BYTES: u64 = 8 << 20;

impl Checkout {
    /// Writes all held samples.
    fn write(&self, data: &mut StageData) -> Result<()> {
        loop {
            let mut batch = Vec::new();
            {
                let changes = self.queue.lock();
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
                self.queue.lock().failed = None;
                return Ok(());
            }
            let done = self.write_batch(data, &batch);
            let mut changes = self.queue.lock();
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
        let mut data = self.data.lock();
        self.write(&mut data)?;
        let columns = {
            let mut changes = self.queue.lock();
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
        let mut changes = self.queue.lock();
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
        let mut changes = self.queue.lock();
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
