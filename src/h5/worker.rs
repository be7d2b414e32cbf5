//! A worker process: answers requests from its standard input until that closes.
//!
//! It may crash or be killed at any time; the daemon replaces it. It gets an empty environment, an open
//! descriptor per file, a limit on memory, and no right to write a file or to use the network.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use landlock::{Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetStatus};
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

/// Gives up what reading does not need: writing any file, and TCP. A kernel without Landlock, or with an
/// older one, forbids what it can.
///
/// True if something is forbidden now, to the calling thread and all it starts.
fn give_up_rights() -> bool {
    let abi = landlock::ABI::V4;
    Ruleset::default()
        .handle_access(AccessFs::from_write(abi))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(abi)))
        .and_then(|rules| rules.create())
        .and_then(|rules| rules.restrict_self())
        .is_ok_and(|status| status.ruleset != RulesetStatus::NotEnforced)
}

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
    let _ = give_up_rights();
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_worker_reads_but_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        std::fs::write(&path, b"data").unwrap();
        // Only the thread that gives up its rights loses them.
        std::thread::spawn(move || {
            if !give_up_rights() {
                eprintln!("NOT TESTED: this kernel has no Landlock");
                return;
            }
            assert_eq!(std::fs::read(&path).unwrap(), b"data");
            let other = path.with_extension("new");
            for denied in [
                File::create(&other),
                File::options().write(true).open(&path),
            ] {
                assert_eq!(
                    denied.unwrap_err().kind(),
                    std::io::ErrorKind::PermissionDenied
                );
            }
            assert!(std::net::TcpListener::bind("127.0.0.1:0").is_err());
        })
        .join()
        .unwrap();
    }
}
