//! `npyfs checkout ls`: the checkouts of a store, as a table or as JSON.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Serialize;

use super::base::BaseStore;
use super::layers::{CheckoutArgs, SHORT_ID, print, print_misfits, refused};
use crate::checkout::checkouts::{Checkouts, LayerFiles, Summary};
use crate::checkout::fit::Misfit;
use crate::checkout::index::StoredObject;
use crate::cli::output::{self, OutputFormat, print_json};
use crate::cli::{CliError, say};
use crate::error::Error;
use crate::io::file::time;
use crate::journal::utc;
use crate::printable;

/// Runs `ls`.
pub(super) fn ls(which: &CheckoutArgs, format: OutputFormat) -> Result<(), CliError> {
    let checkouts = which.find(None)?.checkouts;
    let (all, strange) = checkouts.list().map_err(refused)?;
    let misfits = match all.is_empty() {
        true => Ok(Vec::new()),
        false => misfits(&checkouts, &all),
    };
    if format.json {
        let mut listed: Vec<_> = all.iter().map(ListedCheckout::new).collect();
        let committed = all
            .iter()
            .filter(|summary| summary.commit.is_some())
            .count();
        for (listed, summary) in listed.iter_mut().zip(&all) {
            let known = misfits.as_ref().ok();
            let unfit = known.map(|all| Unfit::of(summary, all, committed));
            listed.not_shown = unfit;
        }
        print_json(&listed)?;
    } else if format.null {
        let mut names = Vec::new();
        for summary in &all {
            format.push("", summary.name.as_bytes(), &mut names);
        }
        output::print(&names)?;
    } else if !all.is_empty() {
        print(&listed(&all))?;
    }
    match misfits {
        Ok(misfits) => print_misfits(&misfits),
        Err(e) => say(&format!(
            "whether it all fits the store is not known: {}",
            e.message
        )),
    }
    strange.iter().for_each(|e| say(&e.message));
    match strange.len() {
        0 => Ok(()),
        n => Err(CliError::object(format!("{n} checkouts are not shown"))),
    }
}

/// Returns the table of checkouts.
fn listed(all: &[Summary]) -> String {
    let head = [
        "NAME", "OBJECTS", "DELETED", "WAITING", "BYTES", "BEGUN", "STATE", "COMMIT", "MESSAGE",
    ];
    let head = head.map(str::to_owned);
    let mut rows = vec![head];
    for summary in all {
        rows.push(row(summary));
    }
    table_text(&rows)
}

/// A checkout in JSON.
#[derive(Serialize)]
struct ListedCheckout {
    name: String,
    objects: usize,
    deleted: usize,
    waiting: usize,
    bytes: u64,
    begun: Option<String>,
    commit: Option<usize>,
    committed: Option<String>,
    id: Option<String>,
    author: Option<String>,
    message: Option<String>,
    in_use: Option<String>,
    /// Objects that do not fit the store as it is now; null if that is not known.
    not_shown: Option<Vec<Unfit>>,
}

/// An object that is not shown, in JSON.
#[derive(Serialize)]
struct Unfit {
    object: String,
    why: String,
}

impl Unfit {
    /// Returns those of a checkout, out of those of all. A layer that is not committed comes behind the `committed`
    /// ones.
    fn of(summary: &Summary, misfits: &[Misfit], committed: usize) -> Vec<Self> {
        let number = summary.commit.as_ref().map(|(number, _)| *number);
        let own = misfits.iter().filter(|misfit| match number {
            Some(number) => misfit.layer + 1 == number,
            None => misfit.layer == committed && misfit.checkout == summary.name,
        });
        let unfit = |misfit: &Misfit| Self {
            object: misfit.key.clone(),
            why: misfit.why.clone(),
        };
        own.map(unfit).collect()
    }
}

impl ListedCheckout {
    fn new(summary: &Summary) -> Self {
        let entries = &summary.changes.entries;
        let stored = entries.values().flatten().count();
        let restored = summary.changes.restored.len();
        // Some may be in one file.
        let files: BTreeSet<String> = entries.values().flatten().map(StoredObject::name).collect();
        let size = |file: &String| {
            let file = summary.dir.metadata(file);
            file.map_or(0, |meta| meta.len())
        };
        let commit = summary.commit.as_ref();
        let begun = summary.changes.begun.as_ref();
        Self {
            name: summary.name.clone(),
            objects: stored + restored,
            deleted: entries.len() - stored,
            waiting: match commit {
                Some(_) => 0,
                None => summary.changes.incomplete.len(),
            },
            bytes: files.iter().map(size).sum(),
            begun: begun.map(|begun| utc(time(begun.time))),
            commit: commit.map(|(number, _)| *number),
            committed: commit.map(|(_, commit)| utc(time(commit.time))),
            id: commit.map(|(_, commit)| commit.id.clone()),
            author: commit.map(|(_, commit)| commit.author.clone()),
            message: commit.map(|(_, commit)| commit.message.clone()),
            in_use: summary.holder.as_ref().map(ToString::to_string),
            not_shown: None,
        }
    }
}

/// Returns the objects of all checkouts that do not fit the store as it is now.
fn misfits(checkouts: &Checkouts, all: &[Summary]) -> Result<Vec<Misfit>, Error> {
    let base = BaseStore::try_open(checkouts)?;
    let committed = checkouts.committed()?;
    let mut misfits = base.with(&committed).misfits();
    for summary in all.iter().filter(|summary| summary.commit.is_none()) {
        let own = LayerFiles::of(&summary.dir, summary.changes.clone());
        let found = base.with(committed.iter().chain([&own])).misfits();
        let own = found
            .into_iter()
            .filter(|misfit| misfit.layer == committed.len());
        misfits.extend(own);
    }
    Ok(misfits)
}

/// Returns the row of a checkout in the table.
fn row(summary: &Summary) -> [String; 9] {
    let of = ListedCheckout::new(summary);
    let commit = summary.commit.as_ref().map(|(_, commit)| commit);
    let state = match (of.commit, of.committed, of.in_use) {
        (Some(number), Some(time), _) => format!("commit {number}, {time}"),
        (_, _, Some(holder)) => format!("in use: {}", printable::line(&holder)),
        _ => "open".to_owned(),
    };
    [
        printable::name(of.name.as_bytes()),
        of.objects.to_string(),
        of.deleted.to_string(),
        of.waiting.to_string(),
        of.bytes.to_string(),
        of.begun.unwrap_or_else(|| "-".to_owned()),
        state,
        commit.map_or_else(String::new, |commit| {
            commit.id.chars().take(SHORT_ID).collect()
        }),
        commit.map_or_else(String::new, |commit| printable::line(commit.subject())),
    ]
}

/// Lays out a table in columns of equal width, with numbers at the right of theirs.
fn table_text<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |at: usize| rows.iter().map(|row| row[at].len()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
            // Writing to a String cannot fail.
            let _ = match at {
                1..=4 => write!(line, "{cell:>width$}  "),
                _ => write!(line, "{cell:<width$}  "),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [
            ["a", "1", "22", "3", "0", "x"],
            ["bcd", "10", "2", "333", "1", ""],
        ];
        let rows = rows.map(|row| row.map(str::to_owned));
        assert_eq!(
            table_text(&rows),
            "a     1  22    3  0  x\nbcd  10   2  333  1\n"
        );
    }
}
