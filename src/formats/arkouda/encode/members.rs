//! The members of an object that is a directory: their names, what was written of each, and which are missing.

use std::collections::BTreeMap;

use super::limbs::MAX_BITS;
use crate::checkout::target::Part;

/// Names of members without a number.
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

/// The members of a Categorical; the last two are there both or not at all.
pub(super) const CATEGORICAL: [&str; 5] =
    ["codes", "categories", "NA_Codes", "permutation", "segments"];

/// The members that a GroupBy has besides its keys.
pub(super) const GROUPED: [&str; 3] = ["segments", "permutation", "unique_key_idx"];

/// The member that only a DataFrame has.
pub(super) const INDEX: &str = "Index";

/// The prefixes of numbered members.
const NUMBERED: [&str; 3] = ["KEY_", "IDX_", "Limb_"];

/// Returns whether a file of this name in a directory is a member of the object that the directory is.
pub(super) fn is_member(name: &str) -> bool {
    let number = |prefix: &&str| {
        name.strip_prefix(*prefix)
            .and_then(|n| n.parse::<u32>().ok())
    };
    name == INDEX || NAMES.contains(&name) || NUMBERED.iter().any(|prefix| number(prefix).is_some())
}

/// A member: an array, or an object that has members itself. It may come in both forms.
#[derive(Default)]
pub(super) struct WrittenMember<'a> {
    pub(super) file: Option<&'a Part>,
    pub(super) below: WrittenMembers<'a>,
}

impl WrittenMember<'_> {
    /// Returns whether it is what is stored, with nothing that was written since.
    pub(super) fn is_stored(&self) -> bool {
        self.file.is_none_or(|file| file.stored) && self.below.values().all(Self::is_stored)
    }

    /// Returns whether the members say more of it than the file that stands for all of them.
    pub(super) fn is_more_than_its_file(&self) -> bool {
        let mut names = self.below.keys();
        names.any(|name| {
            matches!(*name, "codes" | "IPv4" | "ArrayView") || name.starts_with("Limb_")
        })
    }
}

pub(super) type WrittenMembers<'a> = BTreeMap<&'a str, WrittenMember<'a>>;

/// The names of what is missing, if anything is.
pub(super) type Complete = std::result::Result<(), Vec<String>>;

/// Splits the first name off the path of a member.
pub(super) fn names(member: &str) -> Option<(&str, impl Iterator<Item = &str>)> {
    let mut names = member.split('/');
    let first = names.next().filter(|name| !name.is_empty())?;
    Some((first, names))
}

/// Members that an object cannot do without.
pub(super) fn missing(members: &WrittenMembers<'_>, names: &[&str]) -> Complete {
    let absent = names.iter().filter(|name| !members.contains_key(**name));
    let absent: Vec<String> = absent.map(|&name| name.to_owned()).collect();
    if absent.is_empty() {
        Ok(())
    } else {
        Err(absent)
    }
}

/// `PREFIX_0` to the last, without a gap. At least one.
pub(super) fn numbered(
    members: &WrittenMembers<'_>,
    prefix: &str,
) -> std::result::Result<u64, Vec<String>> {
    let numbers = members
        .keys()
        .filter_map(|name| name.strip_prefix(prefix)?.parse::<u32>().ok());
    let last = u64::from(numbers.max().unwrap_or(0));
    let names = (0..=last).map(|number| format!("{prefix}{number}"));
    // As many as there are members, so that a large number asks for no memory.
    let absent = names.filter(|name| !members.contains_key(name.as_str()));
    let absent: Vec<String> = absent.take(16).collect();
    if absent.is_empty() {
        Ok(last + 1)
    } else {
        Err(absent)
    }
}

/// Gives up with what is missing.
macro_rules! complete {
    ($found:expr) => {
        match $found {
            Ok(value) => value,
            Err(missing) => return Ok(Err(missing)),
        }
    };
}

pub(super) use complete;
