//! The tree of a repository, including the changes of its staging area that are not staged yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use serde_json::{Value as Json, json};

use super::checkout::{Checkout, UnstagedSample};
use super::sample::{SamplePlace, SharedBytes};
use crate::formats::hangar::column::Layout;
use crate::formats::hangar::key;
use crate::formats::hangar::record::Record;
use crate::formats::hangar::sample::SampleContent;
use crate::tree::name::{unescape, visible};
use crate::tree::{Directory, Listing, Node, StoreHandle, VirtualFile};
use npyfs_base::error::{Error, Result};
use npyfs_base::npy;
use npyfs_io::content::{Concat, Content, InMemory};
use npyfs_io::file::Ownership;

/// The name of the staging area.
pub const STAGE: &[u8] = b"stage";

/// The suffixes of the stacked arrays of a column.
const STACKS: [&str; 2] = [".npy", ".keys.npy"];

/// The root of the repository.
pub struct Root {
    base: Arc<dyn Directory>,
    stage: StageDirectory,
}

/// The directory `stage`. It shows the present state, like all directories below it.
#[derive(Clone)]
pub struct StageDirectory {
    checkout: Arc<Checkout>,
    root: Arc<dyn Directory>,
    /// The staging area that the tables had at the last look.
    known: Arc<Mutex<Option<Arc<dyn Directory>>>>,
}

/// A column, or a sample of a nested column.
pub struct StagedColumn {
    checkout: Arc<Checkout>,
    stage: StageDirectory,
    /// The unescaped name.
    column: Vec<u8>,
    /// The stored key of the sample.
    sample: Option<Vec<u8>>,
    /// A version of the staging area, and the contents of this column in it.
    known: Mutex<Option<KnownColumn>>,
}

type KnownColumn = (Arc<dyn Directory>, Option<Arc<dyn Directory>>);

/// A sample that is not staged yet.
pub struct PendingSample {
    checkout: Arc<Checkout>,
    entry: UnstagedSample,
}

fn changed(base: Ownership) -> Ownership {
    Ownership {
        mtime: SystemTime::now(),
        ..base
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

fn directory(node: Option<Node>) -> Option<Arc<dyn Directory>> {
    match node {
        Some(Node::Directory(dir)) => Some(dir),
        _ => None,
    }
}

impl Root {
    /// Makes the root; `base` is the repository as its tables have it.
    pub fn new(checkout: Arc<Checkout>, base: Arc<dyn Directory>) -> Self {
        let stage = StageDirectory {
            checkout,
            root: base.clone(),
            known: Arc::default(),
        };
        Self { base, stage }
    }
}

impl Directory for Root {
    fn ownership(&self) -> Ownership {
        self.base.ownership()
    }

    fn list(&self) -> Result<Arc<Listing>> {
        let listing = self.base.list()?;
        let mut entries = Vec::new();
        for (name, node) in listing.iter() {
            let own = if *name == *STAGE {
                self.lookup(STAGE)?
            } else {
                None
            };
            entries.push((name.into_owned(), own.unwrap_or_else(|| node.into_owned())));
        }
        let listing = Listing::new(entries, listing.left_out.clone(), listing.notes.clone());
        Ok(Arc::new(listing))
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        let base = self.base.lookup(name)?;
        if name != STAGE || base.is_none() {
            return Ok(base);
        }
        Ok(Some(Node::Directory(Arc::new(self.stage.clone()))))
    }

    fn is_current(&self) -> bool {
        self.base.is_current()
    }

    fn info(&self) -> Result<Json> {
        self.base.info()
    }

    fn handle(&self) -> Option<StoreHandle> {
        self.base.handle()
    }
}

impl StageDirectory {
    /// Returns the staging area as the tables have it now.
    fn base(&self) -> Result<Arc<dyn Directory>> {
        let known = lock(&self.known).clone();
        if let Some(known) = known.filter(|known| known.is_current()) {
            return Ok(known);
        }
        let base = directory(self.root.lookup(STAGE)?);
        let base = base.ok_or_else(|| Error::damaged("the staging area is gone"))?;
        *lock(&self.known) = Some(base.clone());
        Ok(base)
    }

    fn column(&self, column: Vec<u8>) -> Node {
        Node::Directory(Arc::new(StagedColumn {
            checkout: self.checkout.clone(),
            stage: self.clone(),
            column,
            sample: None,
            known: Mutex::default(),
        }))
    }
}

impl Directory for StageDirectory {
    fn ownership(&self) -> Ownership {
        let own = self.checkout.repository().ownership();
        match self.base() {
            Ok(base) if self.checkout.changed().is_empty() => base.ownership(),
            _ => changed(own),
        }
    }

    fn list(&self) -> Result<Arc<Listing>> {
        let base = self.base()?.list()?;
        let mut entries: BTreeMap<Vec<u8>, Node> = base
            .iter()
            .map(|(name, node)| match &*node {
                Node::Directory(_) => (name.to_vec(), self.column(unescape(&name))),
                node => (name.to_vec(), node.clone()),
            })
            .collect();
        for (column, shown) in self.checkout.changed() {
            entries.remove(&visible(&column, ""));
            for suffix in STACKS {
                entries.remove(&visible(&column, suffix));
            }
            if shown {
                entries.insert(visible(&column, ""), self.column(column));
            }
        }
        let entries = entries.into_iter().collect();
        let listing = Listing::new(entries, base.left_out.clone(), base.notes.clone());
        Ok(Arc::new(listing))
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        for (column, shown) in self.checkout.changed() {
            if visible(&column, "") == name {
                return Ok(shown.then(|| self.column(column)));
            }
            if STACKS.iter().any(|suffix| visible(&column, suffix) == name) {
                return Ok(None);
            }
        }
        Ok(match self.base()?.lookup(name)? {
            Some(Node::Directory(_)) => Some(self.column(unescape(name))),
            other => other,
        })
    }

    fn is_current(&self) -> bool {
        true
    }

    fn info(&self) -> Result<Json> {
        self.base()?.info()
    }
}

impl StagedColumn {
    /// Returns the visible names and nodes of all changed samples or subsamples of this directory.
    fn changes(&self, suffix: &str) -> BTreeMap<Vec<u8>, Option<Node>> {
        let mut entries = BTreeMap::new();
        let prefix = self
            .sample
            .as_ref()
            .map(|sample| [sample, &b":"[..]].concat());
        let prefix = prefix.unwrap_or_default();
        self.checkout.look(&self.column, |change| {
            let rows = change.map(|change| change.rows.range(prefix.clone()..));
            for (stored, row) in rows.into_iter().flatten() {
                let Some(own) = stored.strip_prefix(&prefix[..]) else {
                    break;
                };
                let node = row.as_ref().map(|entry| self.pending(entry.clone()));
                entries.insert(key::shown(own, suffix), node);
            }
        });
        entries
    }

    /// Returns the samples of a nested column that have changed subsamples or were emptied.
    fn groups(&self) -> BTreeSet<Vec<u8>> {
        self.checkout.look(&self.column, |change| {
            let Some(change) = change else {
                return BTreeSet::new();
            };
            let of_rows = change.rows.keys().map(|stored| {
                let at = stored.iter().position(|&b| b == b':');
                stored[..at.unwrap_or(stored.len())].to_vec()
            });
            of_rows.chain(change.emptied.iter().cloned()).collect()
        })
    }

    /// Returns a sample of a nested column; `None` if all its subsamples were deleted.
    fn group(&self, sample: &[u8]) -> Result<Option<Node>> {
        let prefix = [sample, b":"].concat();
        let shown = self.checkout.look(&self.column, |change| {
            change.is_some_and(|change| {
                let mut rows = change.rows.range(prefix.clone()..);
                change.emptied.contains(sample)
                    || rows
                        .by_ref()
                        .take_while(|(key, _)| key.starts_with(&prefix))
                        .any(|(_, row)| row.is_some())
            })
        });
        let below = self.below(sample);
        let shown = shown || !below.list()?.is_empty();
        Ok(shown.then(|| Node::Directory(Arc::new(below))))
    }

    fn pending(&self, entry: UnstagedSample) -> Node {
        Node::File(Arc::new(PendingSample {
            checkout: self.checkout.clone(),
            entry,
        }))
    }

    fn below(&self, sample: &[u8]) -> Self {
        Self {
            checkout: self.checkout.clone(),
            stage: self.stage.clone(),
            column: self.column.clone(),
            sample: Some(sample.to_vec()),
            known: Mutex::default(),
        }
    }

    /// Returns the present directory of this column in the tables, unless it is removed.
    fn base(&self) -> Result<Option<Arc<dyn Directory>>> {
        if self.checkout.is_removed(&self.column) {
            return Ok(None);
        }
        let stage = self.stage.base()?;
        if let Some((of, base)) = &*lock(&self.known)
            && Arc::ptr_eq(of, &stage)
        {
            return Ok(base.clone());
        }
        let column = directory(stage.lookup(&visible(&self.column, ""))?);
        let base = match (&self.sample, column) {
            (Some(sample), Some(column)) => directory(column.lookup(&key::shown(sample, ""))?),
            (_, column) => column,
        };
        *lock(&self.known) = Some((stage, base.clone()));
        Ok(base)
    }
}

impl Directory for StagedColumn {
    fn ownership(&self) -> Ownership {
        match self.base() {
            Ok(Some(base)) if !self.checkout.is_changed(&self.column) => base.ownership(),
            _ => changed(self.checkout.repository().ownership()),
        }
    }

    fn list(&self) -> Result<Arc<Listing>> {
        let base = match self.base()? {
            Some(base) => base.list()?,
            None => Arc::default(),
        };
        let Some(schema) = self.checkout.schema(&self.column)? else {
            return Ok(base);
        };
        let mut entries = BTreeMap::new();
        if schema.layout == Layout::Nested && self.sample.is_none() {
            for (name, _) in base.iter() {
                let below = self.below(&key::stored(&name));
                entries.insert(name.into_owned(), Node::Directory(Arc::new(below)));
            }
            for sample in self.groups() {
                let name = key::shown(&sample, "");
                match self.group(&sample)? {
                    Some(node) => entries.insert(name, node),
                    None => entries.remove(&name),
                };
            }
        } else {
            let changes = self.changes(schema.schema.suffix());
            if changes.is_empty() {
                return Ok(base);
            }
            for (name, node) in base.iter() {
                if !changes.contains_key(&*name) {
                    entries.insert(name.into_owned(), node.into_owned());
                }
            }
            let shown = |(name, node): (_, Option<Node>)| Some((name, node?));
            entries.extend(changes.into_iter().filter_map(shown));
        }
        let entries = entries.into_iter().collect();
        let listing = Listing::new(entries, base.left_out.clone(), base.notes.clone());
        Ok(Arc::new(listing))
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        let Some(schema) = self.checkout.schema(&self.column)? else {
            return Ok(None);
        };
        let suffix = schema.schema.suffix();
        if schema.layout == Layout::Nested && self.sample.is_none() {
            let sample = key::stored(name);
            return match key::shown(&sample, "") == name {
                true => self.group(&sample),
                false => Ok(None),
            };
        }
        let own = name.strip_suffix(suffix.as_bytes()).map(key::stored);
        let row = own.and_then(|own| {
            let stored = match &self.sample {
                Some(sample) => [sample, &b":"[..], &own].concat(),
                None => own.clone(),
            };
            let row = self.checkout.row(&self.column, &stored)?;
            (key::shown(&own, suffix) == name).then_some(row)
        });
        if let Some(row) = row {
            return Ok(row.map(|entry| self.pending(entry)));
        }
        self.base()?.map_or(Ok(None), |base| base.lookup(name))
    }

    fn is_current(&self) -> bool {
        true
    }

    fn info(&self) -> Result<Json> {
        let mut info = match self.base()? {
            Some(base) => base.info()?,
            None => json!({ "kind": "hangar", "column": String::from_utf8_lossy(&self.column) }),
        };
        if let Some(schema) = self.checkout.schema(&self.column)? {
            info["schema"] = schema.schema.json();
            info["schema_digest"] = json!(schema.digest);
        }
        info["samples"] = json!(self.list()?.len());
        Ok(info)
    }
}

impl PendingSample {
    fn header(&self) -> Vec<u8> {
        let sample = &self.entry.sample;
        let dtype = sample.dtype.as_ref();
        dtype.map_or_else(Vec::new, |dtype| npy::header(dtype, &sample.shape))
    }

    fn record(&self) -> Result<Option<Record>> {
        let sample = &self.entry.sample;
        match sample.place() {
            SamplePlace::Held(_) => Ok(None),
            SamplePlace::Written(record) => Ok(Some(record)),
            SamplePlace::Known => {
                let found = self.checkout.repository().hashes.value(&sample.key())?;
                let text = found.ok_or_else(|| Error::damaged("its record is gone"))?;
                let record = Record::parse(&String::from_utf8_lossy(&text));
                record.map(Some).map_err(|e| Error::damaged(e.to_string()))
            }
        }
    }
}

impl VirtualFile for PendingSample {
    fn ownership(&self) -> Ownership {
        Ownership {
            mtime: self.entry.time,
            ..self.checkout.repository().ownership()
        }
    }

    fn size(&self) -> Result<u64> {
        Ok(self.header().len() as u64 + self.entry.sample.len)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        let sample = &self.entry.sample;
        let payload: Arc<dyn Content> = match (self.record()?, sample.held()) {
            (Some(record), _) => Arc::new(SampleContent::new(
                self.checkout.repository(),
                record,
                (sample.dtype.clone(), sample.len),
                None,
            )),
            (None, Some(bytes)) => Arc::new(SharedBytes(bytes)),
            // The sample was written a moment ago.
            (None, None) => return self.open(),
        };
        let header = Arc::new(InMemory(self.header())) as Arc<dyn Content>;
        Ok(Arc::new(Concat::new([header, payload])))
    }

    fn version(&self) -> u64 {
        let sample = &self.entry.sample;
        let mut first = [0; 8];
        first.copy_from_slice(&sample.hash[..8]);
        // The value is that of the same sample once it is staged.
        u64::from_le_bytes(first) ^ u64::from(sample.kind)
    }

    fn is_current(&self) -> bool {
        true
    }

    fn info(&self) -> Result<Json> {
        let sample = &self.entry.sample;
        Ok(json!({
            "kind": "hangar",
            "digest": sample.digest(),
            "dtype": sample.dtype.as_ref().map(|dtype| dtype.json()),
            "shape": sample.shape,
            "record": self.record()?.map(|record| record.to_string()),
            "checkout": self.checkout.name,
            "staged": false,
        }))
    }
}
