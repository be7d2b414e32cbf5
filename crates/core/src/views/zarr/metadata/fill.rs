//! Fill values of unwritten places, and marks of missing elements.

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value as Json, json};

use super::{Element, FILL_VALUE, LeftOut};
use crate::views::zarr::Version;
use crate::views::zarr::metadata::attributes;
use crate::views::zarr::metadata::attributes::Number;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_hdf5::{Attribute, Value};
use npyfs_io::hex;

/// The attribute `_FillValue`, in the form that xarray reads.
#[derive(Debug, Default)]
pub(super) struct Missing {
    /// The value as a JSON fill value, if it is an element of the array.
    pub element: Option<Json>,
    /// The attribute as it is shown.
    pub attribute: Option<Json>,
    /// The reason why the attribute is not shown.
    pub left_out: Vec<LeftOut>,
}

impl Missing {
    /// Finds the attribute among those of an array with such elements.
    pub(super) fn find(attributes: &[Attribute], element: &Element, version: Version) -> Self {
        let found = attributes.iter().find(|a| a.name == FILL_VALUE.as_bytes());
        let Some(found) = found else {
            return Self::default();
        };
        let made = match (&found.value, version) {
            (Err(reason), _) => Err(reason.clone()),
            (Ok(value), Version::V2) => match of_array(value, element) {
                Some(json) => {
                    return Self {
                        element: Some(json),
                        ..Self::default()
                    };
                }
                None => attributes::value(value, false),
            },
            (Ok(value), Version::V3) => encoded(value, element),
        };
        match made {
            Ok(json) => Self {
                attribute: Some(json),
                ..Self::default()
            },
            Err(reason) => Self {
                left_out: vec![(FILL_VALUE.to_owned(), reason)],
                ..Self::default()
            },
        }
    }
}

/// Returns the value of an attribute as a fill value of version 2, if it is one element of the array's type.
fn of_array(value: &Value, element: &Element) -> Option<Json> {
    if value.shape.iter().any(|&n| n != 1) {
        return None;
    }
    match element {
        Element::Text => attributes::text_of(value).map(Json::from),
        Element::Fixed(dtype) => {
            (alike(dtype, &value.dtype)).then(|| scalar(&value.dtype, &value.data, Version::V2))?
        }
    }
}

/// Returns true if two scalar types differ at most in their byte order.
fn alike(a: &DType, b: &DType) -> bool {
    match (a, b) {
        (
            DType::Scalar {
                kind,
                size,
                unit,
                order: _,
            },
            DType::Scalar {
                kind: other_kind,
                size: other_size,
                unit: other_unit,
                order: _,
            },
        ) => (kind, size, unit) == (other_kind, other_size, other_unit),
        _ => false,
    }
}

/// Returns a missing value in the form that xarray keeps in attributes of version 3.
fn encoded(value: &Value, element: &Element) -> Result<Json, String> {
    let unread = || Err("xarray reads no missing value of this type in Zarr v3".to_owned());
    let Element::Fixed(DType::Scalar { kind, .. }) = element else {
        return unread();
    };
    let Some(number) = Number::parse(&value.dtype, &value.data) else {
        return unread();
    };
    let float = |n: f64| Json::from(BASE64_STANDARD.encode(n.to_le_bytes()));
    match (kind, number) {
        (Kind::Bool, Number::Bool(flag)) => Ok(flag.into()),
        (Kind::Int | Kind::Uint, number) => number.json().ok_or_else(|| {
            "a missing value that is NaN or infinite, of an array of integers".to_owned()
        }),
        (Kind::Float, number) => number.float().map_or_else(unread, |n| Ok(float(n))),
        (Kind::Complex, Number::Complex(re, im)) => Ok(json!([float(re), float(im)])),
        _ => unread(),
    }
}

/// Returns the JSON of the element that HDF5 shows for unwritten places; `None` if it cannot be determined.
pub(super) fn shown(element: &Element, fill: Option<&[u8]>, version: Version) -> Option<Json> {
    match element {
        Element::Text => Some(std::str::from_utf8(fill.unwrap_or_default()).ok()?.into()),
        Element::Fixed(dtype) => match fill {
            Some(fill) => scalar(dtype, fill, version),
            None => scalar(dtype, &vec![0; dtype.size()], version),
        },
    }
}

/// Returns one element as a fill value in JSON.
fn scalar(dtype: &DType, bytes: &[u8], version: Version) -> Option<Json> {
    if bytes.len() != dtype.size() {
        return None;
    }
    let DType::Scalar {
        kind, size, order, ..
    } = dtype
    else {
        return Some(BASE64_STANDARD.encode(bytes).into());
    };
    let float = |part: &[u8]| float(part, *order, version);
    match kind {
        Kind::Float => float(bytes),
        Kind::Complex => {
            let (re, im) = bytes.split_at_checked(size / 2)?;
            Some(json!([float(re)?, float(im)?]))
        }
        Kind::Bytes | Kind::Void => Some(BASE64_STANDARD.encode(bytes).into()),
        Kind::Text => attributes::text_of_ucs4(bytes, *order).map(Json::from),
        Kind::Datetime | Kind::Timedelta => {
            npyfs_base::npy::dtype::integer(bytes, Kind::Int, *order).map(Json::from)
        }
        Kind::Bool | Kind::Int | Kind::Uint => Number::parse(dtype, bytes)?.json(),
    }
}

/// Returns a float as JSON; NaN and infinities as text, in version 3 with their bits if those are unusual.
fn float(bytes: &[u8], order: Order, version: Version) -> Option<Json> {
    let dtype = DType::scalar(Kind::Float, bytes.len(), order);
    let number = Number::parse(&dtype, bytes)?.float()?;
    if number.is_nan() {
        let mut big = bytes.to_vec();
        if order != Order::Big {
            big.reverse();
        }
        let usual: &[u8] = match bytes.len() {
            2 => &[0x7e, 0],
            4 => &[0x7f, 0xc0, 0, 0],
            _ => &[0x7f, 0xf8, 0, 0, 0, 0, 0, 0],
        };
        if version == Version::V2 || big == usual {
            return Some("NaN".into());
        }
        return Some(format!("0x{}", hex::encode(&big)).into());
    }
    Some(match number {
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        number => number.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_spelled_as_zarr_spells_them() {
        let v2 = |dtype: &DType, bytes: &[u8]| scalar(dtype, bytes, Version::V2).unwrap();
        let float = |size| DType::scalar(Kind::Float, size, Order::Little);
        assert_eq!(v2(&float(8), &(-1e300f64).to_le_bytes()), -1e300);
        assert_eq!(v2(&float(4), &0.1f32.to_le_bytes()), f64::from(0.1f32));
        assert_eq!(v2(&float(4), &f32::NEG_INFINITY.to_le_bytes()), "-Infinity");
        assert_eq!(v2(&float(2), &[0, 0x3c]), 1.0);
        let complex = DType::scalar(Kind::Complex, 8, Order::Big);
        let bytes = [1f32.to_be_bytes(), f32::NAN.to_be_bytes()].concat();
        assert_eq!(v2(&complex, &bytes), json!([1.0, "NaN"]));
        let wide = DType::scalar(Kind::Uint, 8, Order::Little);
        assert_eq!(v2(&wide, &[255; 8]), u64::MAX);
        assert_eq!(v2(&DType::bytes(2), b"a\0"), "YQA=");
        assert_eq!(v2(&DType::text(2), &[b'x', 0, 0, 0, 0, 0, 0, 0]), "x");
        assert_eq!(v2(&DType::scalar(Kind::Bool, 1, Order::None), &[1]), true);
        assert!(scalar(&float(8), &[0; 4], Version::V2).is_none());
    }

    #[test]
    fn unusual_nans_keep_their_bits_in_version_3() {
        let dtype = DType::scalar(Kind::Float, 4, Order::Little);
        let bytes = 0x7fc0_0001u32.to_le_bytes();
        assert_eq!(scalar(&dtype, &bytes, Version::V3).unwrap(), "0x7fc00001");
        assert_eq!(scalar(&dtype, &bytes, Version::V2).unwrap(), "NaN");
        let usual = f32::NAN.to_le_bytes();
        assert_eq!(scalar(&dtype, &usual, Version::V3).unwrap(), "NaN");
    }

    #[test]
    fn a_missing_value_of_another_type_stays_an_attribute() {
        let dtype = DType::int(2);
        let attribute = |dtype: DType, data: &[u8]| Attribute::new(FILL_VALUE, dtype, &[1], data);
        let of = |attribute, version| Missing::find(&[attribute], &Element::Fixed(&dtype), version);
        let wide = || attribute(DType::int(4), &[7, 0, 0, 0]);
        let found = of(wide(), Version::V2);
        assert_eq!((found.element, found.attribute), (None, Some(7.into())));
        assert_eq!(of(wide(), Version::V3).attribute, Some(7.into()));
        let big = attribute(DType::scalar(Kind::Int, 2, Order::Big), &[0, 7]);
        assert_eq!(of(big, Version::V2).element, Some(7.into()));
        let nan = || {
            let dtype = DType::scalar(Kind::Float, 8, Order::Little);
            attribute(dtype, &f64::NAN.to_le_bytes())
        };
        assert_eq!(of(nan(), Version::V2).left_out.len(), 1);
        assert_eq!(of(nan(), Version::V3).left_out.len(), 1);
    }
}
