//! Commits as numbered objects: the object of each number is created once, by the first process.
//!
//! The next number is found by opening names in sequence. Two kinds of derived objects save opening all of them; they
//! may be missing, outdated or damaged. A *hint* names a commit near the newest one. A *checkpoint* holds as many
//! commits as the greatest of 100, 1000, 10 000 and so on that divides its number, up to that number.
//!
//! A `Committer` adds one commit on top of all others while other processes do the same.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::place::{CommitPlace, Creation, probe};
use super::record::{self, CommitRecords, LayerCommit, next_time};
use crate::checkout::records::form::Form;
use crate::checkout::records::layer_files::CommitId;
use crate::checkout::records::record_log::{self, LogRecord};
use crate::store::against::digest;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::pause::Pause;

/// The name of the hint.
const HINT: &str = "newest";

/// The first line of a checkpoint. Forms 1 and 2 were lists of all commits.
const CHECKPOINTS: Form = Form {
    name: "npyfs commits",
    version: 3,
};

/// The form of the hint.
const HINTS: Form = Form {
    name: "npyfs newest",
    version: 1,
};

/// Suffixes of the names of commits and of checkpoints, after the number in 20 digits.
const OBJECT: &str = ".json";
const CHECKPOINT: &str = ".checkpoint";

/// Commits of the smallest checkpoint; each larger one holds ten of the next smaller size.
pub(super) const SPAN: u64 = 100;

/// How many objects after the hinted one are opened before all names are listed.
const NEAR: u64 = 2 * SPAN;

/// The number of a commit near the newest one.
#[derive(Serialize, Deserialize)]
struct Hint {
    number: u64,
    id: String,
}

/// The numbered commits of a place.
pub(super) struct NumberedCommits {
    place: Arc<dyn CommitPlace>,
    /// Numbers of checkpoints that were wanted and are not there.
    missing: BTreeSet<u64>,
}

/// Returns the name of the object of a commit.
pub(super) fn object(number: u64) -> String {
    format!("{number:020}{OBJECT}")
}

fn checkpoint(number: u64) -> String {
    format!("{number:020}{CHECKPOINT}")
}

/// Returns how many commits the checkpoint of a number holds, including those of lists.
fn span(number: u64) -> u64 {
    let mut span = SPAN;
    while let Some(next) = span
        .checked_mul(10)
        .filter(|next| number.is_multiple_of(*next))
    {
        span = next;
    }
    span
}

/// Returns the numbers of the checkpoints up to `known` that continue after `have` commits.
fn ends(have: u64, known: u64) -> BTreeSet<u64> {
    let spans = std::iter::successors(Some(SPAN), |span| span.checked_mul(10));
    let ends = spans.map_while(|span| (have / span).checked_add(1)?.checked_mul(span));
    ends.take_while(|&end| end <= known).collect()
}

/// Returns the numbers of the checkpoints that are read on the way from `have` commits to `known`, if none is missing.
fn checkpoints_from(have: u64, known: u64) -> impl Iterator<Item = u64> {
    let largest = move |have| ends(have, known).pop_last();
    std::iter::successors(largest(have), move |&have| largest(have))
}

/// Returns why a file in a directory of commits of `newest` commits is useless, if it is; `None`: it stays. A file is
/// useless if it is an unfinished write, or if larger checkpoints cover
/// it.
pub(in crate::checkout) fn useless(name: &str, newest: u64) -> Option<&'static str> {
    if name.starts_with('.') {
        return Some("unfinished");
    }
    let number = name.strip_suffix(CHECKPOINT)?.parse().ok()?;
    if checkpoint(number) != name {
        return None;
    }
    let is_read = checkpoints_from(0, newest).any(|end| end == number);
    (!is_read && number <= newest).then_some("part of larger checkpoints")
}

impl NumberedCommits {
    /// Reads all commits.
    pub(super) fn read(place: Arc<dyn CommitPlace>) -> Result<(Self, CommitRecords)> {
        let mut own = Self::new(place);
        let mut all = CommitRecords::default();
        own.read_on(&mut all)?;
        Ok((own, all))
    }

    /// Adds the commits after those of `all`.
    pub(super) fn read_on(&mut self, all: &mut CommitRecords) -> Result<()> {
        let known = hint(&*self.place)?.map_or(0, |hint| hint.number);
        self.extend(all, known)
    }

    /// Returns the commits of a place, none of them read yet, for reading on from known commits.
    pub(super) fn new(place: Arc<dyn CommitPlace>) -> Self {
        Self {
            place,
            missing: BTreeSet::new(),
        }
    }

    /// Reads the record of the commit of a number, if it has this id.
    pub(super) fn last(&self, number: usize, id: CommitId) -> Result<Option<CommitRecords>> {
        let read = self.place.read(&object(number as u64))?;
        let read = read.and_then(|bytes| parse(&bytes).ok());
        let read = read.filter(|commit| CommitId::parse(&commit.id) == Some(id));
        Ok(read.map(|commit| CommitRecords::of_last(number, commit)))
    }

    /// Adds the commits after those of `all`. Commit number `known` exists, unless it is 0.
    pub(super) fn extend(&mut self, all: &mut CommitRecords, mut known: u64) -> Result<()> {
        loop {
            self.fetch(all.len() as u64, known);
            while (all.len() as u64) < known {
                if self.add_checkpoint(all, known)? {
                    continue;
                }
                match self.next(all)? {
                    Some(commit) => all.push(commit),
                    None => self.look_again(all)?,
                }
            }
            for _ in 0..NEAR {
                match self.next(all)? {
                    Some(commit) => all.push(commit),
                    None => return Ok(()),
                }
            }
            known = self.newest_listed(all)?;
        }
    }

    /// Fetches what is read on the way from `have` commits to `known`.
    fn fetch(&self, have: u64, known: u64) {
        let ends: Vec<u64> = checkpoints_from(have, known).collect();
        let last = ends.last().copied().unwrap_or(have);
        let names: Vec<String> = (ends.into_iter().map(checkpoint))
            .chain((last + 1..=known).map(object))
            .collect();
        // One is as soon read.
        if names.len() > 1 {
            self.place.fetch(&names);
        }
    }

    /// Reads the commit after those of `all`.
    fn next(&self, all: &CommitRecords) -> Result<Option<LayerCommit>> {
        let name = object(all.len() as u64 + 1);
        let Some(bytes) = self.place.read(&name)? else {
            return Ok(None);
        };
        let commit = parse(&bytes).and_then(|commit| {
            check_follows(all.last(), &commit)?;
            Ok(commit)
        });
        Ok(Some(commit.map_err(|e| e.about(self.place.path(&name)))?))
    }

    /// Adds the commits of the largest checkpoint up to `known`. False if there is none.
    fn add_checkpoint(&mut self, all: &mut CommitRecords, known: u64) -> Result<bool> {
        for end in ends(all.len() as u64, known).into_iter().rev() {
            if self.missing.contains(&end) {
                continue;
            }
            match self.place.read(&checkpoint(end))? {
                Some(bytes) if self.append(all, end, &bytes) => return Ok(true),
                // The checkpoint can be created again from the commits, which are authoritative.
                _ => drop(self.missing.insert(end)),
            }
        }
        Ok(false)
    }

    /// Appends the commits of a checkpoint, if they continue `all`.
    fn append(&self, all: &mut CommitRecords, end: u64, bytes: &[u8]) -> bool {
        let Ok(mut commits) = record_log::parse_whole::<LayerCommit>(bytes, CHECKPOINTS) else {
            return false;
        };
        let have = all.len() as u64;
        let before = (commits.len() as u64).checked_sub(end - have);
        let Some(before) = before.and_then(|before| usize::try_from(before).ok()) else {
            return false;
        };
        let new = commits.split_off(before);
        let mut last = all.last();
        for commit in &new {
            if check_follows(last, commit).is_err() {
                return false;
            }
            last = Some(commit);
        }
        all.extend(new);
        true
    }

    /// Called when a commit could not be opened although later ones exist. Fails unless it can be opened now: cached
    /// names of another host's files may be outdated.
    fn look_again(&self, all: &CommitRecords) -> Result<()> {
        let name = object(all.len() as u64 + 1);
        let names = self.place.names_from(&name)?;
        if names.contains(&name) && self.place.read(&name)?.is_some() {
            return Ok(());
        }
        let why = "the commit is gone, and others were made on it";
        Err(Error::damaged(why).about(self.place.path(&name)))
    }

    /// Returns the number of the newest commit by its name.
    fn newest_listed(&self, all: &CommitRecords) -> Result<u64> {
        let names = self.place.names_from(&object(all.len() as u64))?;
        let numbers = names.iter().filter_map(|name| number(name));
        Ok(numbers.max().unwrap_or(0))
    }

    /// Creates the commit of a number, durably. False if another commit has the number.
    pub(super) fn put(&self, number: u64, commit: &LayerCommit, until: Instant) -> Result<bool> {
        let failed = |e: serde_json::Error| Error::damaged(e.to_string());
        let text = format!("{}\n", commit.print().map_err(failed)?);
        let name = object(number);
        let mut pause = Pause::after_failure();
        // Whether the object may be this commit's, from an attempt whose outcome is not known: a taken name is such an
        // outcome until the object was read, since the place may have repeated the request.
        let mut may_exist = false;
        loop {
            let failure = match self.place.create(&name, text.as_bytes()) {
                Ok(Creation::Made) => return Ok(true),
                Ok(Creation::Taken) => None,
                Ok(Creation::Unclear(e)) => Some(e),
                Err(e) if may_exist => Some(e),
                Err(e) => return Err(e),
            };
            may_exist = true;
            let there = self.place.read(&name);
            let error = match there {
                Ok(Some(bytes)) => {
                    let there = parse(&bytes).map_err(|e| e.about(self.place.path(&name)))?;
                    return Ok(there.write == commit.write);
                }
                Ok(None) => failure.unwrap_or_else(|| {
                    let why = "the name is taken, and nothing is there";
                    Error::new(ErrorKind::Os(libc::EIO), why).about(self.place.path(&name))
                }),
                Err(e) if matches!(e.kind, ErrorKind::Os(_)) => e,
                Err(e) => return Err(e),
            };
            if Instant::now() >= until {
                let why = format!("it is not known whether commit {number} was made: {error}");
                return Err(Error::new(error.kind, why));
            }
            self.place.wait(pause.length());
        }
    }

    /// Writes the derived objects after the last commit of `all` was made. None of them is required.
    fn remember(&mut self, all: &CommitRecords) {
        let Some(last) = all.last() else {
            return;
        };
        let number = all.len() as u64;
        let is_newer = |known: Option<Hint>| known.is_none_or(|known| known.number < number);
        if hint(&*self.place).is_ok_and(is_newer) {
            let hint = Hint {
                number,
                id: last.id.clone(),
            };
            let text = HINTS.print(&hint);
            let _ = text.and_then(|text| self.place.replace(HINT, format!("{text}\n").as_bytes()));
        }
        let mut due = std::mem::take(&mut self.missing);
        if number.is_multiple_of(SPAN) {
            due.insert(number);
            self.place.tidy();
        }
        let mut in_full = None;
        for end in due {
            let start = end - span(end);
            let Ok(range) =
                usize::try_from(start).and_then(|start| Ok(start..usize::try_from(end)?))
            else {
                continue;
            };
            let mut commits = all.range(range.clone());
            if commits.is_none() {
                let all = in_full.get_or_insert_with(|| Self::read(self.place.clone()));
                commits = all.as_ref().ok().and_then(|(_, all)| all.range(range));
            }
            if let Some(commits) = commits.filter(|commits| commits.iter().all(is_printed_alike))
                && let Ok(bytes) = record_log::print(commits, CHECKPOINTS)
            {
                let _ = self.place.replace(&checkpoint(end), &bytes);
            }
        }
    }
}

/// Returns whether a parsed record prints to the same text, so that its id matches. Records of newer versions may have
/// another order of fields.
fn is_printed_alike(commit: &LayerCommit) -> bool {
    commit
        .print()
        .is_ok_and(|text| record::id_of(&text).as_ref() == Some(&commit.id))
}

/// Returns the number of the commit whose object has this name.
fn number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(OBJECT)?;
    let number = digits.parse().ok()?;
    (object(number) == name).then_some(number)
}

/// Returns whether a name is that of a commit's object.
pub(super) fn is_commit(name: &str) -> bool {
    number(name).is_some()
}

/// Returns whether an object is a commit that matches its id.
pub(super) fn is_whole(bytes: &[u8]) -> bool {
    parse(bytes).is_ok()
}

/// Reads the hint; a damaged one, or one of another form, is ignored.
fn hint(place: &dyn CommitPlace) -> Result<Option<Hint>> {
    let parse = |bytes: Vec<u8>| HINTS.parse(std::str::from_utf8(&bytes).ok()?).ok();
    Ok(place.read(HINT)?.and_then(parse))
}

/// Reads the object of a commit.
fn parse(bytes: &[u8]) -> Result<LayerCommit> {
    let text = std::str::from_utf8(bytes).ok();
    let Some(json) = text.and_then(|text| text.strip_suffix('\n')) else {
        return Err(Error::damaged("it is not the whole commit"));
    };
    // Another form is refused by its number.
    record::FORM.fields(json)?;
    if record::id_of(json).is_none() {
        return Err(Error::damaged("no commit: it has no id"));
    }
    let commit: LayerCommit = record_log::parse(json)?;
    match record::is_layer(&commit.layer) {
        true => Ok(commit),
        false => Err(record::no_layer(&commit.layer)),
    }
}

/// Fails if a commit was not made on top of the last one.
fn check_follows(last: Option<&LayerCommit>, commit: &LayerCommit) -> Result<()> {
    let on = last.map(|last| last.id.as_str());
    if commit.parents.iter().map(String::as_str).eq(on) {
        return Ok(());
    }
    let named = commit.parents.first().map_or("nothing", String::as_str);
    let (is, on) = (&commit.id, on.unwrap_or("no commit"));
    let why = format!("the commit {is} was made on {named}, and before it is {on}");
    Err(Error::damaged(why))
}

/// How long a process retries that keeps losing to others or gets no clear response.
const PATIENCE: Duration = Duration::from_secs(60);

/// All commits of a place, to which one is added.
pub(super) struct Committer {
    numbered: NumberedCommits,
    all: CommitRecords,
    /// Distinguishes this commit from all others.
    write: String,
    /// The deadline, set by the first attempt.
    until: Option<Instant>,
    pause: Pause,
    is_tried: bool,
}

impl Committer {
    /// Begins a commit on top of `all`, the commits read from the place.
    pub(super) fn new(numbered: NumberedCommits, all: CommitRecords) -> Result<Self> {
        Ok(Self {
            is_tried: !all.is_empty(),
            numbered,
            all,
            write: record::write_id()?,
            until: None,
            pause: Pause::after_others(),
        })
    }

    /// Returns all commits.
    pub(super) fn all(&self) -> &CommitRecords {
        &self.all
    }

    /// Begins another commit on top of the last one.
    #[cfg(test)]
    pub(super) fn tried_again(&mut self) {
        self.until = None;
        self.write = record::write_id().unwrap();
    }

    /// Begins another commit on top of those that there are by now, as a process does whose host has the earlier ones.
    #[cfg(test)]
    pub(super) fn begin_again(&mut self) -> Result<()> {
        self.tried_again();
        self.all.forget();
        self.numbered.read_on(&mut self.all)
    }

    /// Adds the commit, as described at [`super::Commits::add`].
    pub(super) fn add(&mut self, commit: LayerCommit) -> Result<bool> {
        if !self.is_tried {
            probe(&self.numbered.place)?;
            self.is_tried = true;
        }
        let last = self.all.last();
        let mut commit = LayerCommit {
            parents: last.map(|last| last.id.clone()).into_iter().collect(),
            write: self.write.clone(),
            time: match commit.time {
                0 => next_time(self.all.read()),
                time => time,
            },
            author: record::author(),
            tool: concat!("npyfs ", env!("CARGO_PKG_VERSION")).to_owned(),
            ..commit
        };
        let json = serde_json::to_string(&commit).map_err(|e| Error::damaged(e.to_string()))?;
        commit.id = digest(json.as_bytes());
        let now = Instant::now();
        let until = *self.until.get_or_insert_with(|| now + PATIENCE);
        let number = self.all.len() as u64 + 1;
        if self.numbered.put(number, &commit, until)? {
            self.all.push(commit);
            self.numbered.remember(&self.all);
            return Ok(true);
        }
        loop {
            self.numbered.place.wait(self.pause.length());
            let is_late = Instant::now() >= until;
            match self.numbered.extend(&mut self.all, 0) {
                Err(e) if !is_late && matches!(e.kind, ErrorKind::Os(_)) => {}
                Ok(()) if is_late => {
                    let why = "others commit again and again: nothing was committed";
                    let busy = Error::new(ErrorKind::Os(libc::EBUSY), why);
                    return Err(busy.about(self.numbered.place.path("")));
                }
                read => return read.map(|()| false),
            }
        }
    }
}
