//! Writing elements of AnnData: arrays, sparse matrices, categoricals and masked arrays.
//!
//! Source: anndata 0.12, `docs/fileformat-prose`. The file of a layer has the element at its path and a root group
//! marked as `anndata`, so that it is shown in its final form.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::marks::{INDEX, Marks, ORDERED, SHAPE, TYPE, VERSION};
use super::slot::{Place, Role, behind_modality, check_name, directory};
use crate::formats::sparse::SparseOrder;
use crate::formats::sparse::{self, CheckedMatrix, SparseMembers};
use crate::store::base::{Base, invalid, unsupported};
use crate::store::encode::add_dataset;
use crate::store::encode::array::NpyArray;
use crate::store::encode::integers::Integers;
use crate::store::encode::{ObjectKey, Plan, single, text, ucs4};
use crate::store::object::NewFile;
use crate::store::part::Part;
use crate::store::target::Deletion;
use crate::tree::Directory;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_hdf5::{NewAttribute, NewDataset};
use npyfs_io::content::InMemory;

/// The most categories that are compared: pandas' codes cannot number more.
const MOST_CATEGORIES: u64 = 1 << 31;

/// Returns an attribute that is one text.
fn text_attribute(name: &str, value: &str) -> NewAttribute {
    let letters = value.chars().map(u32::from);
    let data = letters.flat_map(u32::to_le_bytes).collect();
    NewAttribute::new(name, DType::text(value.chars().count()), &[], data)
}

/// Returns the attributes that record the encoding of an element.
pub(super) fn encoding(name: &str, version: &str) -> Vec<NewAttribute> {
    vec![text_attribute(TYPE, name), text_attribute(VERSION, version)]
}

/// Marks a file as AnnData.
pub(super) fn mark_file(new: &mut NewFile) {
    for attribute in encoding("anndata", "0.1.0") {
        new.mark_root(attribute);
    }
}

pub(super) fn plan(base: &dyn Base, key: &ObjectKey, parts: &[Part]) -> Result<Plan> {
    check_name(base, key.path())?;
    let place = Place::find(base, key.path())?;
    let mut new = NewFile::default();
    mark_file(&mut new);
    let is_archive = parts.iter().any(|part| part.place.suffix == ".npz");
    // The labels of a categorical are derived from its members.
    let members: Vec<Part> = parts
        .iter()
        .filter(|part| !part.place.member.is_empty())
        .cloned()
        .collect();
    let has = |names: &[&str]| {
        members
            .iter()
            .any(|part| names.contains(&part.place.member.as_str()))
    };
    if members.is_empty() && !is_archive {
        let array = NpyArray::open(base, &single(parts)?.content)?;
        place.check(&array.shape)?;
        if place.role == Role::Index && !text::is_text(&array) {
            return Err(invalid("the index of a table is text"));
        }
        add_array(&mut new, key.path(), &array)?;
        return Ok(Plan::Complete(new));
    }
    if place.role == Role::Index {
        return Err(invalid("the index of a table is one .npy file of text"));
    }
    let missing = if is_archive || has(&sparse::MEMBERS) {
        sparse(base, key, parts, &place, &mut new)?
    } else if has(&["codes", "categories"]) {
        categorical(base, key, &members, &place, &mut new)?
    } else if has(&["values", "mask"]) {
        nullable(base, key, &members, &place, &mut new)?
    } else {
        let name = members.first().map_or("", |part| &part.place.member);
        return Err(invalid(format!(
            "no element of AnnData has a member {name}: a sparse matrix has data, indices, indptr and shape, \
             a categorical codes and categories, an array with missing values values and mask"
        )));
    };
    Ok(match missing {
        Some(missing) => Plan::Incomplete(missing),
        None => Plan::Complete(new),
    })
}

/// Adds an array with the attributes that anndata needs to read it.
fn add_array(new: &mut NewFile, path: &[String], array: &NpyArray) -> Result<()> {
    let is_scalar = array.shape.is_empty();
    let (name, version) = match array.kind() {
        None => ("rec-array", "0.2.0"),
        Some(Kind::Text | Kind::Bytes) if is_scalar => ("string", "0.2.0"),
        Some(Kind::Text | Kind::Bytes) => ("string-array", "0.2.0"),
        Some(Kind::Datetime | Kind::Timedelta | Kind::Void) => {
            let dtype = array.dtype.name();
            let why = format!("AnnData has no elements of type {dtype}: store numbers or text");
            return Err(unsupported(why));
        }
        Some(_) if is_scalar => ("numeric-scalar", "0.2.0"),
        Some(_) => ("array", "0.2.0"),
    };
    add_dataset(new, path, &array.little())?;
    if let Some(dataset) = new.outline.datasets.last_mut() {
        dataset.attributes.extend(encoding(name, version));
    }
    Ok(())
}

type Found = std::result::Result<[NpyArray; 2], Vec<String>>;

/// Finds two members, or returns the names of the missing ones.
fn pair(base: &dyn Base, members: &[Part], names: [&str; 2]) -> Result<Found> {
    let find = |name: &str| members.iter().find(|part| part.place.member == name);
    if let Some(other) = members
        .iter()
        .find(|part| !names.contains(&part.place.member.as_str()))
    {
        let other = &other.place.member;
        return Err(invalid(format!(
            "an element with {} has no member {other}",
            names.join(" and ")
        )));
    }
    let missing = names.iter().filter(|name| find(name).is_none());
    let missing: Vec<String> = missing.map(|&name| name.to_owned()).collect();
    let open = |name: &str| match find(name) {
        Some(part) => NpyArray::open(base, &part.content).map_err(|e| e.about(name)),
        None => Err(invalid(format!("{name} is missing"))),
    };
    if !missing.is_empty() {
        return Ok(Err(missing));
    }
    Ok(Ok([open(names[0])?, open(names[1])?]))
}

fn categorical(
    base: &dyn Base,
    key: &ObjectKey,
    members: &[Part],
    place: &Place,
    new: &mut NewFile,
) -> Result<Option<Vec<String>>> {
    let [codes, categories] = match pair(base, members, ["codes", "categories"])? {
        Ok(found) => found,
        Err(missing) => return Ok(Some(missing)),
    };
    place.check(&codes.shape).map_err(|e| e.about("codes"))?;
    if categories.shape.len() != 1 {
        return Err(invalid(format!(
            "categories of shape {:?}",
            categories.shape
        )));
    }
    check_unique(&categories)?;
    let count = categories.elements();
    Integers::new("codes", codes.clone())?.each(|row, code| {
        if code == -1 || u64::try_from(code).is_ok_and(|code| code < count) {
            return Ok(());
        }
        Err(invalid(format!(
            "code {code} in row {row}, there are {count} categories"
        )))
    })?;
    let codes = match codes.kind() {
        // pandas uses signed codes only.
        Some(Kind::Uint) => NpyArray {
            data: Integers::new("codes", codes.clone())?.wide(),
            dtype: DType::int(8),
            ..codes
        },
        _ => codes,
    };
    // Whether the categories are ordered is not a member: it stays unchanged.
    let is_ordered = match directory(base, key.path())? {
        Some(dir) => {
            let attributes = dir.attributes()?;
            let ordered = Marks(&attributes).value(ORDERED).cloned();
            ordered.is_some_and(|value| value.shape.is_empty() && value.data.first() == Some(&1))
        }
        None => false,
    };
    add_categorical(new, key, (&codes, &categories), is_ordered).map(|()| None)
}

fn add_categorical(
    new: &mut NewFile,
    key: &ObjectKey,
    (codes, categories): (&NpyArray, &NpyArray),
    is_ordered: bool,
) -> Result<()> {
    add_array(new, &key.below("codes"), codes)?;
    add_array(new, &key.below("categories"), categories)?;
    let mut marks = encoding("categorical", "0.2.0");
    let bool = DType::scalar(Kind::Bool, 1, Order::None);
    let ordered = NewAttribute::new(ORDERED, bool, &[], vec![u8::from(is_ordered)]);
    marks.push(ordered);
    new.mark(key.path(), marks);
    Ok(())
}

/// Returns the categorical that anndata makes of a column of text when it writes the table that `dir` is: there are
/// fewer different texts than rows. The categories are in the order that anndata gives them, in which a2 is before a10.
pub(super) fn exported(
    dir: &dyn Directory,
    key: &ObjectKey,
    array: &NpyArray,
) -> Result<Option<NewFile>> {
    let names = behind_modality(key.path()).iter().map(String::as_str);
    let name = match names.collect::<Vec<_>>()[..] {
        ["obs" | "var", name] | ["raw", "var", name] => name,
        _ => return Ok(None),
    };
    let &[rows] = array.shape.as_slice() else {
        return Ok(None);
    };
    let index = Marks(&dir.attributes()?).text(INDEX);
    if !text::is_text(array) || index.as_deref() == Some(name) {
        return Ok(None);
    }
    let mut numbers: BTreeMap<String, u64> = BTreeMap::new();
    let mut is_utf8 = true;
    text::each(array, |_, text| {
        match std::str::from_utf8(text) {
            Ok(text) if numbers.contains_key(text) => {}
            Ok(text) => drop(numbers.insert(text.to_owned(), 0)),
            Err(_) => is_utf8 = false,
        }
        Ok(())
    })?;
    let count = numbers.len() as u64;
    if !is_utf8 || count >= rows || count >= MOST_CATEGORIES {
        return Ok(None);
    }
    let mut ordered: Vec<&String> = numbers.keys().collect();
    ordered.sort_by_cached_key(|&text| natural(text));
    let ordered: Vec<String> = ordered.into_iter().cloned().collect();
    for (text, at) in ordered.iter().zip(0..) {
        numbers.insert(text.clone(), at);
    }
    // The types that pandas has for codes.
    let size = [(1, 0x80), (2, 0x8000)]
        .into_iter()
        .find_map(|(size, most)| (count < most).then_some(size))
        .unwrap_or(4);
    let mut codes = Vec::new();
    text::each(array, |_, text| {
        let text = std::str::from_utf8(text).unwrap_or_default();
        let code = numbers.get(text).copied().unwrap_or(0).to_le_bytes();
        codes.extend_from_slice(&code[..size]);
        Ok(())
    })?;
    let (dtype, categories) = ucs4::elements(&ordered);
    let array = |dtype, rows, data| NpyArray {
        dtype,
        shape: vec![rows],
        data: Arc::new(InMemory(data)),
    };
    let categories = array(dtype, count, categories);
    let codes = array(DType::int(size), rows, codes);
    let mut new = NewFile::default();
    add_categorical(&mut new, key, (&codes, &categories), false)?;
    Ok(Some(new))
}

/// Returns the parts of a text by which it is ordered: texts, and between them the lengths and digits of whole numbers.
fn natural(text: &str) -> Vec<(&str, usize, &str)> {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let number = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (before, from) = rest.split_at(number);
        let end = from
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(from.len());
        let (digits, after) = from.split_at(end);
        let digits = digits.trim_start_matches('0');
        parts.push((before, digits.len(), digits));
        rest = after;
    }
    parts
}

/// Checks that the categories are unique.
fn check_unique(categories: &NpyArray) -> Result<()> {
    let size = categories.dtype.size();
    if categories.elements() > MOST_CATEGORIES {
        return Err(invalid("too many categories"));
    }
    let mut seen = HashSet::new();
    let mut number = 0_u64;
    text::windows(categories, size, |block| {
        for category in block.chunks_exact(size.max(1)) {
            if !seen.insert(xxhash_rust::xxh3::xxh3_128(category)) {
                return Err(invalid(format!("category {number} is there twice")));
            }
            number += 1;
        }
        Ok(())
    })
}

fn nullable(
    base: &dyn Base,
    key: &ObjectKey,
    members: &[Part],
    place: &Place,
    new: &mut NewFile,
) -> Result<Option<Vec<String>>> {
    let [values, mask] = match pair(base, members, ["values", "mask"])? {
        Ok(found) => found,
        Err(missing) => return Ok(Some(missing)),
    };
    place.check(&values.shape).map_err(|e| e.about("values"))?;
    if mask.kind() != Some(Kind::Bool) || mask.shape != values.shape {
        let (dtype, shape) = (mask.dtype.name(), &mask.shape);
        return Err(invalid(format!(
            "mask is {dtype} of shape {shape:?}, for values of shape {:?}: it is one boolean for each",
            values.shape
        )));
    }
    let name = match values.kind() {
        Some(Kind::Int | Kind::Uint) => "nullable-integer",
        Some(Kind::Bool) => "nullable-boolean",
        Some(Kind::Text | Kind::Bytes) => "nullable-string-array",
        _ => {
            let dtype = values.dtype.name();
            let why = format!("AnnData has no values of type {dtype} with a mask");
            return Err(unsupported(why));
        }
    };
    add_array(new, &key.below("values"), &values)?;
    add_array(new, &key.below("mask"), &mask)?;
    new.mark(key.path(), encoding(name, "0.1.0"));
    Ok(None)
}

fn sparse(
    base: &dyn Base,
    key: &ObjectKey,
    parts: &[Part],
    place: &Place,
    new: &mut NewFile,
) -> Result<Option<Vec<String>>> {
    let SparseMembers { arrays, order } = match sparse::members(base, parts)? {
        Ok(found) => found,
        Err(missing) => return Ok(Some(missing)),
    };
    let order = match order {
        Some(order) => order,
        None => {
            let there = directory(base, key.path())?;
            let attributes = there.map_or(Ok(Vec::new()), |dir| dir.attributes())?;
            Marks(&attributes)
                .sparse_order()
                .unwrap_or(SparseOrder::Csr)
        }
    };
    let [.., shape] = &arrays;
    let mut dimensions = Vec::new();
    Integers::new("shape", shape.clone())?.each(|_, n| {
        let n = u64::try_from(n).map_err(|_| invalid("shape is negative"))?;
        dimensions.push(n);
        if dimensions.len() > 2 {
            return Err(invalid("a sparse matrix has two dimensions"));
        }
        Ok(())
    })?;
    let &[rows, columns] = dimensions.as_slice() else {
        return Err(invalid(format!("shape is {dimensions:?}")));
    };
    if place.role == Role::Column {
        return Err(invalid("a column of a table is no sparse matrix"));
    }
    place.check(&dimensions)?;
    let CheckedMatrix {
        data,
        indices,
        indptr,
        ..
    } = sparse::check(arrays, order, (rows, columns), numbers)?;
    let values = data.elements();
    new.add(
        NewDataset::new(&key.below("data"), data.dtype.clone(), &[values]),
        data.data,
    );
    for (name, numbers) in [("indices", indices), ("indptr", indptr)] {
        // scipy uses the same type for both: one of these two.
        let (dtype, content) = match numbers.is(&DType::int(4)) {
            true => (DType::int(4), numbers.data().clone()),
            false => (DType::int(8), numbers.wide()),
        };
        new.add(
            NewDataset::new(&key.below(name), dtype, &[numbers.len()]),
            content,
        );
    }
    let mut marks = encoding(&format!("{}_matrix", order.name()), "0.1.0");
    let dims = [rows, columns].map(u64::to_le_bytes).concat();
    marks.push(NewAttribute::new(SHAPE, DType::int(8), &[2], dims));
    new.mark(key.path(), marks);
    Ok(None)
}

/// Rejects types that scipy's sparse matrices do not support.
fn numbers(array: &NpyArray) -> Result<NpyArray> {
    match array.scalar() {
        Some((Kind::Bool | Kind::Int | Kind::Uint, ..) | (Kind::Float, 4 | 8, _)) => {
            Ok(array.little())
        }
        Some((Kind::Complex, 8 | 16, Order::Little)) => Ok(array.clone()),
        _ => {
            let name = array.dtype.name();
            Err(unsupported(format!(
                "no sparse matrix has elements of type {name}"
            )))
        }
    }
}

/// Returns the effect of deleting a file: the index of a table cannot be deleted.
pub(super) fn deletion(base: &dyn Base, key: &ObjectKey) -> Result<Deletion> {
    if Place::find(base, key.path())?.role == Role::Index {
        let table = key.group().join("/");
        let why = format!("it is the index of {table}, which all of {table} lies along");
        return Err(Error::new(ErrorKind::Os(libc::ENOTEMPTY), why));
    }
    Ok(Deletion::Object)
}
