//! Making durable what was stored, and the end of a writable mount.

use super::{Writer, refused};
use crate::io::dir::Dir;
use crate::mount::fs::{Fs, FsResult};

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

    /// The mount is gone: all that was stored is made durable, and the log says what is lost.
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

    /// Returns the directory of the checkout, where a log can be kept, if it has one that stays.
    pub fn log_directory(&self) -> Option<Dir> {
        self.writer.as_ref()?.target.log_directory()
    }

    /// Makes all that was stored durable, and all names.
    pub fn sync_dir(&self) -> FsResult<()> {
        let Some(writer) = &self.writer else {
            return Ok(());
        };
        let kept = writer.keep_all();
        let synced = writer.sync().and(kept);
        synced.map_err(|e| self.note_path(&[b".".to_vec()], "sync", e))
    }
}
