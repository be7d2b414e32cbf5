//! A sample that is addressed by its record, independent of any column or commit.

use std::sync::Arc;

use serde_json::{Map, Value as Json, json};
use xxhash_rust::xxh3::xxh3_64;

use super::record::Record;
use super::repository::Repository;
use super::sample::{SampleContent, describe};
use super::schema::npy_size;
use crate::tree::VirtualFile;
use npyfs_base::error::{Error, Result};
use npyfs_base::npy;
use npyfs_io::content::{Concat, Content, InMemory};
use npyfs_io::file::Ownership;

/// A sample below `records/`. Its type is that of its data file.
pub(super) struct SampleByRecord {
    repository: Arc<Repository>,
    record: Record,
}

impl SampleByRecord {
    pub(super) fn new(repository: &Arc<Repository>, record: Record) -> Self {
        Self {
            repository: repository.clone(),
            record,
        }
    }

    /// Returns the suffix of the file; `None` for a record without data.
    pub(super) fn suffix(record: &Record) -> Option<&'static str> {
        match record {
            Record::Hdf5 { .. } | Record::Numpy { .. } => Some(".npy"),
            Record::Lmdb { backend: "30", .. } => Some(".txt"),
            Record::Lmdb { .. } => Some(".bin"),
            Record::Remote { .. } => None,
        }
    }

    fn value_len(&self) -> Result<u64> {
        let Record::Lmdb {
            backend, uid, key, ..
        } = &self.record
        else {
            return Err(Error::damaged("not a value"));
        };
        let keys = vec![key.as_bytes().to_vec()];
        let mut found = self.repository.values_file(backend, uid).lengths(keys)?;
        let length = found.pop().flatten();
        length.ok_or_else(|| Error::damaged("there is no such row").about(&self.record))
    }
}

impl VirtualFile for SampleByRecord {
    fn ownership(&self) -> Ownership {
        self.repository.ownership()
    }

    fn size(&self) -> Result<u64> {
        match self.record.shape() {
            Some(shape) => npy_size(&self.repository.stored_type(&self.record)?, shape),
            None => self.value_len(),
        }
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        self.repository.is_present(&self.record)?;
        let (header, dtype, len) = match self.record.shape() {
            Some(shape) => {
                let dtype = self.repository.stored_type(&self.record)?;
                let header = npy::header(&dtype, shape);
                let len = npy_size(&dtype, shape)? - header.len() as u64;
                (header, Some(dtype), len)
            }
            None => (Vec::new(), None, self.value_len()?),
        };
        let bytes = SampleContent::new(&self.repository, self.record.clone(), (dtype, len), None);
        Ok(Arc::new(Concat::new([
            Arc::new(InMemory(header)) as Arc<dyn Content>,
            Arc::new(bytes),
        ])))
    }

    fn version(&self) -> u64 {
        xxh3_64(self.record.to_string().as_bytes())
    }

    fn is_current(&self) -> bool {
        true
    }

    fn info(&self) -> Result<Json> {
        let mut map = Map::new();
        map.insert("kind".into(), json!("hangar"));
        describe(&self.repository, &self.record, &mut map);
        if self.record.shape().is_some() {
            let dtype = self.repository.stored_type(&self.record);
            match dtype {
                Ok(dtype) => map.insert("dtype".into(), dtype.json()),
                Err(e) => map.insert("error".into(), json!(e.message)),
            };
        }
        Ok(map.into())
    }
}
