//! Tells a service manager of a daemon in front, if it asks to be told: `sd_notify`, `Type=notify`.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::cli::say;

/// Tells the service manager: lines such as `READY=1`. Nobody listens where `NOTIFY_SOCKET` is not set.
pub(super) fn notify(state: &str) {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    if let Err(error) = send(name.as_bytes(), state) {
        let name = name.display();
        say(&format!(
            "the service manager cannot be told at {name}: {error}"
        ));
    }
}

/// Sends to a socket: a path, or behind `@` a name without a file.
fn send(name: &[u8], state: &str) -> io::Result<()> {
    let address = match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name))?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}
