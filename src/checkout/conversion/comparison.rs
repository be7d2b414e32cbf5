//! The arrays of a new store, as it shows them, beside those that it was made from.

use std::sync::Arc;

use super::Remark;
use crate::checkout::encode::{ObjectKey, header};
use crate::checkout::target::Part;
use crate::error::Result;
use crate::npy::dtype::DType;
use crate::tree::name::visible;
use crate::tree::{Directory, Node};

/// The type and shape that a file says it has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileFace {
    /// Its path in the new store, in which a mount shows it.
    path: Vec<Vec<u8>>,
    dtype: DType,
    shape: Vec<u64>,
}

impl FileFace {
    /// Returns that of a part of an object; `None` if it is no array.
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
        })
    }
}

/// What was put into a new store.
#[derive(Default)]
pub(super) struct Comparison {
    /// The files, each with the object that it was.
    files: Vec<(Box<str>, FileFace)>,
}

impl Comparison {
    /// Adds a file of an object.
    pub(super) fn add(&mut self, object: &str, face: FileFace) {
        self.files.push((object.into(), face));
    }

    /// Returns how the files are shown that do not look as they did.
    pub(super) fn differences(&self, result: &Arc<dyn Directory>) -> Result<Vec<Remark>> {
        let mut remarks = Vec::new();
        for (object, face) in &self.files {
            let what = match find(result, &face.path)? {
                None => "not shown as an array".to_owned(),
                Some((dtype, shape)) if dtype == face.dtype && shape == face.shape => continue,
                Some((dtype, shape)) => format!(
                    "{} {} in the place of {} {}",
                    dtype.name(),
                    crate::npy::repr::tuple(&shape),
                    face.dtype.name(),
                    crate::npy::repr::tuple(&face.shape)
                ),
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

/// Returns type and shape of the array at a path; `None` if there is none.
fn find(root: &Arc<dyn Directory>, path: &[Vec<u8>]) -> Result<Option<(DType, Vec<u64>)>> {
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
        Some(Node::File(file)) => {
            let head = header(&*file.open()?)?;
            Ok(Some((head.dtype, head.shape)))
        }
        _ => Ok(None),
    }
}
