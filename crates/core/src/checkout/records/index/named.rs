//! The files that lines of an index name.

use std::collections::BTreeSet;

use super::{FORM, IndexChanges, IndexLine, KeptMember, KeptObject};
use crate::checkout::records::record_log;
use npyfs_base::error::Result;

/// Returns the names of the files that lines of an index refer to. With `is_all`, the text is a whole index, and lines
/// that later ones replace are ignored; otherwise it continues other lines.
pub fn files_named(text: &str, is_all: bool) -> Result<BTreeSet<String>> {
    let bytes = match is_all {
        true => text.as_bytes().to_vec(),
        false => [FORM.first().as_bytes(), text.as_bytes()].concat(),
    };
    let lines: Vec<IndexLine> = record_log::parse_whole(&bytes, FORM)?;
    let mut named = BTreeSet::new();
    let mut incomplete = |object: &KeptObject| {
        named.extend(object.members.iter().map(KeptMember::file_name));
    };
    if is_all {
        let changes = IndexChanges::of(lines);
        changes.incomplete.values().for_each(&mut incomplete);
        let stored = changes.entries.values().flatten();
        named.extend(stored.map(|stored| stored.name()));
        return Ok(named);
    }
    let mut stored = Vec::new();
    for line in lines {
        match line {
            IndexLine::Incomplete(object) => incomplete(&object),
            IndexLine::Change(change) => stored.extend(change.stored.map(|stored| stored.name())),
            _ => {}
        }
    }
    named.extend(stored);
    Ok(named)
}
