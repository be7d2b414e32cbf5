//! Rewrites one dataset of the file in this process; libhdf5 only receives encoded chunks.

use std::fs::File;
use std::path::Path;

use super::{StoredElements, done};
use crate::store::chunked::{self, ChunkedDataset, ChunkedElements};
use npyfs_base::error::{Error, Result};
use npyfs_codec::Encoding;
use npyfs_hdf5::{EditStep, Editor, Elements, NewForm, Recodable};
use npyfs_io::file::StoreFile;

/// A dataset to be rewritten.
pub(super) struct Work<'a> {
    pub(super) part: &'a Path,
    pub(super) dataset: &'a Recodable,
    /// The size in bytes.
    pub(super) bytes: u64,
}

/// The stored elements of a dataset.
pub(super) enum Found {
    Stored(StoredElements),
    /// All elements are the fill value.
    Unwritten,
}

impl Work<'_> {
    /// Returns the elements; `None` if only libhdf5 can read them.
    pub(super) fn elements(&self, file: &StoreFile, found: Elements) -> Result<Option<Found>> {
        let len = self.bytes;
        let stored = |file, start| Ok(Some(Found::Stored(StoredElements { file, start, len })));
        match found {
            Elements::Contiguous(start) => stored(File::open(self.part)?, start),
            Elements::Unwritten => Ok(Some(Found::Unwritten)),
            Elements::Library => Ok(None),
            Elements::Chunked(chunk, direct) => {
                let path = self.part.with_file_name("elements");
                let mut options = File::options();
                let scratch = options
                    .read(true)
                    .write(true)
                    .create_new(true)
                    .open(&path)?;
                std::fs::remove_file(&path)?;
                let dataset = ChunkedDataset {
                    file,
                    shape: &self.dataset.shape,
                    element: self.dataset.element,
                    chunk: &chunk,
                    direct,
                };
                match chunked::decode(dataset, &scratch)? {
                    true => stored(scratch, 0),
                    false => Ok(None),
                }
            }
        }
    }

    /// Writes the elements in another form, replacing the dataset.
    pub(super) fn write(
        &self,
        editor: &mut Editor,
        elements: &Found,
        form: NewForm,
        encoding: Option<Encoding>,
    ) -> Result<()> {
        let path = &self.dataset.path;
        let chunk = form.chunk.clone();
        let declare = EditStep::Declare {
            path: path.clone(),
            form,
        };
        done(editor, self.part, declare, path)?;
        match (elements, chunk) {
            (Found::Unwritten, _) => {}
            (Found::Stored(elements), None) => {
                let place = editor.declared(&StoreFile::open(self.part)?)?;
                let Elements::Contiguous(start) = place else {
                    return Err(Error::damaged("the new dataset has no place"));
                };
                elements.copy(&File::options().write(true).open(self.part)?, start)?;
            }
            (Found::Stored(elements), Some(chunk)) => {
                let element = usize::try_from(self.dataset.element);
                let chunks = ChunkedElements {
                    shape: &self.dataset.shape,
                    chunk: &chunk,
                    element: element.map_err(|_| Error::damaged("elements too large"))?,
                    encoding,
                    data: elements,
                };
                chunked::encode(&chunks, |chunks| {
                    Ok(editor.write_chunks(&StoreFile::open(self.part)?, chunks)?)
                })?;
            }
        }
        let replace = EditStep::Replace { path: path.clone() };
        done(editor, self.part, replace, path)
    }
}
