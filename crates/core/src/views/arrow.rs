//! A view of the tables of a store as files of Arrow's IPC format.
//!
//! Source: Arrow's columnar format 1.5, "IPC File Format". A file is made of what is known without reading elements:
//! the schema, the place and the length of every buffer. The buffers are contents over the arrays of the store. Readers
//! map such files and trust them, so nothing in one may be out of bounds: what could be is read once (codes, masks,
//! offsets, the lengths of texts), and a column that does not fit is left out with the reason.
//!
//! A directory of the view has the tables of a directory of the tree, and the directories in it. A table that a group
//! is as a whole stands beside the directory of the group, as `GROUP.arrow`; that of a store, or of what is mounted,
//! lies inside as `root.arrow`. Names follow from the names in the tree alone: a group called `root` there is
//! `%72oot.arrow`, a directory called `x.arrow` is `x%2Earrow`.

mod batches;
mod column;
mod elements;
mod file;
mod message;
mod table;
mod text;

use std::sync::Arc;

use serde_json::Value as Json;

use crate::dataset::context::Context;
use crate::store::format::{Format, Registry};
use crate::store::table::{Found, Table, has_members, known_shape};
use crate::tree::name::{self, visible_with};
use crate::tree::{Directory, Listing, Node, info};
use crate::views::unfit::verdict;
use crate::views::verdicts::{Verdict, Verdicts};
use file::{Facts, TableFile, version};
use npyfs_base::error::Result;
use npyfs_hdf5::Attribute;
use npyfs_io::file::Ownership;

/// Returns the root of the view of a tree.
pub(super) fn open(
    root: &Arc<dyn Directory>,
    context: &Arc<Context>,
    formats: &Registry,
) -> Arc<dyn Directory> {
    Arc::new(ArrowDirectory::root(root, context, formats))
}

/// The suffix of tables.
const SUFFIX: &[u8] = b".arrow";

/// What is shown in place of [`SUFFIX`] at the end of the name of a directory.
const ESCAPED: &[u8] = b"%2Earrow";

/// The name of the table that a store as a whole is, and what is shown in its place for an object of this name.
const ROOT: &[u8] = b"root";
const ESCAPED_ROOT: &[u8] = b"%72oot";

/// The longest name of a file.
const LONGEST_NAME: usize = 255;

/// The state shared by the directories of a view.
struct ArrowView {
    context: Arc<Context>,
    formats: Registry,
    /// Verdicts by path.
    known: Verdicts<Facts>,
}

/// A directory of the view.
struct ArrowDirectory {
    view: Arc<ArrowView>,
    of: Arc<dyn Directory>,
    /// The path to it, with a slash at its end.
    path: Vec<u8>,
}

/// A table with the name of its file, without the suffix.
type NamedTable = (Vec<u8>, Found);

impl ArrowDirectory {
    /// Returns the root of the view of a tree.
    fn root(root: &Arc<dyn Directory>, context: &Arc<Context>, formats: &Registry) -> Self {
        Self {
            view: Arc::new(ArrowView {
                context: context.clone(),
                formats: formats.clone(),
                known: Verdicts::new(),
            }),
            of: root.clone(),
            path: b"/".to_vec(),
        }
    }

    fn sep(&self) -> u8 {
        self.view.context.options.sep
    }

    fn format(&self, of: &dyn Directory) -> Result<Arc<dyn Format>> {
        Ok(self.view.formats.format_of(of)?.clone())
    }

    /// Returns whether its own table lies in it, and not beside it.
    fn holds_own(&self) -> bool {
        self.path == b"/" || self.of.is_store()
    }

    /// Returns the name of the table of an entry.
    fn shown(&self, stem: &[u8]) -> Vec<u8> {
        match stem {
            ROOT if self.holds_own() => ESCAPED_ROOT.to_vec(),
            _ => stem.to_vec(),
        }
    }

    /// Returns the tables that follow from the directory itself.
    fn own_tables(&self) -> Result<Vec<NamedTable>> {
        let format = self.format(&*self.of)?;
        let named = format.tables().named(&self.of, self.sep())?.into_iter();
        let stem = |name: String| self.shown(&visible_with(name.as_bytes(), "", self.sep()));
        let mut tables: Vec<_> = named.map(|(name, found)| (stem(name), found)).collect();
        if self.holds_own()
            && let Some(found) = format.tables().table(&self.of, self.sep())?
        {
            tables.push((ROOT.to_vec(), found));
        }
        Ok(tables)
    }

    /// Returns the table that an entry is.
    fn table(&self, shown: &[u8], node: &Node) -> Result<Option<NamedTable>> {
        match node {
            Node::File(file) => {
                let Some(stem) = shown.strip_suffix(b".npy") else {
                    return Ok(None);
                };
                let is_row = |shape: Vec<u64>| shape.len() == 1;
                if !known_shape(file).is_some_and(is_row) || !has_members(file) {
                    return Ok(None);
                }
                let found = verdict(table::of_compounds(file))?;
                Ok(Some((self.shown(stem), found)))
            }
            Node::Directory(dir) if !dir.is_store() && self.looks_into(shown, &**dir)? => {
                let format = self.format(&**dir)?;
                let found = format.tables().table(dir, self.sep())?;
                Ok(found.map(|found| (self.shown(shown), found)))
            }
            Node::Directory(_) | Node::Symlink(_) => Ok(None),
        }
    }

    /// Returns the file of a table, or the reason why it has none.
    fn file(
        &self,
        stem: &[u8],
        found: Found,
        format: Arc<dyn Format>,
    ) -> Result<std::result::Result<TableFile, String>> {
        let table = match found {
            Ok(table) => Arc::new(table),
            Err(why) => return Ok(Err(why)),
        };
        if stem.len() + SUFFIX.len() > LONGEST_NAME {
            return Ok(Err("its name is too long".to_owned()));
        }
        let facts = self.facts(stem, &table, &*format)?;
        Ok(facts.map(|facts| TableFile { table, facts }))
    }

    /// Returns the facts about a table, from the cache if they are known.
    fn facts(&self, stem: &[u8], table: &Table, format: &dyn Format) -> Result<Verdict<Facts>> {
        let key = [&self.path, stem].concat();
        let judge = || Facts::find(table, format);
        let known = &self.view.known;
        known.find(key, version(table), judge, Facts::weight)
    }

    /// Returns whether a directory of the tree may be a table, or hold some.
    fn looks_into(&self, shown: &[u8], of: &dyn Directory) -> Result<bool> {
        let own = name::own_name(shown, self.sep());
        self.format(&*self.of)?.tables().looks_into(&own, of)
    }

    /// Returns the directory of the view for one of the tree; `None` for one that holds the parts of an object.
    fn below(&self, shown: &[u8], of: &Arc<dyn Directory>) -> Result<Option<Node>> {
        if !self.looks_into(shown, &**of)? {
            return Ok(None);
        }
        let path = [&self.path, shown, b"/"].concat();
        Ok(Some(Node::Directory(Arc::new(Self {
            view: self.view.clone(),
            of: of.clone(),
            path,
        }))))
    }

    /// Returns the table with a name, among those that need not be searched for.
    fn found(&self, stem: &[u8]) -> Result<Option<(NamedTable, Arc<dyn Format>)>> {
        let in_tree = match stem {
            ESCAPED_ROOT if self.holds_own() => ROOT,
            ROOT if self.holds_own() => b"",
            _ => stem,
        };
        if !in_tree.is_empty() {
            for suffix in [&b".npy"[..], b""] {
                let shown = [in_tree, suffix].concat();
                if let Some(node) = self.of.lookup(&shown)?
                    && let Some(table) = self.table(&shown, &node)?
                {
                    return Ok(Some((table, self.format_of(&node)?)));
                }
            }
        }
        let own = self.own_tables()?.into_iter();
        let own = own.into_iter().find(|(name, _)| name == stem);
        match own {
            Some(table) => Ok(Some((table, self.format(&*self.of)?))),
            None => Ok(None),
        }
    }

    /// Returns the format by whose rules a table is described.
    fn format_of(&self, node: &Node) -> Result<Arc<dyn Format>> {
        match node {
            Node::Directory(dir) => self.format(&**dir),
            _ => self.format(&*self.of),
        }
    }
}

impl Directory for ArrowDirectory {
    fn ownership(&self) -> Ownership {
        self.of.ownership()
    }

    fn list(&self) -> Result<Arc<Listing>> {
        let listing = self.of.list()?;
        let (mut entries, mut left_out) = (Vec::new(), listing.left_out.clone());
        let mut tables = Vec::new();
        for (shown, node) in listing.objects() {
            if let Node::Directory(dir) = &*node
                && let Some(below) = self.below(&shown, dir)?
            {
                entries.push((directory_name(&shown), below));
            }
            if let Some(table) = self.table(&shown, &node)? {
                tables.push((table, self.format_of(&node)?));
            }
        }
        let format = self.format(&*self.of)?;
        let own = self.own_tables()?.into_iter();
        tables.extend(own.map(|table| (table, format.clone())));
        for ((stem, found), format) in tables {
            match self.file(&stem, found, format)? {
                Ok(file) => {
                    let columns = file.facts.left_out().iter();
                    left_out.extend(columns.map(|(column, why)| {
                        let name = [&stem, SUFFIX, b": ", column.as_bytes()].concat();
                        (name, why.clone())
                    }));
                    entries.push(([&stem, SUFFIX].concat(), Node::File(Arc::new(file))));
                }
                Err(why) => left_out.push(([&stem, SUFFIX].concat(), why)),
            }
        }
        let listing = Listing::new(entries, left_out, listing.notes.clone())
            .with_damage(listing.damage.clone());
        Ok(Arc::new(listing))
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        if let Some(stem) = name.strip_suffix(SUFFIX) {
            let Some(((stem, found), format)) = self.found(stem)? else {
                return Ok(None);
            };
            let file = self.file(&stem, found, format)?.ok();
            return Ok(file.map(|file| Node::File(Arc::new(file))));
        }
        let shown = match name.strip_suffix(ESCAPED) {
            Some(stem) => [stem, SUFFIX].concat(),
            None => name.to_vec(),
        };
        Ok(match self.of.lookup(&shown)? {
            Some(Node::Directory(dir)) => self.below(&shown, &dir)?,
            _ => None,
        })
    }

    fn is_current(&self) -> bool {
        self.of.is_current()
    }

    fn is_lasting(&self) -> bool {
        self.of.is_lasting()
    }

    fn is_store(&self) -> bool {
        self.of.is_store()
    }

    fn format(&self) -> Result<&'static str> {
        self.of.format()
    }

    fn info(&self) -> Result<Json> {
        let listing = self.list()?;
        Ok(info::view(self.of.info()?, "arrow", &listing))
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        self.of.attributes()
    }
}

/// Returns the name of the directory of a directory in the tree.
fn directory_name(shown: &[u8]) -> Vec<u8> {
    match shown.strip_suffix(SUFFIX) {
        Some(stem) => [stem, ESCAPED].concat(),
        None => shown.to_vec(),
    }
}
