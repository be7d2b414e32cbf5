//! The form of compounds: structured dtypes, with the member layout of h5py.
//!
//! Members stay at the offsets of the file, gaps included, as long as their shown form fits there. If it does not, or
//! if a member is left out or contains text, the members follow one another without gaps.

use std::ops::Range;

use super::{OmittedMember, ShownType, TypeError, pair, unsupported, with_dims};
use crate::ffi::{self, Id};
use npyfs_base::npy::dtype::{DType, Field, Kind};
use npyfs_hdf5::protocol::{RecordMember, RecordPart};

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

/// The largest number of gaps of an element that are filled with zeros; further gaps keep their stored bytes.
const MAX_GAPS: usize = 1 << 12;

/// Returns the form in which a compound is shown.
pub(super) fn shown(ty: &Id, depth: usize) -> Result<ShownType, TypeError> {
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
    if let Some(complex) = complex(&members, size) {
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
fn complex(members: &[CompoundMember], size: usize) -> Option<ShownType> {
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
