//! The writing worker: a process that makes new files of one checkout, and does nothing else.
//!
//! It may write files that exist below the directory of the checkout, and reads no file that somebody else
//! made: that is left to the other workers, which cannot write.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};

use super::collection::Collections;
use super::create::{create, write_chunks};
use super::wire::{Reply, Wire};
use super::{Answer, H5Error, Request, descriptors, sandbox};
use crate::io::file::StoreFile;
use crate::io::owner::Owner;

/// The argument that makes the program a writing worker; the directory that it may write in follows, and the owner that
/// it is to become, if that is another user.
pub const ARGUMENT: &str = "h5-writer";

/// Serves until the daemon is gone.
pub fn run() -> io::Result<()> {
    let closed = descriptors::close_inherited();
    let dir = std::env::args_os().nth(2).map(PathBuf::from);
    let dir = dir.ok_or(ErrorKind::InvalidInput)?;
    let owned = Owner::of_argument(std::env::args_os().nth(3).as_deref())?.become_him();
    // It must not outlive its daemon. A change of user forgets that, so it comes before.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let mut sandbox = sandbox::enter_to_write(&dir);
    sandbox.note("descriptors", closed);
    sandbox.note_owner(owned);
    let stdin = io::stdin().as_fd().try_clone_to_owned()?;
    let wire = Wire::new(UnixStream::from(stdin));
    wire.send_reply(Reply::Hello(sandbox, Vec::new()))?;
    let mut collections = Collections::default();
    loop {
        let (envelope, descriptor) = match wire.receive_request() {
            Ok(received) => received,
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(e) => return Err(e),
        };
        sandbox::limit_cpu(Duration::from_secs(envelope.seconds));
        let path = OsString::from_vec(envelope.path);
        let answer = match (descriptor, envelope.request) {
            (None, Request::Collection(request)) if collections.has(envelope.serial) => {
                let done = collections.answer(envelope.serial, None, &request);
                done.map(|()| Answer::Written)
            }
            // No other file is kept.
            (None, _) => {
                wire.send_reply(Reply::NeedFile)?;
                continue;
            }
            (Some(file), Request::Collection(request)) => {
                StoreFile::from_file(Path::new(&path), file)
                    .map_err(|e| H5Error::Damaged(e.to_string()))
                    .and_then(|file| collections.answer(envelope.serial, Some(&file), &request))
                    .map(|()| Answer::Written)
            }
            (Some(file), request) => StoreFile::from_file(Path::new(&path), file)
                .map_err(|e| H5Error::Damaged(e.to_string()))
                .and_then(|file| match request {
                    Request::Create(new) => create(&file, &new),
                    Request::WriteChunks(new) => write_chunks(&file, &new).map(|()| Vec::new()),
                    _ => Err(H5Error::Unsupported("this worker only writes".into())),
                })
                .map(Answer::Created),
        };
        wire.send_reply(Reply::Done(answer))?;
    }
}
