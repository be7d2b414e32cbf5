//! The editing worker: a process that makes one new file out of others, and does nothing else.
//!
//! It opens files that other programs made, so it may change only the new file: if a source file misleads libhdf5, the
//! new file is bad, and no other.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use rustix::process::{Signal, set_parent_process_death_signal};

use super::create::write_chunks;
use super::edit::edit;
use super::publish::publish;
use super::server::{daemon, serve};
use super::service::Service;
use super::{descriptors, sandbox};
use npyfs_hdf5::protocol::{Answer, Reply, Request};

/// Serves until the daemon is gone.
pub(super) fn run() -> io::Result<()> {
    // The worker must not outlive its daemon.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let closed = descriptors::close_inherited();
    let mut dirs = std::env::args_os().skip(2).map(PathBuf::from);
    let dir = dirs.next().ok_or(ErrorKind::InvalidInput)?;
    let readable: Vec<_> = dirs.collect();
    let mut sandbox = sandbox::enter_to_edit(&dir, &readable);
    sandbox.note("descriptors", closed);
    let wire = daemon()?;
    wire.send_reply(Reply::Hello(sandbox, Vec::new()))?;
    serve(&wire, |envelope, descriptor| {
        // No file is kept open between requests.
        let Some(file) = descriptor else {
            return Reply::NeedFile;
        };
        let file = envelope.store_file(file);
        Reply::Done(file.and_then(|file| match envelope.request.into_owned() {
            Request::Edit { steps, holders } => edit(&file, &steps, &holders).map(Answer::Edited),
            Request::WriteChunks(new) => {
                write_chunks(&file, &new).map(|()| Answer::Edited(Vec::new()))
            }
            Request::Publish(new) => publish(&file, &new),
            // Other requests are queries about the new file.
            request => Service::new(None).answer(&file, &request),
        }))
    })
}
