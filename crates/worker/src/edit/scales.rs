//! Dimension scales of the new file: which datasets lie along which is noted at both, as netCDF-4 and HDF5 do.
//!
//! What the file says so far is checked: only addresses of objects that a walk has found are followed.

use super::{own_object, shown};
use crate::dimensions::{
    DIMENSION_ID, DIMENSION_IDS, DIMENSION_LIST, REFERENCE, REFERENCE_LIST, UNLIMITED,
    WITHOUT_VARIABLE, along, is_netcdf, is_scale, listed_scales, text_of,
};
use crate::ffi::{self, Failure, Id, ObjectKind};
use crate::object_paths::{ObjectPaths, Referrer};
use npyfs_hdf5::protocol::{H5Error, MAX_SMALL_ATTRIBUTE, ObjectPath};

impl From<H5Error> for Failure {
    fn from(error: H5Error) -> Self {
        Self(error.to_string())
    }
}

/// Has the dataset at a path lie along scales, one for each dimension; along none without scales.
pub(super) fn set(
    target: &Id,
    path: &ObjectPath,
    scales: &[ObjectPath],
) -> Result<Result<(), String>, Failure> {
    let Some((dataset, shape, _)) = dataset(target, path)? else {
        return Ok(Err("it is no dataset of this file".into()));
    };
    if !scales.is_empty() && scales.len() != shape.len() {
        let (all, own) = (scales.len(), shape.len());
        return Ok(Err(format!("{all} dimensions are named, and it has {own}")));
    }
    // A coordinate is its dimension itself.
    if is_scale(&dataset)? {
        return Ok(Ok(()));
    }
    let mut found = Vec::with_capacity(scales.len());
    for (path, length) in scales.iter().zip(shape) {
        match self::dataset(target, path)? {
            Some((scale, shape, most)) if is_scale(&scale)? && !shape.is_empty() => {
                if shape[0] != length && most.first() != Some(&UNLIMITED) {
                    let (name, own) = (shown(path), shape[0]);
                    return Ok(Err(format!(
                        "the dimension {name} has the length {own}, and not {length}"
                    )));
                }
                found.push(scale);
            }
            _ => return Ok(Err(format!("there is no dimension {}", shown(path)))),
        }
    }
    leave(target, &dataset)?;
    for name in [DIMENSION_LIST, DIMENSION_IDS] {
        if ffi::has_attribute(&dataset, name)? {
            ffi::remove_attribute(&dataset, name)?;
        }
    }
    if found.is_empty() {
        return Ok(Ok(()));
    }
    let own = ffi::object_info(&dataset)?.addr;
    let mut addresses = Vec::with_capacity(found.len());
    for (k, scale) in found.iter().enumerate() {
        addresses.push(ffi::object_info(scale)?.addr.to_le_bytes().to_vec());
        let mut users = along(scale)?;
        users.push((own, k));
        note(scale, &users)?;
    }
    ffi::add_sequences(
        &dataset,
        DIMENSION_LIST,
        &ffi::object_reference_type()?,
        &addresses,
    )
    .map(Ok)
}

/// Takes a dataset that goes out of the lists of the scales that it lies along.
pub(super) fn leave(target: &Id, dataset: &Id) -> Result<(), Failure> {
    let rank = ffi::extent(&ffi::dataset_space(dataset)?)?.map_or(0, |(shape, _)| shape.len());
    // What is damaged is no list.
    let Ok(Some(scales)) = listed_scales(dataset, rank) else {
        return Ok(());
    };
    let own = ffi::object_info(dataset)?.addr;
    let mut paths = ObjectPaths::default();
    for addr in scales.into_iter().flatten() {
        let scale = found(target, &mut paths, addr)?;
        if let Some(scale) = scale
            && let Ok(mut users) = along(&scale)
        {
            users.retain(|(addr, _)| *addr != own);
            note(&scale, &users)?;
        }
    }
    Ok(())
}

/// Returns the dataset at a path if it is a scale that something else may take the place of: what lies along it lies
/// along the other then.
pub(super) fn scale(target: &Id, path: &ObjectPath) -> Result<Option<Id>, Failure> {
    match dataset(target, path)? {
        Some((id, ..)) if is_scale(&id)? => Ok(Some(id)),
        Some((id, ..)) => leave(target, &id).map(|()| None),
        None => Ok(None),
    }
}

/// Has the dataset at a path take the place of a scale, which is in the file no more. Those that are longer or shorter
/// than the new one lie along nothing there.
pub(super) fn take_over(target: &Id, old: &Id, path: &ObjectPath) -> Result<(), Failure> {
    let (Some(name), Some((new, shape, _))) = (path.last(), dataset(target, path)?) else {
        return Ok(());
    };
    let Some(&length) = shape.first() else {
        return Ok(());
    };
    for attribute in [b"CLASS", DIMENSION_ID, b"NAME"] {
        if ffi::has_attribute(old, attribute)? && !ffi::has_attribute(&new, attribute)? {
            ffi::copy_attribute(old, &new, attribute)?;
        }
    }
    let text = text_of(&new, b"NAME")?.unwrap_or_default();
    if text.starts_with(WITHOUT_VARIABLE) {
        ffi::remove_attribute(&new, b"NAME")?;
        let text = [name, &b"\0"[..]].concat();
        ffi::add_attribute(&new, b"NAME", &ffi::c_string_type(text.len())?, &[], &text)?;
    }
    pass_on(target, old, &new, length)
}

/// Makes the dimension without a variable that stays of a scale of netCDF-4, which is in the file no more.
pub(super) fn keep_dimension(target: &Id, old: &Id, path: &ObjectPath) -> Result<(), Failure> {
    let Some((shape, _)) = ffi::extent(&ffi::dataset_space(old)?)? else {
        return Ok(());
    };
    let (true, Some(&length)) = (is_netcdf(target)?, shape.first()) else {
        return Ok(());
    };
    let ty = ffi::float_type(4, true)?;
    let new = ffi::contiguous_dataset(target, &path.join(&b'/'), &ty, &[length])?;
    for attribute in [&b"CLASS"[..], DIMENSION_ID] {
        if ffi::has_attribute(old, attribute)? {
            ffi::copy_attribute(old, &new, attribute)?;
        }
    }
    let text = [WITHOUT_VARIABLE, format!(".{length:10}\0").as_bytes()].concat();
    ffi::add_attribute(&new, b"NAME", &ffi::c_string_type(text.len())?, &[], &text)?;
    pass_on(target, old, &new, length)
}

/// Has what lies along one scale lie along another of this length.
fn pass_on(target: &Id, old: &Id, new: &Id, length: u64) -> Result<(), Failure> {
    let (from, to) = (ffi::object_info(old)?.addr, ffi::object_info(new)?.addr);
    let mut paths = ObjectPaths::default();
    let mut users = Vec::new();
    for (addr, k) in along(old)? {
        let Some(user) = found(target, &mut paths, addr)? else {
            continue;
        };
        let Some((shape, most)) = ffi::extent(&ffi::dataset_space(&user)?)? else {
            continue;
        };
        let (Some(&own), Ok(Some(mut scales))) = (shape.get(k), listed_scales(&user, shape.len()))
        else {
            continue;
        };
        if scales[k] != Some(from) {
            continue;
        }
        let fits = own == length || most.get(k) == Some(&UNLIMITED);
        scales[k] = fits.then_some(to);
        let list = scales.iter().map(|scale| match scale {
            Some(addr) => addr.to_le_bytes().to_vec(),
            None => Vec::new(),
        });
        let list: Vec<Vec<u8>> = list.collect();
        ffi::remove_attribute(&user, DIMENSION_LIST)?;
        ffi::add_sequences(&user, DIMENSION_LIST, &ffi::object_reference_type()?, &list)?;
        if fits {
            users.push((addr, k));
        }
    }
    note(new, &users)
}

/// Notes at a scale which dimensions of which datasets lie along it.
fn note(scale: &Id, users: &[(u64, usize)]) -> Result<(), Failure> {
    if ffi::has_attribute(scale, REFERENCE_LIST)? {
        ffi::remove_attribute(scale, REFERENCE_LIST)?;
    }
    let bytes = users.iter().flat_map(|(addr, k)| {
        let words = [*addr, *k as u64];
        words.map(u64::to_le_bytes).into_iter().flatten()
    });
    let bytes: Vec<u8> = bytes.collect();
    // Readers follow the other direction. This one is left out where a header has no room for it.
    if users.is_empty() || bytes.len() > MAX_SMALL_ATTRIBUTE {
        return Ok(());
    }
    let members = [
        (b"dataset".to_vec(), 0, ffi::object_reference_type()?),
        (b"dimension".to_vec(), 8, ffi::int_type(4, false, false)?),
    ];
    let ty = ffi::compound_type(REFERENCE, &members)?;
    ffi::add_attribute(scale, REFERENCE_LIST, &ty, &[users.len() as u64], &bytes)
}

/// A dataset, its shape, and the largest shape that it may grow to.
type Found = (Id, Vec<u64>, Vec<u64>);

/// Opens the dataset at a path, if all its links are hard ones.
fn dataset(target: &Id, path: &ObjectPath) -> Result<Option<Found>, Failure> {
    if !ffi::exists(target, path)? {
        return Ok(None);
    }
    let Some(id) = own_object(target, path)?.filter(|id| ffi::kind(id) == ObjectKind::Dataset)
    else {
        return Ok(None);
    };
    let extent = ffi::extent(&ffi::dataset_space(&id)?)?;
    Ok(extent.map(|(shape, most)| (id, shape, most)))
}

/// Opens the dataset at an address that the file says; `None` if none is there.
fn found(target: &Id, paths: &mut ObjectPaths, addr: u64) -> Result<Option<Id>, Failure> {
    let mut referrer = Referrer {
        file: target,
        paths,
    };
    if referrer.path(addr)?.is_none() {
        return Ok(None);
    }
    let id = ffi::open_object(target, addr)?;
    Ok((ffi::kind(&id) == ObjectKind::Dataset).then_some(id))
}
