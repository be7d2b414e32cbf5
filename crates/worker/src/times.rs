//! The times at which the objects of an exported file were written, as stored in the file.
//!
//! An attribute `npyfs_times` of the root group marks a file that has such times, and is the time of all objects
//! without their own; `npyfs_time` of an object is the time of the object and of everything below it.

use std::collections::HashMap;

use super::describe;
use super::ffi::{self, Failure, Id, RawLink};
use npyfs_hdf5::protocol::{GroupPath, H5Error, ObjectTimes, TIME, TIMES};

/// Returns the times of a file; `None` if it has none.
pub(super) fn times(file: &Id) -> Result<Option<ObjectTimes>, H5Error> {
    let root = ffi::open_at(file, &[])?;
    let Some(all) = ffi::int_attribute(&root, TIMES)? else {
        return Ok(None);
    };
    let mut own = HashMap::new();
    let mut groups: HashMap<GroupPath, Option<i64>> = HashMap::new();
    // Each group comes after its parent.
    for (addr, path) in describe::groups(file)? {
        let above = path.split_last().and_then(|(_, above)| groups.get(above));
        let group = ffi::open_object(file, addr)?;
        let inherited = ffi::int_attribute(&group, TIME)?.or(above.copied().flatten());
        own.extend(inherited.map(|time| (addr, time)));
        groups.insert(path, inherited);
        for (_, link) in ffi::links(&group).0 {
            let RawLink::Hard(child) = link else { continue };
            let time = time_of(file, child).unwrap_or(None).or(inherited);
            own.extend(time.map(|time| (child, time)));
        }
    }
    Ok(Some(ObjectTimes { all, own }))
}

fn time_of(file: &Id, addr: u64) -> Result<Option<i64>, Failure> {
    ffi::int_attribute(&ffi::open_object(file, addr)?, TIME)
}
