//! The output of commands. A command computes a value and prints nothing; this prints the value for people, for
//! programs that read names, or as JSON.
//!
//! The JSON of a value is its `Serialize`. The text of a value is made from the same fields, so that the two cannot
//! disagree.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::CliError;
use npyfs_base::printable;
use npyfs_core::tree::Node;
use npyfs_io::hex;

/// The result of a command, which serialises as its JSON.
pub trait Report: Serialize {
    /// Returns the text for people: whole lines, in which nothing from a file is unescaped.
    fn text(&self) -> String;

    /// Prints the report, as JSON or as text.
    fn print(&self, json: bool) -> Result<(), CliError> {
        match json {
            true => print_json(self),
            false => print(self.text().as_bytes()),
        }
    }
}

/// A report that is a list of things with names.
pub trait Listing: Report {
    /// Returns what `-0` gives: the name of each thing, unescaped.
    fn names(&self) -> Vec<Vec<u8>>;
}

/// The form in which a list is printed.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct OutputFormat {
    /// Names as they are, each with a NUL behind it: for xargs -0 and programs
    #[arg(short = '0', long = "null", conflicts_with = "json")]
    pub null: bool,

    /// JSON
    #[arg(long)]
    pub json: bool,
}

impl OutputFormat {
    /// Prints a list in this form.
    pub fn print(self, list: &impl Listing) -> Result<(), CliError> {
        if !self.null {
            return list.print(self.json);
        }
        let mut names = Vec::new();
        for name in list.names() {
            names.extend(name);
            names.push(0);
        }
        print(&names)
    }
}

/// A name or path of any bytes. It displays as one escaped line. Its JSON is `name`, in which bytes that are no UTF-8
/// are replaced, and for a name with such bytes `name_hex`, all bytes as hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(pub Vec<u8>);

impl Name {
    /// Creates the name of these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable::name(&self.0))
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let is_text = std::str::from_utf8(&self.0).is_ok();
        let mut fields = serializer.serialize_struct("Name", 2 - usize::from(is_text))?;
        fields.serialize_field("name", &String::from_utf8_lossy(&self.0))?;
        if !is_text {
            fields.serialize_field("name_hex", &hex::encode(&self.0))?;
        }
        fields.end()
    }
}

/// A JSON list that is written as its items are found, one on each line; none is kept.
#[derive(Default)]
pub struct JsonList {
    has_items: bool,
}

impl JsonList {
    /// Writes an item.
    pub fn add(&mut self, out: &mut impl Write, item: &impl Serialize) -> io::Result<()> {
        let before = if self.has_items { ",\n  " } else { "[\n  " };
        self.has_items = true;
        out.write_all(before.as_bytes())?;
        Ok(serde_json::to_writer(out, item)?)
    }

    /// Writes what stands behind the last item.
    pub fn end(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(if self.has_items { b"\n]\n" } else { b"[]\n" })
    }
}

/// Returns the word for a node in JSON.
pub fn kind(node: &Node) -> &'static str {
    match node {
        Node::Directory(_) => "directory",
        Node::Symlink(_) => "link",
        Node::File(_) => "file",
    }
}

/// Lays rows out in columns of equal width, two blanks apart. Cells of the columns in `right` stand at the right of
/// theirs.
pub fn columns<const N: usize>(rows: &[[String; N]], right: std::ops::Range<usize>) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match right.contains(&column) {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

/// Returns whether output has colours: on a terminal that can, unless NO_COLOR says no.
pub fn has_colour() -> bool {
    let says_no = std::env::var_os("NO_COLOR").is_some_and(|no| !no.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    io::stdout().is_terminal() && !says_no && !is_dumb
}

/// Prints a value as JSON.
pub fn print_json(value: &(impl Serialize + ?Sized)) -> Result<(), CliError> {
    let mut text = serde_json::to_vec_pretty(value)
        .map_err(|e| CliError::object(format!("standard output: {e}")))?;
    text.push(b'\n');
    print(&text)
}

/// Writes to the standard output; a reader that went away is no error.
pub fn print(text: &[u8]) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    written(out.write_all(text).and_then(|()| out.flush()))
}

/// Converts the outcome of writing to the standard output; a reader that went away is no error.
pub fn written(outcome: io::Result<()>) -> Result<(), CliError> {
    match outcome {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::object(format!("standard output: {e}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_name_is_text_and_its_bytes_are_kept() {
        #[derive(Serialize)]
        struct Named {
            #[serde(flatten)]
            name: Name,
            size: u64,
        }
        let named = |bytes: &[u8]| {
            let name = Name::new(bytes);
            serde_json::to_value(Named { name, size: 1 }).unwrap()
        };
        assert_eq!(named(b"a\n"), json!({ "name": "a\n", "size": 1 }));
        assert_eq!(
            named(b"a\xff"),
            json!({ "name": "a\u{fffd}", "name_hex": "61ff", "size": 1 })
        );
        assert_eq!(Name::new(b"a\xff\\\x1b").to_string(), "a\\xff\\\\\\u{1b}");
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [
            ["a", "1", "22", "3", "0", "x"],
            ["ä\u{e9}d", "10", "2", "333", "1", ""],
        ];
        let rows = rows.map(|row| row.map(str::to_owned));
        assert_eq!(
            columns(&rows, 1..5),
            "a     1  22    3  0  x\näéd  10   2  333  1\n"
        );
        assert_eq!(columns::<2>(&[], 0..1), "");
    }
}
