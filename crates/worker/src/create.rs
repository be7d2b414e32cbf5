//! New files of a checkout, without the elements: groups, attributes, and datasets with room for their elements.
//!
//! The daemon fills the room, at the addresses in the answer. libhdf5 therefore never holds the data, and memory does
//! not depend on the size of an array. Chunks arrive encoded, a few at a time. Never opens a file that another program
//! made.

use super::ffi::{self, Id};
use super::text;
use super::types::TypeError;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_hdf5::protocol::{
    H5Error, NewAttribute, NewChunks, NewDataset, NewElement, NewLayout, Outline,
};
use npyfs_io::content::scratch::LARGE;
use npyfs_io::file::StoreFile;

/// The data of a dataset begins at a multiple of this many bytes.
const PAGE: u64 = 4096;

/// The longest datatype in bytes: `H5O_MESG_MAX_SIZE`, without its possible surroundings.
const MAX_TYPE_LEN: usize = (64 << 10) - 64;

/// The largest number of dimensions of a dataset: `H5S_MAX_RANK`.
const MAX_RANK: usize = 32;

/// Creates `file` anew in this process.
pub(super) fn create(file: &StoreFile, new: &Outline) -> Result<Vec<u64>, H5Error> {
    for dataset in &new.datasets {
        check_path(&dataset.path)?;
        if dataset.shape.len() > MAX_RANK {
            return Err(H5Error::Unsupported(format!(
                "HDF5 cannot hold more than {MAX_RANK} dimensions"
            )));
        }
    }
    for group in new.groups.iter().filter(|group| !group.path.is_empty()) {
        check_path(&group.path)?;
    }
    for link in &new.links {
        check_path(&link.path)?;
    }
    ffi::locked(|| {
        let held = file.file().map_err(H5Error::from)?;
        let path = held.path().into_bytes();
        let (from, alignment) = new.large_at.map_or((PAGE, PAGE), |at| (LARGE, at));
        let file = ffi::create_file(&path, from, alignment)?;
        let mut addresses = Vec::with_capacity(new.datasets.len());
        for new in &new.datasets {
            let name = new.path.join("/").into_bytes();
            let (dataset, address) = dataset(&file, &name, new)?;
            add_attributes(&dataset, &new.attributes)?;
            addresses.push(address);
        }
        for new in &new.groups {
            let name = format!("/{}", new.path.join("/")).into_bytes();
            add_attributes(&ffi::require_group(&file, &name)?, &new.attributes)?;
        }
        for link in &new.links {
            ffi::soft_link(&file, link.path.join("/").as_bytes(), &link.target)?;
        }
        ffi::finish(file)?;
        Ok(addresses)
    })
}

/// Adds chunks in this process.
pub(super) fn write_chunks(file: &StoreFile, new: &NewChunks) -> Result<(), H5Error> {
    check_path(&new.path)?;
    ffi::locked(|| {
        let held = file.file().map_err(H5Error::from)?;
        let file = ffi::open_to_write(&held.path().into_bytes())?;
        let dataset = ffi::open_by_name(&file, new.path.join("/").as_bytes())?;
        for chunk in &new.chunks {
            ffi::write_chunk(&dataset, &chunk.start, chunk.mask, &chunk.bytes)?;
        }
        drop(dataset);
        Ok(ffi::finish(file)?)
    })
}

fn check_path(path: &[String]) -> Result<(), H5Error> {
    let holds = |name: &String| !(matches!(name.as_str(), "" | ".") || name.contains(['/', '\0']));
    if path.is_empty() || !path.iter().all(holds) {
        let name = path.join("/");
        return Err(H5Error::Unsupported(format!(
            "HDF5 cannot hold the name {name:?}"
        )));
    }
    Ok(())
}

/// Makes a dataset; returns it with the address of its data.
///
/// A type that does not fit into an object header is too large. Its length in a file depends on the form that libhdf5
/// chooses there, so it is checked afterwards, with the longest form.
fn dataset(file: &Id, name: &[u8], new: &NewDataset) -> Result<(Id, u64), H5Error> {
    let ty = match &new.element {
        NewElement::Array(dtype) => stored_type(dtype)?,
        NewElement::Utf8(size) => ffi::bytes_type(*size, true)?,
    };
    dataset_of(file, name, new, &ty).map_err(|e| match (&e, ffi::encoded_len(&ty)) {
        (H5Error::Damaged(_), Ok(len)) if len > MAX_TYPE_LEN => H5Error::TooLarge(format!(
            "a type of so many members: it takes up to {len} bytes, and HDF5 keeps a type in {MAX_TYPE_LEN}"
        )),
        _ => e,
    })
}

fn dataset_of(file: &Id, name: &[u8], new: &NewDataset, ty: &Id) -> Result<(Id, u64), H5Error> {
    let NewLayout::Chunked { chunk, filters, .. } = &new.layout else {
        let dataset = match new.attributes.iter().any(NewAttribute::is_large) {
            true => ffi::dataset_for_attributes(file, name, ty, &new.shape)?,
            false => ffi::contiguous_dataset(file, name, ty, &new.shape)?,
        };
        if new.shape.contains(&0) {
            return Ok((dataset, 0));
        }
        let address = ffi::contiguous_addr(&dataset)?;
        let address = address.ok_or_else(|| ffi::Failure("the data has no room".into()))?;
        return Ok((dataset, address));
    };
    let dataset = ffi::chunked_dataset(file, name, ty, &new.shape, chunk, filters)?;
    Ok((dataset, 0))
}

fn add_attributes(object: &Id, attributes: &[NewAttribute]) -> Result<(), TypeError> {
    for NewAttribute { name, value } in attributes {
        let name = name.as_bytes();
        let DType::Scalar { kind, size, .. } = &value.dtype else {
            ffi::add_attribute(
                object,
                name,
                &stored_type(&value.dtype)?,
                &value.shape,
                &value.data,
            )?;
            continue;
        };
        match kind {
            Kind::Text => {
                let texts = value.data.chunks(*size.max(&1)).map(text::of_ucs4);
                let mut texts: Vec<String> = texts.collect();
                if *size == 0 {
                    texts.resize(count(&value.shape), String::new());
                }
                ffi::add_strings(object, name, &value.shape, &texts)?;
            }
            Kind::Bytes if *size > 0 && value.data.chunks(*size).all(|s| s.ends_with(&[0])) => {
                let ty = ffi::c_string_type(*size)?;
                ffi::add_attribute(object, name, &ty, &value.shape, &value.data)?;
            }
            _ => {
                let ty = stored_type(&value.dtype)?;
                ffi::add_attribute(object, name, &ty, &value.shape, &value.data)?;
            }
        }
    }
    Ok(())
}

/// Returns the number of elements of a small array.
fn count(shape: &[u64]) -> usize {
    let elements = shape.iter().fold(1, |n: u64, &d| n.saturating_mul(d));
    usize::try_from(elements).unwrap_or(0)
}

/// Returns the HDF5 type whose bytes are those of `dtype`, as h5py chooses it.
pub(super) fn stored_type(dtype: &DType) -> Result<Id, TypeError> {
    let no_form = || {
        let name = dtype.name();
        TypeError::Unsupported(format!("elements of type {name} cannot be stored"))
    };
    match dtype {
        DType::Scalar { size: 0, .. } => Err(no_form()),
        DType::Scalar {
            kind, size, order, ..
        } => {
            let big = *order == Order::Big;
            Ok(match kind {
                Kind::Bool => ffi::bool_type()?,
                Kind::Int => ffi::int_type(*size, true, big)?,
                Kind::Uint => ffi::int_type(*size, false, big)?,
                Kind::Float if *size == 16 && (big || cfg!(not(target_arch = "x86_64"))) => {
                    return Err(no_form());
                }
                Kind::Float => ffi::float_type(*size, big)?,
                Kind::Complex => {
                    let part = DType::scalar(Kind::Float, size / 2, *order);
                    let members = [
                        (b"r".to_vec(), 0, stored_type(&part)?),
                        (b"i".to_vec(), size / 2, stored_type(&part)?),
                    ];
                    ffi::compound_type(*size, &members)?
                }
                Kind::Bytes => ffi::bytes_type(*size, false)?,
                Kind::Void => ffi::opaque_type(*size, "")?,
                Kind::Datetime | Kind::Timedelta => {
                    ffi::opaque_type(*size, &format!("NUMPY:{}", dtype.name()))?
                }
                // HDF5 has no text with four bytes a character.
                Kind::Text => return Err(no_form()),
            })
        }
        DType::Struct { fields, size } => {
            let members = fields
                .iter()
                .map(|field| {
                    if field.shape.contains(&0) {
                        return Err(no_form());
                    }
                    let base = stored_type(&field.dtype)?;
                    let ty = if field.shape.is_empty() {
                        base
                    } else {
                        ffi::array_type(&base, &field.shape)?
                    };
                    Ok((field.name.clone().into_bytes(), field.offset, ty))
                })
                .collect::<Result<Vec<_>, TypeError>>()?;
            Ok(ffi::compound_type(*size, &members)?)
        }
    }
}
