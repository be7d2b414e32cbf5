//! A snapshot as a directory of columns, and a column as a directory of samples.

use std::sync::{Arc, OnceLock};

use serde_json::{Value as Json, json};

use super::NAME;
use super::column::Layout;
use super::key;
use super::keys::StackKeys;
use super::sample::SampleFile;
use super::snapshot::{ColumnView, Snapshot};
use super::stack::Stack;
use crate::tree::name::visible;
use crate::tree::{Directory, LazyEntries, Listing, Node};
use npyfs_base::error::Result;
use npyfs_io::file::Ownership;

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
pub(super) struct ColumnDirectory {
    view: Arc<ColumnView>,
    /// The number of the sample, in a nested column.
    group: Option<usize>,
    /// A name that was truncated for its length cannot be converted back to a key, so the listing is searched for it.
    listing: OnceLock<Arc<Listing>>,
}

/// Makes the nodes of a column's directory.
struct Many {
    view: Arc<ColumnView>,
    group: Option<usize>,
}

impl Many {
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

impl LazyEntries for Many {
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
            many: Some(Arc::new(Many {
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
        let left_out: Vec<Json> = column
            .left_out
            .iter()
            .map(|(key, why)| json!({ "name": String::from_utf8_lossy(key), "reason": why }))
            .collect();
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
