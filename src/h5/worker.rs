//! A worker process: answers requests from its standard input until that closes.
//!
//! It may crash or be killed at any time; the daemon replaces it. It gets an empty environment, an open
//! descriptor per file, and a sandbox.

use std::ffi::OsString;
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lru::LruCache;
use rustix::process::{Signal, set_parent_process_death_signal};

use super::service::{OPEN_FILES, Service};
use super::wire::{Reply, Wire};
use super::{H5Error, Request, sandbox};
use crate::raw::StoreFile;

/// The argument that makes the program a worker; the directories that it may read follow, if there are any.
pub const ARGUMENT: &str = "h5-worker";

/// Serves until the other side goes away.
pub fn run() -> std::io::Result<()> {
    // A worker that hangs must not outlive its daemon.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let readable: Vec<_> = std::env::args_os().skip(2).map(PathBuf::from).collect();
    let sandbox = sandbox::enter(&readable);
    let wire = Wire::new(UnixStream::from(
        std::io::stdin().as_fd().try_clone_to_owned()?,
    ));
    wire.send_reply(Reply::Hello(sandbox))?;
    let mut service = Service::default();
    let size = NonZeroUsize::new(OPEN_FILES).unwrap_or(NonZeroUsize::MIN);
    let mut files: LruCache<u64, Arc<StoreFile>> = LruCache::new(size);
    let mut served = false;
    loop {
        let (envelope, descriptor) = match wire.receive_request() {
            Ok(received) => received,
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(e) => return Err(e),
        };
        if let Some(descriptor) = descriptor {
            let path = OsString::from_vec(envelope.path);
            match StoreFile::from_file(Path::new(&path), descriptor) {
                // The directory that may be read was replaced by another of its name: a new worker may read it.
                Ok(file) if served && !may_open(&file) => return Ok(()),
                Ok(mut file) => {
                    file.serial = envelope.serial;
                    files.put(envelope.serial, Arc::new(file));
                }
                Err(e) => {
                    wire.send_reply(Reply::Done(Err(H5Error::Damaged(e.to_string()))))?;
                    continue;
                }
            }
        }
        let reply = match files.get(&envelope.serial) {
            None => Reply::NeedFile,
            Some(file) => {
                // libhdf5 looks for virtual sources in the working directory, too: make it the file's own.
                if let Request::Block { outside: true, .. } = envelope.request
                    && let Some(dir) = file.path.parent()
                {
                    let _ = std::env::set_current_dir(dir);
                }
                sandbox::limit_cpu(Duration::from_secs(envelope.seconds));
                served = true;
                Reply::Done(service.answer(file, &envelope.request))
            }
        };
        wire.send_reply(reply)?;
    }
}

/// Whether the sandbox lets libhdf5 open the file.
fn may_open(file: &StoreFile) -> bool {
    let path = file.path_of_descriptor();
    !File::open(path).is_err_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied)
}
