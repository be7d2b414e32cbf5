//! The report of a worker on its sandbox: which rights it gave up before it looked at a file.

use serde::{Deserialize, Serialize};

/// The name in the report of becoming the owner of the files.
const OWNER: &str = "owner";

/// The report of a worker on its sandbox, in words for `status.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// Parts that are in force.
    pub enforced: Vec<String>,
    /// Parts that this kernel does not have, or refused, with the reasons.
    pub missing: Vec<String>,
}

impl Sandbox {
    /// Returns whether a part is in force.
    pub fn has(&self, what: &str) -> bool {
        self.enforced.iter().any(|held| held == what)
    }

    /// Notes a part as in force, or as missing.
    pub fn note(&mut self, what: &str, done: Result<(), String>) {
        match done {
            Ok(()) => self.enforced.push(what.into()),
            Err(why) => self.missing.push(format!("{what}: {why}")),
        }
    }

    /// Notes the outcome of becoming the owner of the files, if there is one to become.
    pub fn note_owner(&mut self, done: Option<Result<(), String>>) {
        if let Some(done) = done {
            self.note(OWNER, done);
        }
    }

    /// Returns the reason why the process could not become the owner of the files, if so.
    pub fn is_not_owner(&self) -> Option<&str> {
        let why = |missing: &'_ String| missing.starts_with(OWNER);
        let missing = self.missing.iter().find(|missing| why(missing))?;
        missing.strip_prefix(OWNER)?.strip_prefix(": ")
    }
}
