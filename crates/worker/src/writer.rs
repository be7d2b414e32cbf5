//! The writing worker: a process that creates new files of one checkout, and does nothing else.
//!
//! It may write existing files below the directory of the checkout, and never reads a file that another program made:
//! the other workers, which cannot write, do that.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use rustix::process::{Signal, set_parent_process_death_signal};

use super::collection::Collections;
use super::create::{create, write_chunks};
use super::server::{daemon, serve};
use super::{descriptors, sandbox};
use npyfs_hdf5::protocol::{Answer, H5Error, Reply, Request};
use npyfs_io::owner::Owner;

/// Serves until the daemon is gone.
pub(super) fn run() -> io::Result<()> {
    let closed = descriptors::close_inherited();
    let dir = std::env::args_os().nth(2).map(PathBuf::from);
    let dir = dir.ok_or(ErrorKind::InvalidInput)?;
    let owned = Owner::of_argument(std::env::args_os().nth(3).as_deref())?.become_him();
    // The worker must not outlive its daemon. A change of user resets this setting, so that comes first.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let mut sandbox = sandbox::enter_to_write(&dir);
    sandbox.note("descriptors", closed);
    sandbox.note_owner(owned);
    let wire = daemon()?;
    wire.send_reply(Reply::Hello(sandbox, Vec::new()))?;
    let mut collections = Collections::default();
    serve(&wire, |envelope, descriptor| {
        // Only collections are kept open.
        let is_open =
            matches!(*envelope.request, Request::Collection(_)) && collections.has(envelope.serial);
        if descriptor.is_none() && !is_open {
            return Reply::NeedFile;
        }
        let file = descriptor.map(|file| envelope.store_file(file)).transpose();
        Reply::Done(file.and_then(|file| {
            match (file, envelope.request.into_owned()) {
                (file, Request::Collection(request)) => collections
                    .answer(envelope.serial, file.as_ref(), &request)
                    .map(|()| Answer::Written),
                (Some(file), Request::Create(new)) => create(&file, &new).map(Answer::Created),
                (Some(file), Request::WriteChunks(new)) => {
                    write_chunks(&file, &new).map(|()| Answer::Created(Vec::new()))
                }
                _ => Err(H5Error::Unsupported("this worker only writes".into())),
            }
        }))
    })
}
