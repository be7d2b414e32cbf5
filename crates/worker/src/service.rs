//! The server end of a reading worker: answers requests with libhdf5.
//!
//! Keeps a bounded number of files open, and the dataset that was read last. A file is opened through the caller's
//! descriptor, so a path that leads to another file meanwhile cannot change the answer. An answer is only given if the
//! file was not written meanwhile.

use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use lru::LruCache;

use super::attributes::attributes;
use super::dataset::{OpenDataset, bounded};
use super::ffi::{self, Failure, Id};
use super::lmdb::Environments;
use super::object_paths::{ObjectPaths, Referrer};
use super::types::{self, TypeError};
use super::{chunks, describe, dimensions, far, record, references, scan, text};
use npyfs_base::heap;
use npyfs_hdf5::protocol::{Answer, ElementType, EncodedChunk, H5Error, Request};
use npyfs_io::file::handle::{allowance, is_short};
use npyfs_io::file::members::Layout;
use npyfs_io::file::{Identity, StoreFile};

/// The largest number of files that are kept open.
const MAX_OPEN_FILES: u64 = 64;

/// The number of descriptors of this process that are not store files: the daemon's connection, LMDB, sources of
/// virtual datasets.
const OTHER_DESCRIPTORS: u64 = 16;

/// Returns the number of files that are kept open. Each takes the descriptor that came with the request, and two of
/// libhdf5, with and without virtual sources.
pub(super) fn open_files() -> NonZeroUsize {
    let files = allowance().saturating_sub(OTHER_DESCRIPTORS) / 3;
    let files = usize::try_from(files.clamp(2, MAX_OPEN_FILES)).unwrap_or(2);
    NonZeroUsize::new(files).unwrap_or(NonZeroUsize::MIN)
}

/// A file that libhdf5 has open. Identifiers are released in the order of the fields.
struct ServedFile {
    last: Option<OpenDataset>,
    /// The dataset whose index of chunks was fetched last.
    warm: Option<u64>,
    /// The links that come next in the group that was listed part by part.
    ahead: Option<describe::LinksAhead>,
    file: Id,
    /// Paths of objects, as far as references were followed.
    paths: ObjectPaths,
    /// The file is open with SWMR, so that libhdf5 does not report reads beyond the end of the file.
    endless: bool,
    identity: Identity,
    /// The layout of the members, if the file is stored as several.
    layout: Option<Arc<Layout>>,
}

/// A function that decodes a chunk without libhdf5.
pub type ChunkDecoder = fn(&StoreFile, &EncodedChunk) -> npyfs_base::error::Result<Vec<u8>>;

/// The open files of a worker, by the serial number of the store file and whether virtual sources may be followed.
pub(super) struct Service {
    decode: Option<ChunkDecoder>,
    open: LruCache<(u64, bool), ServedFile>,
    lmdb: Environments,
}

impl From<Failure> for H5Error {
    fn from(failure: Failure) -> Self {
        Self::Damaged(failure.0)
    }
}

impl From<TypeError> for H5Error {
    fn from(error: TypeError) -> Self {
        match error {
            TypeError::Unsupported(why) => Self::Unsupported(why),
            TypeError::Failure(failure) => failure.into(),
        }
    }
}

impl Service {
    /// Makes a service without open files. Without `decode`, requests for single chunks are refused.
    pub(super) fn new(decode: Option<ChunkDecoder>) -> Self {
        Self {
            decode,
            open: LruCache::new(open_files()),
            lmdb: Environments::default(),
        }
    }

    /// Answers one request; with [`H5Error::Stale`] if the file was written meanwhile.
    pub(super) fn answer(
        &mut self,
        file: &StoreFile,
        request: &Request,
    ) -> Result<Answer, H5Error> {
        match request {
            Request::Lmdb(request) => return self.lmdb.answer(file, request),
            Request::Maps { names } if file.far().is_none() => {
                return ffi::locked(|| self.maps(file, names));
            }
            _ => {}
        }
        if !file.is_unchanged() {
            self.forget(&file.identity);
            return Err(H5Error::Stale);
        }
        let begins = match request {
            Request::Root => true,
            Request::Maps { .. } => !self.open.contains(&(file.serial, false)),
            _ => false,
        };
        if let (true, Some(far)) = (begins, file.far()) {
            far::warm(far, file.identity.size).map_err(H5Error::not_fetched)?;
        }
        let mut answer = ffi::locked(|| {
            ffi::take_failure();
            self.dispatch(file, request)
        });
        // A failed fetch is no damage, and an answer that lacks the missing parts is no answer.
        if let Some(failure) = ffi::take_failure() {
            self.forget(&file.identity);
            answer = Err(H5Error::not_fetched(failure));
        }
        if !file.is_unchanged() {
            self.forget(&file.identity);
            return Err(H5Error::Stale);
        }
        if file.far().is_some()
            && matches!(&answer, Ok(Answer::Map(map)) if map.chunks() > far::MANY_CHUNKS)
        {
            // libhdf5 holds the index of the chunks, which is not needed again.
            ffi::locked(|| {
                self.forget(&file.identity);
                ffi::collect_garbage();
            });
            heap::return_free_memory();
        }
        answer
    }

    /// Closes everything that is open of a file: libhdf5 shares state between handles of one inode.
    fn forget(&mut self, identity: &Identity) {
        let same: Vec<_> = self
            .open
            .iter()
            .filter(|(_, open)| {
                (open.identity.dev, open.identity.ino) == (identity.dev, identity.ino)
            })
            .map(|(key, _)| *key)
            .collect();
        for key in same {
            self.open.pop(&key);
        }
    }

    fn dispatch(&mut self, file: &StoreFile, request: &Request) -> Result<Answer, H5Error> {
        if let Request::Create(_)
        | Request::WriteChunks(_)
        | Request::Edit { .. }
        | Request::Publish(_)
        | Request::Collection(_)
        | Request::Tables(_) = request
        {
            return Err(H5Error::Unsupported("this worker only reads".into()));
        }
        if let Request::Chunk { stored, .. } = request {
            let no_decoder = || H5Error::Unsupported("this worker decodes no chunks".into());
            let decode = self.decode.ok_or_else(no_decoder)?;
            return decode(file, stored)
                .map(Answer::Bytes)
                .map_err(|e| H5Error::Damaged(e.message));
        }
        if let Request::Maps { names } = request {
            return self.maps(file, names);
        }
        let follow = matches!(request, Request::Block { outside: true, .. });
        let open = self.open(file, follow)?;
        open.warm_index(file, request)?;
        Ok(match request {
            Request::Root => Answer::Root(ffi::root_addr(&open.file)?),
            Request::List {
                group,
                outside,
                from,
                most,
            } => Answer::Members(describe::members(
                &open.file,
                &mut open.ahead,
                *group,
                *outside,
                from,
                *most,
            )?),
            Request::Scan {
                group,
                names,
                depth,
                from,
                most,
            } => {
                let part = *from..from.saturating_add(*most);
                Answer::Scan(scan::scan(open.referrer(), *group, names, *depth, part)?)
            }
            Request::Scales { group, is_netcdf } => {
                let mut referrer = open.referrer();
                Answer::Scales(match *is_netcdf || dimensions::is_netcdf(referrer.file)? {
                    true => dimensions::scales(*group, &mut referrer)?,
                    false => Vec::new(),
                })
            }
            Request::Times => Answer::Times(describe::times(&open.file)?),
            Request::Groups => Answer::Groups(describe::groups(&open.file)?),
            Request::References => Answer::References(references::references(&open.file)?),
            Request::Targets {
                dataset,
                names,
                from,
                most,
            } => {
                let id = ffi::open_object(&open.file, *dataset)?;
                if open.endless {
                    chunks::check_ends(&id, open.identity.size)?;
                }
                let part = *from..from.saturating_add(*most);
                Answer::Targets(references::targets(open.referrer(), &id, names, part)?)
            }
            Request::Resolve { group, path } => {
                Answer::Resolved(describe::resolve(&open.file, *group, path)?)
            }
            Request::Map { dataset, whole } => {
                let size = open.identity.size;
                // In a file that is being written, the ends of all chunks are checked.
                let how = (file, !*whole && !open.endless);
                Answer::Map(describe::map(open.dataset(*dataset)?, size, how)?)
            }
            Request::Describe { object } => {
                let id = ffi::open_object(&open.file, *object)?;
                Answer::Details(describe::details(&id, *object, &mut open.referrer())?)
            }
            Request::Attributes { object } => {
                let id = ffi::open_object(&open.file, *object)?;
                Answer::Attributes(attributes(&id, &mut open.referrer())?)
            }
            Request::Block {
                dataset,
                start,
                shape,
                ..
            } => Answer::Bytes(block(open.dataset(*dataset)?, start, shape)?),
            // This request was answered above, without libhdf5.
            Request::Chunk { .. }
            | Request::Create(_)
            | Request::WriteChunks(_)
            | Request::Edit { .. }
            | Request::Publish(_)
            | Request::Collection(_)
            | Request::Tables(_) => Answer::Bytes(Vec::new()),
            Request::MeasureText { dataset, rows } => {
                Answer::TextMeasure(text::measure(open.dataset(*dataset)?, *rows)?)
            }
            Request::Text {
                dataset,
                start,
                shape,
                form,
            } => Answer::Bytes(text::render(open.dataset(*dataset)?, start, shape, *form)?),
            Request::MeasureRecord {
                dataset,
                shape,
                rows,
            } => Answer::TextMeasures(record::measure(open.dataset(*dataset)?, shape, *rows)?),
            Request::Record {
                dataset,
                start,
                shape,
                forms,
            } => Answer::Bytes(record::render(
                open.dataset(*dataset)?,
                start,
                shape,
                forms,
            )?),
            Request::Maps { .. } | Request::Lmdb(_) => {
                return Err(H5Error::Damaged("not a request about one version".into()));
            }
        })
    }

    /// Returns maps of datasets in a file to which a SWMR writer may be appending. The state of libhdf5 may be
    /// outdated, so the file is reopened when it has changed.
    fn maps(&mut self, file: &StoreFile, names: &[Vec<u8>]) -> Result<Answer, H5Error> {
        let now = file.identity_now();
        let now = now.map_err(|e| H5Error::Damaged(e.to_string()))?;
        let key = (file.serial, false);
        if self
            .open
            .peek(&key)
            .is_some_and(|open| open.identity != now)
        {
            self.forget(&file.identity);
        }
        let open = self.open(file, false)?;
        open.identity = now;
        let root = ffi::open_object(&open.file, ffi::root_addr(&open.file)?)?;
        let links = match names {
            [] => ffi::links(&root).0,
            names => names
                .iter()
                .filter_map(|name| Some((name.clone(), ffi::link(&root, name).ok()??)))
                .collect(),
        };
        let maps = links
            .into_iter()
            .filter_map(|(name, link)| {
                let ffi::RawLink::Hard(addr) = link else {
                    return None;
                };
                let dataset = open.dataset(addr);
                let map =
                    dataset.and_then(|dataset| describe::map(dataset, now.size, (file, false)));
                Some((name, map.map_err(|e| e.to_string())))
            })
            .collect();
        Ok(Answer::Maps(maps))
    }

    /// Opens a file with libhdf5. If there are no descriptors left, all other files are closed first.
    fn open_file(&mut self, file: &StoreFile, follow: bool) -> Result<(Id, bool), H5Error> {
        let held = file.file().map_err(H5Error::from)?;
        // libhdf5 looks for the sources of a virtual dataset beside the name under which the file was opened.
        let path = match follow {
            true => file.path.as_os_str().as_bytes().to_vec(),
            false => held.path().into_bytes(),
        };
        let failure = match ffi::open_file(&path) {
            Ok(opened) => return Ok(opened),
            Err(failure) => failure,
        };
        let probe = || std::fs::File::open(held.path()).err().filter(is_short);
        if probe().is_none() {
            return Err(failure.into());
        }
        self.open.clear();
        ffi::open_file(&path).map_err(|failure| match probe() {
            Some(short) => H5Error::of_system("libhdf5 cannot open the file", &short),
            None => failure.into(),
        })
    }

    fn open(&mut self, file: &StoreFile, follow: bool) -> Result<&mut ServedFile, H5Error> {
        let key = (file.serial, follow);
        if !self.open.contains(&key) {
            let stale: Vec<_> = self
                .open
                .iter()
                .filter(|(_, open)| {
                    (open.identity.dev, open.identity.ino) == (file.identity.dev, file.identity.ino)
                        && open.identity != file.identity
                })
                .map(|(key, _)| *key)
                .collect();
            for key in stale {
                self.open.pop(&key);
            }
            if follow && !file.is_current() {
                return Err(H5Error::Stale);
            }
            let (id, endless) = match (file.far(), file.layout()) {
                (Some(far), _) => ffi::open_far(far, file.identity.size)?,
                (None, Some(layout)) => (ffi::open_members(layout)?, false),
                (None, None) => self.open_file(file, follow)?,
            };
            if follow && !file.is_current() {
                return Err(H5Error::Stale);
            }
            self.open.put(
                key,
                ServedFile {
                    last: None,
                    ahead: None,
                    warm: None,
                    file: id,
                    paths: ObjectPaths::default(),
                    endless,
                    identity: file.identity,
                    layout: file.layout().cloned(),
                },
            );
        }
        self.open.get_mut(&key).ok_or(H5Error::Stale)
    }
}

impl ServedFile {
    fn referrer(&mut self) -> Referrer<'_> {
        Referrer {
            file: &self.file,
            paths: &mut self.paths,
        }
    }

    /// Fetches the index of the chunks of a dataset of a remote file before a request for which libhdf5 reads it.
    /// `describe::map` does so itself.
    fn warm_index(&mut self, file: &StoreFile, request: &Request) -> Result<(), H5Error> {
        let (
            Some(far),
            Request::Block { dataset, .. }
            | Request::Text { dataset, .. }
            | Request::MeasureText { dataset, .. }
            | Request::Record { dataset, .. }
            | Request::MeasureRecord { dataset, .. }
            | Request::Targets { dataset, .. }
            | Request::Describe { object: dataset },
        ) = (file.far(), request)
        else {
            return Ok(());
        };
        if self.warm != Some(*dataset) {
            let warmed = far::warm_index(far, self.identity.size, *dataset);
            warmed.map_err(H5Error::not_fetched)?;
            self.warm = Some(*dataset);
        }
        Ok(())
    }

    fn dataset(&mut self, addr: u64) -> Result<&OpenDataset, H5Error> {
        if self.last.as_ref().is_none_or(|last| last.addr != addr) {
            self.last = None;
            let id = ffi::open_object(&self.file, addr)?;
            if self.endless {
                chunks::check_ends(&id, self.identity.size)?;
            }
            let stored = ffi::dataset_type(&id)?;
            let sequence = types::sequence(&stored)?.map(|(_, base)| base);
            let element = match sequence {
                Some(_) => ElementType::Text {
                    fixed: None,
                    utf8: false,
                },
                None => text::of_dataset(&id, types::element(&stored)?)?,
            };
            let gaps = types::gaps(&stored);
            let mem_type = match &element {
                ElementType::Fixed { dtype, convert, .. } => {
                    types::memory_type(dtype, *convert, stored)?
                }
                ElementType::Text { fixed: None, utf8 } => ffi::variable_string(*utf8)?,
                ElementType::Text { fixed: Some(_), .. } => ffi::null_padded(&stored)?,
                ElementType::Record { part, .. } => record::memory_type(part, &stored)?,
            };
            self.last = Some(OpenDataset {
                addr,
                id,
                element,
                mem_type,
                sequence,
                gaps,
                layout: self.layout.clone(),
            });
        }
        self.last.as_ref().ok_or(H5Error::Stale)
    }
}

/// Reads a block of elements of fixed size.
fn block(dataset: &OpenDataset, start: &[u64], shape: &[u64]) -> Result<Vec<u8>, H5Error> {
    let size = ffi::size(&dataset.mem_type);
    bounded(shape, size)?;
    dataset.read(start, shape)
}
