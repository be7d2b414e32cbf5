//! A worker process: answers requests from its standard input until that closes.
//!
//! It may crash or be killed at any time; the daemon replaces it. It gets an empty environment, an open
//! descriptor per file, and limits on memory.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use lru::LruCache;
use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};

use super::service::{OPEN_FILES, Service};
use super::wire::{Reply, Wire};
use super::{H5Error, Request};
use crate::raw::StoreFile;

/// The argument that makes the program a worker.
pub const ARGUMENT: &str = "h5-worker";

/// Address space of a worker, in bytes.
const ADDRESS_SPACE: u64 = 6 << 30;

/// Serves until the other side goes away.
pub fn run() -> std::io::Result<()> {
    // A worker that hangs must not outlive its daemon.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let limit = |n| Rlimit {
        current: Some(n),
        maximum: Some(n),
    };
    let _ = setrlimit(Resource::As, limit(ADDRESS_SPACE));
    let _ = setrlimit(Resource::Core, limit(0));
    let wire = Wire::new(UnixStream::from(
        std::io::stdin().as_fd().try_clone_to_owned()?,
    ));
    let mut service = Service::default();
    let size = NonZeroUsize::new(OPEN_FILES).unwrap_or(NonZeroUsize::MIN);
    let mut files: LruCache<u64, Arc<StoreFile>> = LruCache::new(size);
    loop {
        let (envelope, descriptor) = match wire.receive_request() {
            Ok(received) => received,
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(e) => return Err(e),
        };
        if let Some(descriptor) = descriptor {
            let path = OsString::from_vec(envelope.path);
            match StoreFile::from_file(Path::new(&path), descriptor) {
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
                Reply::Done(service.answer(file, &envelope.request))
            }
        };
        wire.send_reply(reply)?;
    }
}
