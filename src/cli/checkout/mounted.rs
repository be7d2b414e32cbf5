//! A commit of a checkout that a mount writes in: the mount is asked to make it, and goes on.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{XattrFlags, setxattr};
use serde_json::Value as Json;

use crate::cli::umount::with_timeout;
use crate::cli::{CliError, log, say, umount};
use crate::mount::fuse::table::{self, Mounted};
use npyfs_core::checkout::verbs::commit::{ATTRIBUTE, CommitReport, CommitRequest, RESULT};
use npyfs_core::checkout::verbs::commit::{CommitOptions, CommitRefusal, Committed};

/// The time that a mount may take to say what it writes in.
const GLANCE: Duration = Duration::from_secs(5);

/// The time that a mount may take to commit.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(600);

/// Has the mount at a path commit.
pub(super) fn commit(
    mount: &Path,
    wish: &CommitOptions,
) -> Result<Result<Committed, CommitRefusal>, CliError> {
    let shown = mount.display();
    let failed = |e: &dyn std::fmt::Display| {
        CliError::object(format!(
            "{shown}: whether it was committed is not known, see npyfs checkout log: {e}"
        ))
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let asked = CommitRequest {
        request: format!("{}-{:?}", std::process::id(), now.unwrap_or_default()),
        wish: wish.clone(),
    };
    let value = serde_json::to_vec(&asked).map_err(|e| failed(&e))?;
    let (at, before) = (mount.to_owned(), log::last(mount));
    let set = with_timeout(COMMIT_TIMEOUT, move || {
        setxattr(&at, ATTRIBUTE, &value, XattrFlags::empty()).map_err(io::Error::from)
    });
    set.map_err(|e| {
        let errno = e.raw_os_error();
        if errno == Some(libc::E2BIG) {
            return CliError::usage("the message is too long: a mount takes up to 64 KiB");
        }
        match errno.and_then(|errno| log::reason(mount, before, errno)) {
            Some(reason) => CliError::object(format!("nothing was committed: {reason}")),
            None => failed(&e),
        }
    })?;
    let status = status(mount).map_err(|e| failed(&e))?;
    let report = status["checkout"][RESULT].clone();
    let report: CommitReport = serde_json::from_value(report).map_err(|e| failed(&e))?;
    match report.request == asked.request {
        true => Ok(report.result.into()),
        false => Err(failed(&"another commit was made at the same time")),
    }
}

/// Has a mount store what was written, so that it is seen. A failure is said, and what is stored is seen all the same.
pub(super) fn sync_for_a_look(mount: &Path) {
    if let Err(e) = umount::sync(mount) {
        say(&e.message);
    }
}

/// Returns the mount of this machine that writes in the layer of this directory.
pub(super) fn writing_in(layer: &Path) -> Option<PathBuf> {
    let is_in = |status: &Json| {
        let dir = status["checkout"]["dir"].as_str().map(Path::new);
        dir.and_then(|dir| dir.canonicalize().ok()).as_deref() == Some(layer)
    };
    writing(is_in).next()
}

/// Returns the mounts of this machine through which a store is written.
pub(super) fn writing_to(store: &Path) -> Vec<PathBuf> {
    let store = store.canonicalize().ok();
    let is_of = |status: &Json| {
        let own = status["store"].as_str().map(Path::new);
        store.is_some() && own.and_then(|own| own.canonicalize().ok()) == store
    };
    writing(is_of).collect()
}

/// Returns the writable mounts of this machine whose status is such.
fn writing(is_such: impl Fn(&Json) -> bool) -> impl Iterator<Item = PathBuf> {
    let mounts = table::ours().unwrap_or_default().into_iter();
    let points = mounts.map(|mounted| mounted.mount_point);
    points.filter(move |point| {
        let status = glance(point);
        let checkout = &status["checkout"];
        !checkout.is_null() && checkout["read_only"] != true && is_such(&status)
    })
}

/// Returns the store that is mounted at a path, as the mount says.
pub(super) fn store_at(mount_point: &Path) -> Option<PathBuf> {
    let at = table::resolve(mount_point).ok()?;
    table::at(&at).ok()?.filter(Mounted::is_ours)?;
    glance(&at)["store"].as_str().map(PathBuf::from)
}

/// Returns the status of a mount; null if it does not say soon.
fn glance(mount: &Path) -> Json {
    let at = mount.to_owned();
    with_timeout(GLANCE, move || status(&at)).unwrap_or_default()
}

fn status(mount: &Path) -> io::Result<Json> {
    let status = std::fs::read(mount.join(".npyfs/status.json"))?;
    serde_json::from_slice(&status).map_err(io::Error::from)
}
