//! The client of an editing worker, which makes one new file out of others.

use std::path::{Path, PathBuf};

use super::process::WorkerProcess;
use crate::protocol::{
    Answer, DataSource, Dataset, Details, DirectChunks, EditStep, ElementType, FirstMember,
    GroupMember, H5Error, Holders, NewChunk, NewChunks, NewPublication, ObjectPath, PublishedLinks,
    Request, Resolved, WORKPLACE, argument,
};
use npyfs_base::npy::dtype::DType;
use npyfs_io::file::StoreFile;

/// The places of the elements of a dataset, as they are stored.
pub enum Elements {
    /// Together, at this address.
    Contiguous(u64),
    /// In chunks of this shape, which can be decoded here.
    Chunked(Vec<u64>, DirectChunks),
    /// Nowhere: none was ever written.
    Unwritten,
    /// The place where libhdf5 finds the elements.
    Library,
}

/// A dataset that could be written again.
pub struct Recodable {
    /// The path.
    pub path: ObjectPath,
    /// Its own shape, without the dimensions of an array datatype.
    pub shape: Vec<u64>,
    /// Bytes of an element.
    pub element: u64,
    /// Type of the elements, as people write it.
    pub kind: String,
    addr: u64,
}

impl Recodable {
    /// Returns its address, whatever path leads to it.
    pub fn addr(&self) -> u64 {
        self.addr
    }
}

/// A dataset that cannot be written again, and the reason.
pub type Fixture = (ObjectPath, &'static str);

/// The client of an editing worker, which ends with it.
pub struct Editor {
    worker: WorkerProcess,
    holders: Holders,
}

impl Editor {
    /// Starts a worker that may read below `readable` and change files that exist below `dir`: `program`, which
    /// becomes one when it is started with `argument::EDITOR`.
    pub fn start(
        program: &Path,
        dir: &Path,
        readable: &[PathBuf],
        holders: Holders,
    ) -> std::io::Result<Self> {
        let dirs = std::iter::once(dir).chain(readable.iter().map(PathBuf::as_path));
        let worker = WorkerProcess::start(program, (argument::EDITOR, dirs))?;
        Ok(Self { worker, holders })
    }

    /// Changes `file`; returns for each step the reason why it was refused, if it was. On failure the file is of no
    /// use.
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

    /// Returns the datasets of elements of fixed size whose data are in the file, and all others.
    pub fn datasets(
        &mut self,
        file: &StoreFile,
    ) -> Result<(Vec<Recodable>, Vec<Fixture>), H5Error> {
        let (mut found, mut others) = (Vec::new(), Vec::new());
        let Answer::Groups(groups) = self.ask(file, &Request::Groups)? else {
            return Err(H5Error::unexpected_answer());
        };
        for (group, above) in groups {
            let request = Request::List {
                group,
                outside: true,
                from: FirstMember::Number(0),
                most: usize::MAX,
            };
            let Answer::Members(members) = self.ask(file, &request)? else {
                return Err(H5Error::unexpected_answer());
            };
            for (name, member) in members.members {
                let mut path = above.clone();
                path.push(name);
                let dataset = match member {
                    GroupMember::Dataset(dataset) => dataset,
                    GroupMember::Unsupported { .. } => {
                        others.push((path, "its type has no form in NumPy"));
                        continue;
                    }
                    _ => continue,
                };
                match self.recodable(file, &path, dataset)? {
                    Ok(dataset) => found.push(dataset),
                    Err(why) => others.push((path, why)),
                }
            }
        }
        Ok((found, others))
    }

    fn recodable(
        &mut self,
        file: &StoreFile,
        path: &ObjectPath,
        dataset: Dataset,
    ) -> Result<Result<Recodable, &'static str>, H5Error> {
        let Dataset {
            element,
            mut shape,
            outside,
            addr,
        } = dataset;
        if outside {
            return Ok(Err("its data is in another place"));
        }
        let (size, inner, kind) = match element {
            // Values that are not shown may be addresses, which cannot be written again.
            ElementType::Fixed {
                dtype: DType::Struct { .. },
                convert: true,
                ..
            } if self.leaves_out(file, addr)? => {
                return Ok(Err("members of its elements have no form in NumPy"));
            }
            ElementType::Fixed { dtype, inner, .. } => (dtype.size(), inner, dtype.name()),
            ElementType::Text {
                fixed: Some(size), ..
            } => (size, Vec::new(), format!("S{size}")),
            ElementType::Text { fixed: None, .. } | ElementType::Record { .. } => {
                return Ok(Err("text of variable length"));
            }
        };
        let own = shape.len().saturating_sub(inner.len());
        let element = shape
            .drain(own..)
            .fold(size as u64, |bytes, n| bytes.saturating_mul(n));
        let path = path.clone();
        Ok(Ok(Recodable {
            path,
            shape,
            element,
            kind,
            addr,
        }))
    }

    /// Returns whether members of a dataset's elements are not shown.
    fn leaves_out(&mut self, file: &StoreFile, object: u64) -> Result<bool, H5Error> {
        match self.ask(file, &Request::Describe { object })? {
            Answer::Details(details) => Ok(!details.left_out.is_empty()),
            _ => Err(H5Error::unexpected_answer()),
        }
    }

    /// Returns what the header of a dataset says.
    pub fn details(&mut self, file: &StoreFile, of: &Recodable) -> Result<Details, H5Error> {
        match self.ask(file, &Request::Describe { object: of.addr })? {
            Answer::Details(details) => Ok(details),
            _ => Err(H5Error::unexpected_answer()),
        }
    }

    /// Returns where the elements of a dataset are.
    pub fn elements(&mut self, file: &StoreFile, of: &Recodable) -> Result<Elements, H5Error> {
        self.elements_at(file, of.addr)
    }

    /// Returns where the elements of the dataset are that was declared last.
    pub fn declared(&mut self, file: &StoreFile) -> Result<Elements, H5Error> {
        let Answer::Root(group) = self.ask(file, &Request::Root)? else {
            return Err(H5Error::unexpected_answer());
        };
        let path = WORKPLACE.to_vec();
        match self.ask(file, &Request::Resolve { group, path })? {
            Answer::Resolved(Resolved::Member(GroupMember::Dataset(dataset))) => {
                self.elements_at(file, dataset.addr)
            }
            _ => Err(H5Error::unexpected_answer()),
        }
    }

    fn elements_at(&mut self, file: &StoreFile, dataset: u64) -> Result<Elements, H5Error> {
        let whole = true;
        match self.ask(file, &Request::Map { dataset, whole })? {
            Answer::Map(map) => Ok(match map.source {
                DataSource::Contiguous { addr } => Elements::Contiguous(addr),
                DataSource::Chunked {
                    chunk,
                    direct: Some(direct),
                    ..
                } if matches!(map.element, ElementType::Fixed { convert: false, .. }) => {
                    Elements::Chunked(chunk, direct)
                }
                DataSource::Fill(_) => Elements::Unwritten,
                _ => Elements::Library,
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

    /// Makes `file`, which is empty, of links into others. On failure the file is of no use.
    pub fn publish(
        &mut self,
        file: &StoreFile,
        new: NewPublication,
    ) -> Result<PublishedLinks, H5Error> {
        match self.ask(file, &Request::Publish(Box::new(new)))? {
            Answer::Published(links) => Ok(links),
            _ => Err(H5Error::unexpected_answer()),
        }
    }

    /// Asks the worker.
    fn ask(&mut self, file: &StoreFile, request: &Request) -> Result<Answer, H5Error> {
        let asked = self.worker.ask(file, request, &mut None, &());
        asked.map_err(|e| H5Error::Damaged(format!("the editing worker failed: {e}")))?
    }
}
