//! The walk through a store: which entries are objects, which entries together are one object, and what becomes of
//! each.
//!
//! An object is added to the new store, or recorded with the reason why it cannot be represented. Text and bytes that
//! are files in one format and arrays in the other are converted on the way.

use std::collections::HashSet;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_128;

use super::{Comparison, Conversion, Converted, FileFace, Remark, Watched};
use crate::store::base::{invalid, unsupported};
use crate::store::encode::{NpyArray, ObjectKey, text};
use crate::store::format::Format;
use crate::store::format::builder::Builder;
use crate::store::part::{Part, PartPlace};
use crate::tree::{Directory, Listing, Node, Symlink, VirtualFile, name};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_hdf5::Attribute;
use npyfs_io::content::{Concat, Content, InMemory, complete_npy_header};

/// Suffixes of files that are an object or a member of one.
const SUFFIXES: [&str; 4] = [".npy", ".npz", ".txt", ".bin"];

/// The deepest nesting of groups.
const DEEPEST: usize = 256;

/// A conversion in progress.
pub(super) struct Walk<'a> {
    pub(super) conversion: &'a Conversion<'a>,
    pub(super) builder: Box<dyn Builder>,
    pub(super) converted: Converted,
    pub(super) comparison: Comparison,
    /// Digests of the paths of added objects.
    taken: HashSet<u128>,
    /// Detects changes of the source.
    pub(super) seen: SourceState,
}

/// Directories and files of the source, for change detection.
#[derive(Default)]
pub(super) struct SourceState {
    directories: Vec<Arc<dyn Directory>>,
    /// One file of each directory.
    files: Vec<Arc<dyn VirtualFile>>,
}

/// A directory of the source.
pub(super) struct Place<'a> {
    dir: &'a Arc<dyn Directory>,
    format: Arc<dyn Format>,
    pub(super) listing: Arc<Listing>,
    /// The names in the new store.
    pub(super) path: &'a [String],
    /// The path in the source; ends in `/` unless it is empty.
    shown: &'a str,
}

impl Place<'_> {
    /// Returns true if an entry shows again what another one holds.
    fn repeats(&self, shown: &[u8], stacked: bool) -> Result<bool> {
        self.format.source().repeats(&**self.dir, shown, stacked)
    }

    /// Returns the directory named like a file without its suffix, which may be the same object.
    fn directory_beside(&self, stem: &[u8]) -> Option<Arc<dyn Directory>> {
        self.listing.find(stem)?.directory()
    }
}

impl SourceState {
    /// Fails if the source has changed.
    pub(super) fn check(&self) -> Result<()> {
        let directories = self.directories.iter().all(|dir| dir.is_current());
        match directories && self.files.iter().all(|file| file.is_current()) {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Stale,
                "it changed while it was converted",
            )),
        }
    }
}

impl<'a> Walk<'a> {
    /// Begins a walk.
    pub(super) fn new(conversion: &'a Conversion<'a>, builder: Box<dyn Builder>) -> Self {
        Self {
            conversion,
            builder,
            converted: Converted::default(),
            comparison: Comparison::default(),
            taken: HashSet::new(),
            seen: SourceState::default(),
        }
    }
}

impl Walk<'_> {
    /// Adds the entries of a directory. `refused` is the reason why none of them can be represented, if so.
    pub(super) fn directory(
        &mut self,
        dir: &Arc<dyn Directory>,
        path: &[String],
        shown: &str,
        refused: Option<&str>,
    ) -> Result<()> {
        let listed = dir.list().and_then(|listing| {
            let format = self.conversion.formats_of(&**dir)?;
            Ok((listing, format))
        });
        let (listing, format) = match listed {
            Ok(found) => found,
            Err(e) => return self.unreadable(shown.trim_end_matches('/'), e),
        };
        if path.len() > DEEPEST {
            self.lost(shown, "too many groups below each other");
            return Ok(());
        }
        self.seen.directories.push(dir.clone());
        for (name, why) in &listing.left_out {
            self.lost(&format!("{shown}{}", String::from_utf8_lossy(name)), why);
        }
        for why in &listing.damage {
            self.lost(shown, why);
        }
        let place = Place {
            dir,
            format,
            listing: listing.clone(),
            path,
            shown,
        };
        self.count(&place)?;
        let passes: &[bool] = match self.conversion.to.objects().has_axes() {
            // Objects along axes come after the axes.
            true => &[true, false],
            false => &[false],
        };
        for axes in passes {
            for (name, node) in listing.iter() {
                let is_repeated = || place.repeats(&name, self.conversion.stacked);
                if self.is_axis(&name) == *axes && !is_repeated()? {
                    self.entry(&place, &name, &node, refused)?;
                }
            }
        }
        Ok(())
    }

    /// Adds the files of a directory to the reported total.
    fn count(&self, place: &Place<'_>) -> Result<()> {
        let mut bytes = 0_u64;
        for (name, node) in place.listing.iter() {
            if let Node::File(file) = &*node
                && !place.repeats(&name, self.conversion.stacked)?
            {
                // An unreadable size is reported when the file is opened.
                bytes = bytes.saturating_add(file.size().unwrap_or(0));
            }
        }
        self.conversion.listener.found(bytes);
        Ok(())
    }

    fn is_axis(&self, shown: &[u8]) -> bool {
        let Some((stem, _)) = split(shown) else {
            return false;
        };
        let own = own_name(stem, self.conversion.sep);
        std::str::from_utf8(&own).is_ok_and(|own| self.conversion.to.objects().is_axis(own))
    }

    pub(super) fn lost(&mut self, object: &str, why: &str) {
        self.conversion.listener.lost(object, why);
        self.converted.without.push(Remark {
            object: object.to_owned(),
            what: why.to_owned(),
        });
    }

    fn changed(&mut self, object: &str, what: impl Into<String>) {
        self.converted.changed.push(Remark {
            object: object.to_owned(),
            what: what.into(),
        });
    }

    /// Records that an object of the source cannot be read; a failure that does not concern the object ends the
    /// conversion.
    pub(super) fn unreadable(&mut self, object: &str, error: Error) -> Result<()> {
        if error.is_passing() || error.kind == ErrorKind::Stale {
            return Err(error.about(object));
        }
        self.lost(object, &error.message);
        Ok(())
    }

    fn entry(
        &mut self,
        place: &Place<'_>,
        shown: &[u8],
        node: &Node,
        refused: Option<&str>,
    ) -> Result<()> {
        let to = self.conversion.to.clone();
        let is_composite = |key: &ObjectKey| to.objects().is_composite(key.name());
        let has_composites = place.format.objects().has_composites();
        let full = format!("{}{}", place.shown, String::from_utf8_lossy(shown));
        let (stem, suffix) = match node {
            Node::Directory(_) => (shown, ""),
            Node::File(_) | Node::Symlink(_) => match split(shown) {
                Some(split) => split,
                None if matches!(node, Node::Symlink(_)) => (shown, ""),
                None => {
                    self.lost(&full, "neither an array nor text");
                    return Ok(());
                }
            },
        };
        let dir_beside = match node {
            Node::File(_) => place.directory_beside(stem),
            _ => None,
        };
        if let Some(why) = refused {
            let Node::Directory(dir) = node else {
                self.lost(&full, why);
                return Ok(());
            };
            return self.directory(dir, place.path, &format!("{full}/"), refused);
        }
        let key = match self.key(place, stem, suffix) {
            Ok(key) => key,
            Err(e) => {
                self.lost(&full, &e.message);
                return Ok(());
            }
        };
        match node {
            Node::File(file)
                if self.conversion.stacked
                    && to.accepts().samples
                    && place.path.is_empty()
                    && suffix == ".npy" =>
            {
                self.rows(place, &key, stem, file, &full)
            }
            Node::Symlink(link) => self.link(&key, link, &full),
            Node::Directory(_)
                if (has_composites || is_composite(&key))
                    && place.listing.find(&[shown, b".npy"].concat()).is_some() =>
            {
                // The array adds it.
                Ok(())
            }
            Node::Directory(dir) if is_composite(&key) => {
                let archive = [shown, b".npz"].concat();
                if place.listing.find(&archive).is_some()
                    && !place.repeats(&archive, self.conversion.stacked)?
                {
                    return Ok(());
                }
                self.composite(&key, None, dir, &full)
            }
            Node::Directory(dir) => self.group(&key, dir, &full),
            Node::File(file) => match dir_beside {
                Some(dir) if to.name() == place.format.name() || !has_composites => {
                    match is_composite(&key) {
                        true => self.composite(&key, Some(file), &dir, &full),
                        false => self.file(&key, suffix, file, &full),
                    }
                }
                Some(dir) => {
                    if let Some(what) = place.format.source().lost_without(&*dir)? {
                        self.changed(&full, what);
                    }
                    self.file(&key, suffix, file, &full)
                }
                None => self.file(&key, suffix, file, &full),
            },
        }
    }

    /// Returns the key of an entry in the new store.
    fn key(&self, place: &Place<'_>, stem: &[u8], suffix: &str) -> Result<ObjectKey> {
        let own = own_name(stem, self.conversion.sep);
        name::check(
            &name::visible(&own, ""),
            suffix,
            name::visible(&own, suffix),
        )
        .map_err(|why| Error::new(ErrorKind::Os(libc::EINVAL), why.to_string()))?;
        let own = String::from_utf8(own);
        let own = own.map_err(|_| {
            let why = "a name that is not UTF-8";
            Error::new(ErrorKind::Os(libc::EINVAL), why)
        })?;
        Ok(ObjectKey::of_names(place.path.to_vec(), own))
    }

    /// Records the object at a path; false if there is one already.
    fn take(&mut self, key: &ObjectKey) -> bool {
        let mut path = Vec::new();
        for name in key.path() {
            path.extend_from_slice(name.as_bytes());
            path.push(0);
        }
        self.taken.insert(xxh3_128(&path))
    }

    fn link(&mut self, key: &ObjectKey, link: &Symlink, full: &str) -> Result<()> {
        let linked = self.builder.link(key, &link.target);
        let target = String::from_utf8_lossy(&link.target);
        self.outcome(
            full,
            linked.map_err(|e| e.about(format!("a link to {target}"))),
        )
        .map(drop)
    }

    fn group(&mut self, key: &ObjectKey, dir: &Arc<dyn Directory>, full: &str) -> Result<()> {
        let below = format!("{full}/");
        if !self.take(key) {
            let why = "another object has the same name there";
            return self.directory(dir, key.path(), &below, Some(why));
        }
        match self.builder.group(key) {
            Ok(()) => {
                self.note_attributes(full, || dir.attributes());
                self.note_form(full, dir)?;
                self.directory(dir, key.path(), &below, None)
            }
            Err(e) if is_about_object(&e) => {
                self.directory(dir, key.path(), &below, Some(&e.message))
            }
            Err(e) => Err(e),
        }
    }

    /// Adds an object that is a single file.
    fn file(
        &mut self,
        key: &ObjectKey,
        suffix: &'static str,
        file: &Arc<dyn VirtualFile>,
        full: &str,
    ) -> Result<()> {
        let to = &self.conversion.to;
        if suffix == ".npz" && !to.objects().is_composite(key.name()) {
            // Its members are shown as a directory, where they can be.
            self.lost(full, "an archive");
            return Ok(());
        }
        let opened = file.open().and_then(|content| {
            let watched = Watched::new(content, &self.conversion.listener);
            let (suffix, content) = converted_file(&**to, suffix, watched.clone())?;
            Ok((suffix, content, watched))
        });
        let (suffix, content, watched) = match opened {
            Ok(opened) => opened,
            Err(e) => return self.unreadable(full, e),
        };
        self.keep_seen(file);
        if to.accepts().samples && key.path().len() == 1 {
            // What stands in no column stands in that of this name.
            let column = vec![self.conversion.column.to_owned()];
            let key = ObjectKey::of_names(column, key.name().to_owned());
            return self.put(&key, &[part(&key, "", suffix, content)], &[watched], full);
        }
        let part = part(key, "", suffix, content.clone());
        self.put(key, &[part], &[watched], full)?;
        self.note_attributes(full, || file.attributes());
        Ok(())
    }

    /// Keeps a file for the detection of changes: one of each directory, and each that is a store itself.
    pub(super) fn keep_seen(&mut self, file: &Arc<dyn VirtualFile>) {
        if self.seen.files.len() < self.seen.directories.len() {
            self.seen.files.push(file.clone());
        }
    }

    /// Adds a directory that is one object in the new store, with a file that may be another form of it.
    fn composite(
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
        let faces = parts.iter().map(|part| FileFace::new(key, part));
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
    fn outcome(&mut self, full: &str, done: Result<()>) -> Result<bool> {
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
    fn note_form(&mut self, full: &str, dir: &Arc<dyn Directory>) -> Result<()> {
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
    fn note_attributes(&mut self, full: &str, attributes: impl FnOnce() -> Result<Vec<Attribute>>) {
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
fn is_about_object(error: &Error) -> bool {
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

/// Returns a file in the form of the new store.
fn converted_file(
    to: &dyn Format,
    suffix: &'static str,
    content: Arc<Watched>,
) -> Result<(&'static str, Arc<dyn Content>)> {
    let accepted = to.accepts();
    if accepted.suffixes.contains(&suffix) {
        if suffix == ".npy" && accepted.text_files && is_single_text(&*content)? {
            return Ok((".txt", as_text(content)?));
        }
        return Ok((suffix, content));
    }
    match suffix {
        ".txt" => Ok((".npy", text_as_array(&*content)?)),
        ".bin" => Ok((".npy", bytes_as_array(content))),
        _ => Ok((suffix, content)),
    }
}

/// Splits off the suffix.
fn split(shown: &[u8]) -> Option<(&[u8], &'static str)> {
    let mut split = SUFFIXES
        .into_iter()
        .filter_map(|suffix| Some((shown.strip_suffix(suffix.as_bytes())?, suffix)));
    split.find(|(stem, _)| !stem.is_empty())
}

/// Returns the own name of a visible name without suffix. Text that looks like a number keeps its escape, so that it is
/// not a number in any store.
pub(super) fn own_name(shown: &[u8], sep: u8) -> Vec<u8> {
    match name::is_escaped_number(shown) {
        true => shown.to_vec(),
        false => name::own_name(shown, sep),
    }
}

/// The longest text that is converted to or from an array, in bytes: it is held in memory.
const LONGEST: u64 = 64 << 20;

/// Returns whether an `.npy` file is a single text.
fn is_single_text(file: &dyn Content) -> Result<bool> {
    // An incomplete file is refused later.
    let Ok(head) = complete_npy_header(file) else {
        return Ok(false);
    };
    let is_text = matches!(
        &head.dtype,
        DType::Scalar {
            kind: Kind::Text | Kind::Bytes,
            ..
        }
    );
    Ok(is_text && head.shape.is_empty())
}

/// Returns the text of an `.npy` file that is a single text.
fn as_text(file: Arc<dyn Content>) -> Result<Arc<dyn Content>> {
    check_length(file.len())?;
    let array = NpyArray::shown(&file)?;
    let mut bytes = Vec::new();
    text::each(&array, |_, element| {
        bytes.extend_from_slice(element);
        Ok(())
    })?;
    Ok(Arc::new(InMemory(bytes)))
}

/// Returns a text as an array without dimensions.
fn text_as_array(file: &dyn Content) -> Result<Arc<dyn Content>> {
    check_length(file.len())?;
    let mut bytes = vec![0; usize::try_from(file.len()).unwrap_or(0)];
    file.read_at(0, &mut bytes)?;
    let text = String::from_utf8(bytes).map_err(|_| invalid("text that is not UTF-8"))?;
    if text.ends_with('\0') {
        return Err(unsupported("a text that ends in NUL, which an array loses"));
    }
    let letters: Vec<u8> = text
        .chars()
        .flat_map(|letter| u32::from(letter).to_le_bytes())
        .collect();
    let mut npy = npy::header(&DType::text(letters.len() / 4), &[]);
    npy.extend(letters);
    Ok(Arc::new(InMemory(npy)))
}

/// Returns bytes as a vector of numbers.
fn bytes_as_array(file: Arc<dyn Content>) -> Arc<dyn Content> {
    let byte = DType::scalar(Kind::Uint, 1, Order::None);
    let head = InMemory(npy::header(&byte, &[file.len()]));
    Arc::new(Concat::new(vec![Arc::new(head), file]))
}

fn check_length(len: u64) -> Result<()> {
    match len <= LONGEST {
        true => Ok(()),
        false => Err(unsupported(format!(
            "a text of {len} bytes; at most {LONGEST} are converted"
        ))),
    }
}
