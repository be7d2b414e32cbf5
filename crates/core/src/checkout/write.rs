//! The target of a writable mount: completed objects go into the layer of one checkout, and the view shows them.
//!
//! A path of the mount leads to its store, the format of that store, and the object at the path. The plan of a format
//! sees the group of an object to be stored (`Group`). A store can be begun in a checkout: by a directory in a mounted
//! directory whose name has the suffix of a format, and by files written into a new group of a store.

mod attributes;
mod axes;
mod commit;
pub mod syncer;

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::RwLock;
use serde_json::{Value as Json, json};

use super::history::checkouts::{Checkouts, OpenCheckout};
use super::history::committed_layers::on_top;
use super::layer::{Layer, NewMember};
use super::records::fit::StoreIdentity;
use super::records::index::KeptMember;
use super::view::View;
use crate::dataset::context::Context;
use crate::store::base::Base;
use crate::store::encode::{ObjectKey, Plan};
use crate::store::format::{self, Format, Registry, Writing};
use crate::store::object::{NewFile, PackScope};
use crate::store::part::{Part, PartPlace};
use crate::store::target::{
    self, AttributeChange, Deletion, DirectoryOutcome, IncompleteObject, PathNames, Restored, Role,
    StoreOutcome, Target, Unstored,
};
use crate::tree::name::{self, SUFFIXES, visible_with};
use crate::tree::path::walk;
use crate::tree::{Directory, Node};
use axes::Axes;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy;
use npyfs_base::npy::dtype::{self, DType};
use npyfs_hdf5::program::program;
use npyfs_hdf5::{Creator, NewElement};
use npyfs_io::content::Content;
use npyfs_io::content::scratch::Scratch;
use npyfs_io::dir::Dir;
use npyfs_io::file::time;
use npyfs_io::storage::Disk;
use syncer::Syncer;

/// A view, and the uppermost layer, which is written to.
pub struct LayerTarget {
    view: Arc<View>,
    /// The layer that is written to: another one after each commit.
    current: RwLock<CurrentLayer>,
    /// Held shared by each change, and exclusively by a commit.
    changing: RwLock<()>,
    checkouts: Checkouts,
    /// The name of the checkout.
    name: String,
    /// The file name of the store.
    store: Vec<u8>,
    context: Arc<Context>,
    /// Axes in use: a deletion holds its axis exclusively, objects stored along it share it.
    axes: Axes,
}

/// A layer and the thread that syncs it.
struct CurrentLayer {
    layer: Arc<Layer>,
    _syncer: Syncer,
}

impl CurrentLayer {
    fn start(layer: Layer, context: &Arc<Context>) -> Result<Self> {
        let layer = Arc::new(layer);
        let (journal, dir) = (context.clone(), layer.dir().to_owned());
        let syncer = Syncer::start(&layer, move |e| {
            let line = format!("{}: {}", dir.path().display(), e.message);
            journal.journal.add(&line);
        })?;
        Ok(Self {
            layer,
            _syncer: syncer,
        })
    }
}

/// Returns what creates files in the directory of a layer.
fn creator(dir: &Dir) -> Creator {
    Creator::worker(program(), &dir.path_of_descriptor())
}

impl LayerTarget {
    /// Opens the checkout `name` on top of the commits of the store that `base` shows.
    pub fn open(
        base: Arc<dyn Directory>,
        context: &Arc<Context>,
        formats: &Registry,
        checkouts: &Checkouts,
        name: &str,
    ) -> Result<Self> {
        if base.handle().is_some() {
            let why = "this store keeps its changes itself: no files of HDF5 beside it";
            return Err(refused(libc::EOPNOTSUPP, why));
        }
        let opened = checkouts.open_to_show(name, Arc::new(Disk), creator)?;
        let OpenCheckout { layer, mut below } = opened;
        below.push(on_top(layer.dir(), layer.recorded(), &below)?);
        let view = View::over(base, context, formats, below);
        Ok(Self {
            view,
            current: RwLock::new(CurrentLayer::start(layer, context)?),
            changing: RwLock::default(),
            checkouts: checkouts.clone(),
            name: name.to_owned(),
            store: file_name(checkouts.store()),
            context: context.clone(),
            axes: Axes::default(),
        })
    }

    /// Returns the layer that is written to. A change holds `changing` for as long as it uses it.
    fn layer(&self) -> Arc<Layer> {
        self.current.read().layer.clone()
    }

    /// Returns the keys of an object's axes, if its store has axes.
    fn along(&self, object: &str) -> Vec<String> {
        let (above, name) = object.split_at(object.rfind('/').map_or(0, |at| at + 1));
        let axes = self.view.formats().along(name).into_iter();
        axes.map(|axis| format!("{above}{axis}")).collect()
    }

    /// Refuses to remove an axis that objects lie along; the log names them.
    fn check_unused(&self, key: &ObjectKey, above: &PathNames) -> Result<()> {
        /// The most objects that are named.
        const MOST: usize = 100;
        let axis = key.name();
        let Some(dir) = self.directory(above)? else {
            return Ok(());
        };
        let format = self.view.formats().format_of(&*dir)?;
        if !format.objects().is_axis(axis) {
            return Ok(());
        }
        let mut users = Vec::new();
        for (shown, _) in dir.list()?.iter() {
            let stem = split_suffix(&shown).map_or(&*shown, |(stem, _)| stem);
            let own = name::own_name(stem, self.context.options.sep);
            let lies_along = |own| {
                format
                    .objects()
                    .along(own)
                    .iter()
                    .any(|along| along == axis)
            };
            if std::str::from_utf8(&own).is_ok_and(lies_along) {
                users.push(String::from_utf8_lossy(&shown).into_owned());
            }
        }
        if users.is_empty() {
            return Ok(());
        }
        let more = users.len().saturating_sub(MOST);
        users.truncate(MOST);
        let axis = axis.trim_end_matches('#');
        let mut why = format!("the axis {axis} is in use: {}", users.join(", "));
        if more > 0 {
            why.push_str(&format!(" and {more} more"));
        }
        self.context
            .journal
            .add(&format!("{}: {why}", key.path().join("/")));
        Err(refused(libc::ENOTEMPTY, &why))
    }

    fn put(&self, object: &str, new: &NewFile, time: SystemTime, is_directory: bool) -> Result<()> {
        self.know_store(object)?;
        let layer = self.layer();
        let _showing = layer.showing([object.to_owned()]);
        let stored = layer.put(object, new, time)?;
        self.view.put(object, &stored, is_directory);
        Ok(())
    }

    /// Stores one object; the caller holds `changing`.
    fn store_object(&self, object: &str, parts: &[Part], time: SystemTime) -> Result<StoreOutcome> {
        let _axes = self.axes.share(self.along(object));
        match self.plan(object, parts)? {
            PartsPlan::Incomplete(missing) => Ok(StoreOutcome::Incomplete(missing)),
            PartsPlan::Complete { new, is_directory } => {
                self.put(object, &new, time, is_directory)?;
                Ok(StoreOutcome::Stored)
            }
        }
    }

    /// Deletes an object; the caller holds `changing`.
    fn remove_object(&self, object: &str) -> Result<()> {
        // A path that is not an object is a directory of stores, which is empty.
        let place = self.place(object).ok();
        if place.is_some() {
            // A deletion has no meaning for another store that takes the place of this one.
            self.know_store(object)?;
        }
        let as_axis = place.filter(|(key, _)| self.view.formats().is_axis(key.name()));
        let _alone = match &as_axis {
            Some((key, above)) => {
                let alone = self.axes.take(object);
                self.check_unused(key, above)?;
                Some(alone)
            }
            None => None,
        };
        let layer = self.layer();
        let _showing = layer.showing([object.to_owned()]);
        layer.remove(object)?;
        self.view.remove(object);
        Ok(())
    }

    /// Records the identity of the store that an object is written over, if it is not known yet.
    fn know_store(&self, object: &str) -> Result<()> {
        let depth = self.store_depth(&self.view.shown(object))?;
        let names: Vec<&str> = object.split('/').take(depth).collect();
        let store = names.join("/");
        // A store that a layer begins cannot become another store later.
        if self.view.is_begun(&store) {
            return Ok(());
        }
        self.layer().know(&store, || match self.view.store(&store) {
            Some(dir) => StoreIdentity::compute(&dir, &*self.view, self.view.formats()),
            None => Err(Error::new(ErrorKind::NotFound, "the store is gone")),
        })
    }

    /// Returns the group of an object, as its format sees it, from its path and the names above it.
    fn group(
        &self,
        key: &ObjectKey,
        above: &PathNames,
        dir: Option<Arc<dyn Directory>>,
    ) -> Group<'_> {
        Group {
            target: self,
            dir,
            store: above[..above.len().saturating_sub(key.group().len())].to_vec(),
        }
    }

    /// Plans how an object's parts are stored.
    fn plan(&self, object: &str, parts: &[Part]) -> Result<PartsPlan> {
        let (key, above) = self.place(object)?;
        let dir = self.directory(&above)?;
        let format = self.format_for(dir.as_deref(), &above, key.name())?;
        let is_begun = format.name() != self.format(dir.as_deref())?.name();
        let base = self.group(&key, &above, dir);
        Ok(match format::plan(&**format, &base, &key, parts)? {
            Plan::Incomplete(missing) => PartsPlan::Incomplete(missing),
            Plan::Complete(mut new) => {
                let (writing, objects) = (format.writable()?, format.objects());
                if is_begun {
                    self.begin_group(writing, &above)?;
                }
                new.size = shown_size(&new, key.path()).filter(|_| writing.shows_as_stored(&new));
                new.scope = scope(&**format, object, &key);
                let file = parts.first().map(|part| &part.content);
                let against = self.view.against(object, file, objects.has_axes())?;
                new.against = Some(against.shared());
                let single = parts.iter().all(|part| part.place.member.is_empty());
                let is_directory = !single || objects.has_composites();
                PartsPlan::Complete { new, is_directory }
            }
        })
    }

    /// Returns the directory at a path of the mount; `None` if it does not exist.
    fn directory(&self, path: &PathNames) -> Result<Option<Arc<dyn Directory>>> {
        self.view.directory(path)
    }

    /// Returns the format for files in a directory; `None` stands for a directory that does not exist yet.
    fn format(&self, dir: Option<&dyn Directory>) -> Result<&Arc<dyn Format>> {
        let name = dir.map_or(Ok(""), Directory::format)?;
        Ok(self.view.formats().named(name))
    }

    /// Returns the format for an object of this name in a directory at this path: that of the directory, or the one
    /// that the object begins there.
    fn format_for(
        &self,
        dir: Option<&dyn Directory>,
        path: &PathNames,
        name: &str,
    ) -> Result<&Arc<dyn Format>> {
        let (format, formats) = (self.format(dir)?, self.view.formats());
        let lies = formats.is_axis(name) || !formats.along(name).is_empty();
        // Only a plain group that was created in this checkout can become a store of a format.
        if !lies || format.name() != formats.named("").name() {
            return Ok(format);
        }
        let depth = match self.view.store_depth(path) {
            Some(depth) if depth < path.len() => depth,
            _ => return Ok(format),
        };
        let file = path[..depth].last().unwrap_or(&self.store);
        let mut others = formats.iter();
        let begins = |writing: &dyn Writing| writing.begins_in(file, name);
        match others.find(|format| format.writing().is_some_and(begins)) {
            Some(begun) if self.layer().has(&self.view.key(path)?) => Ok(begun),
            _ => Ok(format),
        }
    }

    /// Returns how many names of a path lead to the directory of parts that contains it, or that it is; `None` if the
    /// object at the path is a single file, or a group. `suffix` is that of a file at this path.
    fn composite(&self, depth: usize, path: &PathNames, suffix: &str) -> Result<Option<usize>> {
        let format = |dir: Option<&dyn Directory>, above: &PathNames, name: &str| {
            self.format_for(dir, above, name).cloned()
        };
        self.view.composite(depth, path, suffix, &format)
    }

    /// Returns the number of names that lead to the store of a directory.
    fn store_depth(&self, path: &PathNames) -> Result<usize> {
        let depth = self.view.store_depth(path);
        depth.ok_or_else(|| refused(libc::EPERM, "no store: nothing can be made here"))
    }

    /// Refuses changes in a read-only store. `depth` is the number of names that lead to the store.
    fn check_writable(&self, path: &PathNames, depth: usize) -> Result<()> {
        let store = self.directory(path.get(..depth).unwrap_or_default())?;
        // A store that cannot be opened reports its error when it is read.
        let format = store.and_then(|store| self.format(Some(&*store)).ok());
        format.map_or(Ok(()), |format| format.writable().map(drop))
    }

    /// Returns the location of an object in a layer's file, and the path of its directory in the mount.
    fn place(&self, object: &str) -> Result<(ObjectKey, Vec<Vec<u8>>)> {
        let names: Vec<&str> = object.split('/').collect();
        let mut shown = self.view.shown(object);
        let depth = self.store_depth(&shown)?;
        let inside = names.get(depth..).unwrap_or_default();
        shown.pop();
        Ok((ObjectKey::of_path(&inside.join("/"))?, shown))
    }

    /// Checks that the mount would show the names of a path inside a store, the last one with `suffix`.
    fn check_names(&self, names: &PathNames, suffix: &str) -> Result<()> {
        let sep = self.context.options.sep;
        for (at, name) in names.iter().enumerate() {
            let suffix = if at + 1 == names.len() { suffix } else { "" };
            let as_shown = visible_with(&name::own_name(name, sep), suffix, sep);
            target::check_name(name, suffix, as_shown)?;
        }
        Ok(())
    }

    /// Turns a group created in this checkout into a store of a format, and stores its content again, as far as the
    /// format can represent it.
    fn begin_group(&self, writing: &dyn Writing, path: &PathNames) -> Result<()> {
        let object = self.view.key(path)?;
        let (key, _) = self.place(&object)?;
        let mut there = Vec::new();
        if let Some(dir) = self.directory(path)? {
            for (name, node) in dir.list()?.iter() {
                let path = [path, &[name.to_vec()]].concat();
                if let Node::File(file) = &*node
                    && let Role::Stored(place) = self.role(&path)?
                    && place.member.is_empty()
                {
                    let part = Part {
                        place,
                        content: file.open()?,
                        stored: true,
                    };
                    there.push((part, file.ownership().mtime));
                }
            }
        }
        let layer = self.layer();
        let _showing = layer.showing([object.clone()]);
        let new = writing.begin_group(&key)?;
        let stored = layer.put(&object, &new, SystemTime::now())?;
        self.view.put_group(&object, &stored);
        for (part, time) in there {
            let object = part.place.object.clone();
            // An object that the format cannot represent stays a plain object.
            if let Err(e) = self.store_object(&object, &[part], time) {
                let line = format!("{object}: stays as it is: {}", e.message);
                self.context.journal.add(&line);
            }
        }
        Ok(())
    }

    /// Begins the store that a directory is by its name, outside of any store.
    fn begin_store(&self, path: &PathNames, time: SystemTime) -> Result<DirectoryOutcome> {
        let Some((name, above)) = path.split_last() else {
            return Err(refused(libc::EPERM, "the root of the mount"));
        };
        let formats = self.view.formats();
        let kind = self.context.options.kind.as_deref();
        let Some(format) = formats.begun_as(kind, name) else {
            let why = format!(
                "no store: nothing can be made here but a store, by a name with {}",
                formats.endings()
            );
            return Err(refused(libc::EPERM, &why));
        };
        let dir = self.directory(above)?;
        if dir.as_ref().is_some_and(|dir| dir.handle().is_some()) {
            let why = "this store keeps its changes itself: no store can be in it";
            return Err(refused(libc::EPERM, why));
        }
        if formats
            .set_of(None, self.layer().dir().path(), name)
            .is_some()
        {
            let why = "a file of this name is one of several that are a store";
            return Err(refused(libc::EINVAL, why));
        }
        let base = Group {
            target: self,
            dir,
            store: path.to_vec(),
        };
        let mut new = format.writable()?.begin(&base, &[])?;
        new.begins = Some(format.name());
        let key = self.view.key(path)?;
        // A store that was deleted here: the new one is shown in its place as long as the same store is below.
        if let Some(hidden) = self.view.store(&key) {
            let identity = || StoreIdentity::compute(&hidden, &*self.view, self.view.formats());
            self.layer().know(&key, identity)?;
        }
        let layer = self.layer();
        let _showing = layer.showing([key.clone()]);
        let stored = layer.put(&key, &new, time)?;
        self.view.put(&key, &stored, true);
        Ok(DirectoryOutcome::Stored)
    }
}

impl Target for LayerTarget {
    fn root(&self) -> Arc<dyn Directory> {
        self.view.root()
    }

    fn role(&self, path: &PathNames) -> Result<Role> {
        let Some((last, above)) = path.split_last() else {
            return Err(refused(libc::EPERM, "the root of the mount"));
        };
        let depth = self.store_depth(above)?;
        self.check_writable(above, depth)?;
        let Some((stem, suffix)) = split_suffix(last) else {
            return Ok(Role::Scratch);
        };
        let mut names = above.to_vec();
        names.push(stem.to_vec());
        let inside = match self.composite(depth, above, "")? {
            Some(top) => top,
            None if suffix == ".npz" && self.composite(depth, &names, suffix)?.is_none() => {
                return Ok(Role::Scratch);
            }
            None => names.len(),
        };
        self.check_names(&names[depth..], suffix)?;
        let (object, member) = names.split_at(inside);
        Ok(Role::Stored(PartPlace {
            object: self.view.key(object)?,
            member: self.view.key(member)?,
            suffix,
        }))
    }

    fn scratch(&self) -> Scratch {
        self.layer().scratch()
    }

    fn disk(&self) -> &Path {
        self.checkouts.dir()
    }

    fn store(&self, object: &str, parts: &[Part], time: SystemTime) -> Result<StoreOutcome> {
        let _changing = self.changing.read();
        self.store_object(object, parts, time)
    }

    fn replace(
        &self,
        object: &str,
        parts: &[Part],
        time: SystemTime,
        gone: &[String],
    ) -> Result<StoreOutcome> {
        let _changing = self.changing.read();
        let _axes = self.axes.share(self.along(object));
        match self.plan(object, parts)? {
            PartsPlan::Incomplete(missing) => Ok(StoreOutcome::Incomplete(missing)),
            PartsPlan::Complete { new, is_directory } => {
                self.know_store(object)?;
                let attributes = self.attributes_of(gone, object)?;
                let keys = attributes.iter().map(|(key, _)| key.as_str());
                let changed = gone.iter().map(String::as_str).chain([object]).chain(keys);
                let layer = self.layer();
                let _showing = layer.showing(changed.map(str::to_owned));
                let (stored, with) = layer.replace(object, &new, time, gone, &attributes)?;
                self.view.put(object, &stored, is_directory);
                for ((key, _), stored) in attributes.iter().zip(&with) {
                    self.view.put_attribute(key, Some(stored));
                }
                gone.iter().for_each(|gone| self.view.remove(gone));
                Ok(StoreOutcome::Stored)
            }
        }
    }

    fn deletion(&self, place: &PartPlace) -> Result<Deletion> {
        let (key, above) = self.place(&place.object)?;
        self.check_unused(&key, &above)?;
        let dir = self.directory(&above)?;
        let format = self.format(dir.as_deref())?;
        let base = self.group(&key, &above, dir);
        format.writable()?.deletion(&base, &key, &place.member)
    }

    fn remove(&self, object: &str) -> Result<()> {
        let _changing = self.changing.read();
        self.remove_object(object)
    }

    fn set_time(&self, object: &str, time: SystemTime) -> Result<bool> {
        let _changing = self.changing.read();
        match self.layer().set_time(object, time) {
            Ok(()) => {
                self.view.set_time(object, time);
                Ok(true)
            }
            Err(e) if e.kind == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn set_attribute(
        &self,
        path: &PathNames,
        name: &[u8],
        change: AttributeChange<'_>,
    ) -> Result<()> {
        self.change_attribute(path, name, change)
    }

    fn make_directory(&self, path: &PathNames, time: SystemTime) -> Result<DirectoryOutcome> {
        let _changing = self.changing.read();
        let above = path.split_last().map_or(&[][..], |(_, above)| above);
        let Some(depth) = self.view.store_depth(above) else {
            return self.begin_store(path, time);
        };
        self.check_writable(above, depth)?;
        self.check_names(&path[depth..], "")?;
        if self.composite(depth, path, "")?.is_some() {
            return Ok(DirectoryOutcome::Scratch);
        }
        let object = self.view.key(path)?;
        let (key, above) = self.place(&object)?;
        let dir = self.directory(&above)?;
        let format = self.format(dir.as_deref())?;
        let writing = format.writable()?;
        writing.check_directory(&self.group(&key, &above, dir), &key)?;
        let new = format::group(writing, &key);
        self.put(&object, &new, time, true)?;
        Ok(DirectoryOutcome::Stored)
    }

    fn remove_directory(&self, path: &PathNames) -> Result<()> {
        let _changing = self.changing.read();
        let above = path.split_last().map_or(&[][..], |(_, above)| above);
        if let Some(depth) = self.view.store_depth(above) {
            self.check_writable(above, depth)?;
            self.check_names(&path[depth..], "")?;
        }
        self.remove_object(&self.view.key(path)?)
    }

    fn keep(
        &self,
        object: &str,
        parts: &[Unstored],
        missing: &[String],
        why: Option<&str>,
    ) -> Result<Vec<u64>> {
        let member = |unstored: &Unstored| NewMember {
            name: format!(
                "{}{}",
                unstored.part.place.member, unstored.part.place.suffix
            ),
            content: unstored.part.content.clone(),
            time: unstored.time,
            kept: unstored.kept,
        };
        let members: Vec<NewMember> = parts.iter().map(member).collect();
        let _changing = self.changing.read();
        self.layer().keep(object, &members, (missing, why))
    }

    fn kept(&self) -> Vec<IncompleteObject> {
        let layer = self.layer();
        let objects = layer.incomplete().into_iter();
        objects
            .map(|kept| {
                let open = |member: &KeptMember| {
                    // A single file that is the whole object has only a suffix.
                    let whole = SUFFIXES.contains(&member.name.as_bytes());
                    let between = if whole { "" } else { "/" };
                    let path = format!("{}{between}{}", kept.object, member.name);
                    let path = self.view.shown(&path);
                    // The index may belong to another store, or be damaged.
                    match self.role(&path)? {
                        Role::Stored(place) if place.object == kept.object => {}
                        _ => return Err(Error::damaged("no member of an object")),
                    }
                    Ok(Restored {
                        path,
                        content: layer.open_member(member)?,
                        time: time(member.time),
                        kept: member.file,
                    })
                };
                let restored = |member: &KeptMember| {
                    let opened = open(member);
                    let told = opened.inspect_err(|e| {
                        let line = format!("{}/{}: {}", kept.object, member.name, e.message);
                        self.context.journal.add(&line);
                    });
                    told.ok()
                };
                IncompleteObject {
                    parts: kept.members.iter().filter_map(restored).collect(),
                    object: kept.object.clone(),
                    missing: kept.missing.clone(),
                    why: kept.why.clone(),
                }
            })
            .collect()
    }

    fn log_directory(&self) -> Option<Dir> {
        Some(self.layer().dir().clone())
    }

    fn sync(&self) -> Result<()> {
        let _changing = self.changing.read();
        self.layer().sync()
    }

    fn commit(&self, request: &Json) -> Result<Json> {
        commit::answer(self, request)
    }

    fn note(&self, line: &str) {
        self.context.journal.add(line);
    }

    fn status(&self) -> Json {
        let layer = self.layer();
        let (objects, deleted) = layer.count();
        json!({
            "name": self.name,
            "dir": layer.dir().path().to_string_lossy(),
            "objects": objects,
            "deleted": deleted,
            "not_shown": self.view.misfits().len(),
            "lost": layer.lost().map(|e| e.message),
        })
    }
}

/// The plan of an object's parts.
enum PartsPlan {
    Complete {
        new: NewFile,
        /// Whether it may be shown as a directory.
        is_directory: bool,
    },
    /// These members are missing.
    Incomplete(Vec<String>),
}

/// Shows a store with its commits on top.
pub fn committed(
    base: Arc<dyn Directory>,
    context: &Arc<Context>,
    formats: &Registry,
    checkouts: &Checkouts,
) -> Result<Arc<dyn Directory>> {
    let layers = checkouts.committed_to_show()?;
    Ok(if layers.is_empty() {
        base
    } else {
        View::over(base, context, formats, layers).root()
    })
}

/// Returns the scope of objects that an object may share a file with: those of its store with the same format. A name
/// that identifies a format would make the whole file another store.
fn scope(format: &dyn Format, object: &str, key: &ObjectKey) -> Option<PackScope> {
    let names: Vec<&str> = object.split('/').collect();
    let depth = names.len().checked_sub(key.path().len())?;
    let (store, inside) = names.split_at_checked(depth)?;
    let is_known = inside.iter().any(|name| name.starts_with('_'));
    (!is_known).then(|| PackScope {
        store: format!("{}:{}", format.name(), store.join("/")),
        path: key.path().to_vec(),
    })
}

/// Returns the last name of a path.
fn file_name(path: &Path) -> Vec<u8> {
    let name = path.file_name().unwrap_or_default();
    name.as_encoded_bytes().to_vec()
}

fn refused(errno: i32, message: &str) -> Error {
    Error::new(ErrorKind::Os(errno), message)
}

/// Splits off the suffix of a stored file.
fn split_suffix(name: &[u8]) -> Option<(&[u8], &'static str)> {
    let suffix = [".npy", ".npz"].into_iter();
    let mut split = suffix.filter_map(|s| Some((name.strip_suffix(s.as_bytes())?, s)));
    split.find(|(stem, _)| !stem.is_empty())
}

/// The group of an object to be stored.
struct Group<'a> {
    pub target: &'a LayerTarget,
    pub dir: Option<Arc<dyn Directory>>,
    /// The path of its store in the mount.
    pub store: Vec<Vec<u8>>,
}

impl Group<'_> {
    /// Returns the node at a path of names below a directory.
    fn find(
        &self,
        from: Option<Arc<dyn Directory>>,
        path: &[String],
        suffix: &str,
    ) -> Result<Option<Node>> {
        let sep = self.target.context.options.sep;
        let Some(dir) = from else {
            return Ok(None);
        };
        let names = path.iter().enumerate().map(|(at, name)| {
            let suffix = if at + 1 == path.len() { suffix } else { "" };
            visible_with(name.as_bytes(), suffix, sep)
        });
        walk(dir, names)
    }
}

impl Base for Group<'_> {
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

    fn node(&self, path: &[String], suffix: &str) -> Result<Option<Node>> {
        match path {
            [] => Ok(None),
            path => self.find(self.dir.clone(), path, suffix),
        }
    }

    fn in_store(&self, path: &[String], suffix: &str) -> Result<Option<Node>> {
        self.find(self.target.directory(&self.store)?, path, suffix)
    }

    fn scratch(&self) -> Scratch {
        self.target.layer().scratch()
    }
}

/// Returns the size in the mount of the dataset at the path of an object, if its elements are shown as stored.
fn shown_size(new: &NewFile, path: &[String]) -> Option<u64> {
    let dataset = new.dataset(path)?;
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
