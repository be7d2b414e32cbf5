//! Commits as numbered objects: the object of a number is created once, whoever asks for it first.
//!
//! The next number is found by opening names, one behind the other. What saves opening all of them is derived from the objects,
//! and may be missing, old or damaged: a *hint* names a commit near the newest one, and a *checkpoint* holds as many commits as
//! the greatest of 100, 1000, 10 000 and so on that divides its number, up to that number.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::place::{CommitPlace, Creation};
use super::record::{self, LayerCommit};
use crate::checkout::record_log::{self, LogForm, LogRecord};
use crate::error::{Error, ErrorKind, Result};
use crate::io::pause::Pause;

/// The name of the hint.
const HINT: &str = "newest";

/// Endings of the names of commits and of checkpoints, behind the number in 20 digits.
const OBJECT: &str = ".json";
const CHECKPOINT: &str = ".checkpoint";

/// Commits of the smallest checkpoint; each larger one holds ten of the next smaller ones.
pub(super) const SPAN: u64 = 100;

/// Objects behind the one that the hint names that are opened before all names are listed.
const NEAR: u64 = 2 * SPAN;

/// A commit near the newest one.
#[derive(Serialize, Deserialize)]
struct Hint {
    number: u64,
    id: String,
}

/// The numbered commits of a place, which follow those of a list.
pub(super) struct NumberedCommits {
    place: Arc<dyn CommitPlace>,
    form: LogForm,
    /// Commits of the list.
    first: u64,
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

/// Returns how many commits the checkpoint of a number holds, those of lists counted.
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

/// Returns the numbers of the checkpoints up to `known` that go on behind `have` commits.
fn ends(have: u64, known: u64) -> BTreeSet<u64> {
    let spans = std::iter::successors(Some(SPAN), |span| span.checked_mul(10));
    let ends = spans.map_while(|span| (have / span).checked_add(1)?.checked_mul(span));
    ends.take_while(|&end| end <= known).collect()
}

/// Returns why nobody needs what has a name in a directory of commits, of which there are `newest` behind the `first` ones of a
/// list: it was being written, or larger checkpoints have what is in it. `None`: it stays.
pub(in crate::checkout) fn useless(name: &str, first: u64, newest: u64) -> Option<&'static str> {
    if name.starts_with('.') {
        return Some("unfinished");
    }
    let number = name.strip_suffix(CHECKPOINT)?.parse().ok()?;
    if checkpoint(number) != name {
        return None;
    }
    let mut have = first;
    while let Some(end) = ends(have, newest).pop_last() {
        if end >= number {
            break;
        }
        have = end;
    }
    let is_read = ends(have, newest).pop_last() == Some(number);
    (!is_read && number <= newest).then_some("part of larger checkpoints")
}

impl NumberedCommits {
    /// Reads all commits: those of `list`, which is asked for, and the numbered ones behind them.
    ///
    /// The hint is read before the list: a list that goes on in numbered objects is complete.
    pub(super) fn read(
        place: Arc<dyn CommitPlace>,
        form: LogForm,
        list: impl FnOnce() -> Result<Vec<LayerCommit>>,
    ) -> Result<(Self, Vec<LayerCommit>)> {
        let known = hint(&*place)?.map_or(0, |hint| hint.number);
        let mut all = list()?;
        let mut own = Self {
            place,
            form,
            first: all.len() as u64,
            missing: BTreeSet::new(),
        };
        own.check_list()?;
        own.extend(&mut all, known)?;
        Ok((own, all))
    }

    /// Returns those of a place that has no list, to read on behind commits that are known.
    pub(super) fn of(place: Arc<dyn CommitPlace>, form: LogForm) -> Self {
        Self {
            place,
            form,
            first: 0,
            missing: BTreeSet::new(),
        }
    }

    /// An error if there is a numbered commit that the list has, too: an older version added to it.
    fn check_list(&self) -> Result<()> {
        let name = object(self.first);
        if self.first == 0 || self.place.read(&name)?.is_none() {
            return Ok(());
        }
        let why = "the list that older versions made has this commit, too: one of the two was added by mistake";
        Err(Error::damaged(why).about(self.place.path(&name)))
    }

    /// Returns how many commits are those of the list.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Returns the place.
    pub(super) fn place(&self) -> Arc<dyn CommitPlace> {
        self.place.clone()
    }

    /// Adds the commits that there are behind those of `all`. There is one of the number `known`, unless it is 0.
    pub(super) fn extend(&mut self, all: &mut Vec<LayerCommit>, mut known: u64) -> Result<()> {
        loop {
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

    /// Reads the commit behind those of `all`.
    fn next(&self, all: &[LayerCommit]) -> Result<Option<LayerCommit>> {
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

    /// Adds the commits of a checkpoint up to `known`, the largest that there is. False if there is none.
    fn add_checkpoint(&mut self, all: &mut Vec<LayerCommit>, known: u64) -> Result<bool> {
        for end in ends(all.len() as u64, known).into_iter().rev() {
            if self.missing.contains(&end) {
                continue;
            }
            match self.place.read(&checkpoint(end))? {
                Some(bytes) if self.append(all, end, &bytes) => return Ok(true),
                // It can be made again: the commits themselves say what counts.
                _ => drop(self.missing.insert(end)),
            }
        }
        Ok(false)
    }

    /// Appends the commits of a checkpoint, if they follow those that there are.
    fn append(&self, all: &mut Vec<LayerCommit>, end: u64, bytes: &[u8]) -> bool {
        let Ok(mut commits) = record_log::parse_whole::<LayerCommit>(bytes, self.form) else {
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

    /// An error unless the commit is there by now that could not be opened, though there are later ones: what is known of
    /// names on another host may be old.
    fn look_again(&self, all: &[LayerCommit]) -> Result<()> {
        let name = object(all.len() as u64 + 1);
        let names = self.place.names_from(&name)?;
        if names.contains(&name) && self.place.read(&name)?.is_some() {
            return Ok(());
        }
        let why = "the commit is gone, and others were made on it";
        Err(Error::damaged(why).about(self.place.path(&name)))
    }

    /// Returns the number of the newest commit that has a name.
    fn newest_listed(&self, all: &[LayerCommit]) -> Result<u64> {
        let names = self.place.names_from(&object(all.len() as u64))?;
        let numbers = names.iter().filter_map(|name| number(name));
        Ok(numbers.max().unwrap_or(0))
    }

    /// Makes the commit of a number, durably. False if another commit has the number.
    pub(super) fn put(&self, number: u64, commit: &LayerCommit, until: Instant) -> Result<bool> {
        let failed = |e: serde_json::Error| Error::damaged(e.to_string());
        let text = format!("{}\n", commit.print().map_err(failed)?);
        let name = object(number);
        let mut pause = Pause::after_failure();
        let mut is_unclear = false;
        loop {
            let failure = match self.place.create(&name, text.as_bytes()) {
                Ok(Creation::Made) => return Ok(true),
                Ok(Creation::Taken) => None,
                Ok(Creation::Unclear(e)) => {
                    is_unclear = true;
                    Some(e)
                }
                // Nothing came of this try.
                Err(e) if is_unclear => Some(e),
                Err(e) => return Err(e),
            };
            // What was asked for may have been done, now or at an earlier try.
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
            pause.rest();
        }
    }

    /// Writes what saves others time, now that the last commit of `all` is made. None of it is needed.
    pub(super) fn remember(&mut self, all: &[LayerCommit]) {
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
            let text = serde_json::to_string(&hint).unwrap_or_default();
            let _ = self.place.replace(HINT, format!("{text}\n").as_bytes());
        }
        let mut due = std::mem::take(&mut self.missing);
        if number.is_multiple_of(SPAN) {
            due.insert(number);
            self.place.tidy();
        }
        for end in due {
            let start = (end - span(end)).max(self.first);
            let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
            let commits = range.and_then(|(start, end)| all.get(start..end));
            if let Some(commits) = commits.filter(|commits| commits.iter().all(is_printed_alike))
                && let Ok(bytes) = record_log::print(commits, self.form)
            {
                let _ = self.place.replace(&checkpoint(end), &bytes);
            }
        }
    }
}

/// Returns whether a record that was read says the same in print, so that its id is right there: newer versions may have another
/// order.
fn is_printed_alike(commit: &LayerCommit) -> bool {
    commit
        .print()
        .is_ok_and(|text| record::id_of(&text) == Some(&commit.id))
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

/// Returns whether an object is a commit that is what its id says.
pub(super) fn is_whole(bytes: &[u8]) -> bool {
    parse(bytes).is_ok()
}

/// Reads the hint; one that is damaged says nothing.
fn hint(place: &dyn CommitPlace) -> Result<Option<Hint>> {
    let bytes = place.read(HINT)?;
    Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
}

/// Reads the object of a commit.
fn parse(bytes: &[u8]) -> Result<LayerCommit> {
    let text = std::str::from_utf8(bytes).ok();
    let Some(json) = text.and_then(|text| text.strip_suffix('\n')) else {
        return Err(Error::damaged("it is not the whole commit"));
    };
    if record::id_of(json).is_none() {
        return Err(Error::damaged("no commit: it has no id"));
    }
    let commit: LayerCommit = record_log::parse(json)?;
    match record::is_layer(&commit.layer) {
        true => Ok(commit),
        false => Err(record::no_layer(&commit.layer)),
    }
}

/// An error if a commit was made on another one than the last.
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
