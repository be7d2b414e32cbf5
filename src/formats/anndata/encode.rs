//! Elements of AnnData as they are written: arrays, sparse matrices, categoricals and arrays with a mask.
//!
//! Source: anndata 0.12, `docs/fileformat-prose`. The file of a layer has the element at its path and a root group that says
//! `anndata`, so that it is shown as it will be.

use std::collections::HashSet;

use super::marks::{Marks, ORDERED, SHAPE, TYPE, VERSION};
use super::place::{Place, Role, directory};
use crate::checkout::encode::array::NpyArray;
use crate::checkout::encode::dataset::add;
use crate::checkout::encode::integers::Integers;
use crate::checkout::encode::{Base, ObjectKey, Plan, invalid, single, text, unsupported};
use crate::checkout::object::NewFile;
use crate::checkout::target::{Deletion, Part};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::sparse::SparseOrder;
use crate::formats::sparse::members::{self, Checked, SparseMembers};
use crate::hdf5::{NewAttribute, NewDataset};
use crate::npy::dtype::{DType, Kind};

/// Categories that are compared at most: pandas has no more than its codes can name.
const MOST_CATEGORIES: u64 = 1 << 31;

/// Returns an attribute that is one text.
fn text_attribute(name: &str, value: &str) -> NewAttribute {
    let letters = value.chars().map(u32::from);
    let data = letters.flat_map(u32::to_le_bytes).collect();
    NewAttribute::new(name, DType::text(value.chars().count()), &[], data)
}

/// Returns the attributes that say how an element is encoded.
pub(super) fn encoding(name: &str, version: &str) -> Vec<NewAttribute> {
    vec![text_attribute(TYPE, name), text_attribute(VERSION, version)]
}

/// Makes a file AnnData.
pub(super) fn mark_file(new: &mut NewFile) {
    for attribute in encoding("anndata", "0.1.0") {
        new.mark_root(attribute);
    }
}

pub(super) fn plan(base: &dyn Base, key: &ObjectKey, parts: &[Part]) -> Result<Plan> {
    let place = Place::of(base, key.path())?;
    let mut new = NewFile::default();
    mark_file(&mut new);
    let is_archive = parts.iter().any(|part| part.place.suffix == ".npz");
    // The labels of a categorical follow from its members.
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
    let missing = if is_archive || has(&members::MEMBERS) {
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

/// Adds an array with the attributes that anndata reads it by.
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
    add(new, path, &array.little())?;
    if let Some(dataset) = new.outline.datasets.last_mut() {
        dataset.attributes.extend(encoding(name, version));
    }
    Ok(())
}

type Found = std::result::Result<[NpyArray; 2], Vec<String>>;

/// Finds two members, or says which are missing.
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
        // pandas knows signed ones only.
        Some(Kind::Uint) => NpyArray {
            data: Integers::new("codes", codes.clone())?.wide(),
            dtype: DType::int(8),
            ..codes
        },
        _ => codes,
    };
    add_array(new, &key.below("codes"), &codes)?;
    add_array(new, &key.below("categories"), &categories)?;
    // Whether the categories have an order is no member: it stays what it was.
    let is_ordered = match directory(base, key.path())? {
        Some(dir) => {
            let attributes = dir.attributes()?;
            let ordered = Marks(&attributes).value(ORDERED).cloned();
            ordered.is_some_and(|value| value.shape.is_empty() && value.data.first() == Some(&1))
        }
        None => false,
    };
    let mut marks = encoding("categorical", "0.2.0");
    let bool = DType::scalar(Kind::Bool, 1, crate::npy::dtype::Order::None);
    let ordered = NewAttribute::new(ORDERED, bool, &[], vec![u8::from(is_ordered)]);
    marks.push(ordered);
    new.mark(key.path(), marks);
    Ok(None)
}

/// Each category is there once.
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
    let SparseMembers { arrays, order } = match members::members(base, parts)? {
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
    let Checked {
        data,
        indices,
        indptr,
        ..
    } = members::check(arrays, order, (rows, columns), numbers)?;
    let values = data.elements();
    new.add(
        NewDataset::new(&key.below("data"), data.dtype.clone(), &[values]),
        data.data,
    );
    for (name, numbers) in [("indices", indices), ("indptr", indptr)] {
        // scipy has both of one of these two types.
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

/// Refuses what scipy has no sparse matrices of.
fn numbers(array: &NpyArray) -> Result<NpyArray> {
    match array.scalar() {
        Some((Kind::Bool | Kind::Int | Kind::Uint, ..) | (Kind::Float, 4 | 8, _)) => {
            Ok(array.little())
        }
        Some((Kind::Complex, 8 | 16, crate::npy::dtype::Order::Little)) => Ok(array.clone()),
        _ => {
            let name = array.dtype.name();
            Err(unsupported(format!(
                "no sparse matrix has elements of type {name}"
            )))
        }
    }
}

/// Says what the deletion of a file means: the index of a table stays.
pub(super) fn deletion(base: &dyn Base, key: &ObjectKey) -> Result<Deletion> {
    if Place::of(base, key.path())?.role == Role::Index {
        let table = key.group().join("/");
        let why = format!("it is the index of {table}, which all of {table} lies along");
        return Err(Error::new(ErrorKind::Os(libc::ENOTEMPTY), why));
    }
    Ok(Deletion::Object)
}
