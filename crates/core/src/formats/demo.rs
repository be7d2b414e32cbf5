//! Demonstration stores, as far as they are alike in all formats.
//!
//! Everything is computed, so that two runs write the same data. Nothing is overwritten.

use std::path::{Path, PathBuf};

use hdf5::{File, Group};

use super::registry;
use npyfs_base::error::{Error, Result};
use npyfs_io::workplace::Workplace;

/// Writes the demonstration stores of all formats that are not there yet; each path, and whether it was written.
/// Without a program to start writing workers from there are only those that need none.
pub fn write_all(dir: &Path, program: Option<&Path>) -> Result<Vec<(PathBuf, bool)>> {
    std::fs::create_dir_all(dir)?;
    let mut written = Vec::new();
    for format in registry().iter().rev() {
        written.extend(format.demonstrate(dir, program)?);
    }
    Ok(written)
}

/// Writes the daf store of the demonstration into a directory for the time of an example, and goes there.
#[doc(hidden)]
pub fn enter() -> Result<tempfile::TempDir> {
    let directory = tempfile::tempdir()?;
    registry()
        .named("daf")
        .demonstrate(directory.path(), None)?;
    std::env::set_current_dir(&directory)?;
    Ok(directory)
}

/// Writes an HDF5 file unless it is there; its path, and whether it was written.
pub(super) fn write_file(
    path: PathBuf,
    fill: impl FnOnce(&File) -> hdf5::Result<()>,
) -> Result<(PathBuf, bool)> {
    write_with(path, |unfinished| {
        let written = File::create_excl(unfinished).and_then(|file| {
            fill(&file)?;
            file.close()
        });
        written.map_err(|e| Error::damaged(e.to_string()))
    })
}

/// Has a file made in a place of its own, unless there is one at `path`; the path, and whether it was made.
pub(super) fn write_with(
    path: PathBuf,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<(PathBuf, bool)> {
    if path.symlink_metadata().is_ok() {
        return Ok((path, false));
    }
    let workplace = Workplace::new_in(path.parent().unwrap_or(Path::new("/")))?;
    let unfinished = workplace.path().join("store");
    make(&unfinished)?;
    workplace.name(&unfinished, &path)?;
    Ok((path, true))
}

/// Returns a number from 0 to 1 that looks random and is the same each time (splitmix64).
pub(super) fn noise(n: usize) -> f64 {
    let mut z = (n as u64)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z >> 11) as f64 / (1_u64 << 53) as f64
}

/// Writes a dataset of one dimension.
pub(super) fn vector<T: hdf5::H5Type>(group: &Group, name: &str, data: &[T]) -> hdf5::Result<()> {
    group.new_dataset_builder().with_data(data).create(name)?;
    Ok(())
}
