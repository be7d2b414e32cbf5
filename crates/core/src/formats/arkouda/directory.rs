//! Groups of a set as directories: the root, nested groups, and objects that consist of several arrays.
//!
//! An object is shown as a file, a directory, both, or a file whose error describes the problem. Some objects require
//! certain members, and some members have numbers that refer to other members.

mod many;

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde_json::{Value as Json, json};

use self::many::NumberTable;
use super::NAME;
use super::array::{ArrayNode, ArraySource, BrokenArray, Origin};
use super::kind::{ArkoudaKind, kind};
use super::labels::Labels;
use super::limbs::{Limb, Limbs, MaxBits};
use super::marks::METADATA;
use super::numbers::{NumberKind, Numbers, NumbersOf, Segments, Values, counts};
use super::object::{HdfObject, JoinedObject, Object, elements, total};
use super::set::LocaleSet;
use super::strings::{Strings, values_dtype};
use crate::dataset::text;
use crate::formats::plain::group::MANY_OF_A_KIND;
use crate::formats::plain::text::TextDirectory;
use crate::tree::name::visible_with;
use crate::tree::{Directory, Listing, Node, info};
use npyfs_base::error::{Error, Result};
use npyfs_base::heap;
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::{Attribute, ElementType};
use npyfs_io::content::{Concat, Content};
use npyfs_io::file::Ownership;

/// A group, or an object with members.
pub struct ObjectDirectory {
    origin: Origin,
    kind: ArkoudaKind,
    /// The strings, if it is `Strings`: shared with the file beside it, so that they are measured once.
    strings: Option<Arc<Strings>>,
    /// The group with its members, until it is listed; of a group `origin` does not hold them.
    scanned: Mutex<Option<JoinedObject>>,
    /// The number of its members in each part, once it is listed.
    members: OnceLock<Vec<usize>>,
    listed: Mutex<Option<Arc<Listing>>>,
}

/// A listing under construction.
#[derive(Default)]
struct ObjectListing {
    entries: Vec<(Vec<u8>, Node)>,
    left_out: Vec<(Vec<u8>, String)>,
    notes: Vec<String>,
    /// The arrays of numbers of a large group, those that are in no `entries`.
    table: Option<NumberTable>,
}

impl ObjectDirectory {
    /// The root groups of a set, joined.
    pub fn root(set: Arc<LocaleSet>) -> Result<Self> {
        let joined = set.root()?;
        Ok(Self::new(&set, joined, ArkoudaKind::Group, None))
    }

    fn new(
        set: &Arc<LocaleSet>,
        joined: JoinedObject,
        kind: ArkoudaKind,
        strings: Option<Arc<Strings>>,
    ) -> Self {
        Self {
            origin: Origin {
                set: set.clone(),
                joined: match kind {
                    ArkoudaKind::Group => joined.unread(),
                    _ => joined.clone(),
                },
                object_type: kind.name(),
            },
            kind,
            strings,
            scanned: Mutex::new(Some(joined)),
            members: OnceLock::new(),
            listed: Mutex::default(),
        }
    }

    fn visible(&self, name: &[u8], suffix: &str) -> Vec<u8> {
        visible_with(name, suffix, self.origin.set.context.options.sep)
    }

    fn origin_of(&self, joined: &JoinedObject, kind: ArkoudaKind) -> Arc<Origin> {
        Arc::new(Origin {
            set: self.origin.set.clone(),
            joined: joined.clone(),
            object_type: kind.name(),
        })
    }

    fn build(&self) -> Result<Listing> {
        let set = &self.origin.set;
        let scanned = self.scanned.lock().take();
        let group = set.entered(scanned.as_ref().unwrap_or(&self.origin.joined))?;
        drop(scanned);
        let mut to = ObjectListing::default();
        let is_root = group.path.is_empty();
        let members = |part: &Option<Arc<Object>>| part.as_ref().map_or(0, |o| o.members().len());
        let counts = self
            .members
            .get_or_init(|| group.parts.iter().map(members).collect());
        let count = counts.iter().copied().max().unwrap_or(0);
        if self.kind == ArkoudaKind::Group && count >= MANY_OF_A_KIND {
            to.table = Some(NumberTable::new(set, &group));
        }
        match self.kind {
            ArkoudaKind::Strings => self.strings_members(&group, &mut to),
            ArkoudaKind::SegArray => self.segarray(&group, &mut to),
            ArkoudaKind::Bigint => self.limbs(&group, &mut to)?,
            ArkoudaKind::IPv4 | ArkoudaKind::ArrayView => self.named(&group, &mut to)?,
            _ => {
                for member in group.members() {
                    if is_root && member.name() == METADATA {
                        let why = "the mark of file version 1.0, without data".to_owned();
                        to.left_out.push((METADATA.to_vec(), why));
                        continue;
                    }
                    self.member(&group, &member, &mut to);
                }
            }
        }
        self.missing_members(&group, &mut to);
        let journal = &set.context.journal;
        for note in &to.notes {
            journal.add(&format!("{}: {}/{note}", set.path.display(), group.path()));
        }
        let fault: Vec<_> = set.fault().filter(|_| is_root).into_iter().collect();
        for fault in &fault {
            journal.add(&format!("{}: {fault}", set.path.display()));
            to.notes.push(fault.clone());
        }
        drop(group);
        let mut listing = Listing::new(to.entries, to.left_out, to.notes).with_damage(fault);
        listing.many = to.table.map(|table| Arc::new(table.finish()) as _);
        heap::return_free_memory_of(count);
        Ok(listing)
    }
}

impl Directory for ObjectDirectory {
    fn ownership(&self) -> Ownership {
        self.origin.ownership()
    }

    fn format(&self) -> Result<&'static str> {
        Ok(NAME)
    }

    fn list(&self) -> Result<Arc<Listing>> {
        let mut listed = self.listed.lock();
        if let Some(listing) = &*listed {
            return Ok(listing.clone());
        }
        let listing = Arc::new(self.build()?);
        *listed = Some(listing.clone());
        Ok(listing)
    }

    fn is_current(&self) -> bool {
        self.origin.set.is_current()
    }

    fn info(&self) -> Result<Json> {
        let listing = self.list()?;
        let mut map = self.origin.info();
        if self.origin.joined.path.is_empty() {
            map.insert("path".into(), json!("/"));
            map.insert("type".into(), json!("file"));
        }
        map.insert("entries".into(), json!(listing.len()));
        map.insert("left_out".into(), info::left_out(&listing.left_out));
        map.insert("notes".into(), json!(listing.notes));
        let members = |part: usize| {
            let object = self.origin.joined.parts.get(part).and_then(Option::as_ref);
            let Some(object) = object else {
                return json!({});
            };
            if self.kind == ArkoudaKind::Group {
                let counts = self.members.get();
                return json!({ "members": counts.and_then(|counts| counts.get(part)) });
            }
            let datasets = object.members().iter().filter_map(|(name, member)| {
                let count = elements(member.dataset()?);
                Some((String::from_utf8_lossy(name).into_owned(), json!(count)))
            });
            json!({ "elements": datasets.collect::<serde_json::Map<_, _>>() })
        };
        map.insert("locales".into(), self.origin.set.locales(members));
        map.insert("attributes".into(), info::attributes(&self.attributes()?));
        Ok(map.into())
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        self.origin.attributes()
    }
}

/// The deepest nesting of groups that is shown.
const DEEPEST: usize = 256;

impl ObjectDirectory {
    /// Adds an object that cannot be shown.
    fn broken(&self, joined: &JoinedObject, error: Error, to: &mut ObjectListing) {
        let what = String::from_utf8_lossy(joined.name()).into_owned();
        to.notes.push(format!("{what}: {}", error.message));
        let error = error.about(joined.path());
        let origin = Arc::new(Origin {
            set: self.origin.set.clone(),
            joined: joined.clone(),
            object_type: "unknown",
        });
        to.entries.push((
            self.visible(joined.name(), ".npy"),
            Node::File(Arc::new(BrokenArray { origin, error })),
        ));
    }

    fn file(
        &self,
        joined: &JoinedObject,
        kind: ArkoudaKind,
        array: Arc<dyn ArraySource>,
        to: &mut ObjectListing,
    ) {
        self.file_at(self.origin_of(joined, kind), array, to);
    }

    fn file_at(&self, origin: Arc<Origin>, array: Arc<dyn ArraySource>, to: &mut ObjectListing) {
        to.entries.push((
            self.visible(origin.joined.name(), ".npy"),
            Node::File(Arc::new(ArrayNode {
                origin,
                array,
                is_remade: false,
            })),
        ));
    }

    fn directory(
        &self,
        joined: &JoinedObject,
        kind: ArkoudaKind,
        strings: Option<Arc<Strings>>,
        to: &mut ObjectListing,
    ) {
        let directory = Self::new(&self.origin.set, joined.clone(), kind, strings);
        to.entries.push((
            self.visible(joined.name(), ""),
            Node::Directory(Arc::new(directory)),
        ));
    }

    /// Adds one object in all of its forms.
    fn member(&self, group: &JoinedObject, member: &JoinedObject, to: &mut ObjectListing) {
        let set = &self.origin.set;
        if let Some(why) = foreign(member) {
            to.left_out.push((member.name().to_vec(), why));
            return;
        }
        if let Some(fault) = set.fault() {
            // Reported once, at the root.
            let notes = to.notes.len();
            self.broken(member, Error::damaged(fault), to);
            to.notes.truncate(notes);
            return;
        }
        let shown = self.looked_into(member).and_then(|member| {
            let kind = kind(set, &member)?;
            self.show(group, &member, kind, to)
        });
        if let Err(e) = shown {
            self.broken(member, e, to);
        }
    }

    /// Returns an object with its members, if its attributes say that it has any.
    fn looked_into(&self, member: &JoinedObject) -> Result<JoinedObject> {
        let is_marked = |object: &Arc<Object>| object.marks.object_type.is_some();
        if member.objects().any(is_marked) {
            self.origin.set.entered(member)
        } else {
            Ok(member.clone())
        }
    }

    fn show(
        &self,
        group: &JoinedObject,
        member: &JoinedObject,
        kind: ArkoudaKind,
        to: &mut ObjectListing,
    ) -> Result<()> {
        let origin = self.origin_of(member, kind);
        match kind {
            ArkoudaKind::ArrayView | ArkoudaKind::Pdarray | ArkoudaKind::IPv4 => {
                if let Some(node) = self.plain(&origin, member) {
                    to.entries.push(node);
                    return Ok(());
                }
                match self.points_into(group, member) {
                    Some(values) => {
                        let segments = Segments::new(&origin, member, values)?;
                        self.file_at(origin, Arc::new(segments), to);
                    }
                    None => self.numbers(origin, meaning(group, member), to)?,
                }
                if kind != ArkoudaKind::Pdarray {
                    self.directory(member, kind, None, to);
                }
            }
            ArkoudaKind::Datetime | ArkoudaKind::Timedelta => {
                let meaning = match kind {
                    ArkoudaKind::Datetime => NumberKind::Datetime,
                    _ => NumberKind::Timedelta,
                };
                self.numbers(origin, meaning, to)?;
            }
            ArkoudaKind::Bigint => {
                let array = Limbs::new(&origin, member)?;
                self.file(member, kind, Arc::new(array), to);
                self.directory(member, kind, None, to);
            }
            ArkoudaKind::Strings => {
                let strings = Arc::new(Strings::new(&origin, member)?);
                self.strings(member, kind, strings.fixed_width(), strings.too_wide(), to);
                self.directory(member, kind, Some(strings), to);
            }
            ArkoudaKind::Categorical => {
                match self.labels(member) {
                    Ok(labels) => {
                        let too_wide = labels.too_wide();
                        self.strings(member, kind, Arc::new(labels), too_wide, to);
                    }
                    Err(e) => self.broken(member, e, to),
                }
                self.directory(member, kind, None, to);
            }
            ArkoudaKind::Group => self.group(member, to),
            ArkoudaKind::SegArray
            | ArkoudaKind::GroupBy
            | ArkoudaKind::DataFrame
            | ArkoudaKind::Index
            | ArkoudaKind::MultiIndex => {
                self.directory(member, kind, None, to);
            }
        }
        Ok(())
    }

    /// Adds an array of numbers: to the table of a large group, if it fits into it.
    fn numbers(
        &self,
        origin: Arc<Origin>,
        meaning: NumberKind,
        to: &mut ObjectListing,
    ) -> Result<()> {
        let array = numbers(&origin, meaning)?;
        let table = to.table.as_mut();
        if table
            .and_then(|table| table.add(&origin, meaning))
            .is_none()
        {
            self.file_at(origin, array, to);
        }
        Ok(())
    }

    /// Returns a dataset that Arkouda would not write, in a single file: as shown by plain HDF5.
    fn plain(&self, origin: &Origin, member: &JoinedObject) -> Option<(Vec<u8>, Node)> {
        let [Some(object)] = member.parts.as_slice() else {
            return None;
        };
        let file = Arc::new(origin.dataset(0, object, member)?);
        if !matches!(
            file.dataset.element,
            ElementType::Text { .. } | ElementType::Record { .. }
        ) {
            return None;
        }
        Some(match text::is_over_limit(&file.store, &file.dataset) {
            Ok(true) => (
                self.visible(member.name(), ""),
                Node::Directory(Arc::new(TextDirectory::of_text(file))),
            ),
            Ok(false) | Err(_) => (self.visible(member.name(), ".npy"), Node::File(file)),
        })
    }

    /// Adds a group without an Arkouda meaning; one that was found before is left out.
    fn group(&self, member: &JoinedObject, to: &mut ObjectListing) {
        if member.path.len() > DEEPEST {
            let why = "groups nested too deeply".to_owned();
            to.left_out.push((member.name().to_vec(), why));
            return;
        }
        let first = self.origin.set.parts.first().zip(member.parts.first());
        if let Some((part, Some(object))) = first
            && let HdfObject::Group { addr, links, .. } = object.what
        {
            match part.store.first_path(addr, links, &member.path) {
                Ok(None) => {}
                Ok(Some(first)) => {
                    let names = first.iter().map(|name| String::from_utf8_lossy(name));
                    let path = names.fold(String::new(), |path, name| path + "/" + &name);
                    let why = format!("the same group as {path}/");
                    to.left_out.push((member.name().to_vec(), why));
                    return;
                }
                Err(e) => return self.broken(member, e, to),
            }
        }
        self.directory(member, ArkoudaKind::Group, None, to);
    }

    /// Adds text at a fixed width, or a note why it is not available.
    fn strings(
        &self,
        joined: &JoinedObject,
        kind: ArkoudaKind,
        array: Arc<dyn ArraySource>,
        too_wide: Result<Option<String>>,
        to: &mut ObjectListing,
    ) {
        match too_wide {
            Ok(Some(why)) => {
                let name = self.visible(joined.name(), ".npy");
                to.left_out.push((name, why));
            }
            // A dataset that cannot be measured reports this when it is opened.
            Ok(None) | Err(_) => self.file(joined, kind, array, to),
        }
    }

    fn labels(&self, member: &JoinedObject) -> Result<Labels> {
        let set = &self.origin.set;
        let need = |name: &str| {
            let found = member.member(name);
            found.ok_or_else(|| Error::damaged(format!("a Categorical without {name}")))
        };
        let (codes, categories) = (need("codes")?, need("categories")?);
        for joined in [&codes, &categories] {
            kind(set, joined).map_err(|e| e.about(String::from_utf8_lossy(joined.name())))?;
        }
        let origin = self.origin_of(&categories, ArkoudaKind::Strings);
        let categories = Arc::new(Strings::new(&origin, &categories)?);
        let origin = self.origin_of(&codes, ArkoudaKind::Pdarray);
        Labels::new(&origin, &codes, categories)
    }
}

/// Returns a joined array of numbers, after a check that its parts match. A file may contain very many: state that
/// follows from the origin is not kept.
fn numbers(origin: &Arc<Origin>, meaning: NumberKind) -> Result<Arc<dyn ArraySource>> {
    Numbers::new(origin, &origin.joined, meaning)?;
    Ok(Arc::new(NumbersOf(origin.clone(), meaning)))
}

/// Returns why an entry that cannot be an Arkouda object is left out; `None` if any part has an object of its name.
fn foreign(member: &JoinedObject) -> Option<String> {
    let mut whys = member.objects().map(|object| match &object.what {
        HdfObject::Foreign(why) => Some(why.clone()),
        _ => None,
    });
    let first = whys.next().flatten()?;
    whys.all(|why| why.is_some()).then_some(first)
}

/// Returns whether numbers are booleans: if any part says so, of the array or of its SegArray.
fn meaning(group: &JoinedObject, member: &JoinedObject) -> NumberKind {
    let says = |joined: &JoinedObject| joined.objects().any(|object| object.marks.is_bool);
    if says(member) || (member.name() == b"values" && says(group)) {
        NumberKind::Bool
    } else {
        NumberKind::AsStored
    }
}

impl ObjectDirectory {
    /// Adds the required members of an object of this kind that are missing, under the names they would have.
    fn missing_members(&self, group: &JoinedObject, to: &mut ObjectListing) {
        let claimed = group.objects().find_map(|object| object.marks.members);
        let numbered = |prefix: &str| -> Vec<String> {
            // A wrong number must not fill the directory.
            let there = group.members().len() as u64;
            let count = claimed.unwrap_or(1).min(there + 1);
            (0..count).map(|i| format!("{prefix}_{i}")).collect()
        };
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let required: Vec<String> = match self.kind {
            ArkoudaKind::SegArray => names(&["segments", "values"]),
            ArkoudaKind::Categorical => names(&["codes", "categories", "NA_Codes"]),
            ArkoudaKind::GroupBy => {
                let mut all: Vec<String> = names(&["segments", "permutation", "unique_key_idx"]);
                all.extend(numbered("KEY"));
                all
            }
            ArkoudaKind::Index | ArkoudaKind::MultiIndex => numbered("IDX"),
            ArkoudaKind::DataFrame => names(&["Index"]),
            _ => Vec::new(),
        };
        for name in required {
            if group.member(&name).is_some() {
                continue;
            }
            let joined = JoinedObject {
                path: [group.path.as_slice(), &[name.clone().into_bytes()]].concat(),
                parts: vec![None; group.parts.len()],
            };
            let why = format!("a {} must have it, and there is none", self.kind.name());
            self.broken(&joined, Error::damaged(why), to);
        }
    }

    /// Returns the values to which a member called `segments` refers; `None` for other members.
    fn points_into(&self, group: &JoinedObject, member: &JoinedObject) -> Option<Values> {
        let of = match self.kind {
            ArkoudaKind::GroupBy | ArkoudaKind::Categorical if member.name() == b"segments" => {
                "permutation"
            }
            _ => return None,
        };
        let all = group.member(of)?;
        let lengths = all.objects().map(|object| {
            let shape = &object.dataset()?.shape;
            shape.first().copied().filter(|_| shape.len() == 1)
        });
        let lengths: Option<Vec<u64>> = lengths.collect();
        Some(Values::Together(total(lengths?)))
    }

    /// Adds `values` and `segments` of strings.
    fn strings_members(&self, group: &JoinedObject, to: &mut ObjectListing) {
        let Some(strings) = &self.strings else {
            return;
        };
        let values = group.member("values");
        if let Some(values) = values {
            let array = Arc::new(AllBytes(strings.clone()));
            self.file(&values, ArkoudaKind::Pdarray, array, to);
        }
        if let Ok(Some(why)) = strings.too_wide() {
            to.notes.push(format!("not shown at fixed width: {why}"));
        }
        let segments = group.member("segments").unwrap_or_else(|| JoinedObject {
            path: [group.path.as_slice(), &[b"segments".to_vec()]].concat(),
            parts: vec![None; group.parts.len()],
        });
        self.file(&segments, ArkoudaKind::Pdarray, strings.segments(), to);
        for member in group.members() {
            if !matches!(member.name(), b"values" | b"segments") {
                self.member(group, &member, to);
            }
        }
    }

    /// Adds `values` of any kind, and the `segments` that refer to them.
    fn segarray(&self, group: &JoinedObject, to: &mut ObjectListing) {
        for member in group.members() {
            if member.name() != b"segments" {
                self.member(group, &member, to);
            }
        }
        let Some(segments) = group.member("segments") else {
            return;
        };
        let shown = kind(&self.origin.set, &segments).and_then(|_| {
            let origin = self.origin_of(&segments, ArkoudaKind::Pdarray);
            Segments::new(
                &origin,
                &segments,
                Values::ByPart(counts(&self.origin.set, group)?),
            )
        });
        match shown {
            Ok(array) => self.file(&segments, ArkoudaKind::Pdarray, Arc::new(array), to),
            Err(e) => self.broken(&segments, e, to),
        }
    }

    /// Adds the limbs of integers, and the number of bits of each integer, if it is limited.
    fn limbs(&self, group: &JoinedObject, to: &mut ObjectListing) -> Result<()> {
        let origin = self.origin_of(group, ArkoudaKind::Bigint);
        let limbs = Arc::new(Limbs::new(&origin, group)?);
        for number in 0..limbs.width() {
            let array = Limb {
                limbs: limbs.clone(),
                number,
            };
            self.entry(&format!("Limb_{number}"), &origin, Arc::new(array), to);
        }
        let bits = group.objects().find_map(|object| object.marks.max_bits);
        if let Some(bits) = bits.and_then(|bits| i64::try_from(bits).ok()) {
            self.entry("MaxBits", &origin, Arc::new(MaxBits(bits)), to);
        }
        Ok(())
    }

    /// Adds the array itself under a name that tells its kind, which its elements do not.
    fn named(&self, joined: &JoinedObject, to: &mut ObjectListing) -> Result<()> {
        let origin = self.origin_of(joined, self.kind);
        let array = numbers(&origin, NumberKind::AsStored)?;
        self.entry(self.kind.name(), &origin, array, to);
        Ok(())
    }

    fn entry(
        &self,
        name: &str,
        of: &Arc<Origin>,
        array: Arc<dyn ArraySource>,
        to: &mut ObjectListing,
    ) {
        let node = ArrayNode {
            origin: of.clone(),
            array,
            is_remade: false,
        };
        let name = self.visible(name.as_bytes(), ".npy");
        to.entries.push((name, Node::File(Arc::new(node))));
    }
}

/// The concatenated values of strings.
struct AllBytes(Arc<Strings>);

impl ArraySource for AllBytes {
    fn form(&self) -> Result<(DType, Vec<u64>)> {
        Ok((values_dtype(), vec![total(self.0.bytes())]))
    }

    fn payload(&self) -> Result<Arc<dyn Content>> {
        let parts = self.0.values().filter(|part| part.dataset.shape != [0]);
        let payloads = parts.map(|part| Ok(Arc::new(part.payload()?) as Arc<dyn Content>));
        Ok(Arc::new(Concat::new(payloads.collect::<Result<Vec<_>>>()?)))
    }

    fn part(&self, number: usize) -> Json {
        json!({ "elements": self.0.bytes().get(number) })
    }
}
