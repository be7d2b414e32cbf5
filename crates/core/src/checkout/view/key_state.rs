//! The state of a key in the layers, and the time and checkout of the change.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value as Json, json};

use super::LayerObject;

/// The state of a key in the layers.
#[derive(Clone)]
pub(super) enum KeyState {
    /// An object of a layer is there.
    Object(Arc<LayerObject>),
    /// The key is that of an attribute, which is in a file of a layer.
    Attribute(Arc<LayerObject>),
    /// The object or attribute is deleted.
    Deleted,
    /// The object below the layers is visible again.
    Uncovered(Origin),
}

impl KeyState {
    /// Returns the object, if it is one.
    pub(super) fn object(&self) -> Option<&Arc<LayerObject>> {
        match self {
            Self::Object(object) => Some(object),
            Self::Attribute(_) | Self::Deleted | Self::Uncovered(_) => None,
        }
    }

    /// Returns the origin of the restoration, if the object below the layers is visible again.
    pub(super) fn uncovered(&self) -> Option<&Origin> {
        match self {
            Self::Uncovered(origin) => Some(origin),
            Self::Object(_) | Self::Attribute(_) | Self::Deleted => None,
        }
    }
}

/// The change that produced the present object at a key.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The time of the change.
    pub time: SystemTime,
    /// The checkout that made it.
    pub layer: Arc<str>,
}

impl Origin {
    /// Adds the origin to the report on an entry.
    pub(super) fn report(&self, mut info: Json) -> Json {
        if let Json::Object(map) = &mut info {
            map.insert("checkout".to_owned(), json!(&*self.layer));
        }
        info
    }
}
