//! A store below that is held in memory, for tests.

use std::collections::HashMap;
use std::sync::Arc;

use super::ObjectKey;
use super::array::NpyArray;
use super::dataset::add;
use crate::store::base::Base;
use crate::store::object::NewFile;
use crate::store::part::{Part, PartPlace};
use npyfs_base::error::Result;
use npyfs_base::npy;
use npyfs_base::npy::dtype::DType;
use npyfs_io::content::scratch::Scratch;
use npyfs_io::content::{Content, InMemory};
use npyfs_io::dir::Dir;
use npyfs_io::storage::Disk;

/// Arrays by name.
pub struct MemoryBase {
    /// Bytes of `.npy` files by name.
    pub npy: HashMap<String, Vec<u8>>,
    dir: tempfile::TempDir,
}

impl Default for MemoryBase {
    fn default() -> Self {
        Self {
            npy: HashMap::new(),
            dir: tempfile::tempdir().unwrap(),
        }
    }
}

impl Base for MemoryBase {
    fn npy(&self, name: &str) -> Result<Option<Arc<dyn Content>>> {
        let found = self.npy.get(name).cloned();
        Ok(found.map(|bytes| Arc::new(InMemory(bytes)) as Arc<dyn Content>))
    }

    fn scratch(&self) -> Scratch {
        Scratch::new(&Dir::own(self.dir.path()), Arc::new(Disk))
    }
}

/// A file of an object.
pub fn part(member: &str, suffix: &'static str, content: Arc<dyn Content>) -> Part {
    let (object, member) = (String::new(), member.to_owned());
    let place = PartPlace {
        object,
        member,
        suffix,
    };
    Part {
        place,
        content,
        stored: false,
    }
}

/// An `.npy` file in C order.
pub fn saved(dtype: &DType, shape: &[u64], payload: &[u8]) -> Vec<u8> {
    [npy::header(dtype, shape).as_slice(), payload].concat()
}

/// A file with one array as a dataset.
pub fn dataset(key: &str, file: &[u8]) -> Result<NewFile> {
    let array = NpyArray::open(
        &MemoryBase::default(),
        &(Arc::new(InMemory(file.to_vec())) as _),
    )?;
    let mut new = NewFile::default();
    add(&mut new, ObjectKey::of_path(key)?.path(), &array)?;
    Ok(new)
}
