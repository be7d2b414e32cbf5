//! Dimensions of datasets: their names, from HDF5's dimension scales and labels and the additions of netCDF-4, and the
//! lengths of those that are unlimited.
//!
//! The name of a dimension is that of the first scale that `DIMENSION_LIST` refers to. A scale has no scales itself: a
//! scale of one dimension names that dimension, and a scale of several has netCDF-4's numbers of its dimensions. An
//! unlimited dimension of netCDF-4 is as long as the longest dataset along it; shorter datasets continue with the fill
//! value.
//!
//! A reference is never opened as such: it leads to an object that the walk of the [`Referrer`] has found, or nowhere.

use std::collections::HashMap;

use super::attributes;
use super::dataset::shape_bytes;
use super::ffi::{self, Class, Id, ObjectKind, RawLink};
use super::object_paths::Referrer;
use super::text;
use npyfs_hdf5::protocol::{Dimension, Dimensions, H5Error};

/// The attribute of a dataset that refers to the scales of its dimensions.
pub(super) const DIMENSION_LIST: &[u8] = b"DIMENSION_LIST";

/// The attribute of a scale that refers to the datasets along it.
pub(super) const REFERENCE_LIST: &[u8] = b"REFERENCE_LIST";

/// The size in bytes of an element of `REFERENCE_LIST`: the address of a dataset, and the number of its dimension.
pub(super) const REFERENCE: usize = 16;

/// The attribute of a scale that numbers the dimensions of a netCDF-4 file.
pub(super) const DIMENSION_ID: &[u8] = b"_Netcdf4Dimid";

/// The attribute of a dataset that has the numbers of its dimensions.
pub(super) const DIMENSION_IDS: &[u8] = b"_Netcdf4Coordinates";

/// The beginning of the `NAME` of a netCDF-4 dimension scale that holds no values.
pub(super) const WITHOUT_VARIABLE: &[u8] = b"This is a netCDF dimension but not a netCDF variable";

/// HDF5's mark of a dimension without a limit.
pub(super) const UNLIMITED: u64 = u64::MAX;

/// The longest text of a scale in bytes that is read.
const MAX_TEXT: usize = 1 << 16;

/// The largest number of datasets along a dimension that are examined.
const MAX_DATASETS: usize = 1 << 18;

/// Returns the names of the dimensions of the dataset at an address.
pub(super) fn dimensions(
    id: &Id,
    addr: u64,
    referrer: &mut Referrer<'_>,
) -> Result<Dimensions, H5Error> {
    if ffi::kind(id) != ObjectKind::Dataset {
        return Ok(Dimensions::default());
    }
    let rank = ffi::extent(&ffi::dataset_space(id)?)?.map_or(0, |(shape, _)| shape.len());
    let is_scale = is_scale(id)?;
    let mut dimensions = vec![Dimension::default(); rank];
    let scales = match listed_scales(id, rank)? {
        Some(scales) => scales,
        None if is_scale && rank == 1 => vec![Some(addr)],
        None => numbered_scales(id, rank, referrer)?,
    };
    for (dimension, scale) in dimensions.iter_mut().zip(&scales) {
        if let Some(scale) = scale {
            dimension.scale = Some(referrer.target(*scale)?);
        }
    }
    add_lengths(id, &scales, &mut dimensions, referrer)?;
    add_labels(id, &mut dimensions)?;
    if dimensions
        .iter()
        .all(|dimension| dimension.name().is_none())
    {
        dimensions.clear();
    }
    Ok(Dimensions {
        dimensions,
        is_scale,
    })
}

/// Returns the dimensions that a group defines, by name: each is named after its scale, and as long.
pub(super) fn scales(
    group: u64,
    referrer: &mut Referrer<'_>,
) -> Result<Vec<(Vec<u8>, u64)>, H5Error> {
    let mut found = Vec::new();
    for (name, link) in ffi::links(&ffi::open_object(referrer.file, group)?).0 {
        let RawLink::Hard(addr) = link else { continue };
        let Ok(id) = ffi::open_object(referrer.file, addr) else {
            continue;
        };
        if ffi::kind(&id) != ObjectKind::Dataset || !is_scale(&id)? {
            continue;
        }
        let extent = ffi::extent(&ffi::dataset_space(&id)?)?;
        if let Some(&own) = extent.as_ref().and_then(|(shape, _)| shape.first()) {
            let length = length(addr, referrer)?;
            found.push((name, length.unwrap_or(own)));
        }
    }
    Ok(found)
}

/// Returns true if the root says that its file is one of netCDF-4.
pub(super) fn is_netcdf(file: &Id) -> Result<bool, ffi::Failure> {
    let root = ffi::open_at(file, &[])?;
    Ok(ffi::has_attribute(&root, b"_NCProperties")? || ffi::has_attribute(&root, b"_nc3_strict")?)
}

/// Returns true if a dataset is a dimension scale.
pub(super) fn is_scale(id: &Id) -> Result<bool, H5Error> {
    Ok(text_of(id, b"CLASS")?.is_some_and(|class| class == b"DIMENSION_SCALE"))
}

/// Returns true if a dataset is netCDF-4's stand-in for a dimension without a variable: a scale without values.
pub(super) fn is_only_a_dimension(id: &Id) -> bool {
    let name = || text_of(id, b"NAME").ok().flatten();
    is_scale(id).is_ok_and(|is_scale| is_scale)
        && name().is_some_and(|name| name.starts_with(WITHOUT_VARIABLE))
}

/// Returns the addresses of the datasets along a scale, each with the number of its dimension.
pub(super) fn along(scale: &Id) -> Result<Vec<(u64, usize)>, H5Error> {
    let Some(list) = ffi::attribute(scale, REFERENCE_LIST)? else {
        return Ok(Vec::new());
    };
    let stored = ffi::attribute_type(&list)?;
    if ffi::class(&stored) != Class::H5T_COMPOUND {
        return Ok(Vec::new());
    }
    let members = ffi::members(&stored)?;
    let [(first, _, dataset), (second, _, number)] = &members[..] else {
        return Ok(Vec::new());
    };
    let object = ffi::object_reference_type()?;
    if !ffi::equal(dataset, &object) || ffi::class(number) != Class::H5T_INTEGER {
        return Ok(Vec::new());
    }
    let Some((shape, _)) = ffi::extent(&ffi::attribute_space(&list)?)? else {
        return Ok(Vec::new());
    };
    let count = shape_bytes(&shape, 1).and_then(|n| usize::try_from(n).ok());
    let count = count.filter(|&n| n <= MAX_DATASETS).ok_or_else(|| {
        H5Error::TooLarge("too many datasets along an unlimited dimension".into())
    })?;
    let number = ffi::int_type(8, false, false)?;
    let parts = [(first.clone(), 0, object), (second.clone(), 8, number)];
    let mem_type = ffi::compound_type(REFERENCE, &parts)?;
    let bytes = ffi::read_attribute(&list, &mem_type, count)?;
    let pairs = bytes.as_chunks::<8>().0.chunks_exact(2);
    let word = |bytes: [u8; 8]| u64::from_le_bytes(bytes);
    let pair = |pair: &[[u8; 8]]| {
        let number = usize::try_from(word(pair[1])).unwrap_or(usize::MAX);
        (word(pair[0]), number)
    };
    Ok(pairs.map(pair).collect())
}

/// Returns the addresses of the first scale of each dimension that `DIMENSION_LIST` refers to; `None` if there are
/// none.
pub(super) fn listed_scales(id: &Id, rank: usize) -> Result<Option<Vec<Option<u64>>>, H5Error> {
    let Some(list) = ffi::attribute(id, DIMENSION_LIST)? else {
        return Ok(None);
    };
    let shape = ffi::extent(&ffi::attribute_space(&list)?)?.map(|(shape, _)| shape);
    if shape != Some(vec![rank as u64]) {
        return Err(H5Error::Damaged(
            "DIMENSION_LIST has not one element for each dimension".into(),
        ));
    }
    let scales = attributes::first_addresses(&list, rank)?
        .ok_or_else(|| H5Error::Damaged("DIMENSION_LIST holds no references".into()))?;
    Ok(scales.iter().any(Option::is_some).then_some(scales))
}

/// Returns the addresses of the scales to which netCDF-4 refers by number.
fn numbered_scales(
    id: &Id,
    rank: usize,
    referrer: &mut Referrer<'_>,
) -> Result<Vec<Option<u64>>, H5Error> {
    let Some(numbers) = ffi::attribute(id, DIMENSION_IDS)? else {
        return Ok(Vec::new());
    };
    let shape = ffi::extent(&ffi::attribute_space(&numbers)?)?.map(|(shape, _)| shape);
    let is_integer = ffi::class(&ffi::attribute_type(&numbers)?) == Class::H5T_INTEGER;
    if shape != Some(vec![rank as u64]) || !is_integer {
        return Ok(Vec::new());
    }
    let mem_type = ffi::int_type(8, true, false)?;
    let numbers = ffi::read_attribute(&numbers, &mem_type, rank)?;
    let numbers = numbers.as_chunks().0.iter();
    numbers
        .map(|number| numbered_scale(i64::from_le_bytes(*number), referrer))
        .collect()
}

/// Returns the address of the dimension scale with this number in a netCDF-4 file; `None` if there is none.
fn numbered_scale(number: i64, referrer: &mut Referrer<'_>) -> Result<Option<u64>, H5Error> {
    if referrer.paths.scales.is_none() {
        let mut scales = HashMap::new();
        for addr in referrer.all_objects()? {
            let Ok(object) = ffi::open_object(referrer.file, addr) else {
                continue;
            };
            if ffi::kind(&object) == ObjectKind::Dataset
                && is_scale(&object).is_ok_and(|is_scale| is_scale)
                && let Ok(Some(number)) = ffi::int_attribute(&object, DIMENSION_ID)
            {
                scales.entry(number).or_insert(addr);
            }
        }
        referrer.paths.scales = Some(scales);
    }
    let scales = referrer.paths.scales.as_ref();
    Ok(scales.and_then(|scales| scales.get(&number)).copied())
}

fn add_labels(id: &Id, dimensions: &mut [Dimension]) -> Result<(), H5Error> {
    let Some(labels) = ffi::attribute(id, b"DIMENSION_LABELS")? else {
        return Ok(());
    };
    let shape = ffi::extent(&ffi::attribute_space(&labels)?)?.map(|(shape, _)| shape);
    if shape != Some(vec![dimensions.len() as u64]) {
        return Ok(());
    }
    let labels = texts(&labels, dimensions.len())?;
    for (dimension, label) in dimensions.iter_mut().zip(labels) {
        dimension.label = (!label.is_empty()).then_some(label);
    }
    Ok(())
}

/// Sets the lengths of those unlimited dimensions of a dataset along which other datasets are longer. `scales` has the
/// address of the scale of each dimension.
fn add_lengths(
    id: &Id,
    scales: &[Option<u64>],
    dimensions: &mut [Dimension],
    referrer: &mut Referrer<'_>,
) -> Result<(), H5Error> {
    let Some((shape, most)) = ffi::extent(&ffi::dataset_space(id)?)? else {
        return Ok(());
    };
    for (k, dimension) in dimensions.iter_mut().enumerate() {
        if let (Some(Some(scale)), Some(&UNLIMITED)) = (scales.get(k), most.get(k)) {
            let length = length(*scale, referrer)?;
            dimension.length = length.filter(|length| shape.get(k).is_some_and(|own| own < length));
        }
    }
    Ok(())
}

/// Returns the length of the dimension whose scale is at an address; `None` if it is limited.
fn length(scale: u64, referrer: &mut Referrer<'_>) -> Result<Option<u64>, H5Error> {
    if let Some(&known) = referrer.paths.lengths.get(&scale) {
        return Ok(known);
    }
    let length = longest(scale, referrer)?;
    referrer.paths.lengths.insert(scale, length);
    Ok(length)
}

fn longest(scale: u64, referrer: &mut Referrer<'_>) -> Result<Option<u64>, H5Error> {
    // Only addresses of objects that the walk has found are valid.
    if referrer.path(scale)?.is_none() {
        return Ok(None);
    }
    let id = ffi::open_object(referrer.file, scale)?;
    if ffi::kind(&id) != ObjectKind::Dataset {
        return Ok(None);
    }
    let Some((shape, most)) = ffi::extent(&ffi::dataset_space(&id)?)? else {
        return Ok(None);
    };
    if most.first() != Some(&UNLIMITED) {
        return Ok(None);
    }
    let mut longest = shape.first().copied().unwrap_or(0);
    for (addr, k) in along(&id)? {
        if referrer.path(addr)?.is_none() {
            continue;
        }
        // A damaged dataset has no length, and does not affect the others.
        longest = longest.max(extent_along(referrer.file, addr, k).unwrap_or(0));
    }
    Ok(Some(longest))
}

/// Returns the extent of a dimension of the dataset at an address; `None` if it cannot be read.
fn extent_along(file: &Id, addr: u64, k: usize) -> Option<u64> {
    let id = ffi::open_object(file, addr).ok()?;
    if ffi::kind(&id) != ObjectKind::Dataset {
        return None;
    }
    let (shape, _) = ffi::extent(&ffi::dataset_space(&id).ok()?).ok()??;
    shape.get(k).copied()
}

/// Returns an attribute that is one text; `None` if there is none, or if it is no text.
pub(super) fn text_of(id: &Id, name: &[u8]) -> Result<Option<Vec<u8>>, H5Error> {
    let Some(attribute) = ffi::attribute(id, name)? else {
        return Ok(None);
    };
    let shape = ffi::extent(&ffi::attribute_space(&attribute)?)?.map(|(shape, _)| shape);
    let is_one = shape.is_some_and(|shape| shape.iter().all(|&n| n == 1));
    match is_one {
        true => Ok(texts(&attribute, 1)?.pop()),
        false => Ok(None),
    }
}

/// Returns the texts of an attribute of `count` elements, up to the first NUL; empty if the elements are no texts.
fn texts(attribute: &Id, count: usize) -> Result<Vec<Vec<u8>>, H5Error> {
    let stored = ffi::attribute_type(attribute)?;
    let is_text = ffi::class(&stored) == Class::H5T_STRING;
    if !is_text || !ffi::is_variable_string(&stored) && ffi::size(&stored) > MAX_TEXT {
        return Ok(Vec::new());
    }
    let mut texts = text::of_attribute(attribute, &stored, count)?;
    for text in &mut texts {
        let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
        text.truncate(end);
    }
    Ok(texts)
}
