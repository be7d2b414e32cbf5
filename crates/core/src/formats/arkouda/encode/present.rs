//! The present object at a path where another is to be stored. Numbers and labels do not tell their kind: a program
//! that writes them over an address, a time, a large number or a Categorical means another object of that kind. To
//! change the kind, the object must be deleted first.

use std::collections::HashMap;
use std::sync::Arc;

use super::{CATEGORICAL, GROUPED, MAX_BITS};
use super::{Type, below, bytes_dtype, marks, put_strings};
use crate::formats::arkouda::marks::Marks;
use crate::store::base::{Base, invalid};
use crate::store::encode::array::NpyArray;
use crate::store::encode::contents::SpooledFile;
use crate::store::encode::integers::Integers;
use crate::store::encode::text;
use crate::store::object::NewFile;
use crate::tree::Node;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy::dtype::{DType, Kind};
use npyfs_hdf5::NewDataset;
use npyfs_io::content::Content;

/// The most bytes of the categories of an array of labels: all of them are in memory at once.
const MOST: usize = 64 << 20;

/// The object at a path, as far as it determines how the next one is stored there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PresentObject {
    /// `ObjType`, if the object has one.
    pub object_type: Option<i64>,
    pub is_bigint: bool,
    /// The bits of a large number; -1 if unlimited.
    pub max_bits: i64,
}

impl PresentObject {
    /// Returns the present object at own names relative to the group.
    pub(super) fn find(base: &dyn Base, path: &[String]) -> Result<Self> {
        let attributes = match base.node(path, ".npy")? {
            Some(Node::File(file)) => file.attributes()?,
            _ => match base.node(path, "")? {
                Some(Node::Directory(dir)) => dir.attributes()?,
                _ => return Ok(Self::default()),
            },
        };
        let marks = Marks::from_attributes(&attributes);
        Ok(Self {
            object_type: marks.object_type.and_then(std::result::Result::ok),
            is_bigint: marks.is_bigint,
            max_bits: marks
                .max_bits
                .and_then(|bits| i64::try_from(bits).ok())
                .unwrap_or(-1),
        })
    }

    pub(super) fn is(&self, object: Type) -> bool {
        self.object_type == Some(object as i64) && !self.is_bigint
    }

    /// Returns whether a member of this name can belong to the object, so that its other members remain valid.
    pub(super) fn may_have(&self, name: &str) -> bool {
        let numbered = |prefix: &str| name.starts_with(prefix);
        match self.object_type {
            _ if self.is_bigint => numbered("Limb_") || name == MAX_BITS,
            Some(0) => name == "ArrayView",
            Some(9) => name == "IPv4",
            Some(2 | 3) => matches!(name, "values" | "segments" | "Index"),
            Some(4) => CATEGORICAL.contains(&name) || name == "Index",
            Some(5) => GROUPED.contains(&name) || numbered("KEY_"),
            Some(12 | 13) => numbered("IDX_"),
            _ => true,
        }
    }
}

/// Adds labels as a Categorical with the categories of the present one, followed by new ones. The grouping of the new
/// labels is unknown.
pub(super) fn recode(
    new: &mut NewFile,
    base: &dyn Base,
    (path, inside): (&[String], &[String]),
    labels: &NpyArray,
) -> Result<()> {
    let member = |name: &str| -> Result<NpyArray> {
        let at = [inside, &[name.to_owned()]].concat();
        match base.node(&at, ".npy")? {
            Some(Node::File(file)) => NpyArray::open(base, &file.open()?),
            _ => {
                let why = format!("the labels cannot be stored: no {name} is shown; write codes");
                Err(Error::new(ErrorKind::Os(libc::EOPNOTSUPP), why))
            }
        }
    };
    let mut known: HashMap<Vec<u8>, i64> = HashMap::new();
    let (mut values, mut starts) = (SpooledFile::new(base), SpooledFile::new(base));
    let mut bytes = 0;
    let mut add = |text: &[u8], known: &mut HashMap<Vec<u8>, i64>| -> Result<i64> {
        if let Some(&code) = known.get(text) {
            return Ok(code);
        }
        bytes += text.len() + 1;
        if bytes > MOST {
            let why = format!("categories of more than {MOST} bytes: write codes and categories");
            return Err(Error::new(ErrorKind::TooLarge, why));
        }
        if text.contains(&0) {
            return Err(invalid("a label holds a NUL"));
        }
        let code = known.len() as i64;
        starts.push(&values.len().to_le_bytes())?;
        values.push(text)?;
        values.push(&[0])?;
        known.insert(text.to_vec(), code);
        Ok(code)
    };
    let mut twice = false;
    text::each(&member("categories")?, |number, text| {
        twice |= add(text, &mut known)? != number as i64;
        Ok(())
    })?;
    if twice {
        return Err(invalid(
            "the Categorical has a category twice: write codes and categories",
        ));
    }
    let mut codes = SpooledFile::new(base);
    text::each(labels, |_, text| {
        codes.push(&add(text, &mut known)?.to_le_bytes())
    })?;
    let (len, count) = (values.len(), known.len() as u64);
    let na = Integers::new("NA_Codes", member("NA_Codes")?)?;
    put_strings(
        new,
        &below(path, "categories"),
        [
            (len, values.finish()?, bytes_dtype()),
            (count, starts.finish()?, DType::int(8)),
        ],
    );
    let codes: Arc<dyn Content> = codes.finish()?;
    for (name, len, data) in [
        ("codes", labels.elements(), codes),
        ("NA_Codes", na.len(), na.wide()),
    ] {
        let mut dataset = NewDataset::new(&below(path, name), DType::int(8), &[len]);
        dataset.attributes = marks(Type::Pdarray);
        new.add(dataset, data);
    }
    new.mark(path, marks(Type::Categorical));
    Ok(())
}

/// Returns the type as which numbers are stored over such an object; `None`: according to their dtype.
pub(super) fn type_over(was: &PresentObject, array: &NpyArray) -> Option<Type> {
    let (kind, size, _) = array.scalar()?;
    let flat = array.shape.len() == 1;
    match (kind, size) {
        (Kind::Uint, 8) if flat && was.is(Type::IPv4) => Some(Type::IPv4),
        (Kind::Int, 8) if was.is(Type::Datetime) => Some(Type::Datetime),
        (Kind::Int, 8) if was.is(Type::Timedelta) => Some(Type::Timedelta),
        (Kind::Bool | Kind::Int | Kind::Uint | Kind::Float, _) if was.is(Type::ArrayView) => {
            Some(Type::ArrayView)
        }
        _ => None,
    }
}
