//! An overview of a store or of a directory in one: the facts about it, and a tree of what is in it, with type, shape,
//! stored size and units, as deep as the terminal has room for.
//!
//! The facts come first: its kind, the lengths of its axes, where it lies, its size. They are made of what the
//! directory itself reports, so that a mount and a store say the same. What is not known is not said.
//!
//! What of the tree does not fit costs nothing: it is counted, and not asked for. With a depth that was asked for,
//! lines are printed as they are found, and none is kept.

use std::ffi::OsStr;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value as Json;

use crate::cli::CliError;
use crate::cli::figures::{self, Table, shape};
use crate::cli::output::{self, Name, kind, print_json};
use npyfs_base::error::Result;
use npyfs_base::printable::{self, line};
use npyfs_core::tree::{Directory, Listing, Node};

/// Columns that names take where lines are printed as they are found.
const NAMES: usize = 32;

/// Characters of a type that are shown at most: the type of a compound can be long.
const LONGEST_TYPE: usize = 16;

/// The depth of a tree.
#[derive(Clone, Copy, Debug)]
pub enum Depth {
    /// As many lines as there is room for.
    Lines(usize),
    /// So many directories below each other.
    Levels(usize),
}

/// An entry of the tree. The fields of the JSON stand in the order of their names.
#[derive(Serialize)]
struct Entry {
    #[serde(skip_serializing_if = "Option::is_none")]
    dtype: Option<Json>,
    /// The number of entries of a directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<usize>,
    kind: &'static str,
    #[serde(flatten)]
    path: Name,
    /// Rows of a data frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shape: Option<Vec<u64>>,
    /// Bytes that the store takes for it, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    stored_size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    units: Option<String>,
    /// Why no more is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip)]
    depth: usize,
}

impl Entry {
    fn new(path: &Path, depth: usize, node: &Node) -> Self {
        let mut entry = Self {
            dtype: None,
            entries: None,
            kind: kind(node),
            path: Name::new(path.as_os_str().as_bytes()),
            rows: None,
            shape: None,
            stored_size: None,
            target: None,
            units: None,
            error: None,
            depth,
        };
        let info = match node {
            Node::Symlink(link) => {
                entry.target = Some(String::from_utf8_lossy(&link.target).into_owned());
                return entry;
            }
            Node::Directory(dir) => {
                entry.entries = dir.list().ok().map(|listing| listing.len());
                dir.info()
            }
            Node::File(file) => file.info(),
        };
        match info {
            Ok(info) => entry.describe(&info, matches!(node, Node::File(_))),
            Err(e) => entry.error = Some(e.message),
        }
        entry
    }

    /// Takes over what is reported of an object.
    fn describe(&mut self, info: &Json, is_file: bool) {
        self.rows = info["rows"].as_u64().filter(|_| !is_file);
        self.units = info["attributes"]["units"].as_str().map(str::to_owned);
        if !is_file {
            return;
        }
        self.dtype = info.get("dtype").filter(|dtype| !dtype.is_null()).cloned();
        let dims = |shape: &Json| {
            let dims = shape.as_array()?.iter();
            dims.map(Json::as_u64).collect::<Option<Vec<u64>>>()
        };
        self.shape = info.get("shape").and_then(dims);
        self.stored_size = info["stored_size"].as_u64();
        // An archive is what its members are.
        if let Some(members) = info["members"].as_object() {
            self.dtype = members.get("data.npy").map(|data| data["dtype"].clone());
            self.shape = members.get("shape.npy").and_then(|own| dims(&own["value"]));
            let sizes = members
                .values()
                .filter_map(|own| own["stored_size"].as_u64());
            self.stored_size = Some(sizes.sum());
        }
    }

    fn name(&self) -> String {
        let name = self.path.0.rsplit(|&byte| byte == b'/').next();
        let slash = if self.kind == "directory" { "/" } else { "" };
        let blanks = "  ".repeat(self.depth);
        let name = printable::name(name.unwrap_or_default());
        format!("{blanks}{name}{slash}")
    }

    /// Returns the line, in which the name takes `width` columns.
    fn line(&self, width: usize) -> String {
        let name = self.name();
        let rest = match (&self.error, &self.target, self.kind) {
            (Some(why), ..) => printable::line(why),
            (_, Some(target), _) => format!("-> {}", printable::name(target.as_bytes())),
            (_, _, "directory") => {
                let count = self.entries.map(|entries| match entries {
                    1 => "1 entry".to_owned(),
                    _ => format!("{entries} entries"),
                });
                let rows = self.rows.map(|rows| figures::count(rows, "row"));
                let facts = [rows, count, self.units.as_deref().map(printable::line)];
                facts.into_iter().flatten().collect::<Vec<_>>().join(", ")
            }
            _ => {
                let none = || "-".to_owned();
                let dtype = self.dtype.as_ref().map_or_else(none, dtype_word);
                let shape = self.shape.as_deref().map_or_else(none, shape);
                let size = self.stored_size.map_or_else(none, figures::bytes);
                let units = self.units.as_deref().map(printable::line);
                let units = units.unwrap_or_default();
                format!("{dtype:<8}  {shape:<18}  {size:>9}  {units}")
            }
        };
        let line = format!("{name:<width$}  {rest}");
        format!("{}\n", line.trim_end())
    }
}

/// Returns a type in a few characters.
fn dtype_word(dtype: &Json) -> String {
    let word = match dtype {
        Json::String(name) => printable::line(name),
        Json::Array(members) => figures::count(members.len() as u64, "member"),
        other => printable::line(&other.to_string()),
    };
    match word.char_indices().nth(LONGEST_TYPE) {
        Some((at, _)) => format!("{}...", &word[..at]),
        None => word,
    }
}

/// Returns whether a directory holds the parts of a file beside it, which says all that they say.
fn is_beside(listing: &Listing, name: &[u8]) -> bool {
    let endings: [&[u8]; 2] = [b".npy", b".npz"];
    let known = |ending: &&[u8]| listing.find(&[name, ending].concat()).is_some();
    endings.iter().any(known)
}

/// Visits what is in a directory, and below it to a depth of `levels` directories; `all`: also the parts of objects.
fn walk(
    dir: &Arc<dyn Directory>,
    path: &Path,
    depth: usize,
    (levels, all): (usize, bool),
    visit: &mut dyn FnMut(&Path, usize, &Node) -> ControlFlow<()>,
) -> (ControlFlow<()>, Result<()>) {
    let listing = match dir.list() {
        Ok(listing) => listing,
        Err(e) => return (ControlFlow::Continue(()), Err(e)),
    };
    let mut done = Ok(());
    for (name, node) in listing.iter() {
        let path = path.join(OsStr::from_bytes(&name));
        if visit(&path, depth, &node).is_break() {
            return (ControlFlow::Break(()), done);
        }
        if let Node::Directory(below) = &*node
            && depth + 1 < levels
            && (all || !is_beside(&listing, &name))
        {
            let (flow, failed) = walk(below, &path, depth + 1, (levels, all), visit);
            done = done.and(failed.map_err(|e| e.about(path.display())));
            if flow.is_break() {
                return (flow, done);
            }
        }
    }
    (ControlFlow::Continue(()), done)
}

/// Counts the entries down to a depth, and how deep they really lie; `None`: there are more than `most`.
fn count(dir: &Arc<dyn Directory>, levels: usize, most: usize) -> Option<(usize, usize)> {
    let (mut lines, mut deepest) = (0, 0);
    let visit = &mut |_: &Path, depth: usize, _: &Node| {
        lines += 1;
        deepest = deepest.max(depth + 1);
        match lines > most {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let (flow, _) = walk(dir, Path::new(""), 0, (levels, false), visit);
    flow.is_continue().then_some((lines, deepest))
}

/// Returns the greatest depth of a tree of so many lines; at least one.
fn fitting(dir: &Arc<dyn Directory>, lines: usize) -> usize {
    let mut levels = 1;
    loop {
        match count(dir, levels + 1, lines) {
            Some((_, deepest)) if deepest > levels => levels += 1,
            _ => return levels,
        }
    }
}

/// The JSON of an overview.
#[derive(Serialize)]
struct Overview<'a> {
    #[serde(flatten)]
    facts: &'a Facts,
    entries: Vec<Entry>,
}

/// Prints the overview of a directory as JSON; by default what lies in it itself.
pub fn print_as_json(dir: &Arc<dyn Directory>, facts: &Facts, levels: usize) -> Outcome {
    let mut entries = Vec::new();
    let visit = &mut |path: &Path, depth: usize, node: &Node| {
        entries.push(Entry::new(path, depth, node));
        ControlFlow::Continue(())
    };
    let (_, done) = walk(dir, Path::new(""), 0, (levels, levels > 1), visit);
    print_json(&Overview { facts, entries })?;
    done.map_err(|e| CliError::object(e.message))
}

type Outcome = std::result::Result<(), CliError>;

/// Prints the tree of a directory.
pub fn print_tree(dir: &Arc<dyn Directory>, depth: Depth) -> Outcome {
    let mut out = BufWriter::new(io::stdout().lock());
    let (levels, most) = match depth {
        Depth::Lines(lines) => (fitting(dir, lines), lines),
        Depth::Levels(levels) => (levels, usize::MAX),
    };
    let mut kept: Vec<Entry> = Vec::new();
    let mut written = Ok(());
    let mut left = 0_usize;
    let is_fitted = most < usize::MAX;
    // The parts of an object are wanted where a depth was.
    let all = !is_fitted;
    let fits = count(dir, levels, most).is_some();
    let room = if fits { most } else { most.saturating_sub(1) };
    let visit = &mut |path: &Path, depth: usize, node: &Node| {
        if is_fitted && kept.len() >= room {
            left += 1;
            return ControlFlow::Continue(());
        }
        let entry = Entry::new(path, depth, node);
        if is_fitted {
            kept.push(entry);
            return ControlFlow::Continue(());
        }
        written = out.write_all(entry.line(NAMES).as_bytes());
        match written.is_ok() {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    };
    let (_, done) = walk(dir, Path::new(""), 0, (levels, all), visit);
    let widths = kept.iter().map(|entry| entry.name().chars().count());
    let width = widths.max().unwrap_or(0);
    for entry in &kept {
        written = written.and_then(|()| out.write_all(entry.line(width).as_bytes()));
    }
    if left > 0 {
        written = written.and_then(|()| writeln!(out, "... and {left} more; --all shows all"));
    }
    output::written(written.and_then(|()| out.flush()))?;
    done.map_err(|e| CliError::object(e.message))
}

/// Entries of a directory among which axes are looked for: each costs a request.
const SEARCHED: usize = 512;

/// An axis of a store, along which its arrays lie.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Axis {
    name: String,
    len: u64,
}

/// The facts about a directory. The fields of the JSON stand in the order of their names.
#[derive(Serialize)]
pub struct Facts {
    /// Empty if the store has none, or says nothing of them.
    axes: Vec<Axis>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// Rows of a data frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<u64>,
    /// The size of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// All that the directory reports.
    #[serde(skip)]
    pub info: Json,
}

impl Facts {
    /// Finds the facts about a directory.
    pub fn find(dir: &dyn Directory) -> Result<Self> {
        let info = dir.info()?;
        let text = |key: &str| info[key].as_str().map(str::to_owned);
        let (file, path) = (text("file"), text("path"));
        let is_top = path.as_deref().is_none_or(|path| path == "/");
        let size = file.as_ref().filter(|_| is_top).and_then(|file| {
            let meta = std::fs::metadata(file).ok()?;
            meta.is_file().then_some(meta.len())
        });
        Ok(Self {
            axes: if is_top { axes(dir, &info) } else { Vec::new() },
            kind: text("kind").unwrap_or_default(),
            path: path.filter(|_| !is_top),
            rows: info["rows"].as_u64(),
            file,
            size,
            info,
        })
    }

    /// Adds what `info` does not say itself.
    pub fn add_to(&self, table: &mut Table) {
        if !self.axes.is_empty() {
            table.push("axes", self.axes_line());
        }
        if let Some(size) = self.size {
            table.push("size", figures::bytes(size));
        }
    }

    /// Returns all facts, one on each line.
    pub fn lines(&self) -> String {
        let mut table = Table::default();
        table.push("kind", line(&self.kind));
        self.add_to(&mut table);
        for (name, value) in [("file", &self.file), ("path", &self.path)] {
            if let Some(value) = value {
                table.push(name, line(value));
            }
        }
        if let Some(rows) = self.rows {
            table.push("rows", rows.to_string());
        }
        table.lines(0)
    }

    fn axes_line(&self) -> String {
        let axis = |axis: &Axis| format!("{} {}", line(&axis.name), axis.len);
        let axes: Vec<String> = self.axes.iter().map(axis).collect();
        match self.kind.as_str() {
            "anndata" => axes.join(" × "),
            _ => axes.join(", "),
        }
    }
}

/// Returns the axes that a store says it has.
fn axes(dir: &dyn Directory, info: &Json) -> Vec<Axis> {
    match info["kind"].as_str() {
        Some("anndata") => [("n_obs", "obs"), ("n_vars", "var")]
            .into_iter()
            .filter_map(|(name, frame)| {
                let len = frame_rows(dir, frame)?;
                let name = name.to_owned();
                Some(Axis { name, len })
            })
            .collect(),
        // The name of an axis ends in #, or in the sign that a mount shows for it.
        Some("daf") => {
            let last = |name: &[u8]| name.strip_suffix(b".npy")?.last().copied();
            let may_be = |name: &[u8]| last(name).is_some_and(|last| last.is_ascii_punctuation());
            among(dir, may_be, |info| {
                let own = info["path"]
                    .as_str()?
                    .strip_prefix('/')?
                    .strip_suffix('#')?;
                Some(own.to_owned())
            })
        }
        Some("plain") if is_netcdf(info) => {
            let is_array = |name: &[u8]| name.ends_with(b".npy");
            among(dir, is_array, |info| {
                let own = info["path"].as_str()?.rsplit('/').next()?;
                let is_scale = info["attributes"]["CLASS"] == "DIMENSION_SCALE";
                is_scale.then(|| own.to_owned())
            })
        }
        _ => Vec::new(),
    }
}

/// Returns whether the root of a file says that netCDF wrote it.
fn is_netcdf(info: &Json) -> bool {
    !info["attributes"]["_NCProperties"].is_null()
}

/// Returns the rows of a data frame of AnnData, in its present form or as the one array that it once was.
fn frame_rows(dir: &dyn Directory, name: &str) -> Option<u64> {
    match dir.lookup(name.as_bytes()).ok()? {
        Some(Node::Directory(frame)) => frame.info().ok()?["rows"].as_u64(),
        _ => {
            let Some(Node::File(file)) = dir.lookup(format!("{name}.npy").as_bytes()).ok()? else {
                return None;
            };
            file.info().ok()?["shape"][0].as_u64()
        }
    }
}

/// Returns the arrays of one axis that `named` gives the name of an axis by their reports. Of entries that are not
/// called so that they `may_be` axes none is asked for.
fn among(
    dir: &dyn Directory,
    may_be: impl Fn(&[u8]) -> bool,
    named: impl Fn(&Json) -> Option<String>,
) -> Vec<Axis> {
    let Ok(listing) = dir.list() else {
        return Vec::new();
    };
    let axis = |node: &Node| {
        let Node::File(file) = node else {
            return None;
        };
        let info = file.info().ok()?;
        let [len] = info["shape"].as_array()?.as_slice() else {
            return None;
        };
        let len = len.as_u64()?;
        named(&info).map(|name| Axis { name, len })
    };
    let called = listing.iter().filter(|(name, _)| may_be(name));
    called
        .take(SEARCHED)
        .filter_map(|(_, node)| axis(&node))
        .collect()
}
