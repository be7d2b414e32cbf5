//! HDF5 attributes as the metadata of a field or a schema: texts as they are, everything else as JSON.

use std::collections::HashMap;

use serde_json::Value as Json;

use crate::store::attribute;
use crate::store::format::Format;
use crate::tree::info;
use npyfs_hdf5::Attribute;

/// The most bytes of one value.
const LONGEST: usize = 64 << 10;

/// Returns what attributes say beyond how an object is stored.
pub(super) fn of(attributes: &[Attribute], format: &dyn Format) -> HashMap<String, String> {
    let said = |attribute: &Attribute| {
        let name = std::str::from_utf8(&attribute.name).ok()?;
        if attribute::refused(name).is_some() || format.source().is_mark(&attribute.name) {
            return None;
        }
        let value = attribute.value.as_ref().ok()?;
        let text = match info::value(value) {
            Json::String(text) => text,
            other => other.to_string(),
        };
        (text.len() <= LONGEST).then(|| (name.to_owned(), text))
    };
    attributes.iter().filter_map(said).collect()
}
