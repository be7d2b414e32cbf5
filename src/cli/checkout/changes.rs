//! The list of changes that `diff` and `revert --dry-run` give.

use serde::Serialize;

use crate::cli::output::{Listing, Name, Report};
use npyfs_base::printable;

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ChangeKind {
    Added,
    Modified,
    Deleted,
}

impl ChangeKind {
    fn letter(self) -> char {
        match self {
            Self::Added => 'A',
            Self::Modified => 'M',
            Self::Deleted => 'D',
        }
    }
}

/// A change of one object.
#[derive(Serialize)]
struct Change {
    change: ChangeKind,
    #[serde(flatten)]
    name: Name,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

/// The changes of a checkout or staging area.
#[derive(Default, Serialize)]
pub(super) struct Changes {
    changes: Vec<Change>,
    /// Objects that are not complete, a line for each.
    pub(super) incomplete: Vec<String>,
    /// Files of the store that changed after the checkout was begun.
    pub(super) changed_below: Vec<String>,
}

impl Changes {
    /// Adds a change.
    pub(super) fn add(&mut self, change: ChangeKind, name: &[u8], description: Option<String>) {
        self.changes.push(Change {
            change,
            name: Name::new(name),
            description,
        });
    }
}

impl Report for Changes {
    fn text(&self) -> String {
        let mut text = String::new();
        for change in &self.changes {
            text += &format!("{} {}", change.change.letter(), change.name);
            if let Some(description) = &change.description {
                text += &format!("  {}", printable::line(description));
            }
            text.push('\n');
        }
        text
    }
}

impl Listing for Changes {
    /// The letter, a blank and the name of each change.
    fn names(&self) -> Vec<Vec<u8>> {
        let head = |change: &Change| format!("{} ", change.change.letter()).into_bytes();
        let named = |change: &Change| [&*head(change), &*change.name.0].concat();
        self.changes.iter().map(named).collect()
    }
}
