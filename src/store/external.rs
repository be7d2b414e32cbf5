//! References that lead out of a store file, under the policy the mount was given.
//!
//! Files are opened here, component by component, and handed on as descriptors: what was checked is what
//! is read. libhdf5 follows nothing by itself, except the sources of a virtual dataset, whose whole
//! chain is checked first.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::opened::OpenStore;
use crate::error::{Error, ErrorKind, Result};
use crate::h5::{Member, RawPart, Resolved, Source};
use crate::options::External;
use crate::raw::StoreFile;
use crate::read::backing::RawFile;

/// Virtual datasets below virtual datasets that are followed.
const DEEPEST: usize = 8;

fn denied(name: &[u8], why: &str) -> Error {
    let name = String::from_utf8_lossy(name);
    Error::new(
        ErrorKind::Denied,
        format!("external file '{name}' is not read: {why}"),
    )
}

/// Opens a file that something in `store` names.
pub fn open(store: &OpenStore, name: &[u8]) -> Result<(PathBuf, File)> {
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
            if !file.metadata()?.is_file() {
                return Err(denied(name, "not a regular file"));
            }
            Ok((wanted, file))
        }
        // XDEV: it leaves the directory. LOOP: a symbolic link on the way.
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

/// Whether the policy lets a dataset be read; the reason if not.
pub fn check(store: &Arc<OpenStore>, dataset: u64) -> Result<()> {
    match store.context.h5.map(&store.file, dataset)?.source {
        Source::Raw { files, .. } => raw_files(store, &files).map(drop),
        Source::Virtual { sources } => check_virtual(store, &sources).map(drop),
        _ => Ok(()),
    }
}

/// Another HDF5 file that something in `store` names, opened under the policy.
pub fn open_store(store: &OpenStore, name: &[u8]) -> Result<Arc<OpenStore>> {
    let (path, file) = open(store, name)?;
    let file = StoreFile::from_file(&path, file)?;
    OpenStore::from_file(&store.context, file)
}

/// Checks the sources of a virtual dataset and everything below them.
///
/// True if some of them are in other files. Refused are: what the policy forbids, and ways on which
/// libhdf5 would open files by rules of its own (external links, external raw data).
pub fn check_virtual(store: &Arc<OpenStore>, sources: &[(Vec<u8>, Vec<u8>)]) -> Result<bool> {
    check_below(store, sources, DEEPEST)
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
        let own = file == b"." || is_own(store, file);
        // By its name libhdf5 opens even the own file like any other.
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
                // What is missing reads as the fill value.
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

/// Whether a source is the store's own file, under the name it is mounted by.
fn is_own(store: &OpenStore, name: &[u8]) -> bool {
    let base = store.file.path.parent().unwrap_or(Path::new("/"));
    !has_block_number(name) && base.join(OsStr::from_bytes(&unescape(name))) == store.file.path
}

/// The dataset names a pattern stands for; endless for a numbered one, ended by the first that is missing.
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
        Resolved::Member(Member::Dataset(dataset)) => dataset,
        Resolved::External { file, .. } => {
            return Err(denied(&file, "an external link below a virtual dataset"));
        }
        Resolved::Missing => return Ok(false),
        Resolved::Member(_) => return Ok(true),
    };
    match h5.map(&store.file, dataset.addr)?.source {
        Source::Raw { files, .. } => {
            let name = files.into_iter().next().map(|f| f.name).unwrap_or_default();
            Err(denied(&name, "external raw data below a virtual dataset"))
        }
        Source::Virtual { sources } => {
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

/// `%%` in a source name stands for `%`.
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
