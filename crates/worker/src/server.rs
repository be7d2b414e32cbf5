//! The server loop of worker processes, which read requests from standard input.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::sandbox;
use npyfs_hdf5::protocol::{Envelope, Reply, Wire};

/// Returns the connection to the daemon, which is standard input.
pub(super) fn daemon() -> io::Result<Wire> {
    let stdin = io::stdin().as_fd().try_clone_to_owned()?;
    Ok(Wire::new(UnixStream::from(stdin)))
}

/// Answers requests until the daemon is gone, each within its limit of CPU time. `answer` gets the descriptor of the
/// request's file, if one came with it.
pub(super) fn serve(
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
