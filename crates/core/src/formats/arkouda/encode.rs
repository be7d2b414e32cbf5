//! Writes Arkouda objects, in the layout and with the attributes of file version 2.0.
//!
//! Source: Arkouda, `src/HDF5Msg.chpl` (writing: lines 389 to 655 and 765 to 2627; reading: 3150 to 3838). Numbers keep
//! their width: Arkouda widens them when it reads. Objects that Arkouda cannot represent, such as an array of several
//! dimensions, are stored so that it reads the flat elements.
//!
//! Times in any of NumPy's units become nanoseconds, Arkouda's unit. Strings are a group of `values`, the bytes with a
//! NUL after each string, and `segments`, the start of each string. The members of an object that is a directory are
//! `WrittenMembers`: their names, the new data for each, and which are missing. `composite` makes the object of them.

mod composite;
pub mod grouping;
mod present;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::civil::Date;
use jiff::tz::Offset;

use crate::store::base::{Base, invalid, unsupported};
use crate::store::encode::array::NpyArray;
use crate::store::encode::contents::MappedElements;
use crate::store::encode::contents::SpooledFile;
use crate::store::encode::integers::Integers;
use crate::store::encode::{ObjectKey, Plan, single, text};
use crate::store::object::NewFile;
use crate::store::part::Part;
use crate::store::target::Deletion;
use crate::tree::Node;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_hdf5::{NewAttribute, NewDataset};
use npyfs_io::content::Content;

/// `ObjType`, `src/ServerConfig.chpl` lines 25 to 40.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    /// How older releases write arrays of several dimensions. Present ones know the number, but do not read such
    /// arrays.
    ArrayView = 0,
    Pdarray = 1,
    Strings = 2,
    SegArray = 3,
    Categorical = 4,
    GroupBy = 5,
    DataFrame = 6,
    Datetime = 7,
    Timedelta = 8,
    IPv4 = 9,
    Index = 12,
    MultiIndex = 13,
}

/// Returns the attributes of every object.
fn marks(object: Type) -> Vec<NewAttribute> {
    let float = DType::scalar(Kind::Float, 4, Order::Little);
    // With the terminating NUL of a C string.
    let version = concat!("npyfs-", env!("CARGO_PKG_VERSION"), "\0");
    vec![
        NewAttribute::int("ObjType", object as i64),
        NewAttribute::new("file_version", float, &[], 2.0_f32.to_le_bytes().to_vec()),
        NewAttribute::new(
            "arkouda_version",
            DType::bytes(version.len()),
            &[],
            version.into(),
        ),
    ]
}

/// Marks a file as Arkouda's, and as the only one of its set.
pub fn mark_file(new: &mut NewFile) {
    new.mark_root(NewAttribute::int("File_Format", 0));
}

/// Returns whether a file of an Arkouda store has a single array that is shown as stored: it contains neither times nor
/// booleans, and has the shape of its dataset.
pub fn is_flat_pdarray(new: &NewFile) -> bool {
    let [dataset] = new.outline.datasets.as_slice() else {
        return false;
    };
    let mut attributes = dataset.attributes.iter();
    let marks_alone = attributes.all(|a| match &*a.name {
        "ObjType" => a.value.data == 1_i64.to_le_bytes(),
        name => matches!(name, "file_version" | "arkouda_version"),
    });
    let groups = &new.outline.groups;
    marks_alone && groups.iter().all(|group| group.path.is_empty())
}

/// Plans how an object is stored; see [`Writing::plan`](crate::store::format::Writing::plan).
pub fn plan(base: &dyn Base, key: &ObjectKey, parts: &[Part]) -> Result<Plan> {
    let mut new = NewFile::default();
    if let Ok(part) = single(parts) {
        let array = NpyArray::open(base, &part.content)?;
        composite::add_file(&mut new, base, key, &array)?;
    } else if let Err(missing) = composite::add(&mut new, base, key, parts)? {
        return Ok(Plan::Incomplete(missing));
    }
    mark_file(&mut new);
    Ok(Plan::Complete(new))
}

/// Deleting a required member deletes the object. A DataFrame loses a column; a Categorical its grouping of codes; a
/// bigint its number of bits. Members of a group that is not an object cannot be deleted.
pub fn deletion(base: &dyn Base, key: &ObjectKey, member: &str) -> Result<Deletion> {
    let mut path = vec![key.name().to_owned()];
    // The member of a DataFrame that is deleted in place of an object inside of it.
    let mut column = None;
    let names: Vec<&str> = member.split('/').filter(|name| !name.is_empty()).collect();
    for (depth, name) in names.iter().enumerate() {
        let is_last = depth + 1 == names.len();
        let whole = || names[..=depth].join("/");
        match kind(base, &path)?.as_deref() {
            Some("group") => {
                let why = "a group that is no Arkouda object: nothing in it can be deleted";
                return Err(Error::new(ErrorKind::Os(libc::EPERM), why));
            }
            Some("DataFrame") if *name != INDEX => column = Some(whole()),
            Some("DataFrame") => return Ok(Deletion::Object),
            Some("Categorical") if is_last && matches!(*name, "permutation" | "segments") => {
                return Ok(Deletion::Member(whole()));
            }
            Some("bigint") if is_last && *name == MAX_BITS => {
                return Ok(Deletion::Member(whole()));
            }
            _ => {}
        }
        path.push((*name).to_owned());
    }
    Ok(column.map_or(Deletion::Object, Deletion::Member))
}

/// Returns Arkouda's name for the object shown as the directory at a path; `None` if there is none.
fn kind(base: &dyn Base, path: &[String]) -> Result<Option<String>> {
    let Some(Node::Directory(dir)) = base.node(path, "")? else {
        return Ok(None);
    };
    let info = dir.info()?;
    let name = info.get("type").and_then(|name| name.as_str());
    Ok(name.map(str::to_owned))
}

/// Adds an array of any kind as an object.
fn add(new: &mut NewFile, base: &dyn Base, path: &[String], array: &NpyArray) -> Result<()> {
    match array.kind() {
        Some(Kind::Bytes | Kind::Text) if array.shape.len() == 1 => {
            add_strings(new, base, path, array)
        }
        Some(Kind::Bytes | Kind::Text) => Err(unsupported(format!(
            "Arkouda has strings in one dimension, not in {}",
            array.shape.len()
        ))),
        Some(Kind::Bool | Kind::Int | Kind::Uint | Kind::Float) => {
            numbers(new, path, array, Type::Pdarray, array.data.clone())
        }
        Some(Kind::Datetime) => numbers(new, path, array, Type::Datetime, nanoseconds(array)?),
        Some(Kind::Timedelta) => numbers(new, path, array, Type::Timedelta, nanoseconds(array)?),
        Some(Kind::Complex | Kind::Void) | None => {
            let name = array.dtype.name();
            Err(unsupported(format!(
                "Arkouda has no elements of type {name}"
            )))
        }
    }
}

/// Adds numbers, flattened; `Rank` and `Shape` record their shape.
fn numbers(
    new: &mut NewFile,
    path: &[String],
    array: &NpyArray,
    object: Type,
    data: Arc<dyn Content>,
) -> Result<()> {
    let mut attributes = marks(object);
    let (dtype, data) = match object {
        Type::Datetime | Type::Timedelta => (DType::int(8), data),
        _ => stored(array, data),
    };
    if array.kind() == Some(Kind::Bool) {
        attributes.push(NewAttribute::int("isBool", 1));
    }
    let rank = array.shape.len();
    if rank != 1 || object == Type::ArrayView {
        let dims = array.shape.iter().flat_map(|n| n.to_le_bytes()).collect();
        attributes.push(NewAttribute::int("Rank", rank as i64));
        attributes.push(NewAttribute::new(
            "Shape",
            DType::int(8),
            &[rank as u64],
            dims,
        ));
    }
    let mut dataset = NewDataset::new(path, dtype, &[array.elements()]);
    dataset.attributes = attributes;
    new.add(dataset, data);
    Ok(())
}

/// Converts booleans to bytes of 0 and 1.
fn stored(array: &NpyArray, data: Arc<dyn Content>) -> (DType, Arc<dyn Content>) {
    if array.kind() != Some(Kind::Bool) {
        return (array.dtype.clone(), data);
    }
    let data = MappedElements::content(data, 1, 1, |_, from, to| {
        for (byte, place) in from.iter().zip(to) {
            *place = u8::from(*byte != 0);
        }
        Ok(())
    });
    (DType::scalar(Kind::Uint, 1, Order::None), data)
}

/// Refuses arrays that are not vectors.
fn vector(name: &str, array: &NpyArray) -> Result<u64> {
    match array.shape.as_slice() {
        &[len] => Ok(len),
        shape => Err(invalid(format!(
            "{name} has shape {shape:?}, and must have one dimension"
        ))),
    }
}

/// Returns the path of a member.
fn below(path: &[String], name: &str) -> Vec<String> {
    let mut path = path.to_vec();
    path.push(name.to_owned());
    path
}

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
const CATEGORICAL: [&str; 5] = ["codes", "categories", "NA_Codes", "permutation", "segments"];

/// The members of a GroupBy in addition to its keys.
const GROUPED: [&str; 3] = ["segments", "permutation", "unique_key_idx"];

/// The member that only DataFrames have.
const INDEX: &str = "Index";

/// The member with the number of bits of each number.
const MAX_BITS: &str = "MaxBits";

/// The prefixes of numbered members.
const NUMBERED: [&str; 3] = ["KEY_", "IDX_", "Limb_"];

/// Returns whether a file of this name in a directory is a member of the object that the directory represents.
fn is_member(name: &str) -> bool {
    let number = |prefix: &&str| {
        name.strip_prefix(*prefix)
            .and_then(|n| n.parse::<u32>().ok())
    };
    name == INDEX || NAMES.contains(&name) || NUMBERED.iter().any(|prefix| number(prefix).is_some())
}

/// A member: an array, or an object with its own members. It may come in both forms.
#[derive(Default)]
struct WrittenMember<'a> {
    file: Option<&'a Part>,
    below: WrittenMembers<'a>,
}

impl WrittenMember<'_> {
    /// Returns whether it is stored and has no new data.
    fn is_stored(&self) -> bool {
        self.file.is_none_or(|file| file.stored) && self.below.values().all(Self::is_stored)
    }

    /// Returns whether its members contain more information than the file that represents them.
    fn is_more_than_its_file(&self) -> bool {
        let mut names = self.below.keys();
        names.any(|name| {
            matches!(*name, "codes" | "IPv4" | "ArrayView") || name.starts_with("Limb_")
        })
    }
}

type WrittenMembers<'a> = BTreeMap<&'a str, WrittenMember<'a>>;

/// The names of missing members, if any.
type Complete = std::result::Result<(), Vec<String>>;

/// Splits the first name off the path of a member.
fn names(member: &str) -> Option<(&str, impl Iterator<Item = &str>)> {
    let mut names = member.split('/');
    let first = names.next().filter(|name| !name.is_empty())?;
    Some((first, names))
}

/// Returns the names of the required members that are missing, if any.
fn missing(members: &WrittenMembers<'_>, names: &[&str]) -> Complete {
    let absent = names.iter().filter(|name| !members.contains_key(**name));
    let absent: Vec<String> = absent.map(|&name| name.to_owned()).collect();
    if absent.is_empty() {
        Ok(())
    } else {
        Err(absent)
    }
}

/// Finds the members from `PREFIX_0` to the last, without a gap. There must be at least one.
fn numbered(members: &WrittenMembers<'_>, prefix: &str) -> std::result::Result<u64, Vec<String>> {
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

use complete;

fn bytes_dtype() -> DType {
    DType::scalar(Kind::Uint, 1, Order::None)
}

/// Adds `|S` or `<U`; `<U` becomes UTF-8.
fn add_strings(
    new: &mut NewFile,
    base: &dyn Base,
    path: &[String],
    array: &NpyArray,
) -> Result<()> {
    let (mut values, mut segments) = (SpooledFile::new(base), SpooledFile::new(base));
    text::each(array, |number, text| {
        if text.contains(&0) {
            return Err(invalid(format!("string {number} holds a NUL")));
        }
        segments.push(&values.len().to_le_bytes())?;
        values.push(text)?;
        values.push(&[0])
    })?;
    let (len, strings) = (values.len(), array.elements());
    let (values, segments) = (values.finish()?, segments.finish()?);
    let group = [
        (len, values, bytes_dtype()),
        (strings, segments, DType::int(8)),
    ];
    put_strings(new, path, group);
    Ok(())
}

type MemberDataset = (u64, Arc<dyn Content>, DType);

/// Adds the group of strings with its two members.
fn put_strings(new: &mut NewFile, path: &[String], [values, segments]: [MemberDataset; 2]) {
    for (name, (len, data, dtype)) in [("values", values), ("segments", segments)] {
        let mut dataset = NewDataset::new(&below(path, name), dtype, &[len]);
        dataset.attributes = marks(Type::Pdarray);
        new.add(dataset, data);
    }
    new.mark(path, marks(Type::Strings));
}

/// Adds strings that are given as their two members.
fn add_string_members(
    new: &mut NewFile,
    path: &[String],
    values: &NpyArray,
    segments: NpyArray,
) -> Result<u64> {
    let len = vector("values", values)?;
    let segments = Integers::new("segments", segments)?;
    check_strings(values, &segments, len)?;
    let strings = segments.len();
    let values = (len, values.data.clone(), bytes_dtype());
    put_strings(
        new,
        path,
        [values, (strings, segments.wide(), DType::int(8))],
    );
    Ok(strings)
}

/// Checks that each string begins where the previous one ends, right after its only NUL.
fn check_strings(values: &NpyArray, segments: &Integers, len: u64) -> Result<()> {
    let mut ends = Vec::new();
    let mut at = 0;
    let mut string = 0;
    let mut start = 0;
    // The starts implied by the NULs, one block of bytes at a time.
    text::windows(values, 1, |block| {
        ends.clear();
        for &byte in block {
            at += 1;
            if byte == 0 {
                ends.push(start);
                start = at;
            }
        }
        let left = segments.len().saturating_sub(string);
        let count = (ends.len() as u64).min(left);
        let mut found = vec![0; usize::try_from(count).unwrap_or(0)];
        segments.read(string, &mut found)?;
        if count < ends.len() as u64 {
            return Err(invalid("more NULs in values than segments"));
        }
        for (i, (&found, &wanted)) in found.iter().zip(&ends).enumerate() {
            if found != wanted {
                let number = string + i as u64;
                return Err(invalid(format!(
                    "segment {number} is {found}, and string {number} starts at {wanted}"
                )));
            }
        }
        string += count;
        Ok(())
    })?;
    if u64::try_from(start) != Ok(len) || string != segments.len() {
        return Err(invalid("values do not end with a NUL for each segment"));
    }
    Ok(())
}

/// NumPy's NaT (not a time).
const NAT: i64 = i64::MIN;

/// One unit.
#[derive(Clone, Copy)]
enum Unit {
    Years,
    Months,
    /// This many nanoseconds.
    Fixed(i64),
}

/// Converts the elements to little-endian nanoseconds. Out-of-range values fail while they are copied.
fn nanoseconds(array: &NpyArray) -> Result<Arc<dyn Content>> {
    let DType::Scalar {
        kind, order, unit, ..
    } = &array.dtype
    else {
        return Err(invalid("no time"));
    };
    let name = array.dtype.name();
    let (count, letters) = split_unit(unit);
    let unit = match letters {
        "Y" => Unit::Years,
        "M" => Unit::Months,
        "W" => Unit::Fixed(604_800_000_000_000),
        "D" => Unit::Fixed(86_400_000_000_000),
        "h" => Unit::Fixed(3_600_000_000_000),
        "m" => Unit::Fixed(60_000_000_000),
        "s" => Unit::Fixed(1_000_000_000),
        "ms" => Unit::Fixed(1_000_000),
        "us" => Unit::Fixed(1000),
        "ns" => Unit::Fixed(1),
        _ => return Err(invalid(format!("{name} cannot be said in nanoseconds"))),
    };
    if *kind == Kind::Timedelta && !matches!(unit, Unit::Fixed(_)) {
        return Err(invalid(format!("{name} cannot be said in nanoseconds")));
    }
    let order = *order;
    let convert = move |number: u64, bytes: &[u8], place: &mut [u8]| {
        for (i, (bytes, place)) in bytes
            .as_chunks()
            .0
            .iter()
            .zip(place.as_chunks_mut().0)
            .enumerate()
        {
            let value = match order {
                Order::Big => i64::from_be_bytes(*bytes),
                Order::Little | Order::None => i64::from_le_bytes(*bytes),
            };
            let converted = if value == NAT {
                Some(NAT)
            } else {
                value
                    .checked_mul(count)
                    .and_then(|n| in_nanoseconds(n, unit))
            };
            let converted = converted.ok_or_else(|| {
                let number = number + i as u64;
                invalid(format!(
                    "element {number} of {name} is out of the range of nanoseconds"
                ))
            })?;
            *place = converted.to_le_bytes();
        }
        Ok(())
    };
    Ok(MappedElements::content(array.data.clone(), 8, 8, convert))
}

/// Splits `[25us]` into the number and the letters.
fn split_unit(unit: &str) -> (i64, &str) {
    let inner = unit.trim_start_matches('[').trim_end_matches(']');
    let letters = inner.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = inner.strip_suffix(letters).unwrap_or_default();
    (digits.parse().unwrap_or(1), letters)
}

fn in_nanoseconds(n: i64, unit: Unit) -> Option<i64> {
    let months = match unit {
        Unit::Fixed(size) => return n.checked_mul(size),
        Unit::Years => n.checked_mul(12)?,
        Unit::Months => n,
    };
    let year = i16::try_from(months.div_euclid(12).checked_add(1970)?).ok()?;
    let month = i8::try_from(months.rem_euclid(12) + 1).ok()?;
    let first = Date::new(year, month, 1).ok()?.at(0, 0, 0, 0);
    let first = Offset::UTC.to_timestamp(first).ok()?.as_nanosecond();
    i64::try_from(first).ok().filter(|&n| n != NAT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn months_begin_where_the_calendar_says() {
        const DAY: i64 = 86_400_000_000_000;
        // As NumPy computes: `np.datetime64("2000-03").astype("M8[D]").astype(int)`.
        for (month, days) in [(0, 0), (2, 59), (30 * 12 + 2, 11_017), (-1, -31)] {
            assert_eq!(in_nanoseconds(month, Unit::Months), Some(days * DAY));
        }
        // The first and the last year and month that 64-bit nanoseconds can represent.
        assert_eq!(in_nanoseconds(-292, Unit::Years), Some(-106_650 * DAY));
        assert_eq!(in_nanoseconds(292, Unit::Years), Some(106_651 * DAY));
        assert_eq!(in_nanoseconds(-293, Unit::Years), None);
        assert_eq!(in_nanoseconds(293, Unit::Years), None);
        assert_eq!(
            in_nanoseconds(292 * 12 + 3, Unit::Months),
            Some(106_741 * DAY)
        );
        assert_eq!(in_nanoseconds(292 * 12 + 4, Unit::Months), None);
        assert_eq!(in_nanoseconds(i64::MAX, Unit::Months), None);
        assert_eq!(split_unit("[25us]"), (25, "us"));
        assert_eq!(split_unit("[ns]"), (1, "ns"));
    }
}
