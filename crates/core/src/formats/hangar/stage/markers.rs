//! Empty files that say whether a data file is committed: `store_data/<backend>/<uid>.<ending>` if it is,
//! `stage_data/…` as long as it is not (`commiting.py`, `backends/*.py`).
//!
//! Hangar's reset removes a data file with a marker in `stage_data`, so a file that holds committed samples must never
//! have one there.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use npyfs_base::error::{Error, Result};
use npyfs_io::owner::Owner;

const STAGED: &str = "stage_data";
const STORED: &str = "store_data";

/// A data file, identified by backend and random name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataFile {
    /// The two digits of the backend.
    pub backend: String,
    /// The name of the marker: `<uid>.hdf5`, `<uid>.npy` or `<uid>.lmdbdir`.
    pub marker: String,
}

impl DataFile {
    /// Names a data file.
    pub fn new(backend: &str, uid: &str) -> Self {
        let ending = match backend {
            "10" => "npy",
            "30" | "31" => "lmdbdir",
            _ => "hdf5",
        };
        Self {
            backend: backend.to_owned(),
            marker: format!("{uid}.{ending}"),
        }
    }

    /// Returns the path of the data; for text and bytes samples, it is a directory.
    pub fn path(&self, folder: &Path) -> PathBuf {
        let name = self.marker.strip_suffix(".lmdbdir").unwrap_or(&self.marker);
        folder.join("data").join(&self.backend).join(name)
    }

    /// Removes the data; missing data is no error.
    pub fn remove(&self, folder: &Path) -> Result<()> {
        let path = self.path(folder);
        let removed = match std::fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => std::fs::remove_dir_all(&path),
            Ok(_) => std::fs::remove_file(&path),
            Err(e) => Err(e),
        };
        removed
            .or_else(fine_if_missing)
            .map_err(|e| about(&path, e))
    }

    fn place(&self, folder: &Path, kind: &str) -> PathBuf {
        folder.join(kind).join(&self.backend).join(&self.marker)
    }

    /// Returns true if only the staging area has rows of the file.
    pub fn is_staged(&self, folder: &Path) -> bool {
        self.place(folder, STAGED).is_file()
    }

    /// Returns true if a commit has rows of the file.
    pub fn is_stored(&self, folder: &Path) -> bool {
        self.place(folder, STORED).is_file()
    }

    /// Marks the file as staged, unless it is committed.
    pub fn stage(&self, folder: &Path, owner: Owner) -> Result<()> {
        if self.is_stored(folder) {
            return Ok(());
        }
        touch(&self.place(folder, STAGED), owner)
    }

    /// Removes the mark in `stage_data`.
    pub fn unstage(&self, folder: &Path) -> Result<()> {
        let path = self.place(folder, STAGED);
        let removed = std::fs::remove_file(&path).or_else(fine_if_missing);
        removed.map_err(|e| about(&path, e))
    }
}

fn about(path: &Path, error: impl Into<Error>) -> Error {
    error.into().about(path.display())
}

fn fine_if_missing(e: io::Error) -> io::Result<()> {
    match e.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(e),
    }
}

/// Makes an empty file and its directory for the owner of the repository; both survive a loss of power.
fn touch(path: &Path, owner: Owner) -> Result<()> {
    let made = || {
        let dir = path.parent().unwrap_or(path);
        if !dir.is_dir() {
            owner.make_dirs(dir)?;
            sync(dir.parent().unwrap_or(dir))?;
        }
        match owner.make_file(path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_file() => Ok(()),
            made => made.map(drop),
        }
    };
    made().map_err(|e| about(path, e))
}

fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Returns all data files that are marked as staged.
pub fn staged(folder: &Path) -> Result<Vec<DataFile>> {
    let top = folder.join(STAGED);
    let mut found = Vec::new();
    let list = |dir: &Path| -> Result<Vec<std::fs::DirEntry>> {
        let entries = std::fs::read_dir(dir).and_then(Iterator::collect);
        entries.map_err(|e| about(dir, e))
    };
    for backend in list(&top)? {
        let is_dir = backend.file_type().is_ok_and(|kind| kind.is_dir());
        let Some(code) = backend.file_name().to_str().map(str::to_owned) else {
            continue;
        };
        if !is_dir || !matches!(code.as_str(), "00" | "01" | "10" | "30" | "31") {
            continue;
        }
        for marker in list(&backend.path())? {
            let is_file = marker.file_type().is_ok_and(|kind| kind.is_file());
            // Hidden files are ignored, as Hangar does.
            if let Some(name) = marker.file_name().to_str()
                && is_file
                && !name.starts_with('.')
            {
                found.push(DataFile {
                    backend: code.clone(),
                    marker: name.to_owned(),
                });
            }
        }
    }
    Ok(found)
}

/// Marks files as committed. Their marks in `stage_data` stay.
pub fn store(folder: &Path, owner: Owner, files: &[DataFile]) -> Result<()> {
    for file in files {
        touch(&file.place(folder, STORED), owner)?;
    }
    let mut dirs: Vec<&str> = files.iter().map(|file| file.backend.as_str()).collect();
    dirs.sort_unstable();
    dirs.dedup();
    for backend in dirs {
        let dir = folder.join(STORED).join(backend);
        sync(&dir).map_err(|e| about(&dir, e))?;
    }
    Ok(())
}

/// Makes the marks of a backend in `stage_data` durable.
pub fn sync_staged(folder: &Path, backend: &str) -> Result<()> {
    let dir = folder.join(STAGED).join(backend);
    sync(&dir).map_err(|e| about(&dir, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_committed_file_is_never_marked_as_staged() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        for name in [STAGED, STORED, "data/01", "data/30/def"] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
        }
        std::fs::write(folder.join("data/01/abc.hdf5"), "").unwrap();
        let files = [DataFile::new("01", "abc"), DataFile::new("30", "def")];
        for file in &files {
            file.stage(folder, Owner::default()).unwrap();
            assert!(file.is_staged(folder) && file.path(folder).exists());
        }
        std::fs::write(folder.join("stage_data/01/.hidden"), "").unwrap();
        let mut found = staged(folder).unwrap();
        found.sort();
        assert_eq!(found, files);
        store(folder, Owner::default(), &found).unwrap();
        for file in &files {
            file.unstage(folder).unwrap();
            file.unstage(folder).unwrap();
            file.stage(folder, Owner::default()).unwrap();
            assert!(!file.is_staged(folder) && file.is_stored(folder));
            file.remove(folder).unwrap();
            file.remove(folder).unwrap();
            assert!(!file.path(folder).exists());
        }
    }
}
