//! Collections: files of many equal datasets with one sample in each row, kept open by the writing worker.
//!
//! A collection is created once and then stays in SWMR mode until it is closed, so that a killed worker leaves a file
//! that is readable as far as it was flushed. libhdf5 runs the filters here; the caller holds samples until a flush
//! succeeded.

use std::collections::HashMap;

use super::create::stored_type;
use super::ffi::{self, AttributeData, Id};
use npyfs_hdf5::protocol::{
    AttributeValue, CollectionRequest, CollectionRow, H5Error, NewCollection,
};
use npyfs_io::file::StoreFile;

/// The largest number of datasets of a file.
const MAX_DATASETS: u32 = 1000;

/// The open collections of a worker, by the serial number of the file.
#[derive(Default)]
pub(super) struct Collections {
    open: HashMap<u64, OpenCollection>,
}

/// A collection that is open for writing.
struct OpenCollection {
    /// The dataset that was written last.
    last: Option<(u32, Id)>,
    ty: Id,
    file: Id,
}

impl Collections {
    /// Returns true if the file with this number is open here.
    pub(super) fn has(&self, serial: u64) -> bool {
        self.open.contains_key(&serial)
    }

    /// Answers one request about the file with this number; `file` is needed to create it.
    pub(super) fn answer(
        &mut self,
        serial: u64,
        file: Option<&StoreFile>,
        request: &CollectionRequest,
    ) -> Result<(), H5Error> {
        let unknown = || H5Error::Damaged("this collection is not open".into());
        ffi::locked(|| match request {
            CollectionRequest::Create(new) => {
                let held = file.ok_or_else(unknown)?.file().map_err(H5Error::from)?;
                let path = held.path().into_bytes();
                self.open
                    .insert(serial, OpenCollection::create(&path, new)?);
                Ok(())
            }
            CollectionRequest::Write { rows, attributes } => {
                let open = self.open.get_mut(&serial).ok_or_else(unknown)?;
                open.write(rows, attributes)
            }
            CollectionRequest::Close => {
                let open = self.open.remove(&serial).ok_or_else(unknown)?;
                ffi::flush(&open.file)?;
                Ok(())
            }
        })
    }
}

impl OpenCollection {
    fn create(path: &[u8], new: &NewCollection) -> Result<Self, H5Error> {
        if new.datasets > MAX_DATASETS {
            return Err(H5Error::TooLarge(format!(
                "more than {MAX_DATASETS} datasets"
            )));
        }
        let ty = stored_type(&new.dtype)?;
        let file = ffi::create_collection(path)?;
        let layout = (&new.chunk[..], &new.filters[..]);
        ffi::add_datasets(&file, new.datasets, &ty, &new.shape, layout)?;
        let made = Self {
            last: None,
            ty,
            file,
        };
        made.annotate(&new.attributes)?;
        ffi::flush(&made.file)?;
        ffi::start_swmr(&made.file)?;
        Ok(made)
    }

    fn annotate(&self, attributes: &[(String, AttributeValue)]) -> Result<(), H5Error> {
        let (int, float) = (ffi::int_type(8, true, false)?, ffi::float_type(8, false)?);
        for (name, note) in attributes {
            let bytes: Vec<u8>;
            let bool_type = ffi::bool_type()?;
            let data = match note {
                AttributeValue::Text(text) => AttributeData::Text(text),
                AttributeValue::Int(n) => {
                    bytes = n.to_le_bytes().to_vec();
                    AttributeData::Values(&int, None, &bytes)
                }
                AttributeValue::Ints(all) => {
                    bytes = all.iter().flat_map(|n| n.to_le_bytes()).collect();
                    AttributeData::Values(&int, Some(all.len() as u64), &bytes)
                }
                AttributeValue::Bool(b) => {
                    bytes = vec![u8::from(*b)];
                    AttributeData::Values(&bool_type, None, &bytes)
                }
                AttributeValue::Float(bits) => {
                    bytes = bits.to_le_bytes().to_vec();
                    AttributeData::Values(&float, None, &bytes)
                }
                AttributeValue::Nothing => AttributeData::Values(&float, Some(0), &[]),
            };
            ffi::set_attribute(&self.file, name, &data)?;
        }
        Ok(())
    }

    fn write(
        &mut self,
        rows: &[CollectionRow],
        attributes: &[(String, AttributeValue)],
    ) -> Result<(), H5Error> {
        for row in rows {
            if self.last.as_ref().is_none_or(|(n, _)| *n != row.dataset) {
                self.last = None;
                let dataset = ffi::open_by_name(&self.file, row.dataset.to_string().as_bytes())?;
                self.last = Some((row.dataset, dataset));
            }
            if let Some((_, dataset)) = &self.last {
                let start: Vec<u64> = std::iter::once(row.row)
                    .chain(row.shape.iter().map(|_| 0))
                    .collect();
                let shape: Vec<u64> = std::iter::once(1).chain(row.shape.clone()).collect();
                ffi::write_block(dataset, &self.ty, &start, &shape, &row.bytes)?;
            }
        }
        self.annotate(attributes)?;
        Ok(ffi::flush(&self.file)?)
    }
}
