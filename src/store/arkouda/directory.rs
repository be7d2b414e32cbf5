//! Groups of a set as directories: the root, nested groups, and objects that consist of several arrays.

use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};

use super::array::{Array, ArrayNode, Broken, Origin};
use super::kind::{Kind, kind};
use super::labels::Labels;
use super::limbs::{self, Limbs};
use super::numbers::{Meaning, Numbers, NumbersOf, Segments, Values};
use super::object::{Joined, What, elements, total};
use super::recognition::METADATA;
use super::set::LocaleSet;
use super::strings::{Strings, values_dtype};
use crate::content::{Concat, Content};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::h5::{Attribute, Element};
use crate::info;
use crate::raw::Ownership;
use crate::store::text;
use crate::tree::name::visible_with;
use crate::tree::{Directory, Listing, Node};

/// Groups below each other that are shown.
const DEEPEST: usize = 256;

/// A group, or an object that has members.
pub struct ObjectDirectory {
    origin: Origin,
    kind: Kind,
    /// Its strings, if it is `Strings`: shared with the file beside it, so that they are measured once.
    strings: Option<Arc<Strings>>,
    listed: Mutex<Option<Arc<Listing>>>,
}

/// A listing in the making.
#[derive(Default)]
struct Building {
    entries: Vec<(Vec<u8>, Node)>,
    left_out: Vec<(Vec<u8>, String)>,
    notes: Vec<String>,
}

impl ObjectDirectory {
    /// The root groups of a set, joined.
    pub fn root(set: Arc<LocaleSet>) -> Result<Self> {
        let joined = set.root()?;
        Ok(Self::new(&set, joined, Kind::Group, None))
    }

    fn new(
        set: &Arc<LocaleSet>,
        joined: Joined,
        kind: Kind,
        strings: Option<Arc<Strings>>,
    ) -> Self {
        Self {
            origin: Origin {
                set: set.clone(),
                joined,
                object_type: kind.name(),
            },
            kind,
            strings,
            listed: Mutex::default(),
        }
    }

    /// The set that is shown.
    pub fn set(&self) -> &Arc<LocaleSet> {
        &self.origin.set
    }

    fn visible(&self, name: &[u8], suffix: &str) -> Vec<u8> {
        visible_with(name, suffix, self.origin.set.context.options.sep)
    }

    fn origin_of(&self, joined: &Joined, kind: Kind) -> Arc<Origin> {
        Arc::new(Origin {
            set: self.origin.set.clone(),
            joined: joined.clone(),
            object_type: kind.name(),
        })
    }

    fn build(&self) -> Result<Listing> {
        let set = &self.origin.set;
        let group = set.entered(&self.origin.joined)?;
        let mut to = Building::default();
        let is_root = group.path.is_empty();
        if let Some(fault) = set.fault().filter(|_| is_root) {
            to.notes.push(fault);
        }
        match self.kind {
            Kind::Strings => self.strings_members(&group, &mut to)?,
            Kind::SegArray => self.segarray(&group, &mut to),
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
        let about = format!("{}: {}/", set.path.display(), group.path());
        for note in &to.notes {
            set.context.journal.add(&format!("{about}{note}"));
        }
        Ok(Listing::new(to.entries, to.left_out, to.notes))
    }

    /// Members that an object of this kind must have, under the names they would be shown by.
    fn missing_members(&self, group: &Joined, to: &mut Building) {
        let claimed = group.objects().find_map(|object| object.marks.members);
        let numbered = |prefix: &str| -> Vec<String> {
            // A wrong number must not fill the directory.
            let there = group.members().len() as u64;
            let count = claimed.unwrap_or(1).min(there + 1);
            (0..count).map(|i| format!("{prefix}_{i}")).collect()
        };
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let required: Vec<String> = match self.kind {
            Kind::SegArray => names(&["segments", "values"]),
            Kind::Strings => names(&["values"]),
            Kind::Categorical => names(&["codes", "categories", "NA_Codes"]),
            Kind::GroupBy => {
                let mut all: Vec<String> = names(&["segments", "permutation", "unique_key_idx"]);
                all.extend(numbered("KEY"));
                all
            }
            Kind::Index | Kind::MultiIndex => numbered("IDX"),
            Kind::DataFrame => names(&["Index"]),
            _ => Vec::new(),
        };
        for name in required {
            if group.member(&name).is_some() {
                continue;
            }
            let joined = Joined {
                path: [group.path.as_slice(), &[name.clone().into_bytes()]].concat(),
                parts: vec![None; group.parts.len()],
            };
            let why = format!("a {} must have it, and there is none", self.kind.name());
            self.broken(&joined, Error::damaged(why), to);
        }
    }

    /// An object that cannot be shown.
    fn broken(&self, joined: &Joined, error: Error, to: &mut Building) {
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
            Node::File(Arc::new(Broken { origin, error })),
        ));
    }

    fn file(&self, joined: &Joined, kind: Kind, array: Arc<dyn Array>, to: &mut Building) {
        self.file_at(self.origin_of(joined, kind), array, to);
    }

    fn file_at(&self, origin: Arc<Origin>, array: Arc<dyn Array>, to: &mut Building) {
        to.entries.push((
            self.visible(origin.joined.name(), ".npy"),
            Node::File(Arc::new(ArrayNode { origin, array })),
        ));
    }

    fn directory(
        &self,
        joined: &Joined,
        kind: Kind,
        strings: Option<Arc<Strings>>,
        to: &mut Building,
    ) {
        let directory = Self::new(&self.origin.set, joined.clone(), kind, strings);
        to.entries.push((
            self.visible(joined.name(), ""),
            Node::Directory(Arc::new(directory)),
        ));
    }

    /// One object, however it is shown.
    fn member(&self, group: &Joined, member: &Joined, to: &mut Building) {
        let set = &self.origin.set;
        if let Some(why) = foreign(member) {
            to.left_out.push((member.name().to_vec(), why));
            return;
        }
        if let Some(fault) = set.fault() {
            // Said once, at the root.
            let notes = to.notes.len();
            self.broken(member, Error::damaged(fault), to);
            to.notes.truncate(notes);
            return;
        }
        let shown = kind(set, member).and_then(|kind| self.show(group, member, kind, to));
        if let Err(e) = shown {
            self.broken(member, e, to);
        }
    }

    fn show(&self, group: &Joined, member: &Joined, kind: Kind, to: &mut Building) -> Result<()> {
        let origin = self.origin_of(member, kind);
        match kind {
            Kind::ArrayView | Kind::Pdarray | Kind::IPv4 => {
                if let Some(node) = self.plain(&origin, member) {
                    to.entries.push(node);
                    return Ok(());
                }
                let array: Arc<dyn Array> = match self.points_into(group, member) {
                    Some(values) => Arc::new(Segments::new(&origin, member, values)?),
                    None => numbers(&origin, meaning(group, member))?,
                };
                self.file_at(origin, array, to);
            }
            Kind::Datetime | Kind::Timedelta => {
                let meaning = match kind {
                    Kind::Datetime => Meaning::Datetime,
                    _ => Meaning::Timedelta,
                };
                let array = numbers(&origin, meaning)?;
                self.file_at(origin, array, to);
            }
            Kind::Bigint => {
                let array = Limbs::new(&origin, member)?;
                self.file(member, kind, Arc::new(array), to);
            }
            Kind::Strings => {
                let strings = match Strings::new(&origin, member) {
                    Ok(strings) => Arc::new(strings),
                    Err(e) => {
                        self.broken(member, e, to);
                        self.directory(member, kind, None, to);
                        return Ok(());
                    }
                };
                self.strings(member, kind, strings.fixed_width(), strings.too_wide(), to);
                self.directory(member, kind, Some(strings), to);
            }
            Kind::Categorical => {
                match self.labels(member) {
                    Ok(labels) => {
                        let too_wide = labels.too_wide();
                        self.strings(member, kind, Arc::new(labels), too_wide, to);
                    }
                    Err(e) => self.broken(member, e, to),
                }
                self.directory(member, kind, None, to);
            }
            Kind::Group => self.group(member, to),
            Kind::SegArray | Kind::GroupBy | Kind::DataFrame | Kind::Index | Kind::MultiIndex => {
                self.directory(member, kind, None, to);
            }
        }
        Ok(())
    }

    /// A dataset that Arkouda would not write, in a file of its own: as plain HDF5 shows it.
    fn plain(&self, origin: &Origin, member: &Joined) -> Option<(Vec<u8>, Node)> {
        let [Some(object)] = member.parts.as_slice() else {
            return None;
        };
        let file = Arc::new(origin.dataset(0, object, member)?);
        if !matches!(file.dataset.element, Element::Text { .. }) {
            return None;
        }
        Some(match text::is_over_limit(&file.store, &file.dataset) {
            Ok(true) => (
                self.visible(member.name(), ""),
                Node::Directory(Arc::new(text::TextDirectory { file })),
            ),
            Ok(false) | Err(_) => (self.visible(member.name(), ".npy"), Node::File(file)),
        })
    }

    /// A group without a meaning; one that was met before is left out.
    fn group(&self, member: &Joined, to: &mut Building) {
        if member.path.len() > DEEPEST {
            let why = "groups nested too deeply".to_owned();
            to.left_out.push((member.name().to_vec(), why));
            return;
        }
        let first = self.origin.set.parts.first().zip(member.parts.first());
        if let Some((part, Some(object))) = first
            && let What::Group { addr, links, .. } = object.what
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
        self.directory(member, Kind::Group, None, to);
    }

    /// Text at fixed width, or a note why there is none.
    fn strings(
        &self,
        joined: &Joined,
        kind: Kind,
        array: Arc<dyn Array>,
        too_wide: Result<Option<String>>,
        to: &mut Building,
    ) {
        match too_wide {
            Ok(Some(why)) => {
                let name = self.visible(joined.name(), ".npy");
                to.left_out.push((name, why));
            }
            // What cannot be measured says so when it is opened.
            Ok(None) | Err(_) => self.file(joined, kind, array, to),
        }
    }

    fn labels(&self, member: &Joined) -> Result<Labels> {
        let set = &self.origin.set;
        let need = |name: &str| {
            let found = member.member(name);
            found.ok_or_else(|| Error::damaged(format!("a Categorical without {name}")))
        };
        let (codes, categories) = (need("codes")?, need("categories")?);
        for joined in [&codes, &categories] {
            kind(set, joined).map_err(|e| e.about(String::from_utf8_lossy(joined.name())))?;
        }
        let origin = self.origin_of(&categories, Kind::Strings);
        let categories = Arc::new(Strings::new(&origin, &categories)?);
        let origin = self.origin_of(&codes, Kind::Pdarray);
        Labels::new(&origin, &codes, categories)
    }

    /// What a member called `segments` points into; `None` if it is no such thing.
    fn points_into(&self, group: &Joined, member: &Joined) -> Option<Values> {
        let of = match self.kind {
            Kind::GroupBy | Kind::Categorical if member.name() == b"segments" => "permutation",
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

    /// `values` and `segments` of strings.
    fn strings_members(&self, group: &Joined, to: &mut Building) -> Result<()> {
        let Some(strings) = &self.strings else {
            // They cannot be joined, or the reason would have been found already.
            for member in group.members() {
                self.member(group, &member, to);
            }
            return Ok(());
        };
        let values = group.member("values");
        if let Some(values) = values {
            let array = Arc::new(AllBytes(strings.clone()));
            self.file(&values, Kind::Pdarray, array, to);
        }
        if let Ok(Some(why)) = strings.too_wide() {
            to.notes.push(format!("not shown at fixed width: {why}"));
        }
        let segments = group.member("segments").unwrap_or_else(|| Joined {
            path: [group.path.as_slice(), &[b"segments".to_vec()]].concat(),
            parts: vec![None; group.parts.len()],
        });
        self.file(&segments, Kind::Pdarray, strings.segments(), to);
        for member in group.members() {
            if !matches!(member.name(), b"values" | b"segments") {
                self.member(group, &member, to);
            }
        }
        Ok(())
    }

    /// `values` of any kind, and `segments` that count them.
    fn segarray(&self, group: &Joined, to: &mut Building) {
        for member in group.members() {
            if member.name() != b"segments" {
                self.member(group, &member, to);
            }
        }
        let Some(segments) = group.member("segments") else {
            return;
        };
        let shown = kind(&self.origin.set, &segments).and_then(|_| {
            let origin = self.origin_of(&segments, Kind::Pdarray);
            Segments::new(&origin, &segments, Values::ByPart(self.counts(group)?))
        });
        match shown {
            Ok(array) => self.file(&segments, Kind::Pdarray, Arc::new(array), to),
            Err(e) => self.broken(&segments, e, to),
        }
    }

    /// How many values of a SegArray each part has.
    fn counts(&self, group: &Joined) -> Result<Box<dyn Fn() -> Result<Vec<u64>> + Send + Sync>> {
        let set = &self.origin.set;
        let values = group
            .member("values")
            .ok_or_else(|| Error::damaged("a SegArray without values"))?;
        if kind(set, &values).map_err(|e| e.about("values"))? == Kind::Strings {
            let origin = self.origin_of(&values, Kind::Strings);
            let strings = Strings::new(&origin, &values).map_err(|e| e.about("values"))?;
            return Ok(Box::new(move || strings.rows()));
        }
        let counts = values.parts.iter().map(|object| {
            let object = object.as_ref();
            object.map_or(0, |object| match object.dataset() {
                Some(dataset) => elements(dataset),
                None => limbs::rows(object),
            })
        });
        let counts: Vec<u64> = counts.collect();
        Ok(Box::new(move || Ok(counts.clone())))
    }
}

/// A joined array of numbers, once it is known that its parts fit. A file may hold very many: what follows
/// from the origin is not kept.
fn numbers(origin: &Arc<Origin>, meaning: Meaning) -> Result<Arc<dyn Array>> {
    Numbers::new(origin, &origin.joined, meaning)?;
    Ok(Arc::new(NumbersOf(origin.clone(), meaning)))
}

/// Why something is left out that no Arkouda object can be; `None` if any part has an object of its name.
fn foreign(member: &Joined) -> Option<String> {
    let mut whys = member.objects().map(|object| match &object.what {
        What::Foreign(why) => Some(why.clone()),
        _ => None,
    });
    let first = whys.next().flatten()?;
    whys.all(|why| why.is_some()).then_some(first)
}

/// Whether numbers are meant as booleans: any part says so, of the array or of the SegArray it belongs to.
fn meaning(group: &Joined, member: &Joined) -> Meaning {
    let says = |joined: &Joined| joined.objects().any(|object| object.marks.is_bool);
    if says(member) || (member.name() == b"values" && says(group)) {
        Meaning::Bool
    } else {
        Meaning::AsStored
    }
}

/// The values of strings, one after the other.
struct AllBytes(Arc<Strings>);

impl Array for AllBytes {
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

impl Directory for ObjectDirectory {
    fn ownership(&self) -> Ownership {
        self.origin.set.ownership()
    }

    fn list(&self) -> Result<Arc<Listing>> {
        let mut listed = self.listed.lock().unwrap_or_else(|e| e.into_inner());
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
        let left_out: Vec<Json> = listing
            .left_out
            .iter()
            .map(
                |(name, reason)| json!({ "name": String::from_utf8_lossy(name), "reason": reason }),
            )
            .collect();
        map.insert("entries".into(), json!(listing.entries.len()));
        map.insert("left_out".into(), json!(left_out));
        map.insert("notes".into(), json!(listing.notes));
        let members = |part: usize| {
            let object = self.origin.joined.parts.get(part).and_then(Option::as_ref);
            let Some(object) = object else {
                return json!({});
            };
            if self.kind == Kind::Group {
                return json!({ "members": object.members().len() });
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
