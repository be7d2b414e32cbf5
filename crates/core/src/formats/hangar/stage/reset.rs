//! Reset of the staging area to its branch, as Hangar's `reset_staging_area` does it.
//!
//! Hangar removes the samples first and resets the list last. Here the list comes first, so that a process that dies in
//! between leaves samples without names, and never names without samples. Samples that the commit has are never
//! removed: Hangar's own commit, if interrupted at the wrong moment, leaves them among the new ones.

use std::collections::HashSet;

use super::markers::{self, DataFile};
use super::records::{RecordChange, difference};
use super::{Stage, StageState};
use crate::formats::hangar::record::Record;
use npyfs_base::error::Result;
use npyfs_hdf5::{TableOp, TableTransaction};

/// The longest row of `stage_hash.lmdb`.
const LONGEST: usize = 4096;

/// The counts of what a reset removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// The number of records that were reset.
    pub records: u64,
    /// The number of samples that only the staging area had.
    pub samples: u64,
    /// The number of data files.
    pub files: u64,
}

impl Stage {
    /// Removes all staged changes.
    pub fn reset(&self) -> Result<Removed> {
        let folder = &self.repository.folder.path;
        let mut locked = self.lock()?;
        let state = self.state()?;
        let mut removed = Removed::default();
        let mut back = Vec::new();
        difference(&state.staged, &state.base, |key, change| {
            removed.records += 1;
            back.push(match change {
                RecordChange::Removed(_) => TableOp::delete(key),
                RecordChange::Added(value) | RecordChange::Changed(value) => {
                    TableOp::put(key, value)
                }
            });
        });
        let (forgotten, kept) = self.new_samples(&state)?;
        removed.samples = forgotten.len() as u64;
        let forget = forgotten.into_iter().map(TableOp::delete).collect();
        let steps = vec![
            TableTransaction::new("stage_ref.lmdb", back),
            TableTransaction::new("hash.lmdb", forget),
            TableTransaction::new("stage_hash.lmdb", vec![TableOp::Clear]),
        ];
        self.write(&mut locked, steps)?;
        for file in markers::staged(folder)? {
            if kept.contains(&file) {
                markers::store(folder, self.owner(), std::slice::from_ref(&file))?;
            } else if !file.is_stored(folder) {
                file.remove(folder)?;
                removed.files += 1;
            }
            file.unstage(folder)?;
        }
        Ok(removed)
    }

    /// Returns the keys of `hash.lmdb` that were added since the last commit and are not in it, and the files of the
    /// keys that are in it.
    fn new_samples(&self, state: &StageState) -> Result<(Vec<Vec<u8>>, HashSet<DataFile>)> {
        let mut new = Vec::new();
        self.repository.stage_hashes.rows(b"h:", LONGEST, |rows| {
            new.extend(rows.into_iter().map(|(key, value)| (key.into_vec(), value)));
            Ok(())
        })?;
        let mut forgotten = Vec::new();
        let mut kept = HashSet::new();
        let committed: HashSet<&[u8]> = match new.is_empty() {
            true => HashSet::new(),
            false => state.base.iter().map(|(_, digest)| digest).collect(),
        };
        for (key, value) in new {
            if !committed.contains(&key[2..]) {
                forgotten.push(key);
                continue;
            }
            let record = Record::parse(&String::from_utf8_lossy(&value)).ok();
            if let Some((backend, uid)) =
                record.as_ref().and_then(|r| Some((r.backend(), r.uid()?)))
            {
                kept.insert(DataFile::new(backend, uid));
            }
        }
        Ok((forgotten, kept))
    }
}
