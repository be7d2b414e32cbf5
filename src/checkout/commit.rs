//! Commit and discard: how a layer that nobody writes in becomes part of the store, or is forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use super::checkouts::{Checkouts, LayerFiles, check_name, dir_of, remove_with};
use super::commits::{self, Commits, LayerCommit};
use super::conflict::{Conflict, conflicts};
use super::fit::Misfit;
use super::index::{IndexChanges, KeptObject};
use super::layer_files::add_layers;
use super::layer_lock::{self, LayerLock};
use super::publications;
use crate::checkout::against::AxisEntries;
use crate::error::{Error, ErrorKind, Result};
use crate::io::storage::Storage;

/// Beginning of the name of a layer that is being removed.
pub(super) const DISCARDED: &str = ".discarded-";

/// Whose object stays where two commits changed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Changes of the layer that is committed now.
    Ours,
    /// Changes of the commits that came before it.
    Theirs,
}

/// The wishes of who commits.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// The side that counts where two commits changed the same object; `None`: such a commit is refused.
    pub side: Option<Side>,
    /// Objects that are not complete are forgotten, and those that do not fit the store any more do not count.
    pub leave_out: bool,
    /// The message.
    pub message: String,
}

/// The result of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The number of the commit, from 1 on; `None` if there was nothing to commit.
    pub number: Option<usize>,
    /// Objects of the layer that count.
    pub objects: usize,
    /// Objects of the layer that do not, since those of other commits were kept.
    pub dropped: Vec<String>,
    /// Objects that were not complete.
    pub incomplete: Vec<KeptObject>,
    /// Objects that do not fit the store any more, and do not count either.
    pub misfits: Vec<Misfit>,
}

/// A reason why nothing was committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitRefusal {
    /// Other commits changed the same objects since.
    #[error("{} objects were changed by other commits since", .0.len())]
    Conflicts(Vec<Conflict>),
    /// Members are missing, or do not fit each other.
    #[error("{} objects are not complete", .0.len())]
    Incomplete(Vec<KeptObject>),
    /// The result would break these rules.
    #[error("the store would break the rules of its format: {}", .0.join("; "))]
    Broken(Vec<String>),
    /// Objects were written against what is not there any more.
    #[error("{} objects do not fit the store", .0.len())]
    Misfits(Vec<Misfit>),
    /// It could not be tried.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Tells whether the object of a layer is an empty group: two of the same name are no conflict.
pub type IsGroup<'a> = &'a dyn Fn(&LayerFiles, &str) -> bool;

/// A check of the rules of the store's format: given all layers on top of the store, the last of them new, it returns a line
/// for each object that breaks them.
pub type RuleCheck<'a> = &'a dyn Fn(&[LayerFiles]) -> Result<Vec<String>>;
/// A check of layers, the lowest first, which returns the objects that do not fit the store as it is now.
pub type Fitting<'a> = &'a dyn Fn(&[LayerFiles]) -> Result<Vec<Misfit>>;

/// What decides about a commit: the wishes of who commits, and the checks of the store.
struct CommitJudge<'a> {
    wish: &'a Wish,
    is_group: IsGroup<'a>,
    fitting: Fitting<'a>,
    broken: RuleCheck<'a>,
}

/// A layer that can be committed on top of others.
struct JudgedLayer {
    commit: LayerCommit,
    objects: usize,
    dropped: Vec<String>,
    misfits: Vec<Misfit>,
}

impl CommitJudge<'_> {
    /// Returns the commit that a layer becomes on top of those below, or the reason why it does not.
    fn judged(
        &self,
        mut ours: LayerFiles,
        changes: &IndexChanges,
        below: &[LayerFiles],
    ) -> std::result::Result<JudgedLayer, CommitRefusal> {
        let (met, shared) = meet(&ours, changes, below, self.is_group);
        let dropped = match self.wish.side {
            None if !met.is_empty() => return Err(CommitRefusal::Conflicts(met)),
            Some(Side::Theirs) => met.into_iter().map(|conflict| conflict.ours).collect(),
            _ => BTreeSet::new(),
        };
        ours.entries.retain(|key, _| !dropped.contains(key));
        let mut without: BTreeSet<String> = dropped.iter().cloned().chain(shared).collect();
        // What does not count in any case need not fit.
        let counting = |without: &BTreeSet<String>| {
            let mut new = ours.clone();
            new.entries.retain(|key, _| !without.contains(key));
            let mut all = below.to_vec();
            all.push(new);
            all
        };
        let mut misfits = (self.fitting)(&counting(&without))?;
        misfits.retain(|misfit| misfit.layer == below.len());
        if !misfits.is_empty() && !self.wish.leave_out {
            return Err(CommitRefusal::Misfits(misfits));
        }
        without.extend(misfits.iter().map(|misfit| misfit.key.clone()));
        let broken = (self.broken)(&counting(&without))?;
        if !broken.is_empty() {
            return Err(CommitRefusal::Broken(broken));
        }
        for misfit in &misfits {
            ours.entries.remove(&misfit.key);
        }
        Ok(JudgedLayer {
            objects: ours.entries.len(),
            commit: LayerCommit {
                layer: ours.dir.name(),
                message: self.wish.message.clone(),
                without,
                axes: axes(&ours),
                base: ours.stores,
                ..LayerCommit::default()
            },
            dropped: dropped.into_iter().collect(),
            misfits,
        })
    }
}

impl Checkouts {
    /// Puts the checkout `name` on top of the committed ones, for everybody who mounts the store from now on.
    ///
    /// Durable on success; on failure nothing is committed. EBUSY if somebody writes in it. Objects that another
    /// commit changed since are refused, unless `side` says which stay, and so are objects that are not complete or
    /// do not fit the store any more, unless they are left out.
    pub fn commit(
        &self,
        name: &str,
        wish: &Wish,
        storage: Arc<dyn Storage>,
        is_group: IsGroup<'_>,
        fitting: Fitting<'_>,
        broken: RuleCheck<'_>,
    ) -> std::result::Result<Committed, CommitRefusal> {
        check_name(name)?;
        // What is in a bucket is looked for once.
        if self.is_local() {
            self.find(name)?;
        }
        let top = self.make(&*storage)?;
        let mut commits = Commits::lock(&top, storage.clone())?;
        let layer = dir_of(name, commits.all());
        let dir = match self.is_local() {
            true => top.below(&layer)?,
            false => top.make(&layer)?.0,
        };
        let mut lock = match LayerLock::take_begun(&dir) {
            // It is said what there is instead.
            Err(e) if e.kind == ErrorKind::NotFound => {
                let _ = remove_with(&dir, &[layer_lock::NAME]);
                return Err(self.find(name).err().unwrap_or(e).into());
            }
            lock => lock?,
        };
        let mut upload = lock.upload(&dir);
        let changes = IndexChanges::read(&dir)?;
        let ours = LayerFiles::of(&dir, changes.clone());
        let incomplete: Vec<KeptObject> = changes.incomplete.values().cloned().collect();
        if !incomplete.is_empty() && !wish.leave_out {
            return Err(CommitRefusal::Incomplete(incomplete));
        }
        if ours.entries.is_empty() {
            return Ok(Committed {
                number: None,
                objects: 0,
                dropped: Vec::new(),
                incomplete: Vec::new(),
                misfits: Vec::new(),
            });
        }
        check_files(&ours)?;
        let judge = CommitJudge {
            wish,
            is_group,
            fitting,
            broken,
        };
        let mut below = Vec::new();
        let mut content = None;
        let judged = loop {
            add_layers(&top, commits.all(), &mut below)?;
            let mut judged = judge.judged(ours.clone(), &changes, &below)?;
            if let (Some(upload), None) = (&mut upload, &content) {
                content = Some(upload.content()?);
            }
            judged.commit.content.clone_from(&content);
            if commits.add(judged.commit.clone())? {
                break judged;
            }
            // On another host somebody was faster: what is there now decides.
            if commits.all().iter().any(|other| other.layer == dir.name()) {
                let why = format!("checkout {name} was committed by another process meanwhile");
                let stale = Error::new(ErrorKind::Stale, why).about(self.shown());
                return Err(stale.into());
            }
        };
        if let Some(upload) = &mut upload {
            upload.committed();
        }
        for member in incomplete.iter().flat_map(|object| &object.members) {
            // Nobody looks for it any more.
            let _ = storage.remove(&dir, &member.file_name());
        }
        Ok(Committed {
            number: Some(commits.all().len()),
            objects: judged.objects,
            dropped: judged.dropped,
            incomplete,
            misfits: judged.misfits,
        })
    }

    /// Forgets the checkout `name`, all at once. EBUSY if somebody writes in it, EPERM if publications show what is in it, unless
    /// it is forgotten by `force`: then it returns those that cannot be read any more.
    pub fn discard(&self, name: &str, force: bool, storage: &dyn Storage) -> Result<Vec<PathBuf>> {
        check_name(name)?;
        let about = |e: std::io::Error| Error::from(e).about(self.shown());
        self.find(name)?;
        let top = self.make(storage)?;
        let lock = commits::lock(&top)?;
        let layer = dir_of(name, &commits::read(&top)?);
        let dir = top.below(&layer)?;
        let mut writing = LayerLock::take(&dir)?;
        let upload = writing.upload(&dir);
        let shown = publications::of_layer(&dir)?;
        if let (Some(out), false) = (shown.first(), force) {
            let why = format!(
                "checkout {name}: {} was published with it; delete that file first, or discard it with --force",
                out.display()
            );
            return Err(Error::new(ErrorKind::Os(libc::EPERM), why));
        }
        let hidden = |name: &std::ffi::OsStr| {
            let name = name.to_str().filter(|name| name.starts_with(DISCARDED));
            name.map(str::to_owned)
        };
        let there = top.names().map_err(about)?;
        let there: BTreeSet<String> = there.iter().filter_map(|(name, _)| hidden(name)).collect();
        let mut free = (0..).map(|n| format!("{DISCARDED}{name}-{n}"));
        let away = free.find(|away| !there.contains(away)).unwrap_or_default();
        if let Some(mut upload) = upload {
            upload.discard()?;
        }
        storage.rename(&top, &layer, &away).map_err(about)?;
        storage.sync_dir(&top).map_err(about)?;
        drop((writing, lock));
        // It is forgotten already; what a process that died left of others goes, too.
        for (name, _) in top.names().map_err(about)? {
            if let Some(name) = hidden(&name) {
                let _ = top.remove_all(&name);
            }
        }
        Ok(shown)
    }
}

/// The axes that objects of a layer lie along, by key.
pub(super) fn axes(layer: &LayerFiles) -> BTreeMap<String, BTreeSet<AxisEntries>> {
    let mut axes: BTreeMap<String, BTreeSet<AxisEntries>> = BTreeMap::new();
    for (key, stored) in &layer.entries {
        let above = key.rfind('/').map_or("", |at| &key[..=at]);
        let against = stored.stored().and_then(|stored| stored.against.as_ref());
        for (axis, entries) in against.iter().flat_map(|against| &against.along) {
            let states = axes.entry(format!("{above}{axis}")).or_default();
            states.insert(entries.clone());
        }
    }
    axes
}

/// An error if a file of the layer is gone: it would be missing for everybody.
pub(super) fn check_files(layer: &LayerFiles) -> Result<()> {
    for (key, entry) in &layer.entries {
        if let Some((dir, stored)) = entry.file(layer) {
            let file = dir.size(&stored.name());
            file.map_err(|e| e.about(key))?;
        }
    }
    Ok(())
}

/// The conflicts with commits that the layer has not seen, and the empty groups that both made.
fn meet(
    ours: &LayerFiles,
    changes: &IndexChanges,
    below: &[LayerFiles],
    is_group: IsGroup<'_>,
) -> (Vec<Conflict>, BTreeSet<String>) {
    let mut met = Vec::new();
    for (at, theirs) in below.iter().enumerate() {
        let unseen = |key: &str| changes.seen(key) <= at as u64;
        let found = conflicts(&ours.entries, &theirs.entries, at);
        met.extend(found.into_iter().filter(|conflict| unseen(&conflict.ours)));
    }
    let shared: BTreeSet<String> = met
        .iter()
        .filter(|c| c.ours == c.theirs && c.deleted == (false, false))
        .filter(|c| is_group(ours, &c.ours) && is_group(&below[c.commit], &c.theirs))
        .map(|c| c.ours.clone())
        .collect();
    // What is in a group that both made meets only what is in it on the other side.
    let is_shared = |c: &Conflict| {
        let ours_is = shared.contains(&c.ours) && (c.ours != c.theirs || !c.deleted.1);
        let theirs_is = shared.contains(&c.theirs) && !c.deleted.1;
        (ours_is && c.theirs.starts_with(&*c.ours)) || (theirs_is && c.ours.starts_with(&*c.theirs))
    };
    met.retain(|conflict| !is_shared(conflict));
    (met, shared)
}

#[cfg(test)]
pub(super) mod tests;
