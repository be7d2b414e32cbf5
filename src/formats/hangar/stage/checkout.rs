//! A writable checkout of a repository: what was written to the staging area and is not in its tables yet.
//!
//! A sample that is stored is held in memory, checked and with its digest. A thread writes what is held to data
//! files, many samples at a time. `sync` writes the rest and puts the rows into the tables, under the writer lock,
//! all rows of the moment at once. From then on Hangar sees them, and they are forgotten here.

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
use crate::checkout::checkouts::{remove_empty, remove_with};
use crate::checkout::layer_lock::{self, LayerLock};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::hangar::column::{Column, Layout};
use crate::formats::hangar::commit::Commit;
use crate::formats::hangar::record::Record;
use crate::formats::hangar::repository::Repository;
use crate::formats::hangar::schema::{SampleKind, Schema};
use crate::io::dir::Dir;
use crate::io::thread;

/// Held bytes that are worth a write, and held samples.
const ENOUGH: u64 = 2 << 20;
const MANY: usize = 256;

/// Held bytes past which whoever stores one more waits.
const MOST_HELD: u64 = 16 << 20;

/// A writable checkout. All methods may be called from any thread.
pub struct Checkout {
    /// The staging area.
    pub stage: Stage,
    /// Name of the checkout.
    pub name: String,
    /// Directory of the checkout.
    pub dir: Dir,
    /// The branch whose staging area this is.
    branch: String,
    queue: Arc<UnstagedQueue>,
    data: Mutex<StageData>,
    /// Schemas of the columns of a version of the staging area.
    schemas: Mutex<Option<(Arc<Commit>, Schemas)>>,
    /// Counts changes.
    pub generation: AtomicU64,
    _lock: LayerLock,
}

/// Schemas by the name of the column.
type Schemas = HashMap<Vec<u8>, Arc<ColumnSchema>>;

/// Changes that are not staged yet, and a bell.
#[derive(Default)]
struct UnstagedQueue {
    changes: Mutex<UnstagedChanges>,
    /// Rung when there is more or less to write.
    moved: Condvar,
}

impl UnstagedQueue {
    fn lock(&self) -> MutexGuard<'_, UnstagedChanges> {
        // Changes are consistent between any two statements that can panic.
        self.changes.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Changes that are not staged yet.
#[derive(Default)]
struct UnstagedChanges {
    columns: BTreeMap<Vec<u8>, ColumnChange>,
    /// Samples that are held, in order, with the schema they are for.
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
    /// Digest of the schema.
    pub digest: String,
    /// The schema.
    pub schema: Schema,
    /// Its record, for a column that is not staged yet.
    record: Option<String>,
}

/// A change of a column that is not staged yet.
#[derive(Clone, Default)]
pub struct ColumnChange {
    /// It is new, or takes the place of one that is removed.
    pub new: Option<Arc<ColumnSchema>>,
    /// True if what the tables have of it goes.
    pub removed: bool,
    /// The samples by stored key; `None`: the sample goes.
    pub rows: BTreeMap<Vec<u8>, Option<UnstagedSample>>,
    /// Samples of a nested column whose last subsample went.
    pub emptied: BTreeSet<Vec<u8>>,
}

/// A sample in its place.
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
    /// Opens the checkout whose own directory is `dir`; EBUSY if another process has it.
    pub fn open(
        repository: &Arc<Repository>,
        dir: &Dir,
        name: &str,
        program: &Path,
    ) -> Result<Arc<Self>> {
        let lock = LayerLock::take(dir)?;
        let stage = Stage::open(repository, program)?;
        let (branch, _) = stage.head()?;
        let writer = Lanes::open(&repository.folder.path, dir, program, stage.owner())?;
        let checkout = Arc::new(Self {
            stage,
            name: name.to_owned(),
            dir: dir.clone(),
            branch,
            queue: Arc::default(),
            data: Mutex::new(StageData {
                writer,
                written: HashMap::new(),
            }),
            schemas: Mutex::default(),
            generation: AtomicU64::new(0),
            _lock: lock,
        });
        let (queue, weak) = (checkout.queue.clone(), Arc::downgrade(&checkout));
        thread::spawn("stage", move || write_in_background(&queue, &weak))?;
        Ok(checkout)
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

    /// Looks at what is to happen to a column; no call of `self` may come from inside.
    pub fn look<T>(&self, column: &[u8], at: impl FnOnce(Option<&ColumnChange>) -> T) -> T {
        at(self.changes().columns.get(column))
    }

    /// Returns whether what the tables have of a column goes.
    pub fn is_removed(&self, column: &[u8]) -> bool {
        self.look(column, |change| change.is_some_and(|c| c.removed))
    }

    /// Returns whether anything is to happen to a column.
    pub fn is_changed(&self, column: &[u8]) -> bool {
        self.look(column, |change| change.is_some())
    }

    /// Returns what is to happen to a sample: `None` if nothing, `Some(None)` if it goes.
    pub fn row(&self, column: &[u8], key: &[u8]) -> Option<Option<UnstagedSample>> {
        self.changes().columns.get(column)?.rows.get(key).cloned()
    }

    /// Names of columns that change, and whether each is shown.
    pub fn changed(&self) -> Vec<(Vec<u8>, bool)> {
        let changes = self.changes();
        let columns = changes.columns.iter();
        columns
            .map(|(name, change)| (name.clone(), change.new.is_some() || !change.removed))
            .collect()
    }

    /// A column as the tables have it.
    pub fn staged(&self, column: &[u8]) -> Result<Option<Arc<Column>>> {
        if self.is_removed(column) {
            return Ok(None);
        }
        Ok(self.repository().staged()?.columns.get(column).cloned())
    }

    /// The schema of a column; `None` if there is no such column.
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

    /// Puts a sample into a column, which is made if there is none. `nested`: the key is that of a subsample.
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

    /// Removes a sample; ENOENT if there is none.
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

    /// The sample that stands at a key, as it is or will be.
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
            // Not fetched yet: the record says nothing of it.
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

    /// Sets the time of a sample that is not staged yet; Hangar keeps none.
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

    /// Columns, rows and bytes that are not staged yet.
    pub fn waiting(&self) -> (usize, usize, u64) {
        let changes = self.changes();
        let rows = changes.columns.values().map(|c| c.rows.len()).sum();
        (changes.columns.len(), rows, changes.held_bytes)
    }
}

impl Checkout {
    /// Closes all data files: an error if one of them may not be readable now.
    pub fn close_files(&self) -> Result<()> {
        self.data().writer.close()
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        // Whoever cared has synced; a failure was told then, or nobody is left who could be told.
        let synced = self.sync();
        let _ = self.data().writer.close();
        // What is left has to be known to the next one who opens it.
        if synced.is_ok() && self.data().writer.leaves_nothing() {
            let files = [super::data::MADE, layer_lock::NAME];
            let gone = remove_with(&self.dir, &files);
            if let (Ok(()), Some(above)) = (gone, self.dir.above()) {
                let _ = remove_empty(above);
            }
        }
    }
}

/// Writes what is held, for as long as there is a checkout. While it waits, it does not keep the checkout alive.
fn write_in_background(queue: &UnstagedQueue, checkout: &Weak<Checkout>) {
    /// The time after which it looks whether the checkout is still there, and tries again after a failure.
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
            // Why it failed is kept for who syncs or waits.
            let failed = open.write(&mut open.data()).is_err();
            drop(open);
            if failed {
                std::thread::sleep(PATIENCE);
            }
        }
    }
}

/// The column that a sample begins.
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

/// The sample that a subsample belongs to.
fn group(key: &[u8]) -> Option<&[u8]> {
    let at = key.iter().position(|&b| b == b':')?;
    Some(&key[..at])
}
