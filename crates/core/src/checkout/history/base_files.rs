//! The files of a store at the time when a checkout is begun.

use std::path::Path;
use std::sync::Arc;

use crate::checkout::records::index::BaseFile;
use crate::store::CHECKOUTS_SUFFIX;
use npyfs_base::options::RemoteSettings;
use npyfs_io::file::Identity;
use npyfs_io::remote::{Address, RemoteObject};

/// The most files of a store that are recorded.
const MOST_BASE_FILES: usize = 10_000;

/// Returns the current state of the object at an address; `None` if it is not accessible.
pub(crate) fn base_object(
    address: &Address,
    settings: &Arc<RemoteSettings>,
) -> Option<Vec<BaseFile>> {
    let version = RemoteObject::newest(address, settings).ok()?;
    let identity = Identity::elsewhere(0, version.size, version.modified);
    Some(vec![BaseFile {
        path: String::new(),
        size: version.size,
        modified: identity.modified(),
        version: version.etag,
    }])
}

/// Returns the files of the store at `path`; `None` if there are too many or they are not accessible.
pub(crate) fn base_files(path: &Path) -> Option<Vec<BaseFile>> {
    fn walk(top: &Path, path: &Path, to: &mut Vec<BaseFile>) -> Option<()> {
        let meta = std::fs::symlink_metadata(path).ok()?;
        if meta.is_dir() {
            if path != top
                && path
                    .as_os_str()
                    .as_encoded_bytes()
                    .ends_with(CHECKOUTS_SUFFIX.as_bytes())
            {
                return Some(());
            }
            for entry in std::fs::read_dir(path).ok()? {
                walk(top, &entry.ok()?.path(), to)?;
            }
        } else if meta.is_file() {
            let identity = Identity::of(&meta);
            to.push(BaseFile {
                path: path.strip_prefix(top).ok()?.to_str()?.to_owned(),
                size: identity.size,
                modified: identity.modified(),
                version: None,
            });
        }
        (to.len() <= MOST_BASE_FILES).then_some(())
    }
    let mut files = Vec::new();
    walk(path, path, &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Some(files)
}
