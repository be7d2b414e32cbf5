//! The times at which the objects of an exported file were written, as the file itself says.
//!
//! An attribute `npyfs_times` of the root group says that there are such times, and is that of all objects
//! that have none of their own; `npyfs_time` of an object is the object's, and of what is below it.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::edit::{TIME, TIMES};
use super::ffi::{self, Failure, Id, RawLink};
use super::{GroupPath, H5Error, describe};

/// The times of a file's objects, in nanoseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectTimes {
    /// The time of objects that have none of their own.
    pub all: i64,
    /// Times of objects by address, those that they inherit from a group included.
    pub own: HashMap<u64, i64>,
}

/// Returns the times of a file; `None` if it has none.
pub(super) fn times(file: &Id) -> Result<Option<ObjectTimes>, H5Error> {
    let root = ffi::open_at(file, &[])?;
    let Some(all) = ffi::int_attribute(&root, TIMES)? else {
        return Ok(None);
    };
    let mut own = HashMap::new();
    let mut groups: HashMap<GroupPath, Option<i64>> = HashMap::new();
    // Each group comes after the one that it is in.
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
