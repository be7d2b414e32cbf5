//! Visible names: an object's own name, escaped so that it can be a file name, plus a suffix.
//!
//! An escape is `%XX` for one byte. Escapes depend on the name alone, never on its neighbours, so a name means the same
//! object whatever else the store contains, and every escape can be undone. The names of the arrays of a large
//! directory are bytes and an offset each, in ascending order of the names in the store.

use std::cmp::Ordering;

use xxhash_rust::xxh3::xxh3_64;

/// Suffixes that a store may add to a name.
pub const SUFFIXES: [&[u8]; 5] = [b".npy", b".npz", b".txt", b".bin", b".keys"];

/// The longest file name that the kernel accepts, in bytes.
pub const NAME_MAX: usize = 255;

/// Returns the visible name of an object called `own`: escaped, with `suffix` appended, cut to 255 bytes.
pub fn visible(own: &[u8], suffix: &str) -> Vec<u8> {
    visible_with(own, suffix, b'#')
}

/// Returns the visible name, as [`visible`] does, with `sep` in place of `#`.
pub fn visible_with(own: &[u8], suffix: &str, sep: u8) -> Vec<u8> {
    let mut name = escape(own, sep);
    if name.len() + suffix.len() > NAME_MAX {
        let tail = format!("~{:016x}", xxh3_64(own));
        let room = NAME_MAX - suffix.len() - tail.len();
        name.truncate(whole_letters(&name, room));
        name.extend_from_slice(tail.as_bytes());
    }
    name.extend_from_slice(suffix.as_bytes());
    name
}

/// Returns the length of the longest prefix of at most `room` bytes that splits neither a UTF-8 character nor an
/// escape.
fn whole_letters(name: &[u8], room: usize) -> usize {
    let is_escape = |at: usize| {
        name[at] == b'%'
            && matches!(name.get(at + 1..at + 3), Some(hex) if hex.iter().all(u8::is_ascii_hexdigit))
    };
    if let Some(start) = (room.saturating_sub(2)..room).find(|&at| is_escape(at)) {
        return start;
    }
    let mut end = room;
    while end + 3 > room && end > 0 && name.get(end).is_some_and(|b| b & 0xc0 == 0x80) {
        end -= 1;
    }
    end
}

fn escape(own: &[u8], sep: u8) -> Vec<u8> {
    let dot = match own {
        b"." | b".." => None,
        _ => SUFFIXES
            .iter()
            .find(|s| own.ends_with(s))
            .map(|s| own.len() - s.len()),
    };
    let mut out = Vec::with_capacity(own.len());
    for (i, &byte) in own.iter().enumerate() {
        let code = match byte {
            b'/' | 0..=0x1f | 0x7f => true,
            b'%' => {
                matches!(own.get(i + 1..i + 3), Some(hex) if hex.iter().all(u8::is_ascii_hexdigit))
            }
            b'.' => own == b"." || own == b".." || dot == Some(i),
            b'#' if sep != b'#' => {
                out.push(sep);
                continue;
            }
            other => sep != b'#' && other == sep,
        };
        if code {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        } else {
            out.push(byte);
        }
    }
    out
}

/// Returns the own name of a visible name that was not cut: undoes [`visible`] with an empty suffix.
pub fn unescape(name: &[u8]) -> Vec<u8> {
    let hex = |digit: u8| {
        char::from(digit)
            .to_digit(16)
            .and_then(|n| u8::try_from(n).ok())
    };
    let mut out = Vec::with_capacity(name.len());
    let mut i = 0;
    while i < name.len() {
        let pair = name
            .get(i + 1)
            .copied()
            .and_then(hex)
            .zip(name.get(i + 2).copied().and_then(hex));
        match (name[i], pair) {
            (b'%', Some((high, low))) => {
                out.push(high << 4 | low);
                i += 3;
            }
            (byte, _) => {
                out.push(byte);
                i += 1;
            }
        }
    }
    out
}

/// Returns the own name of a visible name without its suffix, in which `sep` is shown in place of `#`.
pub fn own_name(shown: &[u8], sep: u8) -> Vec<u8> {
    let hash = |&byte: &u8| if byte == sep { b'#' } else { byte };
    unescape(&shown.iter().map(hash).collect::<Vec<u8>>())
}

/// Returns whether a visible name stands for text that looks like a number. Where numbers can be names, too, such text
/// has its first digit escaped.
pub fn is_escaped_number(shown: &[u8]) -> bool {
    let digits = shown.strip_prefix(b"%3");
    digits.is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
}

/// Returns the visible name of an object that a conversion makes. Text that looks like a number was given to the
/// conversion with its escape, which is not escaped again.
pub fn converted(own: &str, suffix: &str) -> Vec<u8> {
    match is_escaped_number(own.as_bytes()) {
        true => [own.as_bytes(), suffix.as_bytes()].concat(),
        false => visible(own.as_bytes(), suffix),
    }
}

/// The reason why an object cannot be stored under a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// A mount shows the object under another name.
    #[error("a mount would show this object as {:?}: use that name", String::from_utf8_lossy(.0))]
    As(Vec<u8>),
    /// The name may be a prefix of a longer one.
    #[error(
        "names that end in ~ and 16 digits stand for longer ones, which are cut: it cannot be told which object this is"
    )]
    Cut,
}

/// Checks that an object stored as the file `stem` with `suffix` is shown under the same name; `as_shown` is the name
/// that the mount would show. An object with another name would be stored and never found again.
pub fn check(stem: &[u8], suffix: &str, as_shown: Vec<u8>) -> Result<(), NameError> {
    let name = [stem, suffix.as_bytes()].concat();
    if as_shown != name {
        return Err(NameError::As(as_shown));
    }
    // `whole_letters` can remove up to three more bytes.
    if is_cut(&name, stem) {
        Err(NameError::Cut)
    } else {
        Ok(())
    }
}

/// Returns whether a visible name, which is `stem` without its suffix, may have been cut from a longer one.
pub fn is_cut(name: &[u8], stem: &[u8]) -> bool {
    name.len() + 3 >= NAME_MAX
        && matches!(stem.split_last_chunk::<17>(), Some((_, [b'~', hash @ ..]))
            if hash.iter().all(u8::is_ascii_hexdigit))
}

/// The suffix of arrays.
/// The suffix of arrays.
const ARRAY_SUFFIX: &str = ".npy";

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

    /// Adds a name; returns `None` if it does not come behind all others, if its visible name is truncated, or if there
    /// is no room.
    pub fn add(&mut self, name: &[u8]) -> Option<()> {
        let last = self.ends.len().checked_sub(1);
        if last.is_some_and(|last| self.get(last) >= name) {
            return None;
        }
        let shown = visible_with(name, ARRAY_SUFFIX, self.sep);
        self.own_name(&shown).filter(|own| own == name)?;
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
        visible_with(self.get(at), ARRAY_SUFFIX, self.sep)
    }

    /// Returns the index of a visible name.
    pub fn find(&self, shown: &[u8]) -> Option<usize> {
        let own = self.own_name(shown)?;
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
    fn own_name(&self, shown: &[u8]) -> Option<Vec<u8>> {
        let stem = shown.strip_suffix(ARRAY_SUFFIX.as_bytes())?;
        Some(own_name(stem, self.sep))
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
    use proptest::prelude::*;

    fn shown(own: &str) -> String {
        String::from_utf8(visible(own.as_bytes(), "")).unwrap()
    }

    #[test]
    fn escapes_of_the_design() {
        assert_eq!(shown("a.npy"), "a%2Enpy");
        assert_eq!(shown("img.keys"), "img%2Ekeys");
        assert_eq!(shown("a.npy.h5"), "a.npy.h5");
        assert_eq!(shown("."), "%2E");
        assert_eq!(shown(".."), "%2E%2E");
        assert_eq!(shown("a/b\n"), "a%2Fb%0A");
        assert_eq!(shown("50%"), "50%");
        assert_eq!(shown("%41"), "%2541");
        assert_eq!(shown("\u{e9}#x"), "\u{e9}#x");
        assert_eq!(visible(b"a.npy", ".npy"), b"a%2Enpy.npy");
    }

    #[test]
    fn another_separator_takes_the_place_of_the_hash() {
        assert_eq!(visible_with(b"cell@x#y", ".npy", b'@'), b"cell%40x@y.npy");
    }

    #[test]
    fn long_names_are_cut_and_stay_apart() {
        let a = visible(&[b'a'; 400], ".npy");
        let b = visible(&[b'a'; 401], ".npy");
        assert_eq!((a.len(), b.len()), (255, 255));
        assert_ne!(a, b);
        assert!(a.ends_with(b".npy"));
        for start in 0..4 {
            let name = "x".repeat(start) + &"\u{20ac}".repeat(100);
            let cut = visible(name.as_bytes(), ".npy");
            assert!(std::str::from_utf8(&cut).is_ok(), "{start}");
            let name = "x".repeat(start) + &"/".repeat(300);
            let cut = visible(name.as_bytes(), "");
            let kept = &cut[start..cut.len() - 17];
            assert_eq!(kept.len() % 3, 0, "{start}");
        }
    }

    #[test]
    fn a_name_that_is_not_its_own_escape_is_refused_with_the_one_that_is() {
        let checked = |stem: &str| {
            let stem = stem.as_bytes();
            check(stem, ".npy", visible(&own_name(stem, b'#'), ".npy"))
        };
        for good in [
            "a",
            "a%2Enpy",
            "...",
            "50%",
            "%2541",
            "~0123456789abcdef",
            "\u{e9}",
            "a.npyx",
        ] {
            assert_eq!(checked(good), Ok(()), "{good}");
        }
        for (bad, works) in [
            ("x.npy", "x%2Enpy.npy"),
            ("%41", "A.npy"),
            ("..", "%2E%2E.npy"),
            ("counts.txt", "counts%2Etxt.npy"),
            ("a\tb", "a%09b.npy"),
            ("a%2enpy", "a%2Enpy.npy"),
        ] {
            assert_eq!(checked(bad), Err(NameError::As(works.into())), "{bad}");
        }
        let cut = visible(&[b'n'; 300], "");
        assert_eq!(check(&cut[..], "", cut.clone()), Err(NameError::Cut));
        let at = |stem: &[u8]| {
            check(
                stem,
                ".npy",
                visible_with(&own_name(stem, b'@'), ".npy", b'@'),
            )
        };
        assert_eq!(at(b"cell@x"), Ok(()));
        assert_eq!(at(b"cell#x"), Err(NameError::As(b"cell@x.npy".to_vec())));
    }

    proptest! {
        #[test]
        fn every_escape_can_be_undone(own in proptest::collection::vec(any::<u8>(), 1..80), at in any::<bool>()) {
            let sep = if at { b'@' } else { b'#' };
            let name = visible_with(&own, "", sep);
            prop_assert!(!name.contains(&b'/') && !name.contains(&0));
            prop_assert_eq!(super::own_name(&name, sep), own);
        }
    }

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
