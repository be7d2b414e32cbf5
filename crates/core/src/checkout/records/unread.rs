//! JSON inside a record that is parsed when it is needed: a history of thousands of commits is read to look at a few of
//! their fields.

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use npyfs_base::error::{Error, Result};

/// A JSON value. It is written again as it was read, byte by byte.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Unread(Box<RawValue>);

impl PartialEq for Unread {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Eq for Unread {}

impl Unread {
    /// Returns the JSON of a value.
    pub fn of(value: &impl Serialize) -> Result<Self> {
        to_raw_value(value).map(Self).map_err(damaged)
    }

    /// Returns the list of these JSON values.
    pub fn list(values: &[String]) -> Result<Self> {
        let text = format!("[{}]", values.join(","));
        RawValue::from_string(text).map(Self).map_err(damaged)
    }

    /// Returns the JSON.
    pub fn text(&self) -> &str {
        self.0.get()
    }

    /// Parses the value.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T> {
        serde_json::from_str(self.text()).map_err(damaged)
    }

    /// Returns the JSON of each value of a list.
    pub fn values(&self) -> Result<Vec<&str>> {
        let values: Vec<&RawValue> = self.read()?;
        Ok(values.into_iter().map(RawValue::get).collect())
    }
}

fn damaged(e: serde_json::Error) -> Error {
    Error::damaged(e.to_string())
}
