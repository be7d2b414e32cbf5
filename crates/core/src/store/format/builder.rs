//! A new store under construction, to which objects are added one after the other.
//!
//! It is one HDF5 file, unless its format makes stores in a way of its own. Each object is made in a file of its own
//! and copied into the new one. The format plans as for a write through a mount, so the same rules hold.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Depth, Format, Inspection, Registry};
use crate::dataset::context::Context;
use crate::dataset::opened::OpenStore;
use crate::store::base::{Base, invalid, unsupported};
use crate::store::encode::{ObjectKey, Plan};
use crate::store::new_store::NewStore;
use crate::store::object::{self, NewFile};
use crate::store::part::Part;
use crate::tree::Directory;
use npyfs_base::error::{Error, Result};
use npyfs_base::options::FsOptions;
use npyfs_hdf5::{Creator, EditStep, Editor, H5, Reach, SourceFile};
use npyfs_io::content::Content;
use npyfs_io::content::scratch::Scratch;
use npyfs_io::dir::Dir;
use npyfs_io::file::StoreFile;
use npyfs_io::storage::Disk;

/// The source that a store is built from.
pub struct Construction<'a> {
    /// The empty store that it begins with; its path is the one that the store is built at.
    pub new: &'a NewStore<'a>,
    /// An empty directory for what is made on the way. Both disappear if the store does not become complete.
    pub scratch: &'a Path,
    /// The message of the commit of a store that has commits.
    pub message: &'a str,
    /// All formats.
    pub formats: &'a Registry,
}

/// A store under construction. An error of EINVAL or EOPNOTSUPP is about the object, any other about the store.
pub trait Builder {
    /// Adds a group, which may hold others and arrays.
    fn group(&mut self, path: &ObjectKey) -> Result<()>;

    /// Adds the object at `key` that consists of `parts`, whose members have own names.
    fn put(&mut self, key: &ObjectKey, parts: &[Part]) -> Result<()>;

    /// Adds a link to a path relative to its own group, as a mount shows names.
    fn link(&mut self, _key: &ObjectKey, _target: &[u8]) -> Result<()> {
        Err(unsupported("such a store has no links"))
    }

    /// Completes the store and has it written to the disk. Returns its tree, for comparison with what it was made from;
    /// `None` if it holds the very bytes that it was given.
    fn finish(self: Box<Self>) -> Result<Option<Arc<dyn Directory>>>;
}

/// Objects that are copied together, at most, and the bytes from which on none is waited for.
const STEPS: usize = 64;
const BYTES: u64 = 64 << 20;

/// An HDF5 file under construction.
struct FileBuilder {
    format: Arc<dyn Format>,
    formats: Registry,
    path: PathBuf,
    /// The directory of the files of objects.
    objects: Dir,
    creator: Creator,
    editor: Editor,
    /// Axes by path, as they were given.
    axes: HashMap<Vec<String>, Arc<dyn Content>>,
    /// Objects that are made and not copied yet: their files, and how they are copied.
    waiting: Vec<(String, EditStep)>,
    waiting_bytes: u64,
    made: u64,
}

/// Begins a store of a format that objects are added to.
pub fn build(
    format: &Arc<dyn Format>,
    construction: &Construction<'_>,
) -> Result<Box<dyn Builder>> {
    match format.making() {
        Some(making) => making.build(construction),
        None => Ok(Box::new(FileBuilder::new(format.clone(), construction)?)),
    }
}

impl FileBuilder {
    /// Begins with the empty store that `format` makes.
    fn new(format: Arc<dyn Format>, construction: &Construction<'_>) -> Result<Self> {
        let Construction { new, formats, .. } = construction;
        format.create(new)?;
        let objects = Dir::alone(construction.scratch)?;
        let creator = Creator::worker(new.program, &objects.path_of_descriptor());
        let above = new.path.parent().unwrap_or(new.path);
        let readable = [construction.scratch.to_owned()];
        Ok(Self {
            editor: Editor::start(new.program, above, &readable, formats.holders())?,
            format,
            formats: (*formats).clone(),
            path: new.path.to_owned(),
            objects,
            creator,
            axes: HashMap::new(),
            waiting: Vec::new(),
            waiting_bytes: 0,
            made: 0,
        })
    }

    /// Makes the file of an object, which is copied with the next ones.
    fn add(&mut self, key: &ObjectKey, mut new: NewFile) -> Result<()> {
        reduce(&mut new, key);
        self.made += 1;
        let name = format!("{:016}.h5", self.made);
        let made = object::write((&self.objects, &name), &new, &self.creator, &Disk);
        drop(made.inspect_err(|_| {
            // The file goes with its directory at the latest.
            let _ = self.objects.remove(&name);
        })?);
        let meta = self.objects.metadata(&name)?;
        let names = key.path().iter().map(|name| name.as_bytes().to_vec());
        let step = EditStep::Copy {
            from: SourceFile::new(&self.objects.path().join(&name), &meta),
            path: names.collect(),
            time: None,
        };
        self.waiting_bytes = self.waiting_bytes.saturating_add(meta.len());
        self.waiting.push((name, step));
        match self.waiting.len() >= STEPS || self.waiting_bytes >= BYTES {
            true => self.copy_waiting(),
            false => Ok(()),
        }
    }

    fn copy_waiting(&mut self) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        if waiting.is_empty() {
            return Ok(());
        }
        let steps = waiting.iter().map(|(_, step)| step.clone()).collect();
        let done = self.editor.edit(&StoreFile::open(&self.path)?, steps)?;
        for (name, _) in &waiting {
            self.objects.remove(name)?;
        }
        match done.into_iter().find_map(std::result::Result::err) {
            None => Ok(()),
            Some(why) => Err(Error::damaged(why)),
        }
    }

    /// Opens the complete file, and checks that it is a store of its format that keeps the rules.
    fn check(&self) -> Result<Arc<dyn Directory>> {
        let options = FsOptions::default();
        let h5 = H5::workers(Reach::of_store(&self.path, options.external));
        let context = Arc::new(Context::new(h5, options));
        let root = self.formats.root(&OpenStore::open(&context, &self.path)?)?;
        let (is, wanted) = (root.format()?, self.format.name());
        if is != wanted {
            let why = format!("the result would be shown as {is}, not as {wanted}");
            return Err(invalid(why));
        }
        let inspection = Inspection {
            sep: b'#',
            changed: None,
            depth: Depth::Outline,
        };
        let broken = self.format.rules().broken(&*root, &inspection)?;
        match broken.into_iter().next() {
            None => Ok(root),
            Some(why) => Err(Error::damaged(format!(
                "the result would break the rules of its format: {why}"
            ))),
        }
    }
}

impl Builder for FileBuilder {
    fn group(&mut self, path: &ObjectKey) -> Result<()> {
        let writing = self.format.writable()?;
        writing.check_group(path)?;
        let new = super::group(writing, path);
        self.add(path, new)
    }

    fn put(&mut self, key: &ObjectKey, parts: &[Part]) -> Result<()> {
        let base = AddedMembers {
            objects: &self.objects,
            axes: &self.axes,
            group: key.group(),
        };
        let new = match self.format.writable()?.plan(&base, key, parts)? {
            Plan::Complete(new) => new,
            Plan::Incomplete(missing) => {
                let missing = missing.join(", ");
                let why = match parts.iter().all(|part| part.place.member.is_empty()) {
                    true => format!("{missing} missing"),
                    false => format!("its members make no object: {missing} missing"),
                };
                return Err(invalid(why));
            }
        };
        self.add(key, new)?;
        if let [part] = parts
            && self.format.objects().is_axis(key.name())
        {
            let content = part.content.clone();
            self.axes.insert(key.path().to_vec(), content);
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Option<Arc<dyn Directory>>> {
        self.copy_waiting()?;
        std::fs::File::open(&self.path)?.sync_all()?;
        self.check().map(Some)
    }
}

/// Leaves out what comes along with an object only to make its file a store, unless the object is an attribute of that.
fn reduce(new: &mut NewFile, key: &ObjectKey) {
    let is_inside = |path: &[String]| path.starts_with(key.path());
    let outline = &mut new.outline;
    let mut inside = outline.datasets.iter().map(|dataset| &dataset.path);
    let groups = outline.groups.iter().map(|group| &group.path);
    if !inside.any(|path| is_inside(path)) && !groups.into_iter().any(|path| is_inside(path)) {
        return;
    }
    outline.groups.retain(|group| is_inside(&group.path));
    let both = outline.datasets.drain(..).zip(new.data.drain(..));
    let kept: Vec<_> = both
        .filter(|(dataset, _)| is_inside(&dataset.path))
        .collect();
    (outline.datasets, new.data) = kept.into_iter().unzip();
}

/// The group of an object, with what was added to it so far.
struct AddedMembers<'a> {
    objects: &'a Dir,
    axes: &'a HashMap<Vec<String>, Arc<dyn Content>>,
    group: &'a [String],
}

impl Base for AddedMembers<'_> {
    fn npy(&self, name: &str) -> Result<Option<Arc<dyn Content>>> {
        let path = [self.group, &[name.to_owned()]].concat();
        Ok(self.axes.get(&path).cloned())
    }

    fn scratch(&self) -> Scratch {
        Scratch::new(self.objects, Arc::new(Disk))
    }
}
