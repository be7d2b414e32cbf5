//! Descriptions of groups and datasets as plain data: listings, paths, times, maps, headers.

use std::collections::{HashMap, VecDeque};

use super::attributes::attributes;
use super::chunks;
use super::dataset::{OpenDataset, bounded, is_available, shape_bytes};
use super::ffi::{self, Failure, Id, LayoutKind, Links, NextLinks, ObjectKind, RawLink};
use super::object_paths::Referrer;
use super::types::{self, TypeCache, TypeError};
use super::{dimensions, far, text};
use npyfs_codec::Pipeline;
use npyfs_hdf5::LookUps;
use npyfs_hdf5::protocol::{
    Bounds, ChunkTable, DataSource, Dataset, DatasetMap, Details, DirectChunks, ElementType,
    FilterInfo, FirstMember, GroupMember, GroupMembers, GroupPath, H5Error, IndexedChunks,
    LOOKED_UP_FROM, MIN_SUPERBLOCK, ObjectTimes, RawPart, Resolved, SequenceArray, TIME, TIMES,
};
use npyfs_io::file::StoreFile;

/// The number of soft links that a path may lead through.
const MAX_LINKS: usize = 40;

/// The number of links that are kept for the requests to come: to find those that come next takes a look at all of the
/// group.
const MOST_AHEAD: usize = 60_000;

/// The links that come next in a group.
pub(super) struct LinksAhead {
    group: u64,
    after: Vec<u8>,
    next: NextLinks,
}

impl LinksAhead {
    /// Takes the first `most` links behind a name.
    fn take(
        ahead: &mut Option<Self>,
        (addr, group): (u64, &Id),
        after: &[u8],
        most: usize,
    ) -> (Links, usize) {
        let known = ahead.take().filter(|known| {
            let is_next = known.group == addr && known.after == after;
            is_next && (known.next.are_last || known.next.links.len() >= most)
        });
        let mut next = match known {
            Some(known) => known.next,
            None => ffi::links_after(group, after, most, MOST_AHEAD.max(most)),
        };
        let count = most.min(next.links.len());
        let links: Vec<_> = next.links.drain(..count).collect();
        let damage = next
            .damage
            .as_ref()
            .map(|failure| Failure(failure.0.clone()));
        let total = next.total;
        if let (Some((last, _)), false) = (links.last(), next.links.is_empty()) {
            *ahead = Some(Self {
                group: addr,
                after: last.clone(),
                next,
            });
        }
        ((links, damage), total)
    }
}

/// Returns at most `most` members of a group, in order of name.
pub(super) fn members(
    file: &Id,
    ahead: &mut Option<LinksAhead>,
    addr: u64,
    outside: bool,
    from: &FirstMember,
    most: usize,
) -> Result<GroupMembers, H5Error> {
    let group = ffi::open_object(file, addr)?;
    let ((links, damage), total) = match from {
        FirstMember::Number(from) => ffi::some_links(&group, *from..from.saturating_add(most)),
        FirstMember::After(name) => LinksAhead::take(ahead, (addr, &group), name, most),
        FirstMember::Named { name, least } => match ffi::link_count(&group)? {
            total if total <= most => ffi::some_links(&group, 0..most),
            total => {
                let link = match total < *least || name.contains(&b'/') {
                    true => None,
                    false => ffi::link(&group, name)?,
                };
                let links = link.map(|link| (name.clone(), link));
                ((links.into_iter().collect(), None), total)
            }
        },
    };
    let mut memo = TypeCache::default();
    Ok(GroupMembers {
        total,
        members: links
            .into_iter()
            .map(|(name, link)| (name, member(file, link, outside, &mut memo)))
            .collect(),
        damage: damage.map(|failure| failure.0),
    })
}

/// Returns the target of a link; only hard links are followed.
pub(super) fn member(file: &Id, link: RawLink, outside: bool, memo: &mut TypeCache) -> GroupMember {
    match link {
        RawLink::Hard(addr) => {
            object(file, addr, outside, memo).unwrap_or_else(|e| GroupMember::Damaged(e.0))
        }
        RawLink::Soft(target) => GroupMember::Soft(target),
        RawLink::External(file, path) => GroupMember::External { file, path },
        RawLink::Damaged(reason) => GroupMember::Damaged(reason),
    }
}

fn object(
    file: &Id,
    addr: u64,
    outside: bool,
    memo: &mut TypeCache,
) -> Result<GroupMember, Failure> {
    open_member(&ffi::open_object(file, addr)?, addr, outside, memo)
}

/// Returns the listing entry of an open object.
pub(super) fn open_member(
    id: &Id,
    addr: u64,
    outside: bool,
    memo: &mut TypeCache,
) -> Result<GroupMember, Failure> {
    match ffi::kind(id) {
        ObjectKind::Group => Ok(GroupMember::Group {
            addr,
            links: ffi::object_info(id)?.links,
        }),
        ObjectKind::Other => Ok(GroupMember::Unsupported {
            addr,
            reason: "named datatype: no data".into(),
            sequences: None,
        }),
        ObjectKind::Dataset => match dataset(id, addr, outside, memo) {
            Ok(dataset) => Ok(match dataset.shape[..] {
                [len] if dimensions::is_only_a_dimension(id) => {
                    let reason = format!("a netCDF dimension without a variable, of length {len}");
                    GroupMember::Unsupported {
                        addr,
                        reason,
                        sequences: None,
                    }
                }
                _ => GroupMember::Dataset(dataset),
            }),
            Err(TypeError::Unsupported(reason)) => Ok(GroupMember::Unsupported {
                addr,
                reason,
                sequences: sequences(id).ok().flatten().map(Box::new),
            }),
            Err(TypeError::Failure(failure)) => Err(failure),
        },
    }
}

fn dataset(id: &Id, addr: u64, outside: bool, memo: &mut TypeCache) -> Result<Dataset, TypeError> {
    let element = text::of_dataset(id, memo.element(ffi::dataset_type(id)?)?)?;
    let Some((mut shape, _)) = ffi::extent(&ffi::dataset_space(id)?)? else {
        return Err(TypeError::Unsupported(
            "null dataspace: a type without elements".into(),
        ));
    };
    shape.extend_from_slice(element.inner());
    let outside = outside && {
        let plist = ffi::dataset_plist(id)?;
        match ffi::layout(&plist)? {
            LayoutKind::Virtual => true,
            LayoutKind::Contiguous => !ffi::external_files(&plist)?.is_empty(),
            LayoutKind::Compact | LayoutKind::Chunked => false,
        }
    };
    Ok(Dataset {
        addr,
        element,
        shape,
        outside,
    })
}

/// Returns the form of a dataset of sequences; `None` for other datasets, and for sequences whose elements have no
/// `.npy` form.
fn sequences(id: &Id) -> Result<Option<SequenceArray>, TypeError> {
    let Some((dtype, _)) = types::sequence(&ffi::dataset_type(id)?)? else {
        return Ok(None);
    };
    let extent = ffi::extent(&ffi::dataset_space(id)?)?;
    Ok(extent.map(|(shape, _)| SequenceArray { dtype, shape }))
}

/// Returns the names of the files that hold the data, other than the dataset's own.
fn files_outside(plist: &Id) -> Result<Vec<Vec<u8>>, Failure> {
    Ok(match ffi::layout(plist)? {
        LayoutKind::Contiguous => ffi::external_files(plist)?
            .into_iter()
            .map(|(name, ..)| name)
            .collect(),
        LayoutKind::Virtual => {
            let mut names: Vec<_> = ffi::virtual_sources(plist)?
                .into_iter()
                .map(|(file, _)| file)
                .filter(|file| file != b".")
                .collect();
            names.sort();
            names.dedup();
            names
        }
        _ => Vec::new(),
    })
}

/// Returns every group once, breadth first, by name.
pub(super) fn groups(file: &Id) -> Result<Vec<(u64, GroupPath)>, H5Error> {
    let root = ffi::root_addr(file)?;
    let mut paths: HashMap<u64, GroupPath> = HashMap::from([(root, Vec::new())]);
    let mut queue = VecDeque::from([root]);
    let mut found = vec![(root, Vec::new())];
    while let Some(addr) = queue.pop_front() {
        let Ok(group) = ffi::open_object(file, addr) else {
            continue;
        };
        let base = paths.get(&addr).cloned().unwrap_or_default();
        for (name, link) in ffi::links(&group).0 {
            let RawLink::Hard(child) = link else { continue };
            if paths.contains_key(&child) {
                continue;
            }
            if ffi::is_group(file, child) {
                let mut path = base.clone();
                path.push(name);
                paths.insert(child, path.clone());
                found.push((child, path));
                queue.push_back(child);
            }
        }
    }
    Ok(found)
}

/// Returns the times at which the objects of an exported file were written; `None` if the file has none.
///
/// An attribute `npyfs_times` of the root group marks a file that has such times, and is the time of all objects
/// without their own; `npyfs_time` of an object is the time of the object and of everything below it.
pub(super) fn times(file: &Id) -> Result<Option<ObjectTimes>, H5Error> {
    let root = ffi::open_at(file, &[])?;
    let Some(all) = ffi::int_attribute(&root, TIMES)? else {
        return Ok(None);
    };
    let mut own = HashMap::new();
    let mut inherited_by: HashMap<GroupPath, Option<i64>> = HashMap::new();
    // Each group comes after its parent.
    for (addr, path) in groups(file)? {
        let above = path
            .split_last()
            .and_then(|(_, above)| inherited_by.get(above));
        let group = ffi::open_object(file, addr)?;
        let inherited = ffi::int_attribute(&group, TIME)?.or(above.copied().flatten());
        own.extend(inherited.map(|time| (addr, time)));
        inherited_by.insert(path, inherited);
        for (_, link) in ffi::links(&group).0 {
            let RawLink::Hard(child) = link else { continue };
            let time = time_of(file, child).unwrap_or(None).or(inherited);
            own.extend(time.map(|time| (child, time)));
        }
    }
    Ok(Some(ObjectTimes { all, own }))
}

fn time_of(file: &Id, addr: u64) -> Result<Option<i64>, Failure> {
    ffi::int_attribute(&ffi::open_object(file, addr)?, TIME)
}

/// Follows a path link by link. Soft links start from their own group, or from the root.
pub(super) fn resolve(file: &Id, group: u64, path: &[u8]) -> Result<Resolved, H5Error> {
    let parts = |path: &[u8]| -> Vec<Vec<u8>> {
        path.split(|&b| b == b'/')
            .filter(|part| !part.is_empty() && *part != b".")
            .rev()
            .map(<[u8]>::to_vec)
            .collect()
    };
    let root = ffi::root_addr(file)?;
    let mut at = if path.starts_with(b"/") { root } else { group };
    let mut left = parts(path);
    let mut soft = 0;
    while let Some(name) = left.pop() {
        let id = ffi::open_object(file, at)?;
        if ffi::kind(&id) != ObjectKind::Group {
            return Ok(Resolved::Missing);
        }
        match ffi::link(&id, &name)? {
            None => return Ok(Resolved::Missing),
            Some(RawLink::Hard(addr)) => at = addr,
            Some(RawLink::Damaged(reason)) => return Err(H5Error::Damaged(reason)),
            Some(RawLink::Soft(target)) => {
                soft += 1;
                if soft > MAX_LINKS {
                    return Ok(Resolved::Missing);
                }
                if target.starts_with(b"/") {
                    at = root;
                }
                left.extend(parts(&target));
            }
            Some(RawLink::External(file, mut path)) => {
                for part in left.iter().rev() {
                    path.push(b'/');
                    path.extend_from_slice(part);
                }
                return Ok(Resolved::External { file, path });
            }
        }
    }
    Ok(Resolved::Member(object(
        file,
        at,
        true,
        &mut TypeCache::default(),
    )?))
}

/// Returns the offset of bytes as the daemon counts, which sees the members of a file concatenated.
fn flat(dataset: &OpenDataset, addr: u64, len: u64) -> Result<u64, H5Error> {
    match &dataset.layout {
        None => Ok(addr),
        Some(layout) => layout.flat(addr, len).ok_or_else(|| {
            H5Error::Damaged("data outside of the files that the store consists of".into())
        }),
    }
}

/// Returns the map of a dataset in a file of `file_size` bytes.
///
/// With `look_up`, the table of very many chunks is left out: chunks are looked up later.
pub(super) fn map(
    dataset: &OpenDataset,
    file_size: u64,
    (file, look_up): (&StoreFile, bool),
) -> Result<DatasetMap, H5Error> {
    let id = &dataset.id;
    let plist = ffi::dataset_plist(id)?;
    let Some((own, _)) = ffi::extent(&ffi::dataset_space(id)?)? else {
        return Err(H5Error::Unsupported("null dataspace".into()));
    };
    let rank = own.len();
    let mut shape = own.clone();
    shape.extend_from_slice(dataset.element.inner());
    let layout = ffi::layout(&plist)?;
    let fixed = match &dataset.element {
        ElementType::Fixed { convert, .. } => Some(*convert),
        ElementType::Text { .. } | ElementType::Record { .. } => None,
    };
    let element_size = ffi::size(&dataset.mem_type);
    let fill = || ffi::fill_value(&plist, &dataset.mem_type, element_size);
    let payload = shape_bytes(&own, element_size);
    let raw = ffi::external_files(&plist)?;
    let described = |source| DatasetMap {
        addr: dataset.addr,
        element: dataset.element.clone(),
        shape: shape.clone(),
        rank,
        source,
    };
    if let (LayoutKind::Chunked, Some(false)) = (layout, fixed) {
        let chunk = ffi::chunk_shape(&plist, rank)?;
        if let Some(readable) = readable(dataset, &plist, &chunk, file_size)?
            && let Some(table) = readable.table(file, dataset, look_up)?
        {
            return Ok(described(DataSource::Chunked {
                chunk,
                direct: Some(readable.direct(table)),
                refused: None,
                crowded: false,
            }));
        }
    }
    if let (LayoutKind::Chunked, Some(far)) = (layout, file.far()) {
        far::warm_index(far, file_size, dataset.addr).map_err(H5Error::not_fetched)?;
    }
    // The call reads the whole index.
    let stored = ffi::storage_size(id);
    let source = match (layout, fixed) {
        (LayoutKind::Virtual, _) => DataSource::Virtual {
            sources: ffi::virtual_sources(&plist)?,
        },
        (LayoutKind::Contiguous, Some(false)) if !raw.is_empty() => DataSource::Raw {
            files: raw.into_iter().map(raw_part).collect::<Result<_, _>>()?,
            fill: fill()?,
        },
        // libhdf5 would look for the raw files itself.
        _ if !raw.is_empty() => {
            return Err(H5Error::Unsupported(
                "elements in external raw files that need conversion".into(),
            ));
        }
        (LayoutKind::Compact, Some(_)) => {
            bounded(&own, element_size)?;
            let zeros = vec![0; rank];
            DataSource::Compact(dataset.read(&zeros, &own)?)
        }
        (LayoutKind::Contiguous, Some(convert)) => match ffi::contiguous_addr(id)? {
            None => DataSource::Fill(fill()?),
            Some(_) if convert => DataSource::Library,
            Some(_) if payload.is_none_or(|len| !stored.as_ref().is_ok_and(|&n| n >= len)) => {
                return Err(H5Error::Damaged(
                    "less data stored than the shape needs".into(),
                ));
            }
            Some(addr) => DataSource::Contiguous {
                addr: flat(dataset, addr, payload.unwrap_or(0))?,
            },
        },
        (LayoutKind::Chunked, Some(_)) if stored.as_ref().is_ok_and(|&n| n == 0) => {
            DataSource::Fill(fill()?)
        }
        (LayoutKind::Chunked, Some(_)) => {
            let chunk = ffi::chunk_shape(&plist, rank)?;
            let table = match stored {
                Ok(_) => direct(dataset, &plist, &chunk, file_size),
                Err(why) => Err(H5Error::Damaged(format!("chunk index: {why}"))),
            };
            let (direct, refused) = match table {
                Ok(direct) => (direct, None),
                Err(why) => (None, Some(why.to_string())),
            };
            DataSource::Chunked {
                chunk,
                direct,
                refused,
                crowded: false,
            }
        }
        (LayoutKind::Compact, None) => DataSource::Library,
        (LayoutKind::Contiguous | LayoutKind::Chunked, None) => {
            // If an index cannot be read, libhdf5 reads as much as it can, and reports the errors in the rest.
            match stored {
                Ok(0) => DataSource::Fill(Vec::new()),
                _ => DataSource::Library,
            }
        }
    };
    Ok(described(source))
}

/// A chunked dataset that can be read without libhdf5.
struct Readable {
    pipeline: Pipeline,
    fill: Vec<u8>,
    chunks: IndexedChunks,
}

impl Readable {
    /// Returns the table of the chunks, which is left out if there are very many and `look_up` is set. `None` if
    /// libhdf5 must read the index.
    fn table(
        &self,
        file: &StoreFile,
        dataset: &OpenDataset,
        look_up: bool,
    ) -> Result<Option<ChunkTable>, H5Error> {
        /// The smallest number of chunks whose table is read here: libhdf5 reads few chunks soon enough.
        const LEAST: usize = 256;
        let least = match (file.far(), look_up) {
            (None, _) => LEAST,
            (Some(_), true) => LOOKED_UP_FROM,
            // What a worker reads of a remote file is fetched in larger parts for libhdf5.
            (Some(_), false) => return Ok(None),
        };
        // The addresses of a file of several members are not those of its bytes.
        if dataset.layout.is_some() {
            return Ok(None);
        }
        match LookUps::open(file, &self.chunks, least)? {
            Some(index) if look_up && index.is_large() => Ok(Some(ChunkTable {
                looked_up: Some(Box::new(self.chunks.clone())),
                ..ChunkTable::default()
            })),
            Some(index) => index.whole(file),
            None => Ok(None),
        }
    }

    fn direct(self, table: ChunkTable) -> DirectChunks {
        DirectChunks {
            pipeline: self.pipeline,
            table,
            fill: self.fill,
        }
    }
}

/// Returns the data for reading chunks without libhdf5; `None` if that is not possible.
fn direct(
    dataset: &OpenDataset,
    plist: &Id,
    chunk: &[u64],
    file_size: u64,
) -> Result<Option<DirectChunks>, H5Error> {
    let Some(readable) = readable(dataset, plist, chunk, file_size)? else {
        return Ok(None);
    };
    let place = |addr, len| flat(dataset, addr, len);
    let table = chunks::table(&dataset.id, &readable.chunks, &place)?;
    Ok(table.map(|table| readable.direct(table)))
}

/// Returns all but the chunk table that is needed to read chunks without libhdf5; `None` if that is not possible.
fn readable(
    dataset: &OpenDataset,
    plist: &Id,
    chunk: &[u64],
    file_size: u64,
) -> Result<Option<Readable>, H5Error> {
    let ElementType::Fixed { convert: false, .. } = dataset.element else {
        return Ok(None);
    };
    let filters: Vec<_> = ffi::filters(plist)?
        .into_iter()
        .map(|(id, _, parameters)| (id, parameters))
        .collect();
    let (Some(pipeline), false) = (Pipeline::new(&filters), ffi::edge_chunks_unfiltered(plist)?)
    else {
        return Ok(None);
    };
    let Some((shape, max)) = ffi::extent(&ffi::dataset_space(&dataset.id)?)? else {
        return Ok(None);
    };
    let element = ffi::size(&dataset.mem_type);
    let Some(len) = shape_bytes(chunk, element) else {
        return Ok(None);
    };
    let bounds = Bounds {
        chunk: len,
        filters: filters.into_iter().map(|(id, _)| id).collect(),
        file: ffi::user_block(&dataset.id)?.saturating_add(MIN_SUPERBLOCK)..file_size,
    };
    Ok(Some(Readable {
        pipeline,
        fill: ffi::fill_value(plist, &dataset.mem_type, element)?,
        chunks: IndexedChunks {
            dataset: dataset.addr,
            shape,
            max,
            chunk: chunk.to_vec(),
            bounds,
        },
    }))
}

fn raw_part((name, offset, len): (Vec<u8>, i64, u64)) -> Result<RawPart, H5Error> {
    Ok(RawPart {
        name,
        offset: u64::try_from(offset)
            .map_err(|_| H5Error::Damaged("negative offset in an external raw file".into()))?,
        len,
    })
}

/// Returns all details from the header of the object at an address.
pub(super) fn details(id: &Id, addr: u64, referrer: &mut Referrer<'_>) -> Result<Details, H5Error> {
    let attributes = attributes(id, referrer)?;
    if ffi::kind(id) != ObjectKind::Dataset {
        return Ok(Details::of_group(attributes));
    }
    let plist = ffi::dataset_plist(id)?;
    let extent = ffi::extent(&ffi::dataset_space(id)?)?;
    let layout = ffi::layout(&plist)?;
    let external = !ffi::external_files(&plist)?.is_empty();
    let chunks = match (&extent, layout) {
        (Some((shape, _)), LayoutKind::Chunked) => Some(ffi::chunk_shape(&plist, shape.len())?),
        _ => None,
    };
    let stored = ffi::dataset_type(id)?;
    let left_out = types::left_out(&stored);
    let (stored_size, damage) = match ffi::storage_size(id) {
        Ok(size) => (Some(size), None),
        Err(why) => (None, Some(why.0)),
    };
    let fill = match types::element(&stored) {
        Ok(ElementType::Fixed { dtype, convert, .. }) => {
            let mem_type = types::memory_type(&dtype, convert, stored)?;
            Some(ffi::fill_value(&plist, &mem_type, ffi::size(&mem_type))?)
        }
        _ => None,
    };
    Ok(Details {
        layout: Some(
            match layout {
                LayoutKind::Compact => "compact",
                LayoutKind::Contiguous if external => "external",
                LayoutKind::Contiguous => "contiguous",
                LayoutKind::Chunked => "chunked",
                LayoutKind::Virtual => "virtual",
            }
            .to_owned(),
        ),
        max_shape: extent.map(|(_, max)| {
            max.into_iter()
                .map(|n| (n != u64::MAX).then_some(n))
                .collect()
        }),
        chunks,
        filters: ffi::filters(&plist)?
            .into_iter()
            .map(|(id, name, parameters)| FilterInfo {
                id,
                name,
                parameters,
                available: is_available(id),
            })
            .collect(),
        stored_size,
        damage,
        fill,
        fill_is_set: ffi::fill_is_set(&plist)?,
        left_out,
        outside: files_outside(&plist)?,
        dimensions: dimensions::dimensions(id, addr, referrer).map_err(|e| e.to_string()),
        attributes,
    })
}
