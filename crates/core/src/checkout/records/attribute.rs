//! Attributes as entries of layers: each is an entry of its own, at a key below that of its object.
//!
//! So an attribute goes with its object, and what holds for objects holds for it: commits, conflicts, reverts. No mount
//! shows an object at such a key, because names with control characters are escaped.

use crate::tree::name::unescape;

/// The first character of the last name of an attribute's key.
const MARK: char = '\u{1}';

/// Returns the beginning of the keys of all attributes of an object; the root has the key "".
pub fn start(object: &str) -> String {
    match object {
        "" => MARK.to_string(),
        object => format!("{object}/{MARK}"),
    }
}

/// Returns the key of an attribute.
pub fn key(object: &str, name: &str) -> String {
    let mut key = start(object);
    for letter in name.chars() {
        match letter {
            '/' | '%' | '\0'..='\u{1f}' | '\u{7f}' => {
                key.push_str(&format!("%{:02X}", u32::from(letter)));
            }
            letter => key.push(letter),
        }
    }
    key
}

/// Splits the key of an attribute into that of its object and its name; `None` for the key of an object.
pub fn split(key: &str) -> Option<(&str, String)> {
    let (object, last) = key.rsplit_once('/').unwrap_or(("", key));
    let name = last.strip_prefix(MARK)?;
    let name = String::from_utf8(unescape(name.as_bytes())).ok()?;
    Some((object, name))
}

/// Returns the key of the object that an entry is about.
pub fn object_of(key: &str) -> &str {
    split(key).map_or(key, |(object, _)| object)
}

/// Returns a key as people read it.
pub fn shown(key: &str) -> String {
    match split(key) {
        None => key.to_owned(),
        Some(("", name)) => format!("attribute {name:?} of the root"),
        Some((object, name)) => format!("attribute {name:?} of {object}"),
    }
}

/// Returns the number of the file of the nearest object at a key or above it that a layer has; 0 if the layer deletes
/// that one, `None` if the layer does not mention any. For a key, `file` returns `None` if the layer does not mention
/// the key, and otherwise the number of the object's file, if the key has one.
pub fn nearest(key: &str, file: impl Fn(&str) -> Option<Option<u64>>) -> Option<u64> {
    let mut key = key;
    loop {
        if let Some(file) = file(key) {
            return Some(file.unwrap_or(0));
        }
        key = key.rsplit_once('/')?.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_attributes_come_apart_again() {
        for object in ["", "x", "g/x#y", "g/%2Fx"] {
            for name in ["units", "a/b", "50%25", "%41", "ä b", ".npy", "\u{1}"] {
                let key = key(object, name);
                assert_eq!(split(&key), Some((object, name.to_owned())), "{key:?}");
                assert!(key.starts_with(&start(object)));
            }
        }
        for object in ["", "x", "g/x"] {
            assert_eq!(split(object), None);
        }
    }
}
