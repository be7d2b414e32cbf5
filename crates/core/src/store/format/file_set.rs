//! A store that is cut into several files: what they are called, and where they lie.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use npyfs_base::error::Error;
use npyfs_base::options::External;
use npyfs_io::file::Ownership;
use npyfs_io::remote::Listing;

/// The way in which a format calls the files of a set: prefix, mark, number, extension. Numbers count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartNames {
    /// Name of the format.
    pub format: &'static str,
    /// The text in front of the number.
    pub mark: &'static str,
    /// Digits that a number is written with; it is read with any number of them.
    pub digits: usize,
}

/// A file name of a set taken apart: prefix, number, extension with its dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartName<'a> {
    pub prefix: &'a [u8],
    pub number: u64,
    pub extension: &'a [u8],
}

impl PartNames {
    /// Takes a name apart; `None` if it is no name of a part.
    pub fn parse<'a>(&self, name: &'a [u8]) -> Option<PartName<'a>> {
        let mark = self.mark.as_bytes();
        let at = (1..name.len()).rfind(|&at| name[at..].starts_with(mark))?;
        let (prefix, rest) = (&name[..at], &name[at + mark.len()..]);
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let (number, extension) = rest.split_at(digits);
        let is_extension = extension.is_empty()
            || (extension.len() > 1 && extension[0] == b'.' && !extension[1..].contains(&b'.'));
        if !is_extension || digits > 18 {
            return None;
        }
        Some(PartName {
            prefix,
            number: std::str::from_utf8(number).ok()?.parse().ok()?,
            extension,
        })
    }

    /// Returns the sets in a directory that may be shown by a name.
    pub fn shown_as(&self, dir: &Path, name: &[u8]) -> [FileSet; 2] {
        let dot = name.iter().rposition(|&b| b == b'.').filter(|&at| at > 0);
        let (stem, extension) = name.split_at(dot.unwrap_or(name.len()));
        let with = |prefix: &[u8]| FileSet {
            names: *self,
            dir: dir.to_owned(),
            elsewhere: None,
            prefix: prefix.to_vec(),
            extension: extension.to_vec(),
        };
        let marked = stem.strip_suffix(self.mark.as_bytes());
        [stem, marked.unwrap_or(stem)].map(with)
    }

    /// Returns the set in a directory that a file of this name would be part of; `None` if it is no name of a part.
    pub fn with_part(&self, dir: &Path, name: &[u8]) -> Option<FileSet> {
        let part = self.parse(name)?;
        Some(FileSet {
            names: *self,
            dir: dir.to_owned(),
            elsewhere: None,
            prefix: part.prefix.to_vec(),
            extension: part.extension.to_vec(),
        })
    }

    /// Returns the set in a directory that is meant by the name of a part, or by a name without a number.
    pub fn meant_by(&self, dir: &Path, name: &[u8]) -> FileSet {
        self.with_part(dir, name).unwrap_or_else(|| {
            let [plain, _] = self.shown_as(dir, name);
            plain
        })
    }
}

/// A set by its name: the directory, and what all parts have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileSet {
    /// The names of its files.
    pub names: PartNames,
    /// The directory of the files.
    pub dir: PathBuf,
    /// What lies in the directory, if it is a prefix of a bucket.
    elsewhere: Option<Arc<Listing>>,
    prefix: Vec<u8>,
    extension: Vec<u8>,
}

/// A file of a set: its path, or why it may not be read.
pub(super) type SetFile = Result<PathBuf, String>;

impl FileSet {
    /// Returns the set as one of objects below a prefix.
    pub fn below(self, listing: &Arc<Listing>) -> Self {
        Self {
            dir: PathBuf::from(listing.address().to_string()),
            elsewhere: Some(listing.clone()),
            ..self
        }
    }

    /// Returns true if its files are objects in a bucket.
    pub fn is_elsewhere(&self) -> bool {
        self.elsewhere.is_some()
    }

    fn name(&self, middle: &[u8]) -> Vec<u8> {
        [&self.prefix, middle, &self.extension].concat()
    }

    fn with_mark(&self, behind: &str) -> Vec<u8> {
        self.name(format!("{}{behind}", self.names.mark).as_bytes())
    }

    /// Returns the path of the file that the store would be if it was not cut.
    fn whole(&self) -> PathBuf {
        self.dir.join(OsStr::from_bytes(&self.name(b"")))
    }

    /// Returns what messages call all parts together.
    pub fn pattern(&self) -> PathBuf {
        self.dir.join(OsStr::from_bytes(&self.with_mark("*")))
    }

    /// Returns the name with the mark and no number, which stands for all files of the set.
    pub fn marked(&self) -> Vec<u8> {
        self.with_mark("")
    }

    /// Returns the name that it is shown by: without mark, or with it if something is called so.
    pub fn visible(&self) -> Vec<u8> {
        let is_taken = match &self.elsewhere {
            Some(listing) => listing.entries().is_ok_and(|entries| {
                let name = self.name(b"");
                let name = std::str::from_utf8(&name).unwrap_or_default();
                entries.has_object(name) || entries.has_prefix(name)
            }),
            None => self.whole().symlink_metadata().is_ok(),
        };
        if is_taken {
            self.marked()
        } else {
            self.name(b"")
        }
    }

    /// Returns the name of a part as its format writes it.
    pub fn part_name(&self, number: u64) -> String {
        let digits = self.names.digits;
        let name = self.with_mark(&format!("{number:0digits$}"));
        String::from_utf8_lossy(&name).into_owned()
    }

    /// Returns the number of the part that a file of this name is; `None` if it is none of them.
    fn number(&self, name: &[u8]) -> Option<u64> {
        let part = self.names.parse(name)?;
        let is_own = part.prefix == self.prefix && part.extension == self.extension;
        is_own.then_some(part.number)
    }

    /// Returns whose the parts are together, without opening them.
    pub fn ownership(&self, top: &Path, external: External) -> Ownership {
        if let Some(listing) = &self.elsewhere {
            let Ok(entries) = listing.entries() else {
                return Ownership::UNKNOWN;
            };
            let prefix = String::from_utf8_lossy(&self.prefix);
            let names = entries.beginning(&prefix);
            let own = names.filter(|name| self.number(name.as_bytes()).is_some());
            return Ownership::joined(own.map(|name| listing.ownership(Some(name))));
        }
        let parts = self.parts(top, external).unwrap_or_default();
        let paths = parts.into_values().flatten().flatten();
        let parts = paths.filter_map(|path| std::fs::metadata(path).ok());
        Ownership::joined(parts.map(|meta| Ownership::from_metadata(&meta)))
    }

    /// Returns the parts that are there, by their number. A symbolic link that leads out of `top` is a part that may
    /// not be read, unless the policy allows it.
    pub fn parts(&self, top: &Path, external: External) -> io::Result<BTreeMap<u64, Vec<SetFile>>> {
        let mut parts: BTreeMap<u64, Vec<SetFile>> = BTreeMap::new();
        if let Some(listing) = &self.elsewhere {
            let entries = listing.entries().map_err(Error::from)?;
            let prefix = String::from_utf8_lossy(&self.prefix);
            for name in entries.beginning(&prefix) {
                if let Some(number) = self.number(name.as_bytes()) {
                    let path = PathBuf::from(listing.address().below(name, false).to_string());
                    parts.entry(number).or_default().push(Ok(path));
                }
            }
            return Ok(parts);
        }
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name().into_vec();
            let Some(number) = self.number(&name) else {
                continue;
            };
            let kind = entry.file_type()?;
            let path = entry.path();
            if kind.is_dir() {
                continue;
            }
            let refused = kind.is_symlink() && leads_out(&path, top, external);
            parts.entry(number).or_default().push(if refused {
                let name = String::from_utf8_lossy(&name);
                Err(format!(
                    "{name}: symbolic link that leads out of the mounted directory, or nowhere"
                ))
            } else {
                Ok(path)
            });
        }
        for same in parts.values_mut() {
            same.sort();
        }
        Ok(parts)
    }
}

/// Returns true if the policy refuses a path because it leads out of a directory, or nowhere.
pub fn leads_out(path: &Path, top: &Path, external: External) -> bool {
    external != External::Allow && !path.canonicalize().is_ok_and(|to| to.starts_with(top))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: PartNames = PartNames {
        format: "test",
        mark: "_LOCALE",
        digits: 4,
    };

    #[test]
    fn names_of_parts() {
        let parse = |name: &'static str| {
            NAMES.parse(name.as_bytes()).map(|part| {
                (
                    std::str::from_utf8(part.prefix).unwrap(),
                    part.number,
                    std::str::from_utf8(part.extension).unwrap(),
                )
            })
        };
        assert_eq!(parse("x_LOCALE0000.h5"), Some(("x", 0, ".h5")));
        assert_eq!(parse("a.b_LOCALE0012.h5"), Some(("a.b", 12, ".h5")));
        assert_eq!(parse("x_LOCALE7"), Some(("x", 7, "")));
        assert_eq!(
            parse("x_LOCALE0001_LOCALE0002.h5"),
            Some(("x_LOCALE0001", 2, ".h5"))
        );
        for other in [
            "x.h5",
            "_LOCALE0000.h5",
            "x_LOCALE.h5",
            "x_LOCALE1a.h5",
            "x_LOCALE1.h5.bak",
            "x_LOCALE1.",
            "x_LOCALE99999999999999999999.h5",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_visible_name_leads_back_to_its_set() {
        let dir = Path::new("/nowhere");
        let set = NAMES.with_part(dir, b"a.b_LOCALE0000.h5").unwrap();
        assert_eq!(set.visible(), b"a.b.h5");
        assert_eq!(set.marked(), b"a.b_LOCALE.h5");
        assert_eq!(set.part_name(10), "a.b_LOCALE0010.h5");
        assert_eq!(NAMES.shown_as(dir, b"a.b.h5")[0], set);
        assert_eq!(NAMES.shown_as(dir, b"a.b_LOCALE.h5")[1], set);
    }
}
