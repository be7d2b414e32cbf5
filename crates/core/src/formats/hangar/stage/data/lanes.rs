//! Data files that are written side by side: each lane has its own files and worker, so that the compression, which
//! libhdf5 does, runs on several cores. Only samples that take long to compress are divided among lanes.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::path::Path;

use super::{DataWriter, HeldSample};
use crate::formats::hangar::record::Record;
use crate::formats::hangar::schema::Schema;
use crate::formats::hangar::stage::Stage;
use crate::formats::hangar::stage::markers::DataFile;
use npyfs_base::error::{Error, Result};
use npyfs_base::thread;
use npyfs_io::dir::Dir;
use npyfs_io::owner::Owner;

/// The largest number of lanes: each takes the memory of a worker.
const MOST: usize = 4;

/// The number of bytes of samples that justifies another lane.
const WORTH: u64 = 512 << 10;

/// The writers of one checkout; the first takes all samples that are not divided.
pub struct Lanes(Vec<DataWriter>);

impl Lanes {
    /// Opens a writer for each lane; [`DataWriter::open`] says what the arguments are.
    pub fn open(folder: &Path, dir: &Dir, program: &Path, owner: Owner) -> Result<Self> {
        let first = DataWriter::open(folder, dir, program, owner)?;
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let others: Vec<DataWriter> = (1..cores.min(MOST))
            .map(|_| first.another())
            .collect::<Result<_>>()?;
        Ok(Self(std::iter::once(first).chain(others).collect()))
    }

    /// Writes samples, divided among the lanes; see [`DataWriter::write`].
    pub fn write(
        &mut self,
        stage: &Stage,
        digest: &str,
        schema: &Schema,
        samples: &[HeldSample],
    ) -> Result<Vec<Record>> {
        let bytes: u64 = samples.iter().map(|held| held.sample.len).sum();
        let compresses = matches!(schema.backend(), Some(("00" | "01", _)));
        let worth = usize::try_from(bytes / WORTH).unwrap_or(usize::MAX);
        let lanes = if compresses { worth.max(1) } else { 1 };
        let part = samples.len().div_ceil(lanes.min(self.0.len())).max(1);
        let panicked = |_| Error::damaged("writing samples panicked");
        thread::scope(|scope| {
            let mut writing = Vec::new();
            let mut parts = samples.chunks(part).zip(&mut self.0);
            let own = parts.next();
            for (part, writer) in parts {
                writing.push(scope.spawn(move || writer.write(stage, digest, schema, part)));
            }
            let own = own.map(|(part, writer)| writer.write(stage, digest, schema, part));
            let others: Vec<_> = writing.into_iter().map(|part| part.join()).collect();
            let mut records = own.transpose()?.unwrap_or_default();
            for part in others {
                records.extend(part.map_err(panicked)??);
            }
            Ok(records)
        })
    }

    /// Syncs the files of all lanes.
    pub fn sync(&mut self) -> Result<()> {
        self.0.iter_mut().try_for_each(DataWriter::sync)
    }

    /// Returns whether all lanes leave nothing; see [`DataWriter::leaves_nothing`].
    pub fn leaves_nothing(&self) -> bool {
        self.0.iter().all(DataWriter::leaves_nothing)
    }

    /// Marks the files of all lanes; see [`DataWriter::mark`].
    pub fn mark(&mut self, committed: &BTreeSet<DataFile>) -> Result<()> {
        self.0.iter_mut().try_for_each(|lane| lane.mark(committed))
    }

    /// Closes the files of all lanes; see [`DataWriter::close`].
    pub fn close(&mut self) -> Result<()> {
        let closed = self.0.iter_mut().map(DataWriter::close);
        closed.fold(Ok(()), Result::and)
    }
}
