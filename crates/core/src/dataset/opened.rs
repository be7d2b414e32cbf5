//! One version of an HDF5 file, and cached facts about it.
//!
//! One such fact is the result of a pass over all text of a dataset: lengths, and the form in which the text is shown.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use lru::LruCache;
use parking_lot::Mutex;

use crate::dataset::access_pattern::AccessPattern;
use crate::dataset::backing::{Backing, Form};
use crate::dataset::context::Context;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::{GroupPath, ObjectTimes, Request, TextForm, TextMeasure};
use npyfs_io::file::{Ownership, StoreFile, missing_end, time};
use npyfs_io::remote::open_file;

/// The number of datasets whose measurements are remembered.
const MOST_MEASURES: usize = 4096;

/// The number of datasets read chunk by chunk whose access pattern is remembered.
const MOST_PATTERNS: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// An open HDF5 file.
pub struct OpenStore {
    /// The state shared with other stores of the mount.
    pub context: Arc<Context>,
    /// The file.
    pub file: StoreFile,
    /// Address of the root group.
    pub root: u64,
    /// The first path to each group, by its address; computed when a group claims several links.
    canonical: OnceLock<HashMap<u64, GroupPath>>,
    /// The first path at which each group was seen, for groups that claim a single link; its names with `/` between
    /// them.
    seen: Mutex<HashMap<u64, Box<[u8]>>>,
    measures: Mutex<LruCache<u64, Result<Arc<Measured>>>>,
    /// The access patterns of datasets that are read chunk by chunk, each chunk through its own handle.
    patterns: Mutex<LruCache<u64, Arc<AccessPattern>>>,
    /// The times when objects were written, if the file records them.
    times: OnceLock<Arc<Option<ObjectTimes>>>,
}

impl OpenStore {
    /// Opens the file at `path`.
    pub fn open(context: &Arc<Context>, path: &Path) -> Result<Arc<Self>> {
        let file = StoreFile::open(path).map_err(|e| Error::from(e).about(path.display()))?;
        Self::from_file(context, file)
    }

    /// Opens a part of a set: a file, or the object at an address. Must not be called with a name from a store's
    /// content.
    pub fn open_part(context: &Arc<Context>, path: &Path) -> Result<Arc<Self>> {
        Self::from_file(context, open_file(path, &context.options.remote)?)
    }

    /// Uses an HDF5 file that is already open.
    pub fn from_file(context: &Arc<Context>, file: StoreFile) -> Result<Arc<Self>> {
        let about = |e: Error| e.about(file.path.display());
        if file.layout().is_none()
            && let Some(end) = missing_end(&file).map_err(|e| about(e.into()))?
        {
            let has = file.identity.size;
            let why = format!("truncated file: {has} bytes of {end}");
            return Err(about(Error::damaged(why)));
        }
        file.share();
        let root = context.h5.root(&file).map_err(|e| about(e.into()))?;
        context.stores_opened.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(Self {
            context: context.clone(),
            file,
            root,
            canonical: OnceLock::new(),
            seen: Mutex::default(),
            measures: Mutex::new(LruCache::unbounded()),
            patterns: Mutex::new(LruCache::new(MOST_PATTERNS)),
            times: OnceLock::new(),
        }))
    }

    /// Returns the owner and permissions of the file, and the time of the object at an address.
    pub fn ownership(&self, object: u64) -> Ownership {
        let own = self.file.ownership;
        // A file that cannot be read now reports it when it is listed, and is read again the next time.
        let times = self.times.get().cloned().or_else(|| {
            let times = Arc::new(self.context.h5.times(&self.file).ok()?);
            Some(self.times.get_or_init(|| times).clone())
        });
        match times.as_deref().and_then(Option::as_ref) {
            Some(times) => Ownership {
                mtime: time(times.own.get(&object).copied().unwrap_or(times.all)),
                ..own
            },
            None => own,
        }
    }

    /// Returns the request for a block of a dataset in a form.
    pub fn block_request(object: u64, start: &[u64], shape: &[u64], form: Form) -> Request {
        let (dataset, start, shape) = (object, start.to_vec(), shape.to_vec());
        match form {
            Form::Text(form) => Request::Text {
                dataset,
                start,
                shape,
                form,
            },
            Form::Elements | Form::Virtual => Request::Block {
                dataset,
                start,
                shape,
                outside: form == Form::Virtual,
            },
        }
    }

    /// Reads and decodes a block of a dataset in a form.
    pub fn block(&self, object: u64, start: &[u64], shape: &[u64], form: Form) -> Result<Vec<u8>> {
        let request = Self::block_request(object, start, shape, form);
        Ok(self.context.h5.bytes(&self.file, request)?)
    }

    /// Returns the path under which a group is shown, if it is not `path`.
    ///
    /// A group with several hard links is shown at its first path, breadth first by name. A header may be wrong about
    /// its links: a group that claims a single one but is found again stays at the path where it was first seen.
    pub fn first_path(
        &self,
        group: u64,
        links: u32,
        path: &GroupPath,
    ) -> Result<Option<GroupPath>> {
        let first = if links > 1 || group == self.root {
            if self.canonical.get().is_none() {
                let groups = self.context.h5.groups(&self.file)?;
                let _ = self.canonical.set(groups.into_iter().collect());
            }
            self.canonical
                .get()
                .and_then(|paths| paths.get(&group))
                .cloned()
        } else {
            let mut seen = self.seen.lock();
            match seen.entry(group) {
                Entry::Occupied(entry) => {
                    let names = entry.get().split(|&b| b == b'/');
                    Some(names.map(<[u8]>::to_vec).collect())
                }
                Entry::Vacant(entry) => {
                    entry.insert(path.join(&b'/').into());
                    None
                }
            }
        };
        Ok(first.filter(|first| first != path))
    }

    /// Returns the source of a dataset's bytes; it is determined once while the dataset is opened repeatedly.
    ///
    /// `find` also returns whether it is worth caching. A source that depends on other files is never cached: they may
    /// change while this file does not.
    pub fn backing(
        &self,
        object: u64,
        find: impl FnOnce() -> Result<(Backing, bool)>,
    ) -> Result<Arc<Backing>> {
        let known = &self.context.backings;
        let key = (self.file.serial, object);
        if let Some(backing) = known.get(key) {
            return Ok(backing);
        }
        let (backing, lasting) = find()?;
        let backing = Arc::new(backing);
        if lasting && !backing.is_outside() {
            known.put(key, backing.clone());
        }
        Ok(backing)
    }

    /// Returns the access pattern of all handles that read a dataset chunk by chunk.
    pub fn pattern(&self, object: u64) -> Arc<AccessPattern> {
        let mut known = self.patterns.lock();
        known.get_or_insert(object, Arc::default).clone()
    }

    /// Returns the measurements of a text dataset; they are made once for each of the last few thousand.
    pub fn measured(
        &self,
        object: u64,
        take: impl FnOnce() -> Result<Measured>,
    ) -> Result<Arc<Measured>> {
        if let Some(measured) = self.measures.lock().get(&object) {
            return measured.clone();
        }
        let measured = take().map(Arc::new);
        // A failure that is not a fact about the file is not remembered.
        if let Err(e) = &measured
            && e.kind != ErrorKind::Damaged
        {
            return measured;
        }
        // Room for all of them is not set aside: most stores have few, and many stores may be open.
        let mut measures = self.measures.lock();
        measures.put(object, measured.clone());
        if measures.len() > MOST_MEASURES {
            measures.pop_lru();
        }
        measured
    }
}

/// Elements with text inside, as shown.
pub struct ShownRecord {
    /// The element type, with text at a fixed width.
    pub dtype: DType,
    pub(super) forms: Vec<TextForm>,
    /// The element at all positions, if the dataset was never written.
    pub(super) constant: Option<Vec<u8>>,
}

/// The result of a pass over a dataset with text.
#[derive(Default)]
pub struct Measured {
    /// Lengths and encodings of the text, as a worker measured them.
    pub measure: TextMeasure,
    /// The form in which elements with text inside are shown.
    pub(super) record: Option<ShownRecord>,
    /// The width in characters recorded by the writer.
    pub chars: Option<usize>,
    /// The element at all positions, if the dataset was never written.
    pub constant: Option<Vec<u8>>,
}

impl Measured {
    /// Creates the result for elements with text inside.
    pub fn of_record(shown: ShownRecord) -> Self {
        Self {
            record: Some(shown),
            ..Self::default()
        }
    }

    /// Returns the form in which elements with text inside are shown; fails for other datasets.
    pub fn record(&self) -> Result<&ShownRecord> {
        let none = || Error::damaged("no text inside its elements");
        self.record.as_ref().ok_or_else(none)
    }
}
