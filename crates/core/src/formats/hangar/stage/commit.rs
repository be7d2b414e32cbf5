//! A commit of the staged changes, as Hangar makes one (`commiting.py`, `parsing.py`).
//!
//! Hangar writes the commit first, then moves the markers, moves the branch, and last forgets which samples are new. A
//! process that dies in between leaves a commit that is on no branch, or one whose samples a later reset removes. Here
//! markers and `stage_hash.lmdb` therefore come first: a process that dies after them leaves samples that are still
//! staged, and that a reset keeps. The commit and the branch follow in one request to the worker, which outlives its
//! daemon.
//!
//! The author of a commit is in the repository's `config_user.ini`, which Hangar reads with Python's `configparser`.
//!
//! `ref.lmdb` keeps the description and the record list of a commit in Blosc frames. `npyfs_codec::blosc` says what
//! they are, and reads them. A block is one zstd stream without shuffle; digests cover the plain text, so codec and
//! level are free. A block that does not become smaller is stored uncompressed.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_bytes::ByteBuf;

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
        let author = Author::read(folder)?;
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
        let (spec, records) = (
            pack_frame(spec.as_bytes())?,
            pack_frame(state.staged.text())?,
        );

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

const CONFIG: &str = "config_user.ini";

/// The longest configuration in bytes that is read.
const LONGEST_CONFIG: u64 = 1 << 16;

/// The name and address in a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Author {
    /// The name.
    pub name: String,
    /// The address.
    pub email: String,
}

impl Author {
    /// Makes the author of a new repository, which becomes two lines of its configuration.
    pub fn new(name: String, email: String) -> Result<Self> {
        let is_line = |text: &str| {
            !text.is_empty() && text.trim() == text && !text.chars().any(char::is_control)
        };
        if !is_line(&name) || !is_line(&email) {
            let why = "the author's name and address are one line of text each";
            return Err(Error::new(ErrorKind::Os(libc::EINVAL), why));
        }
        Ok(Self { name, email })
    }

    /// Reads the author from the directory of the tables.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(CONFIG);
        let about = |e: Error| e.about(path.display());
        let meta = std::fs::metadata(&path).map_err(|e| about(e.into()))?;
        if meta.len() > LONGEST_CONFIG {
            return Err(about(Error::damaged("too large for a configuration")));
        }
        let text = std::fs::read_to_string(&path).map_err(|e| about(e.into()))?;
        Self::parse(&text).ok_or_else(|| {
            let why = "names no user with name and email in a section [USER]";
            about(Error::new(ErrorKind::Os(libc::EINVAL), why))
        })
    }

    /// Parses `name` and `email` of the section `USER`. Values that continue on further lines are not supported.
    fn parse(text: &str) -> Option<Self> {
        let mut inside = false;
        let (mut name, mut email) = (None, None);
        for line in text.lines().map(str::trim) {
            if line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(section) = line.strip_prefix('[') {
                inside = section.strip_suffix(']') == Some("USER");
                continue;
            }
            let Some((key, value)) = line.split_once(['=', ':']).filter(|_| inside) else {
                continue;
            };
            // `configparser` doubles a percent sign.
            let value = value.trim().replace("%%", "%");
            match key.trim().to_lowercase().as_str() {
                "name" => name = Some(value),
                "email" => email = Some(value),
                _ => {}
            }
        }
        Some(Self {
            name: name?,
            email: email?,
        })
    }
}

/// The size of a block in bytes.
const FRAME_BLOCK: usize = 1 << 20;

/// The largest frame in bytes that c-blosc supports: a signed 32-bit length that includes the header.
const LARGEST_FRAME: usize = i32::MAX as usize - HEADER;

const HEADER: usize = 16;

/// Version 2 of the frame, version 1 of the codec's stream.
const VERSIONS: [u8; 2] = [2, 1];
const ZSTD_NOT_SPLIT: u8 = 0x90;
const AS_IT_IS: u8 = 0x92;

const LEVEL: i32 = 5;

fn number(n: usize) -> Result<[u8; 4]> {
    match u32::try_from(n) {
        Ok(n) if n as usize <= LARGEST_FRAME => Ok(n.to_le_bytes()),
        _ => Err(Error::new(
            ErrorKind::TooLarge,
            "more than 2 GiB in a Blosc frame",
        )),
    }
}

fn frame_header(flags: u8, len: usize, block: usize, stored: usize) -> Result<Vec<u8>> {
    let mut header = VERSIONS.to_vec();
    // Elements have one byte.
    header.extend([flags, 1]);
    for n in [len, block, stored] {
        header.extend(number(n)?);
    }
    Ok(header)
}

/// Returns a frame that holds `text`.
fn pack_frame(text: &[u8]) -> Result<Vec<u8>> {
    let mut streams = Vec::new();
    let mut starts = Vec::new();
    let blocks = text.len().div_ceil(FRAME_BLOCK);
    for block in text.chunks(FRAME_BLOCK) {
        starts.extend(number(HEADER + 4 * blocks + streams.len())?);
        let packed = zstd::bulk::compress(block, LEVEL)?;
        let stream = if packed.len() < block.len() {
            &packed[..]
        } else {
            block
        };
        streams.extend(number(stream.len())?);
        streams.extend_from_slice(stream);
    }
    let stored = HEADER + starts.len() + streams.len();
    let block = text.len().min(FRAME_BLOCK);
    if stored >= HEADER + text.len() {
        let mut frame = frame_header(AS_IT_IS, text.len(), block, HEADER + text.len())?;
        frame.extend_from_slice(text);
        return Ok(frame);
    }
    let mut frame = frame_header(ZSTD_NOT_SPLIT, text.len(), block, stored)?;
    frame.extend(starts);
    frame.extend(streams);
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::formats::hangar::commit::unpack;

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

    #[test]
    fn what_hangar_writes_is_read() {
        let text = "[OTHER]\nname = no\n[USER]\nname = Ann = B: 50%% # c\nEmail: a@b.c\n\n";
        let author = Author::parse(text).unwrap();
        assert_eq!(author.name, "Ann = B: 50% # c");
        assert_eq!(author.email, "a@b.c");
        for text in [
            "",
            "name = x\nemail = y",
            "[USER]\nname = x",
            "[USER\nname=x\nemail=y",
        ] {
            assert_eq!(Author::parse(text), None, "{text}");
        }
    }

    #[test]
    fn frames_of_many_blocks_and_of_none() {
        let long: Vec<u8> = (0..5 << 20).map(|i: u32| (i / 1000) as u8).collect();
        for text in [
            &long[..],
            &long[..FRAME_BLOCK],
            &long[..=FRAME_BLOCK],
            b"",
            b"$",
        ] {
            let frame = pack_frame(text).unwrap();
            assert!(frame.len() <= HEADER + text.len());
            assert_eq!(unpack(&frame).unwrap(), text);
        }
        assert!(pack_frame(&long).unwrap().len() < long.len() / 50);
    }

    proptest! {
        #[test]
        fn any_text_comes_back(text: Vec<u8>, times in 1_usize..50) {
            let text = text.repeat(times);
            prop_assert_eq!(unpack(&pack_frame(&text).unwrap()).unwrap(), text);
        }
    }
}
