//! Small objects, which wait in memory and are written many to a file: at a sync, or when a reader needs their file.
//!
//! Objects of one store can share a file, in which each is at its own path, as in a store with just these objects. So
//! their groups must have the same attributes, and each path must occur once: an object that conflicts with the others
//! begins another file.
//!
//! The index does not mention them before their file is on the disk. Disk space for them is reserved, so that a full
//! disk is reported when an array is closed.

use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use rustix::fs::{FallocateFlags, fallocate, fstatvfs, ftruncate};
use rustix::io::Errno;

use super::Layer;
use crate::checkout::records::index::{ObjectChange, StoredObject, nanoseconds};
use crate::checkout::records::unwritten::{Elements, PackWriter, Unwritten, UnwrittenObject};
use crate::store::object::{self, NewFile, PackScope, check_len};
use npyfs_base::error::{Error, Result};
use npyfs_base::npy;
use npyfs_base::npy::dtype::{DType, Kind};
use npyfs_hdf5::{NewAttribute, NewDataset, NewElement, NewLayout};
use npyfs_io::content::{Content, InMemory};
use npyfs_io::dir::Dir;

/// The most bytes of a small object, and of all objects that wait for their files.
const LARGEST: u64 = 256 << 10;
pub(super) const MOST_BYTES: u64 = 8 << 20;

/// The most objects in a file.
const MOST_OBJECTS: usize = 4096;

/// Approximate bytes that HDF5 needs for an object in addition to its elements.
const OVERHEAD: u64 = 1 << 10;

const PAGE: u64 = 4096;

/// The most dimensions of a dataset.
const MAX_RANK: usize = 32;

/// An object that is small enough, and certainly has a representation in HDF5.
pub struct SmallObject<'a> {
    new: &'a NewFile,
    scope: &'a PackScope,
    dataset: &'a NewDataset,
    path: String,
    object: Arc<UnwrittenObject>,
    /// Further datasets that its format needs in its file, such as the axes of the object.
    others: Vec<SharedDataset>,
}

/// A dataset that several objects of a file have in common.
#[derive(Clone, PartialEq, Eq)]
struct SharedDataset {
    dataset: NewDataset,
    data: Vec<u8>,
}

impl<'a> SmallObject<'a> {
    /// Reads the elements of a new object into memory; `None` if it needs a file of its own.
    fn read(new: &'a NewFile, writer: &Weak<dyn PackWriter>) -> Result<Option<Self>> {
        let all = || new.outline.datasets.iter().zip(&new.data);
        let (Some(scope), Some(size)) = (&new.scope, new.size) else {
            return Ok(None);
        };
        let Some((dataset, data)) = all().find(|(dataset, _)| dataset.path == scope.path) else {
            return Ok(None);
        };
        let NewElement::Array(dtype) = &dataset.element else {
            return Ok(None);
        };
        let header = npy::header(dtype, &dataset.shape);
        let bytes = all().fold(0, |sum: u64, (_, data)| sum.saturating_add(data.len()));
        if bytes > LARGEST
            || size != data.len().saturating_add(header.len() as u64)
            || !is_number(dtype)
            || !surely_fits(new, dataset)
        {
            return Ok(None);
        }
        let mut others = Vec::new();
        for (dataset, data) in all().filter(|(dataset, _)| dataset.path != scope.path) {
            check_len(dataset, &**data)?;
            let mut bytes = vec![0; usize::try_from(data.len()).unwrap_or(0)];
            data.read_at(0, &mut bytes)?;
            others.push(SharedDataset {
                dataset: dataset.clone(),
                data: bytes,
            });
        }
        check_len(dataset, &**data)?;
        let start = header.len();
        let mut bytes = header;
        bytes.resize(usize::try_from(size).unwrap_or(start), 0);
        data.read_at(0, bytes.get_mut(start..).unwrap_or_default())?;
        Ok(Some(Self {
            new,
            scope,
            dataset,
            path: dataset.path.join("/"),
            object: Arc::new(UnwrittenObject {
                bytes,
                header: start,
                writer: writer.clone(),
            }),
            others,
        }))
    }

    /// Returns the most bytes that it takes in a file; it takes about as many in memory.
    pub fn bytes(&self) -> u64 {
        let others = self.others.iter().map(|other| other.data.len() as u64);
        others.fold(room(self.object.len()), |sum, len| sum + room(len))
    }

    /// Returns a reference to the object.
    pub fn unwritten(&self) -> Unwritten {
        Unwritten(Arc::downgrade(&self.object))
    }

    /// Returns each group that contains the object or that it describes, by path, with its attributes.
    fn groups(&self) -> impl Iterator<Item = (&str, &[NewAttribute])> {
        let above = self.path.match_indices('/').map(|(at, _)| at);
        let above = above.filter_map(|at| self.path.get(..at));
        std::iter::once("").chain(above).map(|path| {
            let is_it = |known: &[String]| known.join("/") == path;
            let mut marked = self.new.outline.groups.iter();
            let marked = marked.find(|group| is_it(&group.path));
            (path, marked.map_or(&[][..], |group| &*group.attributes))
        })
    }
}

/// Returns the most bytes that a dataset with `len` bytes of elements takes in a file.
fn room(len: u64) -> u64 {
    // Elements of a page or more are aligned to a page.
    let whole = if len < PAGE {
        len
    } else {
        len.next_multiple_of(PAGE)
    };
    whole.saturating_add(OVERHEAD)
}

fn is_number(dtype: &DType) -> bool {
    matches!(dtype, DType::Scalar { kind, size: 1..=16, .. }
        if matches!(kind, Kind::Bool | Kind::Int | Kind::Uint | Kind::Float | Kind::Complex))
}

/// Returns whether libhdf5 will certainly accept this dataset. libhdf5 itself is asked only when other objects wait in
/// the same file.
fn surely_fits(new: &NewFile, own: &NewDataset) -> bool {
    let is_bytes = |element: &NewElement| {
        matches!(
            element,
            NewElement::Array(DType::Scalar {
                kind: Kind::Bytes,
                size: 1..,
                ..
            })
        )
    };
    let is_simple = |element: &NewElement| {
        is_bytes(element) || matches!(element, NewElement::Array(dtype) if is_number(dtype))
    };
    let holds = |name: &String| !matches!(name.as_str(), "" | ".") && !name.contains(['/', '\0']);
    let is_above = |path: &[String]| own.path.starts_with(path) && path != own.path;
    let is_beside = |path: &[String]| {
        path.len() == own.path.len()
            && path.split_last().map(|p| p.1) == own.path.split_last().map(|p| p.1)
    };
    let datasets = &new.outline.datasets;
    let groups = &new.outline.groups;
    let attributes = groups.iter().flat_map(|group| &group.attributes);
    datasets.iter().all(|dataset| {
        matches!(dataset.layout, NewLayout::Contiguous)
            && is_simple(&dataset.element)
            && dataset.shape.len() <= MAX_RANK
            && dataset.path.iter().all(holds)
            && is_beside(&dataset.path)
    }) && !own.path.is_empty()
        && new.begins.is_none()
        && new.outline.links.is_empty()
        && new.outline.large_at.is_none()
        && groups.iter().all(|group| is_above(&group.path))
        && attributes
            .chain(datasets.iter().flat_map(|dataset| &dataset.attributes))
            .all(|a| !a.name.is_empty() && !a.name.contains('\0') && a.value.data.len() < 4096)
}

/// Objects that will share a file.
pub struct Pack {
    /// The number of the file.
    pub number: u64,
    /// The objects, ready to be written.
    pub new: NewFile,
    /// The bytes that they take in memory.
    pub bytes: u64,
    /// The bytes of disk space that were reserved for them.
    pub reserved: u64,
    /// The time when the first was written, in nanoseconds since 1970.
    pub time: i64,
    store: String,
    groups: HashMap<String, Vec<NewAttribute>>,
    /// The datasets by path, with those that others may share.
    datasets: HashMap<String, Option<SharedDataset>>,
}

impl Pack {
    /// Begins a file with this number for an object.
    pub fn new((number, time): (u64, i64), first: &SmallObject) -> Self {
        Self {
            number,
            new: NewFile::default(),
            bytes: 0,
            reserved: 0,
            time,
            store: first.scope.store.clone(),
            groups: HashMap::new(),
            datasets: HashMap::new(),
        }
    }

    /// Adds an object; false if it conflicts with the others.
    pub fn add(&mut self, small: &SmallObject) -> bool {
        let goes = |(path, marks): (&str, &[NewAttribute])| {
            let known = self.groups.get(path);
            known.is_none_or(|known| known == marks) && !self.datasets.contains_key(path)
        };
        let is_there = |path| self.datasets.contains_key(path) || self.groups.contains_key(path);
        let is_same = |other: &SharedDataset| {
            let path = other.dataset.path.join("/");
            let known = self.datasets.get(&path);
            known.is_none_or(|known| known.as_ref() == Some(other))
                && !self.groups.contains_key(&path)
        };
        if self.datasets.len() >= MOST_OBJECTS
            || self.store != small.scope.store
            || is_there(&small.path)
            || !small.others.iter().all(is_same)
            || !small.groups().all(goes)
        {
            return false;
        }
        for (path, marks) in small.groups() {
            if !self.groups.contains_key(path) {
                self.groups.insert(path.to_owned(), marks.to_vec());
                if !marks.is_empty() {
                    let names = path.split('/').filter(|name| !name.is_empty());
                    let names: Vec<String> = names.map(str::to_owned).collect();
                    self.new.mark(&names, marks.to_vec());
                }
            }
        }
        for other in &small.others {
            let path = other.dataset.path.join("/");
            if !self.datasets.contains_key(&path) {
                self.bytes = self.bytes.saturating_add(room(other.data.len() as u64));
                self.datasets.insert(path, Some(other.clone()));
                let data = Arc::new(InMemory(other.data.clone()));
                self.new.add(other.dataset.clone(), data);
            }
        }
        self.datasets.insert(small.path.clone(), None);
        let elements = Arc::new(Elements(small.object.clone()));
        self.new.add(small.dataset.clone(), elements);
        self.bytes = self.bytes.saturating_add(room(small.object.len()));
        self.reserved = self.reserved.saturating_add(small.bytes());
        true
    }
}

/// Bytes that are reserved at once.
const STEP: u64 = 1 << 20;

/// Disk space for waiting objects, in bytes.
#[derive(Default)]
pub(super) struct Reserve {
    /// An unnamed file, if space is reserved.
    file: Option<File>,
    reserved: u64,
    /// What the waiting objects take.
    wanted: u64,
    /// What the objects take whose file is being written: it is free for that file, and for no other object.
    lent: u64,
}

impl Reserve {
    /// Reserves space for `wanted` bytes, and for some more if there is room. Fails if the disk is full.
    fn grow(&mut self, dir: &Dir, wanted: u64) -> Result<()> {
        if wanted > self.reserved {
            let mut to = wanted.next_multiple_of(STEP);
            // A file system that cannot reserve space is no reason to refuse an object.
            if self.file.is_none() {
                self.file = dir.unnamed().ok();
            }
            if let Some(file) = &self.file {
                let make = |to| fallocate(file, FallocateFlags::empty(), 0, to);
                let made = make(to).or_else(|_| {
                    to = wanted;
                    make(to)
                });
                if let Err(full @ (Errno::NOSPC | Errno::DQUOT)) = made {
                    return Err(Error::from(std::io::Error::from(full)));
                }
            }
            self.reserved = to;
        }
        self.wanted = wanted;
        Ok(())
    }

    /// Returns whether the space for `wanted` bytes can be reserved beside the file that is being written.
    fn is_room(&self, wanted: u64) -> bool {
        let more = wanted.next_multiple_of(STEP).saturating_sub(self.reserved);
        let Some(file) = self.file.as_ref().filter(|_| self.lent > 0 && more > 0) else {
            return true;
        };
        fstatvfs(file).map_or(true, |disk| {
            disk.f_bavail.saturating_mul(disk.f_frsize) >= self.lent.saturating_add(more)
        })
    }

    /// Frees the space of an object that waits no longer.
    fn give_back(&mut self, bytes: u64) {
        self.wanted = self.wanted.saturating_sub(bytes);
        if self.wanted == 0 && self.lent == 0 {
            *self = Self::default();
        }
    }

    /// Frees the space of objects whose file is about to be written.
    fn lend(&mut self, bytes: u64) {
        self.lent = bytes;
        self.wanted = self.wanted.saturating_sub(bytes);
        self.reserved = self.reserved.saturating_sub(bytes);
        if let Some(file) = &self.file {
            // Space that could not be freed is lacking for the file, and its writer reports that.
            let _ = ftruncate(file, self.reserved);
        }
    }

    /// Ends what `lend` began. Objects that were not written wait, and want their space again.
    fn end_lending(&mut self, dir: &Dir, is_written: bool) {
        let lent = std::mem::take(&mut self.lent);
        if !is_written {
            let wanted = self.wanted.saturating_add(lent);
            // If others took the space, new objects are refused until there is room for all.
            if self.grow(dir, wanted).is_err() {
                self.wanted = wanted;
            }
        } else if self.wanted == 0 {
            *self = Self::default();
        }
    }
}

impl Layer {
    /// Queues a new object for a shared file; `None` if it needs its own. Reads the object into memory, and returns
    /// errors of its content.
    pub(super) fn pack(
        &self,
        path: &str,
        new: &NewFile,
        time: SystemTime,
    ) -> Result<Option<Arc<StoredObject>>> {
        let own = self.own.lock().clone();
        let Some(own) = own.filter(|_| self.deferred.load(Ordering::Acquire)) else {
            return Ok(None);
        };
        let small = SmallObject::read(new, &own).map_err(|e| e.about(path))?;
        let Some(small) = small else {
            return Ok(None);
        };
        self.make_room()?;
        self.reserve(small.bytes()).map_err(|e| e.about(path))?;
        let packed = self.pack_reserved(path, new, &small, time);
        if !matches!(packed, Ok(Some(_))) {
            self.reserve.lock().give_back(small.bytes());
        }
        packed
    }

    /// Queues an object whose bytes are reserved. No object is queued unless it is returned.
    fn pack_reserved(
        &self,
        path: &str,
        new: &NewFile,
        small: &SmallObject,
        time: SystemTime,
    ) -> Result<Option<Arc<StoredObject>>> {
        loop {
            let mut pending = self.pending.lock();
            pending.check()?;
            // No later sync would write it.
            if !self.deferred.load(Ordering::Acquire) {
                return Ok(None);
            }
            let number = || self.next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = pending.pack(small, nanoseconds(time), number) else {
                drop(pending);
                self.write_packs()?;
                continue;
            };
            let stored = Arc::new(StoredObject {
                file,
                time: nanoseconds(time),
                size: new.size,
                against: new.against.clone(),
                packed: true,
                unwritten: small.unwritten(),
                ..StoredObject::default()
            });
            pending.change(ObjectChange::new(path, Some(stored.clone())), None)?;
            self.wake_syncer();
            return Ok(Some(stored));
        }
    }

    /// Reserves additional bytes.
    fn reserve(&self, bytes: u64) -> Result<()> {
        let mut reserve = self.reserve.lock();
        while !reserve.is_room(reserve.wanted.saturating_add(bytes)) {
            drop(reserve);
            // Until the file that is being written has taken its space.
            drop(self.packing.lock());
            reserve = self.reserve.lock();
        }
        let wanted = reserve.wanted.saturating_add(bytes);
        reserve.grow(&self.dir, wanted)
    }
}

impl PackWriter for Layer {
    fn write_packs(&self) -> Result<()> {
        let _one = self.packing.lock();
        // Those that are begun meanwhile gather more.
        let last = self.next.load(Ordering::Relaxed);
        loop {
            let pack = self.pending.lock().unwritten();
            let Some(pack) = pack.filter(|pack| pack.number < last) else {
                return Ok(());
            };
            self.reserve.lock().lend(pack.reserved);
            let mut new = pack.new.clone();
            new.mark_root(NewAttribute::int(object::TIME, pack.time));
            let written = self.write(pack.number, &new);
            let is_written = written.is_ok();
            self.reserve.lock().end_lending(&self.dir, is_written);
            let mut pending = self.pending.lock();
            let file = written.map_err(|e| pending.about_waiting(&e))?;
            pending.is_written(pack.number, file);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::store::encode::store::{dataset, saved};
    use npyfs_base::error::ErrorKind;
    use npyfs_io::storage::Disk;

    #[test]
    fn an_object_that_is_refused_reserves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let made = npyfs_worker::creator_here();
        let layer = Layer::open(&Dir::own(dir.path()), Arc::new(Disk), made).unwrap();
        let layer = Arc::new(layer);
        layer.begin_deferring();
        let file = saved(&DType::int(4), &[1000], &[1; 4000]);
        let pack = |path: &str| {
            let mut new = dataset(path, &file)?;
            new.size = Some(file.len() as u64);
            new.scope = Some(PackScope {
                store: "x.h5".to_owned(),
                path: new.outline.datasets[0].path.clone(),
            });
            layer.pack(path, &new, UNIX_EPOCH)
        };
        assert!(pack("a").unwrap().is_some());
        let wanted = layer.reserve.lock().wanted;
        assert!(wanted > 4000);
        let why = Error::new(ErrorKind::Os(libc::EIO), "the disk failed");
        layer.pending.lock().lose(Vec::new(), why);
        for _ in 0..3 {
            assert_eq!(pack("b").unwrap_err().errno(), libc::EIO);
        }
        assert_eq!(layer.reserve.lock().wanted, wanted);
    }
}
