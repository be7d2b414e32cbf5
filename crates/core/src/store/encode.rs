//! The parts that the formats make HDF5 objects from: keys, arrays as they were written, text, integers, contents that
//! are made on the way.
//!
//! A layer's file is a small store of the same kind as the one below, with one object in it and what that needs to be
//! valid; [`Writing::plan`](super::format::Writing::plan) says what it holds. Nothing is written here but scratch
//! files, for arrays whose elements have to be put into another order.

pub(crate) mod array;
pub(crate) mod contents;
pub mod integers;
pub(crate) mod text;
pub mod ucs4;

use std::sync::Arc;

use super::base::invalid;
use super::object::NewFile;
use super::part::Part;
use crate::tree::name::unescape;
use contents::Zeros;
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::{DType, Kind};
use npyfs_hdf5::{NewDataset, NewElement};

pub use array::NpyArray;
pub use contents::ScratchContent;

/// The outcome of a plan.
pub enum Plan {
    /// The file of a complete object.
    Complete(NewFile),
    /// Members without which it is no object.
    Incomplete(Vec<String>),
}

/// The only file of an object that is one file.
pub(crate) fn single(parts: &[Part]) -> Result<&Part> {
    match parts {
        [part] if part.place.member.is_empty() => Ok(part),
        _ => Err(invalid("this object is one file")),
    }
}

/// Own names from the root group of the store to an object; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectKey(Vec<String>);

impl ObjectKey {
    /// Makes the key of shown names behind the store's own path, with `#` in the place of another separator.
    fn of_shown<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> Result<Self> {
        let names = names.into_iter().map(|name| {
            String::from_utf8(unescape(name)).map_err(|_| invalid("a name that is not UTF-8"))
        });
        let names = names.collect::<Result<Vec<_>>>()?;
        if names.is_empty() {
            return Err(invalid("no name"));
        }
        Ok(Self(names))
    }

    /// Makes the key of a path.
    pub fn of_path(path: &str) -> Result<Self> {
        Self::of_shown(path.split('/').map(str::as_bytes))
    }

    /// Makes the key of an object in a group, both by own names.
    pub fn of_names(group: Vec<String>, name: String) -> Self {
        let mut names = group;
        names.push(name);
        Self(names)
    }

    /// Returns the names, from the root group on.
    pub fn path(&self) -> &[String] {
        &self.0
    }

    /// The object's own name.
    pub fn name(&self) -> &str {
        self.0.last().map_or("", String::as_str)
    }

    /// The path of another object in the same group.
    pub fn beside(&self, name: &str) -> Vec<String> {
        let mut path = self.group().to_vec();
        path.push(name.to_owned());
        path
    }

    /// The path of a member of the object.
    pub fn below(&self, member: &str) -> Vec<String> {
        let members = member.split('/').map(str::to_owned);
        self.0.iter().cloned().chain(members).collect()
    }

    /// The path of the group it is in.
    pub fn group(&self) -> &[String] {
        self.0.split_last().map_or(&[], |(_, group)| group)
    }
}

/// Adds an array as a dataset of its own type; text becomes UTF-8.
pub(crate) fn add_dataset(new: &mut NewFile, path: &[String], array: &NpyArray) -> Result<()> {
    let mut dataset = NewDataset::new(path, array.dtype.clone(), &array.shape);
    let mut data = array.data.clone();
    match array.scalar() {
        Some((Kind::Text, ..)) => {
            let (width, utf8) = text::utf8(array)?;
            dataset.element = NewElement::Utf8(width);
            text::mark(&mut dataset, array);
            data = utf8;
        }
        // NumPy has arrays of `|S0`; HDF5 has no such type.
        Some((Kind::Bytes, 0, _)) => {
            dataset.element = NewElement::Array(DType::bytes(1));
            data = Arc::new(Zeros(array.elements()));
        }
        _ => {}
    }
    new.add(dataset, data);
    Ok(())
}

#[cfg(test)]
pub mod store {
    //! A store below that is held in memory, for tests.

    use std::collections::HashMap;
    use std::sync::Arc;

    use super::{NpyArray, ObjectKey, add_dataset};
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
        add_dataset(&mut new, ObjectKey::of_path(key)?.path(), &array)?;
        Ok(new)
    }
}
