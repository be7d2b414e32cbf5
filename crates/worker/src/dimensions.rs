//! Names of the dimensions of datasets: HDF5's dimension scales and labels, and the additions of netCDF-4.
//!
//! The name of a dimension is that of the first scale that `DIMENSION_LIST` refers to. A scale has no scales itself: a
//! scale of one dimension names that dimension, and a scale of several has netCDF-4's numbers of its dimensions.

use super::attributes;
use super::ffi::{self, Class, Id, ObjectKind, RawLink};
use super::object_paths::Referrer;
use super::scale::{is_scale, text, texts};
use super::unlimited;
use npyfs_hdf5::protocol::{Dimension, Dimensions, GroupPath, H5Error};

/// The beginning of the `NAME` of a netCDF-4 dimension scale that holds no values.
pub(super) const WITHOUT_VARIABLE: &[u8] = b"This is a netCDF dimension but not a netCDF variable";

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

/// Returns true if the root says that its file is one of netCDF-4.
pub(super) fn is_netcdf(file: &Id) -> Result<bool, ffi::Failure> {
    let root = ffi::open_at(file, &[])?;
    Ok(ffi::has_attribute(&root, b"_NCProperties")? || ffi::has_attribute(&root, b"_nc3_strict")?)
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
            let length = unlimited::length(addr, referrer)?;
            found.push((name, length.unwrap_or(own)));
        }
    }
    Ok(found)
}

/// Returns true if a dataset is netCDF-4's stand-in for a dimension without a variable: a scale without values.
pub(super) fn is_only_a_dimension(id: &Id) -> bool {
    let name = || text(id, b"NAME").ok().flatten();
    is_scale(id).is_ok_and(|is_scale| is_scale)
        && name().is_some_and(|name| name.starts_with(WITHOUT_VARIABLE))
}

/// Returns the path of the scale at an address that comes from the file.
fn path(scale: u64, referrer: &mut Referrer<'_>) -> Result<Option<GroupPath>, H5Error> {
    let nowhere = || H5Error::Damaged("a reference that leads to no object of the file".into());
    referrer.path(scale)?.ok_or_else(nowhere).map(Some)
}

/// Returns the addresses of the first scale of each dimension that `DIMENSION_LIST` refers to; `None` if there are
/// none.
pub(super) fn listed_scales(id: &Id, rank: usize) -> Result<Option<Vec<Option<u64>>>, H5Error> {
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

/// Returns the addresses of the scales to which netCDF-4 refers by number.
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
