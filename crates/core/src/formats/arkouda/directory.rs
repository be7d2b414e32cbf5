//! Groups of a set as directories: the root, nested groups, and objects that consist of several arrays.

mod many;
mod members;
mod show;

use std::sync::{Arc, Mutex, OnceLock};

use serde_json::{Value as Json, json};

use self::many::NumberTable;
use super::NAME;
use super::array::Origin;
use super::kind::ArkoudaKind;
use super::marks::METADATA;
use super::object::{Joined, Object, elements};
use super::set::LocaleSet;
use super::strings::Strings;
use crate::formats::plain::group::MANY_OF_A_KIND;
use crate::tree::info;
use crate::tree::name::visible_with;
use crate::tree::{Directory, Listing, Node};
use npyfs_base::error::Result;
use npyfs_base::heap;
use npyfs_hdf5::Attribute;
use npyfs_io::file::Ownership;

/// A group, or an object with members.
pub struct ObjectDirectory {
    origin: Origin,
    kind: ArkoudaKind,
    /// The strings, if it is `Strings`: shared with the file beside it, so that they are measured once.
    strings: Option<Arc<Strings>>,
    /// The group with its members, until it is listed; of a group `origin` does not hold them.
    scanned: Mutex<Option<Joined>>,
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
        joined: Joined,
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

    fn origin_of(&self, joined: &Joined, kind: ArkoudaKind) -> Arc<Origin> {
        Arc::new(Origin {
            set: self.origin.set.clone(),
            joined: joined.clone(),
            object_type: kind.name(),
        })
    }

    fn build(&self) -> Result<Listing> {
        let set = &self.origin.set;
        let scanned = self
            .scanned
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .take();
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
