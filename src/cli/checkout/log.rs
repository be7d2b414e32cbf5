//! `npyfs checkout log`: the commits of a store, the newest first.

use serde::Serialize;

use super::layers::{CheckoutArgs, SHORT_ID, refused};
use crate::cli::CliError;
use crate::cli::output::{Listing, OutputFormat, Report};
use npyfs_base::journal::utc;
use npyfs_base::printable;
use npyfs_core::checkout::history::commits::LayerCommit;
use npyfs_core::checkout::records::index::IndexChanges;
use npyfs_core::checkout::records::names::checkout_of;
use npyfs_io::file::time;

/// A commit, as it is listed.
#[derive(Serialize)]
struct ListedCommit<'a> {
    id: &'a str,
    number: usize,
    committed: String,
    author: &'a str,
    message: &'a str,
    /// The id of the commit that this commit takes back.
    reverts: Option<&'a str>,
    checkout: &'a str,
    objects: usize,
    deleted: usize,
}

impl<'a> ListedCommit<'a> {
    /// Describes a commit.
    fn new(number: usize, commit: &'a LayerCommit, changes: &IndexChanges) -> Self {
        let entries = changes.entries.iter();
        let counting = entries.filter(|(key, _)| !commit.without.contains(*key));
        let (deleted, stored): (Vec<_>, Vec<_>) =
            counting.partition(|(_, stored)| stored.is_none());
        Self {
            id: &commit.id,
            number,
            committed: utc(time(commit.time)),
            author: &commit.author,
            message: &commit.message,
            checkout: checkout_of(&commit.layer),
            reverts: Some(commit.reverts.as_str()).filter(|id| !id.is_empty()),
            objects: stored.len() + changes.restored.len(),
            deleted: deleted.len(),
        }
    }

    /// Returns the lines for people: one with the id, time, author and counts, then the message.
    fn text(&self) -> String {
        let id = self.id.get(..SHORT_ID).unwrap_or(self.id);
        let author = printable::line(self.author);
        let what = match self.reverts {
            Some(_) => format!("{} taken back", self.objects + self.deleted),
            None => format!("{} written, {} deleted", self.objects, self.deleted),
        };
        let checkout = printable::line(self.checkout);
        let mut text = format!("{id}  {}  {author}  {checkout}: {what}\n", self.committed);
        for line in self.message.lines() {
            text += &format!("    {}\n", printable::line(line));
        }
        text
    }
}

/// The commits of a store, the newest first.
#[derive(Serialize)]
#[serde(transparent)]
struct CommitList<'a>(Vec<ListedCommit<'a>>);

impl Report for CommitList<'_> {
    fn text(&self) -> String {
        self.0.iter().map(ListedCommit::text).collect()
    }
}

impl Listing for CommitList<'_> {
    fn names(&self) -> Vec<Vec<u8>> {
        let id = |commit: &ListedCommit<'_>| commit.id.as_bytes().to_vec();
        self.0.iter().map(id).collect()
    }
}

/// Runs `log`.
pub(super) fn log(
    which: &CheckoutArgs,
    until: Option<&str>,
    format: OutputFormat,
) -> Result<(), CliError> {
    let checkouts = which.find(None)?.checkouts;
    let mut all = checkouts.history().map_err(refused)?;
    if let Some(until) = until {
        all.truncate(checkouts.number_of(until).map_err(refused)?);
    }
    let commits = (1..).zip(&all);
    let commits =
        commits.map(|(number, (commit, changes))| ListedCommit::new(number, commit, changes));
    let mut commits: Vec<ListedCommit<'_>> = commits.collect();
    commits.reverse();
    format.print(&CommitList(commits))
}
