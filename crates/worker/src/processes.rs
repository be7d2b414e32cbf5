//! The worker processes that serve a daemon: what each gives up before it looks at a file, and what it answers.
//!
//! Every worker reads requests from standard input until the daemon is gone, and answers one at a time. The order of
//! the steps before the first answer matters: inherited descriptors are closed before the process opens any, and
//! everything that the sandbox forbids is done before the process enters it.
//!
//! - A *reader* reads the store and changes nothing. It gets an empty environment and an open descriptor per file, and
//!   may crash or be killed at any time: the daemon replaces it.
//! - A *writer* makes new files of one checkout. It may write existing files below the directory of the checkout, and
//!   never reads a file that another program made: the workers that cannot write do that.
//! - An *editor* makes one new file out of others. It opens files that other programs made, so it may change only the
//!   new file: if a source file misleads libhdf5, the new file is bad, and no other.
//! - A *tables* worker changes the LMDB tables of one directory under their lock. It alone is not killed with its
//!   daemon: it completes the current request, releases the lock and ends.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lru::LruCache;
use rustix::process::{Signal, set_parent_process_death_signal};

use super::admission;
use super::collection::Collections;
use super::create::{create, write_chunks};
use super::edit::edit;
use super::far::AskedFile;
use super::publish::publish;
use super::sandbox::{self, close_inherited};
use super::service::{ChunkDecoder, Service, open_files};
use super::tables::Tables;
use npyfs_hdf5::protocol::{Answer, Envelope, H5Error, Reply, Request, Sandbox, Wire};
use npyfs_io::file::StoreFile;
use npyfs_io::owner::Owner;

/// Serves as a reader until the daemon is gone; `decode` decodes chunks without libhdf5.
pub(super) fn read(decode: ChunkDecoder) -> io::Result<()> {
    die_with_daemon();
    let closed = close_inherited();
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

/// Serves as a writer until the daemon is gone. The first argument behind the worker's own is the directory, the second
/// one the owner that the process becomes.
pub(super) fn write() -> io::Result<()> {
    let closed = close_inherited();
    let dir = directory()?;
    let owned = Owner::of_argument(std::env::args_os().nth(3).as_deref())?.become_him();
    // A change of user resets this setting, so that comes first.
    die_with_daemon();
    let mut sandbox = sandbox::enter_to_write(&dir);
    sandbox.note("descriptors", closed);
    sandbox.note_owner(owned);
    let wire = greet(sandbox)?;
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

/// Serves as an editor until the daemon is gone. The first argument behind the worker's own is the directory of the new
/// file; the others are the files and directories that may be read.
pub(super) fn change() -> io::Result<()> {
    die_with_daemon();
    let closed = close_inherited();
    let dir = directory()?;
    let readable: Vec<_> = std::env::args_os().skip(3).map(PathBuf::from).collect();
    let mut sandbox = sandbox::enter_to_edit(&dir, &readable);
    sandbox.note("descriptors", closed);
    let wire = greet(sandbox)?;
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

/// Serves as the worker of tables until the daemon is gone. The arguments are those of a writer.
pub(super) fn change_tables() -> io::Result<()> {
    let closed = close_inherited();
    let dir = directory()?;
    // Ctrl-C at a terminal is meant for the daemon.
    let _ = rustix::process::setsid();
    // The constructor reads the host name, which the sandbox forbids later.
    let mut tables = Tables::new(&dir);
    let owned = Owner::of_argument(std::env::args_os().nth(3).as_deref())?.become_him();
    let mut sandbox = sandbox::enter_to_write_tables(&dir);
    sandbox.note("descriptors", closed);
    sandbox.note_owner(owned);
    let wire = greet(sandbox)?;
    let ended = serve(&wire, |envelope, _| {
        Reply::Done(match envelope.request.into_owned() {
            Request::Tables(request) => tables.answer(&request).map(Answer::Tables),
            _ => Err(H5Error::Unsupported(
                "this worker only writes tables".into(),
            )),
        })
    });
    // The daemon is gone, so a failure cannot be reported.
    let _ = tables.release();
    ended
}

/// Has the kernel kill this process when its daemon ends, also if the process hangs.
fn die_with_daemon() {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
}

/// Returns the directory that a worker may write in: the argument behind the one that names the worker.
fn directory() -> io::Result<PathBuf> {
    let dir = std::env::args_os().nth(2).map(PathBuf::from);
    dir.ok_or_else(|| ErrorKind::InvalidInput.into())
}

/// Returns the connection to the daemon, which is standard input.
fn daemon() -> io::Result<Wire> {
    let stdin = io::stdin().as_fd().try_clone_to_owned()?;
    Ok(Wire::new(UnixStream::from(stdin)))
}

/// Tells the daemon which rights were given up, and returns the connection.
fn greet(sandbox: Sandbox) -> io::Result<Wire> {
    let wire = daemon()?;
    wire.send_reply(Reply::Hello(sandbox, Vec::new()))?;
    Ok(wire)
}

/// Answers requests until the daemon is gone, each within its limit of CPU time. `answer` gets the descriptor of the
/// request's file, if one came with it.
fn serve(
    wire: &Wire,
    mut answer: impl FnMut(Envelope<'static>, Option<File>) -> Reply,
) -> io::Result<()> {
    loop {
        let (envelope, file) = match wire.receive_request() {
            Ok(received) => received,
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(e) => return Err(e),
        };
        sandbox::limit_cpu(Duration::from_secs(envelope.seconds));
        wire.send_reply(answer(envelope, file))?;
    }
}
