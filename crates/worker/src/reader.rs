//! The reading worker: a process that answers requests from its standard input until that closes.
//!
//! It may crash or be killed at any time; the daemon replaces it. It gets an empty environment, an open descriptor per
//! file, and a sandbox.

use std::sync::Arc;

use lru::LruCache;
use rustix::process::{Signal, set_parent_process_death_signal};

use super::admission;
use super::far::AskedFile;
use super::server::{daemon, serve};
use super::service::{ChunkDecoder, Service, open_files};
use super::{descriptors, sandbox};
use npyfs_hdf5::protocol::{H5Error, Reply};
use npyfs_io::file::StoreFile;

/// Serves until the daemon is gone; `decode` decodes chunks without libhdf5.
pub(super) fn run(decode: ChunkDecoder) -> std::io::Result<()> {
    // A worker that hangs must not outlive its daemon.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let closed = descriptors::close_inherited();
    let wire = Arc::new(daemon()?);
    let (permit, first) = wire.receive_permit()?;
    sandbox::raise_descriptors();
    let admitted = admission::admit(&permit, first.as_ref());
    drop(first);
    let mut sandbox = sandbox::enter(admitted.files);
    sandbox.note("descriptors", closed);
    let inodes = admitted.inodes;
    wire.send_reply(Reply::Hello(sandbox, inodes.clone()))?;
    let mut service = Service::new(Some(decode));
    let mut files: LruCache<u64, Arc<StoreFile>> = LruCache::new(open_files());
    serve(&wire, |envelope, descriptor| {
        if let Some(descriptor) = descriptor {
            match envelope.store_file(descriptor) {
                Ok(file) => files.put(envelope.serial, Arc::new(file)),
                Err(e) => return Reply::Done(Err(e)),
            };
        }
        if let Some(identity) = envelope.far
            && !files.contains(&envelope.serial)
        {
            let far = Arc::new(AskedFile::new(&wire, identity.size));
            files.put(envelope.serial, Arc::new(envelope.far_file(identity, far)));
        }
        let Some(file) = files.get(&envelope.serial) else {
            return Reply::NeedFile;
        };
        let outside = envelope.request.reads_sources();
        // libhdf5 also looks for virtual sources in the working directory: it becomes that of the file.
        if outside && let Some(dir) = file.path.parent() {
            let _ = std::env::set_current_dir(dir);
        }
        let answer = service.answer(file, &envelope.request);
        // libhdf5 treats a source that it may not open as missing, and shows the fill value.
        if outside && admission::misses_sources(&permit, &inodes) {
            return Reply::Done(Err(H5Error::Stale));
        }
        Reply::Done(answer)
    })
}
