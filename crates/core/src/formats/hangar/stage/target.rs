//! A Hangar repository as the target of a writable mount: `stage/<column>/<sample>` and its subsamples.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value as Json, json};

use super::checkout::Checkout;
use super::sample::NewSample;
use super::tree::{Root, STAGE};
use super::{RecordPlace, at, check_name, check_shown, stored_names};
use crate::formats::hangar::column::Layout;
use crate::store::part::{Part, PartPlace};
use crate::store::target::{DirectoryOutcome, PathNames, Role, StoreOutcome, Target};
use crate::tree::Directory;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::content::scratch::Scratch;
use npyfs_io::storage::Disk;

/// The suffixes of samples.
const SUFFIXES: [&str; 3] = [".npy", ".txt", ".bin"];

/// The target of a writable mount of a repository.
pub struct StageTarget {
    checkout: Arc<Checkout>,
    root: Arc<dyn Directory>,
}

fn refused(errno: i32, why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Os(errno), why)
}

fn read_only() -> Error {
    refused(
        libc::EROFS,
        "of a Hangar repository only samples in columns of stage/ can be changed",
    )
}

/// Returns the place that an object's key names.
fn of_object(object: &str) -> Result<RecordPlace> {
    let names: Vec<Vec<u8>> = object.split('/').map(|n| n.as_bytes().to_vec()).collect();
    match names.split_first() {
        Some((first, rest)) if first == STAGE => at(rest),
        _ => Err(read_only()),
    }
}

impl StageTarget {
    /// Makes the target of a checkout of the repository that `base` shows.
    pub fn new(checkout: Arc<Checkout>, base: Arc<dyn Directory>) -> Self {
        let root = Arc::new(Root::new(checkout.clone(), base));
        Self { checkout, root }
    }

    fn inside<'a>(&self, path: &'a PathNames) -> Result<&'a [Vec<u8>]> {
        match path.split_first() {
            Some((first, rest)) if first == STAGE => Ok(rest),
            _ => Err(read_only()),
        }
    }
}

impl Target for StageTarget {
    fn root(&self) -> Arc<dyn Directory> {
        self.root.clone()
    }

    fn is_writable(&self, path: &PathNames) -> bool {
        path.first().is_none_or(|first| first == STAGE)
    }

    fn role(&self, path: &PathNames) -> Result<Role> {
        let names = self.inside(path)?;
        let Some((last, above)) = names.split_last() else {
            return Err(read_only());
        };
        let found = SUFFIXES
            .into_iter()
            .find_map(|suffix| Some((last.strip_suffix(suffix.as_bytes())?, suffix)));
        let Some((stem, suffix)) = found else {
            return Ok(Role::Scratch);
        };
        if above.is_empty() {
            return Err(refused(
                libc::EINVAL,
                "a sample stands in a column: make a directory for it",
            ));
        }
        let names = [above, &[stem.to_vec()]].concat();
        check_shown(&names, suffix)?;
        let place = at(&names)?;
        if let Some(schema) = self.checkout.schema(&place.column)? {
            if suffix != schema.schema.suffix() {
                return Err(refused(
                    libc::EINVAL,
                    format!("samples of this column end in {}", schema.schema.suffix()),
                ));
            }
            if (schema.layout == Layout::Nested) != place.nested {
                return Err(refused(
                    libc::EINVAL,
                    match place.nested {
                        true => "the column has no subsamples",
                        false => "the samples of this column have subsamples",
                    },
                ));
            }
        }
        let path = [&[STAGE.to_vec()], &names[..]].concat();
        let object = String::from_utf8(path.join(&b'/'));
        Ok(Role::Stored(PartPlace {
            object: object.map_err(|_| refused(libc::EILSEQ, "a name that is not UTF-8"))?,
            member: String::new(),
            suffix,
        }))
    }

    fn scratch(&self) -> Scratch {
        Scratch::new(self.checkout.dir(), Arc::new(Disk))
    }

    fn disk(&self) -> &Path {
        self.checkout.dir().path()
    }

    fn store(&self, object: &str, parts: &[Part], time: SystemTime) -> Result<StoreOutcome> {
        let at = of_object(object)?;
        let [part] = parts else {
            return Err(refused(libc::EINVAL, "a sample is one file"));
        };
        let sample = NewSample::read(part.place.suffix, &*part.content)?;
        let checkout = &self.checkout;
        checkout.put(&at.column, &at.key, at.nested, sample, time)?;
        Ok(StoreOutcome::Stored)
    }

    fn replace(
        &self,
        object: &str,
        parts: &[Part],
        time: SystemTime,
        gone: &[String],
    ) -> Result<StoreOutcome> {
        let stored = self.store(object, parts, time)?;
        gone.iter().try_for_each(|gone| self.remove(gone))?;
        self.sync()?;
        Ok(stored)
    }

    fn stores_quickly(&self) -> bool {
        true
    }

    fn remove(&self, object: &str) -> Result<()> {
        let at = of_object(object)?;
        self.checkout.remove(&at.column, &at.key)
    }

    fn rename(&self, from: &str, to: &str) -> Result<bool> {
        let (from, to) = (of_object(from)?, of_object(to)?);
        let Some(entry) = self.checkout.find(&from.column, &from.key)? else {
            return Err(Error::new(ErrorKind::NotFound, "no such sample"));
        };
        let Some(sample) = entry.sample.reusable() else {
            return Ok(false);
        };
        let checkout = &self.checkout;
        checkout.put(&to.column, &to.key, to.nested, sample, entry.time)?;
        if (&from.column, &from.key) != (&to.column, &to.key) {
            checkout.remove(&from.column, &from.key)?;
        }
        Ok(true)
    }

    fn set_time(&self, object: &str, time: SystemTime) -> Result<bool> {
        let at = of_object(object)?;
        self.checkout.set_time(&at.column, &at.key, time);
        Ok(true)
    }

    fn make_directory(&self, path: &PathNames, _time: SystemTime) -> Result<DirectoryOutcome> {
        let names = self.inside(path)?;
        check_shown(names, "")?;
        let (column, keys) = stored_names(names);
        check_name(&column, "column")?;
        match &keys[..] {
            [] => Ok(DirectoryOutcome::Scratch),
            [sample] => {
                check_name(sample, "key")?;
                let schema = self.checkout.schema(&column)?;
                match schema.is_none_or(|schema| schema.layout == Layout::Nested) {
                    true => Ok(DirectoryOutcome::Scratch),
                    false => Err(refused(libc::EINVAL, "the column has no subsamples")),
                }
            }
            _ => Err(refused(libc::EINVAL, "subsamples have none of their own")),
        }
    }

    fn remove_directory(&self, path: &PathNames) -> Result<()> {
        let names = self.inside(path)?;
        let (column, keys) = stored_names(names);
        match &keys[..] {
            [] if names.is_empty() => Err(read_only()),
            [] => self.checkout.remove_column(&column),
            [sample] => {
                self.checkout.forget_group(&column, sample);
                Ok(())
            }
            _ => Err(read_only()),
        }
    }

    fn sync(&self) -> Result<()> {
        let journal = &self.checkout.repository().context.journal;
        let synced = self.checkout.sync();
        synced.inspect_err(|e| journal.add(&format!("what was written is not staged: {e}")))
    }

    fn status(&self) -> Json {
        let (columns, rows, held) = self.checkout.waiting();
        json!({
            "name": self.checkout.name,
            "dir": self.checkout.dir().path().to_string_lossy(),
            "columns_not_staged": columns,
            "samples_not_staged": rows,
            "bytes_held": held,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_name_samples_and_subsamples() {
        let found = of_object("stage/a%2Enpy/5").unwrap();
        assert_eq!(
            (&found.column[..], &found.key[..]),
            (&b"a.npy"[..], &b"#5"[..])
        );
        let found = of_object("stage/c/%35/sub").unwrap();
        assert_eq!((&found.key[..], found.nested), (&b"5:sub"[..], true));
        for wrong in [
            "stage/a",
            "branches/a/b",
            "stage/a/b/c/d",
            "stage/a/b c",
            "stage/a/b:c",
        ] {
            assert!(of_object(wrong).is_err(), "{wrong}");
        }
    }
}
