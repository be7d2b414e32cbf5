//! The worker processes of npyfs, which execute requests with libhdf5 and liblmdb. No other crate links or names these
//! libraries.
//!
//! A process that [`serve`] makes a worker answers requests from its standard input until that closes. It gives up its
//! rights before it looks at a file, and may crash or be killed at any time: the daemon (`npyfs-hdf5`) replaces it.
//! `npyfs_hdf5::protocol` defines requests and answers.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod admission;
mod attributes;
mod chunks;
mod collection;
mod create;
mod dataset;

mod describe;
mod dimensions;
mod edit;
mod far;
mod ffi;
mod lmdb;
mod object_paths;
mod probe;
mod processes;
mod publish;
mod record;
mod references;
mod sandbox;
mod scan;
mod service;
mod syscalls;
mod tables;
mod text;
mod types;

use std::ffi::OsStr;
use std::io;

use npyfs_hdf5::protocol::{Answer, H5Error, Request, argument};
use npyfs_hdf5::{AnswerHere, Creator, H5};
use parking_lot::Mutex;
pub use service::ChunkDecoder;

/// Serves as the worker that an argument names, until the daemon is gone; returns `None` if the argument names no
/// worker. `decode` decodes chunks without libhdf5. Must be called before the program has opened any file.
///
/// # Errors
///
/// Errors of the connection to the daemon.
pub fn serve(argument: &OsStr, decode: ChunkDecoder) -> Option<io::Result<()>> {
    Some(match argument.to_str()? {
        argument::READER => processes::read(decode),
        argument::WRITER => processes::write(),
        argument::EDITOR => processes::change(),
        argument::TABLES => processes::change_tables(),
        argument::PROBE => probe::run(),
        _ => return None,
    })
}

/// Makes a client that answers in this process, without a sandbox: for tests, which trust their files.
#[doc(hidden)]
pub fn h5_here() -> H5 {
    let service = Mutex::new(service::Service::new(None));
    let answer: Box<AnswerHere> = Box::new(move |file, request| {
        // The service holds no partial state between requests, so that one that panicked leaves nothing behind.
        service.lock().answer(file, request)
    });
    H5::Here(answer)
}

/// Makes a client that creates files in this process, without a sandbox: for tests.
#[doc(hidden)]
pub fn creator_here() -> Creator {
    Creator::Here(Box::new(|file, request| match request {
        Request::Create(new) => create::create(file, new).map(Answer::Created),
        Request::WriteChunks(new) => {
            create::write_chunks(file, new).map(|()| Answer::Created(Vec::new()))
        }
        _ => Err(H5Error::Unsupported("this client only makes files".into())),
    }))
}
