//! The description of a layer in a bucket: lines of its index, and the sums of the files that they name.
//!
//! Objects in a bucket cannot be appended to. So the index of a layer being written is stored in parts, objects that
//! never change. The *content* of a committed layer is a single part, which the commit contains, or names together with
//! its sum.

use serde::{Deserialize, Serialize};

use crate::checkout::records::form::Form;
use crate::checkout::records::record_log::{self, LogRecord};
use crate::store::against::digest;
use npyfs_base::error::{Error, Result};

const FORM: Form = Form {
    name: "npyfs part",
    version: 1,
};

/// The most bytes of a content that is stored in the commit itself.
const INLINE: usize = 4 << 10;

/// A finished file of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSum {
    /// The name.
    pub file: String,
    /// The size in bytes.
    pub size: u64,
    /// BLAKE2b-128 of its bytes.
    pub sum: String,
}

/// Consecutive bytes of an index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct IndexBytes {
    /// Their offset. They replace all earlier bytes from there on.
    from: u64,
    text: String,
}

/// A line of a part.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum PartLine {
    File(FileSum),
    Index(IndexBytes),
}

impl LogRecord for PartLine {
    fn parse(json: &str) -> serde_json::Result<Self> {
        serde_json::from_str(json)
    }

    fn print(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

/// Bytes of an index, and the files that they name and no earlier part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The offset of the bytes in the index.
    pub from: u64,
    /// The bytes.
    pub text: String,
    /// The files.
    pub files: Vec<FileSum>,
}

impl Part {
    /// Returns the encoded bytes of the object.
    pub fn print(&self) -> Result<Vec<u8>> {
        let files = self.files.iter().cloned().map(PartLine::File);
        let index = IndexBytes {
            from: self.from,
            text: self.text.clone(),
        };
        let lines: Vec<PartLine> = files.chain([PartLine::Index(index)]).collect();
        record_log::print(&lines, FORM)
    }

    /// Parses the bytes of an object.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut part = Self::default();
        let mut has_index = false;
        for line in record_log::parse_whole(bytes, FORM)? {
            match line {
                PartLine::File(file) => part.files.push(file),
                PartLine::Index(index) => {
                    (part.from, part.text, has_index) = (index.from, index.text, true);
                }
            }
        }
        match has_index {
            true => Ok(part),
            false => Err(Error::damaged("it has no lines of an index")),
        }
    }

    /// Appends the following part.
    pub fn add(&mut self, next: Self) -> Result<()> {
        let from = usize::try_from(next.from).unwrap_or(usize::MAX);
        if !self.text.is_char_boundary(from) {
            return Err(Error::damaged("it does not follow the part before it"));
        }
        if from == 0 {
            self.files.clear();
        }
        self.text.truncate(from);
        self.text.push_str(&next.text);
        self.files.extend(next.files);
        Ok(())
    }
}

/// The complete description of a committed layer, as in its commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerContent {
    /// BLAKE2b-128 of the part.
    pub sum: String,
    /// The part itself, if it is short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// The name of the part's object in the directory of the layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
}

impl LayerContent {
    /// Returns the content for a commit, and the object to be created before it, if the content is long.
    pub fn new(part: &Part, object: &str) -> Result<(Self, Option<Vec<u8>>)> {
        let bytes = part.print()?;
        let sum = digest(&bytes);
        let text = String::from_utf8(bytes).map_err(|e| Error::damaged(e.to_string()))?;
        Ok(match text.len() <= INLINE {
            true => (
                Self {
                    sum,
                    part: Some(text),
                    object: None,
                },
                None,
            ),
            false => (
                Self {
                    sum,
                    part: None,
                    object: Some(object.to_owned()),
                },
                Some(text.into_bytes()),
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(from: u64, text: &str, files: &[&str]) -> Part {
        let file = |name: &&str| FileSum {
            file: (*name).to_owned(),
            size: 3,
            sum: digest(name.as_bytes()),
        };
        Part {
            from,
            text: text.to_owned(),
            files: files.iter().map(file).collect(),
        }
    }

    #[test]
    fn parts_make_the_index_together() {
        let mut all = Part::default();
        for (next, text, files) in [
            (part(0, "one\n", &["1"]), "one\n", 1),
            (part(4, "two\n", &["2", "3"]), "one\ntwo\n", 3),
            (part(0, "three\n", &["3"]), "three\n", 1),
        ] {
            let read = Part::parse(&next.print().unwrap()).unwrap();
            assert_eq!(read, next);
            all.add(read).unwrap();
            assert_eq!((all.text.as_str(), all.files.len()), (text, files));
        }
        all.add(part(7, "", &[])).unwrap_err();
    }

    #[test]
    fn what_was_changed_is_refused() {
        let bytes = part(0, "one\n", &["1"]).print().unwrap();
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            Part::parse(&other).unwrap_err();
            Part::parse(&bytes[..at]).unwrap_err();
        }
    }

    #[test]
    fn a_commit_holds_what_is_short() {
        let (content, object) = LayerContent::new(&part(0, "one\n", &["1"]), "content").unwrap();
        assert!(content.part.is_some() && object.is_none());
        let long = "x".repeat(INLINE);
        let (content, object) = LayerContent::new(&part(0, &long, &[]), "content").unwrap();
        assert_eq!(content.object.as_deref(), Some("content"));
        assert_eq!(content.sum, digest(&object.unwrap()));
    }
}
