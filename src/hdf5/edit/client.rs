//! The daemon's end of an editing worker.

use std::path::{Path, PathBuf};

use super::{EditStep, Holders, ObjectPath, Recodable, WORKPLACE};
use crate::hdf5::editor;
use crate::hdf5::process::WorkerProcess;
use crate::hdf5::{
    Answer, DataSource, Dataset, ElementType, GroupMember, H5Error, NewChunk, NewChunks, Request,
};
use crate::io::file::StoreFile;
use crate::npy::dtype::DType;

/// The client of an editing worker, which ends with it.
pub struct Editor {
    worker: WorkerProcess,
    holders: Holders,
}

impl Editor {
    /// Starts a worker that may read below `readable` and change files that exist below `dir`: `program`, which
    /// becomes one when it is started with [`editor::ARGUMENT`].
    pub fn start(
        program: &Path,
        dir: &Path,
        readable: &[PathBuf],
        holders: Holders,
    ) -> std::io::Result<Self> {
        let dirs = std::iter::once(dir).chain(readable.iter().map(PathBuf::as_path));
        let worker = WorkerProcess::start(program, (editor::ARGUMENT, dirs))?;
        Ok(Self { worker, holders })
    }

    /// Changes `file`; returns for each step the reason why it was refused, if it was. On failure the file is of no use.
    pub fn edit(
        &mut self,
        file: &StoreFile,
        steps: Vec<EditStep>,
    ) -> Result<Vec<Result<(), String>>, H5Error> {
        let holders = self.holders.clone();
        match self.ask(file, &Request::Edit { steps, holders })? {
            Answer::Edited(done) => Ok(done),
            _ => Err(H5Error::unexpected_answer()),
        }
    }

    /// Returns the datasets of elements of fixed size whose data are in the file.
    pub fn datasets(&mut self, file: &StoreFile) -> Result<Vec<Recodable>, H5Error> {
        let mut found = Vec::new();
        let Answer::Groups(groups) = self.ask(file, &Request::Groups)? else {
            return Err(H5Error::unexpected_answer());
        };
        for (group, above) in groups {
            let request = Request::List {
                group,
                outside: true,
                from: 0,
                most: usize::MAX,
            };
            let Answer::Members(members) = self.ask(file, &request)? else {
                return Err(H5Error::unexpected_answer());
            };
            for (name, member) in members.members {
                if let GroupMember::Dataset(Dataset {
                    element,
                    mut shape,
                    outside: false,
                    addr,
                }) = member
                {
                    let (size, inner) = match element {
                        // What is not shown may be addresses, which cannot be written again.
                        ElementType::Fixed {
                            dtype: DType::Struct { .. },
                            convert: true,
                            ..
                        } if self.leaves_out(file, addr)? => continue,
                        ElementType::Fixed { dtype, inner, .. } => (dtype.size(), inner),
                        ElementType::Text {
                            fixed: Some(size), ..
                        } => (size, Vec::new()),
                        ElementType::Text { fixed: None, .. } | ElementType::Record { .. } => {
                            continue;
                        }
                    };
                    let mut path = above.clone();
                    path.push(name);
                    let own = shape.len().saturating_sub(inner.len());
                    let element = shape
                        .drain(own..)
                        .fold(size as u64, |bytes, n| bytes.saturating_mul(n));
                    found.push(Recodable {
                        path,
                        shape,
                        element,
                        addr,
                    });
                }
            }
        }
        Ok(found)
    }

    /// Returns whether members of a dataset's elements are not shown.
    fn leaves_out(&mut self, file: &StoreFile, object: u64) -> Result<bool, H5Error> {
        match self.ask(file, &Request::Describe { object })? {
            Answer::Details(details) => Ok(!details.left_out.is_empty()),
            _ => Err(H5Error::unexpected_answer()),
        }
    }

    /// Returns the address of the elements of a contiguous dataset; `None` for another.
    pub fn contiguous(&mut self, file: &StoreFile, of: &Recodable) -> Result<Option<u64>, H5Error> {
        match self.ask(file, &Request::Map { dataset: of.addr })? {
            Answer::Map(map) => Ok(match map.source {
                DataSource::Contiguous { addr } => Some(addr),
                _ => None,
            }),
            _ => Err(H5Error::unexpected_answer()),
        }
    }

    /// Returns the paths of datasets and attributes that hold references to objects; `@NAME` stands behind an object
    /// for an attribute.
    pub fn references(&mut self, file: &StoreFile) -> Result<Vec<ObjectPath>, H5Error> {
        match self.ask(file, &Request::References)? {
            Answer::References(found) => Ok(found),
            _ => Err(H5Error::unexpected_answer()),
        }
    }

    /// Adds chunks to the dataset that was declared last.
    pub fn write_chunks(&mut self, file: &StoreFile, chunks: Vec<NewChunk>) -> Result<(), H5Error> {
        let path = vec![String::from_utf8_lossy(WORKPLACE).into_owned()];
        let request = Request::WriteChunks(Box::new(NewChunks { path, chunks }));
        self.ask(file, &request).map(drop)
    }

    fn ask(&mut self, file: &StoreFile, request: &Request) -> Result<Answer, H5Error> {
        let asked = self.worker.ask(file, request, &mut None);
        asked.map_err(|e| H5Error::Damaged(format!("the editing worker failed: {e}")))?
    }
}
