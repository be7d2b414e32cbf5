//! The layers of a store as the target of a writable mount: what is finished goes into the layer of one
//! checkout, and the view shows it.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value as Json, json};

use super::checkouts::{Checkouts, LayerFiles, name_of};
use super::form::{self, Base, Key, Kind, Plan};
use super::index::Kept;
use super::layer::{Layer, Member};
use super::object::NewFile;
use super::scratch::Scratch;
use super::storage::Disk;
use super::syncer::Syncer;
use super::target::{
    Incomplete, Made, Names, Outcome, Part, Place, Restored, Role, Target, Unstored,
};
use super::view::View;
use crate::content::Content;
use crate::dtype::{self, DType};
use crate::error::{Error, ErrorKind, Result};
use crate::h5::{Creator, NewElement};
use crate::npy;
use crate::options::StoreKind;
use crate::raw::time;
use crate::store::Context;
use crate::tree::name::visible_with;
use crate::tree::{Directory, Node};

/// A view and the layer on top of it that is written to.
pub struct LayerTarget {
    view: Arc<View>,
    layer: Arc<Layer>,
    _syncer: Syncer,
    /// The checkout's name.
    name: String,
    context: Arc<Context>,
}

impl LayerTarget {
    /// Opens the checkout `name` of the store that `base` shows, on top of what is committed.
    pub fn open(
        base: Arc<dyn Directory>,
        context: &Arc<Context>,
        checkouts: &Checkouts,
        name: &str,
    ) -> Result<Self> {
        if base.repository().is_some() {
            let why = "a Hangar repository keeps its changes itself: no files of HDF5 beside it";
            return Err(refused(libc::EOPNOTSUPP, why));
        }
        let creator = |dir: &Path| Creator::worker(Path::new("/proc/self/exe"), dir);
        let opened = checkouts.open(name, Arc::new(Disk), creator)?;
        let view = over(base, context, &opened.below);
        Self::new(view, opened.layer, name, context)
    }

    /// `layer` is shown on top of `view` from now on.
    fn new(view: Arc<View>, layer: Layer, name: &str, context: &Arc<Context>) -> Result<Self> {
        view.add_layer(layer.dir(), &layer.entries(), name);
        let layer = Arc::new(layer);
        let (journal, dir) = (context.clone(), layer.dir().to_owned());
        let syncer = Syncer::start(&layer, move |e| {
            let line = format!("{}: {}", dir.display(), e.message);
            journal.journal.add(&line);
        })?;
        Ok(Self {
            view,
            layer,
            _syncer: syncer,
            name: name.to_owned(),
            context: context.clone(),
        })
    }

    /// The directory at a path of the mount; `None` if there is none.
    fn directory(&self, path: &Names) -> Result<Option<Arc<dyn Directory>>> {
        let mut dir = self.view.root();
        for name in path {
            match dir.lookup(name)? {
                Some(Node::Directory(below)) => dir = below,
                _ => return Ok(None),
            }
        }
        Ok(Some(dir))
    }

    /// By which rules files in a directory are stored; the directory need not be there yet.
    fn kind(&self, path: &Names) -> Result<Kind> {
        let kind = match self.directory(path)? {
            Some(dir) => dir.kind()?,
            None => StoreKind::Plain,
        };
        Ok(match kind {
            StoreKind::Daf => Kind::Daf,
            StoreKind::Arkouda => Kind::Arkouda,
            _ => Kind::Plain,
        })
    }

    /// How many names of a path lead to the directory of parts that it is in, or that it is; `None` if an object
    /// of that path is one file, or a group.
    fn composite(&self, depth: usize, path: &Names) -> Result<Option<usize>> {
        if self.kind(&path[..depth])? == Kind::Arkouda {
            return Ok((path.len() > depth).then_some(depth + 1));
        }
        for at in depth..path.len() {
            let name = self.view.key_name(&path[at]);
            if is_matrix(&name) && self.kind(&path[..at])? == Kind::Daf {
                return Ok(Some(at + 1));
            }
        }
        Ok(None)
    }

    /// The store that a directory is in, by the number of names that lead to it.
    fn store_depth(&self, path: &Names) -> Result<usize> {
        let depth = self.view.store_depth(path);
        depth.ok_or_else(|| refused(libc::EPERM, "no store: nothing can be made here"))
    }

    /// Where an object is in the file of a layer, and the path of its directory in the mount.
    fn place(&self, object: &str) -> Result<(Key, Vec<Vec<u8>>)> {
        let names: Vec<&str> = object.split('/').collect();
        let mut shown = self.view.shown(object);
        let depth = self.store_depth(&shown)?;
        let inside = names.get(depth..).unwrap_or_default();
        shown.pop();
        Ok((Key::of_path(&inside.join("/"))?, shown))
    }

    fn put(&self, object: &str, new: &NewFile, time: SystemTime, is_directory: bool) -> Result<()> {
        let stored = self.layer.put(object, new, time)?;
        let dir = self.layer.dir();
        self.view
            .put(object, dir, &stored, &self.name, is_directory);
        Ok(())
    }
}

/// Whether a name is that of a matrix of a daf store: `rows,columns#property`.
fn is_matrix(name: &[u8]) -> bool {
    let at = name.iter().position(|&b| b == b'#');
    at.is_some_and(|at| name[..at].contains(&b',') && at + 1 < name.len())
}

/// The group that an object is to be stored in.
struct Group<'a> {
    target: &'a LayerTarget,
    kind: Kind,
    dir: Option<Arc<dyn Directory>>,
}

impl Base for Group<'_> {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn npy(&self, name: &str) -> Result<Option<Arc<dyn Content>>> {
        let sep = self.target.context.options.sep;
        let shown = visible_with(name.as_bytes(), ".npy", sep);
        let Some(dir) = &self.dir else {
            return Ok(None);
        };
        match dir.lookup(&shown)? {
            Some(Node::File(file)) => Ok(Some(file.open()?)),
            _ => Ok(None),
        }
    }

    fn scratch(&self) -> Scratch {
        self.target.layer.scratch()
    }
}

/// A store with what is committed on top.
pub fn committed(
    base: Arc<dyn Directory>,
    context: &Arc<Context>,
    checkouts: &Checkouts,
) -> Result<Arc<dyn Directory>> {
    let layers = checkouts.committed()?;
    Ok(if layers.is_empty() {
        base
    } else {
        over(base, context, &layers).root()
    })
}

fn over(base: Arc<dyn Directory>, context: &Arc<Context>, layers: &[LayerFiles]) -> Arc<View> {
    let view = View::new(base, context.clone());
    for layer in layers {
        let dir = layer.dir.file_name().unwrap_or_default().to_string_lossy();
        let name = name_of(&dir).unwrap_or(&dir);
        view.add_layer(&layer.dir, &layer.entries, name);
    }
    view
}

/// The size in the mount of the only dataset, where its elements are shown as they are stored.
fn shown_size(new: &NewFile) -> Option<u64> {
    let [dataset] = new.outline.datasets.as_slice() else {
        return None;
    };
    let NewElement::Array(dtype) = &dataset.element else {
        return None;
    };
    let DType::Scalar { kind, size, .. } = dtype else {
        return None;
    };
    let same = match kind {
        dtype::Kind::Bool | dtype::Kind::Int | dtype::Kind::Uint => true,
        dtype::Kind::Float => *size <= 8,
        dtype::Kind::Complex => *size <= 16,
        _ => false,
    };
    let header = npy::header(dtype, &dataset.shape).len() as u64;
    let payload = npy::payload_len(dtype, &dataset.shape)?;
    same.then(|| payload.checked_add(header)).flatten()
}

/// Splits the suffix off that is stored.
fn split_suffix(name: &[u8]) -> Option<(&[u8], &'static str)> {
    let suffix = [".npy", ".npz"].into_iter();
    let mut split = suffix.filter_map(|s| Some((name.strip_suffix(s.as_bytes())?, s)));
    split.find(|(stem, _)| !stem.is_empty())
}

fn refused(errno: i32, message: &str) -> Error {
    Error::new(ErrorKind::Os(errno), message)
}

impl Target for LayerTarget {
    fn root(&self) -> Arc<dyn Directory> {
        self.view.root()
    }

    fn role(&self, path: &Names) -> Result<Role> {
        let Some((last, above)) = path.split_last() else {
            return Err(refused(libc::EPERM, "the root of the mount"));
        };
        let depth = self.store_depth(above)?;
        let Some((stem, suffix)) = split_suffix(last) else {
            return Ok(Role::Scratch);
        };
        let mut names = above.to_vec();
        names.push(stem.to_vec());
        let inside = match self.composite(depth, above)? {
            Some(top) => top,
            None if suffix == ".npz" && self.composite(depth, &names)?.is_none() => {
                return Ok(Role::Scratch);
            }
            None => names.len(),
        };
        let (object, member) = names.split_at(inside);
        Ok(Role::Stored(Place {
            object: self.view.key(object)?,
            member: self.view.key(member)?,
            suffix,
        }))
    }

    fn scratch(&self) -> Scratch {
        self.layer.scratch()
    }

    fn disk(&self) -> &Path {
        self.layer.dir()
    }

    fn store(&self, object: &str, parts: &[Part], time: SystemTime) -> Result<Outcome> {
        let (key, above) = self.place(object)?;
        let base = Group {
            target: self,
            kind: self.kind(&above)?,
            dir: self.directory(&above)?,
        };
        match form::plan(&base, &key, parts)? {
            Plan::Incomplete(missing) => Ok(Outcome::Incomplete(missing)),
            Plan::Complete(mut new) => {
                new.size = shown_size(&new).filter(|_| base.kind == Kind::Plain);
                let single = parts.iter().all(|part| part.place.member.is_empty());
                self.put(object, &new, time, !single || base.kind != Kind::Plain)?;
                Ok(Outcome::Stored)
            }
        }
    }

    fn remove(&self, object: &str) -> Result<()> {
        self.layer.remove(object)?;
        self.view.remove(object);
        Ok(())
    }

    fn set_time(&self, object: &str, time: SystemTime) -> Result<bool> {
        match self.layer.set_time(object, time) {
            Ok(()) => {
                self.view.set_time(object, time);
                Ok(true)
            }
            Err(e) if e.kind == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn make_directory(&self, path: &Names, time: SystemTime) -> Result<Made> {
        let above = path.split_last().map_or(&[][..], |(_, above)| above);
        let depth = self.store_depth(above)?;
        if self.composite(depth, path)?.is_some() {
            return Ok(Made::Scratch);
        }
        let object = self.view.key(path)?;
        let (key, above) = self.place(&object)?;
        let new = form::group(self.kind(&above)?, &key);
        self.put(&object, &new, time, true)?;
        Ok(Made::Stored)
    }

    fn remove_directory(&self, path: &Names) -> Result<()> {
        self.remove(&self.view.key(path)?)
    }

    fn keep(&self, object: &str, parts: &[Unstored], missing: &[String]) -> Result<Vec<u64>> {
        let member = |unstored: &Unstored| Member {
            name: format!(
                "{}{}",
                unstored.part.place.member, unstored.part.place.suffix
            ),
            content: unstored.part.content.clone(),
            time: unstored.time,
            kept: unstored.kept,
        };
        let members: Vec<Member> = parts.iter().map(member).collect();
        self.layer.keep(object, &members, missing)
    }

    fn kept(&self) -> Vec<Incomplete> {
        let objects = self.layer.incomplete().into_iter();
        objects
            .map(|kept| {
                let open = |member: &Kept| {
                    let path = self.view.shown(&format!("{}/{}", kept.object, member.name));
                    // The index may be of another store, or damaged.
                    match self.role(&path)? {
                        Role::Stored(place) if place.object == kept.object => {}
                        _ => return Err(Error::damaged("no member of an object")),
                    }
                    Ok(Restored {
                        path,
                        content: self.layer.open_member(member)?,
                        time: time(member.time),
                        kept: member.file,
                    })
                };
                let restored = |member: &Kept| {
                    let opened = open(member);
                    let told = opened.inspect_err(|e| {
                        let line = format!("{}/{}: {}", kept.object, member.name, e.message);
                        self.context.journal.add(&line);
                    });
                    told.ok()
                };
                Incomplete {
                    parts: kept.members.iter().filter_map(restored).collect(),
                    object: kept.object.clone(),
                    missing: kept.missing.clone(),
                }
            })
            .collect()
    }

    fn sync(&self) -> Result<()> {
        self.layer.sync()
    }

    fn status(&self) -> Json {
        let entries = self.layer.entries();
        let deleted = entries.values().filter(|stored| stored.is_none()).count();
        json!({
            "name": self.name,
            "dir": self.layer.dir().to_string_lossy(),
            "objects": entries.len() - deleted,
            "deleted": deleted,
            "lost": self.layer.lost().map(|e| e.message),
        })
    }
}
