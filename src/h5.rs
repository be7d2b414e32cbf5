//! The only door to libhdf5, and to liblmdb: plain requests in, plain answers out.
//!
//! Everything that crosses this seam can be serialised, so that the library may run in this process
//! or in another. Objects are named by their address in the file. No soft or external link is followed:
//! callers decide what a link may lead to. What exists is only read; `create` makes new files.

mod aec;
mod budget;
mod chunks;
pub mod collection;
mod create;
mod describe;
pub mod edit;
pub mod editor;
mod ffi;
pub mod keeper;
mod lmdb;
mod pool;
pub mod sandbox;
mod service;
mod survey;
mod szip;
pub mod tables;
mod text;
mod times;
mod types;
mod wire;
pub mod worker;
pub mod writer;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::dtype::DType;
use crate::filter::Pipeline;
use crate::raw::StoreFile;
use crate::thread::anywhere;
use budget::Room;
use collection::CollectionRequest;
pub use create::{
    Creator, LARGE, NewAttribute, NewChunk, NewChunks, NewDataset, NewElement, NewGroup, NewLayout,
    NewLink, Outline,
};
pub use lmdb::LmdbRequest;
pub use lmdb::Packed;
use sandbox::Sandbox;
use tables::{Outcome, TablesRequest};
pub use text::{CHARS, encode as encode_text};
pub use times::Times;
pub use types::Element;

/// The names that lead from the root group to a group.
pub type GroupPath = Vec<Vec<u8>>;

/// What can be asked of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// The address of the root group.
    Root,
    /// Members of a group in order of name: at most `most` from number `from` on. With `outside`, also
    /// which datasets may keep their data in other files.
    List {
        group: u64,
        outside: bool,
        from: usize,
        most: usize,
    },
    /// The same with what is below each member, as deep as `depth`, and the attributes of these names.
    Survey {
        group: u64,
        names: Vec<Vec<u8>>,
        depth: usize,
        from: usize,
        most: usize,
    },
    /// Every group once: address and shortest path from the root, first by name.
    Groups,
    /// When objects were written, if the file says it.
    Times,
    /// What a path from `group` leads to; soft links are followed, external ones reported.
    Resolve { group: u64, path: Vec<u8> },
    /// How the elements of a dataset are found.
    Map { dataset: u64 },
    /// Everything an object's header says, for people.
    Describe { object: u64 },
    /// The attributes of an object.
    Attributes { object: u64 },
    /// A block of elements, decoded. `outside`: the data may come from other files, which were checked.
    Block {
        dataset: u64,
        start: Vec<u64>,
        shape: Vec<u64>,
        outside: bool,
    },
    /// A chunk that would not fit beside what the caller holds in memory.
    Chunk {
        dataset: u64,
        stored: Box<StoredChunk>,
    },
    /// The measure of a text dataset, taken in blocks of `rows` along its first dimension.
    MeasureText { dataset: u64, rows: u64 },
    /// A block of a text dataset in one of its forms.
    Text {
        dataset: u64,
        start: Vec<u64>,
        shape: Vec<u64>,
        form: TextForm,
    },
    /// Maps of datasets of the root group, all of them if no names are given; the file may be growing.
    Maps { names: Vec<Vec<u8>> },
    /// About a file that is LMDB.
    Lmdb(LmdbRequest),
    /// Makes the file anew: for the writing worker only.
    Create(Box<Outline>),
    /// Adds chunks to a file that was made so: for the writing worker only.
    WriteChunks(Box<NewChunks>),
    /// Changes a new file: for the editing worker only. Steps are done in their order.
    Edit(Vec<edit::Step>),
    /// About a collection that is being written: for the writing worker only.
    Collection(CollectionRequest),
    /// Changes tables of Hangar: for the worker that keeps the writer lock only.
    Tables(TablesRequest),
}

impl Request {
    /// Whether it may open very many objects.
    fn opens_many(&self) -> bool {
        matches!(
            self,
            Self::List { .. }
                | Self::Survey { .. }
                | Self::Groups
                | Self::Times
                | Self::Maps { .. }
        )
    }

    /// Whether the answer holds although the file is written to: what is asked for is only ever added to
    /// (collections under SWMR), or the answer is taken from one transaction (LMDB).
    pub fn bears_writers(&self) -> bool {
        matches!(self, Self::Maps { .. } | Self::Lmdb(_))
    }

    /// The library that answers.
    fn library(&self) -> &'static str {
        match self {
            Self::Lmdb(_) | Self::Tables(_) => "liblmdb",
            _ => "libhdf5",
        }
    }

    /// The address of the object that is asked about; 0 for the file as a whole.
    fn object(&self) -> u64 {
        match self {
            Self::Root
            | Self::Groups
            | Self::Maps { .. }
            | Self::Lmdb(_)
            | Self::Create(_)
            | Self::WriteChunks(_)
            | Self::Edit(_)
            | Self::Collection(_)
            | Self::Tables(_) => 0,
            // It looks at attributes: what it dies of must not cost the file.
            Self::Times => u64::MAX,
            Self::List { group, .. } | Self::Resolve { group, .. } => *group,
            // It looks at attributes, and below the group: what it dies of must not cost the group.
            Self::Survey {
                group, depth: 0, ..
            } => group ^ 1 << 63,
            Self::Survey { group, .. } => !group,
            Self::Map { dataset }
            | Self::Block { dataset, .. }
            | Self::Chunk { dataset, .. }
            | Self::MeasureText { dataset, .. }
            | Self::Text { dataset, .. } => *dataset,
            Self::Describe { object } | Self::Attributes { object } => *object,
        }
    }
}

/// Everything that decoding one chunk takes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoredChunk {
    pub slot: Slot,
    pub pipeline: Pipeline,
    /// An element that was never written.
    pub fill: Vec<u8>,
    /// Shape of the chunk, and of its part from the first corner that is wanted.
    pub chunk: Vec<u64>,
    pub count: Vec<u64>,
    /// Bytes of an element.
    pub element: u64,
}

/// How text is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TextForm {
    /// `|S<width>`.
    Bytes(usize),
    /// `<U<width>`, width in characters.
    Ucs4(usize),
    /// All bytes one after the other, without padding.
    Values,
    /// The length of each element in bytes, as little-endian 64-bit integers.
    Lengths,
}

/// What comes back; each request has its own variant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Answer {
    Root(u64),
    Members(Members),
    Survey(Survey<Surveyed>),
    Groups(Vec<(u64, GroupPath)>),
    Times(Option<Times>),
    Resolved(Resolved),
    Map(DatasetMap),
    Details(Details),
    Attributes(Vec<Attribute>),
    Bytes(Vec<u8>),
    TextMeasure(TextMeasure),
    Maps(Maps),
    Values(Vec<Option<ByteBuf>>),
    Packed(Packed),
    Lengths(Vec<Option<u64>>),
    /// Keys and values.
    Rows(Vec<(ByteBuf, ByteBuf)>),
    /// Where the data of each new dataset lies; 0 where there is none.
    Created(Vec<u64>),
    /// Why each step was refused, if it was.
    Edited(Vec<Result<(), String>>),
    Tables(Outcome),
    Written,
}

/// Maps of datasets by name; a dataset that cannot be mapped says why.
pub type Maps = Vec<(Vec<u8>, Result<DatasetMap, String>)>;

/// The members of a group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Members {
    /// In order of name; of a large group a part.
    pub members: Vec<(Vec<u8>, Member)>,
    /// How many members the group has in all.
    pub total: usize,
    /// Set when the group is damaged and some members are missing.
    pub damage: Option<String>,
}

/// A group with what is below it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Survey<T> {
    /// The attributes asked for of the group itself.
    pub attributes: Vec<Attribute>,
    /// In order of name; of a large group a part.
    pub members: Vec<T>,
    /// How many members the group has in all.
    pub total: usize,
    /// Set when the group is damaged and some members are missing.
    pub damage: Option<String>,
}

/// A member of a group that was surveyed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Surveyed {
    pub name: Vec<u8>,
    pub member: Member,
    /// The attributes asked for that it has.
    pub attributes: Vec<Attribute>,
    /// What is in a group; `None` if it was not entered: it is damaged, deep, or large and without any
    /// of the attributes, or was met before.
    pub members: Option<Vec<Surveyed>>,
}

impl Surveyed {
    fn leaf(name: Vec<u8>, member: Member) -> Self {
        Self {
            name,
            member,
            attributes: Vec::new(),
            members: None,
        }
    }
}

/// What a link of a group leads to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Member {
    Group {
        addr: u64,
        /// Hard links to it, as its header claims.
        links: u32,
    },
    Dataset(Dataset),
    Soft(Vec<u8>),
    External {
        file: Vec<u8>,
        path: Vec<u8>,
    },
    /// A dataset that `.npy` cannot hold, or an object that is no data.
    Unsupported {
        addr: u64,
        reason: String,
    },
    /// An object that could not be opened.
    Damaged(String),
}

/// A dataset as far as a listing needs it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Dataset {
    pub addr: u64,
    pub element: Element,
    /// Dimensions of the dataset, then those of an array datatype.
    pub shape: Vec<u64>,
    /// Its data may lie in other files (external raw data, virtual datasets); only if the listing asked.
    pub outside: bool,
}

/// How the elements of a dataset are found without libhdf5, or that libhdf5 must be asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DatasetMap {
    pub addr: u64,
    pub element: Element,
    /// Dimensions of the dataset, then those of an array datatype.
    pub shape: Vec<u64>,
    /// How many of them are the dataset's own.
    pub rank: usize,
    pub source: Source,
}

/// Where the bytes are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Source {
    /// Never written: every element is this.
    Fill(Vec<u8>),
    /// In the object header, whole.
    Compact(Vec<u8>),
    /// At an address in the file, in C order.
    Contiguous { addr: u64 },
    /// In raw files, one after the other.
    Raw { files: Vec<RawPart>, fill: Vec<u8> },
    /// In chunks of this shape, filtered.
    Chunked {
        chunk: Vec<u64>,
        /// Where they are and how to decode them, if that can be done without libhdf5.
        direct: Option<Direct>,
        /// Why their table was not believed; libhdf5 reads them then, and finds what is wrong with each.
        refused: Option<String>,
        /// There was no room for their table just now.
        crowded: bool,
    },
    /// Composed of other datasets.
    Virtual { sources: Vec<(Vec<u8>, Vec<u8>)> },
    /// Only libhdf5 can say (conversion needed); it is read in rows.
    Library,
}

/// What it takes to read chunks without libhdf5.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Direct {
    pub pipeline: Pipeline,
    pub table: ChunkTable,
    /// The element that stands where no chunk is stored.
    pub fill: Vec<u8>,
}

/// Where the chunks of the current grid are stored, in C order.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ChunkTable {
    pub slots: Vec<Slot>,
    /// Its share of the memory for tables.
    #[serde(skip)]
    pub room: Option<Arc<Room>>,
}

/// One place of the grid; size 0: no chunk is stored there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Address in the file, the user block included.
    pub addr: u64,
    pub size: u32,
    /// Bit `i` set: filter `i` was not applied.
    pub mask: u32,
}

/// A piece of an external raw file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RawPart {
    pub name: Vec<u8>,
    pub offset: u64,
    /// `u64::MAX`: as much as is needed.
    pub len: u64,
}

/// The end of a path.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Resolved {
    Member(Member),
    /// An external link in the middle, with what follows it.
    External {
        file: Vec<u8>,
        path: Vec<u8>,
    },
    Missing,
}

/// What an object's header says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Details {
    pub layout: Option<String>,
    pub max_shape: Option<Vec<Option<u64>>>,
    pub chunks: Option<Vec<u64>>,
    pub filters: Vec<Filter>,
    pub stored_size: Option<u64>,
    pub fill: Option<Vec<u8>>,
    /// Names of external raw files or virtual sources.
    pub outside: Vec<Vec<u8>>,
    pub attributes: Vec<Attribute>,
}

/// One step of a filter pipeline.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Filter {
    pub id: i32,
    pub name: String,
    pub parameters: Vec<u32>,
    /// Whether this build can undo it.
    pub available: bool,
}

/// An attribute and its value, or why there is none.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Attribute {
    pub name: Vec<u8>,
    pub value: Result<Value, String>,
}

/// A small array in memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Value {
    pub dtype: DType,
    pub shape: Vec<u64>,
    /// The bytes of an `.npy` payload.
    pub data: Vec<u8>,
}

/// What one pass over a text dataset found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TextMeasure {
    /// Longest element.
    pub bytes: usize,
    /// Longest element in characters; meaningful if `utf8`.
    pub chars: usize,
    /// Every element is valid UTF-8.
    pub utf8: bool,
    /// Every element is ASCII.
    pub ascii: bool,
    /// Bytes of all elements before the end of each block.
    pub ends: Vec<u64>,
}

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum H5Error {
    /// The file on disk is no longer the one that was asked about.
    #[error("the file changed on disk")]
    Stale,
    /// libhdf5 refuses the file or the object.
    #[error("{0}")]
    Damaged(String),
    /// `.npy` cannot hold it.
    #[error("{0}")]
    Unsupported(String),
    /// More memory than one request may take.
    #[error("{0}")]
    TooLarge(String),
}

/// The version of libhdf5 that this program holds.
pub fn library_version() -> String {
    let (major, minor, release) = hdf5::library_version();
    format!("{major}.{minor}.{release}")
}

/// The client end of the seam; requests may come from any thread.
pub enum H5 {
    /// libhdf5 in this process, one request at a time: for tests and tools that trust their files.
    Local(Box<Mutex<service::Service>>),
    /// libhdf5 in worker processes, which this program starts of itself.
    Workers(pool::Pool),
}

/// Unpacks the variant that a request is answered with.
macro_rules! ask {
    ($self:ident, $file:ident, $request:expr, $variant:ident) => {
        match $self.call($file, $request)? {
            Answer::$variant(value) => Ok(value),
            _ => Err(H5Error::Damaged("answer to another request".into())),
        }
    };
}

/// Takes bytes at an offset.
pub type Sink<'a> = dyn FnMut(u64, &[u8]) -> std::io::Result<()> + 'a;

/// Members of a group that are asked for in one go.
const FIRST: usize = 10_000;

/// Asks for the members in a range in parts, by several workers at a time.
fn in_parts<T: Send>(
    range: std::ops::Range<usize>,
    ask: &(impl Fn(usize, usize) -> Result<T, H5Error> + Sync),
) -> Result<Vec<T>, H5Error> {
    /// Members of each part at the least and at the most.
    const PART: std::ops::RangeInclusive<usize> = 10_000..=100_000;
    if range.is_empty() {
        return Ok(Vec::new());
    }
    anywhere(|| parts(range, PART, ask))
}

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
        let answers: Vec<Result<T, H5Error>> = std::thread::scope(|scope| {
            let running: Vec<_> = starts
                .iter()
                .map(|&from| scope.spawn(move || ask(from, size)))
                .collect();
            running
                .into_iter()
                .map(|thread| {
                    let failed = |_| Err(H5Error::Damaged("listing failed unexpectedly".into()));
                    thread.join().unwrap_or_else(failed)
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
    pub fn local() -> Self {
        Self::Local(Box::default())
    }

    /// Workers that may read below these directories (see `sandbox::readable`); below none: anywhere.
    ///
    /// The program must become a worker when it is started with `worker::ARGUMENT`.
    pub fn workers(readable: impl IntoIterator<Item = PathBuf>) -> Self {
        Self::Workers(pool::Pool::new(readable.into_iter().collect()))
    }

    /// Workers that crashed or stalled and were replaced.
    pub fn restarts(&self) -> u64 {
        match self {
            Self::Local(_) => 0,
            Self::Workers(pool) => pool.restarts(),
        }
    }

    /// Starts a worker for requests to come.
    pub fn warm(&self) {
        if let Self::Workers(pool) = self {
            pool.warm();
        }
    }

    /// What holds the workers back; `None` without workers, and before the first has served.
    pub fn sandbox(&self) -> Option<Sandbox> {
        match self {
            Self::Local(_) => None,
            Self::Workers(pool) => pool.sandbox(),
        }
    }

    /// Answers one request about one file. Stale if the file was written to before or meanwhile.
    pub fn call(&self, file: &StoreFile, request: Request) -> Result<Answer, H5Error> {
        let bears_writers = request.bears_writers();
        if !bears_writers && !file.is_unchanged() {
            return Err(H5Error::Stale);
        }
        let answer = match self {
            Self::Local(service) => {
                // A poisoned lock only means that an earlier request panicked; the service holds no
                // half-done state between requests.
                let mut service = service.lock().unwrap_or_else(|e| e.into_inner());
                service.answer(file, &request)
            }
            Self::Workers(pool) => pool.call(file, &request, None),
        };
        if bears_writers {
            return answer;
        }
        self.judged(file, answer)
    }

    fn judged<T>(&self, file: &StoreFile, answer: Result<T, H5Error>) -> Result<T, H5Error> {
        // libhdf5 cannot open a file that has no name any more: a replaced one that it had not open yet.
        let lost = matches!(answer, Err(H5Error::Damaged(_))) && !file.is_current();
        if lost || !file.is_unchanged() {
            return Err(H5Error::Stale);
        }
        answer
    }

    pub fn root(&self, file: &StoreFile) -> Result<u64, H5Error> {
        ask!(self, file, Request::Root, Root)
    }

    /// All members of a group. A large one is listed in parts, by several workers at a time.
    pub fn list(&self, file: &StoreFile, group: u64, outside: bool) -> Result<Members, H5Error> {
        let part = |from, most| {
            let request = Request::List {
                group,
                outside,
                from,
                most,
            };
            ask!(self, file, request, Members)
        };
        let mut all = part(0, FIRST)?;
        for part in in_parts(FIRST..all.total, &part)? {
            all.members.extend(part.members);
        }
        Ok(all)
    }

    /// A group with what is below its members, at most `most` of them and as deep as `depth`; each is
    /// converted as it arrives.
    pub fn survey<T: Send>(
        &self,
        file: &StoreFile,
        group: u64,
        names: &[&str],
        (most, depth): (usize, usize),
        convert: impl Fn(Surveyed) -> T + Sync,
    ) -> Result<Survey<T>, H5Error> {
        let names: Vec<Vec<u8>> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
        let part = |from, most| {
            let request = Request::Survey {
                group,
                names: names.clone(),
                depth,
                from,
                most,
            };
            let survey = ask!(self, file, request, Survey)?;
            Ok(Survey {
                attributes: survey.attributes,
                members: survey.members.into_iter().map(&convert).collect(),
                total: survey.total,
                damage: survey.damage,
            })
        };
        let mut all = part(0, FIRST.min(most))?;
        for part in in_parts(FIRST..all.total.min(most), &part)? {
            all.members.extend(part.members);
        }
        Ok(all)
    }

    pub fn groups(&self, file: &StoreFile) -> Result<Vec<(u64, GroupPath)>, H5Error> {
        ask!(self, file, Request::Groups, Groups)
    }

    pub fn times(&self, file: &StoreFile) -> Result<Option<Times>, H5Error> {
        ask!(self, file, Request::Times, Times)
    }

    pub fn resolve(&self, file: &StoreFile, group: u64, path: &[u8]) -> Result<Resolved, H5Error> {
        let path = path.to_vec();
        ask!(self, file, Request::Resolve { group, path }, Resolved)
    }

    pub fn map(&self, file: &StoreFile, dataset: u64) -> Result<DatasetMap, H5Error> {
        ask!(self, file, Request::Map { dataset }, Map)
    }

    pub fn describe(&self, file: &StoreFile, object: u64) -> Result<Details, H5Error> {
        ask!(self, file, Request::Describe { object }, Details)
    }

    pub fn attributes(&self, file: &StoreFile, object: u64) -> Result<Vec<Attribute>, H5Error> {
        ask!(self, file, Request::Attributes { object }, Attributes)
    }

    pub fn bytes(&self, file: &StoreFile, request: Request) -> Result<Vec<u8>, H5Error> {
        ask!(self, file, request, Bytes)
    }

    /// The bytes that `bytes` answers with, handed on as they come: each part with its offset. After a
    /// failure on the way they may begin again at 0.
    pub fn stream(
        &self,
        file: &StoreFile,
        request: Request,
        sink: &mut Sink<'_>,
    ) -> Result<(), H5Error> {
        if let Self::Workers(pool) = self {
            if !file.is_unchanged() {
                return Err(H5Error::Stale);
            }
            let answer = pool.call(file, &request, Some(sink));
            return self.judged(file, answer).map(drop);
        }
        let bytes = self.bytes(file, request)?;
        sink(0, &bytes).map_err(|e| H5Error::Damaged(e.to_string()))
    }

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

    pub fn maps(&self, file: &StoreFile, names: Vec<Vec<u8>>) -> Result<Maps, H5Error> {
        ask!(self, file, Request::Maps { names }, Maps)
    }
}
