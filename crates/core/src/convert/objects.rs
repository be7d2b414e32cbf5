//! Objects to be added to the new store, and the outcome for each.

use std::sync::Arc;

use super::comparison::FileFace;
use super::walk::{Walk, own_name, split};
use super::watched::Watched;
use crate::store::encode::ObjectKey;
use crate::store::part::{Part, PartPlace};
use crate::tree::{Directory, Node, VirtualFile, name};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_hdf5::Attribute;
use npyfs_io::content::Content;

impl Walk<'_> {
    /// Adds a directory that is one object in the new store, with a file that may be another form of it.
    pub(super) fn composite(
        &mut self,
        key: &ObjectKey,
        whole: Option<&Arc<dyn VirtualFile>>,
        dir: &Arc<dyn Directory>,
        full: &str,
    ) -> Result<()> {
        let (mut parts, mut all) = (Vec::new(), Vec::new());
        let mut gathered = match whole {
            Some(file) => self.member(key, "", file, &mut parts, &mut all),
            None => Ok(()),
        };
        if gathered.is_ok() {
            gathered = self.members(key, "", dir, &mut parts, &mut all);
        }
        match gathered {
            Ok(()) => {}
            Err(e) => return self.unreadable(full, e),
        }
        self.put(key, &parts, &all, full)
    }

    fn member(
        &mut self,
        key: &ObjectKey,
        member: &str,
        file: &Arc<dyn VirtualFile>,
        parts: &mut Vec<Part>,
        all: &mut Vec<Arc<Watched>>,
    ) -> Result<()> {
        let about = |e: Error| e.about(member);
        let content = file.open().map_err(about)?;
        let watched = Watched::new(content, &self.conversion.listener);
        self.keep_seen(file);
        parts.push(part(key, member, ".npy", watched.clone()));
        all.push(watched);
        Ok(())
    }

    /// Collects the files of an object below a directory.
    fn members(
        &mut self,
        key: &ObjectKey,
        above: &str,
        dir: &Arc<dyn Directory>,
        parts: &mut Vec<Part>,
        all: &mut Vec<Arc<Watched>>,
    ) -> Result<()> {
        let listing = dir.list()?;
        let format = self.conversion.formats_of(&**dir)?;
        self.seen.directories.push(dir.clone());
        if let Some((name, why)) = listing.left_out.first() {
            let why = format!("{}: {why}", String::from_utf8_lossy(name));
            return Err(Error::damaged(why));
        }
        for (shown, node) in listing.iter() {
            if format.source().repeats(&**dir, &shown, false)? {
                continue;
            }
            let of = |stem: &[u8]| {
                let own = own_name(stem, self.conversion.sep);
                let own = String::from_utf8_lossy(&own).into_owned();
                let escaped = name::visible(own.as_bytes(), "");
                format!("{above}{}", String::from_utf8_lossy(&escaped))
            };
            match &*node {
                Node::Directory(dir) => {
                    let below = format!("{}/", of(&shown));
                    self.members(key, &below, dir, parts, all)?;
                }
                Node::File(file) => match split(&shown) {
                    Some((stem, ".npy")) => {
                        self.conversion.listener.found(file.size()?);
                        self.member(key, &of(stem), file, parts, all)?;
                    }
                    _ => {
                        let shown = String::from_utf8_lossy(&shown);
                        return Err(Error::damaged(format!("{shown}: no array")));
                    }
                },
                Node::Symlink(_) => {
                    let shown = String::from_utf8_lossy(&shown);
                    return Err(Error::damaged(format!("{shown}: a link")));
                }
            }
        }
        Ok(())
    }

    /// Adds an object to the new store.
    pub(super) fn put(
        &mut self,
        key: &ObjectKey,
        parts: &[Part],
        watched: &[Arc<Watched>],
        full: &str,
    ) -> Result<()> {
        if !self.take(key) {
            self.lost(full, "another object has the same name there");
            return Ok(());
        }
        let faces = parts.iter().map(|part| FileFace::of(key, part));
        let faces: Vec<FileFace> = faces.flatten().collect();
        let put = self.builder.put(key, parts);
        if let Some(e) = watched.iter().find_map(|watched| watched.failure()) {
            return self.unreadable(full, e);
        }
        let bytes = parts.iter().map(|part| part.content.len()).sum::<u64>();
        watched.iter().for_each(|watched| watched.finish());
        if self.outcome(full, put)? {
            self.converted.objects += 1;
            self.converted.bytes = self.converted.bytes.saturating_add(bytes);
            faces
                .into_iter()
                .for_each(|face| self.comparison.add(full, face));
        }
        Ok(())
    }

    /// Returns whether an object was added; records an object that cannot be represented.
    pub(super) fn outcome(&mut self, full: &str, done: Result<()>) -> Result<bool> {
        match done {
            Ok(()) => Ok(true),
            Err(e) if is_about_object(&e) => {
                self.lost(full, &e.message);
                Ok(false)
            }
            Err(e) => Err(e.about(full)),
        }
    }

    /// Records that a directory of the source is one array, whose parts become a group.
    pub(super) fn note_form(&mut self, full: &str, dir: &Arc<dyn Directory>) -> Result<()> {
        if !dir.is_object() {
            return Ok(());
        }
        match dir.info() {
            Ok(info) => {
                if let Some(form) = info["shown_as"].as_str() {
                    self.changed(full, format!("a group of {form}"));
                }
                Ok(())
            }
            Err(e) => self.unreadable(full, e),
        }
    }

    /// Records the attributes of an object, which are not converted.
    pub(super) fn note_attributes(
        &mut self,
        full: &str,
        attributes: impl FnOnce() -> Result<Vec<Attribute>>,
    ) {
        // Invalid attributes do not affect the conversion.
        let found = attributes().unwrap_or_default();
        let is_mark = |name: &[u8]| {
            let mut formats = self.conversion.formats.iter();
            formats.any(|format| format.source().is_mark(name))
        };
        let names: Vec<String> = found
            .iter()
            .filter(|attribute| !is_mark(&attribute.name))
            .map(|attribute| String::from_utf8_lossy(&attribute.name).into_owned())
            .collect();
        if !names.is_empty() {
            self.changed(full, format!("without its attributes {}", names.join(", ")));
        }
    }
}

/// Returns whether a failure means that an object cannot be represented, as opposed to a failure of the disk.
pub(super) fn is_about_object(error: &Error) -> bool {
    matches!(
        error.kind,
        ErrorKind::TooLarge
            | ErrorKind::Os(
                libc::EINVAL
                    | libc::EOPNOTSUPP
                    | libc::EILSEQ
                    | libc::ENAMETOOLONG
                    | libc::EEXIST
                    | libc::EROFS
            )
    )
}

/// Returns a part of the object at `key`.
pub(super) fn part(
    key: &ObjectKey,
    member: &str,
    suffix: &'static str,
    content: Arc<dyn Content>,
) -> Part {
    Part {
        place: PartPlace {
            object: key.path().join("/"),
            member: member.to_owned(),
            suffix,
        },
        content,
        stored: false,
    }
}
