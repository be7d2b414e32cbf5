//! Members of incomplete objects: files as they were written, stored until the last member arrives.
//!
//! Such a file is the scratch file itself, which gets a name. Nothing is copied unless the file system cannot name it.
//! The content begins after the headroom of scratch files. The index names the file, and a change of the object
//! removes it.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use super::{KeptObject, Layer, MEMBER};
use crate::checkout::records::index::KeptMember;
use crate::checkout::records::index::nanoseconds;
use crate::store::object;
use npyfs_base::error::{Error, Result};
use npyfs_io::content::Content;
use npyfs_io::content::scratch::{ROOM, Scratch};
use npyfs_io::dir::Dir;
use npyfs_io::storage::Storage;

/// A member to be stored.
pub struct NewMember {
    /// Its path inside the object, with its suffix.
    pub name: String,
    /// The bytes.
    pub content: Arc<dyn Content>,
    /// The time of its last modification.
    pub time: SystemTime,
    /// The number of its file, if this content is stored already.
    pub kept: Option<u64>,
}

impl Layer {
    /// Returns the incomplete objects.
    pub fn incomplete(&self) -> Vec<KeptObject> {
        self.pending.lock().incomplete().values().cloned().collect()
    }

    /// Opens a stored member, to continue writing it.
    pub fn open_member(&self, member: &KeptMember) -> Result<Scratch> {
        let name = member.file_name();
        Scratch::open(&self.dir, &name, self.storage.clone())
    }

    /// Stores the members of an incomplete object, replacing those stored before; without members the object is
    /// forgotten. Durable when it returns; returns the number of each file. On failure the members stored before
    /// remain.
    pub fn keep(
        &self,
        object: &str,
        members: &[NewMember],
        (missing, why): (&[String], Option<&str>),
    ) -> Result<Vec<u64>> {
        let _one = self.syncing.lock();
        // A line about the object that waits comes before this one.
        self.sync_waiting()?;
        let mut new: Vec<(u64, File)> = Vec::new();
        let kept = self.name_members(members, &mut new).and_then(|kept| {
            let line = KeptObject {
                object: object.to_owned(),
                members: kept,
                missing: missing.to_vec(),
                why: why.map(str::to_owned),
            };
            let files = line.members.iter().map(|member| member.file).collect();
            Ok((self.pending.lock().keep(line)?, files))
        });
        match kept {
            Ok((old, files)) => {
                self.remove_members(&old);
                Ok(files)
            }
            Err(e) => {
                // A file whose line may or may not be on the disk stays until the index is read again.
                if !self.pending.lock().is_index_lost() {
                    let numbers: Vec<u64> = new.iter().map(|(number, _)| *number).collect();
                    self.remove_members(&numbers);
                }
                Err(e.about(object))
            }
        }
    }

    /// Copies incomplete objects of another layer, durably, under the same numbers of their members.
    pub(in crate::checkout) fn adopt(
        &self,
        from: &Dir,
        objects: &BTreeMap<String, KeptObject>,
    ) -> Result<()> {
        let about = |e: std::io::Error| Error::from(e).about(self.dir.path().display());
        for member in objects.values().flat_map(|object| &object.members) {
            let name = member.file_name();
            let mut old = from.read(&name)?;
            let mut file = self.storage.create(&self.dir, &name).map_err(about)?;
            std::io::copy(&mut old, &mut file).map_err(about)?;
            self.dir.rights().settle(&file).map_err(about)?;
            self.storage.sync(&file).map_err(about)?;
            self.next.fetch_max(member.file + 1, Ordering::Relaxed);
        }
        self.storage.sync_dir(&self.dir).map_err(about)?;
        let mut changes = self.recorded();
        changes.incomplete.clone_from(objects);
        self.replace_all(changes)
    }

    /// Gives each member that has no file a durable one.
    fn name_members(
        &self,
        members: &[NewMember],
        new: &mut Vec<(u64, File)>,
    ) -> Result<Vec<KeptMember>> {
        let mut kept = Vec::with_capacity(members.len());
        for member in members {
            let file = match member.kept {
                Some(file) => file,
                None => {
                    let number = self.next.fetch_add(1, Ordering::Relaxed);
                    let name = super::file_name(number, MEMBER);
                    let file = give_name(&*member.content, (&self.dir, &name), &*self.storage);
                    let undo = |_: &Error| drop(self.storage.remove(&self.dir, &name));
                    let file = file.inspect_err(undo)?;
                    new.push((number, file));
                    number
                }
            };
            kept.push(KeptMember {
                name: member.name.clone(),
                file,
                time: nanoseconds(member.time),
            });
        }
        if !new.is_empty() {
            let about = |e: std::io::Error| Error::from(e).about(self.dir.path().display());
            new.iter()
                .try_for_each(|(_, file)| self.storage.sync(file))
                .and_then(|()| self.storage.sync_dir(&self.dir))
                .map_err(about)?;
        }
        Ok(kept)
    }

    /// Removes files that the index no longer names. Readers that have them open are not affected.
    pub(super) fn remove_members(&self, numbers: &[u64]) {
        for &number in numbers {
            let _ = self
                .storage
                .remove(&self.dir, &super::file_name(number, MEMBER));
        }
    }
}

impl KeptMember {
    /// Returns the name of the member's file in its layer.
    pub fn file_name(&self) -> String {
        super::file_name(self.file, MEMBER)
    }
}

/// Gives a content, or a copy of it, the name `to`.
fn give_name(
    content: &dyn Content,
    (dir, to): (&Dir, &str),
    storage: &dyn Storage,
) -> Result<File> {
    let given = match content.scratch() {
        Some((scratch, 0)) => scratch.hand_over(|file| Ok(storage.link(file, dir, to).is_ok()))?,
        _ => None,
    };
    let file = match given {
        Some(file) => file,
        None => {
            let file = storage.create(dir, to)?;
            object::copy(content, &file, ROOM, storage)?;
            storage.set_len(&file, ROOM.saturating_add(content.len()))?;
            file
        }
    };
    dir.rights().settle(&file)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::store::object::NewFile;
    use npyfs_io::storage::Disk;
    use npyfs_io::storage::faulty::Faulty;
    use std::time::UNIX_EPOCH;

    fn open(dir: &Path, storage: impl Storage + 'static) -> Result<Layer> {
        Layer::open(
            &Dir::own(dir),
            Arc::new(storage),
            npyfs_worker::creator_here(),
        )
    }

    fn member(layer: &Layer, name: &str) -> Result<NewMember> {
        let content = layer.scratch();
        content.write_at(name.as_bytes(), 0)?;
        Ok(NewMember {
            name: name.to_owned(),
            content: Arc::new(content),
            time: UNIX_EPOCH,
            kept: None,
        })
    }

    /// Returns the content of the layer: members by object, and `None` for complete objects.
    fn content(layer: &Layer) -> BTreeMap<String, Option<Vec<String>>> {
        let read = |kept: &KeptMember| {
            let scratch = layer.open_member(kept).unwrap();
            let mut bytes = vec![0; usize::try_from(scratch.len().unwrap()).unwrap()];
            scratch.read_at(&mut bytes, 0).unwrap();
            assert_eq!(bytes, kept.name.as_bytes());
            kept.name.clone()
        };
        let members = |object: KeptObject| {
            let names = object.members.iter().map(read).collect();
            (object.object, Some(names))
        };
        let stored = layer.entries().into_keys().map(|path| (path, None));
        stored
            .chain(layer.incomplete().into_iter().map(members))
            .collect()
    }

    fn files_of_members(dir: &Path) -> usize {
        let names = std::fs::read_dir(dir).unwrap();
        let names = names.map(|entry| entry.unwrap().path());
        names
            .filter(|path| path.extension().is_some_and(|e| e == MEMBER))
            .count()
    }

    type MemberStep = fn(&Layer) -> Result<()>;

    const STEPS: [MemberStep; 5] = [
        |layer| {
            layer
                .keep("a", &[member(layer, "x")?], (&[], None))
                .map(drop)
        },
        |layer| {
            let first = NewMember {
                kept: layer.incomplete().first().map(|a| a.members[0].file),
                ..member(layer, "x")?
            };
            let missing = ["z".to_owned()];
            layer
                .keep("a", &[first, member(layer, "y")?], (&missing, None))
                .map(drop)
        },
        |layer| {
            layer
                .keep("b", &[member(layer, "x")?], (&[], None))
                .map(drop)
        },
        |layer| layer.put("a", &NewFile::default(), UNIX_EPOCH).map(drop),
        |layer| layer.keep("b", &[], (&[], None)).map(drop),
    ];

    /// Every call that changes the disk fails once; the process continues or dies.
    #[test]
    fn whatever_fails_members_are_kept_or_not() {
        let mut after = vec![BTreeMap::new()];
        let dir = tempfile::tempdir().unwrap();
        let faulty = Arc::new(Faulty::new(u64::MAX, 0, false));
        let layer = Layer::open(
            &Dir::own(dir.path()),
            faulty.clone(),
            npyfs_worker::creator_here(),
        )
        .unwrap();
        for step in STEPS {
            step(&layer).unwrap();
            after.push(content(&layer));
        }
        let names = |object: &str, at: usize| after[at].get(object).cloned();
        assert_eq!(names("a", 2), Some(Some(vec!["x".into(), "y".into()])));
        assert_eq!(names("a", 4), Some(None));
        assert_eq!((names("b", 5), files_of_members(dir.path())), (None, 0));
        for (at, dead) in (0..faulty.calls()).flat_map(|at| [(at, false), (at, true)]) {
            let errno = if at % 2 == 0 { libc::ENOSPC } else { libc::EIO };
            let dir = tempfile::tempdir().unwrap();
            let (mut done, mut failed) = (0, false);
            if let Ok(layer) = open(dir.path(), Faulty::new(at, errno, dead)) {
                for step in STEPS {
                    if step(&layer).is_err() {
                        failed = true;
                        break;
                    }
                    done += 1;
                }
                assert_eq!(content(&layer), after[done], "{at} {dead}");
            }
            let layer = open(dir.path(), Disk).unwrap();
            let now = content(&layer);
            let half = dead && failed && now == after[done + 1];
            assert!(now == after[done] || half, "{at} {dead}: {now:?}");
            // There are no unknown files.
            let members = now.values().flatten().map(Vec::len).sum::<usize>();
            assert_eq!(files_of_members(dir.path()), members, "{at} {dead}");
        }
    }
}
