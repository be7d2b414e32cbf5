//! The dimensions of objects of layers, by the names of netCDF-4's dimension scales.
//!
//! An object has those that it was given. Otherwise it has those of the variable that it takes the place of, if it is
//! as long along each; a 1-D object named like a dimension of its group is that one's coordinate; and any other has the
//! dimensions that its shape names: each length is that of exactly one dimension that its group sees, and occurs once.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::View;
use super::directory::{self, names};
use super::object::KeyState;
use crate::checkout::records::attribute;
use crate::store::against;
use crate::tree::path::walk;
use crate::tree::{Node, name};
use npyfs_base::error::{Error, ErrorKind, Result, readable};
use npyfs_hdf5::{Dimension, Dimensions, GroupPath, Value};

/// The attribute that gives an object its dimensions: in layers a list of their names.
pub const ATTRIBUTE: &str = "DIMENSION_LIST";

/// Returns the value of the attribute for these names.
pub fn list_of(given: &[String]) -> Value {
    directory::value(given)
}

/// A dimension that a group sees: the path of its scale in the store, and its length.
type Scale = (GroupPath, u64);

/// The dimensions of objects, by their keys: the paths of scales in the store.
pub type ObjectDimensions = BTreeMap<String, Vec<GroupPath>>;

impl View {
    /// Returns the scales of the dimensions of the object of this shape at a key; none if it has no dimensions, `None`
    /// if nothing says which. EINVAL if it was given others than it can have.
    pub fn dimensions(
        self: &Arc<Self>,
        key: &str,
        shape: &[u64],
    ) -> Result<Option<Vec<GroupPath>>> {
        if let Some(given) = self.given_dimensions(key)? {
            return self.named_dimensions(key, shape, &given).map(Some);
        }
        let Some((path, scales)) = self.scales(key)? else {
            return Ok(None);
        };
        if scales.is_empty() || shape.is_empty() {
            return Ok(None);
        }
        if let Some(before) = self.dimensions_below(key)?
            && let Ok(found) = fitting(&scales, shape, &before)
        {
            return Ok(Some(found));
        }
        if let (Some((own, _)), [_]) = (scales.iter().find(|(scale, _)| *scale == path), shape) {
            return Ok(Some(vec![own.clone()]));
        }
        let only = |length: &u64| {
            let mut of = scales.iter().filter(|(_, own)| own == length);
            let twice = shape.iter().filter(|other| *other == length).count() > 1;
            match (of.next(), of.next()) {
                (Some((path, _)), None) if !twice => Some(path.clone()),
                _ => None,
            }
        };
        Ok(shape.iter().map(only).collect())
    }

    /// Returns the scales of dimensions of these names for the object of this shape at a key. EINVAL if it cannot have
    /// them.
    pub fn named_dimensions(
        self: &Arc<Self>,
        key: &str,
        shape: &[u64],
        given: &[String],
    ) -> Result<Vec<GroupPath>> {
        let invalid = |why: String| Error::new(ErrorKind::Os(libc::EINVAL), why);
        let Some((_, scales)) = self.scales(key)? else {
            return Err(invalid("it is in no store".into()));
        };
        if scales.is_empty() {
            let why = "no netCDF-4 store: no dimensions are defined in its group or above it";
            return Err(invalid(why.into()));
        }
        if given.is_empty() {
            return Ok(Vec::new());
        }
        let given: Vec<&[u8]> = given.iter().map(String::as_bytes).collect();
        fitting(&scales, shape, &given).map_err(invalid)
    }

    /// Returns the dimensions of those objects of layers that have some, of all entries at these keys, and why others
    /// cannot have those that they were given.
    pub fn all_dimensions<'a>(
        self: &Arc<Self>,
        keys: impl Iterator<Item = &'a str>,
    ) -> Result<(ObjectDimensions, Vec<(String, String)>)> {
        let (mut found, mut refused) = (ObjectDimensions::new(), Vec::new());
        for key in keys {
            let key = match attribute::split(key) {
                Some((object, name)) if name == ATTRIBUTE => object,
                Some(_) => continue,
                None => key,
            };
            let shown = self.shown(key);
            let Some((name, above)) = shown.split_last() else {
                continue;
            };
            if found.contains_key(key) || !self.changes_dimensions(key) {
                continue;
            }
            let Some(dir) = self.directory(above)? else {
                continue;
            };
            if self
                .scales(key)?
                .is_none_or(|(_, scales)| scales.is_empty())
            {
                continue;
            }
            // What cannot be read has no dimensions.
            let Some(shape) = readable(against::shown_shape(&*dir, name))?.flatten() else {
                continue;
            };
            match self.dimensions(key, &shape) {
                Ok(Some(scales)) => {
                    found.insert(key.to_owned(), scales);
                }
                Ok(None) => {}
                Err(e) if e.is_passing() => return Err(e),
                Err(e) => {
                    let shown = attribute::shown(&attribute::key(key, ATTRIBUTE));
                    refused.push((shown, e.message));
                }
            }
        }
        Ok((found, refused))
    }

    /// Returns the dimensions that layers give an object, as a reader of its file would find them; `None` if they are
    /// those of its file.
    pub(super) fn shown_dimensions(
        self: &Arc<Self>,
        key: &[u8],
        shape: &[u64],
    ) -> Result<Option<Dimensions>> {
        let key = String::from_utf8_lossy(key);
        if !self.changes_dimensions(&key) {
            return Ok(None);
        }
        let scales = match self.dimensions(&key, shape) {
            Ok(scales) => scales.unwrap_or_default(),
            Err(e) if e.kind == ErrorKind::Os(libc::EINVAL) => Vec::new(),
            Err(e) => return Err(e),
        };
        let own = self.scales(&key)?.map(|(path, _)| path);
        let is_scale = scales.len() == 1 && scales.first() == own.as_ref();
        let dimension = |path| Dimension {
            scale: Some(path),
            ..Dimension::default()
        };
        Ok(Some(Dimensions {
            dimensions: scales.into_iter().map(dimension).collect(),
            is_scale,
        }))
    }

    /// Returns whether the dimensions of the object at a key are not those that the store's file says.
    fn changes_dimensions(&self, key: &str) -> bool {
        let given = attribute::key(key, ATTRIBUTE);
        self.is_stored(key) || matches!(self.object(given.as_bytes()), Some(KeyState::Attribute(_)))
    }

    /// Returns the names of the dimensions that the object at a key was given.
    fn given_dimensions(&self, key: &str) -> Result<Option<Vec<String>>> {
        match self.object(attribute::key(key, ATTRIBUTE).as_bytes()) {
            Some(KeyState::Attribute(file)) => {
                let list = file.attribute(ATTRIBUTE.as_bytes())?;
                Ok(list.as_ref().and_then(names))
            }
            _ => Ok(None),
        }
    }

    /// Returns the names of the dimensions of the store's own variable at a key; `None` if it has not a name for each.
    fn dimensions_below(&self, key: &str) -> Result<Option<Vec<Vec<u8>>>> {
        let mut shown = self.shown(key);
        if let Some(name) = shown.last_mut() {
            name.extend_from_slice(b".npy");
        }
        let Some(Node::File(file)) = walk(self.base.clone(), shown)? else {
            return Ok(None);
        };
        // A variable that cannot be read says nothing.
        let Ok(Some(Ok(of))) = file
            .array()
            .map(|array| array.map(|array| array.describe()))
        else {
            return Ok(None);
        };
        let named = of.details.dimensions.unwrap_or_default().dimensions;
        let named = named
            .iter()
            .map(|dimension| Some(dimension.name()?.to_vec()));
        Ok(named
            .collect::<Option<Vec<_>>>()
            .filter(|all| !all.is_empty()))
    }

    /// Returns the path in the store of the object at a key, and the dimensions that its group sees, the nearest first;
    /// `None` if it is in no store.
    fn scales(self: &Arc<Self>, key: &str) -> Result<Option<(GroupPath, Vec<Scale>)>> {
        let shown = self.shown(key);
        let Some(depth) = self.store_depth(&shown) else {
            return Ok(None);
        };
        let own = |shown: &[Vec<u8>]| -> GroupPath {
            let names = shown.iter().skip(depth);
            names
                .map(|shown| name::own_name(shown, self.sep()))
                .collect()
        };
        let mut seen: Vec<Scale> = Vec::new();
        for level in (depth..shown.len()).rev() {
            let Some(dir) = self.directory(&shown[..level])? else {
                continue;
            };
            for (name, length) in dir.scales()?.iter() {
                if !seen.iter().any(|(path, _)| path.last() == Some(name)) {
                    let path = [own(&shown[..level]), vec![name.clone()]].concat();
                    seen.push((path, *length));
                }
            }
        }
        Ok(Some((own(&shown), seen)))
    }
}

/// Returns the scales of these names, if an array of this shape can have them.
fn fitting<N: AsRef<[u8]>>(
    scales: &[Scale],
    shape: &[u64],
    given: &[N],
) -> std::result::Result<Vec<GroupPath>, String> {
    if given.len() != shape.len() {
        let (all, rank) = (given.len(), shape.len());
        return Err(format!("{all} dimensions are named, and it has {rank}"));
    }
    let scale = |(name, length): (&N, &u64)| {
        let name = name.as_ref();
        let shown = || String::from_utf8_lossy(name);
        let is_named = |(path, _): &&Scale| path.last().is_some_and(|last| last == name);
        match scales.iter().find(is_named) {
            Some((path, own)) if own == length => Ok(path.clone()),
            Some((_, own)) => {
                let name = shown();
                Err(format!(
                    "the dimension {name} has the length {own}, not {length}"
                ))
            }
            None => {
                let known = scales.iter().filter_map(|(path, _)| path.last());
                let known: Vec<_> = known.map(|name| String::from_utf8_lossy(name)).collect();
                let (name, known) = (shown(), known.join(", "));
                Err(format!("no dimension {name}; there are {known}"))
            }
        }
    };
    given.iter().zip(shape).map(scale).collect()
}
