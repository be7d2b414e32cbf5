//! References from a store file to other files, under the policy of the mount.
//!
//! Files are opened here, component by component, and passed on as descriptors: the file that was checked is the file
//! that is read. libhdf5 opens no files by itself, except the sources of a virtual dataset, whose whole chain is
//! checked first.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::opened::OpenStore;
use crate::dataset::backing::RawFile;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::options::External;
use npyfs_hdf5::{DataSource, GroupMember, RawPart, Resolved};
use npyfs_io::file::StoreFile;

/// The reason why a remote store cannot refer to other files.
const ELSEWHERE: &str = "what lies elsewhere reaches no file of this machine and no other host";

/// The deepest nesting of virtual datasets.
const DEEPEST: usize = 8;

fn denied(name: &[u8], why: &str) -> Error {
    let name = String::from_utf8_lossy(name);
    Error::new(
        ErrorKind::Denied,
        format!("external file '{name}' is not read: {why}"),
    )
}

/// Opens a file to which `store` refers.
pub fn open(store: &OpenStore, name: &[u8]) -> Result<(PathBuf, File)> {
    if store.file.far().is_some() {
        return Err(denied(name, ELSEWHERE));
    }
    let base = store.file.path.parent().unwrap_or(Path::new("/"));
    let wanted = base.join(OsStr::from_bytes(name));
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match store.context.options.external {
        External::Deny => return Err(denied(name, "external=deny")),
        External::Allow => rustix::fs::open(&wanted, flags, Mode::empty()),
        External::SameDir => {
            let Ok(inside) = wanted.strip_prefix(base) else {
                return Err(denied(
                    name,
                    "external=same-dir, and it is not in the directory",
                ));
            };
            let dir = File::open(base)?;
            let how =
                ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            rustix::fs::openat2(&dir, inside, flags, Mode::empty(), how)
        }
    };
    match file {
        Ok(file) => {
            let file = File::from(file);
            let meta = file.metadata()?;
            if !meta.is_file() {
                return Err(denied(name, "not a regular file"));
            }
            store.context.h5.permit_source(&wanted, &meta);
            Ok((wanted, file))
        }
        // XDEV: the path leaves the directory. LOOP: it contains a symbolic link.
        Err(rustix::io::Errno::XDEV | rustix::io::Errno::LOOP) => Err(denied(
            name,
            "external=same-dir, and the way leaves the directory or goes through a symbolic link",
        )),
        Err(errno) => Err(Error::from(std::io::Error::from(errno)).about(wanted.display())),
    }
}

/// Opens the parts of an external raw dataset.
pub fn raw_files(store: &OpenStore, parts: &[RawPart]) -> Result<Vec<RawFile>> {
    let mut end = 0_u64;
    parts
        .iter()
        .map(|part| {
            let (_, file) = open(store, &part.name)?;
            end = end.saturating_add(part.len);
            Ok(RawFile {
                file,
                offset: part.offset,
                end,
            })
        })
        .collect()
}

/// Returns a message for each raw file that is shorter than its part of the dataset's `len` bytes: the rest reads as
/// zeros, as in libhdf5.
pub fn short_files(parts: &[RawPart], files: &[RawFile], len: u64) -> Result<Vec<String>> {
    let mut short = Vec::new();
    let mut start = 0;
    for (part, raw) in parts.iter().zip(files) {
        let wanted = raw.end.min(len).saturating_sub(start);
        start = raw.end;
        let has = raw.file.metadata()?.len().saturating_sub(raw.offset);
        if has < wanted {
            let name = String::from_utf8_lossy(&part.name);
            let missing = wanted - has;
            short.push(format!(
                "external file '{name}' is too short: the last {missing} of {wanted} bytes read as zeros"
            ));
        }
    }
    Ok(short)
}

/// Returns the messages of `short_files` for a dataset of `len` bytes; none for a dataset whose data is not in readable
/// raw files.
pub fn short_of(store: &OpenStore, dataset: u64, len: u64) -> Vec<String> {
    let Ok(map) = store.context.h5.map(&store.file, dataset) else {
        return Vec::new();
    };
    let DataSource::Raw { files, .. } = map.source else {
        return Vec::new();
    };
    raw_files(store, &files)
        .and_then(|opened| short_files(&files, &opened, len))
        .unwrap_or_default()
}

/// Checks that the policy allows a dataset to be read; the error is the reason if not.
pub fn check(store: &Arc<OpenStore>, dataset: u64) -> Result<()> {
    match store.context.h5.map(&store.file, dataset)?.source {
        DataSource::Raw { files, .. } => raw_files(store, &files).map(drop),
        DataSource::Virtual { sources } => check_virtual(store, &sources).map(drop),
        _ => Ok(()),
    }
}

/// Opens another HDF5 file to which `store` refers, under the policy.
pub fn open_store(store: &OpenStore, name: &[u8]) -> Result<Arc<OpenStore>> {
    let (path, file) = open(store, name)?;
    let file = StoreFile::from_file(&path, file)?;
    OpenStore::from_file(&store.context, file)
}

/// Checks the sources of a virtual dataset and everything below them.
///
/// True if some of them are in other files. Refuses sources that the policy forbids, and those for which libhdf5 would
/// open files by its own rules (external raw data). External links are followed under the policy: their targets are
/// checked like source files.
pub fn check_virtual(store: &Arc<OpenStore>, sources: &[(Vec<u8>, Vec<u8>)]) -> Result<bool> {
    let outside = check_below(store, sources, DEEPEST)?;
    let external = store.context.options.external;
    if outside && external == External::SameDir && !store.context.h5.is_confined() {
        let name = sources
            .iter()
            .map(|(file, _)| file)
            .find(|file| *file != b".");
        return Err(denied(
            name.map_or(b".".as_slice(), Vec::as_slice),
            "external=same-dir, and without Landlock in the kernel a link put in its place would be followed",
        ));
    }
    Ok(outside)
}

fn check_below(
    store: &Arc<OpenStore>,
    sources: &[(Vec<u8>, Vec<u8>)],
    depth: usize,
) -> Result<bool> {
    if depth == 0 {
        return Err(Error::damaged("virtual datasets nested too deeply"));
    }
    let allow = store.context.options.external == External::Allow;
    let mut outside = false;
    for (file, path) in sources {
        if store.file.far().is_some() && file != b"." {
            return Err(denied(file, ELSEWHERE));
        }
        let own = file == b"." || is_own(store, file);
        // When it is named, libhdf5 opens even the store's own file like any other.
        outside |= file != b".";
        if allow {
            continue;
        }
        // `%b` stands for the number of a block: an open-ended set of files.
        if !own && has_block_number(file) {
            return Err(denied(
                file,
                "a numbered set of source files needs external=allow",
            ));
        }
        let source = if own {
            store.clone()
        } else {
            match open_store(store, &unescape(file)) {
                // A missing source reads as the fill value.
                Err(e) if e.kind == ErrorKind::NotFound => continue,
                source => source?,
            }
        };
        for path in datasets(path) {
            if !check_source(&source, &path, depth, &mut outside)? {
                break;
            }
        }
    }
    Ok(outside)
}

/// Returns true if a source is the store's own file, by the name under which it is mounted.
fn is_own(store: &OpenStore, name: &[u8]) -> bool {
    let base = store.file.path.parent().unwrap_or(Path::new("/"));
    !has_block_number(name) && base.join(OsStr::from_bytes(&unescape(name))) == store.file.path
}

/// Returns the dataset names that a pattern stands for. A numbered pattern is endless; the caller stops at the first
/// missing one.
fn datasets(pattern: &[u8]) -> Box<dyn Iterator<Item = Vec<u8>> + '_> {
    if !has_block_number(pattern) {
        return Box::new(std::iter::once(unescape(pattern)));
    }
    Box::new((0_u64..).map(move |n| {
        let text = String::from_utf8_lossy(pattern).replace("%b", &n.to_string());
        unescape(text.as_bytes())
    }))
}

/// Checks one source dataset; false if there is none of that name.
fn check_source(
    store: &Arc<OpenStore>,
    path: &[u8],
    depth: usize,
    outside: &mut bool,
) -> Result<bool> {
    let h5 = &store.context.h5;
    let dataset = match h5.resolve(&store.file, store.root, path)? {
        Resolved::Member(GroupMember::Dataset(dataset)) => dataset,
        Resolved::External { file, path } => {
            // libhdf5 will follow the link by name, as it opens source files.
            *outside = true;
            if depth == 0 {
                return Err(Error::damaged("external links that lead on and on"));
            }
            let other = match open_store(store, &file) {
                // A missing source reads as the fill value.
                Err(e) if e.kind == ErrorKind::NotFound => return Ok(false),
                other => other?,
            };
            return check_source(&other, &path, depth - 1, outside);
        }
        Resolved::Missing => return Ok(false),
        Resolved::Member(_) => return Ok(true),
    };
    match h5.map(&store.file, dataset.addr)?.source {
        DataSource::Raw { files, .. } => {
            let name = files.into_iter().next().map(|f| f.name).unwrap_or_default();
            Err(denied(&name, "external raw data below a virtual dataset"))
        }
        DataSource::Virtual { sources } => {
            *outside |= check_below(store, &sources, depth - 1)?;
            Ok(true)
        }
        _ => Ok(true),
    }
}

fn has_block_number(pattern: &[u8]) -> bool {
    let mut bytes = pattern.iter();
    while let Some(&b) = bytes.next() {
        if b == b'%' && bytes.next() == Some(&b'b') {
            return true;
        }
    }
    false
}

/// Replaces the escape `%%` in a source name by `%`.
fn unescape(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut bytes = name.iter().peekable();
    while let Some(&b) = bytes.next() {
        if b == b'%' && bytes.peek() == Some(&&b'%') {
            bytes.next();
        }
        out.push(b);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_numbers_and_escapes_are_told_apart() {
        assert!(has_block_number(b"f%b.h5"));
        assert!(!has_block_number(b"f%%b.h5"));
        assert_eq!(unescape(b"100%%.h5"), b"100%.h5");
        let names: Vec<_> = datasets(b"/d%b").take(2).collect();
        assert_eq!(names, [b"/d0".to_vec(), b"/d1".to_vec()]);
        assert_eq!(datasets(b"/d").count(), 1);
    }
}
