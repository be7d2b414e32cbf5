//! Determines the kind of an object from its attributes, or from its shape if it has none.
//!
//! Source: Arkouda, `src/ServerConfig.chpl` lines 25 to 40 and `getObjType`, `src/HDF5Msg.chpl` lines 3608 to 3641.
//! Several inner objects have no attributes even in current files.

use std::sync::Arc;

use super::limbs::{self, has_limbs};
use super::object::{HdfObject, JoinedObject, Object, is_bytes, is_integers};
use super::set::LocaleSet;
use npyfs_base::error::{Error, Result};

/// The kinds that are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArkoudaKind {
    /// Numbers with a shape.
    ArrayView,
    /// Numbers.
    Pdarray,
    /// Integers of any size, in limbs of 64 bits.
    Bigint,
    /// Text of any length.
    Strings,
    /// Arrays of any length.
    SegArray,
    /// Text with few distinct values (categories).
    Categorical,
    /// A GroupBy: the groups of equal rows of some keys.
    GroupBy,
    /// Columns and an index.
    DataFrame,
    /// Times in nanoseconds since 1970.
    Datetime,
    /// Spans of time in nanoseconds.
    Timedelta,
    /// IP addresses.
    IPv4,
    /// The labels of rows.
    Index,
    /// The labels of rows in several levels.
    MultiIndex,
    /// A group without an Arkouda meaning.
    Group,
}

impl ArkoudaKind {
    const ALL: [Self; 14] = [
        Self::ArrayView,
        Self::Pdarray,
        Self::Bigint,
        Self::Strings,
        Self::SegArray,
        Self::Categorical,
        Self::GroupBy,
        Self::DataFrame,
        Self::Datetime,
        Self::Timedelta,
        Self::IPv4,
        Self::Index,
        Self::MultiIndex,
        Self::Group,
    ];

    /// Returns the kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns Arkouda's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ArrayView => "ArrayView",
            Self::Pdarray => "pdarray",
            Self::Bigint => "bigint",
            Self::Strings => "Strings",
            Self::SegArray => "SegArray",
            Self::Categorical => "Categorical",
            Self::GroupBy => "GroupBy",
            Self::DataFrame => "DataFrame",
            Self::Datetime => "Datetime",
            Self::Timedelta => "Timedelta",
            Self::IPv4 => "IPv4",
            Self::Index => "Index",
            Self::MultiIndex => "MultiIndex",
            Self::Group => "group",
        }
    }

    /// Returns the kind for an `ObjType`, for a group or for a dataset.
    pub fn of_type(number: i64, is_group: bool) -> Option<Self> {
        Some(match (number, is_group) {
            (0, false) => Self::ArrayView,
            (1, false) => Self::Pdarray,
            (1, true) => Self::Bigint,
            (2, true) => Self::Strings,
            (3, true) => Self::SegArray,
            (4, true) => Self::Categorical,
            (5, true) => Self::GroupBy,
            (6, true) => Self::DataFrame,
            (7, false) => Self::Datetime,
            (8, false) => Self::Timedelta,
            (9, false) => Self::IPv4,
            (12, true) => Self::Index,
            (13, true) => Self::MultiIndex,
            _ => return None,
        })
    }

    /// Returns the kind of an object without `ObjType`.
    fn of_shape(object: &Object) -> Self {
        if !object.is_group() {
            Self::Pdarray
        } else if has_limbs(object) {
            Self::Bigint
        } else if is_text(object) {
            Self::Strings
        } else if is_segarray(object) {
            Self::SegArray
        } else {
            Self::Group
        }
    }
}

/// Returns whether a group has the structure of text: `values`, 1-D, bytes, and nothing else but `segments`, 1-D,
/// integers.
pub(super) fn is_text(group: &Object) -> bool {
    let bytes = |object: &Object| object.dataset().is_some_and(is_bytes);
    group.member("values").is_some_and(|values| bytes(values))
        && group
            .members()
            .iter()
            .all(|(name, member)| match name.as_slice() {
                b"values" => true,
                b"segments" => member.dataset().is_some_and(is_integers),
                _ => false,
            })
}

/// Returns whether there is nothing but `segments` and `values`; the attributes of a SegArray in a DataFrame may be at
/// the DataFrame.
fn is_segarray(group: &Object) -> bool {
    let members = group.members();
    members.len() == 2 && group.member("segments").is_some() && group.member("values").is_some()
}

/// Returns the kind of an object, if all files agree on it.
pub fn kind(set: &LocaleSet, joined: &JoinedObject) -> Result<ArkoudaKind> {
    let mut objects = Vec::new();
    for (number, object) in joined.parts.iter().enumerate() {
        let name = || set.name(number);
        let object = object
            .as_ref()
            .ok_or_else(|| Error::damaged(format!("missing in {}", name())))?;
        match &object.what {
            HdfObject::Damaged(why) => return Err(Error::damaged(format!("{}: {why}", name()))),
            HdfObject::Foreign(why) => return Err(Error::damaged(format!("{}: {why}", name()))),
            HdfObject::Dataset(_) | HdfObject::Group { .. } => objects.push((number, object)),
        }
    }
    same_version(set, &objects)?;
    let any_group = objects.iter().any(|(_, object)| object.is_group());
    let has_limb = objects.iter().any(|(_, object)| has_limbs(object));
    // An empty locale holds an empty dataset, whatever the others hold.
    objects.retain(|(_, object)| {
        !(any_group && object.is_empty_dataset() || has_limb && limbs::is_empty(object))
    });
    let mut known: Option<(ArkoudaKind, usize)> = None;
    for (number, object) in objects {
        let here = match &object.marks.object_type {
            Some(Ok(claimed)) => {
                ArkoudaKind::of_type(*claimed, object.is_group()).ok_or_else(|| {
                    let what = if object.is_group() {
                        "group"
                    } else {
                        "dataset"
                    };
                    let name = set.name(number);
                    Error::damaged(format!(
                        "ObjType {claimed} of a {what} in {name} is unknown"
                    ))
                })
            }
            Some(Err(why)) => Err(Error::damaged(format!("{why} in {}", set.name(number)))),
            None => Ok(ArkoudaKind::of_shape(object)),
        }?;
        match known {
            Some((kind, first)) if kind != here => {
                return Err(Error::damaged(format!(
                    "parts of different type: {} in {}, {} in {}",
                    kind.name(),
                    set.name(first),
                    here.name(),
                    set.name(number)
                )));
            }
            Some(_) => {}
            None => known = Some((here, number)),
        }
    }
    known
        .map(|(kind, _)| kind)
        .ok_or_else(|| Error::damaged("no file has it"))
}

/// Parts written by different releases belong to different runs: one of them is stale.
fn same_version(set: &LocaleSet, objects: &[(usize, &Arc<Object>)]) -> Result<()> {
    let mut known: Option<(&str, usize)> = None;
    for (number, object) in objects {
        let Some(version) = &object.marks.version else {
            continue;
        };
        match known {
            Some((first, at)) if first != version => {
                return Err(Error::damaged(format!(
                    "arkouda_version is {first} in {}, {version} in {}: one of them is stale",
                    set.name(at),
                    set.name(*number)
                )));
            }
            Some(_) => {}
            None => known = Some((version, *number)),
        }
    }
    Ok(())
}
