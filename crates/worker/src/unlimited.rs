//! Lengths of netCDF-4's unlimited dimensions: the length of the longest dataset along each of them. Shorter datasets
//! continue with the fill value.

use super::ffi::{self, Class, Id, ObjectKind};
use super::object_paths::Referrer;
use npyfs_hdf5::protocol::{Dimension, H5Error};

/// HDF5's mark of a dimension without a limit.
pub(super) const UNLIMITED: u64 = u64::MAX;

/// The largest number of datasets along a dimension that are examined.
const MAX_DATASETS: usize = 1 << 18;

/// The size in bytes of an element of `REFERENCE_LIST` in memory: the address of a dataset, and the number of its
/// dimension.
const ELEMENT: usize = 16;

/// Sets the lengths of those unlimited dimensions of a dataset along which other datasets are longer. `scales` has the
/// address of the scale of each dimension.
pub(super) fn add_lengths(
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
pub(super) fn length(scale: u64, referrer: &mut Referrer<'_>) -> Result<Option<u64>, H5Error> {
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

/// Returns the addresses of the datasets along a scale, each with the number of its dimension.
pub(super) fn along(scale: &Id) -> Result<Vec<(u64, usize)>, H5Error> {
    let Some(list) = ffi::attribute(scale, b"REFERENCE_LIST")? else {
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
    let count = shape.iter().try_fold(1_u64, |n, &d| n.checked_mul(d));
    let count = count.and_then(|n| usize::try_from(n).ok());
    let count = count.filter(|&n| n <= MAX_DATASETS).ok_or_else(|| {
        H5Error::TooLarge("too many datasets along an unlimited dimension".into())
    })?;
    let number = ffi::int_type(8, false, false)?;
    let parts = [(first.clone(), 0, object), (second.clone(), 8, number)];
    let mem_type = ffi::compound_type(ELEMENT, &parts)?;
    let bytes = ffi::read_attribute(&list, &mem_type, count)?;
    let pairs = bytes.as_chunks::<8>().0.chunks_exact(2);
    let word = |bytes: [u8; 8]| u64::from_le_bytes(bytes);
    let pair = |pair: &[[u8; 8]]| {
        let number = usize::try_from(word(pair[1])).unwrap_or(usize::MAX);
        (word(pair[0]), number)
    };
    Ok(pairs.map(pair).collect())
}
