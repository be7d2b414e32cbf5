//! The upload of a layer that is written here: finished files first, then the lines of the index that name them.
//!
//! What was uploaded exists once the part with its lines is there, and no other host has the layer.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use serde::{Deserialize, Serialize};

use super::lease::{Lease, LeaseState};
use super::part::{FileSum, LayerContent, Part};
use super::{INDEX, MINE, local, replace, state};
use crate::checkout::against::{Digest, digest};
use crate::error::{Error, ErrorKind, Result};
use crate::io::dir::Dir;

/// Bytes of files that are sent at a time.
const BATCH: u64 = 64 << 20;

/// A file of at most so many bytes is sent together with others.
const SMALL: u64 = 16 << 20;

/// The upload of one layer.
pub struct Upload {
    dir: Dir,
    lease: Lease,
    /// Files that the bucket has.
    files: BTreeMap<String, FileSum>,
    /// Bytes of the index that the bucket has, and the inode of the file that they are of; `None`: none under this lease.
    sent: Option<(u64, u64)>,
    /// Parts under this lease.
    parts: u64,
}

impl Upload {
    /// Begins with what is there.
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

    /// Returns the lowest number that files have from now on: none that was written under another lease has it.
    pub fn first_file(&self) -> u64 {
        const EACH: u64 = 10_000_000_000;
        self.lease.number().saturating_mul(EACH).saturating_add(1)
    }

    /// Uploads what the layer has, and returns once it exists in the bucket.
    ///
    /// # Errors
    ///
    /// The bucket does not answer: what is missing goes with the next upload. ESTALE if another host has the layer by now.
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
        // Nobody else writes parts under this lease: one that is there is of an earlier try whose answer was lost, and this one
        // replaces its lines. No number is left out, as the parts behind it would not be found.
        let mut is_made = false;
        while !is_made {
            let name = state::part(self.lease.number(), self.parts + 1);
            is_made = self.lease.prefix().create_own(&name, &bytes)?;
            self.parts += 1;
        }
        self.sent = Some((lines, inode));
        self.lease.check_newest()
    }

    /// Returns all that the layer is, for the commit that it becomes; what is missing in the bucket is uploaded.
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
        let name = state::content(self.lease.number());
        let (content, object) = LayerContent::of(&part, &name)?;
        if let Some(bytes) = object
            && !self.lease.prefix().create_own(&name, &bytes)?
        {
            // A commit that was refused has left it, and the layer was written since.
            self.lease.prefix().put(&name, &bytes)?;
        }
        self.lease.check_newest()?;
        Ok(content)
    }

    /// Says that the layer is part of the store.
    pub fn committed(&mut self) {
        self.lease.leave();
    }

    /// Forgets all that was uploaded.
    pub fn discard(&mut self) -> Result<()> {
        let prefix = self.lease.prefix().clone();
        self.lease.end(LeaseState::Discarded)?;
        // It is forgotten already: what cannot be removed now, nobody reads.
        if let Ok(left) = state::LayerState::look(&prefix) {
            for name in left.names() {
                let _ = prefix.remove(name);
            }
        }
        Ok(())
    }

    /// Uploads those of the files that the bucket lacks, and returns the sums of all that are in the layer.
    fn send(&mut self, dir: &Dir, named: &BTreeSet<String>) -> Result<Vec<FileSum>> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        for name in named {
            if self.files.contains_key(name) {
                continue;
            }
            let file = match dir.look(name) {
                // It was replaced meanwhile: a later line says so.
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
        // It is said of no layer that was committed or discarded.
        if is_lost || !self.lease.is_held() {
            return;
        }
        if self.lease.end(LeaseState::Free).is_ok() {
            let own = OwnLease {
                lease: self.lease.number(),
                files: std::mem::take(&mut self.files).into_values().collect(),
            };
            // It saves looking, and nothing else.
            let _ = own.write(&self.dir);
        }
    }
}

/// The last lease of a copy, and the files that the bucket has of the layer since.
#[derive(Serialize, Deserialize)]
pub(super) struct OwnLease {
    pub lease: u64,
    pub files: Vec<FileSum>,
}

impl OwnLease {
    fn write(&self, dir: &Dir) -> Result<()> {
        let text = serde_json::to_vec(self).map_err(|e| Error::damaged(e.to_string()))?;
        replace(dir, MINE, &text)
    }

    /// Takes what the copy in a directory says; what is there is good for one time.
    pub(super) fn take(dir: &Dir) -> Option<Self> {
        let own = serde_json::from_slice(&local(dir, MINE).ok()??).ok();
        dir.remove(MINE).ok()?;
        own
    }
}

fn about(error: std::io::Error, dir: &Dir) -> Error {
    Error::from(error).about(dir.path().display())
}

/// Opens the index of a layer, and returns its inode; `None` if there is none.
fn index(dir: &Dir) -> Result<Option<(File, u64)>> {
    let file = match dir.read(INDEX) {
        Err(e) if e.kind == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let inode = file.metadata().map_err(|e| about(e, dir))?.ino();
    Ok(Some((file, inode)))
}

/// Reads the whole lines of an index from an offset on.
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

/// Returns the names of the files that lines of an index name: those of the objects that they leave, if they are all.
fn named(text: &str, is_all: bool) -> Result<BTreeSet<String>> {
    crate::checkout::index::files_named(text, is_all)
}
