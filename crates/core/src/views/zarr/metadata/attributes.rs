//! HDF5 attributes as JSON, and the numbers of attributes and arrays, parsed from their bytes.

use serde_json::{Map, Value as Json};

use super::LeftOut;
use crate::store::encode::ucs4;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_hdf5::{Attribute, GroupPath, References, Value};

/// Attributes in which HDF5 and netCDF-4 keep their dimensions. They mean nothing to a reader of Zarr.
const BOOKKEEPING: [&str; 6] = [
    "DIMENSION_LIST",
    "REFERENCE_LIST",
    "_Netcdf4Coordinates",
    "_Netcdf4Dimid",
    "_NCProperties",
    "_nc3_strict",
];

/// Further attributes of a dimension scale, if `CLASS` says that it is one.
const OF_SCALES: [&str; 2] = ["CLASS", "NAME"];

/// Returns attributes as a JSON object, and the names of those that JSON cannot hold.
pub(super) fn json(attributes: &[Attribute]) -> (Map<String, Json>, Vec<LeftOut>) {
    json_besides(attributes, &[])
}

/// Returns attributes, except for some names, as a JSON object, and the names of those that JSON cannot hold.
pub(super) fn json_besides(
    attributes: &[Attribute],
    besides: &[&str],
) -> (Map<String, Json>, Vec<LeftOut>) {
    let is_scale =
        texts(attributes, "CLASS").is_some_and(|class| class == ["DIMENSION_SCALE".to_owned()]);
    let keeps_lists = attributes.iter().any(|a| a.name == b"encoding-type");
    let mut shown = Map::new();
    let mut left_out = Vec::new();
    for attribute in attributes {
        let name = String::from_utf8_lossy(&attribute.name);
        let known = |names: &[&str]| names.contains(&name.as_ref());
        if known(&BOOKKEEPING) || known(besides) || (is_scale && known(&OF_SCALES)) {
            continue;
        }
        let made = match (&attribute.value, &attribute.references) {
            _ if std::str::from_utf8(&attribute.name).is_err() => {
                Err("a name that is not UTF-8".to_owned())
            }
            (_, Some(found)) => references(found, keeps_lists),
            (Err(reason), None) => Err(reason.clone()),
            (Ok(found), None) => value(found, keeps_lists),
        };
        match made {
            Ok(made) => {
                shown.insert(name.into_owned(), made);
            }
            Err(reason) => left_out.push((name.into_owned(), reason)),
        }
    }
    (shown, left_out)
}

/// Returns a value as JSON: an array as lists, and a single element as itself unless lists are kept.
pub(super) fn value(value: &Value, keeps_lists: bool) -> Result<Json, String> {
    let size = value.dtype.size();
    if size == 0 {
        return Err("elements without bytes".into());
    }
    let elements = value
        .data
        .chunks_exact(size)
        .map(|bytes| element(&value.dtype, bytes))
        .collect::<Result<Vec<_>, _>>()?;
    arranged(elements, &value.shape, keeps_lists)
}

/// Returns references as the paths of their targets.
fn references(references: &References, keeps_lists: bool) -> Result<Json, String> {
    let elements = references
        .elements
        .iter()
        .map(|paths| {
            let mut paths = paths
                .iter()
                .map(|to| to.as_ref().map_or(Ok(Json::Null), path));
            match references.sequences {
                true => paths.collect::<Result<Vec<_>, _>>().map(Json::Array),
                false => paths.next().unwrap_or(Ok(Json::Null)),
            }
        })
        .collect::<Result<Vec<_>, _>>()?;
    arranged(elements, &references.shape, keeps_lists)
}

/// The group beside the columns of a table in which AnnData before 0.8 kept the categories of columns.
const CATEGORIES: &[u8] = b"__categories";

/// Returns a path as text, from the root; the path of AnnData categories is relative to the group of the column.
fn path(path: &GroupPath) -> Result<Json, String> {
    let names = path
        .iter()
        .map(|name| std::str::from_utf8(name).ok())
        .collect::<Option<Vec<_>>>()
        .ok_or("a reference to a name that is not UTF-8")?;
    let group = path.len().saturating_sub(2);
    if path.get(group).is_some_and(|name| name == CATEGORIES) {
        return Ok(names[group..].join("/").into());
    }
    Ok(format!("/{}", names.join("/")).into())
}

/// Returns elements in their shape, or a single element as itself, unless lists are kept.
fn arranged(elements: Vec<Json>, shape: &[u64], keeps_lists: bool) -> Result<Json, String> {
    if !keeps_lists && elements.len() == 1 {
        return Ok(elements.into_iter().next().unwrap_or_default());
    }
    lists(&mut elements.into_iter(), shape).ok_or_else(|| "a value without its bytes".to_owned())
}

/// Returns elements as nested lists. Without elements the enclosing lists are omitted as well, since they may be many.
fn lists(elements: &mut impl Iterator<Item = Json>, shape: &[u64]) -> Option<Json> {
    if shape.contains(&0) {
        return Some(Json::Array(Vec::new()));
    }
    let Some((&length, inner)) = shape.split_first() else {
        return elements.next();
    };
    let list: Option<Vec<Json>> = (0..length).map(|_| lists(elements, inner)).collect();
    list.map(Json::Array)
}

fn element(dtype: &DType, bytes: &[u8]) -> Result<Json, String> {
    let DType::Scalar { kind, order, .. } = dtype else {
        return Err("a compound, which JSON does not have".into());
    };
    match kind {
        Kind::Bytes => match text(bytes) {
            Some(text) => Ok(text.into()),
            None => Err("bytes that are not UTF-8".into()),
        },
        Kind::Text => match text_of_ucs4(bytes, *order) {
            Some(text) => Ok(text.into()),
            None => Err("text that is not Unicode".into()),
        },
        Kind::Bool | Kind::Int | Kind::Uint | Kind::Float | Kind::Complex => {
            match Number::parse(dtype, bytes) {
                None => Err("long double, which JSON does not have".into()),
                Some(number) => number.json().ok_or_else(|| match number {
                    Number::Complex(..) => "complex numbers, which JSON does not have".into(),
                    _ => "NaN or infinity, which JSON does not have".into(),
                }),
            }
        }
        Kind::Void => Err("raw bytes, which JSON does not have".into()),
        Kind::Datetime | Kind::Timedelta => Err("times, which JSON does not have".into()),
    }
}

/// Returns the text in bytes that are padded with zeros.
fn text(bytes: &[u8]) -> Option<&str> {
    let end = bytes
        .iter()
        .rposition(|&b| b != 0)
        .map_or(0, |last| last + 1);
    std::str::from_utf8(&bytes[..end]).ok()
}

/// Returns text of 4 bytes a character that is padded with zeros; `None` if a code is no character.
pub(super) fn text_of_ucs4(bytes: &[u8], order: Order) -> Option<String> {
    ucs4::characters(bytes, order).map(char::from_u32).collect()
}

/// Returns the text of a value that is a single text.
pub(super) fn text_of(value: &Value) -> Option<String> {
    let one = texts_of(value)?;
    (one.len() == 1).then(|| one.into_iter().next())?
}

/// Returns the texts of an attribute, if it exists and has texts.
pub(super) fn texts(attributes: &[Attribute], name: &str) -> Option<Vec<String>> {
    let found = attributes.iter().find(|a| a.name == name.as_bytes())?;
    texts_of(found.value.as_ref().ok()?)
}

fn texts_of(value: &Value) -> Option<Vec<String>> {
    let DType::Scalar {
        kind: Kind::Bytes | Kind::Text,
        size: 1..,
        ..
    } = value.dtype
    else {
        return None;
    };
    value
        .data
        .chunks_exact(value.dtype.size())
        .map(|bytes| Some(element(&value.dtype, bytes).ok()?.as_str()?.to_owned()))
        .collect()
}

/// A number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    /// A boolean.
    Bool(bool),
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    Uint(u64),
    /// A float of at most 8 bytes.
    Float(f64),
    /// A complex number.
    Complex(f64, f64),
}

impl Number {
    /// Parses the first element in `bytes`; returns `None` for a long double or a type that is no number.
    pub(super) fn parse(dtype: &DType, bytes: &[u8]) -> Option<Self> {
        let DType::Scalar {
            kind, size, order, ..
        } = dtype
        else {
            return None;
        };
        let bytes = bytes.get(..*size)?;
        Some(match kind {
            Kind::Bool => Self::Bool(bytes.iter().any(|&b| b != 0)),
            Kind::Int => Self::Int(sign_extended(unsigned(bytes, *order)?, bytes.len())),
            Kind::Uint => Self::Uint(unsigned(bytes, *order)?),
            Kind::Float => Self::Float(float(bytes, *order)?),
            Kind::Complex => {
                let (re, im) = bytes.split_at_checked(size / 2)?;
                Self::Complex(float(re, *order)?, float(im, *order)?)
            }
            _ => return None,
        })
    }

    /// Returns the number in JSON, which has no NaN, no infinity and no complex numbers.
    pub(super) fn json(self) -> Option<Json> {
        match self {
            Self::Bool(flag) => Some(flag.into()),
            Self::Int(n) => Some(n.into()),
            Self::Uint(n) => Some(n.into()),
            Self::Float(n) => serde_json::Number::from_f64(n).map(Json::Number),
            Self::Complex(..) => None,
        }
    }

    /// Returns the number as a float, unless it is complex.
    pub(super) fn float(self) -> Option<f64> {
        #[expect(
            clippy::cast_precision_loss,
            reason = "the nearest float is what is asked for"
        )]
        match self {
            Self::Bool(flag) => Some(f64::from(flag)),
            Self::Int(n) => Some(n as f64),
            Self::Uint(n) => Some(n as f64),
            Self::Float(n) => Some(n),
            Self::Complex(..) => None,
        }
    }
}

fn unsigned(bytes: &[u8], order: Order) -> Option<u64> {
    if !(1..=8).contains(&bytes.len()) {
        return None;
    }
    let push = |n: u64, &b: &u8| n << 8 | u64::from(b);
    Some(match order {
        Order::Big => bytes.iter().fold(0, push),
        Order::Little | Order::None => bytes.iter().rev().fold(0, push),
    })
}

/// Sign-extends an integer of `len` bytes, 1 to 8.
fn sign_extended(wide: u64, len: usize) -> i64 {
    let shift = 64 - 8 * len.clamp(1, 8);
    (wide << shift).cast_signed() >> shift
}

fn float(bytes: &[u8], order: Order) -> Option<f64> {
    let bits = unsigned(bytes, order)?;
    match bytes.len() {
        2 => Some(half::f16::from_bits(u16::try_from(bits).ok()?).to_f64()),
        4 => Some(f32::from_bits(u32::try_from(bits).ok()?).into()),
        8 => Some(f64::from_bits(bits)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_what_they_say() {
        let attributes = [
            Attribute::new("one", DType::int(2), &[1], &[7, 0]),
            Attribute::new("many", DType::int(1), &[2, 2], &[1, 2, 3, 4]),
            Attribute::new("none", DType::int(1), &[0], &[]),
            Attribute::new("empty", DType::int(1), &[2, 0], &[]),
            Attribute::new("text", DType::bytes(4), &[], b"m s\0"),
            Attribute::new("texts", DType::bytes(2), &[2], "ab\u{e9}".as_bytes()),
            Attribute::new("flag", DType::scalar(Kind::Bool, 1, Order::None), &[], &[1]),
        ];
        let (shown, left_out) = json(&attributes);
        assert!(left_out.is_empty());
        assert_eq!(
            Json::from(shown),
            json!({
                "one": 7,
                "many": [[1, 2], [3, 4]],
                "none": [],
                "empty": [],
                "text": "m s",
                "texts": ["ab", "\u{e9}"],
                "flag": true,
            })
        );
    }

    #[test]
    fn what_json_does_not_have_is_left_out() {
        let nan = f32::NAN.to_le_bytes();
        let float = DType::scalar(Kind::Float, 4, Order::Little);
        let mut attributes = vec![
            Attribute::new("nan", float, &[], &nan),
            Attribute::new("bytes", DType::bytes(1), &[], &[0xff]),
            Attribute::new(
                "compound",
                DType::Struct {
                    fields: vec![],
                    size: 1,
                },
                &[],
                &[0],
            ),
            Attribute::new("kept", DType::int(1), &[], &[1]),
            Attribute {
                name: b"null".to_vec(),
                value: Err("null dataspace".into()),
                references: None,
            },
        ];
        attributes.push(Attribute {
            name: vec![0xff],
            value: attributes[3].value.clone(),
            references: None,
        });
        let (shown, left_out) = json(&attributes);
        assert_eq!(Json::from(shown), json!({ "kept": 1 }));
        let names: Vec<_> = left_out.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["nan", "bytes", "compound", "null", "\u{fffd}"]);
    }

    #[test]
    fn bookkeeping_of_dimension_scales_is_not_shown() {
        let text =
            |name, text: &str| Attribute::new(name, DType::bytes(text.len()), &[], text.as_bytes());
        let scale = [
            text("CLASS", "DIMENSION_SCALE"),
            text("NAME", "x"),
            text("_Netcdf4Dimid", "0"),
            text("units", "m"),
        ];
        assert_eq!(Json::from(json(&scale).0), json!({ "units": "m" }));
        let image = [text("CLASS", "IMAGE"), text("NAME", "x")];
        let kept = json!({ "CLASS": "IMAGE", "NAME": "x" });
        assert_eq!(Json::from(json(&image).0), kept);
    }

    #[test]
    fn lists_of_anndata_stay_lists() {
        let columns = Attribute::new("column-order", DType::bytes(1), &[1], b"a");
        let kind = Attribute::new("encoding-type", DType::bytes(9), &[], b"dataframe");
        let (shown, _) = json(&[columns, kind]);
        assert_eq!(
            Json::from(shown),
            json!({ "column-order": ["a"], "encoding-type": "dataframe" })
        );
    }

    #[test]
    fn references_are_paths() {
        let to = |names: &[&str]| Some(names.iter().map(|name| name.as_bytes().to_vec()).collect());
        let attribute = |name: &str, sequences, shape: &[u64], elements| Attribute {
            name: name.into(),
            value: Err("references to objects".into()),
            references: Some(References {
                shape: shape.to_vec(),
                sequences,
                elements,
            }),
        };
        let attributes = [
            attribute("one", false, &[1], vec![vec![to(&["a", "b"])]]),
            attribute("root", false, &[], vec![vec![to(&[])]]),
            attribute("nowhere", false, &[2], vec![vec![None], vec![to(&["x"])]]),
            attribute(
                "many",
                true,
                &[2],
                vec![vec![], vec![to(&["x"]), to(&["y"])]],
            ),
            attribute(
                "categories",
                false,
                &[],
                vec![vec![to(&["obs", "__categories", "kind"])]],
            ),
            attribute("DIMENSION_LIST", true, &[1], vec![vec![to(&["x"])]]),
        ];
        let (shown, left_out) = json(&attributes);
        assert!(left_out.is_empty());
        assert_eq!(
            Json::from(shown),
            json!({
                "one": "/a/b",
                "root": "/",
                "nowhere": [null, "/x"],
                "many": [[], ["/x", "/y"]],
                "categories": "__categories/kind",
            })
        );
    }

    #[test]
    fn numbers_are_what_their_bytes_say() {
        let of = |kind, order, bytes: &[u8]| {
            Number::parse(&DType::scalar(kind, bytes.len(), order), bytes).unwrap()
        };
        assert_eq!(of(Kind::Int, Order::Big, &[0xff, 0xfe]), Number::Int(-2));
        assert_eq!(of(Kind::Int, Order::None, &[0x80]), Number::Int(-128));
        assert_eq!(
            of(Kind::Uint, Order::Little, &[255; 8]),
            Number::Uint(u64::MAX)
        );
        assert_eq!(
            of(Kind::Float, Order::Big, &1.5f64.to_be_bytes()),
            Number::Float(1.5)
        );
        assert!(Number::parse(&DType::int(4), &[0; 2]).is_none());
        assert!(Number::parse(&DType::scalar(Kind::Float, 16, Order::Little), &[0; 16]).is_none());
    }

    #[test]
    fn json_has_no_nan() {
        assert_eq!(Number::Float(f64::NAN).json(), None);
        assert_eq!(Number::Complex(1.0, 0.0).json(), None);
        assert_eq!(Number::Int(-1).json(), Some((-1).into()));
    }
}
