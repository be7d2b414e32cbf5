//! The first rows of a data frame of AnnData, as a table. Only what is shown is read.

use std::sync::Arc;

use serde_json::Value as Json;

use super::printed::{Form, Surroundings};
use crate::cli::figures;
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::{DType, Kind};
use npyfs_base::printable::line;
use npyfs_core::tree::name::visible_with;
use npyfs_core::tree::path::find_names;
use npyfs_core::tree::{Directory, Node, VirtualFile};
use npyfs_io::content::npy_header;

/// Rows that are shown.
const ROWS: u64 = 10;

/// Bytes of a value that are read, and characters that are shown.
const BYTES: usize = 256;
const LONGEST: usize = 24;

/// A column as far as it is shown.
struct Column {
    title: String,
    cells: Vec<String>,
    is_text: bool,
}

impl Column {
    fn width(&self) -> usize {
        let cells = self.cells.iter().chain([&self.title]);
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    }

    fn padded(&self, cell: &str) -> String {
        let width = self.width();
        match self.is_text {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        }
    }
}

/// Returns the names in an attribute that is one or a list, of which all may not be at hand.
fn names(value: &Json) -> (Vec<&str>, u64) {
    let (list, all) = match value.get("first") {
        Some(first) => (first.as_array(), value["elements"].as_u64()),
        None => (value.as_array(), None),
    };
    let names: Vec<&str> = match (value.as_str(), list) {
        (Some(one), _) => vec![one],
        (None, Some(list)) => list.iter().filter_map(Json::as_str).collect(),
        (None, None) => Vec::new(),
    };
    let all = all.unwrap_or(names.len() as u64);
    (names, all)
}

/// Returns whether a directory reports that it is a data frame.
pub(super) fn is_frame(info: &Json) -> bool {
    info["attributes"]["encoding-type"] == "dataframe"
}

/// Returns the first rows of a data frame, in lines of at most `width` columns; `None` if its columns are no files
/// here, as in the Zarr view.
pub(super) fn head(dir: &Arc<dyn Directory>, info: &Json, width: usize) -> Result<Option<String>> {
    let attributes = &info["attributes"];
    let index = attributes["_index"].as_str();
    let (order, all) = names(&attributes["column-order"]);
    let mut columns: Vec<Column> = Vec::new();
    let mut used = 0;
    let mut shown = 0;
    for (title, is_index) in index
        .map(|name| (name, true))
        .into_iter()
        .chain(order.into_iter().map(|name| (name, false)))
    {
        let column = column(dir, title)?;
        used += column.width() + 2;
        // The first two are shown, however wide.
        if columns.len() > 1 && used > width + 2 {
            break;
        }
        shown += u64::from(!is_index);
        columns.push(column);
    }
    let rows = columns
        .iter()
        .map(|column| column.cells.len())
        .max()
        .unwrap_or(0);
    let all_rows = info["rows"].as_u64().unwrap_or(0);
    if rows == 0 && all_rows > 0 {
        return Ok(None);
    }
    let mut text = String::new();
    let mut add = |cells: Vec<String>| {
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    };
    add(columns
        .iter()
        .map(|column| column.padded(&column.title))
        .collect());
    for row in 0..rows {
        let cell =
            |column: &Column| column.padded(column.cells.get(row).map_or("", String::as_str));
        add(columns.iter().map(cell).collect());
    }
    let more_rows = all_rows.saturating_sub(rows as u64);
    let more = [(more_rows, "row"), (all.saturating_sub(shown), "column")];
    let more = more.into_iter().filter(|(more, _)| *more > 0);
    let more: Vec<String> = more
        .map(|(more, what)| figures::count(more, what))
        .collect();
    if !more.is_empty() {
        text += &format!("... and {} more\n", more.join(" and "));
    }
    Ok(Some(text))
}

/// Returns the file of a part of the frame.
fn file(dir: &Arc<dyn Directory>, own: &str, below: &str) -> Option<Arc<dyn VirtualFile>> {
    let (above, last) = own.rsplit_once('/').map_or(("", own), |parts| parts);
    let mut path = Vec::new();
    for part in above.split('/').filter(|part| !part.is_empty()) {
        path.extend(visible_with(part.as_bytes(), "", b'#'));
        path.push(b'/');
    }
    let suffix = if below.is_empty() { ".npy" } else { "" };
    path.extend(visible_with(last.as_bytes(), suffix, b'#'));
    path.extend(below.as_bytes());
    match find_names(dir, &path) {
        Ok((_, Node::File(file))) => Some(file),
        _ => None,
    }
}

/// Reads the beginning of a column.
fn column(dir: &Arc<dyn Directory>, own: &str) -> Result<Column> {
    let title = cut(&line(own));
    if let Some(file) = file(dir, own, "") {
        let (cells, is_text) = cells(&*file)?;
        return Ok(Column {
            title,
            cells,
            is_text,
        });
    }
    // Values with a mask: a masked one is not there.
    let part = |name: &str| file(dir, own, &format!("/{name}.npy"));
    let (Some(values), Some(mask)) = (part("values"), part("mask")) else {
        return Ok(Column {
            title,
            cells: Vec::new(),
            is_text: true,
        });
    };
    let (mut shown, is_text) = cells(&*values)?;
    let (mask, _) = cells(&*mask)?;
    for (cell, _) in shown
        .iter_mut()
        .zip(mask)
        .filter(|(_, mask)| mask == "True")
    {
        *cell = "NA".to_owned();
    }
    Ok(Column {
        title,
        cells: shown,
        is_text,
    })
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

/// Returns the first elements of an array as text, and whether they are text.
fn cells(file: &dyn VirtualFile) -> Result<(Vec<String>, bool)> {
    let content = file.open()?;
    let Ok(header) = npy_header(&*content)? else {
        return Ok((Vec::new(), true));
    };
    let size = header.dtype.size();
    let is_text = !matches!(
        header.dtype,
        DType::Scalar {
            kind: Kind::Int | Kind::Uint | Kind::Float | Kind::Complex,
            ..
        }
    );
    let rows = header.shape.first().copied().unwrap_or(0).min(ROWS);
    let taken = match header.dtype {
        DType::Scalar { .. } => size.min(BYTES),
        DType::Struct { .. } => size,
    };
    if header.shape.len() != 1
        || taken == 0
        || taken > BYTES
        || header.check_len(content.len()).is_err()
    {
        return Ok((Vec::new(), is_text));
    }
    let mut data = vec![0; taken * rows as usize];
    for (row, element) in (0..rows).zip(data.chunks_exact_mut(taken)) {
        content.read_at(header.start + row * size as u64, element)?;
    }
    let elements: Vec<&[u8]> = data.chunks_exact(taken).collect();
    let form = Form::new(&header.dtype, &elements, Surroundings::Array);
    let word = |bytes: &&[u8]| {
        let word = form.print(bytes);
        let word = word.trim();
        let word = word
            .strip_prefix('b')
            .filter(|rest| rest.starts_with(['\'', '"']))
            .unwrap_or(word);
        let quote = word.chars().next().filter(|first| "'\"".contains(*first));
        let inner = quote.and_then(|quote| word.strip_prefix(quote)?.strip_suffix(quote));
        cut(inner.unwrap_or(word))
    };
    Ok((elements.iter().map(word).collect(), is_text))
}
