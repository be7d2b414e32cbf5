//! The staging area of a repository, as the commands use it.

use std::collections::{BTreeMap, HashMap};

use super::records::{RecordChange, difference};
use super::schema::{ColumnCompression, NewColumn, NewSamples, dtype_named};
use super::{Stage, StageState};
use crate::formats::hangar::key::shown;
use crate::store::staging::{
    ColumnError, ColumnRequest, Expected, SamplesKind, StagedKind, Staging,
};
use crate::tree::name::visible;
use npyfs_base::error::Result;
use npyfs_base::printable;

/// The number of changed samples of a column.
#[derive(Default)]
struct Count {
    added: u64,
    modified: u64,
    deleted: u64,
}

impl Staging for Stage {
    fn status(&self) -> Result<String> {
        let state = self.state()?;
        let holder = self.holder()?;
        let mut columns: BTreeMap<Vec<u8>, Count> = BTreeMap::new();
        difference(&state.base, &state.staged, |key, change| {
            let Some((_, column, below)) = parts(key) else {
                return;
            };
            let count = columns.entry(visible(column, "")).or_default();
            // The record of the column itself is no sample.
            match change {
                _ if below.is_none() => {}
                RecordChange::Added(_) => count.added += 1,
                RecordChange::Changed(_) => count.modified += 1,
                RecordChange::Removed(_) => count.deleted += 1,
            }
        });
        let head = state.head.as_deref().unwrap_or("no commit yet");
        let branch = printable::line(&state.branch);
        let mut out = format!("branch {branch}, {head}\n");
        if let Some(holder) = holder {
            out += &format!("{}\n", printable::line(&holder));
        }
        if !state.is_changed() {
            out += "nothing is staged\n";
        }
        for (column, count) in columns {
            let Count {
                added,
                modified,
                deleted,
            } = count;
            let column = printable::name(&column);
            out += &format!("{column}: {added} added, {modified} modified, {deleted} deleted\n");
        }
        Ok(out)
    }

    fn each(&self, see: &mut dyn FnMut(StagedKind, &[u8])) -> Result<()> {
        let state = self.state()?;
        let names = StagedNames::new(self, &state);
        difference(&state.base, &state.staged, |key, change| {
            let kind = match change {
                RecordChange::Added(_) => StagedKind::Added,
                RecordChange::Changed(_) => StagedKind::Modified,
                RecordChange::Removed(_) => StagedKind::Deleted,
            };
            see(kind, &names.of(key));
        });
        Ok(())
    }

    fn commit(&self, message: &str, expected: &Expected) -> Result<String> {
        Self::commit(self, message, expected)
    }

    fn reset(&self) -> Result<String> {
        let removed = Self::reset(self)?;
        let (records, samples, files) = (removed.records, removed.samples, removed.files);
        Ok(format!(
            "{records} records set back, {samples} samples and {files} data files removed\n"
        ))
    }

    fn create_column(&self, new: &ColumnRequest) -> std::result::Result<(), ColumnError> {
        let column = NewColumn {
            nested: new.nested,
            samples: samples(new)?,
        };
        Ok(self.stage_column(&new.name, &column)?)
    }
}

/// Returns the samples of a new column.
fn samples(new: &ColumnRequest) -> std::result::Result<NewSamples, ColumnError> {
    let usage = |why: String| ColumnError::Usage(why);
    let (dtype, shape) = match (new.kind, &new.dtype, &new.shape) {
        (SamplesKind::Text, ..) => return Ok(NewSamples::Text),
        (SamplesKind::Bytes, ..) => return Ok(NewSamples::Bytes),
        (SamplesKind::Arrays, Some(dtype), Some(shape)) => (dtype, shape),
        (SamplesKind::Arrays, ..) => {
            return Err(usage("a column of arrays needs a dtype and a shape".into()));
        }
    };
    let no_dtype = || usage(format!("{dtype}: no dtype that Hangar takes"));
    let compression = new.compression.as_deref().map(ColumnCompression::parse);
    Ok(NewSamples::Arrays {
        dtype: dtype_named(dtype).ok_or_else(no_dtype)?,
        shape: shape.clone(),
        fixed: !new.variable,
        backend: new.backend.clone(),
        compression: compression.transpose().map_err(|e| usage(e.message))?,
    })
}

/// The kind, column and key of a record; the record of the column itself has no key.
type Parts<'a> = (u8, &'a [u8], Option<&'a [u8]>);

/// Splits the key of a record.
fn parts(key: &[u8]) -> Option<Parts<'_>> {
    let [kind @ (b'f' | b'n' | b's'), b':', rest @ ..] = key else {
        return None;
    };
    let at = rest.iter().position(|&b| b == b':')?;
    let below = (*kind != b's').then_some(&rest[at + 1..]);
    Some((*kind, &rest[..at], below))
}

/// The names below `stage/` as a mount shows them.
struct StagedNames {
    suffixes: HashMap<Vec<u8>, &'static str>,
}

impl StagedNames {
    /// Collects the suffixes of the columns.
    fn new(stage: &Stage, state: &StageState) -> Self {
        let mut suffixes = HashMap::new();
        for (key, digest) in state.base.iter().chain(state.staged.iter()) {
            if let Some((b's', column, _)) = parts(key)
                && let Ok(digest) = std::str::from_utf8(digest)
                && let Ok(schema) = stage.repository.schema(digest)
            {
                suffixes.insert(column.to_vec(), schema.suffix());
            }
        }
        Self { suffixes }
    }

    /// Returns the name of a record.
    fn of(&self, key: &[u8]) -> Vec<u8> {
        let Some((kind, column, below)) = parts(key) else {
            return visible(key, "");
        };
        let suffix = self.suffixes.get(column).copied().unwrap_or_default();
        let mut name = visible(column, "");
        name.push(b'/');
        let Some(below) = below else {
            return name;
        };
        let nested = (kind == b'n').then(|| below.iter().position(|&b| b == b':'));
        match nested.flatten() {
            Some(at) => {
                name.extend(shown(&below[..at], ""));
                name.push(b'/');
                name.extend(shown(&below[at + 1..], suffix));
            }
            None => name.extend(shown(below, suffix)),
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_named_as_in_a_mount() {
        let names = StagedNames {
            suffixes: HashMap::from([(b"a".to_vec(), ".npy"), (b"t".to_vec(), ".txt")]),
        };
        for (key, name) in [
            ("f:a:#5", "a/5.npy"),
            ("f:a:5", "a/%35.npy"),
            ("n:t:#1:de", "t/1/de.txt"),
            ("s:a:f", "a/"),
        ] {
            assert_eq!(names.of(key.as_bytes()), name.as_bytes());
        }
    }
}
