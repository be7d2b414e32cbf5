//! The daemon's end of making a publication.

use super::{NewPublication, PublishedLinks};
use crate::hdf5::edit::Editor;
use crate::hdf5::{Answer, H5Error, Request};
use crate::io::file::StoreFile;

impl Editor {
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
}
