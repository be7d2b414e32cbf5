//! Lists of changes: as lines, for programs, and as JSON.

use serde::Serialize;

use crate::cli::CliError;
use crate::cli::output::{Format, Name, print, print_json};
use crate::printable;

/// What became of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Added,
    Modified,
    Deleted,
}

impl Kind {
    fn letter(self) -> char {
        match self {
            Self::Added => 'A',
            Self::Modified => 'M',
            Self::Deleted => 'D',
        }
    }
}

#[derive(Serialize)]
struct Change {
    change: Kind,
    #[serde(flatten)]
    name: Name,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

/// All that `diff` says.
#[derive(Serialize)]
pub struct Changes {
    #[serde(skip)]
    format: Format,
    #[serde(skip)]
    text: Vec<u8>,
    changes: Vec<Change>,
    pub incomplete: Vec<String>,
    /// Files of the base.
    pub changed_below: Vec<String>,
}

impl Changes {
    pub fn new(format: Format) -> Self {
        Self {
            format,
            text: Vec::new(),
            changes: Vec::new(),
            incomplete: Vec::new(),
            changed_below: Vec::new(),
        }
    }

    pub fn add(&mut self, change: Kind, name: &[u8], description: Option<String>) {
        if self.format.json {
            self.changes.push(Change {
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

    pub fn print(&self) -> Result<(), CliError> {
        match self.format.json {
            true => print_json(self),
            false => print(&self.text),
        }
    }
}
