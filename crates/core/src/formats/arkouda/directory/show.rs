//! Shows one object: as a file, a directory, both, or a file whose error describes the problem.

use std::sync::Arc;

use super::{ObjectDirectory, ObjectListing};
use crate::dataset::text;
use crate::formats::arkouda::array::{ArrayNode, ArraySource, BrokenArray, Origin};
use crate::formats::arkouda::kind::{ArkoudaKind, kind};
use crate::formats::arkouda::labels::Labels;
use crate::formats::arkouda::limbs::Limbs;
use crate::formats::arkouda::numbers::{NumberKind, Numbers, NumbersOf, Segments};
use crate::formats::arkouda::object::{Joined, Object, What};
use crate::formats::arkouda::strings::Strings;
use crate::formats::plain::text::TextDirectory;
use crate::tree::Node;
use npyfs_base::error::{Error, Result};
use npyfs_hdf5::ElementType;

/// The deepest nesting of groups that is shown.
const DEEPEST: usize = 256;

impl ObjectDirectory {
    /// Adds an object that cannot be shown.
    pub(super) fn broken(&self, joined: &Joined, error: Error, to: &mut ObjectListing) {
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

    pub(super) fn file(
        &self,
        joined: &Joined,
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
        joined: &Joined,
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
    pub(super) fn member(&self, group: &Joined, member: &Joined, to: &mut ObjectListing) {
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
    fn looked_into(&self, member: &Joined) -> Result<Joined> {
        let is_marked = |object: &Arc<Object>| object.marks.object_type.is_some();
        if member.objects().any(is_marked) {
            self.origin.set.entered(member)
        } else {
            Ok(member.clone())
        }
    }

    fn show(
        &self,
        group: &Joined,
        member: &Joined,
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
    fn plain(&self, origin: &Origin, member: &Joined) -> Option<(Vec<u8>, Node)> {
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
    fn group(&self, member: &Joined, to: &mut ObjectListing) {
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
        self.directory(member, ArkoudaKind::Group, None, to);
    }

    /// Adds text at a fixed width, or a note why it is not available.
    fn strings(
        &self,
        joined: &Joined,
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
        let origin = self.origin_of(&categories, ArkoudaKind::Strings);
        let categories = Arc::new(Strings::new(&origin, &categories)?);
        let origin = self.origin_of(&codes, ArkoudaKind::Pdarray);
        Labels::new(&origin, &codes, categories)
    }
}

/// Returns a joined array of numbers, after a check that its parts match. A file may contain very many: state that
/// follows from the origin is not kept.
pub(super) fn numbers(origin: &Arc<Origin>, meaning: NumberKind) -> Result<Arc<dyn ArraySource>> {
    Numbers::new(origin, &origin.joined, meaning)?;
    Ok(Arc::new(NumbersOf(origin.clone(), meaning)))
}

/// Returns why an entry that cannot be an Arkouda object is left out; `None` if any part has an object of its name.
fn foreign(member: &Joined) -> Option<String> {
    let mut whys = member.objects().map(|object| match &object.what {
        What::Foreign(why) => Some(why.clone()),
        _ => None,
    });
    let first = whys.next().flatten()?;
    whys.all(|why| why.is_some()).then_some(first)
}

/// Returns whether numbers are booleans: if any part says so, of the array or of its SegArray.
fn meaning(group: &Joined, member: &Joined) -> NumberKind {
    let says = |joined: &Joined| joined.objects().any(|object| object.marks.is_bool);
    if says(member) || (member.name() == b"values" && says(group)) {
        NumberKind::Bool
    } else {
        NumberKind::AsStored
    }
}
