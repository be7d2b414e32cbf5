//! The form of something that is stored: a name and a version, with which its bytes begin.
//!
//! A list begins with a line, `npyfs checkout 2`, and a JSON object with a field, `{"form":"npyfs commit 1",`. Another
//! version than the known one is refused by its number, before anything else of the content is looked at.

use serde::Serialize;
use serde::de::DeserializeOwned;

use npyfs_base::error::{Error, ErrorKind, Result};

/// A name and the version that is read and written.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// The name, in the first bytes.
    pub name: &'static str,
    /// The version.
    pub version: u8,
}

impl Form {
    /// Returns the first line of a list.
    pub fn first(&self) -> String {
        format!("{} {}\n", self.name, self.version)
    }

    /// Returns whether the first line of a list was written to its end. Another form is refused by its number.
    pub fn is_begun(&self, bytes: &[u8]) -> Result<bool> {
        let first = self.first();
        if bytes.starts_with(first.as_bytes()) {
            return Ok(true);
        }
        if first.as_bytes().starts_with(bytes) {
            return Ok(false);
        }
        let line = bytes.split(|&b| b == b'\n').next().unwrap_or_default();
        self.check(line)?;
        let what = first.trim_end();
        Err(Error::damaged(format!("does not begin with {what:?}")))
    }

    /// Returns a JSON object that begins with the form, and goes on with the fields of another one.
    pub fn object(&self, fields: &str) -> String {
        let fields = fields.strip_prefix('{').unwrap_or(fields);
        format!("{}{fields}", self.opening())
    }

    /// Returns a JSON object of this form without its first field. Another form is refused by its number.
    pub fn fields(&self, json: &str) -> Result<String> {
        if let Some(fields) = json.strip_prefix(&self.opening()) {
            return Ok(format!("{{{fields}"));
        }
        if let Some((form, _)) = json
            .strip_prefix(OPENING)
            .and_then(|rest| rest.split_once('"'))
        {
            self.check(form.as_bytes())?;
        }
        let what = self.opening();
        Err(Error::damaged(format!("does not begin with {what}")))
    }

    /// Prints a value as a JSON object that begins with the form.
    pub fn print(&self, value: &impl Serialize) -> Result<String> {
        let fields = serde_json::to_string(value).map_err(|e| Error::damaged(e.to_string()))?;
        Ok(self.object(&fields))
    }

    /// Parses a value from a JSON object of this form. Another form is refused by its number.
    pub fn parse<T: DeserializeOwned>(&self, json: &str) -> Result<T> {
        let fields = self.fields(json)?;
        serde_json::from_str(&fields).map_err(|e| Error::damaged(e.to_string()))
    }

    fn opening(&self) -> String {
        format!("{OPENING}{} {}\",", self.name, self.version)
    }

    /// Fails if a form has the name of this one, and another version.
    fn check(&self, form: &[u8]) -> Result<()> {
        let version = form.strip_prefix(self.name.as_bytes());
        let version = version.and_then(|rest| std::str::from_utf8(rest.strip_prefix(b" ")?).ok());
        let is_number = |text: &&str| text.bytes().all(|digit| digit.is_ascii_digit());
        let Some(version) = version.filter(|text| !text.is_empty()).filter(is_number) else {
            return Ok(());
        };
        let parsed = version.parse::<u8>();
        if parsed == Ok(self.version) {
            return Ok(());
        }
        let is_older = parsed.is_ok_and(|version| version < self.version);
        let age = if is_older { "an older" } else { "a newer" };
        let why = format!(
            "written by {age} npyfs: form {version}, and this one reads form {}",
            self.version
        );
        Err(Error::new(ErrorKind::Os(libc::EOPNOTSUPP), why))
    }
}

/// The beginning of a JSON object with a form.
const OPENING: &str = r#"{"form":""#;

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: Form = Form {
        name: "npyfs test",
        version: 2,
    };

    #[test]
    fn an_object_begins_with_its_form() {
        let json = FORM.object(r#"{"a":1}"#);
        assert_eq!(json, r#"{"form":"npyfs test 2","a":1}"#);
        assert_eq!(FORM.fields(&json).unwrap(), r#"{"a":1}"#);
        for (json, code, why) in [
            (
                r#"{"form":"npyfs test 3","b":2}"#,
                libc::EOPNOTSUPP,
                "a newer npyfs: form 3",
            ),
            (
                r#"{"form":"npyfs test 1"}"#,
                libc::EOPNOTSUPP,
                "an older npyfs: form 1",
            ),
            (
                r#"{"form":"npyfs test 300","#,
                libc::EOPNOTSUPP,
                "a newer npyfs: form 300",
            ),
            (
                r#"{"form":"npyfs pest 2","a":1}"#,
                libc::EIO,
                "does not begin with",
            ),
            (
                r#"{"form":"npyfs test two","a":1}"#,
                libc::EIO,
                "does not begin with",
            ),
            (
                r#"{"form":"npyfs test 2"}"#,
                libc::EIO,
                "does not begin with",
            ),
            (r#"{"a":1}"#, libc::EIO, "does not begin with"),
            ("", libc::EIO, "does not begin with"),
        ] {
            let error = FORM.fields(json).unwrap_err();
            assert_eq!(error.errno(), code, "{json}: {error}");
            assert!(error.message.contains(why), "{json}: {error}");
        }
    }
}
