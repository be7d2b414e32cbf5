//! The members of an object that is a directory: their names, the new data for each, and which are missing.

use std::collections::BTreeMap;

use crate::store::part::Part;

/// The names of unnumbered members.
const NAMES: [&str; 10] = [
    "values",
    "segments",
    "codes",
    "categories",
    "NA_Codes",
    "permutation",
    "unique_key_idx",
    MAX_BITS,
    "IPv4",
    "ArrayView",
];

/// The members of a Categorical; the last two are both present or both absent.
pub(super) const CATEGORICAL: [&str; 5] =
    ["codes", "categories", "NA_Codes", "permutation", "segments"];

/// The members of a GroupBy in addition to its keys.
pub(super) const GROUPED: [&str; 3] = ["segments", "permutation", "unique_key_idx"];

/// The member that only DataFrames have.
pub(super) const INDEX: &str = "Index";

/// The member with the number of bits of each number.
pub(super) const MAX_BITS: &str = "MaxBits";

/// The prefixes of numbered members.
const NUMBERED: [&str; 3] = ["KEY_", "IDX_", "Limb_"];

/// Returns whether a file of this name in a directory is a member of the object that the directory represents.
pub(super) fn is_member(name: &str) -> bool {
    let number = |prefix: &&str| {
        name.strip_prefix(*prefix)
            .and_then(|n| n.parse::<u32>().ok())
    };
    name == INDEX || NAMES.contains(&name) || NUMBERED.iter().any(|prefix| number(prefix).is_some())
}

/// A member: an array, or an object with its own members. It may come in both forms.
#[derive(Default)]
pub(super) struct WrittenMember<'a> {
    pub(super) file: Option<&'a Part>,
    pub(super) below: WrittenMembers<'a>,
}

impl WrittenMember<'_> {
    /// Returns whether it is stored and has no new data.
    pub(super) fn is_stored(&self) -> bool {
        self.file.is_none_or(|file| file.stored) && self.below.values().all(Self::is_stored)
    }

    /// Returns whether its members contain more information than the file that represents them.
    pub(super) fn is_more_than_its_file(&self) -> bool {
        let mut names = self.below.keys();
        names.any(|name| {
            matches!(*name, "codes" | "IPv4" | "ArrayView") || name.starts_with("Limb_")
        })
    }
}

pub(super) type WrittenMembers<'a> = BTreeMap<&'a str, WrittenMember<'a>>;

/// The names of missing members, if any.
pub(super) type Complete = std::result::Result<(), Vec<String>>;

/// Splits the first name off the path of a member.
pub(super) fn names(member: &str) -> Option<(&str, impl Iterator<Item = &str>)> {
    let mut names = member.split('/');
    let first = names.next().filter(|name| !name.is_empty())?;
    Some((first, names))
}

/// Returns the names of the required members that are missing, if any.
pub(super) fn missing(members: &WrittenMembers<'_>, names: &[&str]) -> Complete {
    let absent = names.iter().filter(|name| !members.contains_key(**name));
    let absent: Vec<String> = absent.map(|&name| name.to_owned()).collect();
    if absent.is_empty() {
        Ok(())
    } else {
        Err(absent)
    }
}

/// Finds the members from `PREFIX_0` to the last, without a gap. There must be at least one.
pub(super) fn numbered(
    members: &WrittenMembers<'_>,
    prefix: &str,
) -> std::result::Result<u64, Vec<String>> {
    let numbers = members
        .keys()
        .filter_map(|name| name.strip_prefix(prefix)?.parse::<u32>().ok());
    let last = u64::from(numbers.max().unwrap_or(0));
    let names = (0..=last).map(|number| format!("{prefix}{number}"));
    // No more names than there are members, so that a large number requires no memory.
    let absent = names.filter(|name| !members.contains_key(name.as_str()));
    let absent: Vec<String> = absent.take(16).collect();
    if absent.is_empty() {
        Ok(last + 1)
    } else {
        Err(absent)
    }
}

/// Returns early with the missing members.
macro_rules! complete {
    ($found:expr) => {
        match $found {
            Ok(value) => value,
            Err(missing) => return Ok(Err(missing)),
        }
    };
}

pub(super) use complete;
