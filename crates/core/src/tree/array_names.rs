//! The names of the arrays of a large directory: bytes and an offset each, in ascending order of the names in the store.

use std::cmp::Ordering;

use super::name::{own, visible_with};

const SUFFIX: &str = ".npy";

/// Names of arrays, each with an index. Only names of which the visible name tells the original one are held.
pub struct ArrayNames {
    /// What `#` is shown as.
    sep: u8,
    /// The original names, concatenated.
    bytes: Vec<u8>,
    /// The end of each name in `bytes`.
    ends: Vec<u32>,
}

impl ArrayNames {
    /// Returns no names; `sep` is what `#` in them is shown as.
    pub fn new(sep: u8) -> Self {
        Self {
            sep,
            bytes: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Adds a name; returns `None` if it does not come behind all others, if its visible name is truncated, or if there is
    /// no room.
    pub fn add(&mut self, name: &[u8]) -> Option<()> {
        let last = self.ends.len().checked_sub(1);
        if last.is_some_and(|last| self.get(last) >= name) {
            return None;
        }
        let shown = visible_with(name, SUFFIX, self.sep);
        self.own(&shown).filter(|own| own == name)?;
        let end = u32::try_from(self.bytes.len().checked_add(name.len())?).ok()?;
        self.bytes.extend_from_slice(name);
        self.ends.push(end);
        Some(())
    }

    /// Returns the number of names.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the original name with an index; an empty one if there is none.
    pub fn get(&self, at: usize) -> &[u8] {
        let end = |at: usize| self.ends.get(at).map_or(0, |end| *end as usize);
        let start = at.checked_sub(1).map_or(0, end);
        self.bytes.get(start..end(at)).unwrap_or_default()
    }

    /// Returns the visible name with an index.
    pub fn shown(&self, at: usize) -> Vec<u8> {
        visible_with(self.get(at), SUFFIX, self.sep)
    }

    /// Returns the index of a visible name.
    pub fn find(&self, shown: &[u8]) -> Option<usize> {
        let own = self.own(shown)?;
        let (mut from, mut to) = (0, self.ends.len());
        while from < to {
            let middle = from + (to - from) / 2;
            match self.get(middle).cmp(&own) {
                Ordering::Less => from = middle + 1,
                Ordering::Equal => return Some(middle).filter(|&at| self.shown(at) == shown),
                Ordering::Greater => to = middle,
            }
        }
        None
    }

    /// Returns the original name that a visible name may stand for.
    fn own(&self, shown: &[u8]) -> Option<Vec<u8>> {
        let stem = shown.strip_suffix(SUFFIX.as_bytes())?;
        Some(own(stem, self.sep))
    }

    /// Gives back the memory that further names would take.
    pub fn shrink_to_fit(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_as_they_are_shown() {
        let mut names = ArrayNames::new(b'@');
        for name in ["a", "a#b", "b", "ba"] {
            assert!(names.add(name.as_bytes()).is_some());
        }
        let long = "c".repeat(300);
        for refused in ["", "b", "ba", &long] {
            assert!(names.add(refused.as_bytes()).is_none(), "{refused}");
        }
        assert_eq!(names.len(), 4);
        for at in 0..4 {
            assert_eq!(names.find(&names.shown(at)), Some(at));
        }
        assert_eq!(names.shown(1), b"a@b.npy");
        assert_eq!(names.get(1), b"a#b");
        assert_eq!(names.get(4), b"");
        for missing in ["b", "aa.npy", ".npy"] {
            assert_eq!(names.find(missing.as_bytes()), None, "{missing}");
        }
    }
}
