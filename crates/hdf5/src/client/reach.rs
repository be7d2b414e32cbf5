//! The files that the workers of a mount may open: those that they are asked about, and those beside them that are stores
//! as well.

use std::path::{Path, PathBuf};

use npyfs_base::options::External;
use npyfs_io::remote::Address;

/// The directories that the stores of a mount may be in.
#[derive(Clone, Debug)]
pub enum Reach {
    /// Files anywhere may have to be read.
    Anywhere,
    /// The files that are asked about. Below these directories, those beside them as well.
    Stores(Vec<PathBuf>),
}

impl Reach {
    /// Returns the reach of a store that is a file, or a directory of such files.
    pub fn of(store: &Path, external: External) -> Self {
        match external {
            // A remote store reaches no file of this machine.
            _ if Address::parse(store).is_some() => Self::Stores(Vec::new()),
            External::Allow => Self::Anywhere,
            _ if store.is_dir() => Self::Stores(vec![store.to_owned()]),
            _ => Self::Stores(Vec::new()),
        }
    }

    /// Adds a directory of stores.
    pub fn with(self, dir: &Path) -> Self {
        match self {
            Self::Anywhere => Self::Anywhere,
            Self::Stores(mut dirs) => {
                dirs.push(dir.to_owned());
                Self::Stores(dirs)
            }
        }
    }

    /// Returns whether other stores in the directory of this file may be opened, too.
    pub(super) fn takes_neighbours(&self, file: &Path) -> bool {
        match self {
            Self::Anywhere => true,
            Self::Stores(dirs) => dirs.iter().any(|dir| file.starts_with(dir)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HDF5: &[u8] = b"\x89HDF\r\n\x1a\n and more";

    #[test]
    fn a_store_that_is_a_file_lets_nothing_beside_it_in() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.h5");
        std::fs::write(&file, HDF5).unwrap();
        for external in [External::Deny, External::SameDir] {
            assert!(!Reach::of(&file, external).takes_neighbours(&file));
            assert!(Reach::of(dir.path(), external).takes_neighbours(&file));
            let layers = Reach::of(&file, external).with(&dir.path().join("layers"));
            assert!(!layers.takes_neighbours(&file));
            assert!(layers.takes_neighbours(&dir.path().join("layers/c/1.h5")));
        }
        assert!(matches!(Reach::of(&file, External::Allow), Reach::Anywhere));
    }
}
