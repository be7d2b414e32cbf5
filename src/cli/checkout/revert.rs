//! `npyfs checkout revert`: a new commit that takes one back. `restore`: objects of a checkout are again what they are
//! below it, or what they were after a commit.

use std::sync::Arc;

use super::diff::{ChangeKind, Changes, attribute_change, changed_base};
use super::layers::{
    BaseStore, CheckoutArgs, MOST_SHOWN, OPTION, SHORT_ID, Selected, describe, in_use, print,
    refused,
};
use crate::cli::output::OutputFormat;
use crate::cli::{CliError, say};
use npyfs_base::error::Result;
use npyfs_base::printable;
use npyfs_core::checkout::records::attribute;
use npyfs_core::checkout::records::fit::Misfit;
use npyfs_core::checkout::records::index::LayerBase;
use npyfs_core::checkout::records::layer_files::LayerFiles;
use npyfs_core::checkout::verbs::commit::CommitRefusal;
use npyfs_core::checkout::verbs::conflict::Conflict;
use npyfs_core::checkout::verbs::restore::{self, RestoreRefusal, RestoreWish};
use npyfs_core::checkout::verbs::revert::{self, RevertPlan};
use npyfs_core::checkout::view::forms;
use npyfs_io::storage::Disk;

/// Runs `revert`.
pub(super) fn revert(
    which: &CheckoutArgs,
    id: &str,
    message: Option<&str>,
) -> std::result::Result<(), CliError> {
    let found = which.find(None)?;
    let base = BaseStore::open(&found.checkouts)?;
    let lay = |layers| Ok(base.outcome(layers));
    let done = revert::revert(&found.checkouts, id, message, Arc::new(Disk), &lay);
    let done = done.map_err(|refusal| told(&found, refusal))?;
    tell_changed(&found, done.base.as_ref());
    match done.number {
        Some(number) => print(&format!(
            "commit {number}: {} changes, {:.SHORT_ID$}\n",
            done.objects, done.id
        )),
        None => print("nothing to take back\n"),
    }
}

/// Lists what `revert` would do.
pub(super) fn dry_run(
    which: &CheckoutArgs,
    id: &str,
    format: OutputFormat,
) -> std::result::Result<(), CliError> {
    let found = which.find(None)?;
    let base = BaseStore::open(&found.checkouts)?;
    let plan = revert::plan(&found.checkouts, id, &|layers| Ok(base.outcome(layers)));
    let plan = plan.map_err(|refusal| told(&found, refusal))?;
    let changes = list(&base, &plan).map_err(refused)?;
    format.print(&changes)?;
    tell_changed(&found, plan.base.as_ref());
    Ok(())
}

/// Warns of files of the store that changed since the commit: objects that come back have their content of now.
fn tell_changed(found: &Selected, base: Option<&LayerBase>) {
    let Some(before) = base else {
        return;
    };
    let changed = changed_base(before, found.checkouts.base_files());
    for what in changed.iter().take(MOST_SHOWN) {
        say(&format!(
            "{what} was changed since: what comes back out of it is what it has now"
        ));
    }
}

/// Returns the changes that the revert makes, as `diff` lists them.
fn list(base: &BaseStore, plan: &RevertPlan) -> Result<Changes> {
    let mut changes = Changes::default();
    let Some((new, before)) = plan.layers.split_last() else {
        return Ok(changes);
    };
    let (below, above) = (base.with(before).root(), base.with(&plan.layers).root());
    for key in new.entries.keys() {
        if let Some((object, name)) = attribute::split(key) {
            if let Some((path, what)) = attribute_change(&below, &above, object, &name)? {
                changes.add(ChangeKind::Modified, path.as_bytes(), Some(what));
            }
            continue;
        }
        let (before, now) = (forms(&below, key)?, forms(&above, key)?);
        let (kind, shown) = match (before.is_empty(), now.is_empty()) {
            (true, true) => continue,
            (true, false) => (ChangeKind::Added, now),
            (false, false) => (ChangeKind::Modified, now),
            (false, true) => (ChangeKind::Deleted, before),
        };
        for (path, node) in &shown {
            let described = (kind != ChangeKind::Deleted).then(|| describe(node));
            changes.add(kind, path.as_bytes(), described);
        }
    }
    Ok(changes)
}

/// What is wrong with a change after which objects are misfits.
const NOT_SHOWN: &str = "these objects would not be shown any more";

fn why_misfit(misfit: &Misfit) -> String {
    format!("{}: {}", attribute::shown(&misfit.key), misfit.why)
}

/// Prints the first lines, and how many there are more.
fn say_some(lines: impl ExactSizeIterator<Item = String>) {
    let count = lines.len();
    lines.take(MOST_SHOWN).for_each(|line| say(&line));
    if count > MOST_SHOWN {
        say(&format!("and {} more", count - MOST_SHOWN));
    }
}

/// Prints why a commit is not taken back, and returns the error.
fn told(found: &Selected, refusal: CommitRefusal) -> CliError {
    let error = |why: &str| CliError::object(format!("nothing was committed: {why}"));
    match refusal {
        CommitRefusal::Failed(e) => refused(e),
        CommitRefusal::Conflicts(met) => {
            let (all, _) = found.checkouts.list().unwrap_or_default();
            let line = |conflict: &Conflict| {
                let number = conflict.commit + 1;
                let by = all.iter().find_map(|summary| {
                    let (own, commit) = summary.commit.as_ref()?;
                    (*own == number).then(|| format!("{}, {:.12}", summary.name, commit.id))
                });
                let did = if conflict.deleted.1 {
                    "deleted"
                } else {
                    "changed"
                };
                let (ours, theirs) = (
                    attribute::shown(&conflict.ours),
                    attribute::shown(&conflict.theirs),
                );
                // One is an axis that the other lies along, or a group that holds the other.
                let about = match ours == theirs {
                    true => String::new(),
                    false => format!("{ours}: "),
                };
                let by = by.unwrap_or_default();
                format!("{about}{theirs} was {did} since, by commit {number} ({by})")
            };
            say_some(met.iter().map(line));
            error("take the later commits back first")
        }
        CommitRefusal::Misfits(misfits) => {
            say_some(misfits.iter().map(why_misfit));
            error(NOT_SHOWN)
        }
        CommitRefusal::Broken(lines) => error(&format!(
            "the store would break the rules of its format: {}",
            lines.join("; ")
        )),
        refusal @ CommitRefusal::Incomplete(_) => error(&refusal.to_string()),
    }
}

/// Runs `restore`.
pub(super) fn restore(
    which: &CheckoutArgs,
    name: Option<&str>,
    at: Option<&str>,
    paths: &[String],
) -> std::result::Result<(), CliError> {
    let found = which.find(name)?;
    let name = found.name_or_only(OPTION)?;
    let base = BaseStore::open(&found.checkouts)?;
    let look = |layers: &[LayerFiles]| base.with(layers);
    let wish = RestoreWish { paths, at };
    let done = restore::restore(&found.checkouts, &name, &wish, Arc::new(Disk), &look);
    let done = done.map_err(not_restored)?;
    tell_changed(&found, done.base.as_ref());
    match done.changes {
        0 => print("nothing to restore\n"),
        changes => print(&format!(
            "restored in {}: {changes} changes\n",
            printable::name(name.as_bytes())
        )),
    }
}

/// Prints why nothing was restored, and returns the error.
fn not_restored(refusal: RestoreRefusal) -> CliError {
    let error =
        |why: &dyn std::fmt::Display| CliError::object(format!("nothing was restored: {why}"));
    match refusal {
        RestoreRefusal::Failed(e) => in_use(e, "restore objects in it"),
        RestoreRefusal::Misfits(misfits) => {
            say_some(misfits.iter().map(why_misfit));
            error(&NOT_SHOWN)
        }
        refusal => error(&refusal),
    }
}
