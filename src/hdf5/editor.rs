//! The editing worker: a process that makes one new file out of others, and does nothing else.
//!
//! It opens files that other programs made, so it may change nothing but the new file: if one of them leads
//! libhdf5 astray, that file is bad, and no other.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use rustix::process::{Signal, set_parent_process_death_signal};

use super::create::write_chunks;
use super::edit::edit;
use super::publish::publish;
use super::serve::{daemon, serve};
use super::service::Service;
use super::wire::Reply;
use super::{Answer, Request, descriptors, sandbox};

/// The argument that makes the program an editing worker; the directory that it may write in follows, then
/// those that it may read.
pub const ARGUMENT: &str = "h5-editor";

/// Serves until the daemon is gone.
pub fn run() -> io::Result<()> {
    // It must not outlive its daemon.
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
        // No file is kept.
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
            // A question about the new file.
            request => Service::new(None).answer(&file, &request),
        }))
    })
}
