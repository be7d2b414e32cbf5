//! Names of the dimensions of datasets: HDF5's dimension scales and labels, and what netCDF-4 adds to them.
//!
//! A dimension is named by the first scale that `DIMENSION_LIST` refers to. A scale has no scales: one of one dimension
//! names it itself, and one of several has netCDF-4's numbers of its dimensions.

use super::attributes;
use super::ffi::{self, Class, Id, ObjectKind};
use super::object_paths::Referrer;
use super::{Dimension, Dimensions, GroupPath, H5Error, unlimited};

/// Begins the name of a dimension scale of netCDF-4 that holds no values.
const WITHOUT_VARIABLE: &[u8] = b"This is a netCDF dimension but not a netCDF variable";

/// Bytes of the longest text of a scale that is looked at.
const MAX_TEXT: usize = 1 << 16;

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
            dimension.scale = path(*scale, referrer)?;
        }
    }
    unlimited::add_lengths(id, &scales, &mut dimensions, referrer)?;
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

/// Returns whether a dataset is netCDF-4's stand-in for a dimension without a variable: a scale without values.
pub(super) fn is_only_a_dimension(id: &Id) -> bool {
    let name = || text(id, b"NAME").ok().flatten();
    is_scale(id).is_ok_and(|is_scale| is_scale)
        && name().is_some_and(|name| name.starts_with(WITHOUT_VARIABLE))
}

/// Returns whether a dataset is a dimension scale.
pub(super) fn is_scale(id: &Id) -> Result<bool, H5Error> {
    Ok(text(id, b"CLASS")?.is_some_and(|class| class == b"DIMENSION_SCALE"))
}

/// Returns the path of the scale at an address that the file says.
fn path(scale: u64, referrer: &mut Referrer<'_>) -> Result<Option<GroupPath>, H5Error> {
    let nowhere = || H5Error::Damaged("a reference that leads to no object of the file".into());
    referrer.path(scale)?.ok_or_else(nowhere).map(Some)
}

/// Returns the addresses of the first scale of each dimension that `DIMENSION_LIST` refers to; `None` if there are none.
fn listed_scales(id: &Id, rank: usize) -> Result<Option<Vec<Option<u64>>>, H5Error> {
    let Some(list) = ffi::attribute(id, b"DIMENSION_LIST")? else {
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

/// Returns the addresses of the scales that netCDF-4 knows by their numbers.
fn numbered_scales(
    id: &Id,
    rank: usize,
    referrer: &mut Referrer<'_>,
) -> Result<Vec<Option<u64>>, H5Error> {
    let Some(numbers) = ffi::attribute(id, b"_Netcdf4Coordinates")? else {
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
        .map(|number| referrer.scale(i64::from_le_bytes(*number)))
        .collect()
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

/// Returns an attribute that is one text; `None` if there is none, or it is something else.
fn text(id: &Id, name: &[u8]) -> Result<Option<Vec<u8>>, H5Error> {
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

/// Returns the texts of an attribute of `count` elements, up to the first NUL; none if they are no texts.
fn texts(attribute: &Id, count: usize) -> Result<Vec<Vec<u8>>, H5Error> {
    let stored = ffi::attribute_type(attribute)?;
    if ffi::class(&stored) != Class::H5T_STRING {
        return Ok(Vec::new());
    }
    if ffi::is_variable_string(&stored) {
        let mem_type = ffi::variable_string(ffi::is_utf8(&stored))?;
        return Ok(ffi::read_attribute_strings(attribute, &mem_type, count)?);
    }
    let size = ffi::size(&stored);
    if size == 0 || size > MAX_TEXT {
        return Ok(Vec::new());
    }
    let bytes = ffi::read_attribute(attribute, &ffi::null_padded(&stored)?, count)?;
    let texts = bytes.chunks_exact(size).map(|text| {
        let end = text.iter().position(|&b| b == 0).unwrap_or(size);
        text[..end].to_vec()
    });
    Ok(texts.collect())
}
