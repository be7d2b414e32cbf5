//! The output of `diff`: as lines, for programs, and as JSON.

use serde::Serialize;

use crate::cli::CliError;
use crate::cli::output::{Name, OutputFormat, print, print_json};
use crate::printable;

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
struct ChangeLine {
    change: ChangeKind,
    #[serde(flatten)]
    name: Name,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

/// The changes of a checkout or staging area.
#[derive(Serialize)]
pub(super) struct Changes {
    #[serde(skip)]
    format: OutputFormat,
    #[serde(skip)]
    text: Vec<u8>,
    changes: Vec<ChangeLine>,
    /// Objects that are not complete, a line for each.
    pub(super) incomplete: Vec<String>,
    /// Files of the store that changed after the checkout was begun.
    pub(super) changed_below: Vec<String>,
}

impl Changes {
    /// Creates an empty list.
    pub(super) fn new(format: OutputFormat) -> Self {
        Self {
            format,
            text: Vec::new(),
            changes: Vec::new(),
            incomplete: Vec::new(),
            changed_below: Vec::new(),
        }
    }

    /// Adds a change.
    pub(super) fn add(&mut self, change: ChangeKind, name: &[u8], description: Option<String>) {
        if self.format.json {
            self.changes.push(ChangeLine {
                change,
                name: Name::new(name),
                description,
            });
            return;
        }
        let head = format!("{} ", change.letter());
        self.format.push(&head, name, &mut self.text);
        if let (Some(description), false) = (description, self.format.null) {
            self.text.pop();
            let line = format!("  {}\n", printable::line(&description));
            self.text.extend(line.as_bytes());
        }
    }

    /// Prints the list.
    pub(super) fn print(&self) -> Result<(), CliError> {
        match self.format.json {
            true => print_json(self),
            false => print(&self.text),
        }
    }
}
