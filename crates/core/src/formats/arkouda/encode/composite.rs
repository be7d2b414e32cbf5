//! Objects that are directories of members: which members make up which object, and when it is complete.

mod categorical;
mod data_frame;
mod group_by;

use super::limbs::{MAX_BITS, limb};
use super::members::{
    Complete, INDEX, WrittenMember, WrittenMembers, complete, is_member, missing, names,
};
use super::was::{Was, recode, type_over};
use super::{Type, add as add_array, marks, numbers, strings};
use crate::store::base::{Base, invalid};
use crate::store::encode::ObjectKey;
use crate::store::encode::array::NpyArray;
use crate::store::encode::integers::Integers;
use crate::store::object::NewFile;
use crate::store::part::Part;
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::{DType, Kind};
use npyfs_hdf5::{NewAttribute, NewDataset};

/// Adds the object that its members make up.
pub(super) fn add(
    new: &mut NewFile,
    base: &dyn Base,
    key: &ObjectKey,
    parts: &[Part],
) -> Result<Complete> {
    let was = Was::of(base, &[key.name().to_owned()])?;
    let first = |part: &Part| {
        part.place
            .member
            .split('/')
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    let mut new_names = parts.iter().filter(|part| !part.stored).map(first);
    // Members of an object of another kind do not belong to the new one.
    let goes_on = new_names.all(|name| name.is_empty() || was.may_have(&name));
    let mut members = WrittenMembers::new();
    for part in parts.iter().filter(|part| goes_on || !part.stored) {
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
    let above = key.group().len();
    let mut writer = CompositeWriter { new, base, above };
    // A DataFrame has columns of any name, and is not part of another object.
    if members.contains_key(INDEX) || !members.keys().any(|name| is_member(name)) {
        return writer.data_frame(key.path(), &members);
    }
    writer.object(key.path(), &members)
}

/// Adds an object that is a single file. If its elements leave the kind open, it keeps the kind of the present object.
pub(super) fn add_file(
    new: &mut NewFile,
    base: &dyn Base,
    key: &ObjectKey,
    array: &NpyArray,
) -> Result<()> {
    let was = Was::of(base, &[key.name().to_owned()])?;
    let above = key.group().len();
    CompositeWriter { new, base, above }.add(key.path(), array, &was)
}

pub(super) struct CompositeWriter<'a> {
    pub new: &'a mut NewFile,
    base: &'a dyn Base,
    /// The number of names that lead to the group of the object.
    above: usize,
}

impl CompositeWriter<'_> {
    fn object(&mut self, path: &[String], members: &WrittenMembers<'_>) -> Result<Complete> {
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
        } else if has("IPv4") {
            self.named(path, members, "IPv4", Type::IPv4)
        } else if has("ArrayView") {
            self.named(path, members, "ArrayView", Type::ArrayView)
        } else if has(MAX_BITS) {
            Ok(Err(vec!["Limb_0".into()]))
        } else if has("permutation") {
            Ok(Err(vec!["unique_key_idx".into(), "KEY_0".into()]))
        } else {
            self.values(path, members)
        }
    }

    fn open(&self, member: &WrittenMember<'_>, name: &str) -> Result<NpyArray> {
        let part = member
            .file
            .ok_or_else(|| invalid(format!("{name} is an array")))?;
        NpyArray::open(self.base, &part.content).map_err(|e| e.about(name))
    }

    /// Adds numbers in a file whose name tells their kind.
    fn named(
        &mut self,
        path: &[String],
        members: &WrittenMembers<'_>,
        name: &str,
        object: Type,
    ) -> Result<Complete> {
        self.only(members, &[name], "")?;
        let array = self.array(members, name)?;
        let was = Was {
            object_type: Some(object as i64),
            ..Was::default()
        };
        if type_over(&was, &array).is_none() {
            let (dtype, shape) = (array.dtype.name(), &array.shape);
            return Err(invalid(format!(
                "{name} cannot be {dtype} of shape {shape:?}"
            )));
        }
        numbers(self.new, path, &array.little(), object, array.little().data)?;
        Ok(Ok(()))
    }

    pub(super) fn array(&self, members: &WrittenMembers<'_>, name: &str) -> Result<NpyArray> {
        match members.get(name) {
            Some(member) => self.open(member, name),
            None => Err(invalid(format!("{name} is missing"))),
        }
    }

    /// Checks that there are no other members.
    pub(super) fn only(
        &self,
        members: &WrittenMembers<'_>,
        names: &[&str],
        prefix: &str,
    ) -> Result<()> {
        let other = members
            .keys()
            .find(|name| !names.contains(name) && (prefix.is_empty() || !name.starts_with(prefix)));
        match other {
            Some(other) => Err(invalid(format!("{other} is no member of such an object"))),
            None => Ok(()),
        }
    }

    /// Adds a member of any kind: an array, or an object with members.
    fn any(
        &mut self,
        path: &[String],
        members: &WrittenMembers<'_>,
        name: &str,
    ) -> Result<Complete> {
        let path = below(path, name);
        let Some(member) = members.get(name) else {
            return Ok(Err(vec![name.to_owned()]));
        };
        // Both forms are equivalent. The file is the simpler one, but labels lose their codes.
        let done = match member.file {
            Some(_) if !member.is_more_than_its_file() => {
                let array = self.open(member, name)?;
                let was = self.was(&path)?;
                match array.shape.as_slice() {
                    // A part of an object has one dimension; two are how big integers are shown.
                    &[len, limbs] if array.dtype == limb() && !was.is(Type::ArrayView) => {
                        let bits = if was.is_bigint { was.max_bits } else { -1 };
                        self.columns(&path, &array, (len, limbs), bits).map(Ok)
                    }
                    _ => self.add(&path, &array, &was).map(Ok),
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

    /// Returns the present object at a path.
    fn was(&self, path: &[String]) -> Result<Was> {
        Was::of(self.base, path.get(self.above..).unwrap_or_default())
    }

    /// Adds an array. If its elements leave the kind open, it keeps the kind of the present object.
    pub(super) fn add(&mut self, path: &[String], array: &NpyArray, was: &Was) -> Result<()> {
        if let Some(object) = type_over(was, array) {
            let array = array.little();
            return numbers(self.new, path, &array, object, array.data.clone());
        }
        match (array.kind(), array.shape.as_slice()) {
            (Some(Kind::Uint), &[len, limbs])
                if was.is_bigint && array.little().dtype == limb() =>
            {
                self.columns(path, array, (len, limbs), was.max_bits)
            }
            (Some(Kind::Uint), &[len]) if was.is_bigint && array.little().dtype == limb() => {
                self.columns(path, array, (len, 1), was.max_bits)
            }
            (Some(Kind::Bytes | Kind::Text), &[_]) if was.is(Type::Categorical) => {
                let inside = path.get(self.above..).unwrap_or_default();
                recode(self.new, self.base, (path, inside), array)
            }
            _ => add_array(self.new, self.base, path, array),
        }
    }

    fn vector(&self, members: &WrittenMembers<'_>, name: &str) -> Result<Integers> {
        Integers::new(name, self.array(members, name)?)
    }

    /// Adds a vector of 64-bit integers.
    fn integers(&mut self, path: &[String], name: &str, array: NpyArray) -> Result<Integers> {
        let integers = Integers::new(name, array)?;
        self.put_integers(path, name, &integers);
        Ok(integers)
    }

    fn put_integers(&mut self, path: &[String], name: &str, integers: &Integers) {
        let mut dataset = NewDataset::new(&below(path, name), DType::int(8), &[integers.len()]);
        dataset.attributes = marks(Type::Pdarray);
        self.new.add(dataset, integers.wide());
    }

    /// Adds strings, if the values are bytes; otherwise a SegArray.
    fn values(&mut self, path: &[String], members: &WrittenMembers<'_>) -> Result<Complete> {
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

    /// Returns the number of elements of an object that was just added, and whether they are booleans.
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

    /// Returns the number of rows of a column that was just added.
    fn rows(&self, path: &[String]) -> Option<u64> {
        let find = |path: &[String]| {
            let mut datasets = self.new.outline.datasets.iter();
            datasets.find(|dataset| dataset.path == path)
        };
        let counted = ["codes", "segments", "Limb_0"].map(|name| below(path, name));
        let dataset = find(path).or_else(|| counted.iter().find_map(|path| find(path)))?;
        dataset.shape.first().copied()
    }
}

pub(super) fn below(path: &[String], name: &str) -> Vec<String> {
    let mut path = path.to_vec();
    path.push(name.to_owned());
    path
}

/// Checks that starts do not decrease, and stay within the values.
pub(super) fn check_starts(segments: &Integers, len: u64) -> Result<()> {
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
