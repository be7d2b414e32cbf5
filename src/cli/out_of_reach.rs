//! Why a mount cannot be looked into: it is dead, or another user's.

use std::io;
use std::path::Path;

use crate::cli::accounts;
use crate::mount::fuse::table::{self, Mounted};

/// Says why a mount cannot be looked into.
pub fn out_of_reach(at: &Path, e: &io::Error) -> String {
    let shown = at.display();
    match e.raw_os_error() {
        Some(libc::ENOTCONN | libc::ECONNABORTED) => format!(
            "{shown}: the process of this mount is gone (npyfs umount {shown} takes the mount away)"
        ),
        Some(libc::EACCES | libc::EPERM) => match table::at(at).ok().flatten() {
            Some(Mounted {
                owner: Some(owner), ..
            }) => {
                let owner = accounts::name_of_user(owner);
                let what = match at.metadata() {
                    Ok(_) => "who alone sees what it does",
                    Err(_) => "who alone may look into it: it was made without -o allow_other",
                };
                format!("{shown}: {e}: this is a mount of {owner}, {what}")
            }
            _ => format!("{shown}: {e}"),
        },
        _ => format!("{shown}: {e}"),
    }
}
