//! Axes, and text along axes, as the CSV files that daf reads.
//!
//! Format: comma, `\n`, UTF-8; fields are quoted if they are empty or require it. daf reads every column as text, so
//! nothing else is quoted. None has no row. A file is measured once, in one pass; rows are generated again when they
//! are read, one block at a time.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::array::{TextArray, Texts};
use crate::views::unfit::{Unfit, left_out};
use npyfs_base::error::Result;
use npyfs_io::content::Content;

/// The text that represents None in vectors and matrices.
const NONE: &[u8] = b"\x01";

/// Bytes of the store's text in a block.
const BLOCK: usize = 256 << 10;

/// The most elements of a block.
const MOST_ROWS: u64 = 4096;

/// The source of a table's elements.
enum Cells {
    Axis(TextArray),
    Vector {
        axis: TextArray,
        values: TextArray,
    },
    Matrix {
        rows: TextArray,
        columns: TextArray,
        values: TextArray,
    },
}

/// A CSV file, generated on demand.
pub(super) struct Table {
    header: Vec<u8>,
    cells: Cells,
}

/// The end offsets of a table's blocks; the first block includes the header.
#[derive(Debug)]
pub(super) struct Blocks {
    /// The number of elements in a block.
    rows: u64,
    ends: Vec<u64>,
}

impl Blocks {
    /// Returns the length of the whole file in bytes.
    pub(super) fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Returns the memory it occupies in bytes.
    pub(super) fn weight(&self) -> u64 {
        8 * self.ends.len() as u64
    }
}

impl Table {
    /// The entries of an axis.
    pub(super) fn axis(name: &str, entries: TextArray) -> Self {
        Self {
            header: line(&[name]),
            cells: Cells::Axis(entries),
        }
    }

    /// The values along an axis, one for each entry.
    pub(super) fn vector(
        (axis, property): (&str, &str),
        entries: TextArray,
        values: TextArray,
    ) -> Self {
        let property = match property == axis {
            true => format!("{property}.value"),
            false => property.to_owned(),
        };
        Self {
            header: line(&[axis, &property]),
            cells: Cells::Vector {
                axis: entries,
                values,
            },
        }
    }

    /// The values along two axes.
    pub(super) fn matrix(
        (rows, columns, property): (&str, &str, &str),
        entries: [TextArray; 2],
        values: TextArray,
    ) -> std::result::Result<Self, Unfit> {
        let (mut row, mut column) = (rows.to_owned(), columns.to_owned());
        if row == column {
            row.push_str(".row");
            column.push_str(".column");
        }
        let mut property = property.to_owned();
        if property == row || property == column {
            property.push_str(".value");
        }
        if property == row || property == column {
            return left_out("two columns of its CSV file would have one name");
        }
        let [rows, columns] = entries;
        Ok(Self {
            header: line(&[&row, &column, &property]),
            cells: Cells::Matrix {
                rows,
                columns,
                values,
            },
        })
    }

    fn values(&self) -> &TextArray {
        match &self.cells {
            Cells::Axis(values) | Cells::Vector { values, .. } | Cells::Matrix { values, .. } => {
                values
            }
        }
    }

    fn rows(&self) -> u64 {
        let axes = match &self.cells {
            Cells::Axis(_) => 0,
            Cells::Vector { axis, .. } => axis.width(),
            Cells::Matrix { rows, columns, .. } => rows.width().saturating_add(columns.width()),
        };
        let width = axes.saturating_add(self.values().width()).max(1);
        (BLOCK as u64 / width as u64).clamp(1, MOST_ROWS)
    }

    /// Generates all rows and discards them. `see` is called for each element with its number and its text; `None` is
    /// an element without a row.
    pub(super) fn measure(
        &self,
        mut see: impl FnMut(u64, Option<&[u8]>),
    ) -> std::result::Result<Blocks, Unfit> {
        let rows = self.rows();
        let mut ends = Vec::new();
        let mut end = self.header.len() as u64;
        let mut start = 0;
        let mut block = Vec::new();
        while start < self.values().len() {
            block.clear();
            let next = start.saturating_add(rows).min(self.values().len());
            self.render(start..next, &mut block, &mut see)?;
            end = end.saturating_add(block.len() as u64);
            ends.push(end);
            start = next;
        }
        if ends.is_empty() {
            ends.push(end);
        }
        Ok(Blocks { rows, ends })
    }

    /// Appends the rows of a range of elements.
    fn render(
        &self,
        range: Range<u64>,
        out: &mut Vec<u8>,
        see: &mut impl FnMut(u64, Option<&[u8]>),
    ) -> std::result::Result<(), Unfit> {
        let values = self.values().read(range.clone())?;
        let keys = match &self.cells {
            Cells::Axis(_) => Keys::None,
            Cells::Vector { axis, .. } => Keys::One(axis.read(range.clone())?),
            Cells::Matrix { rows, columns, .. } => Keys::two(rows, columns, &range)?,
        };
        for (number, value) in range.clone().zip(values.iter()) {
            let is_value = !matches!(self.cells, Cells::Axis(_));
            if is_value && value == NONE {
                see(number, None);
                continue;
            }
            check(number, value)?;
            see(number, Some(value));
            keys.put(&range, number, out);
            field(value, out);
            out.push(b'\n');
        }
        Ok(())
    }
}

/// The axis entries in front of a block's values.
enum Keys {
    None,
    One(Texts),
    /// Those of rows and of columns from given numbers on, and the number of columns.
    Two {
        rows: (u64, Texts),
        columns: (u64, Texts),
        count: u64,
    },
}

impl Keys {
    fn two(
        rows: &TextArray,
        columns: &TextArray,
        range: &Range<u64>,
    ) -> std::result::Result<Self, Unfit> {
        let count = columns.len().max(1);
        let (first, last) = (range.start / count, range.end.saturating_sub(1) / count);
        let within = match first == last {
            true => range.start % count..range.end.saturating_sub(1) % count + 1,
            false => 0..count,
        };
        Ok(Self::Two {
            rows: (first, rows.read(first..last + 1)?),
            columns: (within.start, columns.read(within)?),
            count,
        })
    }

    fn put(&self, range: &Range<u64>, number: u64, out: &mut Vec<u8>) {
        let mut put = |entry: &[u8]| {
            field(entry, out);
            out.push(b',');
        };
        match self {
            Self::None => {}
            Self::One(entries) => put(entries.get(number - range.start)),
            Self::Two {
                rows: (row, rows),
                columns: (column, columns),
                count,
            } => {
                put(rows.get(number / count - row));
                put(columns.get(number % count - column));
            }
        }
    }
}

fn check(number: u64, text: &[u8]) -> std::result::Result<(), Unfit> {
    if text.contains(&0) {
        return left_out(format!(
            "element {number} holds NUL, for which CSV has no form"
        ));
    }
    if std::str::from_utf8(text).is_err() {
        return left_out(format!("element {number} is not UTF-8"));
    }
    Ok(())
}

fn line(cells: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, cell) in cells.iter().enumerate() {
        if number > 0 {
            out.push(b',');
        }
        field(cell.as_bytes(), &mut out);
    }
    out.push(b'\n');
    out
}

/// Appends a field. It is quoted if that is required, or if it is empty, as an empty line is not a row.
fn field(text: &[u8], out: &mut Vec<u8>) {
    let is_special = |byte: &u8| matches!(byte, b',' | b'"' | b'\n' | b'\r');
    if !text.is_empty() && !text.iter().any(is_special) {
        out.extend_from_slice(text);
        return;
    }
    out.push(b'"');
    for &byte in text {
        if byte == b'"' {
            out.push(b'"');
        }
        out.push(byte);
    }
    out.push(b'"');
}

/// The bytes of a table.
pub(super) struct TableContent {
    table: Table,
    blocks: Arc<Blocks>,
    /// The last block that was read, for sequential readers.
    last: Mutex<Option<(usize, Arc<Vec<u8>>)>>,
}

impl TableContent {
    /// Creates the content of a measured table.
    pub(super) fn new(table: Table, blocks: Arc<Blocks>) -> Self {
        Self {
            table,
            blocks,
            last: Mutex::default(),
        }
    }

    fn start_of(&self, block: usize) -> u64 {
        let before = block.checked_sub(1).and_then(|at| self.blocks.ends.get(at));
        before.copied().unwrap_or(0)
    }

    fn block(&self, number: usize) -> Result<Arc<Vec<u8>>> {
        let mut last = self.last.lock();
        if let Some((known, bytes)) = &*last
            && *known == number
        {
            return Ok(bytes.clone());
        }
        let mut bytes = match number {
            0 => self.table.header.clone(),
            _ => Vec::new(),
        };
        let start = (number as u64).saturating_mul(self.blocks.rows);
        let end = start.saturating_add(self.blocks.rows);
        let range = start..end.min(self.table.values().len());
        self.table.render(range, &mut bytes, &mut |_, _| {})?;
        let end = self.blocks.ends.get(number).copied().unwrap_or(0);
        if bytes.len() as u64 != end.saturating_sub(self.start_of(number)) {
            let why = "text is not what it was when it was measured";
            return Err(npyfs_base::error::Error::damaged(why));
        }
        let bytes = Arc::new(bytes);
        *last = Some((number, bytes.clone()));
        Ok(bytes)
    }
}

impl Content for TableContent {
    fn len(&self) -> u64 {
        self.blocks.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut number = self.blocks.ends.partition_point(|&end| end <= offset);
        let mut at = offset;
        let mut left = buf;
        while !left.is_empty() && number < self.blocks.ends.len() {
            let block = self.block(number)?;
            let inside = usize::try_from(at - self.start_of(number)).unwrap_or(usize::MAX);
            let part = block.get(inside..).unwrap_or_default();
            let len = part.len().min(left.len());
            let (now, rest) = left.split_at_mut(len);
            now.copy_from_slice(part.get(..len).unwrap_or_default());
            at += len as u64;
            left = rest;
            number += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::encode::NpyArray;
    use npyfs_base::npy::dtype::DType;
    use npyfs_io::content::{InMemory, read};

    fn texts(elements: &[&str]) -> TextArray {
        let width = elements.iter().map(|e| e.len()).max().unwrap_or(0).max(1);
        let mut data = Vec::new();
        for element in elements {
            data.extend_from_slice(element.as_bytes());
            data.resize(data.len() + width - element.len(), 0);
        }
        let array = NpyArray {
            dtype: DType::bytes(width),
            shape: vec![elements.len() as u64],
            data: Arc::new(InMemory(data)),
        };
        TextArray::new(array, 1 << 30).unwrap()
    }

    fn file(table: Table) -> String {
        let blocks = Arc::new(table.measure(|_, _| {}).unwrap());
        let content = TableContent::new(table, blocks);
        let whole = read(&content, 0, 1 << 20, &Arc::default()).unwrap();
        assert_eq!(whole.as_ref().len() as u64, content.len());
        String::from_utf8(whole.as_ref().to_vec()).unwrap()
    }

    #[test]
    fn fields_are_quoted_where_they_need_it() {
        let entries = ["a", "", "b,c", "q\"q", "l\nl", "r\rr", " x ", "NA", "\x01"];
        let shown = file(Table::axis("x,y", texts(&entries)));
        assert_eq!(
            shown,
            "\"x,y\"\na\n\"\"\n\"b,c\"\n\"q\"\"q\"\n\"l\nl\"\n\"r\rr\"\n x \nNA\n\x01\n"
        );
        assert_eq!(file(Table::axis("x", texts(&[]))), "x\n");
    }

    #[test]
    fn none_has_no_row_and_empty_text_has_one() {
        let axis = || texts(&["a", "b", "c"]);
        let values = || texts(&["x", "\x01", ""]);
        let shown = file(Table::vector(("cell", "type"), axis(), values()));
        assert_eq!(shown, "cell,type\na,x\nc,\"\"\n");
        let shown = file(Table::vector(("cell", "cell"), axis(), values()));
        assert!(shown.starts_with("cell,cell.value\n"));
    }

    #[test]
    fn matrices_name_rows_and_columns() {
        let axes = || [texts(&["a", "b"]), texts(&["u", "v"])];
        let values = || texts(&["1", "2", "\x01", "4"]);
        let table = |names| Table::matrix(names, axes(), values());
        let shown = file(table(("r", "c", "p")).unwrap());
        assert_eq!(shown, "r,c,p\na,u,1\na,v,2\nb,v,4\n");
        let header = |names| {
            file(table(names).unwrap())
                .lines()
                .next()
                .map(str::to_owned)
        };
        assert_eq!(header(("x", "x", "p")).unwrap(), "x.row,x.column,p");
        assert_eq!(
            header(("x", "x", "x.row")).unwrap(),
            "x.row,x.column,x.row.value"
        );
        assert_eq!(header(("x", "y", "y")).unwrap(), "x,y,y.value");
        assert!(table(("x", "x.value", "x")).is_err());
    }

    #[test]
    fn blocks_join_at_every_offset() {
        let numbers: Vec<String> = (0..10_000).map(|n| format!("entry{n}")).collect();
        let entries: Vec<&str> = numbers.iter().map(String::as_str).collect();
        let table = Table::axis("x", texts(&entries));
        let blocks = Arc::new(table.measure(|_, _| {}).unwrap());
        assert!(blocks.ends.len() > 2);
        let content = TableContent::new(table, blocks);
        let want = format!("x\n{}\n", entries.join("\n")).into_bytes();
        assert_eq!(content.len(), want.len() as u64);
        for start in (0..want.len()).step_by(977) {
            let got = read(&content, start as u64, 5000, &Arc::default()).unwrap();
            assert_eq!(got.as_ref(), &want[start..(start + 5000).min(want.len())]);
        }
        // Rows of two axes across the ends of blocks.
        let columns: Vec<&str> = entries[..700].to_vec();
        let values: Vec<&str> = (0..7000).map(|n| entries[n]).collect();
        let axes = [texts(&entries[..10]), texts(&columns)];
        let shown = file(Table::matrix(("r", "c", "p"), axes, texts(&values)).unwrap());
        let want: String = (0..7000)
            .map(|n| format!("entry{},entry{},entry{n}\n", n / 700, n % 700))
            .collect();
        assert_eq!(shown, format!("r,c,p\n{want}"));
    }

    #[test]
    fn what_csv_cannot_say_is_left_out() {
        for (bad, why) in [("a\0b", "NUL"), ("\u{ff}", "")] {
            let found = Table::axis("x", texts(&["a", bad])).measure(|_, _| {});
            assert_eq!(found.is_err(), !why.is_empty(), "{bad:?}");
        }
    }
}
