//! Paths of objects by address, found by a walk through the groups of a file that goes only as far as necessary.
//!
//! A reference is an unverified address and is never opened: it leads to an object that the walk has found, or nowhere.

use std::collections::HashMap;

use super::ffi::{self, Id, ObjectKind, RawLink};
use npyfs_hdf5::protocol::{GroupPath, H5Error};

/// The largest number of objects that the walk passes.
const MAX_OBJECTS: usize = 4 << 20;

/// The objects that the walk has found, breadth first by name.
#[derive(Default)]
pub(super) struct ObjectPaths {
    objects: Vec<FoundObject>,
    by_addr: HashMap<u64, usize>,
    /// The objects before this one were looked into.
    next: usize,
    /// The dimension scales of netCDF-4 by number, once they were needed.
    pub scales: Option<HashMap<i64, u64>>,
    /// The lengths of unlimited dimensions by the address of their scale; `None` for a limited dimension.
    pub lengths: HashMap<u64, Option<u64>>,
}

/// An object at the place where it was found first.
struct FoundObject {
    addr: u64,
    /// The number of the parent group; the root group has its own.
    group: usize,
    name: Box<[u8]>,
}

/// A file whose references are followed.
pub(super) struct Referrer<'a> {
    pub file: &'a Id,
    pub paths: &'a mut ObjectPaths,
}

impl Referrer<'_> {
    /// Returns the path of the object at an address; `None` if there is none.
    pub(super) fn path(&mut self, addr: u64) -> Result<Option<GroupPath>, H5Error> {
        loop {
            if let Some(&number) = self.paths.by_addr.get(&addr) {
                return Ok(Some(self.paths.path_of(number)));
            }
            if !self.paths.go_on(self.file)? {
                return Ok(None);
            }
        }
    }

    /// Returns the path of the object that a reference leads to; an error if it leads to none.
    pub(super) fn target(&mut self, addr: u64) -> Result<GroupPath, H5Error> {
        let nowhere = || H5Error::Damaged("a reference that leads to no object of the file".into());
        self.path(addr)?.ok_or_else(nowhere)
    }

    /// Returns the addresses of all objects of the file that hard links lead to, breadth first by name.
    pub(super) fn all_objects(&mut self) -> Result<Vec<u64>, H5Error> {
        while self.paths.go_on(self.file)? {}
        let objects = self.paths.objects.iter();
        Ok(objects.map(|object| object.addr).collect())
    }
}

impl ObjectPaths {
    /// Looks into one more object; returns false if there was none left.
    fn go_on(&mut self, file: &Id) -> Result<bool, H5Error> {
        if self.objects.is_empty() {
            self.add(ffi::root_addr(file)?, 0, Box::default())?;
        }
        let at = self.next;
        let Some(addr) = self.objects.get(at).map(|object| object.addr) else {
            return Ok(false);
        };
        self.next += 1;
        if let Ok(object) = ffi::open_object(file, addr)
            && ffi::kind(&object) == ObjectKind::Group
        {
            for (name, link) in ffi::links(&object).0 {
                if let RawLink::Hard(child) = link {
                    self.add(child, at, name.into())?;
                }
            }
        }
        Ok(true)
    }

    fn add(&mut self, addr: u64, group: usize, name: Box<[u8]>) -> Result<(), H5Error> {
        if self.by_addr.contains_key(&addr) {
            return Ok(());
        }
        if self.objects.len() >= MAX_OBJECTS {
            return Err(H5Error::TooLarge(
                "references in a file of too many objects".into(),
            ));
        }
        self.by_addr.insert(addr, self.objects.len());
        self.objects.push(FoundObject { addr, group, name });
        Ok(())
    }

    /// Returns the path of the object with a number. A group has a smaller number than its members, so the way up ends.
    fn path_of(&self, mut number: usize) -> GroupPath {
        let mut path = Vec::new();
        while number > 0
            && let Some(object) = self.objects.get(number)
        {
            path.push(object.name.to_vec());
            number = object.group;
        }
        path.reverse();
        path
    }
}
