//! The rules of Arkouda's objects: the members and the attributes that each kind has.
//!
//! Source: Arkouda, `src/HDF5Msg.chpl` lines 389 to 655 (attributes), 765 to 2627 (what is written) and 3150 to 3838 (what
//! is asked for when reading).

use crate::formats::arkouda::kind::ArkoudaKind;
use crate::npy::dtype::Kind as Element;

/// The index of a DataFrame.
pub const INDEX: &str = "Index";

/// Members of an object that have numbers, and the attribute that counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberedMembers {
    /// The text in front of the number.
    pub prefix: &'static str,
    /// Name of the attribute.
    pub count: &'static str,
    /// Arkouda asks for the attribute when it reads.
    pub needed: bool,
}

/// Returns what is numbered in objects of a kind.
pub fn numbered(kind: ArkoudaKind) -> Option<NumberedMembers> {
    let (prefix, count, needed) = match kind {
        ArkoudaKind::GroupBy => ("KEY_", "NumKeys", true),
        ArkoudaKind::Index | ArkoudaKind::MultiIndex => ("IDX_", "NumIdx", false),
        _ => return None,
    };
    Some(NumberedMembers {
        prefix,
        count,
        needed,
    })
}

impl NumberedMembers {
    /// The number in a name.
    pub fn number(&self, name: &str) -> Option<u32> {
        name.strip_prefix(self.prefix)?.parse().ok()
    }
}

/// Returns whether an array may have such elements: Arkouda reads integers and floats, which times and booleans are, too.
pub fn is_element(kind: Option<Element>) -> bool {
    use Element::{Bool, Datetime, Float, Int, Timedelta, Uint};
    matches!(kind, Some(Bool | Int | Uint | Float | Datetime | Timedelta))
}

/// Returns whether the index of a DataFrame may have such elements: `HDF5Msg.chpl` lines 1911 to 1946.
pub fn is_index(kind: Option<Element>) -> bool {
    use Element::{Bytes, Float, Int, Uint};
    matches!(kind, Some(Int | Uint | Float | Bytes))
}
