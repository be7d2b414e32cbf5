//! A writable checkout of a repository: samples and columns that were written to the staging area and are not in its
//! tables yet.
//!
//! A stored sample is held in memory, checked and with its digest. A thread writes held samples to data files, many at
//! a time. `sync` writes the rest and puts all present rows into the tables at once, under the writer lock. From then
//! on Hangar sees the rows, and the checkout forgets them.

mod sync;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::SystemTime;

use super::Stage;
use super::data::Lanes;
use super::sample::{NewSample, SampleId};
use super::schema::{NewColumn, NewSamples};
use crate::formats::hangar::column::{Column, Layout};
use crate::formats::hangar::commit::Commit;
use crate::formats::hangar::record::Record;
use crate::formats::hangar::repository::Repository;
use crate::formats::hangar::schema::{SampleKind, Schema};
use crate::store::target::CheckoutDirectory;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::thread;
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
        self.changes.lock().unwrap_or_else(|e| e.into_inner())
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

fn invalid(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Os(libc::EINVAL), why)
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

    fn changes(&self) -> MutexGuard<'_, UnstagedChanges> {
        self.queue.lock()
    }

    fn data(&self) -> MutexGuard<'_, StageData> {
        self.data.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Passes the pending change of a column to `at`, which must not call a method of `self`.
    pub fn look<T>(&self, column: &[u8], at: impl FnOnce(Option<&ColumnChange>) -> T) -> T {
        at(self.changes().columns.get(column))
    }

    /// Returns true if the rows of a column in the tables are removed.
    pub fn is_removed(&self, column: &[u8]) -> bool {
        self.look(column, |change| change.is_some_and(|c| c.removed))
    }

    /// Returns true if a column has pending changes.
    pub fn is_changed(&self, column: &[u8]) -> bool {
        self.look(column, |change| change.is_some())
    }

    /// Returns the pending change of a sample: `None` if there is none, `Some(None)` if the sample is removed.
    pub fn row(&self, column: &[u8], key: &[u8]) -> Option<Option<UnstagedSample>> {
        self.changes().columns.get(column)?.rows.get(key).cloned()
    }

    /// Returns the names of columns with changes, and whether each is shown.
    pub fn changed(&self) -> Vec<(Vec<u8>, bool)> {
        let changes = self.changes();
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
        if let Some(new) = self.look(column, |change| change?.new.clone()) {
            return Ok(Some(new));
        }
        if self.is_removed(column) {
            return Ok(None);
        }
        let staged = self.repository().staged()?;
        let schemas = || self.schemas.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((of, known)) = &*schemas()
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
        let mut known = schemas();
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
        let mut changes = self.changes();
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
        let mut changes = self.changes();
        while changes.held_bytes > MOST_HELD {
            if let Some(failed) = &changes.failed {
                return Err(failed.clone());
            }
            self.queue.moved.notify_all();
            let woken = self.queue.moved.wait(changes);
            changes = woken.unwrap_or_else(|e| e.into_inner());
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
        let mut changes = self.changes();
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
        let mut changes = self.changes();
        let change = changes.columns.get_mut(column);
        if let Some(Some(entry)) = change.and_then(|change| change.rows.get_mut(key)) {
            entry.time = time;
        }
    }

    /// Forgets that a sample of a nested column was emptied.
    pub fn forget_group(&self, column: &[u8], sample: &[u8]) {
        if let Some(change) = self.changes().columns.get_mut(column) {
            change.emptied.remove(sample);
        }
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Returns the numbers of columns, rows and bytes that are not staged yet.
    pub fn waiting(&self) -> (usize, usize, u64) {
        let changes = self.changes();
        let rows = changes.columns.values().map(|c| c.rows.len()).sum();
        (changes.columns.len(), rows, changes.held_bytes)
    }
}

impl Checkout {
    /// Closes all data files. Returns an error if one of them may be unreadable now.
    pub fn close_files(&self) -> Result<()> {
        self.data().writer.close()
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        // A program that needs durability has synced and got the error then; nothing is left here that could take one.
        let synced = self.sync();
        let _ = self.data().writer.close();
        // The next process that opens the checkout must know the remaining files.
        if synced.is_ok() && self.data().writer.leaves_nothing() {
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
        let waited = queue
            .moved
            .wait_timeout_while(queue.lock(), PATIENCE, |changes| !enough(changes));
        let (changes, _) = waited.unwrap_or_else(|e| e.into_inner());
        let work = enough(&changes);
        drop(changes);
        if let Some(open) = checkout.upgrade().filter(|_| work) {
            // The error is kept for a thread that syncs or waits.
            let failed = open.write(&mut open.data()).is_err();
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
