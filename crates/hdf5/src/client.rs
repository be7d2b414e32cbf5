//! The daemon's side: clients that send requests to worker processes, which they start, watch and replace.
//!
//! No soft or external link is followed: callers decide what a link may lead to. Stores are only read; a [`Creator`]
//! makes new files.
//!
//! [`Creator`]: writer::Creator

pub(crate) mod access;
pub(crate) mod editor;
mod pool;
mod process;
pub mod program;
pub(crate) mod tables;
pub(crate) mod writer;

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde_bytes::ByteBuf;

use crate::protocol::{
    Answer, Attribute, DatasetMap, Details, FirstMember, GroupMembers, GroupPath, GroupScan,
    H5Error, LmdbRequest, Maps, ObjectTimes, PackedValues, Request, Resolved, Sandbox,
    ScannedMember, Sink, Targets, TextMeasure,
};
use access::Reach;
use npyfs_base::thread;
use npyfs_io::file::StoreFile;

/// A function that answers requests in this process.
pub type AnswerHere = dyn Fn(&StoreFile, &Request) -> Result<Answer, H5Error> + Send + Sync;

/// The client of libhdf5 and liblmdb; requests may come from any thread.
pub enum H5 {
    /// A function of this process, without a worker and its sandbox: for tests that trust their files.
    Here(Box<AnswerHere>),
    /// Worker processes, which this program starts of itself.
    Workers(Box<pool::WorkerPool>),
}

/// Unpacks the variant that a request is answered with.
macro_rules! ask {
    ($self:ident, $file:ident, $request:expr, $variant:ident) => {
        match $self.call($file, $request)? {
            Answer::$variant(value) => Ok(value),
            _ => Err(H5Error::unexpected_answer()),
        }
    };
}

/// Members of a group in the first part of a listing.
const FIRST_PART: usize = 10_000;

/// Most members of a group; more do not fit into the memory of a worker.
const MAX_MEMBERS: usize = 1 << 27;

/// Asks for the members in a range in parts, by several workers at a time.
fn in_parts<T: Send>(
    range: std::ops::Range<usize>,
    ask: &(impl Fn(usize, usize) -> Result<T, H5Error> + Sync),
) -> Result<Vec<T>, H5Error> {
    /// Members of each part at the least and at the most.
    const PART_SIZES: std::ops::RangeInclusive<usize> = 10_000..=100_000;
    if range.is_empty() {
        return Ok(Vec::new());
    }
    if range.end > MAX_MEMBERS {
        return Err(H5Error::TooLarge(format!(
            "a group of {} members",
            range.end
        )));
    }
    parts(range, PART_SIZES, ask)
}

/// Asks for parts of these sizes, as many at a time as there are processors.
fn parts<T: Send>(
    range: std::ops::Range<usize>,
    size: std::ops::RangeInclusive<usize>,
    ask: &(impl Fn(usize, usize) -> Result<T, H5Error> + Sync),
) -> Result<Vec<T>, H5Error> {
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let size = range
        .len()
        .div_ceil(threads)
        .clamp(*size.start(), *size.end());
    let starts: Vec<usize> = range.step_by(size).collect();
    let mut parts = Vec::new();
    for starts in starts.chunks(threads) {
        let answers: Vec<Result<T, H5Error>> = thread::scope(|scope| {
            let running: Vec<_> = starts
                .iter()
                .map(|&from| {
                    let thread = std::thread::Builder::new();
                    thread.spawn_scoped(scope, move || ask(from, size))
                })
                .collect();
            running
                .into_iter()
                .map(|thread| {
                    let failed = |_| Err(H5Error::Damaged("listing failed unexpectedly".into()));
                    thread?.join().unwrap_or_else(failed)
                })
                .collect()
        });
        for answer in answers {
            parts.push(answer?);
        }
    }
    Ok(parts)
}

impl H5 {
    /// Makes a client of workers that may read the stores in this reach.
    ///
    /// The program (see [`program`]) must become a worker when it is started with `argument::READER`.
    pub fn workers(reach: Reach) -> Self {
        Self::Workers(Box::new(pool::WorkerPool::new(reach)))
    }

    /// Lets workers open a file by its name: a checked source of virtual datasets.
    pub fn permit_source(&self, path: &Path, meta: &Metadata) {
        if let Self::Workers(pool) = self {
            pool.permit_source(path, (meta.dev(), meta.ino()));
        }
    }

    /// Lets workers that start from now on open a file that they will be asked about.
    pub fn will_ask(&self, file: &StoreFile) {
        if let Self::Workers(pool) = self {
            pool.will_ask(file);
        }
    }

    /// Returns whether libhdf5 can open by name only what was permitted.
    pub fn is_confined(&self) -> bool {
        match self {
            Self::Here(_) => true,
            Self::Workers(pool) => pool
                .sandbox()
                .is_some_and(|sandbox| sandbox.has("landlock")),
        }
    }

    /// Returns how many workers crashed or stalled and were replaced.
    pub fn restarts(&self) -> u64 {
        match self {
            Self::Here(_) => 0,
            Self::Workers(pool) => pool.restarts(),
        }
    }

    /// Returns how many requests so far failed for a reason that says nothing about the file: what was learnt meanwhile
    /// may be wrong.
    pub fn unanswered(&self) -> u64 {
        match self {
            Self::Here(_) => 0,
            Self::Workers(pool) => pool.unanswered(),
        }
    }

    /// Starts a worker for requests to come.
    pub fn warm(&self) {
        if let Self::Workers(pool) = self {
            pool.warm();
        }
    }

    /// Returns the sandbox of the workers; `None` without workers, and before the first has served.
    pub fn sandbox(&self) -> Option<Sandbox> {
        match self {
            Self::Here(_) => None,
            Self::Workers(pool) => pool.sandbox(),
        }
    }

    /// Answers one request about one file. Fails with [`H5Error::Stale`] if the file was written to before or
    /// meanwhile.
    pub fn call(&self, file: &StoreFile, request: Request) -> Result<Answer, H5Error> {
        let bears_writers = request.bears_writers();
        if !bears_writers && !file.is_unchanged() {
            return Err(H5Error::Stale);
        }
        let answer = match self {
            Self::Here(answer) => answer(file, &request),
            Self::Workers(pool) => pool.call(file, &request, None),
        };
        if bears_writers {
            return answer;
        }
        self.judged(file, answer)
    }

    /// Replaces an answer about a file that was written to meanwhile by [`H5Error::Stale`].
    fn judged<T>(&self, file: &StoreFile, answer: Result<T, H5Error>) -> Result<T, H5Error> {
        // libhdf5 cannot open a file that has no name any more: a replaced one that it had not open yet.
        let lost = matches!(answer, Err(H5Error::Damaged(_))) && !file.is_current();
        if lost || !file.is_unchanged() {
            return Err(H5Error::Stale);
        }
        answer
    }

    /// Returns the address of the root group.
    pub fn root(&self, file: &StoreFile) -> Result<u64, H5Error> {
        ask!(self, file, Request::Root, Root)
    }

    /// Returns all members of a group. A large one is listed in parts, by several workers at a time. With `outside` it
    /// is looked up which datasets may keep their data in other files.
    pub fn list(
        &self,
        file: &StoreFile,
        group: u64,
        outside: bool,
    ) -> Result<GroupMembers, H5Error> {
        let part = |from, most| {
            let from = FirstMember::Number(from);
            let request = Request::List {
                group,
                outside,
                from,
                most,
            };
            ask!(self, file, request, Members)
        };
        let mut all = part(0, FIRST_PART)?;
        for part in in_parts(FIRST_PART..all.total, &part)? {
            all.members.extend(part.members);
        }
        Ok(all)
    }

    /// Returns at most `most` members of a group in order of name, from the first one behind `after` on. However large
    /// the group is, neither side holds more names than these.
    pub fn members_after(
        &self,
        file: &StoreFile,
        group: u64,
        after: &[u8],
        most: usize,
    ) -> Result<GroupMembers, H5Error> {
        let request = Request::List {
            group,
            outside: false,
            from: FirstMember::After(after.to_vec()),
            most,
        };
        ask!(self, file, request, Members)
    }

    /// Returns the member of this name of a group of at least `least` members, if there is one. Of a group of a few
    /// thousand members all are returned: they are listed as fast. Of one between these two, none.
    pub fn member_of_many(
        &self,
        file: &StoreFile,
        group: u64,
        name: &[u8],
        least: usize,
    ) -> Result<GroupMembers, H5Error> {
        let name = name.to_vec();
        let request = Request::List {
            group,
            outside: false,
            from: FirstMember::Named { name, least },
            most: FIRST_PART,
        };
        ask!(self, file, request, Members)
    }

    /// Returns at most `most` members of a group, with what is below them as deep as `depth`, and the attributes of
    /// these names. Each member is converted as it arrives.
    pub fn scan<T: Send>(
        &self,
        file: &StoreFile,
        group: u64,
        names: &[&str],
        (most, depth): (usize, usize),
        convert: impl Fn(ScannedMember) -> T + Sync,
    ) -> Result<GroupScan<T>, H5Error> {
        let names: Vec<Vec<u8>> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
        let part = |from, most| {
            let request = Request::Scan {
                group,
                names: names.clone(),
                depth,
                from,
                most,
            };
            let scan = ask!(self, file, request, Scan)?;
            Ok(GroupScan {
                attributes: scan.attributes,
                members: scan.members.into_iter().map(&convert).collect(),
                total: scan.total,
                damage: scan.damage,
            })
        };
        let mut all = part(0, FIRST_PART.min(most))?;
        for part in in_parts(FIRST_PART..all.total.min(most), &part)? {
            all.members.extend(part.members);
        }
        Ok(all)
    }

    /// Returns what the first `most` elements of a dataset of references refer to, in C order, and the attributes of
    /// these names. Each object is converted as it arrives.
    pub fn targets<T: Send>(
        &self,
        file: &StoreFile,
        dataset: u64,
        names: &[&str],
        most: usize,
        convert: impl Fn(ScannedMember) -> T + Sync,
    ) -> Result<Targets<T>, H5Error> {
        let names: Vec<Vec<u8>> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
        let part = |from, most| {
            let request = Request::Targets {
                dataset,
                names: names.clone(),
                from,
                most,
            };
            let part = ask!(self, file, request, Targets)?;
            Ok(Targets {
                shape: part.shape,
                targets: part.targets.into_iter().map(&convert).collect(),
            })
        };
        let mut all = part(0, FIRST_PART.min(most))?;
        let elements = all.shape.iter().try_fold(1_u64, |n, &d| n.checked_mul(d));
        let total = elements.and_then(|n| usize::try_from(n).ok());
        let total = total.unwrap_or(usize::MAX).min(most);
        for part in in_parts(FIRST_PART..total, &part)? {
            all.targets.extend(part.targets);
        }
        Ok(all)
    }

    /// Returns the dimensions that a group of a netCDF-4 file defines: own name and length of each. `is_netcdf`: the
    /// name of the file says so.
    pub fn scales(
        &self,
        file: &StoreFile,
        group: u64,
        is_netcdf: bool,
    ) -> Result<Vec<(Vec<u8>, u64)>, H5Error> {
        ask!(self, file, Request::Scales { group, is_netcdf }, Scales)
    }

    /// Returns every group once: address and shortest path from the root, first by name.
    pub fn groups(&self, file: &StoreFile) -> Result<Vec<(u64, GroupPath)>, H5Error> {
        ask!(self, file, Request::Groups, Groups)
    }

    /// Returns when objects were written, if the file says it.
    pub fn times(&self, file: &StoreFile) -> Result<Option<ObjectTimes>, H5Error> {
        ask!(self, file, Request::Times, Times)
    }

    /// Returns what a path leads to; a relative one starts from `group`.
    pub fn resolve(&self, file: &StoreFile, group: u64, path: &[u8]) -> Result<Resolved, H5Error> {
        let path = path.to_vec();
        ask!(self, file, Request::Resolve { group, path }, Resolved)
    }

    /// Returns where the elements of a dataset lie. The table of very many chunks is left out: see
    /// [`IndexedChunks`](crate::IndexedChunks).
    pub fn map(&self, file: &StoreFile, dataset: u64) -> Result<DatasetMap, H5Error> {
        let whole = false;
        ask!(self, file, Request::Map { dataset, whole }, Map)
    }

    /// Returns where the elements of a dataset lie, with the table of all chunks.
    pub fn whole_map(&self, file: &StoreFile, dataset: u64) -> Result<DatasetMap, H5Error> {
        let whole = true;
        ask!(self, file, Request::Map { dataset, whole }, Map)
    }

    /// Returns all that the header of an object says.
    pub fn describe(&self, file: &StoreFile, object: u64) -> Result<Details, H5Error> {
        ask!(self, file, Request::Describe { object }, Details)
    }

    /// Returns the attributes of an object, in order of name.
    pub fn attributes(&self, file: &StoreFile, object: u64) -> Result<Vec<Attribute>, H5Error> {
        ask!(self, file, Request::Attributes { object }, Attributes)
    }

    /// Returns the bytes that a request is answered with.
    pub fn bytes(&self, file: &StoreFile, request: Request) -> Result<Vec<u8>, H5Error> {
        ask!(self, file, request, Bytes)
    }

    /// Hands on the bytes that a request is answered with as they come: each part with its offset. After a
    /// failure on the way they may begin again at 0.
    pub fn stream(
        &self,
        file: &StoreFile,
        request: Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), H5Error> {
        if let Self::Workers(pool) = self {
            let bears_writers = request.bears_writers();
            if !bears_writers && !file.is_unchanged() {
                return Err(H5Error::Stale);
            }
            let answer = pool.call(file, &request, Some(sink));
            if bears_writers {
                return answer.map(drop);
            }
            return self.judged(file, answer).map(drop);
        }
        let bytes = self.bytes(file, request)?;
        sink(0, &bytes).map_err(|e| H5Error::Damaged(e.to_string()))
    }

    /// Returns the measure of a text dataset, taken in blocks of `rows` along its first dimension.
    pub fn measure_text(
        &self,
        file: &StoreFile,
        dataset: u64,
        rows: u64,
    ) -> Result<TextMeasure, H5Error> {
        ask!(
            self,
            file,
            Request::MeasureText { dataset, rows },
            TextMeasure
        )
    }

    /// Returns the measures of the texts inside the first `shape` of a dataset's elements, in their order.
    pub fn measure_record(
        &self,
        file: &StoreFile,
        dataset: u64,
        shape: &[u64],
        rows: u64,
    ) -> Result<Vec<TextMeasure>, H5Error> {
        let shape = shape.to_vec();
        let request = Request::MeasureRecord {
            dataset,
            shape,
            rows,
        };
        ask!(self, file, request, TextMeasures)
    }

    /// Returns the maps of datasets of the root group by name, all if there are no names; the file may be growing.
    pub fn maps(&self, file: &StoreFile, names: Vec<Vec<u8>>) -> Result<Maps, H5Error> {
        ask!(self, file, Request::Maps { names }, Maps)
    }

    /// Returns the values of keys of an LMDB file, in their order.
    pub fn values(
        &self,
        file: &StoreFile,
        keys: Vec<Vec<u8>>,
    ) -> Result<Vec<Option<ByteBuf>>, H5Error> {
        let wanted = keys.len();
        let keys = keys.into_iter().map(ByteBuf::from).collect();
        match self.call(file, Request::Lmdb(LmdbRequest::Get { keys }))? {
            Answer::Values(values) if values.len() == wanted => Ok(values),
            _ => Err(H5Error::unexpected_answer()),
        }
    }

    /// Hands on the value of a key of an LMDB file as it comes; see [`H5::stream`].
    pub fn stream_value(
        &self,
        file: &StoreFile,
        key: &[u8],
        sink: &mut Sink<'_>,
    ) -> Result<(), H5Error> {
        let key = ByteBuf::from(key);
        self.stream(file, Request::Lmdb(LmdbRequest::Value { key }), sink)
    }

    /// Returns the values of keys of an LMDB file that are `prefix` and a hash in hexadecimal digits.
    pub fn hashed<const N: usize>(
        &self,
        file: &StoreFile,
        prefix: &[u8],
        hashes: &[[u8; N]],
    ) -> Result<PackedValues, H5Error> {
        let request = LmdbRequest::Hashed {
            prefix: ByteBuf::from(prefix),
            width: N,
            hashes: ByteBuf::from(hashes.as_flattened()),
        };
        match self.call(file, Request::Lmdb(request))? {
            Answer::Packed(packed) if packed.is_valid(hashes.len()) => Ok(packed),
            _ => Err(H5Error::unexpected_answer()),
        }
    }

    /// Returns the lengths of the values of keys of an LMDB file, in bytes, in their order.
    pub fn lengths(
        &self,
        file: &StoreFile,
        keys: Vec<Vec<u8>>,
    ) -> Result<Vec<Option<u64>>, H5Error> {
        let wanted = keys.len();
        let keys = keys.into_iter().map(ByteBuf::from).collect();
        let request = LmdbRequest::Lengths { keys };
        match self.call(file, Request::Lmdb(request))? {
            Answer::Lengths(lengths) if lengths.len() == wanted => Ok(lengths),
            _ => Err(H5Error::unexpected_answer()),
        }
    }

    /// Returns rows of an LMDB file, in order of key; see [`LmdbRequest::Rows`].
    pub fn rows(
        &self,
        file: &StoreFile,
        prefix: &[u8],
        after: Option<Vec<u8>>,
        most: usize,
        longest: usize,
    ) -> Result<Vec<(ByteBuf, ByteBuf)>, H5Error> {
        let request = LmdbRequest::Rows {
            prefix: prefix.to_vec(),
            after,
            most,
            longest,
        };
        match self.call(file, Request::Lmdb(request))? {
            Answer::Rows(rows) => Ok(rows),
            _ => Err(H5Error::unexpected_answer()),
        }
    }
}
