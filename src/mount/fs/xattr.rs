//! HDF5 attributes as extended attributes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::{Fs, FsResult};
use npyfs_base::npy::dtype;
use npyfs_core::tree::info;
use npyfs_hdf5::Attribute;

impl Fs {
    /// Returns true if HDF5 attributes are offered as extended attributes.
    pub fn xattrs_enabled(&self) -> bool {
        self.context.options.xattrs
    }

    fn attributes(&self, ino: u64) -> FsResult<Vec<Attribute>> {
        let node = self.node(ino)?;
        // A node that was found before an attribute was written does not know it.
        let node = self.stored_node(ino).ok().flatten().unwrap_or(node);
        let attributes = node.attributes();
        attributes.map_err(|e| self.note(ino, "attributes", e))
    }

    /// Returns the names of the extended attributes of an inode.
    pub fn list_xattr(&self, ino: u64) -> FsResult<Vec<Vec<u8>>> {
        Ok(self
            .attributes(ino)?
            .into_iter()
            .filter(|attribute| attribute.value.is_ok())
            .map(|attribute| [b"user.", attribute.name.as_slice()].concat())
            .collect())
    }

    /// Returns the value of an attribute: text as it is, any other value as JSON.
    pub fn get_xattr(&self, ino: u64, name: &OsStr) -> FsResult<Option<Vec<u8>>> {
        let Some(wanted) = name.as_bytes().strip_prefix(b"user.") else {
            return Ok(None);
        };
        let found = self.attributes(ino)?.into_iter().find(|a| a.name == wanted);
        Ok(found.and_then(|a| a.value.ok()).map(|value| {
            let text = matches!(
                value.dtype,
                dtype::DType::Scalar {
                    kind: dtype::Kind::Bytes | dtype::Kind::Text,
                    ..
                }
            );
            match info::value(&value) {
                serde_json::Value::String(shown) if text => shown.into_bytes(),
                json => json.to_string().into_bytes(),
            }
        }))
    }
}
