//! Attributes that programs write: what a text becomes.
//!
//! The inverse of what mounts show: what is read of an attribute can be written again, and the attribute stays the
//! same.

use serde_json::Value as Json;

use super::encode::ucs4;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_hdf5::{MAX_SMALL_ATTRIBUTE, NewAttribute, Value};

/// The longest name in bytes: extended attributes have names of 255, which begin with `user.`.
pub const LONGEST_NAME: usize = 250;

/// The longest text in bytes, as extended attributes have it.
const LONGEST_TEXT: usize = 1 << 16;

/// The most dimensions of an array.
const MOST_DIMENSIONS: usize = 32;

/// Names that mean something to HDF5's own libraries, to npyfs or to a format: a store with such an attribute may
/// be taken for another one.
const RESERVED: [&str; 16] = [
    "CLASS",
    "DIMENSION_LABELS",
    "DIMENSION_LIST",
    "NAME",
    "REFERENCE_LIST",
    "_FillValue",
    "_NCProperties",
    "_Netcdf4Coordinates",
    "_Netcdf4Dimid",
    "_nc3_strict",
    "encoding-type",
    "encoding-version",
    "File_Format",
    "ObjType",
    "arkouda_version",
    "isBool",
];

/// Beginnings of names that belong to npyfs or to MATLAB.
const RESERVED_BEGINNINGS: [&str; 2] = ["npyfs_", "MATLAB_"];

/// Returns why no program may change an attribute, whatever the format; `None` if it may.
pub fn refused(name: &str) -> Option<String> {
    let is_reserved = RESERVED.contains(&name)
        || RESERVED_BEGINNINGS
            .iter()
            .any(|start| name.starts_with(start));
    is_reserved.then(|| format!("the attribute {name:?} says how the object is stored"))
}

/// Checks that an attribute may have this name.
pub fn check_name(name: &[u8]) -> Result<&str> {
    let no = |why: &str| {
        let name = String::from_utf8_lossy(name);
        Error::new(
            ErrorKind::Os(libc::EINVAL),
            format!("attribute {name:?}: {why}"),
        )
    };
    let text = std::str::from_utf8(name).map_err(|_| no("its name is not UTF-8"))?;
    match text {
        "" => Err(no("it has no name")),
        text if text.contains('\0') => Err(no("its name has a NUL")),
        text if text.len() > LONGEST_NAME => Err(no("its name is longer than 250 bytes")),
        text => Ok(text),
    }
}

/// Makes an attribute of a text. With an attribute of that name before, its type is kept where the value fits: text
/// stays text. Otherwise a JSON number, array or quoted text is that, and anything else is text.
pub fn parse(name: &str, text: &[u8], before: Option<&Value>) -> Result<NewAttribute> {
    let no =
        |errno, why: String| Error::new(ErrorKind::Os(errno), format!("attribute {name:?}: {why}"));
    let text =
        std::str::from_utf8(text).map_err(|_| no(libc::EINVAL, "its value is not UTF-8".into()))?;
    if text.contains('\0') {
        return Err(no(libc::EINVAL, "its value has a NUL".into()));
    }
    if text.len() > LONGEST_TEXT {
        let why = format!("{} bytes, and {LONGEST_TEXT} are the most", text.len());
        return Err(no(libc::E2BIG, why));
    }
    let is_text = before.is_some_and(|old| old.shape.is_empty() && is_text(&old.dtype));
    let json: Option<Json> = match is_text {
        true => None,
        false => serde_json::from_str(text).ok(),
    };
    let value = match &json {
        Some(Json::Number(_) | Json::Array(_) | Json::String(_) | Json::Bool(_)) => {
            of_json(json.as_ref().unwrap_or(&Json::Null), before)
                .map_err(|why| no(libc::EINVAL, why))?
        }
        _ => texts(&[text], Vec::new()),
    };
    let new = NewAttribute {
        name: name.to_owned(),
        value,
    };
    if new.is_large() {
        let why = format!("an attribute has room for {MAX_SMALL_ATTRIBUTE} bytes");
        return Err(no(libc::E2BIG, why));
    }
    Ok(new)
}

/// Returns the value as a new attribute can have it; `None` if it cannot be written again.
pub fn from_value(name: &str, value: &Value) -> Option<NewAttribute> {
    let new = NewAttribute {
        name: name.to_owned(),
        value: value.clone(),
    };
    let is_known = match &value.dtype {
        DType::Scalar {
            kind: Kind::Bytes, ..
        } => {
            // As text, unless it is none.
            return of_bytes(name, value).filter(|new| !new.is_large());
        }
        DType::Scalar { kind, .. } => !matches!(kind, Kind::Void),
        DType::Struct { .. } => true,
    };
    (is_known && !new.is_large()).then_some(new)
}

fn of_bytes(name: &str, value: &Value) -> Option<NewAttribute> {
    let elements = value.data.chunks(value.dtype.size().max(1));
    let elements = elements.map(|element| {
        let end = element.iter().rposition(|&b| b != 0).map_or(0, |at| at + 1);
        std::str::from_utf8(&element[..end]).ok()
    });
    let elements: Vec<&str> = elements.collect::<Option<_>>()?;
    Some(NewAttribute {
        name: name.to_owned(),
        value: texts(&elements, value.shape.clone()),
    })
}

fn is_text(dtype: &DType) -> bool {
    matches!(
        dtype,
        DType::Scalar {
            kind: Kind::Text | Kind::Bytes,
            ..
        }
    )
}

/// Returns a value of texts.
fn texts(texts: &[&str], shape: Vec<u64>) -> Value {
    let (dtype, data) = ucs4::elements(texts);
    Value { dtype, shape, data }
}

fn of_json(json: &Json, before: Option<&Value>) -> std::result::Result<Value, String> {
    let mut shape = Vec::new();
    let mut all = Vec::new();
    flatten(json, 0, &mut shape, &mut all)?;
    let old = before.map(|old| &old.dtype);
    if let Some(texts_of) = all.iter().map(|e| e.as_str()).collect::<Option<Vec<_>>>()
        && (!all.is_empty() || old.is_some_and(is_text))
    {
        // Values without a JSON number are shown as text.
        return match old.and_then(|old| numbers(&all, old)) {
            Some(data) => Ok(value_of(old, shape, data)),
            None => Ok(texts(&texts_of, shape)),
        };
    }
    if let Some(data) = old.and_then(|old| numbers(&all, old)) {
        return Ok(value_of(old, shape, data));
    }
    let size = |kind, size| DType::scalar(kind, size, Order::Little);
    let new = [
        DType::scalar(Kind::Bool, 1, Order::None),
        size(Kind::Int, 8),
        size(Kind::Uint, 8),
        size(Kind::Float, 8),
    ];
    let new = match all.is_empty() {
        true => &new[3..],
        false => &new[..],
    };
    let found = new.iter().find_map(|new| Some((new, numbers(&all, new)?)));
    let (dtype, data) = found.ok_or("an array of numbers, or of texts, has only such")?;
    Ok(value_of(Some(dtype), shape, data))
}

fn value_of(dtype: Option<&DType>, shape: Vec<u64>, data: Vec<u8>) -> Value {
    Value {
        dtype: dtype.cloned().unwrap_or(DType::int(8)),
        shape,
        data,
    }
}

/// Finds the shape and the elements of a JSON value.
fn flatten<'a>(
    json: &'a Json,
    depth: usize,
    shape: &mut Vec<u64>,
    all: &mut Vec<&'a Json>,
) -> std::result::Result<(), String> {
    let ragged = || "its rows have different lengths".to_owned();
    match json {
        Json::Array(rows) if depth < MOST_DIMENSIONS => {
            match shape.get(depth) {
                None if all.is_empty() => shape.push(rows.len() as u64),
                Some(&known) if known == rows.len() as u64 => {}
                _ => return Err(ragged()),
            }
            rows.iter()
                .try_for_each(|row| flatten(row, depth + 1, shape, all))
        }
        Json::Array(_) => Err("it has too many dimensions".to_owned()),
        Json::Object(_) | Json::Null => {
            Err("only numbers, texts and arrays of them are attributes".to_owned())
        }
        _ if depth == shape.len() => {
            all.push(json);
            Ok(())
        }
        _ => Err(ragged()),
    }
}

/// Returns the bytes of elements of a type; `None` if they do not all fit it.
fn numbers(all: &[&Json], dtype: &DType) -> Option<Vec<u8>> {
    let DType::Scalar {
        kind, size, order, ..
    } = dtype
    else {
        return None;
    };
    let mut data = Vec::with_capacity(all.len().saturating_mul(*size));
    for json in all {
        let mut bytes = element(json, *kind, *size)?;
        if *order == Order::Big {
            bytes.reverse();
        }
        data.extend(bytes);
    }
    Some(data)
}

/// Returns the bytes of a number, least significant first.
fn element(json: &Json, kind: Kind, size: usize) -> Option<Vec<u8>> {
    let wide = match kind {
        Kind::Bool => return json.as_bool().map(|b| vec![u8::from(b)]),
        Kind::Int => {
            let number = json.as_i64()?;
            let shift = 64_usize.checked_sub(size.checked_mul(8)?)?;
            (number << shift >> shift == number).then(|| number.to_le_bytes())?
        }
        Kind::Uint => {
            let number = json.as_u64()?;
            let shift = 64_usize.checked_sub(size.checked_mul(8)?)?;
            (number << shift >> shift == number).then(|| number.to_le_bytes())?
        }
        Kind::Float => {
            let number = match json {
                Json::String(text) => match text.as_str() {
                    "NaN" => f64::NAN,
                    "inf" => f64::INFINITY,
                    "-inf" => f64::NEG_INFINITY,
                    _ => return None,
                },
                json => json.as_f64()?,
            };
            return match size {
                // The shortest decimal of a single is read as that single again.
                4 => {
                    let single: f32 = json.to_string().parse().ok().or(Some(number as f32))?;
                    Some(single.to_le_bytes().to_vec())
                }
                8 => Some(number.to_le_bytes().to_vec()),
                _ => None,
            };
        }
        _ => return None,
    };
    Some(wide.get(..size)?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::info;

    fn parsed(text: &str, before: Option<&Value>) -> Value {
        parse("a", text.as_bytes(), before).unwrap().value
    }

    #[test]
    fn what_is_shown_can_be_written_again() {
        let little = |kind, size| DType::scalar(kind, size, Order::Little);
        let values = [
            ("mV", None),
            ("2.5", Some(little(Kind::Float, 8))),
            ("-3", Some(DType::int(8))),
            ("18446744073709551615", Some(little(Kind::Uint, 8))),
            ("[1,2,3]", Some(DType::int(8))),
            ("[[1.5,2.0],[3.0,4.0]]", Some(little(Kind::Float, 8))),
            ("true", Some(DType::scalar(Kind::Bool, 1, Order::None))),
            ("[\"a\",\"größer\"]", None),
            ("{\"a\":1}", None),
            ("null", None),
            ("", None),
        ];
        for (text, dtype) in values {
            let value = parsed(text, None);
            match dtype {
                Some(dtype) => assert_eq!(value.dtype, dtype, "{text}"),
                None => assert!(is_text(&value.dtype), "{text}"),
            }
            let shown = match info::value(&value) {
                Json::String(shown) => shown,
                json => json.to_string(),
            };
            assert_eq!(shown, text);
            assert_eq!(parsed(&shown, Some(&value)), value, "{text}");
        }
        assert_eq!(info::value(&parsed("\"2.5\"", None)), Json::from("2.5"));
    }

    #[test]
    fn a_type_is_kept_where_the_value_fits() {
        let short = Value {
            dtype: DType::scalar(Kind::Int, 2, Order::Big),
            shape: vec![],
            data: vec![0, 1],
        };
        assert_eq!(parsed("258", Some(&short)).data, [1, 2]);
        assert_eq!(parsed("70000", Some(&short)).dtype, DType::int(8));
        let text = parsed("mV", None);
        assert_eq!(info::value(&parsed("2.5", Some(&text))), Json::from("2.5"));
        let single = Value {
            dtype: DType::scalar(Kind::Float, 4, Order::Little),
            shape: vec![],
            data: vec![0; 4],
        };
        assert_eq!(parsed("0.1", Some(&single)).data, 0.1_f32.to_le_bytes());
        assert_eq!(
            parsed("\"NaN\"", Some(&single)).data,
            f32::NAN.to_le_bytes()
        );
    }

    #[test]
    fn what_is_no_attribute_is_refused() {
        for text in ["[[1],[2,3]]", "[1,\"a\"]", "[{}]", "[null]", "a\0b"] {
            assert!(parse("a", text.as_bytes(), None).is_err(), "{text}");
        }
        assert!(parse("a", b"\xff", None).is_err());
        let long = vec![b'a'; LONGEST_TEXT + 1];
        assert_eq!(parse("a", &long, None).unwrap_err().errno(), libc::E2BIG);
        assert!(check_name(b"").is_err() && check_name(b"\xff").is_err());
        assert!(check_name(&[b'a'; 251]).is_err() && check_name(&[b'a'; 250]).is_ok());
    }
}
