//! The check of a publication: the files that it leads to are as they were when it was made.

use std::path::{Component, Path};

use crate::checkout::publish::PublicationNote;
use crate::hdf5::publish::PUBLISHED;
use crate::hdf5::{Attribute, Value};
use crate::npy::dtype::DType;
use crate::options::External;
use crate::tree::Directory;

/// The result for each file that a publication says it depends on.
#[derive(Default)]
pub(super) struct Checked {
    /// Lines about files that are not as they were.
    pub(super) changed: Vec<String>,
    /// The number of files that the options forbid to look at.
    pub(super) refused: u64,
}

/// Checks the files of the publication whose root this is; nothing if it is none.
pub(super) fn check(root: &dyn Directory, path: &Path, external: External) -> Checked {
    let mut checked = Checked::default();
    let attributes = root.attributes().unwrap_or_default();
    let Some(note) = attributes.iter().find_map(note) else {
        return checked;
    };
    let home = path.parent().unwrap_or(Path::new("/"));
    for file in &note.files {
        let mut parts = Path::new(&file.path).components();
        let is_below = parts.all(|part| matches!(part, Component::Normal(_)));
        let may = match external {
            External::Deny => false,
            External::SameDir => is_below,
            External::Allow => true,
        };
        if !may {
            checked.refused += 1;
        } else if let Some(what) = file.changed(home) {
            checked.changed.push(format!("{} {what}", file.path));
        }
    }
    checked
}

/// Returns what a publication says of itself, if this is the attribute for that.
fn note(attribute: &Attribute) -> Option<PublicationNote> {
    if attribute.name != PUBLISHED.as_bytes() {
        return None;
    }
    serde_json::from_str(&text(attribute.value.as_ref().ok()?)?).ok()
}

/// Returns the text that a value is.
fn text(value: &Value) -> Option<String> {
    if value.dtype.name() != DType::text(value.data.len() / 4).name() || !value.shape.is_empty() {
        return None;
    }
    let chars = value.data.as_chunks::<4>().0.iter();
    let text: Option<String> = chars
        .map(|four| char::from_u32(u32::from_le_bytes(*four)))
        .collect();
    text.map(|text| text.trim_end_matches('\0').to_owned())
}
