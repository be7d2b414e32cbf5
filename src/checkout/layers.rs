//! The layers of a store as the target of a writable mount: what is finished goes into the layer of one
//! checkout, and the view shows it.

mod begin;
mod group;
mod path;

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value as Json, json};

use super::axes::Axes;
use super::checkouts::{Checkouts, LayerFiles, OpenCheckout};
use super::fit::StoreIdentity;
use super::index::KeptMember;
use super::layer::{Layer, NewMember};
use super::object::{NewFile, PackScope};
use super::syncer::Syncer;
use super::target::{
    Deletion, IncompleteObject, Made, Part, PartPlace, PathNames, Restored, Role, StoreOutcome,
    Target, Unstored,
};
use super::view::View;
use crate::checkout::encode::{ObjectKey, Plan};
use crate::checkout::format::Registry;
use crate::checkout::format::{self, Format};
use crate::dataset::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::hdf5::Creator;
use crate::hdf5::program::program;
use crate::io::dir::Dir;
use crate::io::file::time;
use crate::io::scratch::Scratch;
use crate::io::storage::Disk;
use crate::tree::Directory;
use crate::tree::name::{self, SUFFIXES};

use group::{Group, shown_size};
use path::split_suffix;

/// A view and the layer on top of it that is written to.
pub struct LayerTarget {
    view: Arc<View>,
    layer: Arc<Layer>,
    _syncer: Syncer,
    /// The checkout's name.
    name: String,
    /// The file name of the store.
    store: Vec<u8>,
    context: Arc<Context>,
    /// Axes in use: each is held alone by a deletion, shared by what is stored along it.
    axes: Axes,
}

impl LayerTarget {
    /// Opens the checkout `name` of the store that `base` shows, on top of what is committed.
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
        let creator = |dir: &Dir| Creator::worker(program(), &dir.path_of_descriptor());
        let OpenCheckout { layer, mut below } = checkouts.open(name, Arc::new(Disk), creator)?;
        below.push(layer.files());
        let view = over(base, context, formats, below);
        let layer = Arc::new(layer);
        let (journal, dir) = (context.clone(), layer.dir().to_owned());
        let syncer = Syncer::start(&layer, move |e| {
            let line = format!("{}: {}", dir.path().display(), e.message);
            journal.journal.add(&line);
        })?;
        Ok(Self {
            view,
            layer,
            _syncer: syncer,
            name: name.to_owned(),
            store: file_name(checkouts.store()),
            context: context.clone(),
            axes: Axes::default(),
        })
    }

    /// Returns the keys of the axes that an object lies along, if its store has axes.
    fn along(&self, object: &str) -> Vec<String> {
        let (above, name) = object.split_at(object.rfind('/').map_or(0, |at| at + 1));
        let axes = self.view.formats().along(name).into_iter();
        axes.map(|axis| format!("{above}{axis}")).collect()
    }

    /// Refuses to take an axis away that objects lie along; the log names them.
    fn check_unused(&self, key: &ObjectKey, above: &PathNames) -> Result<()> {
        /// Users that are named.
        const MOST: usize = 100;
        let axis = key.name();
        let Some(dir) = self.directory(above)? else {
            return Ok(());
        };
        let format = self.view.formats().of(&*dir)?;
        if !format.is_axis(axis) {
            return Ok(());
        }
        let mut users = Vec::new();
        for (shown, _) in dir.list()?.iter() {
            let stem = split_suffix(&shown).map_or(&*shown, |(stem, _)| stem);
            let own = name::own(stem, self.context.options.sep);
            let lies_along = |own| format.along(own).iter().any(|along| along == axis);
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
        let _showing = self.layer.showing([object.to_owned()]);
        let stored = self.layer.put(object, new, time)?;
        self.view.put(object, &stored, is_directory);
        Ok(())
    }

    /// Remembers what the store is that an object is written over, if nothing was before.
    fn know_store(&self, object: &str) -> Result<()> {
        let depth = self.store_depth(&self.view.shown(object))?;
        let names: Vec<&str> = object.split('/').take(depth).collect();
        let store = names.join("/");
        // What a layer begins is nothing that could be another store some day.
        if self.view.is_begun(&store) {
            return Ok(());
        }
        self.layer.know(&store, || match self.view.store(&store) {
            Some(dir) => StoreIdentity::of(&dir, &*self.view, self.view.formats()),
            None => Err(Error::new(ErrorKind::NotFound, "the store is gone")),
        })
    }

    /// Returns what becomes of an object's parts.
    fn plan(&self, object: &str, parts: &[Part]) -> Result<Planned> {
        let (key, above) = self.place(object)?;
        let dir = self.directory(&above)?;
        let format = self.format_for(dir.as_deref(), &above, key.name())?;
        let is_begun = format.name() != self.format(dir.as_deref())?.name();
        let store = above[..above.len().saturating_sub(key.group().len())].to_vec();
        let base = Group {
            target: self,
            dir,
            store,
        };
        Ok(match format::plan(&**format, &base, &key, parts)? {
            Plan::Incomplete(missing) => Planned::Incomplete(missing),
            Plan::Complete(mut new) => {
                if is_begun {
                    self.begin_group(&**format, &above)?;
                }
                new.size = shown_size(&new, key.path()).filter(|_| format.shows_as_stored(&new));
                new.scope = scope(&**format, object, &key);
                let file = parts.first().map(|part| &part.content);
                let against = self.view.against(object, file, format.has_axes())?;
                new.against = Some(Box::new(against));
                let single = parts.iter().all(|part| part.place.member.is_empty());
                let is_directory = !single || format.has_composites();
                Planned::Complete { new, is_directory }
            }
        })
    }
}

/// The outcome of planning parts.
enum Planned {
    Complete {
        new: NewFile,
        /// It may be shown as a directory.
        is_directory: bool,
    },
    /// Members are missing: these.
    Incomplete(Vec<String>),
}

/// A store with what is committed on top.
pub fn committed(
    base: Arc<dyn Directory>,
    context: &Arc<Context>,
    formats: &Registry,
    checkouts: &Checkouts,
) -> Result<Arc<dyn Directory>> {
    let layers = checkouts.committed()?;
    Ok(if layers.is_empty() {
        base
    } else {
        over(base, context, formats, layers).root()
    })
}

/// A store with layers on top, the lowest first.
pub fn over(
    base: Arc<dyn Directory>,
    context: &Arc<Context>,
    formats: &Registry,
    layers: Vec<LayerFiles>,
) -> Arc<View> {
    let view = View::new(base, context.clone(), formats);
    view.add_layers(layers);
    view
}

/// Returns whose objects an object may share a file with: those of its store, as far as they are of one format. A name by which a
/// format may be known would make all of the file another store.
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

/// The last name of a path.
fn file_name(path: &Path) -> Vec<u8> {
    let name = path.file_name().unwrap_or_default();
    name.as_encoded_bytes().to_vec()
}

fn refused(errno: i32, message: &str) -> Error {
    Error::new(ErrorKind::Os(errno), message)
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
        self.layer.scratch()
    }

    fn disk(&self) -> &Path {
        self.layer.dir().path()
    }

    fn store(&self, object: &str, parts: &[Part], time: SystemTime) -> Result<StoreOutcome> {
        let _axes = self.axes.share(self.along(object));
        match self.plan(object, parts)? {
            Planned::Incomplete(missing) => Ok(StoreOutcome::Incomplete(missing)),
            Planned::Complete { new, is_directory } => {
                self.put(object, &new, time, is_directory)?;
                Ok(StoreOutcome::Stored)
            }
        }
    }

    fn replace(
        &self,
        object: &str,
        parts: &[Part],
        time: SystemTime,
        gone: &[String],
    ) -> Result<StoreOutcome> {
        let _axes = self.axes.share(self.along(object));
        match self.plan(object, parts)? {
            Planned::Incomplete(missing) => Ok(StoreOutcome::Incomplete(missing)),
            Planned::Complete { new, is_directory } => {
                self.know_store(object)?;
                let changed = gone.iter().map(String::as_str).chain([object]);
                let _showing = self.layer.showing(changed.map(str::to_owned));
                let stored = self.layer.replace(object, &new, time, gone)?;
                self.view.put(object, &stored, is_directory);
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
        let store = above[..above.len().saturating_sub(key.group().len())].to_vec();
        let base = Group {
            target: self,
            dir,
            store,
        };
        format.deletion(&base, &key, &place.member)
    }

    fn remove(&self, object: &str) -> Result<()> {
        // What is no object of a store is a directory of such, which is empty.
        let place = self.place(object).ok();
        if place.is_some() {
            // What is deleted here is nothing to another store that comes in the place of this one.
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
        let _showing = self.layer.showing([object.to_owned()]);
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

    fn make_directory(&self, path: &PathNames, time: SystemTime) -> Result<Made> {
        let above = path.split_last().map_or(&[][..], |(_, above)| above);
        let Some(depth) = self.view.store_depth(above) else {
            return self.begin_store(path, time);
        };
        self.check_writable(above, depth)?;
        self.check_names(&path[depth..], "")?;
        if self.composite(depth, path, "")?.is_some() {
            return Ok(Made::Scratch);
        }
        let object = self.view.key(path)?;
        let (key, above) = self.place(&object)?;
        let new = format::group(&**self.format(self.directory(&above)?.as_deref())?, &key);
        self.put(&object, &new, time, true)?;
        Ok(Made::Stored)
    }

    fn remove_directory(&self, path: &PathNames) -> Result<()> {
        let above = path.split_last().map_or(&[][..], |(_, above)| above);
        if let Some(depth) = self.view.store_depth(above) {
            self.check_writable(above, depth)?;
            self.check_names(&path[depth..], "")?;
        }
        self.remove(&self.view.key(path)?)
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
        self.layer.keep(object, &members, (missing, why))
    }

    fn kept(&self) -> Vec<IncompleteObject> {
        let objects = self.layer.incomplete().into_iter();
        objects
            .map(|kept| {
                let open = |member: &KeptMember| {
                    // A file that is the whole object has but a suffix.
                    let whole = SUFFIXES.contains(&member.name.as_bytes());
                    let between = if whole { "" } else { "/" };
                    let path = format!("{}{between}{}", kept.object, member.name);
                    let path = self.view.shown(&path);
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
        Some(self.layer.dir().clone())
    }

    fn sync(&self) -> Result<()> {
        self.layer.sync()
    }

    fn note(&self, line: &str) {
        self.context.journal.add(line);
    }

    fn status(&self) -> Json {
        let entries = self.layer.entries();
        let deleted = entries.values().filter(|stored| stored.is_none()).count();
        json!({
            "name": self.name,
            "dir": self.layer.dir().path().to_string_lossy(),
            "objects": entries.len() - deleted,
            "deleted": deleted,
            "not_shown": self.view.misfits().len(),
            "lost": self.layer.lost().map(|e| e.message),
        })
    }
}
