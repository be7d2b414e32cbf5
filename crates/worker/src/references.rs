//! References to objects: the datasets and attributes of a file that hold some, and the targets of those of a dataset.

use std::collections::HashSet;
use std::ops::Range;

use super::dataset::bounded;
use super::describe::groups;
use super::ffi::{self, Class, Id, LayoutKind, ObjectKind, RawLink};
use super::object_paths::Referrer;
use super::scan;
use npyfs_hdf5::protocol::{GroupPath, H5Error, ScannedMember, Targets};

/// The size in bytes of a reference to an object, which is its address.
const ADDRESS: usize = 8;

/// Returns the paths of all datasets and attributes whose elements are, or hold, references to objects or regions, with
/// `@NAME` behind the last name for an attribute.
pub(super) fn references(file: &Id) -> Result<Vec<GroupPath>, H5Error> {
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    for (addr, path) in groups(file)? {
        let Ok(group) = ffi::open_object(file, addr) else {
            continue;
        };
        attributes_with_references(&group, &path, &mut found)?;
        for (name, link) in ffi::links(&group).0 {
            let RawLink::Hard(child) = link else { continue };
            let Ok(object) = ffi::open_object(file, child) else {
                continue;
            };
            let kind = ffi::kind(&object);
            if kind == ObjectKind::Group || !seen.insert(child) {
                continue;
            }
            let mut path = path.clone();
            path.push(name);
            if kind == ObjectKind::Dataset && ffi::has_references(&ffi::dataset_type(&object)?) {
                found.push(path.clone());
            }
            attributes_with_references(&object, &path, &mut found)?;
        }
    }
    Ok(found)
}

fn attributes_with_references(
    object: &Id,
    path: &GroupPath,
    found: &mut Vec<GroupPath>,
) -> Result<(), H5Error> {
    for (name, attribute) in ffi::attributes(object)? {
        if ffi::has_references(&ffi::attribute_type(&attribute)?) {
            let mut path = path.clone();
            let last = path.pop().unwrap_or_default();
            path.push([&last, &b"@"[..], &name].concat());
            found.push(path);
        }
    }
    Ok(())
}

/// Returns the targets of a part of the elements of a dataset of references, in C order, with the attributes of these
/// names.
pub(super) fn targets(
    referrer: Referrer<'_>,
    dataset: &Id,
    names: &[Vec<u8>],
    part: Range<usize>,
) -> Result<Targets<ScannedMember>, H5Error> {
    if ffi::kind(dataset) != ObjectKind::Dataset {
        return Err(H5Error::Damaged("references in what is no dataset".into()));
    }
    let ty = ffi::dataset_type(dataset)?;
    if ffi::class(&ty) != Class::H5T_REFERENCE || ffi::size(&ty) != ADDRESS {
        let why = "references to something else than objects";
        return Err(H5Error::Unsupported(why.into()));
    }
    let plist = ffi::dataset_plist(dataset)?;
    if ffi::layout(&plist)? == LayoutKind::Virtual || !ffi::external_files(&plist)?.is_empty() {
        return Err(H5Error::Unsupported("references in other files".into()));
    }
    let Some((shape, _)) = ffi::extent(&ffi::dataset_space(dataset)?)? else {
        return Err(H5Error::Unsupported("null dataspace".into()));
    };
    let (start, count, skip) = rows(&shape, &part);
    bounded(&count, ADDRESS)?;
    let bytes = ffi::read_block(dataset, &ty, &start, &count, ADDRESS)?;
    let (addresses, _) = bytes.as_chunks::<ADDRESS>();
    let addresses = addresses.iter().skip(skip).take(part.len());
    let addresses = addresses.map(|addr| u64::from_le_bytes(*addr));
    Ok(Targets {
        targets: scan::objects(referrer, names, addresses),
        shape,
    })
}

/// Returns start and shape of the block of whole rows that holds a part of the elements, and the number of elements of
/// the block before the part. Rows are counted along the first dimension that is not 1.
fn rows(shape: &[u64], part: &Range<usize>) -> (Vec<u64>, Vec<u64>, usize) {
    let (mut start, mut count) = (vec![0; shape.len()], shape.to_vec());
    let Some(along) = shape.iter().position(|&n| n != 1) else {
        return (start, count, part.start);
    };
    let row = shape[along + 1..]
        .iter()
        .fold(1_u64, |row, &n| row.saturating_mul(n))
        .max(1);
    let first = (part.start as u64 / row).min(shape[along]);
    let end = (part.end as u64).div_ceil(row).clamp(first, shape[along]);
    start[along] = first;
    count[along] = end - first;
    let before = first.saturating_mul(row);
    let skip = (part.start as u64).saturating_sub(before);
    (start, count, usize::try_from(skip).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_in_whole_rows() {
        let found = |shape: &[u64], part| {
            let (start, count, skip) = rows(shape, &part);
            let elements = start.iter().zip(shape).fold(0, |at, (&i, &n)| at * n + i);
            (elements, count.iter().product::<u64>(), skip)
        };
        assert_eq!(found(&[], 0..7), (0, 1, 0));
        assert_eq!(found(&[1, 1], 1..7), (0, 1, 1));
        assert_eq!(found(&[10, 1], 3..7), (3, 4, 0));
        assert_eq!(found(&[1, 10], 3..70), (3, 7, 0));
        assert_eq!(found(&[4, 3, 2], 7..8), (6, 6, 1));
        assert_eq!(found(&[4, 3, 2], 5..7), (0, 12, 5));
        assert_eq!(found(&[4, 0], 0..7), (0, 0, 0));
        assert_eq!(found(&[4, 3], 12..20), (12, 0, 0));
    }
}
