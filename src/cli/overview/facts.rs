//! What is said first of a store or of a directory in one: its kind, the lengths of its axes, where it lies, its size.
//!
//! Made of what the directory itself reports, so that a mount and a store say the same. What is not known is not said.

use serde::Serialize;
use serde_json::Value as Json;

use crate::cli::figures::{self, Table};
use npyfs_base::error::Result;
use npyfs_base::printable::line;
use npyfs_core::tree::{Directory, Node};

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
    pub fn of(dir: &dyn Directory) -> Result<Self> {
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

/// Returns the arrays of one axis that `named` gives the name of an axis by their reports. Of entries that are not called so
/// that they `may_be` axes none is asked for.
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
