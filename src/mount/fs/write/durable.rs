//! Making stored changes durable, and the end of a writable mount.

use std::sync::Arc;

use super::{Writer, refused};
use crate::mount::fs::{Fs, FsResult};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::dir::Dir;

impl Fs {
    /// Stores the file durably.
    pub fn fsync(&self, handle: u64) -> FsResult<()> {
        let Some(writer) = &self.writer else {
            return Ok(());
        };
        let Some(body) = writer.handle(handle) else {
            return self.sync_dir();
        };
        self.store(&body, "fsync")?;
        let path = body.path().unwrap_or_default();
        let kept = match path.as_slice() {
            [] => Ok(()),
            path => writer.keep(path),
        };
        let synced = kept.and_then(|()| writer.sync());
        synced.map_err(|e| self.note_path(&path, "fsync", e))
    }

    /// Commits what is stored, as an extended attribute of the root asks for it. Only the owner of the mount may ask.
    pub fn commit(&self, uid: u32, request: &[u8]) -> FsResult<()> {
        let about = |e: Error| self.note_path(&[b".".to_vec()], "commit", e);
        let Some(writer) = &self.writer else {
            return Err(about(refused(libc::EROFS, "the mount is read-only")));
        };
        if uid != 0 && uid != rustix::process::geteuid().as_raw() {
            let why = "only the user of the mount may commit in it";
            return Err(about(refused(libc::EPERM, why)));
        }
        let request = serde_json::from_slice(request);
        let request = request.map_err(|e| about(refused(libc::EINVAL, &e.to_string())))?;
        writer.commit_all(&request).map_err(about)
    }

    /// Ends a writable mount: makes all stored changes durable and logs the files that are lost.
    pub fn close(&self) -> FsResult<()> {
        let synced = self.sync_dir();
        let unfinished = self.writer.as_deref().map(Writer::unfinished);
        for file in unfinished.unwrap_or_default() {
            let why = format!("not stored, and gone with the mount: {}", file.reason);
            let error = refused(libc::EINVAL, &why);
            self.refuse(file.path.as_bytes(), "unmount", &error);
        }
        synced
    }

    /// Returns what says the directory of the checkout now, for a log, if the checkout has permanent ones.
    pub fn log_directory(&self) -> Option<impl Fn() -> Result<Dir> + Send + Sync + 'static> {
        let target = &self.writer.as_ref()?.target;
        target.log_directory()?;
        // The log must not keep the checkout open.
        let target = Arc::downgrade(target);
        Some(move || {
            let dir = target.upgrade().and_then(|target| target.log_directory());
            dir.ok_or_else(|| Error::new(ErrorKind::Stale, "the checkout is closed"))
        })
    }

    /// Makes all stored changes and all names durable.
    pub fn sync_dir(&self) -> FsResult<()> {
        let Some(writer) = &self.writer else {
            return Ok(());
        };
        let kept = writer.keep_all();
        let synced = writer.sync().and(kept);
        synced.map_err(|e| self.note_path(&[b".".to_vec()], "sync", e))
    }
}
