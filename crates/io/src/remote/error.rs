//! Failures to fetch bytes of an object.

use std::time::Duration;

use npyfs_base::error::{Error, ErrorKind};

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The object does not exist.
    Missing,
    /// The server denies access, or does not know the user.
    Denied,
    /// The object has been replaced by another version.
    Changed,
    /// No response came in time.
    Late,
    /// The server or the network failed.
    Failed,
    /// The server does not support the request.
    Unsupported,
}

/// A failure, with the line shown to people: the address without its query, and the reason.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct RemoteError {
    /// The kind.
    pub cause: Cause,
    /// The line.
    pub message: String,
}

impl RemoteError {
    /// Makes a failure about an address.
    pub(super) fn new(cause: Cause, about: &str, why: impl std::fmt::Display) -> Self {
        Self {
            cause,
            message: format!("{about}: {why}"),
        }
    }

    /// Makes the failure of a request that had no response within a time limit, without the name of the object.
    pub(super) fn late(limit: Duration) -> Self {
        Self {
            cause: Cause::Late,
            message: format!("no answer within {} s", limit.as_secs()),
        }
    }

    /// Adds the address of the object.
    pub(super) fn about(self, about: &str) -> Self {
        Self::new(self.cause, about, self.message)
    }

    /// Returns the errno of its kind.
    pub fn errno(&self) -> i32 {
        match self.cause {
            Cause::Missing => libc::ENOENT,
            Cause::Denied => libc::EACCES,
            Cause::Changed => libc::ESTALE,
            Cause::Late => libc::ETIMEDOUT,
            Cause::Failed => libc::EIO,
            Cause::Unsupported => libc::EOPNOTSUPP,
        }
    }
}

impl From<RemoteError> for Error {
    fn from(error: RemoteError) -> Self {
        let kind = match error.cause {
            Cause::Missing => ErrorKind::NotFound,
            Cause::Denied => ErrorKind::Denied,
            Cause::Changed => ErrorKind::Stale,
            Cause::Late | Cause::Failed => ErrorKind::Unreached(error.errno()),
            Cause::Unsupported => ErrorKind::Os(error.errno()),
        };
        Self::new(kind, error.message)
    }
}

/// Removes the query, user name and password from every address in a text.
pub(super) fn without_secrets(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, from) = rest.split_at(at + 3);
        shown.push_str(before);
        let from = after_user(from);
        let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | ')');
        let end = from.find(ends).unwrap_or(from.len());
        let (address, after) = from.split_at(end);
        shown.push_str(address.split(['?', '#']).next().unwrap_or_default());
        rest = after;
    }
    shown.push_str(rest);
    shown
}

/// Returns the text after the user and the password at its beginning. These may contain characters that end an address
/// elsewhere.
fn after_user(text: &str) -> &str {
    let ends = |c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"' | '<' | '>');
    let end = text.find(ends).unwrap_or(text.len());
    let user = text.get(..end).and_then(|authority| authority.rfind('@'));
    user.and_then(|at| text.get(at + 1..)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_secret_is_not_shown() {
        for (text, shown) in [
            ("no address", "no address"),
            ("GET http://h/a?sig=1&x=2: failed", "GET http://h/a failed"),
            (
                "(https://u:p@h:9/a#b) <s3://b/k?v>",
                "(https://h:9/a) <s3://b/k>",
            ),
            ("http://u@h", "http://h"),
            ("at http://u:p'q)r@h/a@b'", "at http://h/a@b'"),
            ("(http://h) mail a@b", "(http://h) mail a@b"),
            ("http://h/a@b?c@d", "http://h/a@b"),
        ] {
            assert_eq!(without_secrets(text), shown);
        }
    }
}
