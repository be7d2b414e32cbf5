//! Objects that are directories of members: which members make up which object, and when it is complete.
//!
//! `RowKeys` has the keys of a GroupBy as a number for each row: it says which rows Arkouda may consider equal, and
//! which it may not. Integers of more than 64 bits are a group of limbs, lowest first.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::present::{PresentObject, recode, type_over};
use super::{
    CATEGORICAL, Complete, GROUPED, INDEX, MAX_BITS, Type, WrittenMember, WrittenMembers,
    add as add_array, add_string_members, below, bytes_dtype, complete, grouping, is_member, marks,
    missing, names, numbered, numbers, vector,
};
use crate::store::base::{Base, invalid};
use crate::store::encode::ObjectKey;
use crate::store::encode::array::NpyArray;
use crate::store::encode::contents::MappedElements;
use crate::store::encode::integers::Integers;
use crate::store::encode::text::windows;
use crate::store::object::NewFile;
use crate::store::part::Part;
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_hdf5::{NewAttribute, NewDataset, NewElement};

/// Adds the object that its members make up.
pub(super) fn add(
    new: &mut NewFile,
    base: &dyn Base,
    key: &ObjectKey,
    parts: &[Part],
) -> Result<Complete> {
    let was = PresentObject::find(base, &[key.name().to_owned()])?;
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
    let was = PresentObject::find(base, &[key.name().to_owned()])?;
    let above = key.group().len();
    CompositeWriter { new, base, above }.add(key.path(), array, &was)
}

struct CompositeWriter<'a> {
    new: &'a mut NewFile,
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
        let was = PresentObject {
            object_type: Some(object as i64),
            ..PresentObject::default()
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

    fn array(&self, members: &WrittenMembers<'_>, name: &str) -> Result<NpyArray> {
        match members.get(name) {
            Some(member) => self.open(member, name),
            None => Err(invalid(format!("{name} is missing"))),
        }
    }

    /// Checks that there are no other members.
    fn only(&self, members: &WrittenMembers<'_>, names: &[&str], prefix: &str) -> Result<()> {
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
                    &[len, limbs] if array.dtype == limb_dtype() && !was.is(Type::ArrayView) => {
                        let bits = if was.is_bigint { was.max_bits } else { -1 };
                        add_limbs(self.new, &path, &array, (len, limbs), bits).map(Ok)
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
    fn was(&self, path: &[String]) -> Result<PresentObject> {
        PresentObject::find(self.base, path.get(self.above..).unwrap_or_default())
    }

    /// Adds an array. If its elements leave the kind open, it keeps the kind of the present object.
    fn add(&mut self, path: &[String], array: &NpyArray, was: &PresentObject) -> Result<()> {
        if let Some(object) = type_over(was, array) {
            let array = array.little();
            return numbers(self.new, path, &array, object, array.data.clone());
        }
        match (array.kind(), array.shape.as_slice()) {
            (Some(Kind::Uint), &[len, limbs])
                if was.is_bigint && array.little().dtype == limb_dtype() =>
            {
                add_limbs(self.new, path, array, (len, limbs), was.max_bits)
            }
            (Some(Kind::Uint), &[len]) if was.is_bigint && array.little().dtype == limb_dtype() => {
                add_limbs(self.new, path, array, (len, 1), was.max_bits)
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
            if values.dtype == bytes_dtype() {
                add_string_members(self.new, path, &values, segments)?;
                return Ok(Ok(()));
            }
        }
        complete!(self.any(path, members, "values")?);
        let values = below(path, "values");
        let (count, is_bool) = self.stored(&values);
        let segments = self.integers(path, "segments", segments)?;
        grouping::check_starts(&segments, count)?;
        let mut attributes = marks(Type::SegArray);
        if is_bool {
            attributes.push(NewAttribute::int("isBool", 1));
        }
        self.new.mark(path, attributes);
        Ok(Ok(()))
    }

    /// Adds codes, their categories, and the grouping of the codes.
    fn categorical(&mut self, path: &[String], members: &WrittenMembers<'_>) -> Result<Complete> {
        complete!(missing(members, &CATEGORICAL[..3]));
        self.only(members, &CATEGORICAL, "")?;
        let mut grouping = CATEGORICAL[3..].iter().filter_map(|name| members.get(name));
        let stored = grouping.by_ref().all(WrittenMember::is_stored);
        if members.contains_key("permutation") != members.contains_key("segments") && !stored {
            return Ok(missing(members, &CATEGORICAL[3..]));
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
        let na = self.array(members, "NA_Codes")?;
        self.integers(path, "NA_Codes", na)?;
        let new_codes = members.get("codes").is_some_and(|codes| !codes.is_stored());
        match CATEGORICAL[3..]
            .iter()
            .filter(|name| members.contains_key(**name))
            .count()
        {
            2 => {
                let permutation = self.vector(members, "permutation")?;
                let segments = self.vector(members, "segments")?;
                // The stored grouping is that of the old codes.
                let stale =
                    stored && new_codes && !grouping::fits(&codes, &permutation, &segments)?;
                if !stale {
                    grouping::check(codes.len(), "codes", &permutation, &segments)?;
                    self.put_integers(path, "permutation", &permutation);
                    self.put_integers(path, "segments", &segments);
                }
            }
            // The other one was deleted: Arkouda reads neither.
            1 if !new_codes => {
                for name in CATEGORICAL[3..]
                    .iter()
                    .filter(|name| members.contains_key(**name))
                {
                    let left = self.vector(members, name)?;
                    self.put_integers(path, name, &left);
                }
            }
            _ => {}
        }
        self.new.mark(path, marks(Type::Categorical));
        Ok(Ok(()))
    }

    /// Adds keys, and the groups of equal rows.
    fn group_by(&mut self, path: &[String], members: &WrittenMembers<'_>) -> Result<Complete> {
        let parts = GROUPED;
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
            for number in 0..keys {
                let name = format!("KEY_{number}");
                let rows = self.rows(&below(path, &name)).unwrap_or(0);
                if rows != permutation.len() {
                    let all = permutation.len();
                    let why = format!("{name} has {rows} elements, permutation {all}");
                    return Err(invalid(why));
                }
            }
            grouping::check(permutation.len(), "the keys", permutation, segments)?;
            grouping::within("unique_key_idx", unique, permutation.len())?;
            if segments.len() != unique.len() {
                let (a, b) = (segments.len(), unique.len());
                return Err(invalid(format!("{a} segments and {b} unique keys")));
            }
            let is_stored = |name: &str| members.get(name).is_none_or(WrittenMember::is_stored);
            match RowKeys::find(self.new, path, keys, permutation.len())? {
                Some(keys) => keys.check(permutation, segments, unique)?,
                // It is unknown whether it belongs to the new keys.
                None if parts.iter().any(|name| is_stored(name))
                    && !(0..keys).all(|number| is_stored(&format!("KEY_{number}"))) =>
                {
                    return Err(invalid(
                        "too many keys to compare: segments, permutation and unique_key_idx must be written with them",
                    ));
                }
                None => {}
            }
        }
        let mut attributes = marks(Type::GroupBy);
        attributes.push(NewAttribute::int("NumKeys", keys as i64));
        self.new.mark(path, attributes);
        Ok(Ok(()))
    }

    /// Adds an Index for one level, a MultiIndex for several.
    fn index(&mut self, path: &[String], members: &WrittenMembers<'_>) -> Result<Complete> {
        let levels = complete!(numbered(members, "IDX_"));
        self.only(members, &[], "IDX_")?;
        let mut rows = None;
        for number in 0..levels {
            let name = format!("IDX_{number}");
            complete!(self.any(path, members, &name)?);
            let here = self.rows(&below(path, &name)).unwrap_or(0);
            let first = *rows.get_or_insert(here);
            if first != here {
                let why = format!("{name} has {here} elements, IDX_0 {first}");
                return Err(invalid(why));
            }
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

    /// Adds columns of any name, and the index, which completes the DataFrame; a later file changes the DataFrame.
    fn data_frame(&mut self, path: &[String], members: &WrittenMembers<'_>) -> Result<Complete> {
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

    /// Returns whether the index of a DataFrame has a kind that Arkouda reads there: `HDF5Msg.chpl` lines 1911 to 1946.
    fn is_index(&self, members: &WrittenMembers<'_>) -> Result<bool> {
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
                Ok(self.open(values, "values")?.dtype == bytes_dtype())
            }
            _ => Ok(false),
        }
    }

    /// Adds limbs of equal length, lowest first, and the number of bits of the numbers, if given.
    fn bigint(&mut self, path: &[String], members: &WrittenMembers<'_>) -> Result<Complete> {
        let count = complete!(numbered(members, "Limb_"));
        self.only(members, &[MAX_BITS], "Limb_")?;
        let max_bits = match members.get(MAX_BITS) {
            Some(_) => self.max_bits(members)?,
            None => -1,
        };
        let mut length = None;
        for number in 0..count {
            let name = format!("Limb_{number}");
            let array = self.array(members, &name)?;
            if array.dtype != limb_dtype() {
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
        mark_limbs(self.new, path, count, max_bits);
        Ok(Ok(()))
    }

    fn max_bits(&self, members: &WrittenMembers<'_>) -> Result<i64> {
        let mut array = self.array(members, MAX_BITS)?;
        let wrong = || invalid("MaxBits is one integer: -1, or more than 0");
        if array.elements() != 1 {
            return Err(wrong());
        }
        array.shape = vec![1];
        let mut found = [0];
        Integers::new(MAX_BITS, array)?.read(0, &mut found)?;
        match found {
            [bits @ (-1 | 1..)] => Ok(bits),
            _ => Err(wrong()),
        }
    }

    /// Returns the number of elements of an object that was just added, and whether they are booleans.
    fn stored(&self, path: &[String]) -> (u64, bool) {
        let counted = [
            path.to_vec(),
            below(path, "segments"),
            below(path, "Limb_0"),
        ];
        let Some(dataset) = counted.iter().find_map(|path| self.new.dataset(path)) else {
            return (0, false);
        };
        let is_bool = dataset.attributes.iter().any(|a| a.name == "isBool");
        (dataset.shape.first().copied().unwrap_or(0), is_bool)
    }

    /// Returns the number of rows of a column that was just added.
    fn rows(&self, path: &[String]) -> Option<u64> {
        let counted = ["codes", "segments", "Limb_0"].map(|name| below(path, name));
        let counted = counted.iter().map(Vec::as_slice);
        let dataset = std::iter::once(path)
            .chain(counted)
            .find_map(|path| self.new.dataset(path))?;
        dataset.shape.first().copied()
    }
}

/// The most rows that are compared: all are in memory.
const MOST_ROWS: u64 = 8 << 20;

/// The longest string of a key, which is in memory.
const LONGEST: u64 = 64 << 20;

/// All keys together, row by row.
pub(super) struct RowKeys {
    /// Rows with equal keys have equal numbers. Zeros of both signs are equal, and so are all NaNs.
    equal: Vec<u64>,
    /// Rows with different keys have different numbers. Every NaN is different.
    different: Vec<u64>,
}

impl RowKeys {
    /// Returns the keys of an object that were just added, with this many rows; `None` if there are too many.
    pub(super) fn find(
        new: &NewFile,
        path: &[String],
        keys: u64,
        rows: u64,
    ) -> Result<Option<Self>> {
        let Some(count) = usize::try_from(rows).ok().filter(|_| rows <= MOST_ROWS) else {
            return Ok(None);
        };
        let mut all = Self {
            equal: vec![0; count],
            different: vec![0; count],
        };
        for number in 0..keys {
            let path = below(path, &format!("KEY_{number}"));
            if let Some(codes) = find(new, &path).or_else(|| find(new, &below(&path, "codes"))) {
                all.numbers(&codes)?;
            } else if let Some(segments) = find(new, &below(&path, "segments")) {
                let Some(values) = find(new, &below(&path, "values")) else {
                    return Ok(None);
                };
                all.strings(&values, &Integers::new("segments", segments)?)?;
            } else {
                for limb in 0.. {
                    match find(new, &below(&path, &format!("Limb_{limb}"))) {
                        Some(limb) => all.numbers(&limb)?,
                        None => break,
                    }
                }
            }
        }
        Ok(Some(all))
    }

    fn add(&mut self, row: usize, equal: u64, different: u64) {
        if let (Some(of), Some(not)) = (self.equal.get_mut(row), self.different.get_mut(row)) {
            *of = xxh3_64_with_seed(&equal.to_le_bytes(), *of);
            *not = xxh3_64_with_seed(&different.to_le_bytes(), *not);
        }
    }

    fn numbers(&mut self, array: &NpyArray) -> Result<()> {
        let Some((kind, size, order)) = array.scalar().filter(|(_, size, _)| *size > 0) else {
            return Ok(());
        };
        let mut row = 0;
        windows(array, size, |block| {
            for bytes in block.chunks_exact(size) {
                let own = xxh3_64(bytes);
                match float(bytes, kind, order) {
                    Some(value) if value.is_nan() => self.add(row, u64::MAX, row as u64),
                    Some(0.0) => self.add(row, 0, own),
                    _ => self.add(row, own, own),
                }
                row += 1;
            }
            Ok(())
        })
    }

    fn strings(&mut self, values: &NpyArray, segments: &Integers) -> Result<()> {
        let mut bytes = Vec::new();
        let mut before: Option<(usize, u64)> = None;
        let mut add = |row: usize, from: u64, to: u64| -> Result<()> {
            let len = to.saturating_sub(from);
            if len > LONGEST {
                return Err(invalid(format!("a key of more than {LONGEST} bytes")));
            }
            bytes.resize(usize::try_from(len).unwrap_or(0), 0);
            values.data.read_at(from, &mut bytes)?;
            let own = xxh3_64(&bytes);
            self.add(row, own, own);
            Ok(())
        };
        segments.each(|row, start| {
            let start = u64::try_from(start).unwrap_or(0);
            if let Some((row, from)) = before {
                add(row, from, start)?;
            }
            before = Some((usize::try_from(row).unwrap_or(usize::MAX), start));
            Ok(())
        })?;
        match before {
            Some((row, from)) => add(row, from, values.data.len()),
            None => Ok(()),
        }
    }

    /// Checks that rows are grouped by their keys: every row occurs once in the permutation, all rows of a group are
    /// equal, no two groups are, and the unique key of each group is one of its rows.
    pub(super) fn check(
        &self,
        permutation: &Integers,
        segments: &Integers,
        unique: &Integers,
    ) -> Result<()> {
        let read = |array: &Integers| -> Result<Vec<i64>> {
            let count = usize::try_from(array.len().min(MOST_ROWS + 1)).unwrap_or(0);
            let mut all = vec![0; count];
            array.read(0, &mut all)?;
            Ok(all)
        };
        let (starts, unique) = (read(segments)?, read(unique)?);
        let mut starts = starts.into_iter().peekable();
        let mut seen = vec![false; self.equal.len()];
        let mut groups: Vec<(u64, u64)> = Vec::new();
        let mut empty = 0;
        permutation.each(|place, row| {
            let mut begun = 0;
            while starts
                .next_if(|&start| u64::try_from(start).is_ok_and(|start| start <= place))
                .is_some()
            {
                begun += 1;
            }
            let at = usize::try_from(row).unwrap_or(usize::MAX);
            let (Some(&equal), Some(&different), Some(seen)) =
                (self.equal.get(at), self.different.get(at), seen.get_mut(at))
            else {
                return Err(invalid(format!("permutation: there is no row {row}")));
            };
            if std::mem::replace(seen, true) {
                return Err(invalid(format!("permutation has row {row} twice")));
            }
            if begun > 0 {
                empty += begun - 1;
                groups.push((equal, different));
            }
            match groups.last() {
                Some((of, _)) if *of == equal => Ok(()),
                Some(_) => Err(invalid(format!(
                    "row {row} has another key than the group that segments and permutation put it into"
                ))),
                None => Err(invalid("segments: the first group does not begin at 0")),
            }
        })?;
        let mut all: Vec<u64> = groups.iter().map(|(_, different)| *different).collect();
        all.sort_unstable();
        if all.windows(2).any(|two| two[0] == two[1]) {
            return Err(invalid("segments: two groups have the same key"));
        }
        // If a group is empty, it is unknown which group each unique key belongs to.
        if empty == 0 && groups.len() == unique.len() {
            for (number, ((of, _), row)) in groups.iter().zip(unique).enumerate() {
                let key = usize::try_from(row)
                    .ok()
                    .and_then(|row| self.equal.get(row));
                if key != Some(of) {
                    let why =
                        format!("unique_key_idx: number {number} is {row}, a row of another group");
                    return Err(invalid(why));
                }
            }
        }
        Ok(())
    }
}

/// Returns the value, if it is a float.
fn float(bytes: &[u8], kind: Kind, order: Order) -> Option<f64> {
    if kind != Kind::Float {
        return None;
    }
    let is_big = matches!(order, Order::Big);
    if let Ok(eight) = <[u8; 8]>::try_from(bytes) {
        return Some(if is_big {
            f64::from_be_bytes(eight)
        } else {
            f64::from_le_bytes(eight)
        });
    }
    let four = <[u8; 4]>::try_from(bytes).ok()?;
    Some(f64::from(if is_big {
        f32::from_be_bytes(four)
    } else {
        f32::from_le_bytes(four)
    }))
}

/// Returns a dataset of the new file.
fn find(new: &NewFile, path: &[String]) -> Option<NpyArray> {
    let mut datasets = new.outline.datasets.iter().zip(&new.data);
    let (dataset, data) = datasets.find(|(dataset, _)| dataset.path == path)?;
    let NewElement::Array(dtype) = &dataset.element else {
        return None;
    };
    let dtype: DType = dtype.clone();
    Some(NpyArray {
        dtype,
        shape: dataset.shape.clone(),
        data: data.clone(),
    })
}

/// The most limbs of a number.
const MOST_LIMBS: usize = 1024;

/// The type of a limb.
fn limb_dtype() -> DType {
    DType::scalar(Kind::Uint, 8, Order::Little)
}

/// Adds limbs in columns, lowest first. Each number has at most `max_bits`, unless that is -1.
fn add_limbs(
    new: &mut NewFile,
    path: &[String],
    array: &NpyArray,
    (len, limbs): (u64, u64),
    max_bits: i64,
) -> Result<()> {
    let count = usize::try_from(limbs)
        .ok()
        .filter(|n| (1..=MOST_LIMBS).contains(n));
    let count = count.ok_or_else(|| invalid(format!("big integers of {limbs} limbs")))?;
    let array = array.little();
    for number in 0..count {
        let unused = unused(number, max_bits);
        let take = move |first: u64, from: &[u8], to: &mut [u8]| {
            let rows = from.chunks_exact(8 * count).zip(to.chunks_exact_mut(8));
            for ((row, place), at) in rows.zip(first..) {
                let bytes = row.get(8 * number..8 * number + 8).unwrap_or(&[0; 8]);
                place.copy_from_slice(bytes);
                let value = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
                if value & unused != 0 {
                    let why = format!("number {at} has more than {max_bits} bits");
                    return Err(invalid(why));
                }
            }
            Ok(())
        };
        let column = NpyArray {
            dtype: limb_dtype(),
            shape: vec![len],
            data: MappedElements::content(array.data.clone(), 8 * count, 8, take),
        };
        let path = below(path, &format!("Limb_{number}"));
        let data = column.data.clone();
        numbers(new, &path, &column, Type::Pdarray, data)?;
    }
    mark_limbs(new, path, limbs, max_bits);
    Ok(())
}

/// Marks a group of limbs as integers.
fn mark_limbs(new: &mut NewFile, path: &[String], limbs: u64, max_bits: i64) {
    let mut attributes = marks(Type::Pdarray);
    attributes.push(NewAttribute::int("isBigInt", 1));
    attributes.push(NewAttribute::int("MaxBits", max_bits));
    attributes.push(NewAttribute::int("NumLimbs", limbs as i64));
    new.mark(path, attributes);
}

/// Returns the bits of a limb that no number has.
fn unused(limb: usize, max_bits: i64) -> u64 {
    let Ok(bits) = u64::try_from(max_bits) else {
        return 0;
    };
    match bits.saturating_sub(64 * limb as u64) {
        left @ 0..64 => u64::MAX << left,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::unused;

    #[test]
    fn bits_beyond_the_last_are_not_used() {
        assert_eq!(unused(0, -1), 0);
        assert_eq!((unused(0, 70), unused(1, 70)), (0, u64::MAX << 6));
        assert_eq!((unused(0, 64), unused(1, 64)), (0, u64::MAX));
        assert_eq!(unused(0, 1), u64::MAX << 1);
    }
}
