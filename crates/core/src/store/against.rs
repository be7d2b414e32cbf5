//! The surroundings that an object was written against: the axes that it lies along, and what it took the place of.
//!
//! Of an object that another one took the place of, the kind and the length count. A DataFrame of a layer in which one
//! column was written has all the others as they were then: over a store whose DataFrame has another length since, it
//! would show old rows under the name of new ones. What elements an object had says nothing: its own programs may
//! change them, and then the layer's still stand in their place.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use blake2b_simd::Params;
use serde::{Deserialize, Deserializer, Serialize};

use crate::tree::{Directory, Node};
use npyfs_base::error::Result;
use npyfs_io::content::complete_npy_header;
use npyfs_io::hex;

/// The surroundings that an object was written against.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Against {
    /// The axes that its data lie along, by the names they have beside it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub along: BTreeMap<String, AxisEntries>,
    /// Its own entries, if it is an axis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries: Option<AxisEntries>,
    /// The entries of the axes that it took the place of, the latest first: what was seen to lie along those lies along
    /// these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instead_of: Vec<AxisEntries>,
    /// The id of the uppermost commit that was seen when it took their place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// The object that the store without layers had in its place, if that has dimensions and lies along no axis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<Extent>,
    /// Fields of newer versions, kept as they are.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

impl Against {
    /// Returns it for many objects: most have nothing around them.
    pub fn shared(self) -> Arc<Self> {
        static NOTHING: LazyLock<Arc<Against>> = LazyLock::new(Arc::default);
        match self == **NOTHING {
            true => NOTHING.clone(),
            false => Arc::new(self),
        }
    }

    /// Reads it for many objects.
    pub fn read_shared<'de, D: Deserializer<'de>>(
        from: D,
    ) -> std::result::Result<Option<Arc<Self>>, D::Error> {
        Ok(Option::<Self>::deserialize(from)?.map(Self::shared))
    }
}

/// Bytes of a digest.
const DIGEST: usize = 16;

/// BLAKE2b-128 of some bytes, in hexadecimal digits.
pub fn digest(bytes: &[u8]) -> String {
    let mut hasher = Digest::default();
    hasher.add(bytes);
    hasher.done()
}

/// A BLAKE2b-128 that is being made.
pub struct Digest(blake2b_simd::State);

impl Default for Digest {
    fn default() -> Self {
        Self(Params::new().hash_length(DIGEST).to_state())
    }
}

impl Digest {
    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest of all bytes, in hexadecimal digits.
    pub fn done(self) -> String {
        hex::encode(self.0.finalize().as_bytes())
    }
}

/// The entries of an axis in their order: `LENGTH:DIGEST`.
///
/// The digest is that of all entries one after the other, each as its length in bytes (32 bits, little end first) and
/// its text in UTF-8 without the padding. So it is the same however wide the text is stored, and as what type.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AxisEntries(String);

impl AxisEntries {
    /// Makes the digest of what `each` shows its argument, one entry after the other.
    pub fn digest<E>(
        each: impl FnOnce(&mut dyn FnMut(&[u8])) -> std::result::Result<(), E>,
    ) -> std::result::Result<Self, E> {
        let (mut count, mut hasher) = (0_u64, Digest::default());
        each(&mut |entry| {
            count += 1;
            let len = u32::try_from(entry.len()).unwrap_or(u32::MAX);
            hasher.add(&len.to_le_bytes());
            hasher.add(entry);
        })?;
        Ok(Self(format!("{count}:{}", hasher.done())))
    }

    /// Returns how many there are, as it is written.
    pub fn count(&self) -> &str {
        self.0.split(':').next().unwrap_or_default()
    }
}

/// The kind of an array to which no format gives one.
const ARRAY: &str = "array";

/// The kind of an object that another one took the place of, and its dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// `array`, or what the format calls it.
    pub kind: String,
    /// Size of an object that is no array: its elements, or rows.
    pub shape: Vec<u64>,
}

impl Extent {
    /// Returns that of the array which a directory shows by a name (without suffix); `None` if there is none.
    pub fn of_array(dir: &dyn Directory, shown: &[u8]) -> Result<Option<Self>> {
        let array = |shape| Self {
            kind: ARRAY.to_owned(),
            shape,
        };
        Ok(shown_shape(dir, shown)?.map(array))
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, shape } = self;
        match (kind.as_str(), shape.as_slice()) {
            (ARRAY, shape) => write!(f, "an array of shape {shape:?}"),
            (kind, &[count]) => write!(f, "a {kind} with {count} elements"),
            (kind, _) => write!(f, "a {kind}"),
        }
    }
}

/// Returns the shape of the array that a directory shows by a name.
pub(crate) fn shown_shape(dir: &dyn Directory, shown: &[u8]) -> Result<Option<Vec<u64>>> {
    match dir.lookup(&[shown, &b".npy"[..]].concat())? {
        Some(Node::File(file)) => Ok(Some(complete_npy_header(&*file.open()?)?.shape)),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(all: &[&str]) -> AxisEntries {
        let done: std::result::Result<_, ()> = AxisEntries::digest(|see| {
            all.iter().for_each(|entry| see(entry.as_bytes()));
            Ok(())
        });
        done.unwrap()
    }

    #[test]
    fn order_length_and_borders_of_entries_count() {
        // hashlib.blake2b(b"\1\0\0\0a\2\0\0\0bc", digest_size=16).hexdigest()
        assert_eq!(
            entries(&["a", "bc"]).0,
            "2:e88560e56e6241afeb2dfa841791b26b"
        );
        assert_eq!(entries(&["a", "bc"]).count(), "2");
        for others in [
            &["bc", "a"][..],
            &["ab", "c"],
            &["a"],
            &["a", "bc", ""],
            &[],
        ] {
            assert_ne!(entries(others), entries(&["a", "bc"]));
        }
    }
}
