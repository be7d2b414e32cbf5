//! Arkouda objects, in the layout and with the attributes of file version 2.0.
//!
//! Source: Arkouda, `src/HDF5Msg.chpl` (what is written: lines 389 to 655 and 765 to 2627; what is asked for
//! when reading: 3150 to 3838). Numbers keep their width: Arkouda widens them when it reads. What it has no
//! form for, such as an array of several dimensions, is stored so that it reads the flat elements.

mod composite;
mod deletion;
pub mod grouping;
mod keys;
mod limbs;
mod members;
mod strings;
mod times;
mod was;

use std::sync::Arc;

use crate::checkout::encode::array::NpyArray;
use crate::checkout::encode::mapped::Mapped;
use crate::checkout::encode::{Base, ObjectKey, Plan, invalid, single, unsupported};
use crate::checkout::object::NewFile;
use crate::checkout::target::Part;
use crate::error::Result;
use crate::hdf5::{NewAttribute, NewDataset};
use crate::io::content::Content;
use crate::npy::dtype::{DType, Kind, Order};

pub use deletion::deletion;

/// `ObjType`, `src/ServerConfig.chpl` lines 25 to 40.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    /// As older releases write arrays of several dimensions; today's know the number, and do not read them.
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

/// Attributes of every object.
fn marks(object: Type) -> Vec<NewAttribute> {
    let float = DType::scalar(Kind::Float, 4, Order::Little);
    // With the NUL that ends a C string.
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

/// Marks a file as Arkouda's: it is the only one of its set.
pub fn mark_file(new: &mut NewFile) {
    new.mark_root(NewAttribute::int("File_Format", 0));
}

/// Returns whether a file of an Arkouda store has one array that is shown as it is stored: neither times, nor booleans, nor what
/// has another shape than its dataset.
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

/// Says how an object is stored; see [`Format::plan`](crate::checkout::format::Format::plan).
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

/// Adds an array of any kind as an object.
fn add(new: &mut NewFile, base: &dyn Base, path: &[String], array: &NpyArray) -> Result<()> {
    match array.kind() {
        Some(Kind::Bytes | Kind::Text) if array.shape.len() == 1 => {
            strings::add(new, base, path, array)
        }
        Some(Kind::Bytes | Kind::Text) => Err(unsupported(format!(
            "Arkouda has strings in one dimension, not in {}",
            array.shape.len()
        ))),
        Some(Kind::Bool | Kind::Int | Kind::Uint | Kind::Float) => {
            numbers(new, path, array, Type::Pdarray, array.data.clone())
        }
        Some(Kind::Datetime) => {
            numbers(new, path, array, Type::Datetime, times::nanoseconds(array)?)
        }
        Some(Kind::Timedelta) => numbers(
            new,
            path,
            array,
            Type::Timedelta,
            times::nanoseconds(array)?,
        ),
        Some(Kind::Complex | Kind::Void) | None => {
            let name = array.dtype.name();
            Err(unsupported(format!(
                "Arkouda has no elements of type {name}"
            )))
        }
    }
}

/// Adds numbers, flat; `Rank` and `Shape` say what they were.
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

/// Booleans are bytes of 0 and 1.
fn stored(array: &NpyArray, data: Arc<dyn Content>) -> (DType, Arc<dyn Content>) {
    if array.kind() != Some(Kind::Bool) {
        return (array.dtype.clone(), data);
    }
    let data = Mapped::content(data, 1, 1, |_, from, to| {
        for (byte, place) in from.iter().zip(to) {
            *place = u8::from(*byte != 0);
        }
        Ok(())
    });
    (DType::scalar(Kind::Uint, 1, Order::None), data)
}

/// Refuses what is no vector.
fn vector(name: &str, array: &NpyArray) -> Result<u64> {
    match array.shape.as_slice() {
        &[len] => Ok(len),
        shape => Err(invalid(format!(
            "{name} has shape {shape:?}, and must have one dimension"
        ))),
    }
}
