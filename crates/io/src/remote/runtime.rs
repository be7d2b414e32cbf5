//! The one thread that performs all network I/O, and how other threads wait for it.

use std::future::Future;
use std::io;
use std::sync::OnceLock;
use std::sync::mpsc;

use tokio::runtime::{Builder, Handle};

use super::error::{Cause, RemoteError};
use npyfs_base::options::RemoteSettings;
use npyfs_base::thread;

/// Returns the runtime, which is started on first use.
fn handle() -> io::Result<&'static Handle> {
    static HANDLE: OnceLock<Handle> = OnceLock::new();
    if let Some(handle) = HANDLE.get() {
        return Ok(handle);
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    if HANDLE.set(handle).is_ok() {
        install_crypto();
        thread::spawn("network", move || {
            runtime.block_on(std::future::pending::<()>());
        })?;
    }
    HANDLE
        .get()
        .ok_or_else(|| io::Error::other("the network's thread could not be started"))
}

/// Installs the crypto provider of encrypted connections, which the process has once: if one is installed already, it
/// is the same one.
pub(super) fn install_crypto() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Runs a task on the network thread.
pub(super) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
    handle()?.spawn(work);
    Ok(())
}

/// Runs a task on the network thread and waits for its result.
pub(super) fn wait<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> io::Result<T> {
    let (done, outcome) = mpsc::sync_channel(1);
    spawn(async move {
        // The caller may have stopped waiting.
        let _ = done.send(work.await);
    })?;
    outcome
        .recv()
        .map_err(|_| io::Error::other("the network's thread gave up"))
}

/// Waits for a request on the network thread, but no longer than the time limit. `about` is the address, for messages.
pub(super) fn ask<T: Send + 'static>(
    about: &str,
    settings: &RemoteSettings,
    request: impl Future<Output = Result<T, RemoteError>> + Send + 'static,
) -> Result<T, RemoteError> {
    let limit = settings.timeout;
    let outcome = wait(async move { tokio::time::timeout(limit, request).await });
    match outcome {
        Ok(Ok(outcome)) => outcome.map_err(|e| e.about(about)),
        Ok(Err(_)) => Err(RemoteError::late(limit).about(about)),
        Err(e) => Err(RemoteError::new(Cause::Failed, about, e)),
    }
}
