//! The editing worker: a process that makes one new file out of others, and does nothing else.
//!
//! It opens files that somebody else made, so it may change nothing but the new file: if one of them leads
//! libhdf5 astray, that file is bad, and no other.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};

use super::create::write_chunks;
use super::edit::edit;
use super::service::Service;
use super::wire::{Reply, Wire};
use super::{Answer, H5Error, Request, descriptors, sandbox};
use crate::io::file::StoreFile;

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
    let stdin = io::stdin().as_fd().try_clone_to_owned()?;
    let wire = Wire::new(UnixStream::from(stdin));
    wire.send_reply(Reply::Hello(sandbox, Vec::new()))?;
    loop {
        let (envelope, descriptor) = match wire.receive_request() {
            Ok(received) => received,
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(e) => return Err(e),
        };
        sandbox::limit_cpu(Duration::from_secs(envelope.seconds));
        let path = OsString::from_vec(envelope.path);
        let answer = match (descriptor, envelope.request) {
            // No file is kept.
            (None, _) => {
                wire.send_reply(Reply::NeedFile)?;
                continue;
            }
            (Some(file), Request::Edit(steps)) => StoreFile::from_file(Path::new(&path), file)
                .map_err(|e| H5Error::Damaged(e.to_string()))
                .and_then(|file| edit(&file, &steps))
                .map(Answer::Edited),
            (Some(file), Request::WriteChunks(new)) => StoreFile::from_file(Path::new(&path), file)
                .map_err(|e| H5Error::Damaged(e.to_string()))
                .and_then(|file| write_chunks(&file, &new))
                .map(|()| Answer::Edited(Vec::new())),
            // What is in the new file.
            (Some(file), request) => StoreFile::from_file(Path::new(&path), file)
                .map_err(|e| H5Error::Damaged(e.to_string()))
                .and_then(|file| Service::new(None).answer(&file, &request)),
        };
        wire.send_reply(Reply::Done(answer))?;
    }
}
