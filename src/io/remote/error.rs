//! The reasons why bytes of an object did not arrive.

use crate::error::{Error, ErrorKind};

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// There is no such object.
    Missing,
    /// The server refuses it to whoever asks, or does not know him.
    Denied,
    /// The object is another version by now.
    Changed,
    /// No answer came in time.
    Late,
    /// The server or the network failed.
    Failed,
    /// The server has no answer of the kind that is needed.
    Unsupported,
}

/// A failure, with the line that people read: the address without its query, and the reason.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct RemoteError {
    /// Its kind.
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

/// Takes the query, and a user's name and password, off every address in a text.
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

/// Returns what follows the user and the password at the beginning of a text. In these are signs that end an address elsewhere.
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
