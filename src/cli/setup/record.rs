//! The record of what `npyfs setup` put on a machine, so that it takes away nothing else.
//!
//! The record is a text file beside the installed files, written before they are. An item that is missing, or that differs from
//! the record, was not put there by `setup`, or was changed since.

use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};

use xxhash_rust::xxh3::xxh3_128;

/// An item that was put at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Put {
    /// A directory that was not there.
    Dir,
    /// A file with this checksum.
    File(u128),
    /// A symbolic link to this path.
    Link(PathBuf),
    /// A line of a file.
    Line(String),
}

impl Put {
    /// A file of these bytes.
    pub fn file(bytes: &[u8]) -> Self {
        Self::File(xxh3_128(bytes))
    }
}

/// The items that were put there, in this order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Record(Vec<(PathBuf, Put)>);

impl Record {
    /// Adds an entry in the place of one for the same path.
    pub fn add(&mut self, path: &Path, put: Put) {
        match self.0.iter_mut().find(|(there, _)| there == path) {
            Some((_, there)) => *there = put,
            None => self.0.push((path.to_owned(), put)),
        }
    }

    /// Returns the entries, the last one first.
    pub fn backwards(&self) -> impl Iterator<Item = (&Path, &Put)> {
        self.0.iter().rev().map(|(path, put)| (path.as_path(), put))
    }

    /// Returns it as text.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (path, put) in &self.0 {
            let (kind, what) = match put {
                Put::Dir => ("dir", String::new()),
                Put::File(sum) => ("file", format!("{sum:032x}")),
                Put::Link(target) => ("link", target.display().to_string()),
                Put::Line(line) => ("line", line.clone()),
            };
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{kind}\t{what}\t{}", path.display());
        }
        text
    }

    /// Reads it; an error is the line that is not understood.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let mut record = Self::default();
        for line in text.lines() {
            let entry = Self::entry(line).ok_or_else(|| line.to_owned())?;
            record.0.push(entry);
        }
        Ok(record)
    }

    fn entry(line: &str) -> Option<(PathBuf, Put)> {
        let mut fields = line.split('\t');
        let (kind, what, path) = (fields.next()?, fields.next()?, fields.next()?);
        let put = match kind {
            "dir" if what.is_empty() => Put::Dir,
            "file" => Put::File(u128::from_str_radix(what, 16).ok()?),
            "link" => Put::Link(what.into()),
            "line" => Put::Line(what.to_owned()),
            _ => return None,
        };
        let path = PathBuf::from(path);
        (fields.next().is_none() && is_plain(&path)).then_some((path, put))
    }
}

/// Returns whether a path is absolute, has no `..`, and can stand in a line of the record.
pub fn is_plain(path: &Path) -> bool {
    let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    let is_text = |text: &str| !text.chars().any(char::is_control);
    path.is_absolute() && path.components().all(is_plain) && path.to_str().is_some_and(is_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let mut record = Record::default();
        record.add(Path::new("/usr/local/x y"), Put::Dir);
        record.add(Path::new("/a"), Put::file(b"1"));
        record.add(
            Path::new("/sbin/mount.npyfs"),
            Put::Link("/usr/local/bin/npyfs".into()),
        );
        record.add(
            Path::new("/etc/fuse.conf"),
            Put::Line("user_allow_other".to_owned()),
        );
        record.add(Path::new("/a"), Put::file(b"2"));
        assert_eq!(Record::from_text(&record.to_text()), Ok(record));
    }

    #[test]
    fn what_leads_elsewhere_is_refused() {
        for line in [
            "dir\t\t/usr/../etc",
            "dir\t\tetc",
            "dir\tx\t/etc",
            "file\tzz\t/etc/passwd",
            "dir\t\t/a\t/b",
            "tree\t\t/etc",
            "",
        ] {
            assert_eq!(
                Record::from_text(&format!("{line}\n")),
                Err(line.to_owned())
            );
        }
    }
}
