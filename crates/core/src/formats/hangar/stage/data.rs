//! New data files, as Hangar's backends write them.
//!
//! Every checkout makes its own files and never adds to others. A file has no marker until `stage` gives it one:
//! Hangar's reset and merge remove marked files, its commit takes all of them over. A file that was marked and is no
//! longer staged belongs to a commit or is gone; a new one takes its place.
//!
//! Data files are written side by side: each of the `Lanes` has its own files and worker, so that the compression,
//! which libhdf5 does, runs on several cores. Only samples that take long to compress are divided among lanes.
//!
//! A file of backend `10` is an `.npy` file with one row for each sample, which fills the first elements of the row
//! along each axis. Strides are counted in bytes of the file, for which ndarray has no view.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{Read, Seek, Write};
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_bytes::ByteBuf;
use xxhash_rust::xxh64::xxh64;

use super::Stage;
use super::geometry::Geometry;
use super::markers::DataFile;
use super::sample::NewSample;
use super::schema::ColumnCompression;
use crate::formats::hangar::record::{Record, RowRecord, Spelling};
use crate::formats::hangar::schema::{SampleKind, Schema};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy::dtype::DType;
use npyfs_base::{npy, thread};
use npyfs_hdf5::{
    CollectionRequest, CollectionRow, CollectionWriter, TableOp, TableTransaction, TablesOutcome,
};
use npyfs_io::dir::Dir;
use npyfs_io::file::StoreFile;
use npyfs_io::owner::Owner;

/// The map size of a file of samples, in bytes: past it a new file begins (`backends/lmdb_30.py`).
const SAMPLES_MAP_SIZE: u64 = 300_000_000;

/// The list of created files, in the directory of the checkout.
pub const MADE: &str = "files";

/// A sample, and its bytes.
pub struct HeldSample {
    /// The sample.
    pub sample: Arc<NewSample>,
    /// The bytes.
    pub bytes: Arc<Vec<u8>>,
}

/// Writes the data files of one checkout.
struct DataWriter {
    folder: PathBuf,
    program: PathBuf,
    /// The owner of the repository, which also owns the files that root creates.
    owner: Owner,
    collections: CollectionWriter,
    /// The open files by the digest of their schema.
    open: HashMap<String, Open>,
    /// Files that are not staged yet.
    unstaged: Vec<DataFile>,
    /// Files whose content may not be on the disk yet.
    dirty: HashMap<DataFile, File>,
    made: File,
}

/// A file that takes samples.
struct Open {
    name: DataFile,
    uid: String,
    kind: OpenKind,
    /// The number of samples in the file.
    samples: u64,
    marked: bool,
}

enum OpenKind {
    Collection {
        file: Box<StoreFile>,
        geometry: Box<Geometry>,
    },
    Numpy {
        file: File,
        shape: Vec<u64>,
    },
    Values,
}

fn full(what: &str) -> Error {
    Error::new(ErrorKind::TooLarge, what)
}

impl DataWriter {
    /// Opens the writer. `folder` is the directory with the tables, `dir` that of the checkout. Removes the files that
    /// an earlier process created and did not live to stage.
    pub fn open(folder: &Path, dir: &Dir, program: &Path, owner: Owner) -> Result<Self> {
        let path = dir.path().join(MADE);
        let about = |e: std::io::Error| Error::from(e).about(path.display());
        let mut made = dir.write_or_create(MADE)?;
        let mut text = String::new();
        made.read_to_string(&mut text).map_err(about)?;
        for line in text.lines() {
            let Some((backend, uid)) = line.split_once(' ') else {
                continue;
            };
            let fits = |part: &str| part.bytes().all(|b| b.is_ascii_alphanumeric());
            let file = DataFile::new(backend, uid);
            if fits(backend)
                && fits(uid)
                && !uid.is_empty()
                && !file.is_staged(folder)
                && !file.is_stored(folder)
            {
                file.remove(folder)?;
            }
        }
        made.set_len(0)
            .and_then(|()| made.rewind())
            .map_err(about)?;
        Ok(Self {
            folder: folder.to_owned(),
            program: program.to_owned(),
            owner,
            collections: CollectionWriter::new(program, folder, owner),
            open: HashMap::new(),
            unstaged: Vec::new(),
            dirty: HashMap::new(),
            made,
        })
    }

    /// Makes another writer with its own files and worker, but the same list of created files.
    fn another(&self) -> Result<Self> {
        Ok(Self {
            folder: self.folder.clone(),
            program: self.program.clone(),
            owner: self.owner,
            collections: CollectionWriter::new(&self.program, &self.folder, self.owner),
            open: HashMap::new(),
            unstaged: Vec::new(),
            dirty: HashMap::new(),
            made: self.made.try_clone()?,
        })
    }

    /// Writes samples of one schema; returns their records. The samples are readable once this returns, and survive a
    /// loss of power after `sync`.
    pub fn write(
        &mut self,
        stage: &Stage,
        digest: &str,
        schema: &Schema,
        samples: &[HeldSample],
    ) -> Result<Vec<Record>> {
        let mut records = Vec::with_capacity(samples.len());
        let mut left = samples;
        while !left.is_empty() {
            let mut open = match self.open.remove(digest) {
                Some(open) if !open.marked || open.name.is_staged(&self.folder) => open,
                other => {
                    if let Some(old) = other {
                        self.close_file(old);
                    }
                    self.make(schema)?
                }
            };
            let room = usize::try_from(open.room()).unwrap_or(usize::MAX);
            let mut now = &left[..left.len().min(room)];
            // On failure the file stays behind unchanged, and the next sample begins another.
            let written = loop {
                match self.fill(&mut open, stage, now) {
                    Ok(None) if now.len() > 1 => now = &now[..1],
                    written => break written,
                }
            };
            match written {
                Ok(Some(found)) => records.extend(found),
                Ok(None) if open.samples > 0 => {
                    self.close_file(open);
                    continue;
                }
                Ok(None) => return Err(full("larger than a file of samples may be")),
                Err(e) => {
                    self.close_file(open);
                    return Err(e);
                }
            }
            left = &left[now.len()..];
            if open.room() == 0 {
                self.close_file(open);
            } else {
                self.open.insert(digest.to_owned(), open);
            }
        }
        Ok(records)
    }

    /// Closes all files; staged files can then be opened by any process, without SWMR. A file that cannot be closed may
    /// be unreadable.
    pub fn close(&mut self) -> Result<()> {
        let mut closed = Ok(());
        for (_, open) in std::mem::take(&mut self.open) {
            closed = closed.and(self.try_close(&open));
        }
        closed
    }

    /// Returns true if the next process that opens the checkout need not look for any file: all are Hangar's, or gone.
    pub fn leaves_nothing(&self) -> bool {
        self.unstaged.iter().all(|file| {
            file.is_staged(&self.folder)
                || file.is_stored(&self.folder)
                || !file.path(&self.folder).exists()
        })
    }

    fn try_close(&self, open: &Open) -> Result<()> {
        match &open.kind {
            OpenKind::Collection { file, .. } => {
                Ok(self.collections.ask(file, CollectionRequest::Close)?)
            }
            _ => Ok(()),
        }
    }

    fn close_file(&self, open: Open) {
        // No thread waits for the close; flushed samples are readable unless the disk has failed since.
        let _ = self.try_close(&open);
    }

    /// Makes a file for samples of a schema.
    fn make(&mut self, schema: &Schema) -> Result<Open> {
        let damaged = |why: String| Error::new(ErrorKind::Os(libc::EOPNOTSUPP), why);
        let (backend, options) = schema
            .backend()
            .ok_or_else(|| damaged("the schema of the column names no backend".into()))?;
        let (backend, kind) = match (&schema.samples, backend) {
            (SampleKind::Text, "30") => ("30", None),
            (SampleKind::Bytes, "31") => ("31", None),
            (SampleKind::Arrays { dtype, shape, .. }, "10") => ("10", Some((dtype, shape))),
            (SampleKind::Arrays { dtype, shape, .. }, "00") => ("00", Some((dtype, shape))),
            (SampleKind::Arrays { dtype, shape, .. }, "01") => ("01", Some((dtype, shape))),
            (_, other) => {
                return Err(damaged(format!(
                    "new samples of this column go to backend {other}"
                )));
            }
        };
        let uid = self.reserve(backend)?;
        let name = DataFile::new(backend, &uid);
        let path = name.path(&self.folder);
        let about = |e: std::io::Error| Error::from(e).about(path.display());
        let create = |path: &Path| self.owner.make_file(path).map_err(about);
        let kind = match kind {
            None => {
                self.owner.make_dir(&path).map_err(about)?;
                // The worker that writes the files may not create any.
                for part in ["data.mdb", "lock.mdb"] {
                    create(&path.join(part))?;
                }
                OpenKind::Values
            }
            Some((dtype, shape)) if backend == "10" => {
                let file = create(&path)?;
                let rows = [&[NUMPY_ROWS], &shape[..]].concat();
                let header = npy::header(dtype, &rows);
                let len = npy::payload_len(dtype, &rows).ok_or_else(|| full("too large"))?;
                file.write_all_at(&header, 0).map_err(about)?;
                file.set_len(header.len() as u64 + len).map_err(about)?;
                OpenKind::Numpy {
                    file,
                    shape: shape.clone(),
                }
            }
            Some((dtype, shape)) => {
                let geometry = Geometry::new(
                    backend,
                    dtype,
                    shape,
                    ColumnCompression::from_options(options)?,
                );
                create(&path)?;
                let file = StoreFile::open(&path).map_err(about)?;
                let request = CollectionRequest::Create(Box::new(geometry.file()));
                let made = self.collections.ask(&file, request);
                made.map_err(|e| Error::from(e).about(path.display()))?;
                OpenKind::Collection {
                    file: Box::new(file),
                    geometry: Box::new(geometry),
                }
            }
        };
        self.unstaged.push(name.clone());
        Ok(Open {
            name,
            uid,
            kind,
            samples: 0,
            marked: false,
        })
    }

    /// Chooses a new name, and writes it down before a file has it.
    fn reserve(&mut self, backend: &str) -> Result<String> {
        let dir = self.folder.join("data").join(backend);
        let made = self.owner.make_dirs(&dir);
        made.map_err(|e| Error::from(e).about(dir.display()))?;
        let uid = loop {
            let uid = random_name();
            if !DataFile::new(backend, &uid).path(&self.folder).exists() {
                break uid;
            }
        };
        // The line takes a single write, since other writers append to the list as well.
        let line = format!("{backend} {uid}\n");
        self.made.write_all(line.as_bytes())?;
        Ok(uid)
    }

    /// Writes as many samples as the file has room for; returns `None` if the file is full.
    fn fill(
        &mut self,
        open: &mut Open,
        stage: &Stage,
        samples: &[HeldSample],
    ) -> Result<Option<Vec<Record>>> {
        let path = open.name.path(&self.folder);
        let about = |e: Error| e.about(path.display());
        let first = open.samples;
        let sums: Vec<u64> = samples.iter().map(|s| xxh64(&s.bytes, 0)).collect();
        let uid = || open.uid.clone();
        let mut records = Vec::with_capacity(samples.len());
        match &open.kind {
            OpenKind::Collection { file, geometry } => {
                let mut rows = Vec::with_capacity(samples.len());
                let mut last = (0, 0);
                for ((HeldSample { sample, bytes }, sum), at) in
                    samples.iter().zip(sums).zip(first..)
                {
                    let dataset = u32::try_from(at / geometry.rows()).unwrap_or(u32::MAX);
                    let row = at % geometry.rows();
                    last = (dataset, row);
                    rows.push(CollectionRow {
                        dataset,
                        row,
                        shape: geometry.extent(&sample.shape),
                        bytes: ByteBuf::from(&bytes[..]),
                    });
                    records.push(Record::Hdf5(RowRecord {
                        backend: if open.name.backend == "00" {
                            "00"
                        } else {
                            "01"
                        },
                        spelling: Spelling::Today,
                        uid: uid(),
                        checksum: Some(sum),
                        dataset,
                        row,
                        shape: sample.shape.clone(),
                    }));
                }
                let attributes = geometry.progress(last.0, last.1);
                let request = CollectionRequest::Write { rows, attributes };
                let done = self.collections.ask(file, request);
                done.map_err(|e| about(e.into()))?;
                self.dirty
                    .insert(open.name.clone(), file.file()?.try_clone()?);
            }
            OpenKind::Numpy { file, shape } => {
                for ((HeldSample { sample, bytes }, sum), row) in
                    samples.iter().zip(sums).zip(first..)
                {
                    write_numpy_row(file, shape, row, sample, bytes).map_err(about)?;
                    records.push(Record::Numpy {
                        uid: uid(),
                        checksum: sum,
                        row,
                        shape: sample.shape.clone(),
                    });
                }
                self.dirty.insert(open.name.clone(), file.try_clone()?);
            }
            OpenKind::Values => {
                let backend = if open.name.backend == "30" {
                    "30"
                } else {
                    "31"
                };
                let mut ops = Vec::with_capacity(samples.len());
                for ((HeldSample { bytes, .. }, sum), at) in samples.iter().zip(sums).zip(first..) {
                    let key = row_key(at);
                    ops.push(TableOp::put(key.as_bytes(), &bytes[..]));
                    records.push(Record::Lmdb {
                        backend,
                        uid: uid(),
                        key,
                        checksum: sum,
                    });
                }
                let path = format!("data/{backend}/{}", open.uid);
                let step = TableTransaction::of_one_writer(&path, SAMPLES_MAP_SIZE, ops);
                match stage.write_values(vec![step])? {
                    TablesOutcome::Done => {}
                    TablesOutcome::Full => return Ok(None),
                    _ => return Err(about(full("no room for more samples"))),
                }
            }
        }
        open.samples += samples.len() as u64;
        Ok(Some(records))
    }

    /// Returns once all written samples would survive a loss of power.
    pub fn sync(&mut self) -> Result<()> {
        for file in self.dirty.values() {
            file.sync_all()?;
        }
        self.dirty.clear();
        let mut dirs: Vec<PathBuf> = self
            .unstaged
            .iter()
            .filter_map(|file| Some(file.path(&self.folder).parent()?.to_owned()))
            .collect();
        dirs.sort();
        dirs.dedup();
        for dir in dirs {
            File::open(dir)?.sync_all()?;
        }
        Ok(())
    }

    /// Marks the files as staged, and those of `committed` as committed. This must happen under the writer lock, before
    /// any record names the files.
    pub fn mark(&mut self, committed: &BTreeSet<DataFile>) -> Result<()> {
        let own = |file: &&DataFile| {
            self.unstaged.contains(file) || self.open.values().any(|open| open.name == **file)
        };
        let stored: Vec<DataFile> = committed.iter().filter(own).cloned().collect();
        super::markers::store(&self.folder, self.owner, &stored)?;
        for file in &stored {
            file.unstage(&self.folder)?;
        }
        self.unstaged.retain(|file| !stored.contains(file));
        for file in &self.unstaged {
            file.stage(&self.folder, self.owner)?;
        }
        let mut backends: Vec<&str> = self.unstaged.iter().map(|f| f.backend.as_str()).collect();
        backends.sort_unstable();
        backends.dedup();
        for backend in backends {
            super::markers::sync_staged(&self.folder, backend)?;
        }
        self.unstaged.clear();
        for open in self.open.values_mut() {
            open.marked = true;
        }
        Ok(())
    }
}

impl Open {
    /// Returns the number of samples that the file still takes.
    fn room(&self) -> u64 {
        let most = match &self.kind {
            OpenKind::Collection { geometry, .. } => geometry.rows() * u64::from(geometry.used()),
            OpenKind::Numpy { .. } => NUMPY_ROWS,
            // The map of the file is full long before that number.
            OpenKind::Values => 1_000_000,
        };
        most.saturating_sub(self.samples)
    }
}

/// The characters of the row keys of backends `30` and `31`; no key has one of them twice.
const ROW_KEY: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Returns a new name of a data file: eight letters and digits.
fn random_name() -> String {
    const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut left = RandomState::new().hash_one(std::process::id());
    let letters = (0..8).map(|_| {
        let letter = LETTERS[usize::try_from(left % 36).unwrap_or(0)];
        left /= 36;
        char::from(letter)
    });
    letters.collect()
}

/// Returns key number `at` of a file of values: four different characters, in order (`lmdb_30.py`,
/// `_lexicographic_keys`).
fn row_key(at: u64) -> String {
    let mut left: Vec<u8> = ROW_KEY.to_vec();
    let mut at = usize::try_from(at).unwrap_or(usize::MAX);
    let mut key = String::with_capacity(4);
    for following in [61 * 60 * 59, 60 * 59, 59, 1] {
        let digit = (at / following).min(left.len() - 1);
        at %= following;
        key.push(char::from(left.remove(digit)));
    }
    key
}

/// The largest number of lanes: each takes the memory of a worker.
const MOST_LANES: usize = 4;

/// The number of bytes of samples that justifies another lane.
const WORTH: u64 = 512 << 10;

/// The writers of one checkout; the first takes all samples that are not divided.
pub struct Lanes(Vec<DataWriter>);

impl Lanes {
    /// Opens a writer for each lane; `DataWriter::open` says what the arguments are.
    pub fn open(folder: &Path, dir: &Dir, program: &Path, owner: Owner) -> Result<Self> {
        let first = DataWriter::open(folder, dir, program, owner)?;
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let others: Vec<DataWriter> = (1..cores.min(MOST_LANES))
            .map(|_| first.another())
            .collect::<Result<_>>()?;
        Ok(Self(std::iter::once(first).chain(others).collect()))
    }

    /// Writes samples, divided among the lanes; see `DataWriter::write`.
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

    /// Returns whether all lanes leave nothing; see `DataWriter::leaves_nothing`.
    pub fn leaves_nothing(&self) -> bool {
        self.0.iter().all(DataWriter::leaves_nothing)
    }

    /// Marks the files of all lanes; see `DataWriter::mark`.
    pub fn mark(&mut self, committed: &BTreeSet<DataFile>) -> Result<()> {
        self.0.iter_mut().try_for_each(|lane| lane.mark(committed))
    }

    /// Closes the files of all lanes; see `DataWriter::close`.
    pub fn close(&mut self) -> Result<()> {
        let closed = self.0.iter_mut().map(DataWriter::close);
        closed.fold(Ok(()), Result::and)
    }
}

/// The number of rows of a file.
const NUMPY_ROWS: u64 = 1000;

fn too_large() -> Error {
    Error::new(ErrorKind::TooLarge, "larger than a row can be")
}

/// Writes a sample into its row; a sample smaller than the row takes the first elements along each axis.
fn write_numpy_row(
    file: &File,
    row_shape: &[u64],
    row: u64,
    sample: &NewSample,
    bytes: &[u8],
) -> Result<()> {
    let dtype: &DType = sample.dtype.as_ref().ok_or_else(too_large)?;
    let size = dtype.size() as u64;
    let start = npy::header(dtype, &[&[NUMPY_ROWS], row_shape].concat()).len() as u64;
    let whole = row_shape.iter().product::<u64>() * size;
    let begin = start + row * whole;
    // The longest run that is contiguous in both the sample and the row.
    let same = sample
        .shape
        .iter()
        .zip(row_shape)
        .rev()
        .take_while(|(a, b)| a == b)
        .count();
    let outer = sample.shape.len().saturating_sub(same + 1);
    let together: u64 = sample.shape[outer..].iter().product::<u64>() * size;
    let strides: Vec<u64> = (0..outer)
        .map(|axis| row_shape[axis + 1..].iter().product::<u64>() * size)
        .collect();
    let runs: u64 = sample.shape[..outer].iter().product();
    let run_len = usize::try_from(together).map_err(|_| too_large())?;
    for (number, run) in (0..runs).zip(bytes.chunks(run_len.max(1))) {
        let mut left = number;
        let mut at = begin;
        for axis in (0..outer).rev() {
            at += left % sample.shape[axis] * strides[axis];
            left /= sample.shape[axis];
        }
        file.write_all_at(run, at)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_samples_take_the_first_places_of_a_row() {
        let file = tempfile::tempfile().unwrap();
        let dtype = DType::int(2);
        let start = npy::header(&dtype, &[1000, 3, 4, 2]).len();
        for (row, shape) in [[3, 4, 2], [2, 3, 2], [1, 4, 1], [3, 1, 2], [2, 4, 2]]
            .iter()
            .enumerate()
        {
            let count: u64 = shape.iter().product();
            let values: Vec<u8> = (0..count)
                .flat_map(|n| (n as i16 + 1).to_le_bytes())
                .collect();
            let sample = NewSample::array(dtype.clone(), shape.to_vec(), values).unwrap();
            write_numpy_row(
                &file,
                &[3, 4, 2],
                row as u64,
                &sample,
                &sample.held().unwrap(),
            )
            .unwrap();
            let mut stored = vec![0; 48];
            let len = file.metadata().unwrap().len() as usize;
            let at = start + 48 * row;
            stored.truncate(48.min(len - at));
            file.read_exact_at(&mut stored, at as u64).unwrap();
            stored.resize(48, 0);
            let mut next = 0;
            for (i, pair) in stored.chunks(2).enumerate() {
                let (x, y, z) = (i / 8, i / 2 % 4, i % 2);
                let inside =
                    (x as u64) < shape[0] && (y as u64) < shape[1] && (z as u64) < shape[2];
                next += i16::from(inside);
                let want = if inside { next } else { 0 };
                assert_eq!(
                    i16::from_le_bytes([pair[0], pair[1]]),
                    want,
                    "{shape:?} {i}"
                );
            }
        }
    }

    #[test]
    fn keys_of_rows_are_those_of_hangar() {
        for (at, key) in [
            (0, "0123"),
            (1, "0124"),
            (2, "0125"),
            (58, "012z"),
            (59, "0132"),
        ] {
            assert_eq!(row_key(at), key);
        }
        assert_eq!(row_key(499), "01AU");
        assert_eq!(row_key(62 * 61 * 60 * 59 - 1), "zyxw");
        assert_eq!(random_name().len(), 8);
        assert_ne!(random_name(), random_name());
    }
}
