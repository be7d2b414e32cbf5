//! AnnData: groups in `.h5ad` and `.h5mu` files, by what they say of themselves.
//!
//! Everything in HDF5 is shown as plain HDF5. A sparse matrix also has an `.npz` beside its directory, and a
//! categorical has its labels; if the parts do not match each other or the axes, these are left out with the reason.
//! Source: anndata 0.12, `docs/fileformat-prose`; mudata 0.3.
//!
//! A group is AnnData by its attribute `encoding-type`; a file is always opened as plain HDF5. AnnData is a kind of
//! group, which plain HDF5's directory queries for every group: which groups below it are single objects, which files
//! are beside them, and what is left out. `slot` determines the meaning of a path and its axes. `encode` plans elements
//! with the attributes that anndata reads. `column-order` is an attribute of a group that no layer contains: the view
//! of layers shows it modified, and the workers of exports and publications update it for each new or deleted member.
//! As a table, a data frame is its index, then the columns in their order.

mod check;
mod demo;
mod encode;
mod labels;
mod marks;
mod slot;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;

use self::labels::LabelsFile;
use self::marks::{COLUMNS, INDEX, Marks, NAMES, ORDERED};
use self::slot::{check_name, is_object};
use crate::dataset::opened::OpenStore;
use crate::formats::demo::write_file;
use crate::formats::plain::array::{ArrayFile, KnownSize};
use crate::formats::plain::group::{Composite, GroupDirectory, GroupKind, GroupView};
use crate::formats::sparse;
use crate::store::attribute;
use crate::store::base::{Base, unsupported};
use crate::store::encode::array::NpyArray;
use crate::store::encode::{ObjectKey, Plan};
use crate::store::format::{
    Abilities, Format, Inspection, Objects, Rules, Source, Tables, Writing,
};
use crate::store::new_store::NewAxis;
use crate::store::object::NewFile;
use crate::store::part::Part;
use crate::store::table::{Column, Found, Table, Values};
use crate::store::target::Deletion;
use crate::tree::name::visible_with;
use crate::tree::{Directory, Node, VirtualFile};
use npyfs_base::error::{ErrorKind, Result};
use npyfs_hdf5::{Dataset, GroupMember, GroupMembers, GroupScan, NewAttribute, ScannedMember};

/// Name of the format.
pub const NAME: &str = "anndata";

/// AnnData and MuData.
pub struct AnnData;

impl Format for AnnData {
    fn name(&self) -> &'static str {
        NAME
    }

    fn root(&self, store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
        // Any group may be AnnData: plain HDF5 looks at each.
        Ok(GroupDirectory::root_of_kind(store, NAME, &[&Groups]))
    }

    fn demonstrate(&self, dir: &Path, _program: Option<&Path>) -> Result<Vec<(PathBuf, bool)>> {
        Ok(vec![write_file(dir.join("cells.h5ad"), demo::fill)?])
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities {
            objects: self,
            tables: self,
            rules: self,
            source: self,
            writing: Some(self),
            ..Abilities::default()
        }
    }
}

impl Objects for AnnData {
    fn has_composites(&self) -> bool {
        true
    }

    fn is_object_at(
        &self,
        path: &[String],
        suffix: &str,
        there: Option<&dyn Directory>,
    ) -> Result<bool> {
        let attributes = there.map(|dir| dir.attributes()).transpose()?;
        Ok(is_object(path, suffix, attributes.as_deref()))
    }

    fn member_list(&self) -> Option<&'static str> {
        Some(COLUMNS)
    }
}

impl Tables for AnnData {
    fn table(&self, dir: &Arc<dyn Directory>, sep: u8) -> Result<Option<Found>> {
        frame(dir, sep)
    }

    fn looks_into(&self, _own: &[u8], dir: &dyn Directory) -> Result<bool> {
        let attributes = dir.attributes()?;
        let marks = Marks(&attributes);
        let is_part = marks.is_categorical() || marks.sparse_order().is_some();
        Ok(!is_part && !dir.is_object())
    }
}

impl Rules for AnnData {
    fn broken(&self, dir: &dyn Directory, inspection: &Inspection<'_>) -> Result<Vec<String>> {
        check::broken(dir, inspection)
    }

    fn reaches_up(&self, dir: &dyn Directory, inspection: &Inspection<'_>) -> Result<bool> {
        check::names_rows(dir, inspection)
    }

    fn refuses_attribute(&self, name: &str) -> Option<String> {
        /// The attributes by which AnnData describes tables, columns and matrices.
        const OWN: [&str; 5] = ["_index", "column-order", "ordered", "shape", "categories"];
        let is_own = OWN.contains(&name);
        attribute::refused(name)
            .or_else(|| is_own.then(|| format!("the attribute {name:?} belongs to AnnData")))
    }
}

impl Source for AnnData {
    fn repeats(&self, dir: &dyn Directory, shown: &[u8], _stacked: bool) -> Result<bool> {
        // The archive of a sparse matrix, beside its directory.
        let Some(stem) = shown.strip_suffix(b".npz") else {
            return Ok(false);
        };
        Ok(matches!(dir.lookup(stem)?, Some(Node::Directory(_))))
    }

    fn lost_without(&self, members: &dyn Directory) -> Result<Option<String>> {
        let attributes = members.attributes()?;
        Ok(Marks(&attributes)
            .is_categorical()
            .then(|| "only the labels of a categorical".into()))
    }

    fn is_mark(&self, attribute: &[u8]) -> bool {
        marks::is_mark(attribute)
    }
}

impl Writing for AnnData {
    fn plan(&self, base: &dyn Base, key: &ObjectKey, parts: &[Part]) -> Result<Plan> {
        encode::plan(base, key, parts)
    }

    fn deletion(&self, base: &dyn Base, key: &ObjectKey, _member: &str) -> Result<Deletion> {
        encode::deletion(base, key)
    }

    fn exported(
        &self,
        dir: &dyn Directory,
        key: &ObjectKey,
        array: &NpyArray,
    ) -> Result<Option<NewFile>> {
        encode::exported(dir, key, array)
    }

    fn mark_file(&self, new: &mut NewFile) {
        encode::mark_file(new);
    }

    fn check_directory(&self, base: &dyn Base, key: &ObjectKey) -> Result<()> {
        check_name(base, key.path())
    }

    fn group_marks(&self) -> Vec<NewAttribute> {
        encode::encoding("dict", "0.1.0")
    }

    fn is_made(&self) -> bool {
        false
    }

    fn begin(&self, _base: &dyn Base, _axes: &[NewAxis]) -> Result<NewFile> {
        Err(unsupported(
            "an empty AnnData has no use: write one with anndata",
        ))
    }
}

/// Groups outside of AnnData are examined only if they have at most this many members.
const MOST: usize = 256;

/// Groups that are AnnData, or are inside of it.
pub struct Groups;

impl GroupKind for Groups {
    fn name(&self) -> &'static str {
        NAME
    }

    fn attribute(&self) -> Option<&'static str> {
        Some(marks::TYPE)
    }

    fn view(
        &self,
        group: &GroupDirectory,
        members: &GroupMembers,
        notes: &mut Vec<String>,
    ) -> Result<Option<GroupView>> {
        let is_below = group.within() == Some(NAME);
        let is_group = |(_, member): &(_, GroupMember)| matches!(member, GroupMember::Group { .. });
        let may_be = members.total <= MOST && members.members.iter().any(is_group);
        if !is_below && !may_be {
            return Ok(None);
        }
        // Levels below the members are examined only if they may matter.
        let mut element = match Element::read(group, group.addr(), usize::from(is_below)) {
            Ok(element) => element,
            Err(e) if e.kind == ErrorKind::Damaged => {
                notes.push(format!("shown as plain HDF5: {}", e.message));
                return Ok(None);
            }
            Err(e) => return Err(e),
        };
        let is_own = is_below || element.is_encoded();
        if !is_below {
            if !is_own && !element.has_objects() {
                return Ok(None);
            }
            element = Element::read(group, group.addr(), 1)?;
        }
        let mut view = GroupView {
            is_plain: !is_own,
            ..GroupView::default()
        };
        element.add_objects(group, &mut view)?;
        if let Some(frame) = element.frame() {
            frame.describe(&element, &mut view, notes);
        }
        Ok(Some(view))
    }
}

/// The lengths of the two axes, as far as known.
type Axes = (Option<u64>, Option<u64>);

/// A group with its members.
struct Element {
    scan: GroupScan<ScannedMember>,
}

impl Element {
    fn read(group: &GroupDirectory, addr: u64, depth: usize) -> Result<Self> {
        let store = group.store();
        let h5 = &store.context.h5;
        let scan = h5.scan(&store.file, addr, &NAMES, (usize::MAX, depth), |member| {
            member
        })?;
        Ok(Self { scan })
    }

    fn marks(&self) -> Marks<'_> {
        Marks(&self.scan.attributes)
    }

    fn member(&self, name: &str) -> Option<&ScannedMember> {
        find(&self.scan.members, name)
    }

    /// Returns whether the group is marked as an element, or is AnnData from before groups were marked.
    fn is_encoded(&self) -> bool {
        self.marks().encoding().is_some() || self.is_old()
    }

    fn is_old(&self) -> bool {
        let is_frame = |name| {
            self.member(name)
                .is_some_and(|member| match &member.member {
                    GroupMember::Dataset(dataset) => is_record(dataset),
                    _ => Marks(&member.attributes).encoding().as_deref() == Some("dataframe"),
                })
        };
        self.marks().encoding().is_none() && is_frame("obs") && is_frame("var")
    }

    /// Returns whether it has axes for the elements below it.
    fn is_annotated(&self) -> bool {
        let encoding = self.marks().encoding();
        matches!(encoding.as_deref(), Some("anndata" | "MuData")) || self.is_old()
    }

    /// Returns the number of rows of a table below it.
    fn length(&self, table: &str) -> Option<u64> {
        let member = self.member(table)?;
        match &member.member {
            GroupMember::Dataset(dataset) => dataset.shape.first().copied(),
            _ => Frame::find(Marks(&member.attributes), member.members.as_deref()?)?.rows,
        }
    }

    fn axes(&self) -> Axes {
        (self.length("obs"), self.length("var"))
    }

    /// Returns its table, if it is one.
    fn frame(&self) -> Option<Frame> {
        Frame::find(self.marks(), &self.scan.members)
    }

    /// Returns whether a member is a sparse matrix or a categorical.
    fn has_objects(&self) -> bool {
        let mut members = self.scan.members.iter().map(|m| Marks(&m.attributes));
        members.any(|marks| marks.sparse_order().is_some() || marks.is_categorical())
    }

    /// Finds the sparse matrices and categoricals.
    fn add_objects(&self, group: &GroupDirectory, view: &mut GroupView) -> Result<()> {
        let frame = self.frame();
        let rows = frame.as_ref().and_then(|frame| frame.rows);
        let mut above = None;
        for member in &self.scan.members {
            let GroupMember::Group { addr, .. } = member.member else {
                continue;
            };
            let marks = Marks(&member.attributes);
            let object = if marks.sparse_order().is_some() {
                let axes = match above {
                    Some(axes) => axes,
                    None => *above.insert(self.axes_of_members(group)?),
                };
                matrix(group, member, self.axes_of(&member.name, axes))
            } else if marks.is_categorical() {
                categorical(group, member, rows)
            } else {
                continue;
            };
            match object {
                Ok(object) => {
                    view.composites.insert(addr, object);
                }
                Err(why) => view.left_out.push((member.name.clone(), why)),
            }
        }
        Ok(())
    }

    /// Returns the axes of a group's members: those of the AnnData that is the group itself or its parent.
    fn axes_of_members(&self, group: &GroupDirectory) -> Result<Axes> {
        if self.is_annotated() {
            return Ok(self.axes());
        }
        let lies_in = match group.within() {
            Some(NAME) => group.above(),
            _ => None,
        };
        let Some(above) = lies_in else {
            return Ok((None, None));
        };
        let above = Self::read(group, above, 1)?;
        let (rows, columns) = match above.is_annotated() {
            true => above.axes(),
            false => (None, None),
        };
        Ok(match group.name() {
            Some(b"layers") => (rows, columns),
            Some(b"raw") => (rows, self.length("var")),
            Some(b"obsm") => (rows, None),
            Some(b"varm") => (columns, None),
            Some(b"obsp") => (rows, rows),
            Some(b"varp") => (columns, columns),
            _ => (None, None),
        })
    }

    /// Returns the axes of one member, out of those of all members.
    fn axes_of(&self, name: &[u8], axes: Axes) -> Axes {
        let is_raw = self.marks().encoding().as_deref() == Some("raw");
        match name == b"X" || !(self.is_annotated() || is_raw) {
            true => axes,
            false => (None, None),
        }
    }
}

/// A table: a group of columns.
struct Frame {
    index: String,
    /// The length of the index.
    rows: Option<u64>,
    columns: Vec<String>,
}

impl Frame {
    fn find(marks: Marks<'_>, members: &[ScannedMember]) -> Option<Self> {
        let is_table = marks.encoding().as_deref() == Some("dataframe");
        let index = marks.text(INDEX).filter(|_| is_table)?;
        let rows = find(members, &index).and_then(|member| match &member.member {
            GroupMember::Dataset(dataset) if dataset.shape.len() == 1 => Some(dataset.shape[0]),
            _ => None,
        });
        let columns = marks.texts(COLUMNS).unwrap_or_default();
        Some(Self {
            index,
            rows,
            columns,
        })
    }

    /// Describes the table in `info`, and notes columns that do not fit it.
    fn describe(&self, element: &Element, view: &mut GroupView, notes: &mut Vec<String>) {
        view.info = vec![("index", json!(self.index)), ("rows", json!(self.rows))];
        for name in &self.columns {
            if element.member(name).is_none() {
                notes.push(format!("column-order has {name}, which is not there"));
            }
        }
        let Some(rows) = self.rows else {
            notes.push(format!("there is no index {}", self.index));
            return;
        };
        for member in &element.scan.members {
            if let GroupMember::Dataset(dataset) = &member.member
                && dataset.shape.first() != Some(&rows)
            {
                notes.push(format!(
                    "{}: shape {:?} does not fit an index of length {rows}",
                    String::from_utf8_lossy(&member.name),
                    dataset.shape
                ));
            }
        }
    }
}

fn find<'a>(members: &'a [ScannedMember], name: &str) -> Option<&'a ScannedMember> {
    members.iter().find(|m| m.name == name.as_bytes())
}

fn is_record(dataset: &Dataset) -> bool {
    use npyfs_hdf5::ElementType::{Fixed, Record, Text};
    match &dataset.element {
        Fixed { dtype, .. } => matches!(dtype, npyfs_base::npy::dtype::DType::Struct { .. }),
        Record { .. } => true,
        Text { .. } => false,
    }
}

/// Returns the representation of a sparse matrix along some axes, or the reason why it has no archive.
fn matrix(
    group: &GroupDirectory,
    member: &ScannedMember,
    (rows, columns): Axes,
) -> std::result::Result<Composite, String> {
    let marks = Marks(&member.attributes);
    let order = marks.sparse_order().ok_or("no order")?;
    let (lengths, shape) = marks
        .sparse_shape()
        .ok_or("sparse matrix without an attribute shape of two integers")?;
    let fits = |axis: Option<u64>, length| axis.is_none_or(|axis| axis == length);
    if !fits(rows, lengths.0) || !fits(columns, lengths.1) {
        let length = |axis: Option<u64>| axis.map_or("any".to_owned(), |n| n.to_string());
        return Err(format!(
            "sparse shape {:?} does not fit axes of length [{}, {}]",
            [lengths.0, lengths.1],
            length(rows),
            length(columns)
        ));
    }
    let below = below(group, member)?;
    sparse::check_stored(group.store(), &below, order, lengths)?;
    Ok(Composite {
        kind: NAME,
        values: vec![(marks::SHAPE, shape.clone())],
        beside: Arc::new(move |group| {
            let file = sparse::archive(group, order, NAME)?;
            Ok((".npz", Arc::new(file) as Arc<dyn VirtualFile>))
        }),
    })
}

/// Returns the representation of a categorical of a table with this many rows, or the reason why it has no labels.
fn categorical(
    group: &GroupDirectory,
    member: &ScannedMember,
    rows: Option<u64>,
) -> std::result::Result<Composite, String> {
    let below = below(group, member)?;
    let name = String::from_utf8_lossy(&member.name).into_owned();
    let path = format!("{}/{name}", group.path());
    let part = |name: &str| {
        let mut parts = below.iter();
        let part = parts.find_map(|(n, part)| match part {
            GroupMember::Dataset(dataset) if n == name.as_bytes() => Some(dataset.clone()),
            _ => None,
        });
        let dataset = part.ok_or_else(|| format!("categorical without {name}"))?;
        Ok::<_, String>(ArrayFile {
            store: group.store().clone(),
            dataset,
            group: path.as_str().into(),
            name: name.as_bytes().into(),
            kind: NAME,
            size: KnownSize::default(),
            is_remade: false,
        })
    };
    let labels = LabelsFile::new(part("codes")?, part("categories")?, path.clone())?;
    if let Some(rows) = rows.filter(|&rows| rows != labels.rows()) {
        let codes = labels.rows();
        return Err(format!(
            "{codes} codes do not fit an index of length {rows}"
        ));
    }
    let labels = Arc::new(labels);
    Ok(Composite {
        kind: NAME,
        values: Vec::new(),
        beside: Arc::new(move |_| Ok((".npy", labels.clone() as Arc<dyn VirtualFile>))),
    })
}

/// Returns the members of a group found in a scan.
fn below(
    group: &GroupDirectory,
    member: &ScannedMember,
) -> std::result::Result<Vec<(Vec<u8>, GroupMember)>, String> {
    if let Some(members) = &member.members {
        let members = members.iter();
        return Ok(members
            .map(|m| (m.name.clone(), m.member.clone()))
            .collect());
    }
    let GroupMember::Group { addr, .. } = member.member else {
        return Ok(Vec::new());
    };
    let store = group.store();
    let listed = store.context.h5.list(&store.file, addr, false);
    listed.map(|l| l.members).map_err(|e| e.to_string())
}

/// The encodings of arrays in which values may be missing begin so.
const NULLABLE: &str = "nullable-";

/// Returns the table that a group is, or why it is none although it says so.
fn frame(dir: &Arc<dyn Directory>, sep: u8) -> Result<Option<Found>> {
    let attributes = dir.attributes()?;
    let marks = Marks(&attributes);
    if marks.encoding().as_deref() != Some("dataframe") {
        return Ok(None);
    }
    let Some(index) = marks.text(INDEX) else {
        return Ok(Some(Err("a data frame that names no index".to_owned())));
    };
    let Some(order) = marks.texts(COLUMNS) else {
        return Ok(Some(Err("a data frame without column-order".to_owned())));
    };
    let mut table = Table::default();
    for name in std::iter::once(index.clone()).chain(order) {
        match values(&**dir, &name, sep)? {
            Ok(values) => table.columns.push(Column { name, values }),
            Err(why) if name == index => return Ok(Some(Err(format!("its index {name}: {why}")))),
            Err(why) => table.left_out.push((name, why)),
        }
    }
    table.attributes = attributes;
    Ok(Some(Ok(table)))
}

/// Returns the values of a member of a group, by its encoding.
fn values(dir: &dyn Directory, name: &str, sep: u8) -> Result<std::result::Result<Values, String>> {
    let shown = |suffix| visible_with(name.as_bytes(), suffix, sep);
    let group = match dir.lookup(&shown(""))? {
        Some(Node::Directory(group)) => group,
        _ => {
            return Ok(match dir.lookup(&shown(".npy"))? {
                Some(Node::File(file)) => Ok(Values::Array(file)),
                _ => Err("there is no such array".to_owned()),
            });
        }
    };
    let attributes = group.attributes()?;
    let marks = Marks(&attributes);
    let encoding = marks.encoding().unwrap_or_default();
    let parts = match (encoding.as_str(), encoding.strip_prefix(NULLABLE)) {
        ("categorical", _) => ["codes", "categories"],
        (_, Some(_)) => ["values", "mask"],
        _ => return Ok(Err("a group that is no column".to_owned())),
    };
    let mut found = Vec::new();
    for part in parts {
        match values(&*group, part, sep)? {
            Ok(values) => found.push(Box::new(values)),
            Err(why) => return Ok(Err(format!("{part}: {why}"))),
        }
    }
    let ordered = marks.value(ORDERED).is_some_and(|value| value.data == [1]);
    let Ok([first, second]) = <[_; 2]>::try_from(found) else {
        return Ok(Err("a group without its parts".to_owned()));
    };
    Ok(Ok(match parts[0] {
        "codes" => Values::Coded {
            codes: first,
            values: second,
            ordered,
        },
        _ => Values::Masked {
            values: first,
            mask: second,
        },
    }))
}
