//! One `.npy` file over all files of a set: a header, and a payload computed from those of the parts.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::NAME;
use super::object::{JoinedObject, Object};
use super::set::LocaleSet;
use crate::formats::plain::array::{ArrayFile, KnownSize};
use crate::tree::VirtualFile;
use crate::tree::info;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy;
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::Attribute;
use npyfs_io::content::{Concat, Content, InMemory};
use npyfs_io::file::Ownership;
use serde_json::Map;

/// A source of an array's elements.
pub(super) trait ArraySource: Send + Sync {
    /// Returns the element type and shape; may require a pass over the data, which is made once.
    fn form(&self) -> Result<(DType, Vec<u64>)>;

    /// Returns the elements in C order.
    fn payload(&self) -> Result<Arc<dyn Content>>;

    /// Returns the report on one part for `info`.
    fn part(&self, number: usize) -> Json;

    /// Returns a note on unusual properties.
    fn note(&self) -> Option<String> {
        None
    }
}

/// The origin of an object, for files and directories.
#[derive(Clone)]
pub(super) struct Origin {
    pub set: Arc<LocaleSet>,
    pub joined: JoinedObject,
    /// Arkouda's name for the type of the object.
    pub object_type: &'static str,
}

impl Origin {
    /// Returns the entries in `info` that all objects have.
    pub(super) fn info(&self) -> serde_json::Map<String, Json> {
        let mut map = serde_json::Map::new();
        map.insert("kind".into(), json!(NAME));
        map.insert("type".into(), json!(self.object_type));
        map.insert("file".into(), json!(self.set.path.to_string_lossy()));
        map.insert("path".into(), json!(self.joined.path()));
        map
    }

    /// Returns the attributes of the object in the first file that has it.
    pub(super) fn attributes(&self) -> Result<Vec<Attribute>> {
        let mut parts = self.set.parts.iter().zip(&self.joined.parts);
        let Some((part, addr)) =
            parts.find_map(|(part, object)| Some((part, object.as_ref()?.addr()?)))
        else {
            return Ok(Vec::new());
        };
        let h5 = &self.set.context.h5;
        Ok(h5.attributes(&part.store.file, addr)?)
    }

    /// Returns owner, permissions and time. The time is the object's own if the files record it, the latest in a set.
    pub(super) fn ownership(&self) -> Ownership {
        let parts = self.set.parts.iter().zip(&self.joined.parts);
        Ownership::joined(parts.map(|(part, object)| {
            match object.as_ref().and_then(|object| object.addr()) {
                Some(addr) => part.store.ownership(addr),
                None => part.store.file.ownership,
            }
        }))
    }

    /// Returns the dataset of one part.
    pub(super) fn dataset(
        &self,
        part: usize,
        object: &Object,
        joined: &JoinedObject,
    ) -> Option<ArrayFile> {
        let group = &joined.path[..joined.path.len().saturating_sub(1)];
        let names = group.iter().map(|name| String::from_utf8_lossy(name));
        Some(ArrayFile {
            store: self.set.parts.get(part)?.store.clone(),
            dataset: object.dataset()?.clone(),
            group: names
                .fold(String::new(), |path, name| path + "/" + &name)
                .into(),
            name: joined.name().into(),
            kind: NAME,
            size: KnownSize::default(),
            is_remade: false,
        })
    }
}

/// An array of an Arkouda object.
pub(super) struct ArrayNode {
    pub origin: Arc<Origin>,
    pub array: Arc<dyn ArraySource>,
    /// Whether a table makes it anew each time it is looked up.
    pub is_remade: bool,
}

impl ArrayNode {
    fn about(&self, e: Error) -> Error {
        e.about(self.origin.joined.path())
    }

    fn sized(&self) -> Result<(Vec<u8>, u64)> {
        let (dtype, shape) = self.array.form().map_err(|e| self.about(e))?;
        let header = npy::header(&dtype, &shape);
        let size = npy::payload_len(&dtype, &shape)
            .and_then(|len| len.checked_add(header.len() as u64))
            .filter(|&n| i64::try_from(n).is_ok())
            .ok_or_else(|| Error::new(ErrorKind::TooLarge, "larger than a file can be"))?;
        Ok((header, size))
    }
}

impl VirtualFile for ArrayNode {
    fn ownership(&self) -> Ownership {
        self.origin.ownership()
    }

    fn size(&self) -> Result<u64> {
        Ok(self.sized()?.1)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        let (header, size) = self.sized()?;
        let payload = self.array.payload().map_err(|e| self.about(e))?;
        if payload.len() != size - header.len() as u64 {
            return Err(self.about(Error::damaged("fewer bytes than the shape needs")));
        }
        Ok(Arc::new(Concat::new([
            Arc::new(InMemory(header)) as Arc<dyn Content>,
            payload,
        ])))
    }

    fn version(&self) -> u64 {
        self.origin.set.version()
    }

    fn is_current(&self) -> bool {
        self.origin.set.is_current()
    }

    fn info(&self) -> Result<Json> {
        let mut map = self.origin.info();
        match self.array.form() {
            Ok((dtype, shape)) => {
                map.insert("dtype".into(), dtype.json());
                map.insert("shape".into(), json!(shape));
            }
            Err(e) => {
                map.insert("error".into(), json!(e.message));
            }
        }
        if let Some(note) = self.array.note() {
            map.insert("note".into(), json!(note));
        }
        let (set, joined) = (&self.origin.set, &self.origin.joined);
        let stored: Vec<_> = (0..set.parts.len())
            .map(|part| datasets(set, joined, part))
            .collect();
        summary(&stored, &mut map);
        let locales = set.locales(|number| {
            let mut part = self.array.part(number);
            if let (Json::Object(part), Some(datasets)) = (&mut part, stored.get(number)) {
                part.insert("datasets".into(), json!(datasets));
            }
            part
        });
        map.insert("locales".into(), locales);
        let attributes = self.attributes().unwrap_or_default();
        map.insert("attributes".into(), info::attributes(&attributes));
        Ok(map.into())
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        self.origin.attributes()
    }

    fn is_remade(&self) -> bool {
        self.is_remade
    }
}

/// An object that has a name but no readable bytes.
pub(super) struct BrokenArray {
    pub origin: Arc<Origin>,
    pub error: Error,
}

impl VirtualFile for BrokenArray {
    fn ownership(&self) -> Ownership {
        self.origin.ownership()
    }

    fn size(&self) -> Result<u64> {
        Ok(0)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        Err(self.error.clone())
    }

    fn version(&self) -> u64 {
        self.origin.set.version()
    }

    fn is_current(&self) -> bool {
        self.origin.set.is_current()
    }

    fn info(&self) -> Result<Json> {
        let mut map = self.origin.info();
        map.insert("error".into(), json!(self.error.message));
        let has = |part: usize| {
            let there = self
                .origin
                .joined
                .parts
                .get(part)
                .is_some_and(Option::is_some);
            json!({ "has_it": there })
        };
        map.insert("locales".into(), self.origin.set.locales(has));
        let attributes = self.attributes().unwrap_or_default();
        map.insert("attributes".into(), info::attributes(&attributes));
        Ok(map.into())
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        self.origin.attributes()
    }
}

/// Returns the datasets of one part's object, with layout, chunks, filters and stored size.
fn datasets(set: &LocaleSet, joined: &JoinedObject, number: usize) -> Vec<Json> {
    let Some(Some(object)) = joined.parts.get(number) else {
        return Vec::new();
    };
    let path = joined.path();
    let below = object.members().iter().map(|(name, member)| {
        let name = String::from_utf8_lossy(name);
        (format!("{path}/{name}"), member.as_ref())
    });
    std::iter::once((path.clone(), object.as_ref()))
        .chain(below)
        .filter_map(|(path, object)| dataset(set, number, path, object))
        .collect()
}

fn dataset(set: &LocaleSet, number: usize, path: String, object: &Object) -> Option<Json> {
    let addr = object.dataset()?.addr;
    let store = &set.parts.get(number)?.store;
    let mut map = Map::new();
    map.insert("path".into(), json!(path));
    match set.context.h5.describe(&store.file, addr) {
        Ok(details) => info::stored(&details, &mut map),
        Err(e) => {
            map.insert("error".into(), json!(e.to_string()));
        }
    }
    Some(map.into())
}

/// Adds to the report on an object the properties that all of its datasets share, and their total size.
fn summary(locales: &[Vec<Json>], into: &mut Map<String, Json>) {
    let all: Vec<&Json> = locales.iter().flatten().collect();
    for key in ["layout", "chunks", "filters"] {
        let mut values = all.iter().map(|dataset| &dataset[key]);
        if let Some(first) = values.next()
            && values.all(|value| value == first)
        {
            into.insert(key.into(), first.clone());
        }
    }
    let mut sizes = all.iter().map(|dataset| dataset["stored_size"].as_u64());
    let total = sizes.try_fold(0_u64, |sum, size| sum.checked_add(size?));
    into.insert("stored_size".into(), json!(total));
}
