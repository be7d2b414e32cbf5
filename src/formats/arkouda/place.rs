//! Where the files of a distributed set lie, and what they are called.
//!
//! Source: Arkouda, `src/FileIO.chpl` lines 148 to 211: `_LOCALE` and a number of four digits stand in
//! front of the extension; old releases wrote the number without zeros in front. Locales count from 0.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::options::External;

const MARK: &[u8] = b"_LOCALE";

/// A file name of a set taken apart: prefix, number, extension with its dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartName<'a> {
    pub prefix: &'a [u8],
    pub locale: u64,
    pub extension: &'a [u8],
}

impl<'a> PartName<'a> {
    /// `None` if it is no name of a part.
    pub fn parse(name: &'a [u8]) -> Option<Self> {
        let at = (1..name.len()).rfind(|&at| name[at..].starts_with(MARK))?;
        let (prefix, rest) = (&name[..at], &name[at + MARK.len()..]);
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let (number, extension) = rest.split_at(digits);
        let is_extension = extension.is_empty()
            || (extension.len() > 1 && extension[0] == b'.' && !extension[1..].contains(&b'.'));
        if !is_extension || digits > 18 {
            return None;
        }
        Some(Self {
            prefix,
            locale: std::str::from_utf8(number).ok()?.parse().ok()?,
            extension,
        })
    }
}

/// A set by its name: the directory, and what all parts have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub dir: PathBuf,
    prefix: Vec<u8>,
    extension: Vec<u8>,
}

/// A file of a set: its path, or why it may not be read.
pub type Part = Result<PathBuf, String>;

impl Place {
    pub fn of(dir: &Path, part: &PartName<'_>) -> Self {
        Self {
            dir: dir.to_owned(),
            prefix: part.prefix.to_vec(),
            extension: part.extension.to_vec(),
        }
    }

    /// The place that a name shown by `visible` stands for.
    pub fn shown_as(dir: &Path, name: &[u8]) -> [Self; 2] {
        let dot = name.iter().rposition(|&b| b == b'.').filter(|&at| at > 0);
        let (stem, extension) = name.split_at(dot.unwrap_or(name.len()));
        let with = |prefix: &[u8]| Self {
            dir: dir.to_owned(),
            prefix: prefix.to_vec(),
            extension: extension.to_vec(),
        };
        [stem, stem.strip_suffix(MARK).unwrap_or(stem)].map(with)
    }

    fn name(&self, middle: &[u8]) -> Vec<u8> {
        [&self.prefix, middle, &self.extension].concat()
    }

    /// The name of the file Arkouda would have written without distributing it.
    fn whole(&self) -> PathBuf {
        self.dir.join(OsStr::from_bytes(&self.name(b"")))
    }

    /// What messages call all parts together.
    pub fn pattern(&self) -> PathBuf {
        self.dir.join(OsStr::from_bytes(&self.name(b"_LOCALE*")))
    }

    /// The name it is shown by: `x.h5`, or `x_LOCALE.h5` if there is something called `x.h5`.
    pub fn visible(&self) -> Vec<u8> {
        match self.whole().symlink_metadata() {
            Ok(_) => self.name(MARK),
            Err(_) => self.name(b""),
        }
    }

    /// What Arkouda calls a part.
    pub fn part_name(&self, locale: u64) -> String {
        let name = self.name(format!("_LOCALE{locale:04}").as_bytes());
        String::from_utf8_lossy(&name).into_owned()
    }

    /// The parts that are there, by the number of their locale. A symbolic link that leads out of `top`
    /// is a part that may not be read, unless the policy allows it.
    pub fn parts(&self, top: &Path, external: External) -> io::Result<BTreeMap<u64, Vec<Part>>> {
        let mut parts: BTreeMap<u64, Vec<Part>> = BTreeMap::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name().into_vec();
            let Some(part) = PartName::parse(&name) else {
                continue;
            };
            if part.prefix != self.prefix || part.extension != self.extension {
                continue;
            }
            let kind = entry.file_type()?;
            let path = entry.path();
            if kind.is_dir() {
                continue;
            }
            let refused = kind.is_symlink() && leads_out(&path, top, external);
            parts.entry(part.locale).or_default().push(if refused {
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

/// Whether the policy refuses a path because it leads out of a directory, or nowhere.
pub fn leads_out(path: &Path, top: &Path, external: External) -> bool {
    external != External::Allow && !path.canonicalize().is_ok_and(|to| to.starts_with(top))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts() {
        let parse = |name: &'static str| {
            PartName::parse(name.as_bytes()).map(|part| {
                (
                    std::str::from_utf8(part.prefix).unwrap(),
                    part.locale,
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
    fn a_visible_name_leads_back_to_its_place() {
        let dir = Path::new("/nowhere");
        let part = PartName::parse(b"a.b_LOCALE0000.h5").unwrap();
        let place = Place::of(dir, &part);
        assert_eq!(place.visible(), b"a.b.h5");
        assert_eq!(place.part_name(10), "a.b_LOCALE0010.h5");
        assert_eq!(Place::shown_as(dir, b"a.b.h5")[0], place);
        assert_eq!(Place::shown_as(dir, b"a.b_LOCALE.h5")[1], place);
    }
}
