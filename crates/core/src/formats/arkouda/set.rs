//! The files of one Arkouda data set: a single one, or one per locale.
//!
//! A set has one version: that of its files, all of which stay open. A fault of the set as a whole (a part that is
//! missing, duplicated or cannot be opened) is a fault of every object in it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use parking_lot::Mutex;
use serde_json::{Value as Json, json};
use xxhash_rust::xxh3::Xxh3;

use super::NAME;
use super::marks::{Marks, NAMES};
use super::object::{HdfObject, JoinedObject, Object, folded};
use crate::dataset::context::Context;
use crate::dataset::opened::OpenStore;
use crate::store::format::{FileSet, PartNames};
use npyfs_base::error::{Error, Result};
use npyfs_base::thread;
use npyfs_hdf5::H5Error;
use npyfs_io::file::Identity;

/// The names of the files of a set. Source: Arkouda, `src/FileIO.chpl` lines 148 to 211; old releases wrote the number
/// without zeros in front.
pub(super) const PARTS: PartNames = PartNames {
    format: NAME,
    mark: "_LOCALE",
    digits: 4,
};

/// Parts that are requested concurrently if they are remote.
const AT_ONCE: usize = 32;

/// One version of a set.
pub struct LocaleSet {
    /// The cache, workers and threads for reading.
    pub context: Arc<Context>,
    /// The file, or a pattern for all of them.
    pub path: PathBuf,
    /// The files that could be opened, in the order of their locales.
    pub parts: Vec<LocaleFile>,
    /// Faults of the set as a whole.
    pub faults: Vec<String>,
    /// The files in which the parts were found; `None` for a single file.
    found: Option<FoundFiles>,
    /// The time of the last check for newer versions of remote parts.
    asked: Mutex<Instant>,
    version: u64,
}

/// A file of a set.
pub struct LocaleFile {
    /// The number in its name; `None` for a single file.
    pub locale: Option<u64>,
    pub store: Arc<OpenStore>,
}

impl LocaleFile {
    /// Returns its name in messages.
    pub fn name(&self) -> String {
        let path = &self.store.file.path;
        path.file_name()
            .unwrap_or(path.as_os_str())
            .to_string_lossy()
            .into_owned()
    }
}

struct FoundFiles {
    set: FileSet,
    top: PathBuf,
    files: Vec<PathBuf>,
    /// Files that could not be opened, with their identity at that time.
    unopened: Vec<(PathBuf, Option<Identity>)>,
    /// The directory's time when these were all of its files.
    checked: Mutex<Option<SystemTime>>,
}

/// Applies `work` to each item, concurrently where it waits for a network; returns the results in order.
fn at_once<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let work = &work;
    thread::scope(|scope| {
        items
            .chunks(items.len().div_ceil(AT_ONCE).max(1))
            .map(|some| scope.spawn(move || some.iter().map(work).collect::<Vec<_>>()))
            .collect::<Vec<_>>()
            .into_iter()
            .flat_map(|running| match running.join() {
                Ok(made) => made,
                Err(panicked) => std::panic::resume_unwind(panicked),
            })
            .collect()
    })
}

fn changed(dir: &Path) -> Option<SystemTime> {
    std::fs::metadata(dir).and_then(|meta| meta.modified()).ok()
}

fn identity(path: &Path) -> Option<Identity> {
    let meta = std::fs::metadata(path).ok()?;
    Some(Identity::from_metadata(&meta))
}

impl FoundFiles {
    fn files(set: &FileSet, top: &Path, context: &Context) -> Result<Vec<PathBuf>> {
        let parts = set.parts(top, context.options.external)?;
        Ok(parts.into_values().flatten().flatten().collect())
    }

    /// Returns whether no part was added or removed, and none of the unopened files has changed.
    fn is_current(&self, context: &Context) -> bool {
        if self.set.is_elsewhere() && !self.unopened.is_empty() {
            return false;
        }
        if self
            .unopened
            .iter()
            .any(|(path, was)| identity(path) != *was)
        {
            return false;
        }
        let now = changed(&self.set.dir);
        let mut checked = self.checked.lock();
        if now.is_some() && *checked == now {
            return true;
        }
        let same =
            Self::files(&self.set, &self.top, context).is_ok_and(|files| files == self.files);
        if same {
            *checked = now;
        }
        same
    }
}

impl LocaleSet {
    /// Makes a set of one file.
    pub fn single(store: Arc<OpenStore>) -> Self {
        Self {
            context: store.context.clone(),
            path: store.file.path.clone(),
            version: store.file.identity.number(),
            parts: vec![LocaleFile {
                locale: None,
                store,
            }],
            faults: Vec::new(),
            found: None,
            asked: Mutex::new(Instant::now()),
        }
    }

    /// Makes a set of open files, in the order of their locales; `None` without files.
    pub fn new(stores: &[Arc<OpenStore>]) -> Option<Self> {
        let first = Self::single(stores.first()?.clone());
        let parts = stores.iter().zip(0..).map(|(store, number)| LocaleFile {
            locale: Some(number).filter(|_| stores.len() > 1),
            store: store.clone(),
        });
        Some(Self {
            parts: parts.collect(),
            ..first
        })
    }

    /// Opens the files of a set below the mounted directory `top`.
    pub fn open(context: &Arc<Context>, set: &FileSet, top: &Path) -> Result<Self> {
        let before = changed(&set.dir);
        let there = set.parts(top, context.options.external)?;
        let files: Vec<PathBuf> = there.values().flatten().flatten().cloned().collect();
        let mut opened = Self::open_together(context, set, &files);
        let (mut parts, mut faults, mut unopened) = (Vec::new(), Vec::new(), Vec::new());
        let mut expected = 0;
        let missing = |from: u64, to: u64| {
            let names = (from..to).take(3).map(|n| set.part_name(n));
            let names = names.collect::<Vec<_>>().join(", ");
            let more = if to - from > 3 { ", ..." } else { "" };
            format!("not there: {names}{more}")
        };
        let wanted = context.options.locales;
        for (locale, same) in there {
            if locale > expected {
                faults.push(missing(expected, locale));
            }
            if let Some(wanted) = wanted.filter(|&wanted| wanted == locale) {
                let name = set.part_name(locale);
                faults.push(format!("{name} is one more than locales={wanted}"));
            }
            expected = locale.saturating_add(1);
            if same.len() > 1 {
                faults.push(format!("locale {locale} has {} files", same.len()));
            }
            for part in same {
                let path = match part {
                    Ok(path) => path,
                    Err(why) => {
                        faults.push(why);
                        continue;
                    }
                };
                let was = identity(&path);
                let part = opened.remove(&path);
                match part.unwrap_or_else(|| OpenStore::open_part(context, &path)) {
                    Ok(store) => parts.push(LocaleFile {
                        locale: Some(locale),
                        store,
                    }),
                    Err(e) if e.is_passing() => return Err(e),
                    Err(e) => {
                        faults.push(e.message);
                        unopened.push((path, was));
                    }
                }
            }
        }
        if let Some(wanted) = wanted.filter(|&wanted| expected < wanted) {
            let missing = missing(expected, wanted);
            faults.push(format!("{missing} of locales={wanted}"));
        }
        let Some(first) = parts.first() else {
            let why = faults.join("; ");
            let why = if why.is_empty() {
                "no such files".into()
            } else {
                why
            };
            return Err(Error::damaged(why).about(set.pattern().display()));
        };
        let mut hash = Xxh3::new();
        for part in &parts {
            hash.update(&part.store.file.identity.number().to_le_bytes());
        }
        for fault in &faults {
            hash.update(fault.as_bytes());
        }
        Ok(Self {
            context: first.store.context.clone(),
            path: set.pattern(),
            parts,
            faults,
            found: Some(FoundFiles {
                set: set.clone(),
                top: top.to_owned(),
                files,
                unopened,
                checked: Mutex::new(before),
            }),
            asked: Mutex::new(Instant::now()),
            version: hash.digest(),
        })
    }

    /// Opens the files of a remote set concurrently; returns none for a local set.
    fn open_together(
        context: &Arc<Context>,
        set: &FileSet,
        files: &[PathBuf],
    ) -> HashMap<PathBuf, Result<Arc<OpenStore>>> {
        if !set.is_elsewhere() {
            return HashMap::new();
        }
        let open = |path: &PathBuf| (path.clone(), OpenStore::open_part(context, path));
        at_once(files, open).into_iter().collect()
    }

    /// Returns a number that identifies this version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns whether the files on disk are still these.
    pub fn is_current(&self) -> bool {
        let found = self.found.as_ref();
        if found.is_some_and(|found| !found.is_current(&self.context)) {
            return false;
        }
        let is_current = |part: &LocaleFile| part.store.file.is_current();
        if found.is_none_or(|found| !found.set.is_elsewhere()) {
            return self.parts.iter().all(is_current);
        }
        // Each check takes a request: they are sent concurrently.
        let mut asked = self.asked.lock();
        if asked.elapsed() < self.context.options.remote.check {
            let mut parts = self.parts.iter();
            return parts.all(|part| part.store.file.is_unchanged());
        }
        let current = at_once(&self.parts, is_current);
        *asked = Instant::now();
        current.into_iter().all(|is| is)
    }

    /// Returns the faults of the set as a whole.
    pub fn fault(&self) -> Option<String> {
        (!self.faults.is_empty()).then(|| self.faults.join("; "))
    }

    /// Returns the name of the part with this number.
    pub fn name(&self, part: usize) -> String {
        self.parts
            .get(part)
            .map(LocaleFile::name)
            .unwrap_or_default()
    }

    /// Returns the report for `info`: that of `about` for each part, preceded by its locale and file.
    pub fn locales(&self, about: impl Fn(usize) -> Json) -> Json {
        let parts = self.parts.iter().enumerate();
        parts
            .map(|(number, part)| {
                let mut json = json!({
                    "locale": part.locale,
                    "file": part.store.file.path.to_string_lossy(),
                });
                if let (Some(to), Json::Object(more)) = (json.as_object_mut(), about(number)) {
                    to.extend(more);
                }
                json
            })
            .collect()
    }

    /// Returns the joined root groups.
    pub fn root(&self) -> Result<JoinedObject> {
        let addresses: Vec<_> = self
            .parts
            .iter()
            .map(|part| Some(part.store.root))
            .collect();
        self.scan(Vec::new(), &addresses)
    }

    /// Returns a group with its members, which are read if they have not been yet.
    pub fn entered(&self, group: &JoinedObject) -> Result<JoinedObject> {
        let unknown =
            |object: &Arc<Object>| matches!(object.what, HdfObject::Group { members: None, .. });
        if !group.objects().any(unknown) {
            return Ok(group.clone());
        }
        let addresses: Vec<_> = group
            .parts
            .iter()
            .map(|part| part.as_ref().filter(|o| o.is_group())?.addr())
            .collect();
        let mut entered = self.scan(group.path.clone(), &addresses)?;
        for (part, known) in entered.parts.iter_mut().zip(&group.parts) {
            // An empty locale may hold a dataset here.
            *part = part.take().or_else(|| known.clone());
        }
        Ok(entered)
    }

    fn scan(&self, path: Vec<Vec<u8>>, groups: &[Option<u64>]) -> Result<JoinedObject> {
        let h5 = &self.context.h5;
        let parts = self
            .parts
            .iter()
            .zip(groups)
            .map(|(part, group)| {
                let Some(addr) = *group else { return Ok(None) };
                let file = &part.store.file;
                let scan = |depth| h5.scan(file, addr, &NAMES, (usize::MAX, depth), Object::new);
                // Damage below must not affect everything: the objects are then examined individually.
                let scan = match scan(usize::MAX) {
                    Err(H5Error::Damaged(_)) => scan(0),
                    scan => scan,
                }?;
                if let Some(damage) = scan.damage {
                    // A missing object is detected when the parts are compared.
                    self.context.journal.add(&format!(
                        "{}: a group is damaged, some members are missing: {damage}",
                        part.store.file.path.display()
                    ));
                }
                let name = path.last().map(Vec::as_slice);
                Ok(Some(Arc::new(Object {
                    marks: Marks::from_attributes(&scan.attributes),
                    what: HdfObject::Group {
                        addr,
                        links: 1,
                        members: Some(folded(name, scan.members)),
                    },
                    stored_as: None,
                })))
            })
            .collect::<Result<_>>()?;
        Ok(JoinedObject { path, parts })
    }
}
