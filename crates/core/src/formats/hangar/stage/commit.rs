//! A commit of the staged changes, as Hangar makes one (`commiting.py`, `parsing.py`).
//!
//! Hangar writes the commit first, then moves the markers, moves the branch, and last forgets which samples are new. A
//! process that dies in between leaves a commit that is on no branch, or one whose samples a later reset removes. Here
//! markers and `stage_hash.lmdb` therefore come first: a process that dies after them leaves samples that are still
//! staged, and that a reset keeps. The commit and the branch follow in one request to the worker, which outlives its
//! daemon.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_bytes::ByteBuf;

use super::author::Author;
use super::frame::pack;
use super::{Stage, StageState, markers};
use crate::formats::hangar::BRANCHES;
use crate::formats::hangar::digest::CommitHash;
use crate::store::staging::Expected;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_hdf5::{TableOp, TableTransaction};

/// Refuses a staging area of another branch, and a branch that has moved.
fn check(expected: &Expected, state: &StageState) -> Result<()> {
    let refused = |why: String| Err(Error::new(ErrorKind::Os(libc::EBUSY), why));
    if let Some(branch) = expected.branch.as_ref().filter(|b| **b != state.branch) {
        return refused(format!(
            "the staging area belongs to branch {}, not to {branch}",
            state.branch
        ));
    }
    if expected
        .head
        .as_ref()
        .is_some_and(|head| *head != state.head)
    {
        return refused(format!("branch {} moved meanwhile", state.branch));
    }
    Ok(())
}

impl Stage {
    /// Commits the staged changes; returns the digest. Fails if nothing is staged.
    pub fn commit(&self, message: &str, expected: &Expected) -> Result<String> {
        let invalid = |why: &str| Error::new(ErrorKind::Os(libc::EINVAL), why);
        if message.is_empty() {
            return Err(invalid("a commit needs a message"));
        }
        let folder = &self.repository.folder.path;
        let author = Author::of(folder)?;
        let mut locked = self.lock()?;
        let state = self.state()?;
        check(expected, &state)?;
        if !state.is_changed() {
            let why = format!("nothing is staged on branch {}", state.branch);
            return Err(invalid(&why));
        }
        let head = state.head.unwrap_or_default();
        let spec = describe(message, &author, SystemTime::now());
        let mut hash = CommitHash::default();
        hash.add(state.staged.lines());
        let digest = hash.finish(head.as_bytes(), spec.as_bytes());
        let (spec, records) = (pack(spec.as_bytes())?, pack(state.staged.text())?);

        let files = markers::staged(folder)?;
        markers::store(folder, self.owner(), &files)?;
        self.write(
            &mut locked,
            vec![TableTransaction::new(
                "stage_hash.lmdb",
                vec![TableOp::Clear],
            )],
        )?;
        for file in &files {
            file.unstage(folder)?;
        }
        let branch = format!("branch:{}", state.branch);
        let at = Some(ByteBuf::from(head.as_bytes()));
        let commit = vec![
            TableOp::add(format!("{digest}:spec"), spec),
            TableOp::add(digest.as_bytes(), head.as_bytes()),
            TableOp::add(format!("{digest}:ref"), records),
        ];
        let moved = vec![
            TableOp::Expect(ByteBuf::from(branch.as_bytes()), at),
            TableOp::put(branch.as_bytes(), digest.as_bytes()),
        ];
        let steps = vec![
            TableTransaction::new("ref.lmdb", commit),
            TableTransaction::new(BRANCHES, moved),
        ];
        self.write(&mut locked, steps)?;
        Ok(digest)
    }
}

/// Returns the description of a commit as `json.dumps` writes it, in ASCII.
fn describe(message: &str, author: &Author, time: SystemTime) -> String {
    let micros = time
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros());
    // The value is exact in a float for 280 years from 1970 on, and is printed with as few digits as in Python.
    let seconds = micros as f64 / 1e6;
    format!(
        "{{\"commit_time\":{},\"commit_message\":{},\"commit_user\":{},\"commit_email\":{}}}",
        serde_json::Value::from(seconds),
        quoted(message),
        quoted(&author.name),
        quoted(&author.email)
    )
}

/// Returns a JSON string in ASCII.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    let mut units = [0; 2];
    for c in serde_json::Value::from(text).to_string().chars() {
        if c.is_ascii() {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut units) {
            out.push_str(&format!("\\u{unit:04x}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn descriptions_are_what_python_writes() {
        let author = Author {
            name: "A \"B\"".into(),
            email: "é@x".into(),
        };
        let time = UNIX_EPOCH + Duration::from_micros(1_795_207_110_236_198);
        assert_eq!(
            describe("tab\t😀\n", &author, time),
            r#"{"commit_time":1795207110.236198,"commit_message":"tab\t\ud83d\ude00\n","commit_user":"A \"B\"","commit_email":"\u00e9@x"}"#
        );
        let round = describe("", &author, UNIX_EPOCH + Duration::from_secs(2));
        assert!(round.starts_with("{\"commit_time\":2.0,"), "{round}");
    }
}
