//! The tree of a repository, including the changes of its staging area that are not staged yet.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use serde_json::{Value as Json, json};

use super::checkout::{Checkout, UnstagedSample};
use super::sample::{SamplePlace, SharedBytes};
use crate::formats::hangar::column::Layout;
use crate::formats::hangar::key;
use crate::formats::hangar::record::Record;
use crate::formats::hangar::sample::SampleContent;
use crate::tree::name::{unescape, visible};
use crate::tree::overlay::{AddedEntries, Overlay};
use crate::tree::prefix;
use crate::tree::{Directory, Node, VirtualFile};
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

impl Overlay for Root {
    fn below(&self) -> Result<Option<Arc<dyn Directory>>> {
        Ok(Some(self.base.clone()))
    }

    fn is_unchanged(&self) -> bool {
        true
    }

    fn added(&self, _name: &[u8]) -> Result<Option<Node>> {
        Ok(None)
    }

    fn kept(&self, name: &[u8], node: Node) -> Result<Option<Node>> {
        Ok(Some(match name {
            STAGE => Node::Directory(Arc::new(self.stage.clone())),
            _ => node,
        }))
    }

    fn all_added(&self) -> Result<AddedEntries> {
        Ok(AddedEntries::default())
    }

    fn ownership(&self) -> Ownership {
        self.base.ownership()
    }

    fn is_current(&self) -> bool {
        self.base.is_current()
    }

    fn info(&self) -> Result<Json> {
        self.base.info()
    }
}

impl StageDirectory {
    /// Returns the staging area as the tables have it now.
    fn base(&self) -> Result<Arc<dyn Directory>> {
        let known = self.known.lock().clone();
        if let Some(known) = known.filter(|known| known.is_current()) {
            return Ok(known);
        }
        let base = self.root.lookup(STAGE)?.and_then(Node::directory);
        let base = base.ok_or_else(|| Error::damaged("the staging area is gone"))?;
        *self.known.lock() = Some(base.clone());
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

impl Overlay for StageDirectory {
    fn below(&self) -> Result<Option<Arc<dyn Directory>>> {
        self.base().map(Some)
    }

    fn is_unchanged(&self) -> bool {
        self.checkout.changed().is_empty()
    }

    fn added(&self, name: &[u8]) -> Result<Option<Node>> {
        let changed = self.checkout.changed().into_iter();
        let mut shown = changed.filter(|(column, shown)| *shown && visible(column, "") == name);
        Ok(shown.next().map(|(column, _)| self.column(column)))
    }

    fn kept(&self, name: &[u8], node: Node) -> Result<Option<Node>> {
        let hides = |column: &[u8]| {
            visible(column, "") == name
                || STACKS.iter().any(|suffix| visible(column, suffix) == name)
        };
        if self
            .checkout
            .changed()
            .iter()
            .any(|(column, _)| hides(column))
        {
            return Ok(None);
        }
        Ok(Some(match node {
            Node::Directory(_) => self.column(unescape(name)),
            node => node,
        }))
    }

    fn all_added(&self) -> Result<AddedEntries> {
        let changed = self.checkout.changed().into_iter();
        let shown = changed.filter(|(_, shown)| *shown);
        Ok(AddedEntries {
            entries: shown
                .map(|(column, _)| (visible(&column, ""), self.column(column)))
                .collect(),
            ..AddedEntries::default()
        })
    }

    fn ownership(&self) -> Ownership {
        let own = self.checkout.repository().ownership();
        match self.base() {
            Ok(base) if self.is_unchanged() => base.ownership(),
            _ => changed(own),
        }
    }

    fn is_current(&self) -> bool {
        true
    }

    fn info(&self) -> Result<Json> {
        self.base()?.info()
    }
}

impl StagedColumn {
    /// Returns whether its entries are the samples of a nested column, and the suffix of its files; `None` if the
    /// column is gone.
    fn form(&self) -> Result<Option<(bool, &'static str)>> {
        let schema = self.checkout.schema(&self.column)?;
        Ok(schema.map(|schema| {
            let is_nested = schema.layout == Layout::Nested && self.sample.is_none();
            (is_nested, schema.schema.suffix())
        }))
    }

    /// Returns the stored key of a sample or subsample of this directory.
    fn stored(&self, own: &[u8]) -> Vec<u8> {
        match &self.sample {
            Some(sample) => [sample, &b":"[..], own].concat(),
            None => own.to_vec(),
        }
    }

    /// Returns the change of the sample or subsample with a visible name: `None` if there is none, `Some(None)` if the
    /// sample is removed.
    fn row(&self, name: &[u8], suffix: &str) -> Option<Option<UnstagedSample>> {
        let own = name.strip_suffix(suffix.as_bytes()).map(key::stored)?;
        let row = self.checkout.row(&self.column, &self.stored(&own))?;
        (key::shown(&own, suffix) == name).then_some(row)
    }

    /// Returns the visible names and nodes of all new samples or subsamples of this directory.
    fn new_samples(&self, suffix: &str) -> Vec<(Vec<u8>, Node)> {
        let prefix = match &self.sample {
            Some(_) => self.stored(b""),
            None => Vec::new(),
        };
        self.checkout.with_change(&self.column, |change| {
            let start = prefix.len();
            let rows = change.map(|change| prefix::entries(&change.rows, prefix));
            let rows = rows.into_iter().flatten();
            rows.filter_map(|(stored, row)| {
                let node = self.pending(row.clone()?);
                Some((key::shown(&stored[start..], suffix), node))
            })
            .collect()
        })
    }

    /// Returns whether a sample of a nested column has changed subsamples or was emptied.
    fn changes_group(&self, sample: &[u8]) -> bool {
        let prefix = [sample, b":"].concat();
        self.checkout.with_change(&self.column, |change| {
            change.is_some_and(|change| {
                change.emptied.contains(sample)
                    || change.rows.contains_key(sample)
                    || prefix::entries(&change.rows, prefix).next().is_some()
            })
        })
    }

    /// Returns the samples of a nested column that have changed subsamples or were emptied.
    fn groups(&self) -> BTreeSet<Vec<u8>> {
        self.checkout.with_change(&self.column, |change| {
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
        let shown = self.checkout.with_change(&self.column, |change| {
            change.is_some_and(|change| {
                change.emptied.contains(sample)
                    || prefix::entries(&change.rows, prefix).any(|(_, row)| row.is_some())
            })
        });
        let below = self.of_sample(sample);
        let shown = shown || !below.list()?.is_empty();
        Ok(shown.then(|| Node::Directory(Arc::new(below))))
    }

    fn pending(&self, entry: UnstagedSample) -> Node {
        Node::File(Arc::new(PendingSample {
            checkout: self.checkout.clone(),
            entry,
        }))
    }

    fn of_sample(&self, sample: &[u8]) -> Self {
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
        if let Some((of, base)) = &*self.known.lock()
            && Arc::ptr_eq(of, &stage)
        {
            return Ok(base.clone());
        }
        let column = stage.lookup(&visible(&self.column, ""))?;
        let column = column.and_then(Node::directory);
        let base = match (&self.sample, column) {
            (Some(sample), Some(column)) => column
                .lookup(&key::shown(sample, ""))?
                .and_then(Node::directory),
            (_, column) => column,
        };
        *self.known.lock() = Some((stage, base.clone()));
        Ok(base)
    }
}

impl Overlay for StagedColumn {
    fn below(&self) -> Result<Option<Arc<dyn Directory>>> {
        self.base()
    }

    fn is_unchanged(&self) -> bool {
        !self.checkout.is_changed(&self.column)
    }

    fn added(&self, name: &[u8]) -> Result<Option<Node>> {
        match self.form()? {
            None => Ok(None),
            Some((true, _)) => {
                let sample = key::stored(name);
                let is_changed = key::shown(&sample, "") == name && self.changes_group(&sample);
                match is_changed {
                    true => self.group(&sample),
                    false => Ok(None),
                }
            }
            Some((false, suffix)) => {
                let row = self.row(name, suffix).flatten();
                Ok(row.map(|entry| self.pending(entry)))
            }
        }
    }

    fn kept(&self, name: &[u8], node: Node) -> Result<Option<Node>> {
        Ok(match self.form()? {
            None => None,
            Some((true, _)) => {
                let sample = key::stored(name);
                let is_changed = self.changes_group(&sample);
                (!is_changed).then(|| Node::Directory(Arc::new(self.of_sample(&sample))))
            }
            Some((false, suffix)) => self.row(name, suffix).is_none().then_some(node),
        })
    }

    fn all_added(&self) -> Result<AddedEntries> {
        let mut added = AddedEntries::default();
        match self.form()? {
            None => {}
            Some((true, _)) => {
                for sample in self.groups() {
                    let group = self.group(&sample)?;
                    added
                        .entries
                        .extend(group.map(|node| (key::shown(&sample, ""), node)));
                }
            }
            Some((false, suffix)) => added.entries = self.new_samples(suffix),
        }
        Ok(added)
    }

    fn ownership(&self) -> Ownership {
        match self.base() {
            Ok(Some(base)) if self.is_unchanged() => base.ownership(),
            _ => changed(self.checkout.repository().ownership()),
        }
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
