//! Uploads a layer that is written on this host: first finished files, then the lines of the index that name them.
//!
//! Uploaded data exists once the part with its lines is there and no other host has taken the layer.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use serde::{Deserialize, Serialize};

use super::lease::{self, LayerState, Lease, LeaseState};
use super::part::{FileSum, LayerContent, Part};
use super::{INDEX, MINE, local, replace};
use crate::checkout::records::form::Form;
use crate::store::against::{Digest, digest};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::dir::Dir;

/// Bytes of files that are sent at once.
const BATCH: u64 = 64 << 20;

/// Files of at most this many bytes are sent together with others.
const SMALL: u64 = 16 << 20;

/// The upload of one layer.
pub struct Upload {
    dir: Dir,
    lease: Lease,
    /// Files in the bucket.
    files: BTreeMap<String, FileSum>,
    /// Bytes of the index in the bucket, and the inode of the index file; `None` if there are none under this lease.
    sent: Option<(u64, u64)>,
    /// The number of parts under this lease.
    parts: u64,
}

impl Upload {
    /// Begins with the present state.
    pub fn new(mut lease: Lease, dir: &Dir) -> Self {
        let files = std::mem::take(&mut lease.there.files);
        Self {
            dir: dir.clone(),
            files: files
                .into_iter()
                .map(|sum| (sum.file.clone(), sum))
                .collect(),
            lease,
            sent: None,
            parts: 0,
        }
    }

    /// Returns the lowest number for new files: higher than those of all files under other leases.
    pub fn first_file(&self) -> u64 {
        const EACH: u64 = 10_000_000_000;
        self.lease.number().saturating_mul(EACH).saturating_add(1)
    }

    /// Uploads the content of the layer, and returns once it exists in the bucket.
    ///
    /// # Errors
    ///
    /// The bucket does not respond: the rest is left to the next upload. ESTALE if another host has taken the layer.
    pub fn run(&mut self) -> Result<()> {
        self.lease.check()?;
        let dir = &self.dir.clone();
        let Some((file, inode)) = index(dir)? else {
            return Ok(());
        };
        let len = file.metadata().map_err(|e| about(e, dir))?.len();
        let from = match self.sent {
            Some((sent, of)) if of == inode && sent <= len => sent,
            _ => 0,
        };
        if self.sent == Some((len, inode)) {
            return Ok(());
        }
        let text = read(&file, from, dir)?;
        let lines = from + text.len() as u64;
        let named = named(&text, from == 0)?;
        let files = self.send(dir, &named)?;
        let part = Part { from, text, files };
        let bytes = part.print()?;
        // Only this process writes parts under this lease. An existing part is from an earlier attempt whose response
        // was lost, and this one replaces its lines. Numbers are consecutive: parts after a gap would not be found.
        let mut is_made = false;
        while !is_made {
            let name = lease::part_name(self.lease.number(), self.parts + 1);
            is_made = self.lease.prefix().create_own(&name, &bytes)?;
            self.parts += 1;
        }
        self.sent = Some((lines, inode));
        self.lease.check_newest()
    }

    /// Returns the complete content of the layer for its commit, and uploads what is missing in the bucket.
    pub fn content(&mut self) -> Result<LayerContent> {
        self.lease.check()?;
        let dir = &self.dir.clone();
        let Some((file, _)) = index(dir)? else {
            return Err(Error::damaged("it has no index").about(dir.path().display()));
        };
        let text = read(&file, 0, dir)?;
        let files = self.send(dir, &named(&text, true)?)?;
        let part = Part {
            from: 0,
            text,
            files,
        };
        let name = lease::content_name(self.lease.number());
        let (content, object) = LayerContent::new(&part, &name)?;
        if let Some(bytes) = object
            && !self.lease.prefix().create_own(&name, &bytes)?
        {
            // An earlier commit that was refused has left the object, and the layer has changed since.
            self.lease.prefix().put(&name, &bytes)?;
        }
        self.lease.check_newest()?;
        Ok(content)
    }

    /// Fails if another host has taken the layer.
    pub fn check_newest(&self) -> Result<()> {
        self.lease.check_newest()
    }

    /// Records that the layer is committed.
    pub fn committed(&mut self) {
        self.lease.leave();
    }

    /// Discards everything that was uploaded.
    pub fn discard(&mut self) -> Result<()> {
        let prefix = self.lease.prefix().clone();
        self.lease.end(LeaseState::Discarded)?;
        // The layer is discarded already: objects that cannot be removed now are not read.
        if let Ok(left) = LayerState::read_state(&prefix) {
            for name in left.names() {
                let _ = prefix.remove(name);
            }
        }
        Ok(())
    }

    /// Uploads the files that the bucket lacks, and returns the sums of all files in the layer.
    fn send(&mut self, dir: &Dir, named: &BTreeSet<String>) -> Result<Vec<FileSum>> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        for name in named {
            if self.files.contains_key(name) {
                continue;
            }
            let file = match dir.metadata_here(name) {
                // It has been replaced in the meantime: a later line says so.
                Err(e) if e.kind == ErrorKind::NotFound => continue,
                meta => meta.and_then(|_| dir.read(name))?,
            };
            let size = file.metadata().map_err(|e| about(e, dir))?.len();
            if size > SMALL {
                let mut hasher = Digest::default();
                let prefix = self.lease.prefix();
                prefix.put_file(name, &file, size, |bytes| hasher.add(bytes))?;
                self.know(name, size, hasher.done());
                continue;
            }
            bytes += size;
            batch.push((name.clone(), file, size));
            if bytes >= BATCH {
                self.send_small(dir, std::mem::take(&mut batch))?;
                bytes = 0;
            }
        }
        self.send_small(dir, batch)?;
        let files = named.iter().filter_map(|name| self.files.get(name));
        Ok(files.cloned().collect())
    }

    fn send_small(&mut self, dir: &Dir, batch: Vec<(String, File, u64)>) -> Result<()> {
        let mut objects = Vec::with_capacity(batch.len());
        for (name, file, size) in batch {
            let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
            file.read_exact_at(&mut bytes, 0)
                .map_err(|e| about(e, dir))?;
            objects.push((name, bytes));
        }
        self.lease.prefix().put_all(&objects)?;
        for (name, bytes) in objects {
            self.know(&name, bytes.len() as u64, digest(&bytes));
        }
        Ok(())
    }

    fn know(&mut self, name: &str, size: u64, sum: String) {
        let file = name.to_owned();
        let known = FileSum { file, size, sum };
        self.files.insert(name.to_owned(), known);
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let is_lost = self.lease.check().is_err();
        // Not recorded for layers that were committed or discarded.
        if is_lost || !self.lease.is_held() {
            return;
        }
        if self.lease.end(LeaseState::Free).is_ok() {
            let own = OwnLease {
                lease: self.lease.number(),
                files: std::mem::take(&mut self.files).into_values().collect(),
            };
            // The record only saves requests.
            let _ = own.write(&self.dir);
        }
    }
}

/// The form of the record of the last lease of a copy.
const OWN: Form = Form {
    name: "npyfs mine",
    version: 1,
};

/// The last lease of a copy, and the files of the layer in the bucket since then.
#[derive(Serialize, Deserialize)]
pub(super) struct OwnLease {
    pub lease: u64,
    pub files: Vec<FileSum>,
}

impl OwnLease {
    fn write(&self, dir: &Dir) -> Result<()> {
        replace(dir, MINE, OWN.print(self)?.as_bytes())
    }

    /// Takes the record from the copy in a directory. It can be taken once.
    pub(super) fn take(dir: &Dir) -> Option<Self> {
        let bytes = local(dir, MINE).ok()??;
        dir.remove(MINE).ok()?;
        OWN.parse(&String::from_utf8_lossy(&bytes)).ok()
    }
}

fn about(error: std::io::Error, dir: &Dir) -> Error {
    Error::from(error).about(dir.path().display())
}

/// Opens the index of a layer, and returns its inode; `None` if it does not exist.
fn index(dir: &Dir) -> Result<Option<(File, u64)>> {
    let file = match dir.read(INDEX) {
        Err(e) if e.kind == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let inode = file.metadata().map_err(|e| about(e, dir))?.ino();
    Ok(Some((file, inode)))
}

/// Reads the complete lines of an index from an offset on.
fn read(file: &File, from: u64, dir: &Dir) -> Result<String> {
    let len = file.metadata().map_err(|e| about(e, dir))?.len();
    let mut bytes = vec![0; usize::try_from(len.saturating_sub(from)).unwrap_or(0)];
    file.read_exact_at(&mut bytes, from)
        .map_err(|e| about(e, dir))?;
    let end = bytes
        .iter()
        .rposition(|&b| b == b'\n')
        .map_or(0, |at| at + 1);
    bytes.truncate(end);
    String::from_utf8(bytes)
        .map_err(|_| Error::damaged("its index is no text").about(dir.path().display()))
}

/// Returns the names of the files that lines of an index refer to; with `is_all`, only those of the resulting objects.
fn named(text: &str, is_all: bool) -> Result<BTreeSet<String>> {
    crate::checkout::records::index::files_named(text, is_all)
}
