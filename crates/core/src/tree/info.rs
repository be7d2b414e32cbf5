//! Descriptions of objects as JSON, for `.npyfs/info` and `npyfs info`: values, attributes, how an object is stored,
//! and what it costs to read parts of a chunked array.

use serde_json::{Value as Json, json};

use crate::tree::Listing;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_hdf5::{Attribute, Details, Dimensions, Reference, References, Value};
use npyfs_io::hex;

/// The most elements of an array that are printed.
const MAX_ELEMENTS: usize = 1000;

/// Lists the objects that a directory leaves out, with the reasons.
pub fn left_out<'a>(entries: impl IntoIterator<Item = &'a (Vec<u8>, String)>) -> Json {
    entries
        .into_iter()
        .map(|(name, reason)| json!({ "name": String::from_utf8_lossy(name), "reason": reason }))
        .collect()
}

/// Adds to the facts about a directory what a view shows of it.
pub fn view(mut about: Json, name: &str, listing: &Listing) -> Json {
    if let Json::Object(about) = &mut about {
        about.insert("view".into(), json!(name));
        about.insert("entries".into(), json!(listing.len()));
        about.insert("left_out".into(), left_out(&listing.left_out));
        about.insert("notes".into(), json!(listing.notes));
    }
    about
}

/// Converts an array to nested lists; a long one to its first elements and their number.
pub fn value(value: &Value) -> Json {
    let size = value.dtype.size().max(1);
    let count = value.data.len() / size;
    nested(elements(value, size, MAX_ELEMENTS), count, &value.shape)
}

/// Makes nested lists of the elements in `flat`; if these are only the first of `count`, a flat list of them and the
/// number.
fn nested(mut flat: Vec<Json>, count: usize, shape: &[u64]) -> Json {
    if count > flat.len() {
        return json!({ "first": flat, "elements": count });
    }
    for &n in shape.iter().skip(1).rev() {
        let n = usize::try_from(n).unwrap_or(usize::MAX).max(1);
        flat = flat
            .chunks(n)
            .map(|row| Json::Array(row.to_vec()))
            .collect();
    }
    if shape.is_empty() {
        flat.pop().unwrap_or(Json::Null)
    } else {
        Json::Array(flat)
    }
}

/// Converts references to nested lists of target paths; long ones to the first paths and their number.
fn references(to: &References) -> Json {
    let path = |reference: &Reference| match reference {
        None => Json::Null,
        Some(path) => {
            let names = path.iter().map(|name| String::from_utf8_lossy(name));
            json!(format!("/{}", names.collect::<Vec<_>>().join("/")))
        }
    };
    let element = |element: &Vec<Reference>| {
        let mut paths: Vec<Json> = element.iter().take(MAX_ELEMENTS).map(path).collect();
        match to.sequences {
            true if element.len() > MAX_ELEMENTS => {
                json!({ "first": paths, "elements": element.len() })
            }
            true => Json::Array(paths),
            false => paths.pop().unwrap_or(Json::Null),
        }
    };
    let flat = to.elements.iter().take(MAX_ELEMENTS).map(element);
    nested(flat.collect(), to.elements.len(), &to.shape)
}

fn elements(value: &Value, size: usize, most: usize) -> Vec<Json> {
    value
        .data
        .chunks_exact(size)
        .take(most)
        .map(|bytes| element(&value.dtype, bytes))
        .collect()
}

/// Returns the bytes of one number, most significant first.
fn big_endian(bytes: &[u8], order: Order) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if order != Order::Big {
        bytes.reverse();
    }
    bytes
}

/// Converts one element to JSON. A value that JSON cannot represent (NaN, raw bytes) becomes text.
fn element(dtype: &DType, bytes: &[u8]) -> Json {
    let (kind, order) = match dtype {
        DType::Scalar { kind, order, .. } => (*kind, *order),
        DType::Struct { fields, .. } => {
            return fields
                .iter()
                .map(|f| {
                    let end = f.offset.saturating_add(f.size().unwrap_or(0));
                    let part = bytes.get(f.offset..end).unwrap_or_default();
                    let inner = Value {
                        dtype: f.dtype.clone(),
                        shape: f.shape.clone(),
                        data: part.to_vec(),
                    };
                    (f.name.clone(), value(&inner))
                })
                .collect::<serde_json::Map<_, _>>()
                .into();
        }
    };
    let wide = |bytes: &[u8]| {
        big_endian(bytes, order)
            .iter()
            .fold(0_u64, |n, &b| n << 8 | u64::from(b))
    };
    match kind {
        Kind::Bool => json!(bytes.first() != Some(&0)),
        Kind::Uint => json!(wide(bytes)),
        Kind::Int | Kind::Datetime | Kind::Timedelta => {
            let shift = 64 - 8 * bytes.len().clamp(1, 8);
            json!((wide(bytes) << shift).cast_signed() >> shift)
        }
        Kind::Float => float(&big_endian(bytes, order)),
        Kind::Complex => {
            let (re, im) = bytes.split_at(bytes.len() / 2);
            json!([float(&big_endian(re, order)), float(&big_endian(im, order))])
        }
        Kind::Bytes => {
            let end = bytes.iter().rposition(|&b| b != 0).map_or(0, |i| i + 1);
            json!(String::from_utf8_lossy(&bytes[..end]))
        }
        Kind::Text => {
            let text: String = bytes
                .chunks_exact(4)
                .map(|code| u32::try_from(wide(code)).unwrap_or(u32::MAX))
                .map(|code| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
                .collect();
            json!(text.trim_end_matches('\0'))
        }
        Kind::Void => json!(hex::encode(bytes)),
    }
}

fn float(big: &[u8]) -> Json {
    let number = match *big {
        [a, b] => half::f16::from_be_bytes([a, b]).to_f64(),
        [a, b, c, d] => {
            let single = f32::from_be_bytes([a, b, c, d]);
            // The shortest decimal of the single-precision value, not of its double.
            single.to_string().parse().unwrap_or(f64::from(single))
        }
        [a, b, c, d, e, f, g, h] => f64::from_be_bytes([a, b, c, d, e, f, g, h]),
        _ => return json!(hex::encode(big)),
    };
    serde_json::Number::from_f64(number).map_or_else(|| json!(number.to_string()), Json::Number)
}

/// Makes an object of attributes by name; an attribute that cannot be shown is replaced by the reason.
pub fn attributes(attributes: &[Attribute]) -> Json {
    attributes
        .iter()
        .map(|attr| {
            let shown = match (&attr.value, &attr.references) {
                (Ok(v), _) => value(v),
                (Err(_), Some(to)) => references(to),
                (Err(reason), None) => json!({ "not_shown": reason }),
            };
            (String::from_utf8_lossy(&attr.name).into_owned(), shown)
        })
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// Adds the layout of a dataset: chunks, filters, stored bytes.
pub fn stored(details: &Details, into: &mut serde_json::Map<String, Json>) {
    into.insert("layout".into(), json!(details.layout));
    into.insert("max_shape".into(), json!(details.max_shape));
    into.insert("chunks".into(), json!(details.chunks));
    let filters: Vec<Json> = details
        .filters
        .iter()
        .map(|f| {
            json!({ "id": f.id, "name": f.name, "parameters": f.parameters, "available": f.available })
        })
        .collect();
    into.insert("filters".into(), json!(filters));
    into.insert("stored_size".into(), json!(details.stored_size));
    if let Some(why) = &details.damage {
        into.insert("damage".into(), json!(why));
    }
}

/// Adds the cost of reading parts of a chunked dataset. `shape` includes the dimensions of an array datatype.
pub fn costs(
    details: &Details,
    dtype: &DType,
    shape: &[u64],
    into: &mut serde_json::Map<String, Json>,
) {
    let (Some(chunk), Some(stored)) = (&details.chunks, details.stored_size) else {
        return;
    };
    let (own, inner) = shape.split_at(chunk.len().min(shape.len()));
    // The stored and the shown size of text differ.
    let is_text = matches!(
        dtype,
        DType::Scalar {
            kind: Kind::Text,
            ..
        }
    );
    if is_text || own.len() != chunk.len() || own.contains(&0) {
        return;
    }
    let array = ChunkedArray {
        shape: own,
        chunk,
        element: inner
            .iter()
            .fold(dtype.size() as u64, |bytes, &n| bytes.saturating_mul(n)),
        stored,
    };
    let cost =
        |cost: Cost| json!({ "bytes": cost.bytes, "read": cost.read, "decoded": cost.decoded });
    let reads = json!({
        "row": array.row().map(cost), "column": array.column().map(cost),
        "element": cost(array.element()), "all": cost(array.all()),
    });
    into.insert("reads".into(), reads);
    if let Some(times) = array.row().and_then(|row| row.excess()) {
        into.insert("row_costs".into(), json!(times));
    }
}

/// Adds all properties in a dataset's object header. `dtype` is that of the fill value.
pub fn details(details: &Details, dtype: Option<&DType>, into: &mut serde_json::Map<String, Json>) {
    let texts = |names: &[Vec<u8>]| -> Vec<String> {
        names
            .iter()
            .map(|n| String::from_utf8_lossy(n).into_owned())
            .collect()
    };
    stored(details, into);
    let fill = dtype.zip(details.fill.as_ref()).map(|(dtype, data)| {
        let count = (data.len() / dtype.size().max(1)) as u64;
        value(&Value {
            dtype: dtype.clone(),
            shape: if count == 1 { vec![] } else { vec![count] },
            data: data.clone(),
        })
    });
    into.insert("fill_value".into(), json!(fill));
    if !details.left_out.is_empty() {
        let members = details.left_out.iter();
        let members: Json = members
            .map(|(name, reason)| json!({ "name": name, "reason": reason }))
            .collect();
        into.insert("left_out".into(), members);
    }
    if !details.outside.is_empty() {
        into.insert("outside".into(), json!(texts(&details.outside)));
    }
    axes(&details.dimensions, into);
    into.insert("attributes".into(), attributes(&details.attributes));
}

/// Adds the names of dimensions, if there are any.
pub fn axes(dimensions: &Result<Dimensions, String>, into: &mut serde_json::Map<String, Json>) {
    match dimensions {
        Ok(named) if named.dimensions.is_empty() => {}
        Ok(named) => {
            let names = named.dimensions.iter();
            let names = names.map(|dimension| dimension.name().map(String::from_utf8_lossy));
            into.insert("axes".into(), names.map(|name| json!(name)).collect());
        }
        Err(why) => {
            into.insert("axes".into(), json!({ "not_shown": why }));
        }
    }
}

/// A part that costs this many times its size justifies another layout.
const DEAR: u64 = 100;

/// A part that costs at most this many bytes is cheap, however small it is.
const CHEAP: u64 = 1 << 20;

/// A chunked array with elements.
#[derive(Clone, Copy, Debug)]
struct ChunkedArray<'a> {
    /// Its shape.
    shape: &'a [u64],
    /// Shape of a chunk.
    chunk: &'a [u64],
    /// Bytes of an element.
    element: u64,
    /// The stored bytes of all chunks.
    stored: u64,
}

/// The cost of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    /// Bytes of the part.
    bytes: u64,
    /// Approximate bytes read: all chunks are assumed to have the same size.
    read: u64,
    /// Bytes that are decoded.
    decoded: u64,
}

impl Cost {
    /// Returns the ratio of a part's cost to its size, if it is a hundred or more.
    fn excess(&self) -> Option<u64> {
        let times = self.decoded.checked_div(self.bytes)?;
        (times >= DEAR && self.decoded > CHEAP).then_some(times)
    }
}

impl ChunkedArray<'_> {
    /// Returns the cost of one index of the first axis; `None` if that is a single element.
    fn row(&self) -> Option<Cost> {
        (self.shape.len() > 1).then(|| self.one_along(&[0]))
    }

    /// Returns the cost of one index of the last axis; `None` if that is a single element.
    fn column(&self) -> Option<Cost> {
        (self.shape.len() > 1).then(|| self.one_along(&[self.shape.len() - 1]))
    }

    /// Returns the cost of one element.
    fn element(&self) -> Cost {
        let all: Vec<usize> = (0..self.shape.len()).collect();
        self.one_along(&all)
    }

    /// Returns the cost of the whole array.
    fn all(&self) -> Cost {
        self.one_along(&[])
    }

    /// Returns the cost of a part with one index along `axes`, and the full extent of the other axes.
    fn one_along(&self, axes: &[usize]) -> Cost {
        let product = |dims: &mut dyn Iterator<Item = u64>| dims.fold(1, u64::saturating_mul);
        let along =
            |k: usize| self.shape[k].div_ceil(self.chunk.get(k).copied().unwrap_or(1).max(1));
        let others = || (0..self.shape.len()).filter(|k| !axes.contains(k));
        let bytes = product(&mut others().map(|k| self.shape[k])).saturating_mul(self.element);
        let touched = product(&mut others().map(along));
        let chunks = product(&mut (0..self.shape.len()).map(along)).max(1);
        let chunk = product(&mut self.chunk.iter().copied()).saturating_mul(self.element);
        let read = u128::from(self.stored) * u128::from(touched) / u128::from(chunks);
        Cost {
            bytes,
            read: u64::try_from(read).unwrap_or(u64::MAX),
            decoded: chunk.saturating_mul(touched),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(dtype: DType, shape: &[u64], data: &[u8]) -> Json {
        value(&Value {
            dtype,
            shape: shape.to_vec(),
            data: data.to_vec(),
        })
    }

    #[test]
    fn values_of_every_kind_have_a_json_form() {
        let le = |kind, size| DType::scalar(kind, size, Order::Little);
        assert_eq!(
            shown(le(Kind::Int, 2), &[2], &[1, 0, 255, 255]),
            json!([1, -1])
        );
        assert_eq!(
            shown(DType::scalar(Kind::Uint, 2, Order::Big), &[], &[1, 2]),
            json!(258)
        );
        assert_eq!(shown(le(Kind::Float, 2), &[], &[0, 0x3c]), json!(1.0));
        assert_eq!(
            shown(le(Kind::Float, 4), &[], &0.1_f32.to_le_bytes()),
            json!(0.1)
        );
        assert_eq!(
            shown(le(Kind::Float, 8), &[], &f64::NAN.to_le_bytes()),
            json!("NaN")
        );
        assert_eq!(shown(DType::bytes(3), &[], b"ab\0"), json!("ab"));
        assert_eq!(
            shown(DType::text(2), &[], &[0xe9, 0, 0, 0, 0, 0, 0, 0]),
            json!("\u{e9}")
        );
        assert_eq!(
            shown(le(Kind::Int, 1), &[2, 2], &[1, 2, 3, 4]),
            json!([[1, 2], [3, 4]])
        );
    }

    #[test]
    fn parts_cost_the_chunks_that_they_touch() {
        let array = ChunkedArray {
            shape: &[1000, 1000],
            chunk: &[500, 10],
            element: 8,
            stored: 2_000_000,
        };
        let cost = |bytes, read, decoded| Cost {
            bytes,
            read,
            decoded,
        };
        assert_eq!(array.row(), Some(cost(8000, 1_000_000, 4_000_000)));
        assert_eq!(array.column(), Some(cost(8000, 20_000, 80_000)));
        assert_eq!(array.element(), cost(8, 10_000, 40_000));
        assert_eq!(array.all(), cost(8_000_000, 2_000_000, 8_000_000));
        assert_eq!(array.row().and_then(|row| row.excess()), Some(500));
        // Many times its size, but not many bytes.
        assert_eq!(array.element().excess(), None);
        let vector = ChunkedArray {
            shape: &[10],
            chunk: &[100],
            element: 8,
            stored: 800,
        };
        assert_eq!((vector.row(), vector.column()), (None, None));
        assert_eq!(vector.all(), cost(80, 800, 800));
    }
}
