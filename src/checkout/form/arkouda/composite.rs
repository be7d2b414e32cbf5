//! Objects that are a directory of members: which members make which object, and when it is complete.

use std::collections::BTreeMap;

use super::{Type, add as add_array, marks, numbers, strings, vector};
use crate::checkout::form::array::Array;
use crate::checkout::form::integers::Integers;
use crate::checkout::form::mapped::Mapped;
use crate::checkout::form::{Base, Key, invalid};
use crate::checkout::object::NewFile;
use crate::checkout::target::Part;
use crate::dtype::{DType, Kind, Order};
use crate::error::Result;
use crate::h5::{NewAttribute, NewDataset};

/// Names of members without a number.
const NAMES: [&str; 7] = [
    "values",
    "segments",
    "codes",
    "categories",
    "NA_Codes",
    "permutation",
    "unique_key_idx",
];

/// The member that only a DataFrame has.
const INDEX: &str = "Index";

/// Limbs of a number, at most.
const LIMBS: usize = 1024;

/// What comes before a number.
const NUMBERED: [&str; 3] = ["KEY_", "IDX_", "Limb_"];

/// Whether a file of this name in a directory is a member of the object that the directory is.
pub fn is_member(name: &str) -> bool {
    let number = |prefix: &&str| {
        name.strip_prefix(*prefix)
            .and_then(|n| n.parse::<u32>().ok())
    };
    name == INDEX || NAMES.contains(&name) || NUMBERED.iter().any(|prefix| number(prefix).is_some())
}

/// A member: an array, or an object that has members itself. It may come in both forms.
#[derive(Default)]
struct Member<'a> {
    file: Option<&'a Part>,
    below: Members<'a>,
}

type Members<'a> = BTreeMap<&'a str, Member<'a>>;

/// What is missing, if anything is.
type Complete = std::result::Result<(), Vec<String>>;

/// Adds the object that its members make.
pub fn add(new: &mut NewFile, base: &dyn Base, key: &Key, parts: &[Part]) -> Result<Complete> {
    let mut members = Members::new();
    for part in parts {
        let Some((first, rest)) = names(&part.place.member) else {
            // The object's other form, from before it was a directory.
            continue;
        };
        let mut member = members.entry(first).or_default();
        for name in rest {
            member = member.below.entry(name).or_default();
        }
        member.file = Some(part);
    }
    let mut writer = Writer { new, base };
    // A DataFrame has columns of any name, and is no part of another object.
    if members.contains_key(INDEX) || !members.keys().any(|name| is_member(name)) {
        return writer.data_frame(key.path(), &members);
    }
    writer.object(key.path(), &members)
}

fn names(member: &str) -> Option<(&str, impl Iterator<Item = &str>)> {
    let mut names = member.split('/');
    let first = names.next().filter(|name| !name.is_empty())?;
    Some((first, names))
}

struct Writer<'a> {
    new: &'a mut NewFile,
    base: &'a dyn Base,
}

/// Members that an object cannot do without.
fn missing(members: &Members<'_>, names: &[&str]) -> Complete {
    let absent = names.iter().filter(|name| !members.contains_key(**name));
    let absent: Vec<String> = absent.map(|&name| name.to_owned()).collect();
    if absent.is_empty() {
        Ok(())
    } else {
        Err(absent)
    }
}

/// `PREFIX_0` to the last, without a gap. At least one.
fn numbered(members: &Members<'_>, prefix: &str) -> std::result::Result<u64, Vec<String>> {
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

impl Writer<'_> {
    fn object(&mut self, path: &[String], members: &Members<'_>) -> Result<Complete> {
        let has = |name: &str| members.contains_key(name);
        let starts = |prefix: &str| members.keys().any(|name| name.starts_with(prefix));
        if has("codes") || has("categories") || has("NA_Codes") {
            self.categorical(path, members)
        } else if has("unique_key_idx") || starts("KEY_") {
            self.group_by(path, members)
        } else if starts("IDX_") {
            self.index(path, members)
        } else if starts("Limb_") {
            self.bigint(path, members)
        } else if has("permutation") {
            Ok(Err(vec!["unique_key_idx".into(), "KEY_0".into()]))
        } else {
            self.values(path, members)
        }
    }

    fn open(&self, member: &Member<'_>, name: &str) -> Result<Array> {
        let part = member
            .file
            .ok_or_else(|| invalid(format!("{name} is an array")))?;
        Array::open(self.base, &part.content).map_err(|e| e.about(name))
    }

    fn array(&self, members: &Members<'_>, name: &str) -> Result<Array> {
        match members.get(name) {
            Some(member) => self.open(member, name),
            None => Err(invalid(format!("{name} is missing"))),
        }
    }

    /// Only these members.
    fn only(&self, members: &Members<'_>, names: &[&str], prefix: &str) -> Result<()> {
        let other = members
            .keys()
            .find(|name| !names.contains(name) && (prefix.is_empty() || !name.starts_with(prefix)));
        match other {
            Some(other) => Err(invalid(format!("{other} is no member of such an object"))),
            None => Ok(()),
        }
    }

    /// A member that may be anything: an array, or members of its own.
    fn any(&mut self, path: &[String], members: &Members<'_>, name: &str) -> Result<Complete> {
        let path = below(path, name);
        let Some(member) = members.get(name) else {
            return Ok(Err(vec![name.to_owned()]));
        };
        // Both forms say the same; the file is the simpler one, but labels lose their codes.
        let done = match member.file {
            Some(_) if !member.below.contains_key("codes") => {
                let array = self.open(member, name)?;
                match array.shape.as_slice() {
                    // A part of an object has one dimension: this is how big integers are shown.
                    &[len, limbs] if array.dtype == limb() => {
                        self.columns(&path, &array, (len, limbs)).map(Ok)
                    }
                    _ => add_array(self.new, self.base, &path, &array).map(Ok),
                }
            }
            _ => self.object(&path, &member.below),
        };
        let done = done.map_err(|e| e.about(name))?;
        Ok(done.map_err(|missing| {
            let full = missing.iter().map(|inner| format!("{name}/{inner}"));
            full.collect()
        }))
    }

    /// A vector of 64-bit integers.
    fn integers(&mut self, path: &[String], name: &str, array: Array) -> Result<Integers> {
        let integers = Integers::new(name, array)?;
        let mut dataset = NewDataset::new(&below(path, name), DType::int(8), &[integers.len()]);
        dataset.attributes = marks(Type::Pdarray);
        self.new.add(dataset, integers.wide());
        Ok(integers)
    }

    /// Strings, if the values are bytes; else a SegArray.
    fn values(&mut self, path: &[String], members: &Members<'_>) -> Result<Complete> {
        complete!(missing(members, &["values", "segments"]));
        self.only(members, &["values", "segments"], "")?;
        let segments = self.array(members, "segments")?;
        let member = members.get("values");
        if let Some(member) = member.filter(|member| member.file.is_some()) {
            let values = self.open(member, "values")?;
            if values.dtype == strings::bytes() {
                strings::add_members(self.new, path, &values, segments)?;
                return Ok(Ok(()));
            }
        }
        complete!(self.any(path, members, "values")?);
        let values = below(path, "values");
        let (count, is_bool) = self.stored(&values);
        let segments = self.integers(path, "segments", segments)?;
        check_starts(&segments, count)?;
        let mut attributes = marks(Type::SegArray);
        if is_bool {
            attributes.push(NewAttribute::int("isBool", 1));
        }
        self.new.mark(path, attributes);
        Ok(Ok(()))
    }

    /// How many elements an object has that was just added, and whether they are booleans.
    fn stored(&self, path: &[String]) -> (u64, bool) {
        let find = |path: &[String]| {
            let mut datasets = self.new.outline.datasets.iter();
            datasets.find(|dataset| dataset.path == path)
        };
        let counted = [
            path.to_vec(),
            below(path, "segments"),
            below(path, "Limb_0"),
        ];
        let Some(dataset) = counted.iter().find_map(|path| find(path)) else {
            return (0, false);
        };
        let is_bool = dataset.attributes.iter().any(|a| a.name == "isBool");
        (dataset.shape.first().copied().unwrap_or(0), is_bool)
    }

    fn categorical(&mut self, path: &[String], members: &Members<'_>) -> Result<Complete> {
        complete!(missing(members, &["codes", "categories", "NA_Codes"]));
        let known = ["codes", "categories", "NA_Codes", "permutation", "segments"];
        self.only(members, &known, "")?;
        if members.contains_key("permutation") != members.contains_key("segments") {
            return Ok(missing(members, &["permutation", "segments"]));
        }
        complete!(self.any(path, members, "categories")?);
        let (count, _) = self.stored(&below(path, "categories"));
        let codes = self.array(members, "codes")?;
        let codes = self.integers(path, "codes", codes)?;
        codes.each(|number, code| {
            if u64::try_from(code).is_ok_and(|code| code < count) {
                return Ok(());
            }
            Err(invalid(format!(
                "code {number} is {code}, there are {count} categories"
            )))
        })?;
        for name in ["NA_Codes", "permutation", "segments"] {
            if members.contains_key(name) {
                let array = self.array(members, name)?;
                self.integers(path, name, array)?;
            }
        }
        self.new.mark(path, marks(Type::Categorical));
        Ok(Ok(()))
    }

    fn group_by(&mut self, path: &[String], members: &Members<'_>) -> Result<Complete> {
        let parts = ["segments", "permutation", "unique_key_idx"];
        let mut absent = missing(members, &parts).err().unwrap_or_default();
        let keys = numbered(members, "KEY_");
        absent.extend(keys.as_ref().err().into_iter().flatten().cloned());
        let (Ok(keys), true) = (keys, absent.is_empty()) else {
            return Ok(Err(absent));
        };
        self.only(members, &parts, "KEY_")?;
        for number in 0..keys {
            complete!(self.any(path, members, &format!("KEY_{number}"))?);
        }
        let mut lengths = Vec::new();
        for name in parts {
            let array = self.array(members, name)?;
            lengths.push(self.integers(path, name, array)?);
        }
        if let [segments, permutation, unique] = lengths.as_slice() {
            check_starts(segments, permutation.len())?;
            if segments.len() != unique.len() {
                let (a, b) = (segments.len(), unique.len());
                return Err(invalid(format!("{a} segments and {b} unique keys")));
            }
        }
        let mut attributes = marks(Type::GroupBy);
        attributes.push(NewAttribute::int("NumKeys", keys as i64));
        self.new.mark(path, attributes);
        Ok(Ok(()))
    }

    /// One level is an Index, more are a MultiIndex.
    fn index(&mut self, path: &[String], members: &Members<'_>) -> Result<Complete> {
        let levels = complete!(numbered(members, "IDX_"));
        self.only(members, &[], "IDX_")?;
        for number in 0..levels {
            complete!(self.any(path, members, &format!("IDX_{number}"))?);
        }
        let object = if levels == 1 {
            Type::Index
        } else {
            Type::MultiIndex
        };
        let mut attributes = marks(object);
        attributes.push(NewAttribute::int("NumIdx", levels as i64));
        self.new.mark(path, attributes);
        Ok(Ok(()))
    }

    /// Columns of any name, and the index, with which it is complete; what comes later makes it another one.
    fn data_frame(&mut self, path: &[String], members: &Members<'_>) -> Result<Complete> {
        complete!(missing(members, &[INDEX]));
        complete!(self.any(path, members, INDEX)?);
        let rows = self.rows(&below(path, INDEX));
        if !self.is_index(members)? {
            return Err(invalid("Index must be numbers or strings"));
        }
        let mut columns = 0;
        for &name in members.keys().filter(|name| **name != INDEX) {
            if name.contains(',') {
                return Err(invalid(format!(
                    "{name}: no comma can be in the name of a column"
                )));
            }
            complete!(self.any(path, members, name)?);
            let here = self.rows(&below(path, name));
            if here != rows {
                let (here, rows) = (here.unwrap_or(0), rows.unwrap_or(0));
                return Err(invalid(format!("{name} has {here} rows, Index {rows}")));
            }
            columns += 1;
        }
        let mut attributes = marks(Type::DataFrame);
        attributes.push(NewAttribute::int("NumCols", columns));
        self.new.mark(path, attributes);
        Ok(Ok(()))
    }

    /// Whether the index of a DataFrame is of a kind that Arkouda reads there: `HDF5Msg.chpl` lines 1911 to 1946.
    fn is_index(&self, members: &Members<'_>) -> Result<bool> {
        let Some(index) = members.get(INDEX) else {
            return Ok(false);
        };
        if index.file.is_some() {
            let kind = self.open(index, INDEX)?.kind();
            let known = [Kind::Int, Kind::Uint, Kind::Float, Kind::Bytes, Kind::Text];
            return Ok(kind.is_some_and(|kind| known.contains(&kind)));
        }
        match index.below.get("values") {
            Some(values) if values.file.is_some() => {
                Ok(self.open(values, "values")?.dtype == strings::bytes())
            }
            _ => Ok(false),
        }
    }

    /// How many rows a column has that was just added.
    fn rows(&self, path: &[String]) -> Option<u64> {
        let find = |path: &[String]| {
            let mut datasets = self.new.outline.datasets.iter();
            datasets.find(|dataset| dataset.path == path)
        };
        let counted = ["codes", "segments", "Limb_0"].map(|name| below(path, name));
        let dataset = find(path).or_else(|| counted.iter().find_map(|path| find(path)))?;
        dataset.shape.first().copied()
    }

    /// Limbs of equal length, the lowest first.
    fn bigint(&mut self, path: &[String], members: &Members<'_>) -> Result<Complete> {
        let limbs = complete!(numbered(members, "Limb_"));
        self.only(members, &[], "Limb_")?;
        let mut length = None;
        for number in 0..limbs {
            let name = format!("Limb_{number}");
            let array = self.array(members, &name)?;
            if array.dtype != limb() {
                let dtype = array.dtype.name();
                return Err(invalid(format!("{name} is {dtype}, and must be <u8")));
            }
            let here = vector(&name, &array)?;
            if *length.get_or_insert(here) != here {
                return Err(invalid(format!("{name} has another length than Limb_0")));
            }
            let data = array.data.clone();
            numbers(self.new, &below(path, &name), &array, Type::Pdarray, data)?;
        }
        self.mark_bigint(path, limbs);
        Ok(Ok(()))
    }

    /// Limbs that stand side by side, the lowest first.
    fn columns(&mut self, path: &[String], array: &Array, (len, limbs): (u64, u64)) -> Result<()> {
        let count = usize::try_from(limbs)
            .ok()
            .filter(|n| (1..=LIMBS).contains(n));
        let count = count.ok_or_else(|| invalid(format!("big integers of {limbs} limbs")))?;
        for number in 0..count {
            let take = move |_, from: &[u8], to: &mut [u8]| {
                let rows = from.chunks_exact(8 * count).zip(to.chunks_exact_mut(8));
                for (row, place) in rows {
                    place.copy_from_slice(row.get(8 * number..8 * number + 8).unwrap_or(&[0; 8]));
                }
                Ok(())
            };
            let column = Array {
                dtype: limb(),
                shape: vec![len],
                data: Mapped::content(array.data.clone(), 8 * count, 8, take),
            };
            let path = below(path, &format!("Limb_{number}"));
            let data = column.data.clone();
            numbers(self.new, &path, &column, Type::Pdarray, data)?;
        }
        self.mark_bigint(path, limbs);
        Ok(())
    }

    fn mark_bigint(&mut self, path: &[String], limbs: u64) {
        let mut attributes = marks(Type::Pdarray);
        attributes.push(NewAttribute::int("isBigInt", 1));
        attributes.push(NewAttribute::int("MaxBits", -1));
        attributes.push(NewAttribute::int("NumLimbs", limbs as i64));
        self.new.mark(path, attributes);
    }
}

/// The type of a limb.
fn limb() -> DType {
    DType::scalar(Kind::Uint, 8, Order::Little)
}

fn below(path: &[String], name: &str) -> Vec<String> {
    let mut path = path.to_vec();
    path.push(name.to_owned());
    path
}

/// Starts never fall, and stay within what they point into.
fn check_starts(segments: &Integers, len: u64) -> Result<()> {
    let mut before = 0;
    segments.each(|number, start| {
        if start < before || u64::try_from(start).is_ok_and(|start| start > len) {
            return Err(invalid(format!(
                "segment {number} is {start}, the one before {before}, there are {len} values"
            )));
        }
        before = start;
        Ok(())
    })
}
