//! `npyfs checkout revert`: a new commit that takes one back.

use std::sync::Arc;

use super::base::{BaseStore, describe, forms};
use super::changes::{ChangeKind, Changes};
use super::diff::changed_base;
use super::layers::{CheckoutArgs, MOST_SHOWN, Selected, print, refused};
use crate::checkout::checkouts::LayerFiles;
use crate::checkout::commit::CommitRefusal;
use crate::checkout::conflict::Conflict;
use crate::checkout::fit::Misfit;
use crate::checkout::index::LayerBase;
use crate::checkout::result;
use crate::checkout::revert::{RevertChecks, RevertPlan};
use crate::cli::output::OutputFormat;
use crate::cli::{CliError, say};
use crate::error::Result;
use crate::io::storage::Disk;

/// Runs `revert`.
pub(super) fn revert(
    which: &CheckoutArgs,
    id: &str,
    message: Option<&str>,
) -> std::result::Result<(), CliError> {
    let found = which.find(None)?;
    let base = BaseStore::open(&found.checkouts)?;
    let done = with_checks(&base, |checks| {
        found.checkouts.revert(id, message, Arc::new(Disk), checks)
    });
    let done = done.map_err(|refusal| told(&found, refusal))?;
    tell_changed(&found, done.base.as_ref());
    match done.number {
        Some(number) => print(&format!("commit {number}: {} changes\n", done.objects)),
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
    let plan = with_checks(&base, |checks| found.checkouts.plan_revert(id, checks));
    let plan = plan.map_err(|refusal| told(&found, refusal))?;
    let changes = list(&base, &plan, format).map_err(refused)?;
    changes.print()?;
    tell_changed(&found, plan.base.as_ref());
    Ok(())
}

/// Says which files of the store are not what they were before the commit: they give back what they have now.
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

/// Calls `act` with the checks of the store.
fn with_checks<T>(base: &BaseStore, act: impl FnOnce(RevertChecks<'_>) -> T) -> T {
    let fitting = |layers: &[LayerFiles]| Ok(base.with(layers).misfits());
    let broken = |layers: &[LayerFiles]| {
        let keys = layers.last().into_iter().flat_map(|new| new.entries.keys());
        let sep = base.context.options.sep;
        result::broken(&base.with(layers), sep, keys.map(String::as_str))
    };
    act(RevertChecks {
        fitting: &fitting,
        broken: &broken,
    })
}

/// Returns what is not the same before and afterwards, as `diff` lists it.
fn list(base: &BaseStore, plan: &RevertPlan, format: OutputFormat) -> Result<Changes> {
    let mut changes = Changes::new(format);
    let Some((new, before)) = plan.layers.split_last() else {
        return Ok(changes);
    };
    let (below, above) = (base.with(before).root(), base.with(&plan.layers).root());
    for key in new.entries.keys() {
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

/// Prints why a commit is not taken back, and returns the error.
fn told(found: &Selected, refusal: CommitRefusal) -> CliError {
    let error = |why: &str| CliError::object(format!("nothing was committed: {why}"));
    let say_all = |lines: &mut dyn Iterator<Item = String>, count: usize| {
        lines.take(MOST_SHOWN).for_each(|line| say(&line));
        if count > MOST_SHOWN {
            say(&format!("and {} more", count - MOST_SHOWN));
        }
    };
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
                let Conflict { ours, theirs, .. } = conflict;
                // An axis that it lies along, a group that it is in, or the other way round.
                let about = match ours == theirs {
                    true => String::new(),
                    false => format!("{ours}: "),
                };
                let by = by.unwrap_or_default();
                format!("{about}{theirs} was {did} since, by commit {number} ({by})")
            };
            say_all(&mut met.iter().map(line), met.len());
            error("take the later commits back first")
        }
        CommitRefusal::Misfits(misfits) => {
            let line = |misfit: &Misfit| format!("{}: {}", misfit.key, misfit.why);
            say_all(&mut misfits.iter().map(line), misfits.len());
            error("these objects would not be shown any more")
        }
        CommitRefusal::Broken(lines) => error(&format!(
            "the store would break the rules of its format: {}",
            lines.join("; ")
        )),
        refusal @ CommitRefusal::Incomplete(_) => error(&refusal.to_string()),
    }
}
