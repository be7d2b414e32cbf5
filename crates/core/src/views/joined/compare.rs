//! Decides which arrays of several stores can be joined: compares their properties and their beginnings.

use super::array::Part;
use crate::tree::array::{ArrayDescription, Elements, place_of};
use crate::tree::info;
use npyfs_hdf5::{Attribute, Value};

/// Attributes that affect the meaning of elements: with other `units`, the same numbers would be other times.
const CODING: [&str; 12] = [
    "_FillValue",
    "_Unsigned",
    "add_offset",
    "bounds",
    "calendar",
    "coordinates",
    "flag_meanings",
    "flag_values",
    "grid_mapping",
    "missing_value",
    "scale_factor",
    "units",
];

/// Arrays without the dimension are compared up to this many bytes.
const COMPARED: u64 = 1 << 20;

fn coding<'a>(
    attributes: &'a [Attribute],
    name: &str,
) -> Option<&'a std::result::Result<Value, String>> {
    let mut named = attributes.iter().filter(|one| one.name == name.as_bytes());
    named.next().map(|one| &one.value)
}

fn equal(
    a: Option<&std::result::Result<Value, String>>,
    b: Option<&std::result::Result<Value, String>>,
) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(Ok(a)), Some(Ok(b))) => a.dtype == b.dtype && a.shape == b.shape && a.data == b.data,
        (Some(Err(a)), Some(Err(b))) => a == b,
        _ => false,
    }
}

/// Returns the value of an attribute in words.
fn value_of(value: Option<&std::result::Result<Value, String>>) -> String {
    match value {
        None => "missing".to_owned(),
        Some(Ok(value)) => info::value(value).to_string(),
        Some(Err(why)) => why.clone(),
    }
}

/// Checks that two arrays have the same type, meaning and dimensions, except for the length of dimension `axis`.
pub(super) fn same(
    first: &Part,
    other: &Part,
    axis: Option<usize>,
    along: &str,
) -> Result<(), String> {
    let (a, b) = (&first.of, &other.of);
    if a.elements != b.elements {
        return Err("another type".to_owned());
    }
    let dimensions = |of: &ArrayDescription| -> Option<Vec<Vec<u8>>> {
        let named = of.details.dimensions.as_ref().ok()?;
        let names = named.dimensions.iter();
        Some(
            names
                .map(|one| one.name().unwrap_or_default().to_vec())
                .collect(),
        )
    };
    if dimensions(a) != dimensions(b) {
        return Err(format!("dimensions of other names (joined along {along})"));
    }
    let is_same = |k: usize| Some(k) == axis || a.shape[k] == b.shape[k];
    if a.shape.len() != b.shape.len() || !(0..a.shape.len()).all(is_same) {
        return Err(format!("shape {:?}, not {:?}", b.shape, a.shape));
    }
    if a.details.fill != b.details.fill {
        return Err("another fill value".to_owned());
    }
    for name in CODING {
        if !equal(
            coding(&a.details.attributes, name),
            coding(&b.details.attributes, name),
        ) {
            let text = |part: &Part| value_of(coding(&part.of.details.attributes, name));
            return Err(format!("{name} {}, not {}", text(other), text(first)));
        }
    }
    Ok(())
}

/// The beginning of an array, which must be the same in all stores: the first MiB of chunks, and at least one chunk.
pub(super) struct Beginning(Vec<(Vec<u64>, Vec<u8>)>);

impl Beginning {
    /// Reads the beginning of an array.
    pub(super) fn of(first: &Part) -> Result<Self, String> {
        let counts = first.of.counts();
        let all = counts
            .iter()
            .try_fold(1_u64, |n, &count| n.checked_mul(count));
        let all = all.ok_or("more chunks than can be read")?;
        let size = match &first.of.elements {
            Elements::Fixed(dtype) => dtype.size() as u64,
            Elements::Text => 16,
        };
        let chunk = first
            .of
            .chunk
            .iter()
            .fold(size, |n, &d| n.saturating_mul(d));
        let numbers = 0..all.min((COMPARED / chunk.max(1)).max(1));
        let read = numbers.map(|number| {
            let place = place_of(number, &counts);
            let bytes = first.chunk(&place).map_err(|e| e.message)?;
            Ok((place, bytes))
        });
        read.collect::<Result<_, String>>().map(Self)
    }

    /// Checks that an array of the same shape and type begins with the same elements.
    pub(super) fn is_that_of(&self, first: &Part, other: &Part) -> Result<(), String> {
        if first.of.chunk != other.of.chunk {
            return Err("another shape of chunks".to_owned());
        }
        for (place, bytes) in &self.0 {
            if other.chunk(place).map_err(|e| e.message)? != *bytes {
                return Err("other elements".to_owned());
            }
        }
        Ok(())
    }
}
