//! HDF5 datatypes in NumPy's terms, or the reason why `.npy` cannot hold one.
//!
//! `element` determines the form of a dataset's elements; `memory_type` returns the HDF5 type for reading them. Types
//! follow h5py: an enum is its base integer, FALSE/TRUE a boolean, (r, i) complex.
//!
//! A compound is a structured dtype. Its members stay at the offsets of the file, gaps included, as long as their shown
//! form fits there. If it does not, or if a member is left out or contains text, the members follow one another without
//! gaps.

use std::ops::Range;

use super::ffi::{self, Class, Failure, Id};
use npyfs_base::npy;
use npyfs_base::npy::dtype::{DType, Field, Kind, Order};
use npyfs_hdf5::protocol::{ElementType, REFERENCES, RecordMember, RecordPart};

/// A member of a compound, by its path, and the reason why it is not shown.
pub(super) type OmittedMember = (String, String);

/// The error for a type that has no `.npy` form, or on which libhdf5 failed.
#[derive(Debug, thiserror::Error)]
pub enum TypeError {
    /// The reason, for people, why `.npy` cannot hold the type.
    #[error("{0}")]
    Unsupported(String),
    /// libhdf5 failed.
    #[error(transparent)]
    Failure(#[from] Failure),
}

/// The deepest nesting of compound and array types that is followed.
const MAX_DEPTH: usize = 32;

/// The largest number of gaps of an element that are filled with zeros; further gaps keep their stored bytes.
const MAX_GAPS: usize = 1 << 12;

/// The form in which a type is shown.
struct ShownType {
    part: RecordPart,
    /// The stored bytes differ from the served ones: libhdf5 must convert.
    convert: bool,
    /// h5py reads another type than the stored one, though the bytes are the same: h5py then rebuilds an enclosing
    /// compound, with zeros in its gaps.
    foreign: bool,
    /// The gaps in bytes that are zeros for that reason, whatever is stored there.
    gaps: Vec<Range<usize>>,
    left_out: Vec<OmittedMember>,
}

impl ShownType {
    /// Makes the form of a type without gaps and without omitted members.
    fn new(part: RecordPart, convert: bool) -> Self {
        Self {
            part,
            convert,
            foreign: false,
            gaps: Vec::new(),
            left_out: Vec::new(),
        }
    }
}

/// A member as it is shown.
struct CompoundMember {
    name: String,
    /// The offset of the member in an element of the file.
    offset: usize,
    /// The shape of a subarray.
    shape: Vec<u64>,
    part: RecordPart,
    /// As in [`ShownType`], like the two below.
    convert: bool,
    foreign: bool,
    gaps: Vec<Range<usize>>,
}

/// The last type that was examined: the datasets of a group mostly share one.
#[derive(Default)]
pub(super) struct TypeCache(Option<(Id, ElementType)>);

impl TypeCache {
    /// Returns the form in which elements of a datatype are shown.
    ///
    /// Not for text, nor for what has text inside: types that differ in their character set only are equal to libhdf5.
    pub(super) fn element(&mut self, ty: Id) -> Result<ElementType, TypeError> {
        if ffi::class(&ty) == Class::H5T_STRING {
            return element(&ty);
        }
        if let Some((known, element)) = &self.0
            && ffi::equal(known, &ty)
        {
            return Ok(element.clone());
        }
        let found = element(&ty)?;
        if !matches!(found, ElementType::Record { .. }) {
            self.0 = Some((ty, found.clone()));
        }
        Ok(found)
    }
}

/// Returns the form in which elements of a datatype are shown.
pub(super) fn element(ty: &Id) -> Result<ElementType, TypeError> {
    match ffi::class(ty) {
        Class::H5T_STRING if ffi::is_variable_string(ty) => Ok(ElementType::Text {
            fixed: None,
            utf8: ffi::is_utf8(ty),
        }),
        Class::H5T_STRING if ffi::is_utf8(ty) => Ok(ElementType::Text {
            fixed: Some(ffi::size(ty)),
            utf8: true,
        }),
        _ => {
            let (shown, inner) = with_dims(ty, 0)?;
            Ok(match shown.part {
                RecordPart::Plain(dtype) => ElementType::Fixed {
                    dtype,
                    inner,
                    convert: shown.convert,
                },
                part => ElementType::Record { part, inner },
            })
        }
    }
}

/// Returns the element type of sequences, and the type for reading them; `None` for a datatype that is no sequence.
pub(super) fn sequence(ty: &Id) -> Result<Option<(DType, Id)>, TypeError> {
    if ffi::class(ty) != Class::H5T_VLEN {
        return Ok(None);
    }
    let stored = ffi::super_type(ty)?;
    match element(&stored)? {
        ElementType::Fixed {
            dtype,
            inner,
            convert,
        } if inner.is_empty() => {
            let mem_type = memory_type(&dtype, convert, stored)?;
            Ok(Some((dtype, mem_type)))
        }
        _ => unsupported("variable-length sequences of text or arrays"),
    }
}

/// Returns the members of compounds in a datatype that `.npy` cannot hold; empty if the whole datatype is left out.
pub(super) fn left_out(ty: &Id) -> Vec<OmittedMember> {
    with_dims(ty, 0).map_or(Vec::new(), |(shown, _)| shown.left_out)
}

/// Returns the gaps in the elements of a datatype, in bytes of the shown element, that are zeros whatever is stored
/// there.
pub(super) fn gaps(ty: &Id) -> Vec<Range<usize>> {
    with_dims(ty, 0).map_or(Vec::new(), |(shown, _)| shown.gaps)
}

/// Returns the type for reading elements: `stored` itself, or that of `dtype` if they must be converted.
pub(super) fn memory_type(dtype: &DType, convert: bool, stored: Id) -> Result<Id, Failure> {
    if convert {
        converted(dtype, &stored)
    } else {
        Ok(stored)
    }
}

fn converted(dtype: &DType, stored: &Id) -> Result<Id, Failure> {
    if ffi::class(stored) == Class::H5T_ARRAY {
        let base = converted(dtype, &ffi::super_type(stored)?)?;
        return ffi::array_type(&base, &ffi::array_dims(stored)?);
    }
    // A member that is served in its stored form keeps its stored type: not every type has a conversion.
    if matches!(single(stored, 0), Ok(shown) if !shown.convert) {
        return ffi::copy_type(stored);
    }
    match dtype {
        DType::Scalar {
            kind, size, order, ..
        } => {
            let big = *order == Order::Big;
            match kind {
                Kind::Int => ffi::int_type(*size, true, big),
                Kind::Uint => ffi::int_type(*size, false, big),
                Kind::Float => ffi::float_type(*size, big),
                Kind::Complex => {
                    let half = size / 2;
                    let part = |name: &[u8], offset| {
                        ffi::float_type(half, big).map(|ty| (name.to_vec(), offset, ty))
                    };
                    ffi::compound_type(*size, &[part(b"r", 0)?, part(b"i", half)?])
                }
                Kind::Bool => ffi::bool_type(),
                Kind::Bytes => ffi::null_padded(stored),
                Kind::Text | Kind::Void | Kind::Datetime | Kind::Timedelta => {
                    ffi::copy_type(stored)
                }
            }
        }
        DType::Struct { fields, size } => {
            let members = ffi::members(stored)?
                .into_iter()
                .filter_map(|(name, _, ty)| {
                    let field = fields.iter().find(|f| f.name.as_bytes() == name)?;
                    Some(converted(&field.dtype, &ty).map(|ty| (name, field.offset, ty)))
                })
                .collect::<Result<Vec<_>, Failure>>()?;
            ffi::compound_type(*size, &members)
        }
    }
}

/// Returns the form of a type without its array dimensions, and the dimensions.
fn with_dims(ty: &Id, depth: usize) -> Result<(ShownType, Vec<u64>), TypeError> {
    if depth > MAX_DEPTH {
        return unsupported("datatype nested too deeply");
    }
    if ffi::class(ty) == Class::H5T_ARRAY {
        let mut dims = ffi::array_dims(ty)?;
        let (shown, inner) = with_dims(&ffi::super_type(ty)?, depth + 1)?;
        dims.extend(inner);
        return Ok((shown, dims));
    }
    Ok((single(ty, depth)?, Vec::new()))
}

fn single(ty: &Id, depth: usize) -> Result<ShownType, TypeError> {
    match ffi::class(ty) {
        Class::H5T_STRING if ffi::is_variable_string(ty) => {
            let utf8 = ffi::is_utf8(ty);
            Ok(ShownType::new(RecordPart::Text { utf8 }, true))
        }
        Class::H5T_COMPOUND => compound(ty, depth),
        class => {
            let (dtype, convert) = scalar(ty, depth)?;
            let foreign = match class {
                Class::H5T_BITFIELD | Class::H5T_COMPLEX => true,
                Class::H5T_ENUM => !ffi::is_bool_enum(ty),
                _ => false,
            };
            Ok(ShownType {
                foreign,
                ..ShownType::new(RecordPart::Plain(dtype), convert)
            })
        }
    }
}

fn scalar(ty: &Id, depth: usize) -> Result<(DType, bool), TypeError> {
    if depth > MAX_DEPTH {
        return unsupported("datatype nested too deeply");
    }
    let size = ffi::size(ty);
    match ffi::class(ty) {
        Class::H5T_INTEGER => integer(ty, size),
        Class::H5T_FLOAT => float(ty, size),
        Class::H5T_BITFIELD => match size {
            1 | 2 | 4 | 8 => Ok((DType::scalar(Kind::Uint, size, byte_order(ty)?), false)),
            _ => unsupported(format!("bitfield of {size} bytes")),
        },
        Class::H5T_STRING => Ok((DType::bytes(size), !ffi::is_null_padded(ty))),
        Class::H5T_OPAQUE => Ok((opaque(&ffi::tag(ty), size), false)),
        Class::H5T_ENUM => {
            if ffi::is_bool_enum(ty) {
                return Ok((DType::scalar(Kind::Bool, 1, Order::None), size != 1));
            }
            scalar(&ffi::super_type(ty)?, depth + 1)
        }
        Class::H5T_COMPLEX => complex(ty, size, depth),
        Class::H5T_ARRAY => unsupported("array type"),
        Class::H5T_VLEN => unsupported("variable-length sequences"),
        Class::H5T_REFERENCE => unsupported(REFERENCES),
        Class::H5T_TIME => unsupported("HDF5 time type"),
        _ => unsupported("unknown datatype class"),
    }
}

fn byte_order(ty: &Id) -> Result<Order, TypeError> {
    match ffi::order(ty) {
        ffi::ByteOrder::H5T_ORDER_LE | ffi::ByteOrder::H5T_ORDER_NONE => Ok(Order::Little),
        ffi::ByteOrder::H5T_ORDER_BE => Ok(Order::Big),
        _ => unsupported("byte order other than little or big"),
    }
}

/// Widens integers of odd sizes or with unused bits to the next standard one.
fn integer(ty: &Id, size: usize) -> Result<(DType, bool), TypeError> {
    let order = byte_order(ty)?;
    let signed = ffi::signed(ty);
    let kind = if signed { Kind::Int } else { Kind::Uint };
    let Some(shown) = [1, 2, 4, 8].into_iter().find(|&s| s >= size) else {
        return unsupported(format!("integer of {size} bytes"));
    };
    let standard = ffi::int_type(shown, signed, order == Order::Big)?;
    Ok((
        DType::scalar(kind, shown, order),
        !ffi::equal(ty, &standard),
    ))
}

/// Leaves IEEE floats as they are; widens others (bfloat16, FP8, reduced ones) to the smallest that holds them.
fn float(ty: &Id, size: usize) -> Result<(DType, bool), TypeError> {
    let order = byte_order(ty)?;
    let big = order == Order::Big;
    if matches!(size, 2 | 4 | 8) && ffi::equal(ty, &ffi::float_type(size, big)?) {
        return Ok((DType::scalar(Kind::Float, size, order), false));
    }
    let long = ffi::float_type(16, false)?;
    if ffi::equal(ty, &long) {
        return Ok((DType::scalar(Kind::Float, 16, Order::Little), false));
    }
    let (exponent, mantissa) = ffi::float_fields(ty)?;
    // The x87 mantissa of 64 bits holds its leading one.
    let shown = match (exponent, mantissa) {
        (..=5, ..=10) => 2,
        (..=8, ..=23) => 4,
        (..=11, ..=52) => 8,
        (..=15, ..=64) => return Ok((DType::scalar(Kind::Float, 16, Order::Little), true)),
        _ => return unsupported(format!("float with a mantissa of {mantissa} bits")),
    };
    Ok((DType::scalar(Kind::Float, shown, order), true))
}

/// Returns the dtype of opaque bytes: h5py stores what HDF5 has no type for with the tag `NUMPY:<dtype>`.
fn opaque(tag: &str, size: usize) -> DType {
    tag.strip_prefix("NUMPY:")
        .and_then(|name| npy::parse::scalar(name).ok())
        .filter(|dtype| dtype.size() == size)
        .unwrap_or_else(|| DType::scalar(Kind::Void, size, Order::None))
}

/// Returns the dtype of the native complex class of HDF5 2.0: two floats, real part first.
fn complex(ty: &Id, size: usize, depth: usize) -> Result<(DType, bool), TypeError> {
    let (part, convert) = scalar(&ffi::super_type(ty)?, depth + 1)?;
    if convert {
        return unsupported("complex numbers of an unusual float");
    }
    if part.size().checked_mul(2) != Some(size) {
        return unsupported("complex type of an odd size");
    }
    Ok((pair(part, size, ["r", "i"]), false))
}

/// Returns the dtype of a pair: complex for floats of 4, 8 and 16 bytes, else a structure.
fn pair(part: DType, size: usize, names: [&str; 2]) -> DType {
    match &part {
        DType::Scalar {
            kind: Kind::Float,
            order,
            size: 4 | 8 | 16,
            ..
        } => DType::scalar(Kind::Complex, size, *order),
        _ => DType::Struct {
            fields: (0..2)
                .map(|i| Field {
                    name: names[i].to_owned(),
                    offset: i * part.size(),
                    dtype: part.clone(),
                    shape: vec![],
                })
                .collect(),
            size,
        },
    }
}

/// Returns the form in which a compound is shown: a structured dtype.
fn compound(ty: &Id, depth: usize) -> Result<ShownType, TypeError> {
    let size = ffi::size(ty);
    let (mut members, left_out) = shown_members(ty, depth)?;
    if members.is_empty() {
        let why: Vec<_> = left_out
            .iter()
            .map(|(name, why)| format!("member {name}: {why}"))
            .collect();
        return unsupported(match why.is_empty() {
            true => "compound without members".to_owned(),
            false => why.join("; "),
        });
    }
    if let Some(complex) = complex_members(&members, size) {
        return Ok(complex);
    }
    members.sort_by_key(|member| member.offset);
    if members.iter().any(|member| member.part.has_text()) {
        let plain = |member: CompoundMember| RecordMember {
            name: member.name,
            shape: member.shape,
            part: member.part,
        };
        let part = RecordPart::Struct(members.into_iter().map(plain).collect());
        return Ok(ShownType {
            left_out,
            ..ShownType::new(part, true)
        });
    }
    let convert = members.iter().any(|member| member.convert);
    let foreign = members.iter().any(|member| member.foreign);
    let inner: Vec<_> = members
        .iter_mut()
        .map(|member| std::mem::take(&mut member.gaps))
        .collect();
    let fields: Vec<Field> = members
        .into_iter()
        .filter_map(|member| match member.part {
            RecordPart::Plain(dtype) => Some(Field {
                name: member.name,
                offset: member.offset,
                dtype,
                shape: member.shape,
            }),
            _ => None,
        })
        .collect();
    let (dtype, convert) = match (fits(&fields, size)?, left_out.is_empty(), convert) {
        (true, true, convert) => (DType::Struct { fields, size }, convert),
        (false, true, false) => return unsupported("members that overlap"),
        _ => (packed(fields)?, true),
    };
    let mut gaps = Vec::new();
    if let DType::Struct { fields, size } = &dtype {
        if (convert || foreign) && left_out.is_empty() {
            own_gaps(fields, *size, &mut gaps);
        }
        inner_gaps(fields, &inner, &mut gaps);
    }
    gaps.truncate(MAX_GAPS);
    Ok(ShownType {
        part: RecordPart::Plain(dtype),
        convert: convert || !gaps.is_empty(),
        foreign,
        gaps,
        left_out,
    })
}

/// Adds the gaps between the members of a structure.
fn own_gaps(fields: &[Field], size: usize, gaps: &mut Vec<Range<usize>>) {
    let mut end = 0;
    for field in fields {
        gaps.push(end..field.offset);
        end = field.offset + field.size().unwrap_or(0);
    }
    gaps.push(end..size);
    gaps.retain(|gap| !gap.is_empty());
}

/// Adds the gaps inside the members, once for each element of a subarray.
fn inner_gaps(fields: &[Field], inner: &[Vec<Range<usize>>], gaps: &mut Vec<Range<usize>>) {
    for (field, inner) in fields.iter().zip(inner) {
        let len = field.dtype.size();
        if inner.is_empty() || len == 0 {
            continue;
        }
        for at in (0..field.size().unwrap_or(0)).step_by(len) {
            if gaps.len() > MAX_GAPS {
                return;
            }
            let at = field.offset + at;
            gaps.extend(inner.iter().map(|gap| at + gap.start..at + gap.end));
        }
    }
}

/// Returns the members in the order of the file, and the omitted ones.
fn shown_members(
    ty: &Id,
    depth: usize,
) -> Result<(Vec<CompoundMember>, Vec<OmittedMember>), TypeError> {
    let mut members = Vec::new();
    let mut left_out = Vec::new();
    for (name, offset, member) in ffi::members(ty)? {
        let name = match String::from_utf8(name) {
            Ok(name) => name,
            Err(e) => {
                let name = String::from_utf8_lossy(e.as_bytes()).into_owned();
                left_out.push((name, "a name that is not UTF-8".to_owned()));
                continue;
            }
        };
        match with_dims(&member, depth + 1) {
            Ok((shown, shape)) => {
                let below = |(inner, why)| (format!("{name}.{inner}"), why);
                left_out.extend(shown.left_out.into_iter().map(below));
                members.push(CompoundMember {
                    name,
                    offset,
                    shape,
                    part: shown.part,
                    convert: shown.convert,
                    foreign: shown.foreign,
                    gaps: shown.gaps,
                });
            }
            Err(TypeError::Unsupported(why)) => left_out.push((name, why)),
            Err(failure) => return Err(failure),
        }
    }
    Ok((members, left_out))
}

/// Returns the form of h5py's complex numbers: two floats called r and i, in this order, at any offsets.
fn complex_members(members: &[CompoundMember], size: usize) -> Option<ShownType> {
    let [r, i] = members else { return None };
    if (r.name.as_str(), i.name.as_str()) != ("r", "i") || r.part != i.part {
        return None;
    }
    let RecordPart::Plain(part) = &r.part else {
        return None;
    };
    let is_float = matches!(
        part,
        DType::Scalar {
            kind: Kind::Float,
            ..
        }
    );
    let whole = part.size().checked_mul(2)?;
    let dtype = pair(part.clone(), whole, ["r", "i"]);
    let is_complex = matches!(
        dtype,
        DType::Scalar {
            kind: Kind::Complex,
            ..
        }
    );
    let single = r.shape.is_empty() && i.shape.is_empty();
    if !(is_float && is_complex && single) {
        return None;
    }
    let in_place = (r.offset, i.offset, size) == (0, part.size(), whole);
    let convert = r.convert || i.convert || !in_place;
    Some(ShownType::new(RecordPart::Plain(dtype), convert))
}

fn too_large<T>(name: &str) -> Result<T, TypeError> {
    unsupported(format!("member {name} is too large"))
}

/// Returns true if each member ends before the next begins, and the last before the end.
fn fits(fields: &[Field], size: usize) -> Result<bool, TypeError> {
    let mut end = 0;
    for field in fields {
        let Some(next) = (field.size()).and_then(|len| field.offset.checked_add(len)) else {
            return too_large(&field.name);
        };
        if field.offset < end {
            return Ok(false);
        }
        end = next;
    }
    Ok(end <= size)
}

/// Makes a structure of the members, one after the other.
fn packed(mut fields: Vec<Field>) -> Result<DType, TypeError> {
    let mut size = 0_usize;
    for field in &mut fields {
        field.offset = size;
        let Some(next) = field.size().and_then(|len| size.checked_add(len)) else {
            return too_large(&field.name);
        };
        size = next;
    }
    Ok(DType::Struct { fields, size })
}

/// Fails with the reason why `.npy` cannot hold a type.
fn unsupported<T>(reason: impl Into<String>) -> Result<T, TypeError> {
    Err(TypeError::Unsupported(reason.into()))
}
