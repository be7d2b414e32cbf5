//! A store, or a directory inside one, as people spell it: `STORE` or `STORE:/path`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use npyfs_io::remote::Address;

/// The marks between a store and the path in it.
const BORDER: &[u8] = b":/";

/// A store and the directory in it that is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePath {
    /// The file or directory that is the store.
    pub store: PathBuf,
    /// The path of a directory in it; `None`: all of it.
    pub inside: Option<PathBuf>,
}

impl StorePath {
    /// Takes a spelling apart. What exists as a path is a store, whatever it is called; of several stores, the longest
    /// path counts.
    pub fn parse(spelled: &Path) -> Self {
        if let Some(path) = Address::local(spelled) {
            return Self::parse(&path);
        }
        if Address::parse(spelled).is_some() {
            return Self::of_address(&Address::hide_secret(spelled));
        }
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

impl StorePath {
    /// Takes an address apart: the first border behind the host is the one.
    fn of_address(spelled: &Path) -> Self {
        let bytes = spelled.as_os_str().as_bytes();
        let after = |from: usize, what: &[u8]| {
            let rest = bytes.get(from..)?;
            Some(from + rest.windows(what.len()).position(|part| part == what)?)
        };
        let host = after(0, b"://").map(|at| at + 3);
        let path = host.and_then(|host| after(host, b"/"));
        let border = path.and_then(|path| after(path, BORDER));
        let (store, inside) = match border {
            Some(at) => (&bytes[..at], Some(&bytes[at + 1..])),
            None => (bytes, None),
        };
        let path = |bytes| PathBuf::from(OsStr::from_bytes(bytes));
        Self {
            store: path(store),
            inside: inside.map(path),
        }
    }

    /// Returns the path of the store without links; an address as it is.
    pub fn resolved(store: &Path) -> std::io::Result<PathBuf> {
        match Address::parse(store) {
            Some(_) => Ok(store.to_owned()),
            None => store.canonicalize(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_paths_inside() {
        let of = |text: &str| {
            let place = StorePath::parse(Path::new(text));
            let inside = place.inside.map(|path| path.to_string_lossy().into_owned());
            (place.store.to_string_lossy().into_owned(), inside)
        };
        let whole = |text: &str| (text.to_owned(), None);
        assert_eq!(of("s3://b/a.h5"), whole("s3://b/a.h5"));
        assert_eq!(of("https://h:80/a.h5"), whole("https://h:80/a.h5"));
        let part = ("http://h:81/a.h5".to_owned(), Some("/g/h".to_owned()));
        assert_eq!(of("http://h:81/a.h5:/g/h"), part);
        assert_eq!(of("file:///a/b.h5"), whole("/a/b.h5"));
    }

    #[test]
    fn what_exists_as_a_path_wins() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let inside = |name: &str| {
            let place = StorePath::parse(&path(name));
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
