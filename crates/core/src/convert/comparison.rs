//! Compares the arrays of a new store, as it shows them, with those that it was made from.

use std::sync::Arc;

use super::Remark;
use crate::store::encode::ObjectKey;
use crate::store::part::Part;
use crate::tree::name::visible;
use crate::tree::{Directory, Node};
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::DType;
use npyfs_base::npy::parse::Header;
use npyfs_io::npy_file::header;

/// The type, shape and element order in a file's header.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileFace {
    /// Its path in a mount of the new store.
    path: Vec<Vec<u8>>,
    dtype: DType,
    shape: Vec<u64>,
    fortran_order: bool,
}

impl FileFace {
    /// Returns the header fields of a part of an object; `None` if it is not an array.
    pub(super) fn of(key: &ObjectKey, part: &Part) -> Option<Self> {
        if part.place.suffix != ".npy" {
            return None;
        }
        let head = header(&*part.content).ok()?;
        let groups = key.path().iter().map(|name| visible(name.as_bytes(), ""));
        let mut path: Vec<Vec<u8>> = groups.collect();
        let members = part.place.member.split('/').filter(|name| !name.is_empty());
        path.extend(members.map(|name| name.as_bytes().to_vec()));
        path.last_mut()?.extend_from_slice(b".npy");
        Some(Self {
            path,
            dtype: head.dtype,
            shape: head.shape,
            fortran_order: head.fortran_order,
        })
    }
}

/// The files that were added to a new store.
#[derive(Default)]
pub(super) struct Comparison {
    /// The files, each with the object it came from.
    files: Vec<(Box<str>, FileFace)>,
}

impl Comparison {
    /// Adds a file of an object.
    pub(super) fn add(&mut self, object: &str, face: FileFace) {
        self.files.push((object.into(), face));
    }

    /// Returns a remark for each file that the new store shows differently.
    pub(super) fn differences(&self, result: &Arc<dyn Directory>) -> Result<Vec<Remark>> {
        let mut remarks = Vec::new();
        for (object, face) in &self.files {
            let what = match find(result, &face.path)? {
                None => "not shown as an array".to_owned(),
                Some(new) if (&new.dtype, &new.shape) != (&face.dtype, &face.shape) => format!(
                    "{} {} in the place of {} {}",
                    new.dtype.name(),
                    npyfs_base::npy::repr::tuple(&new.shape),
                    face.dtype.name(),
                    npyfs_base::npy::repr::tuple(&face.shape)
                ),
                Some(new) if new.fortran_order != face.fortran_order => {
                    let order = |fortran| match fortran {
                        true => "Fortran order",
                        false => "C order",
                    };
                    let (new, old) = (order(new.fortran_order), order(face.fortran_order));
                    format!("in {new} in the place of {old}")
                }
                Some(_) => continue,
            };
            let is_member = face.path.len() > 1 && !object.ends_with(".npy");
            let what = match face.path.last().filter(|_| is_member) {
                Some(member) => format!("{}: {what}", String::from_utf8_lossy(member)),
                None => what,
            };
            remarks.push(Remark {
                object: object.to_string(),
                what,
            });
        }
        Ok(remarks)
    }
}

/// Returns the header of the array at a path; `None` if there is no array.
fn find(root: &Arc<dyn Directory>, path: &[Vec<u8>]) -> Result<Option<Header>> {
    let Some((last, above)) = path.split_last() else {
        return Ok(None);
    };
    let mut dir = root.clone();
    for name in above {
        match dir.lookup(name)? {
            Some(Node::Directory(below)) => dir = below,
            _ => return Ok(None),
        }
    }
    match dir.lookup(last)? {
        Some(Node::File(file)) => Ok(Some(header(&*file.open()?)?)),
        _ => Ok(None),
    }
}
