//! What files are to be after what programs did: names, contents, and what a crash may leave.

use std::collections::BTreeMap;

use ndarray::ArrayD;
use ndarray_npy::ReadNpyExt;

use crate::{NAMES, is_stored};

/// Whether bytes are all of a `.npy` file.
pub fn is_whole(bytes: &[u8]) -> bool {
    ArrayD::<f64>::read_npy(bytes).is_ok()
}

/// A file that somebody writes, or a scratch file.
#[derive(Clone, Debug, Default)]
pub struct File {
    pub name: Option<usize>,
    pub bytes: Vec<u8>,
    pub changed: bool,
    pub writers: u32,
}

/// What becomes of a file that is to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Done,
    /// It is empty: the next process that opens it writes it.
    Begun,
    Refused,
}

/// What is to be seen.
#[derive(Default)]
pub struct Model {
    pub files: Vec<File>,
    /// Which file has a name.
    pub open: BTreeMap<usize, usize>,
    pub stored: BTreeMap<usize, Vec<u8>>,
    /// What may be there after a crash.
    pub allowed: BTreeMap<usize, Vec<Option<Vec<u8>>>>,
}

impl Model {
    pub fn shown(&self, name: usize) -> Option<&Vec<u8>> {
        let open = self.open.get(&name).map(|file| &self.files[*file].bytes);
        open.or_else(|| self.stored.get(&name))
    }

    pub fn store(&mut self, name: usize, bytes: Option<Vec<u8>>) {
        self.allowed.entry(name).or_default().push(bytes.clone());
        match bytes {
            Some(bytes) => self.stored.insert(name, bytes),
            None => self.stored.remove(&name),
        };
    }

    /// All that is stored is durable.
    pub fn confirm(&mut self) {
        for name in (0..NAMES.len()).filter(|name| is_stored(*name)) {
            let now = self.stored.get(&name).cloned();
            self.allowed.insert(name, vec![now]);
        }
    }

    pub fn open(&mut self, name: usize, truncate: bool) -> usize {
        let file = match self.open.get(&name) {
            Some(file) => *file,
            None => {
                let there = self.stored.get(&name);
                self.files.push(File {
                    name: Some(name),
                    changed: there.is_none(),
                    bytes: there.cloned().unwrap_or_default(),
                    writers: 0,
                });
                self.open.insert(name, self.files.len() - 1);
                self.files.len() - 1
            }
        };
        let open = &mut self.files[file];
        open.writers += 1;
        if truncate {
            open.bytes.clear();
            open.changed = true;
        }
        file
    }

    /// Stores a file that has a name of objects, if it is whole.
    pub fn commit(&mut self, file: usize) -> State {
        let File {
            name,
            ref bytes,
            changed,
            ..
        } = self.files[file];
        match name.filter(|name| is_stored(*name)) {
            Some(_) if changed && bytes.is_empty() => State::Begun,
            Some(_) if changed && !is_whole(bytes) => State::Refused,
            Some(name) if changed => {
                let bytes = bytes.clone();
                self.store(name, Some(bytes));
                self.files[file].changed = false;
                State::Done
            }
            _ => State::Done,
        }
    }

    /// A descriptor is closed; `false` if that is refused.
    pub fn flush(&mut self, file: usize) -> bool {
        let state = self.commit(file);
        let File { name, writers, .. } = self.files[file];
        let emptied =
            state == State::Begun && name.is_some_and(|name| self.stored.contains_key(&name));
        // A writer that is not the last may leave the rest to the others.
        writers > 1 || !(state == State::Refused || emptied)
    }

    pub fn release(&mut self, file: usize) {
        self.files[file].writers -= 1;
        if self.files[file].writers > 0 {
            return;
        }
        let state = self.commit(file);
        if let Some(name) = self.files[file].name.filter(|name| is_stored(*name)) {
            // A new file may be empty until somebody writes it.
            if state != State::Begun || self.stored.contains_key(&name) {
                self.open.remove(&name);
            }
        }
    }

    /// Answers whether that is done.
    pub fn rename(&mut self, from: usize, to: usize) -> bool {
        let moved = self.open.get(&from).copied();
        if let Some(file) = moved
            && is_stored(to)
        {
            let File {
                ref bytes, writers, ..
            } = self.files[file];
            // A process that writes it may begin with an empty one.
            if !is_whole(bytes) && (writers == 0 || !bytes.is_empty()) {
                return false;
            }
        }
        if let Some(old) = self.open.remove(&to) {
            self.files[old].name = None;
        }
        match moved {
            Some(file) => {
                self.open.remove(&from);
                self.open.insert(to, file);
                self.files[file].name = Some(to);
                self.files[file].changed = true;
                self.commit(file);
                if is_stored(to) && self.files[file].writers == 0 {
                    self.open.remove(&to);
                }
            }
            None => {
                let bytes = self.stored[&from].clone();
                self.store(to, Some(bytes));
            }
        }
        if self.stored.contains_key(&from) {
            self.store(from, None);
        }
        true
    }
}
