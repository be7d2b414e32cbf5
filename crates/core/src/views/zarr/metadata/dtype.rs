//! Element types in the spelling of Zarr, as far as zarr-python 3.1 reads them.
//!
//! Structured types become flat: members of members are shown as `outer.inner`, elements of a subarray as `name.0`, and
//! gaps as members of raw bytes. The bytes of an element stay unchanged.

use serde_json::{Value as Json, json};

use npyfs_base::npy::dtype::{DType, Field, Kind, Order};

/// The largest number of members of a structured type, including nested ones.
const MAX_MEMBERS: usize = 1024;

/// Returns the `dtype` of version 2, or the reason why there is none.
pub(super) fn v2(dtype: &DType) -> Result<Json, String> {
    let DType::Struct { fields, size } = dtype else {
        return check(dtype).map(|()| dtype.name().into());
    };
    let members = flat(fields, *size)?;
    Ok(members
        .into_iter()
        .map(|(name, dtype)| json!([name, dtype.name()]))
        .collect())
}

/// Returns the `data_type` of version 3 and the codec that makes it from bytes, or the reason why there is none.
pub(super) fn v3(dtype: &DType) -> Result<(Json, Json), String> {
    let DType::Struct { fields, size } = dtype else {
        check(dtype)?;
        let codec = match order(dtype) {
            Order::None => json!({ "name": "bytes" }),
            Order::Little => json!({ "name": "bytes", "configuration": { "endian": "little" } }),
            Order::Big => json!({ "name": "bytes", "configuration": { "endian": "big" } }),
        };
        return Ok((scalar_v3(dtype), codec));
    };
    let members = flat(fields, *size)?;
    if let Some((name, _)) = members.iter().find(|(_, ty)| order(ty) == Order::Big) {
        return Err(format!(
            "member {name} is big-endian, which structured types of Zarr v3 cannot be"
        ));
    }
    let fields: Json = members
        .iter()
        .map(|(name, dtype)| json!([name, scalar_v3(dtype)]))
        .collect();
    let data_type = json!({ "name": "structured", "configuration": { "fields": fields } });
    Ok((data_type, json!({ "name": "bytes" })))
}

fn order(dtype: &DType) -> Order {
    match dtype {
        DType::Scalar { order, .. } => *order,
        DType::Struct { .. } => Order::None,
    }
}

/// Fails with the reason if readers of Zarr do not know a scalar type.
fn check(dtype: &DType) -> Result<(), String> {
    match dtype {
        DType::Scalar { kind, size, .. } => match (kind, size) {
            (_, 0) => Err("elements without bytes, which Zarr does not have".into()),
            (Kind::Float, 9..) | (Kind::Complex, 17..) => {
                Err("long double, which Zarr does not have".into())
            }
            _ => Ok(()),
        },
        DType::Struct { .. } => Err("a structured type inside another".into()),
    }
}

fn scalar_v3(dtype: &DType) -> Json {
    let DType::Scalar {
        kind, size, unit, ..
    } = dtype
    else {
        return Json::Null;
    };
    let bits = size.saturating_mul(8);
    let of_length = |name: &str| json!({ "name": name, "configuration": { "length_bytes": size } });
    match kind {
        Kind::Bool => "bool".into(),
        Kind::Int => format!("int{bits}").into(),
        Kind::Uint => format!("uint{bits}").into(),
        Kind::Float => format!("float{bits}").into(),
        Kind::Complex => format!("complex{bits}").into(),
        Kind::Bytes => of_length("null_terminated_bytes"),
        Kind::Text => of_length("fixed_length_utf32"),
        Kind::Void => of_length("raw_bytes"),
        Kind::Datetime => of_unit("numpy.datetime64", unit),
        Kind::Timedelta => of_unit("numpy.timedelta64", unit),
    }
}

/// Returns a time type, whose unit NumPy spells `[10s]`.
fn of_unit(name: &str, unit: &str) -> Json {
    let inner = unit.trim_matches(['[', ']']);
    let digits = inner.bytes().take_while(u8::is_ascii_digit).count();
    let (factor, unit) = inner.split_at(digits);
    let factor: u64 = factor.parse().unwrap_or(1);
    let unit = if unit.is_empty() { "generic" } else { unit };
    json!({ "name": name, "configuration": { "unit": unit, "scale_factor": factor } })
}

/// Returns the members of a structured type as a flat list without gaps.
fn flat(fields: &[Field], size: usize) -> Result<Vec<(String, DType)>, String> {
    let mut members = Vec::new();
    add(&mut members, "", fields, size, 0)?;
    let mut names: Vec<&str> = members.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("two members would be called {}", twice[0]));
    }
    Ok(members)
}

/// Adds the members of a structure that begins at `start` of the element.
fn add(
    members: &mut Vec<(String, DType)>,
    prefix: &str,
    fields: &[Field],
    size: usize,
    start: usize,
) -> Result<(), String> {
    let mut end = 0;
    for field in fields {
        if field.name.is_empty() {
            return Err("a member without a name".into());
        }
        gap(members, start, end, field.offset);
        let name = format!("{prefix}{}", field.name);
        let element = field.dtype.size();
        let count = field.size().and_then(|size| size.checked_div(element));
        let Some(count) = count.filter(|&count| count <= MAX_MEMBERS) else {
            return Err(format!(
                "member {name} has more than {MAX_MEMBERS} elements"
            ));
        };
        for index in 0..count {
            let name = format!("{name}{}", suffix(index, &field.shape));
            let inner = field.offset.saturating_add(index.saturating_mul(element));
            let place = start.saturating_add(inner);
            match &field.dtype {
                DType::Struct { fields, size } => {
                    add(members, &format!("{name}."), fields, *size, place)?;
                }
                scalar => {
                    check(scalar).map_err(|reason| format!("member {name}: {reason}"))?;
                    members.push((name, scalar.clone()));
                }
            }
            if members.len() > MAX_MEMBERS {
                return Err(format!("more than {MAX_MEMBERS} members"));
            }
        }
        end = field.offset.saturating_add(field.size().unwrap_or(0));
    }
    gap(members, start, end, size);
    Ok(())
}

/// Adds a member for the bytes between two members, if there are any.
fn gap(members: &mut Vec<(String, DType)>, start: usize, from: usize, to: usize) {
    if to > from {
        let place = start.saturating_add(from);
        let bytes = DType::scalar(Kind::Void, to - from, Order::None);
        members.push((format!("_padding.{place}"), bytes));
    }
}

/// Returns `.1.2`, the place of an element in a subarray; empty for a member that is no subarray.
fn suffix(mut index: usize, shape: &[u64]) -> String {
    let mut places = Vec::with_capacity(shape.len());
    for &length in shape.iter().rev() {
        let length = usize::try_from(length).unwrap_or(usize::MAX).max(1);
        places.push(index % length);
        index /= length;
    }
    places
        .iter()
        .rev()
        .map(|place| format!(".{place}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &str, offset: usize, dtype: DType, shape: &[u64]) -> Field {
        Field {
            name: name.into(),
            offset,
            dtype,
            shape: shape.to_vec(),
        }
    }

    #[test]
    fn scalars_are_spelled_as_zarr_spells_them() {
        let big = DType::scalar(Kind::Int, 2, Order::Big);
        assert_eq!(v2(&big).unwrap(), ">i2");
        let (data_type, codec) = v3(&big).unwrap();
        assert_eq!(data_type, "int16");
        assert_eq!(codec["configuration"]["endian"], "big");
        let byte = DType::scalar(Kind::Uint, 1, Order::Little);
        assert_eq!(
            v3(&byte).unwrap(),
            (json!("uint8"), json!({ "name": "bytes" }))
        );
        let (text, _) = v3(&DType::text(3)).unwrap();
        assert_eq!(text["configuration"]["length_bytes"], 12);
        assert!(v2(&DType::scalar(Kind::Float, 16, Order::Little)).is_err());
        assert!(v3(&DType::bytes(0)).is_err());
    }

    #[test]
    fn units_of_times_are_taken_apart() {
        let unit = |text| of_unit("numpy.datetime64", text)["configuration"].clone();
        assert_eq!(unit("[10s]"), json!({ "unit": "s", "scale_factor": 10 }));
        assert_eq!(unit("[ns]"), json!({ "unit": "ns", "scale_factor": 1 }));
        assert_eq!(unit(""), json!({ "unit": "generic", "scale_factor": 1 }));
    }

    #[test]
    fn structures_become_flat_and_keep_their_bytes() {
        let inner = DType::Struct {
            fields: vec![
                field("x", 0, DType::int(4), &[]),
                field("y", 4, DType::int(2), &[]),
            ],
            size: 8,
        };
        let dtype = DType::Struct {
            fields: vec![
                field("a", 0, DType::int(1), &[]),
                field("p", 4, inner, &[2]),
                field("m", 20, DType::int(1), &[2, 2]),
            ],
            size: 24,
        };
        assert_eq!(
            v2(&dtype).unwrap(),
            json!([
                ["a", "|i1"],
                ["_padding.1", "|V3"],
                ["p.0.x", "<i4"],
                ["p.0.y", "<i2"],
                ["_padding.10", "|V2"],
                ["p.1.x", "<i4"],
                ["p.1.y", "<i2"],
                ["_padding.18", "|V2"],
                ["m.0.0", "|i1"],
                ["m.0.1", "|i1"],
                ["m.1.0", "|i1"],
                ["m.1.1", "|i1"],
            ])
        );
        let (data_type, _) = v3(&dtype).unwrap();
        assert_eq!(
            data_type["configuration"]["fields"][2],
            json!(["p.0.x", "int32"])
        );
    }

    #[test]
    fn structures_that_no_reader_takes_are_refused() {
        let of = |fields| DType::Struct { fields, size: 8 };
        let clash = of(vec![
            field("a", 0, DType::int(1), &[2]),
            field("a.1", 2, DType::int(1), &[]),
        ]);
        assert!(v2(&clash).is_err());
        let big = of(vec![field(
            "a",
            0,
            DType::scalar(Kind::Int, 8, Order::Big),
            &[],
        )]);
        assert_eq!(v2(&big).unwrap(), json!([["a", ">i8"]]));
        assert!(v3(&big).is_err());
        let long = of(vec![field("a", 0, DType::bytes(1), &[1 << 40])]);
        assert!(v2(&long).is_err());
        assert!(v2(&of(vec![field("", 0, DType::int(8), &[])])).is_err());
    }
}
