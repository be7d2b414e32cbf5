//! A sparse matrix: a directory of its parts, compressed by columns, and an `.npz` for `scipy.sparse.load_npz`.

use std::sync::{Arc, OnceLock};

use serde_json::{Value as Json, json};

use super::NAME;
use super::array::{MatlabArray, as_stored};
use super::value::Class;
use crate::dataset::opened::OpenStore;
use crate::formats::npz::{NpzFile, NpzMember};
use crate::formats::plain::small::ValueFile;
use crate::tree::info;
use crate::tree::{Directory, Listing, Node, VirtualFile};
use npyfs_base::error::{Error, Result};
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_hdf5::{Attribute, Dataset, ElementType, GroupMember, Value};
use npyfs_io::content::Content;
use npyfs_io::file::Ownership;

/// A sparse matrix.
pub(super) struct SparseMatrix {
    pub store: Arc<OpenStore>,
    pub path: Arc<str>,
    /// Address of its group.
    pub addr: u64,
    pub class: Class,
    pub rows: u64,
    members: OnceLock<Vec<NpzMember>>,
}

/// The member that records the compression; not a part of the matrix.
const FORMAT: &str = "format.npy";

impl SparseMatrix {
    pub(super) fn new(
        store: Arc<OpenStore>,
        path: Arc<str>,
        addr: u64,
        (class, rows): (Class, u64),
    ) -> Self {
        Self {
            store,
            path,
            addr,
            class,
            rows,
            members: OnceLock::new(),
        }
    }

    /// Returns the members of the archive in scipy's order; fails if the parts are not a valid matrix.
    pub(super) fn members(&self) -> Result<&[NpzMember]> {
        match self.members.get() {
            Some(members) => Ok(members),
            None => {
                let members = self.find_members()?;
                Ok(self.members.get_or_init(|| members))
            }
        }
    }

    fn find_members(&self) -> Result<Vec<NpzMember>> {
        let damaged = |why: &str| Error::damaged(format!("a sparse matrix {why}"));
        let h5 = &self.store.context.h5;
        let group = h5.list(&self.store.file, self.addr, false)?;
        let part = |name: &str| match group.members.iter().find(|(n, _)| n == name.as_bytes()) {
            None => Ok(None),
            Some((_, GroupMember::Dataset(dataset))) if dataset.shape.len() == 1 => {
                Ok(Some(dataset))
            }
            Some(_) => Err(damaged(&format!("whose {name} is no vector"))),
        };
        let pointers = part("jc")?.ok_or_else(|| damaged("without jc"))?;
        let columns = pointers.shape.first().and_then(|n| n.checked_sub(1));
        let columns = columns.and_then(|n| i64::try_from(n).ok());
        let columns = columns.ok_or_else(|| damaged("with an empty jc"))?;
        let rows = i64::try_from(self.rows).map_err(|_| damaged("with too many rows"))?;
        // A matrix without elements has only jc.
        let (indices, data) = match (part("ir")?, part("data")?) {
            (None, None) => {
                let none = |dtype: DType, name: &str| self.value(dtype, vec![0], Vec::new(), name);
                let dtype = self.class.dtype().ok_or_else(|| damaged("of no numbers"))?;
                (none(DType::int(8), "ir"), none(dtype, "data"))
            }
            (Some(indices), Some(data)) if indices.shape == data.shape => (
                self.numbers(indices, "ir", None)?,
                self.numbers(data, "data", Some(self.class))?,
            ),
            _ => return Err(damaged("whose ir and data differ in length")),
        };
        let shape = [rows.to_le_bytes(), columns.to_le_bytes()].concat();
        let member = |name, file| NpzMember { name, file };
        Ok(vec![
            member("indices.npy", indices),
            member("indptr.npy", self.numbers(pointers, "jc", None)?),
            member(
                FORMAT,
                self.value(DType::bytes(3), vec![], b"csc".to_vec(), "format"),
            ),
            member(
                "shape.npy",
                self.value(DType::int(8), vec![2], shape, "shape"),
            ),
            member("data.npy", data),
        ])
    }

    /// Returns the file of a part; `class` is that of elements, `None` for indices, which scipy requires to be signed.
    fn numbers(
        &self,
        dataset: &Dataset,
        name: &str,
        class: Option<Class>,
    ) -> Result<Arc<dyn VirtualFile>> {
        let path = format!("{}/{name}", self.path);
        let Dataset { element, shape, .. } = dataset.clone();
        let is_place = matches!(
            &element,
            ElementType::Fixed { dtype: DType::Scalar { kind: Kind::Int | Kind::Uint, .. }, inner, .. } if inner.is_empty()
        );
        let is_uint64 = matches!(
            &element,
            ElementType::Fixed {
                dtype: DType::Scalar {
                    kind: Kind::Uint,
                    size: 8,
                    order: Order::Little,
                    ..
                },
                ..
            }
        );
        if class.is_none() && !is_place {
            let why = format!("a sparse matrix whose {name} holds no integers");
            return Err(Error::damaged(why));
        }
        let stored = as_stored(&self.store, &path, dataset.addr, element, shape);
        let part = MatlabArray::new(stored, class)?;
        Ok(match class.is_none() && is_uint64 {
            true => Arc::new(part.with_dtype(DType::int(8))),
            false => Arc::new(part),
        })
    }

    fn value(
        &self,
        dtype: DType,
        shape: Vec<u64>,
        data: Vec<u8>,
        name: &str,
    ) -> Arc<dyn VirtualFile> {
        Arc::new(ValueFile {
            kind: NAME,
            store: self.store.clone(),
            group: self.addr,
            value: Value { dtype, shape, data },
            path: self.path.to_string(),
            attribute: name.to_owned(),
        })
    }

    fn archive(&self) -> Result<NpzFile> {
        Ok(NpzFile {
            members: self.members()?.to_vec(),
            path: self.path.to_string(),
            kind: NAME,
        })
    }
}

/// The parts of a sparse matrix.
pub(super) struct SparseDirectory(pub SparseMatrix);

impl Directory for SparseDirectory {
    fn ownership(&self) -> Ownership {
        self.0.store.ownership(self.0.addr)
    }

    fn list(&self) -> Result<Arc<Listing>> {
        let parts = self.0.members()?.iter().filter(|part| part.name != FORMAT);
        let parts = parts.map(|part| (part.name.into(), Node::File(part.file.clone())));
        Ok(Arc::new(Listing::new(
            parts.collect(),
            Vec::new(),
            Vec::new(),
        )))
    }

    fn is_current(&self) -> bool {
        self.0.store.file.is_current()
    }

    fn format(&self) -> Result<&'static str> {
        Ok(NAME)
    }

    fn info(&self) -> Result<Json> {
        let mut info = json!({
            "kind": NAME,
            "file": self.0.store.file.path.to_string_lossy(),
            "path": &*self.0.path,
            "class": self.0.class.name(),
            "shown_as": "sparse columns: data, row indices, column pointers",
            "attributes": info::attributes(&self.attributes()?),
        });
        match self.0.members() {
            Ok(members) => {
                let shape = members.iter().find(|part| part.name == "shape.npy");
                info["shape"] = match shape {
                    Some(shape) => shape.file.info()?["value"].clone(),
                    None => Json::Null,
                };
            }
            Err(e) => info["error"] = json!(e.message),
        }
        Ok(info)
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        let store = &self.0.store;
        Ok(store.context.h5.attributes(&store.file, self.0.addr)?)
    }
}

/// The archive of a sparse matrix.
pub(super) struct SparseArchive(pub SparseMatrix);

impl VirtualFile for SparseArchive {
    fn ownership(&self) -> Ownership {
        self.0.store.ownership(self.0.addr)
    }

    fn size(&self) -> Result<u64> {
        self.0.archive()?.size()
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        self.0.archive()?.open()
    }

    fn version(&self) -> u64 {
        self.0.store.file.identity.number()
    }

    fn is_current(&self) -> bool {
        self.0.store.file.is_current()
    }

    fn info(&self) -> Result<Json> {
        self.0.archive()?.info()
    }
}
