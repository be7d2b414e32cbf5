//! A store, or a directory inside one, as people spell it: `STORE` or `STORE:/path`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The marks between a store and the path in it.
const BORDER: &[u8] = b":/";

/// A store and the directory in it that is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePlace {
    /// The file or directory that is the store.
    pub store: PathBuf,
    /// The path of a directory in it; `None`: all of it.
    pub inside: Option<PathBuf>,
}

impl StorePlace {
    /// Takes a spelling apart. What exists as a path is a store, whatever it is called; of several stores, the longest path counts.
    pub fn of(spelled: &Path) -> Self {
        let whole = Self {
            store: spelled.to_owned(),
            inside: None,
        };
        if spelled.symlink_metadata().is_ok() {
            return whole;
        }
        let bytes = spelled.as_os_str().as_bytes();
        let borders = (1..bytes.len()).rev();
        let mut places = borders
            .filter(|&at| bytes[at..].starts_with(BORDER))
            .map(|at| Self {
                store: PathBuf::from(OsStr::from_bytes(&bytes[..at])),
                inside: Some(PathBuf::from(OsStr::from_bytes(&bytes[at + 1..]))),
            });
        places
            .find(|place| place.store.symlink_metadata().is_ok())
            .unwrap_or(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exists_as_a_path_wins() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let inside = |name: &str| {
            let place = StorePlace::of(&path(name));
            let store = place.store.strip_prefix(dir.path()).unwrap().to_owned();
            (
                store.to_string_lossy().into_owned(),
                place.inside.map(|p| p.to_string_lossy().into_owned()),
            )
        };
        let whole = |name: &str| (name.to_owned(), None);
        let part = |store: &str, inside: &str| (store.to_owned(), Some(inside.to_owned()));
        std::fs::write(path("x.h5"), "").unwrap();
        assert_eq!(inside("x.h5:/a/b"), part("x.h5", "/a/b"));
        assert_eq!(inside("x.h5:/"), part("x.h5", "/"));
        assert_eq!(inside("x.h5:/a:/b"), part("x.h5", "/a:/b"));
        assert_eq!(inside("x.h5:a"), whole("x.h5:a"));
        assert_eq!(inside("y.h5:/a"), whole("y.h5:/a"));
        std::fs::create_dir(path("x.h5:")).unwrap();
        std::fs::write(path("x.h5:/a"), "").unwrap();
        assert_eq!(inside("x.h5:/a"), whole("x.h5:/a"));
        assert_eq!(inside("x.h5:/a:/b"), part("x.h5:/a", "/b"));
        assert_eq!(inside("x.h5:/b"), part("x.h5", "/b"));
    }
}
