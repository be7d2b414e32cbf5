//! A large array whose scratch file becomes the new file: what HDF5 needs is put around the elements.
//!
//! A worker makes the same file elsewhere, without elements, which then are a hole between the parts that
//! matter. Those are copied to where the scratch file has room for them. Wherever something is not as
//! expected, nothing happens, and the elements are copied the other way.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::{NewFile, check_len, make};
use npyfs_base::error::Result;
use npyfs_hdf5::{Creator, NewLayout};
use npyfs_io::content::scratch::LARGE;
use npyfs_io::content::scratch::ROOM;
use npyfs_io::dir::Dir;
use npyfs_io::file::StoreFile;
use npyfs_io::storage::Storage;

/// The ending of the file that the worker makes.
pub const ENDING: &str = "head";

/// Most bytes behind the elements.
const LONGEST_TAIL: u64 = 1 << 20;

/// Bytes before the elements are copied page by page, so that holes stay holes.
const PAGE: usize = 4096;

/// Makes the file `to`, which is not synced yet; `None` if this is not the way.
pub(super) fn write(
    (dir, to): (&Dir, &str),
    new: &NewFile,
    creator: &Creator,
    storage: &dyn Storage,
) -> Result<Option<File>> {
    let ([dataset], [data]) = (&*new.outline.datasets, &*new.data) else {
        return Ok(None);
    };
    let Some((scratch, start)) = data.scratch() else {
        return Ok(None);
    };
    let (len, address) = (data.len(), ROOM.saturating_add(start));
    // Data begins with a page, as it does in other files.
    if !matches!(dataset.layout, NewLayout::Contiguous)
        || address % PAGE as u64 != 0
        || len < LARGE
        || scratch.len()? != start.saturating_add(len)
    {
        return Ok(None);
    }
    check_len(dataset, &**data)?;
    let stem = to.split_once('.').map_or(to, |(stem, _)| stem);
    let head = format!("{stem}.{ENDING}");
    let mut outline = new.outline.clone();
    outline.large_at = Some(address);
    scratch.give(|file| {
        // Not every file system can name a file that has no name.
        if storage.link(file, dir, to).is_err() {
            return Ok(false);
        }
        let end = address.saturating_add(len);
        let done = storage
            .create(dir, &head)
            .map_err(Into::into)
            .and_then(|head_file| {
                let path = dir.path().join(&head);
                let target = StoreFile::from_file(&path, head_file.try_clone()?)?;
                if make(&target, &outline, creator)? != [address] {
                    return Ok(false);
                }
                surround(file, &head_file, (address - start, address, end), storage)
            });
        let _ = storage.remove(dir, &head);
        if !matches!(done, Ok(true)) {
            let _ = storage.remove(dir, to);
            storage.set_len(file, end)?;
        }
        done
    })
}

/// Copies what is before `room` and from `end` on; between `room` and `address` there must be nothing.
fn surround(
    file: &File,
    head: &File,
    (room, address, end): (u64, u64, u64),
    storage: &dyn Storage,
) -> Result<bool> {
    let whole = head.metadata()?.len();
    let bytes = |from: u64, to: u64| -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(to.saturating_sub(from)).unwrap_or(0)];
        head.read_exact_at(&mut bytes, from)?;
        Ok(bytes)
    };
    if whole < end || whole - end > LONGEST_TAIL {
        return Ok(false);
    }
    if bytes(room, address)?.iter().any(|&byte| byte != 0) {
        return Ok(false);
    }
    let mut at = 0;
    for page in bytes(0, room)?.chunks(PAGE) {
        if page.iter().any(|&byte| byte != 0) {
            storage.write_at(file, page, at)?;
        }
        at += page.len() as u64;
    }
    if whole > end {
        storage.write_at(file, &bytes(end, whole)?, end)?;
    }
    Ok(true)
}
