//! Writes Arkouda objects, in the layout and with the attributes of file version 2.0.
//!
//! Source: Arkouda, `src/HDF5Msg.chpl` (writing: lines 389 to 655 and 765 to 2627; reading: 3150 to 3838). Numbers keep
//! their width: Arkouda widens them when it reads. Objects that Arkouda cannot represent, such as an array of several
//! dimensions, are stored so that it reads the flat elements.

mod composite;
pub mod grouping;
mod keys;
mod limbs;
mod members;
mod strings;
mod times;
mod was;

use std::sync::Arc;

use self::members::{INDEX, MAX_BITS};
use crate::store::base::{Base, invalid, unsupported};
use crate::store::encode::array::NpyArray;
use crate::store::encode::mapped::Mapped;
use crate::store::encode::{ObjectKey, Plan, single};
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
    let data = Mapped::content(data, 1, 1, |_, from, to| {
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
