//! A snapshot as a directory of columns, and a column as a directory of samples.
//!
//! A column whose samples are all alike is also one array, a `Stack`, beside the array of its keys. A damaged sample
//! affects only its own rows.

use std::sync::{Arc, OnceLock};

use serde_json::{Value as Json, json};

use super::blocks::StackBlocks;
use super::column::{Layout, parts};
use super::sample::SampleFile;
use super::snapshot::{ColumnView, Snapshot};
use super::{NAME, key};
use crate::dataset::access_pattern::AccessPattern;
use crate::dataset::blocks::BlockReader;
use crate::tree::name::visible;
use crate::tree::{Directory, LazyEntries, Listing, Node, VirtualFile, info};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy::dtype::{DType, Kind};
use npyfs_base::{npy, thread};
use npyfs_io::content::{Concat, Content, Data, InMemory, Lazy};
use npyfs_io::file::Ownership;
use npyfs_io::provenance::Provenance;

/// The columns of a snapshot; a column whose samples are all alike is also one array.
pub struct SnapshotDirectory {
    pub snapshot: Arc<Snapshot>,
    listing: OnceLock<Arc<Listing>>,
}

impl SnapshotDirectory {
    pub fn new(snapshot: Arc<Snapshot>) -> Self {
        Self {
            snapshot,
            listing: OnceLock::new(),
        }
    }

    /// Returns the listing, and whether all schemas could be read.
    fn make(&self) -> (Listing, bool) {
        let mut entries = Vec::new();
        let mut complete = true;
        for (name, column) in &self.snapshot.commit.columns {
            let view = Arc::new(ColumnView::new(&self.snapshot, name, column));
            complete &= view.schema().is_ok();
            if view.schema().is_ok_and(|s| s.fixed().is_some()) {
                let stack = Arc::new(Stack::new(view.clone()));
                let keys = Node::File(Arc::new(StackKeys(stack.clone())));
                entries.push((visible(name, ".keys.npy"), keys));
                entries.push((visible(name, ".npy"), Node::File(stack)));
            }
            let directory = ColumnDirectory::new(view);
            entries.push((visible(name, ""), Node::Directory(Arc::new(directory))));
        }
        let notes = self.snapshot.commit.notes.clone();
        (Listing::new(entries, Vec::new(), notes), complete)
    }
}

impl Directory for SnapshotDirectory {
    fn ownership(&self) -> Ownership {
        self.snapshot.ownership(self.snapshot.commit.spec.time)
    }

    fn list(&self) -> Result<Arc<Listing>> {
        if let Some(listing) = self.listing.get() {
            return Ok(listing.clone());
        }
        let (listing, complete) = self.make();
        let listing = Arc::new(listing);
        Ok(match complete {
            true => self.listing.get_or_init(|| listing).clone(),
            false => listing,
        })
    }

    fn format(&self) -> Result<&'static str> {
        Ok(NAME)
    }

    fn is_current(&self) -> bool {
        self.snapshot.is_current()
    }

    fn is_lasting(&self) -> bool {
        self.snapshot.is_lasting()
    }

    fn info(&self) -> Result<Json> {
        let commit = &self.snapshot.commit;
        let columns: serde_json::Map<String, Json> = commit
            .columns
            .iter()
            .map(|(name, column)| {
                let schema = self.snapshot.repository.schema(&column.schema);
                let schema = schema.map_or_else(|e| json!({ "error": e.message }), |s| s.json());
                let column = json!({
                    "samples": column.len(),
                    "schema_digest": column.schema,
                    "schema": schema,
                });
                (String::from_utf8_lossy(name).into_owned(), column)
            })
            .collect();
        let mut info = json!({
            "kind": "hangar",
            "file": self.snapshot.repository.folder.path.to_string_lossy(),
            "parents": commit.parents,
            "columns": columns,
            "notes": commit.notes,
        });
        if commit.digest.is_empty() {
            let heads = self.snapshot.repository.heads()?;
            info["based_on_branch"] = json!(heads.staged_on);
        } else {
            info["commit"] = json!(commit.digest);
            if let (Json::Object(info), Json::Object(spec)) = (&mut info, commit.spec.json()) {
                info.extend(spec);
            }
        }
        Ok(info)
    }
}

/// The samples of a column, or the subsamples of one of its samples.
struct ColumnDirectory {
    view: Arc<ColumnView>,
    /// The number of the sample, in a nested column.
    group: Option<usize>,
    /// A name that was truncated for its length cannot be converted back to a key, so the listing is searched for it.
    listing: OnceLock<Arc<Listing>>,
}

/// Makes the nodes of a column's directory.
struct ColumnNodes {
    view: Arc<ColumnView>,
    group: Option<usize>,
}

impl ColumnNodes {
    /// Returns true if the entries are directories of subsamples.
    fn of_groups(&self) -> bool {
        self.view.column.layout == Layout::Nested && self.group.is_none()
    }

    /// Returns the places of the entries that are samples.
    fn range(&self) -> std::ops::Range<usize> {
        match self.group {
            Some(group) => self.view.column.group(group),
            None => 0..self.view.column.len(),
        }
    }

    /// Returns the key that the name of an entry shows.
    fn own_key(&self, at: usize) -> &[u8] {
        let column = &self.view.column;
        if self.of_groups() {
            return column.group_key(at);
        }
        let stored = column.key(self.range().start + at);
        match self.group {
            Some(_) => super::column::parts(stored).1,
            None => stored,
        }
    }

    fn suffix(&self) -> &'static str {
        match self.of_groups() {
            true => "",
            false => self.view.suffix(),
        }
    }

    fn node(&self, at: usize) -> Node {
        if self.of_groups() {
            return Node::Directory(Arc::new(ColumnDirectory {
                view: self.view.clone(),
                group: Some(at),
                listing: OnceLock::new(),
            }));
        }
        let at = self.range().start + at;
        Node::File(Arc::new(SampleFile {
            view: self.view.clone(),
            // A column has fewer samples than its text has bytes.
            at: u32::try_from(at).unwrap_or(u32::MAX),
        }))
    }

    fn place(&self, name: &[u8]) -> Option<usize> {
        let stem = name.strip_suffix(self.suffix().as_bytes())?;
        let stored = key::stored(stem);
        let column = &self.view.column;
        let found = match self.group {
            _ if self.of_groups() => column.find_group(&stored),
            None => column.find(&stored),
            Some(group) => {
                let full = [column.group_key(group), b":", &stored].concat();
                column.find(&full).map(|at| at - self.range().start)
            }
        };
        let is = |at: &usize| key::shown(self.own_key(*at), self.suffix()) == name;
        found
            .filter(is)
            .or_else(|| (stem.len() > 200).then(|| (0..self.len()).find(is))?)
    }
}

impl LazyEntries for ColumnNodes {
    fn len(&self) -> usize {
        match self.of_groups() {
            true => self.view.column.groups(),
            false => self.range().len(),
        }
    }

    fn get(&self, at: usize) -> (Vec<u8>, Node) {
        let name = key::shown(self.own_key(at), self.suffix());
        (name, self.node(at))
    }

    fn find(&self, name: &[u8]) -> Option<Node> {
        self.place(name).map(|at| self.node(at))
    }

    fn are_files(&self) -> bool {
        !self.of_groups()
    }
}

impl ColumnDirectory {
    pub(super) fn new(view: Arc<ColumnView>) -> Self {
        Self {
            view,
            group: None,
            listing: OnceLock::new(),
        }
    }

    fn make(&self) -> Listing {
        let column = &self.view.column;
        let (left_out, notes) = match (self.group, self.view.schema()) {
            (Some(_), _) => (Vec::new(), Vec::new()),
            (None, Ok(schema)) if column.kind != 0 && column.kind != schema.kind() => (
                column.left_out.clone(),
                vec!["the digests are not of the kind that the schema says".to_owned()],
            ),
            (None, _) => (column.left_out.clone(), Vec::new()),
        };
        Listing {
            entries: Vec::new(),
            many: Some(Arc::new(ColumnNodes {
                view: self.view.clone(),
                group: self.group,
            })),
            left_out,
            notes,
            damage: Vec::new(),
        }
    }
}

impl Directory for ColumnDirectory {
    fn ownership(&self) -> Ownership {
        let time = match self.group {
            Some(group) => {
                let samples = self.view.column.group(group);
                samples.map(|at| self.view.time(at)).max().unwrap_or(0)
            }
            None => self.view.changed(),
        };
        self.view.snapshot.ownership(time)
    }

    fn list(&self) -> Result<Arc<Listing>> {
        self.view.schema()?;
        Ok(self.listing.get_or_init(|| Arc::new(self.make())).clone())
    }

    fn format(&self) -> Result<&'static str> {
        Ok(NAME)
    }

    fn is_current(&self) -> bool {
        self.view.snapshot.is_current()
    }

    fn is_lasting(&self) -> bool {
        self.view.snapshot.is_lasting()
    }

    fn info(&self) -> Result<Json> {
        let column = &self.view.column;
        let left_out = info::left_out(&column.left_out);
        let mut info = json!({
            "kind": "hangar",
            "commit": self.view.snapshot.commit.digest,
            "column": String::from_utf8_lossy(&self.view.name),
            "layout": if column.layout == Layout::Nested { "nested" } else { "flat" },
            "samples": self.group.map_or(column.len(), |group| column.group(group).len()),
            "schema_digest": column.schema,
            "left_out": left_out,
        });
        match self.view.schema() {
            Ok(schema) => info["schema"] = schema.json(),
            Err(e) => info["error"] = json!(e.message),
        }
        Ok(info)
    }
}

/// The keys of a stacked column, row by row: `<i8` if all are numbers, otherwise text in the form of the file names.
/// The keys of a nested column are pairs.
struct StackKeys(pub Arc<Stack>);

impl StackKeys {
    /// Returns the type and shape.
    fn whole(&self) -> (DType, Vec<u64>) {
        let column = &self.0.view.column;
        let mut numbers = true;
        let mut width = 1;
        let mut only_text = true;
        let each = |each: &mut dyn FnMut(&[u8])| {
            for at in 0..column.len() {
                for_parts(column.layout, column.key(at), each);
            }
        };
        each(&mut |part| match key_number(part) {
            Some(_) => only_text = false,
            None => numbers = false,
        });
        if !numbers {
            each(&mut |part| width = width.max(key_text(part, only_text).chars().count()));
        }
        let dtype = match numbers {
            true => DType::int(8),
            false => DType::text(width),
        };
        let mut shape = vec![column.len() as u64];
        if column.layout == Layout::Nested {
            shape.push(2);
        }
        (dtype, shape)
    }
}

fn for_parts(layout: Layout, stored: &[u8], each: &mut dyn FnMut(&[u8])) {
    match layout {
        Layout::Flat => each(stored),
        Layout::Nested => {
            let (sample, sub) = parts(stored);
            each(sample);
            each(sub);
        }
    }
}

fn key_number(stored: &[u8]) -> Option<i64> {
    std::str::from_utf8(key::digits(stored)?).ok()?.parse().ok()
}

/// Returns a key as text. If a column mixes numbers and texts, the text is that of the file name, so that `5` and `'5'`
/// differ.
fn key_text(stored: &[u8], only_text: bool) -> String {
    if only_text && key::digits(stored).is_none() {
        return String::from_utf8_lossy(stored).into_owned();
    }
    String::from_utf8_lossy(&key::shown(stored, "")).into_owned()
}

impl VirtualFile for StackKeys {
    fn ownership(&self) -> Ownership {
        self.0.ownership()
    }

    fn size(&self) -> Result<u64> {
        let (dtype, shape) = self.whole();
        super::schema::npy_size(&dtype, &shape)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        let (dtype, shape) = self.whole();
        let header = npy::header(&dtype, &shape);
        let len = npy::payload_len(&dtype, &shape);
        let large = || Error::new(ErrorKind::TooLarge, "larger than a file can be");
        let view = self.0.view.clone();
        let make = move || {
            let column = &view.column;
            let all = |each: &mut dyn FnMut(&[u8])| {
                for at in 0..column.len() {
                    for_parts(column.layout, column.key(at), each);
                }
            };
            let mut out = Vec::new();
            if matches!(
                dtype,
                DType::Scalar {
                    kind: Kind::Int,
                    ..
                }
            ) {
                all(&mut |part| {
                    out.extend_from_slice(&key_number(part).unwrap_or(-1).to_le_bytes());
                });
                return Ok(out);
            }
            let mut only_text = true;
            all(&mut |part| only_text &= key_number(part).is_none());
            all(&mut |part| {
                let end = out.len() + dtype.size();
                for c in key_text(part, only_text).chars() {
                    out.extend_from_slice(&u32::from(c).to_le_bytes());
                }
                out.resize(end, 0);
            });
            Ok(out)
        };
        Ok(Arc::new(Concat::new([
            Arc::new(InMemory(header)) as Arc<dyn Content>,
            Arc::new(Lazy::new(len.ok_or_else(large)?, make)),
        ])))
    }

    fn version(&self) -> u64 {
        self.0.version()
    }

    fn is_current(&self) -> bool {
        self.0.is_current()
    }

    fn is_lasting(&self) -> bool {
        self.0.is_lasting()
    }

    fn info(&self) -> Result<Json> {
        let mut info = self.0.info()?;
        let (dtype, shape) = self.whole();
        info["keys"] = json!(true);
        info["dtype"] = dtype.json();
        info["shape"] = json!(shape);
        Ok(info)
    }
}

/// A column as one array of shape `(samples, *shape)`.
struct Stack {
    pub view: Arc<ColumnView>,
}

impl Stack {
    /// Makes the stack; all samples of the column of `view` must be alike.
    pub(super) fn new(view: Arc<ColumnView>) -> Self {
        Self { view }
    }

    /// Returns the type and shape of the whole array.
    fn whole(&self) -> Result<(DType, Vec<u64>)> {
        let schema = self.view.schema()?;
        let unlike = || Error::damaged("the samples are not all alike");
        let (dtype, shape) = schema.fixed().ok_or_else(unlike)?;
        let count = self.view.column.len() as u64;
        Ok((dtype.clone(), [&[count], shape].concat()))
    }

    /// Prepares the needs of a reader that begins at the start: records, the maps of the datasets that they name, and
    /// the first blocks.
    fn prepare(&self, rows: &Arc<StackBlocks>, blocks: &Arc<BlockReader>) {
        let repository = self.view.repository().clone();
        let (context, column) = (repository.context.clone(), &self.view.column);
        if repository.folder.far().is_some() {
            let rows = rows.clone();
            // This waits for the network. If no thread can be started, the first reader does the work.
            let _ = thread::spawn("fetch", move || rows.prepare(0));
            return;
        }
        if !repository.has_located(column) {
            context
                .decoders
                .submit(move || repository.hashes.will_need());
        }
        for _ in 0..context.decoders.processors().min(column.located.len()) {
            let rows = rows.clone();
            context.decoders.submit(move || rows.prepare_next());
        }
        blocks.expect();
    }
}

impl VirtualFile for Stack {
    fn ownership(&self) -> Ownership {
        self.view.snapshot.ownership(self.view.changed())
    }

    fn size(&self) -> Result<u64> {
        let (dtype, shape) = self.whole()?;
        super::schema::npy_size(&dtype, &shape)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        let (dtype, shape) = self.whole()?;
        let large = || Error::new(ErrorKind::TooLarge, "larger than a file can be");
        let len = npy::payload_len(&dtype, &shape).ok_or_else(large)?;
        let row = npy::payload_len(&dtype, &shape[1..]).ok_or_else(large)?;
        let header = npy::header(&dtype, &shape);
        let sample = shape[1..].to_vec();
        let pattern = Arc::<AccessPattern>::default();
        let rows = StackBlocks::new(&self.view, dtype, (sample, row), &pattern)?;
        let rows = Arc::new(rows);
        let context = &self.view.repository().context;
        let blocks = BlockReader::new(context, rows.clone(), len, pattern);
        self.prepare(&rows, &blocks);
        Ok(Arc::new(Concat::new([
            Arc::new(InMemory(header)) as Arc<dyn Content>,
            Arc::new(StackedRows {
                view: self.view.clone(),
                row,
                blocks,
            }),
        ])))
    }

    fn version(&self) -> u64 {
        // This is the low half of the hash.
        self.view.column.content as u64
    }

    fn is_current(&self) -> bool {
        self.view.snapshot.is_current()
    }

    fn is_lasting(&self) -> bool {
        self.view.snapshot.is_lasting()
    }

    fn info(&self) -> Result<Json> {
        let (dtype, shape) = self.whole()?;
        Ok(json!({
            "kind": "hangar",
            "commit": self.view.snapshot.commit.digest,
            "column": String::from_utf8_lossy(&self.view.name),
            "stacked": true,
            "dtype": dtype.json(),
            "shape": shape,
            "changed": self.view.changed() as f64 / 1e9,
        }))
    }
}

/// The rows without the header.
struct StackedRows {
    view: Arc<ColumnView>,
    /// The size in bytes of a row.
    row: u64,
    blocks: Arc<BlockReader>,
}

impl Content for StackedRows {
    fn len(&self) -> u64 {
        self.blocks.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.blocks.read_at(offset, buf)
    }

    fn tell_provenance(&self, to: &mut Provenance) -> bool {
        // A digest determines the bytes, independent of their location.
        to.add("stack", self.view.column.provenance().as_bytes());
        to.numbers("row", &[self.row, self.blocks.len()]);
        true
    }

    fn share(&self, offset: u64, len: usize) -> Result<Option<Data>> {
        self.blocks.share(offset, len)
    }
}
