//! `npyfs checkout ls`: the checkouts of a store, as a table or as JSON.

use std::collections::BTreeSet;

use serde::Serialize;

use super::layers::{BaseStore, CheckoutArgs, SHORT_ID, print_misfits, refused};
use crate::cli::output::{Listing, OutputFormat, Report, columns};
use crate::cli::{CliError, say};
use npyfs_base::error::Error;
use npyfs_base::journal::utc;
use npyfs_base::printable;
use npyfs_core::checkout::history::checkouts::{Checkouts, Summary};
use npyfs_core::checkout::records::attribute;
use npyfs_core::checkout::records::fit::Misfit;
use npyfs_io::file::time;

/// Runs `ls`.
pub(super) fn ls(which: &CheckoutArgs, format: OutputFormat) -> Result<(), CliError> {
    let checkouts = which.find(None)?.checkouts;
    let (all, strange) = checkouts.list().map_err(refused)?;
    let misfits = match all.is_empty() {
        true => Ok(Vec::new()),
        false => misfits(&checkouts, &all),
    };
    let known = misfits.as_ref().ok().map(Vec::as_slice);
    format.print(&CheckoutList::new(&all, known))?;
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

/// The checkouts of a store.
#[derive(Serialize)]
#[serde(transparent)]
struct CheckoutList(Vec<ListedCheckout>);

impl CheckoutList {
    /// Describes checkouts. `misfits`: the objects of all of them that do not fit the store, if they are known.
    fn new(all: &[Summary], misfits: Option<&[Misfit]>) -> Self {
        let committed = all
            .iter()
            .filter(|summary| summary.commit.is_some())
            .count();
        let listed = |summary| {
            let unfit = misfits.map(|misfits| UnfitObject::list(summary, misfits, committed));
            ListedCheckout::new(summary, unfit)
        };
        Self(all.iter().map(listed).collect())
    }
}

impl Report for CheckoutList {
    fn text(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        let head = [
            "NAME", "OBJECTS", "DELETED", "WAITING", "BYTES", "BEGUN", "STATE", "COMMIT", "MESSAGE",
        ];
        let mut rows = vec![head.map(str::to_owned)];
        rows.extend(self.0.iter().map(ListedCheckout::row));
        columns(&rows, 1..5)
    }
}

impl Listing for CheckoutList {
    fn names(&self) -> Vec<Vec<u8>> {
        let name = |listed: &ListedCheckout| listed.name.clone().into_bytes();
        self.0.iter().map(name).collect()
    }
}

/// A checkout, as it is listed.
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
    not_shown: Option<Vec<UnfitObject>>,
}

/// An object that is not shown.
#[derive(Serialize)]
struct UnfitObject {
    object: String,
    why: String,
}

impl UnfitObject {
    /// Returns the misfits of one checkout, out of the misfits of all. A layer that is not committed comes after the
    /// `committed` ones.
    fn list(summary: &Summary, misfits: &[Misfit], committed: usize) -> Vec<Self> {
        let number = summary.commit.as_ref().map(|(number, _)| *number);
        let own = misfits.iter().filter(|misfit| match number {
            Some(number) => misfit.layer + 1 == number,
            None => misfit.layer == committed && misfit.checkout == summary.name,
        });
        let unfit = |misfit: &Misfit| Self {
            object: attribute::shown(&misfit.key),
            why: misfit.why.clone(),
        };
        own.map(unfit).collect()
    }
}

impl ListedCheckout {
    fn new(summary: &Summary, not_shown: Option<Vec<UnfitObject>>) -> Self {
        let entries = &summary.changes.entries;
        let stored = entries.values().flatten().count();
        let restored = summary.changes.restored.len();
        // Several objects may share a file.
        let files: BTreeSet<String> = entries
            .values()
            .flatten()
            .map(|stored| stored.name())
            .collect();
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
            not_shown,
        }
    }

    /// Returns the cells of the checkout in the table.
    fn row(&self) -> [String; 9] {
        let state = match (self.commit, &self.committed, &self.in_use) {
            (Some(number), Some(time), _) => format!("commit {number}, {time}"),
            (_, _, Some(holder)) => format!("in use: {}", printable::line(holder)),
            _ => "open".to_owned(),
        };
        let message = self.message.as_deref().unwrap_or_default();
        let subject = message.lines().next().unwrap_or_default();
        [
            printable::name(self.name.as_bytes()),
            self.objects.to_string(),
            self.deleted.to_string(),
            self.waiting.to_string(),
            self.bytes.to_string(),
            self.begun.clone().unwrap_or_else(|| "-".to_owned()),
            state,
            self.id
                .iter()
                .flat_map(|id| id.chars().take(SHORT_ID))
                .collect(),
            printable::line(subject),
        ]
    }
}

/// Returns the objects of all checkouts that do not fit the store as it is now.
fn misfits(checkouts: &Checkouts, all: &[Summary]) -> Result<Vec<Misfit>, Error> {
    let base = BaseStore::try_open(checkouts)?;
    let committed = checkouts.committed()?;
    let mut misfits = base.with(&committed).misfits();
    for summary in all.iter().filter(|summary| summary.commit.is_none()) {
        let own = summary.on_top(&committed)?;
        let found = base.with(committed.iter().chain([&own])).misfits();
        let own = found
            .into_iter()
            .filter(|misfit| misfit.layer == committed.len());
        misfits.extend(own);
    }
    Ok(misfits)
}
