//! Plain HDF5: groups are directories, datasets are `.npy` files. The format takes every file.

pub mod array;
pub mod group;
pub(crate) mod integers;
pub(crate) mod lookup;
pub mod small;
pub mod text;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::group::GroupDirectory;
use self::group::Kinds;
use crate::dataset::opened::OpenStore;
use crate::formats::demo::{vector, write_file};
use crate::formats::pandas;
use crate::store::attribute;
use crate::store::base::{Base, unsupported};
use crate::store::encode::add_dataset;
use crate::store::encode::array::NpyArray;
use crate::store::encode::{ObjectKey, Plan, single};
use crate::store::format::{Abilities, Format, Rules, Tables, Writing};
use crate::store::object::NewFile;
use crate::store::part::Part;
use crate::store::table::{self, Found};
use crate::tree::Directory;
use hdf5::File;
use hdf5::types::VarLenUnicode;
use ndarray::Array3;
use npyfs_base::error::Result;

/// Name of the format.
pub const NAME: &str = "plain";

/// Plain HDF5, with the kinds of groups that are looked for in it.
pub struct Plain(pub Kinds);

impl Format for Plain {
    fn name(&self) -> &'static str {
        NAME
    }

    fn root(&self, store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
        Ok(Some(Arc::new(GroupDirectory::root(store.clone(), self.0))))
    }

    fn demonstrate(&self, dir: &Path, _program: Option<&Path>) -> Result<Vec<(PathBuf, bool)>> {
        Ok(vec![write_file(dir.join("plain.h5"), fill)?])
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities {
            writing: Some(self),
            tables: self,
            rules: self,
            ..Abilities::default()
        }
    }
}

impl Tables for Plain {
    fn table(&self, dir: &Arc<dyn Directory>, sep: u8) -> Result<Option<Found>> {
        match pandas::table(dir, sep)? {
            Some(found) => Ok(Some(found)),
            None => table::of_arrays(dir, sep),
        }
    }
}

impl Rules for Plain {
    fn refuses_attribute(&self, name: &str) -> Option<String> {
        attribute::refused(name)
    }
}

impl Writing for Plain {
    fn plan(&self, base: &dyn Base, key: &ObjectKey, parts: &[Part]) -> Result<Plan> {
        if parts.iter().any(|part| !part.place.member.is_empty()) {
            return Err(unsupported(
                "text that is shown in parts cannot be written in parts",
            ));
        }
        let array = NpyArray::open(base, &single(parts)?.content)?;
        let mut new = NewFile::default();
        add_dataset(&mut new, key.path(), &array)?;
        Ok(Plan::Complete(new))
    }

    fn shows_as_stored(&self, new: &NewFile) -> bool {
        new.outline.datasets.len() == 1
    }

    fn endings(&self) -> &'static [&'static str] {
        &[".h5", ".hdf5", ".h5fs"]
    }
}

/// Fills a file.
fn fill(file: &File) -> hdf5::Result<()> {
    let images = file.create_group("images")?;
    let stack = images
        .new_dataset::<u8>()
        .shape((64, 128, 128))
        .chunk((1, 128, 128))
        .shuffle()
        .deflate(4)
        .create("stack")?;
    let pixels = Array3::from_shape_fn((64, 128, 128), |(z, y, x)| (z + y + x) as u8);
    stack.write(&pixels)?;
    let units: VarLenUnicode = "counts".parse().unwrap_or_default();
    stack
        .new_attr::<VarLenUnicode>()
        .create("units")?
        .write_scalar(&units)?;
    let names: Vec<VarLenUnicode> = ["alpha", "beta", "gamma"]
        .iter()
        .map(|name| name.parse().unwrap_or_default())
        .collect();
    vector(file, "names", &names)?;
    file.new_dataset::<f64>()
        .create("pi")?
        .write_scalar(&std::f64::consts::PI)?;
    file.link_soft("/images/stack", "latest")
}
