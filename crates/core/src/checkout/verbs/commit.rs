//! Commit and discard: a layer without a writer becomes part of the store, or is removed.
//!
//! A process that writes in a layer can be asked for a commit, and tells the result (`CommitReport`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::conflict::{Conflict, conflicts};
use crate::checkout::history::checkouts::{Checkouts, dir_of, free_layer, remove_with};
use crate::checkout::history::commits::{self, Commits, LayerCommit};
use crate::checkout::history::committed_layers::on_top;
use crate::checkout::history::snapshot;
use crate::checkout::layer::lock::{self as layer_lock, LayerLock};
use crate::checkout::layer::publications;
use crate::checkout::mirror::Upload;
use crate::checkout::records::attribute;
use crate::checkout::records::entry::forget_old_attributes;
use crate::checkout::records::fit::Misfit;
use crate::checkout::records::index::{IndexChanges, KeptObject};
use crate::checkout::records::layer_files::{CommitId, LayerFiles};
use crate::checkout::records::names::check_name;
use crate::checkout::records::record_log::Unread;
use crate::checkout::view::{View, rules};
use crate::store::against::AxisEntries;
use crate::tree::prefix;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::dir::Dir;
use npyfs_io::storage::Storage;

/// The prefix of the name of a layer that is being removed.
pub(in crate::checkout) const DISCARDED: &str = ".discarded-";

/// The side whose object stays when two commits changed the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Side {
    /// The layer that is being committed.
    Ours,
    /// The commits that came before it.
    Theirs,
}

/// The options of a commit.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CommitOptions {
    /// The side that wins when two commits changed the same object; `None`: the commit is refused.
    pub side: Option<Side>,
    /// Whether incomplete objects are dropped, and objects that no longer fit the store are ignored.
    pub leave_out: bool,
    /// The message.
    pub message: String,
}

/// The result of a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// The number of the commit, from 1; `None` if there was nothing to commit.
    pub number: Option<usize>,
    /// The id; empty if there was nothing to commit.
    pub id: String,
    /// The number of objects in the commit.
    pub objects: usize,
    /// Objects of the layer that were dropped in favour of other commits.
    pub dropped: Vec<String>,
    /// Incomplete objects.
    pub incomplete: Vec<KeptObject>,
    /// Objects that no longer fit the store and are not in the commit.
    pub misfits: Vec<Misfit>,
}

/// A reason why nothing was committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitRefusal {
    /// Other commits have changed the same objects.
    #[error("{} objects were changed by other commits since", .0.len())]
    Conflicts(Vec<Conflict>),
    /// Members are missing or do not match.
    #[error("{} objects are not complete", .0.len())]
    Incomplete(Vec<KeptObject>),
    /// The result would violate these rules.
    #[error("the store would break the rules of its format: {}", .0.join("; "))]
    Broken(Vec<String>),
    /// Objects depend on a state of the store that no longer exists.
    #[error("{} objects do not fit the store", .0.len())]
    Misfits(Vec<Misfit>),
    /// The commit could not be attempted.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Returns whether the object of a layer is an empty group: two of the same name are not a conflict.
pub type IsGroup<'a> = &'a dyn Fn(&LayerFiles, &str) -> bool;

/// The store with layers on top, of which the last is new.
pub trait Outcome {
    /// Returns the objects of all layers that do not fit the present store.
    fn misfits(&self) -> Vec<Misfit>;

    /// Returns a line for each object that violates the rules of the store's format, among what the last layer affects.
    fn broken(&self) -> Result<Vec<String>>;
}

impl Outcome for Arc<View> {
    fn misfits(&self) -> Vec<Misfit> {
        View::misfits(self)
    }

    fn broken(&self) -> Result<Vec<String>> {
        let new = self.last_layer();
        let keys = new.iter().flat_map(|new| new.entries.keys());
        rules::broken(self, self.sep(), keys.map(String::as_str))
    }
}

/// Puts layers on top of the store, lowest first.
pub type Laying<'a> = &'a dyn Fn(Vec<LayerFiles>) -> Result<Box<dyn Outcome>>;

/// The options of a commit, and the checks of the store.
pub(in crate::checkout) struct CommitJudge<'a> {
    pub wish: &'a CommitOptions,
    pub is_group: IsGroup<'a>,
    pub lay: Laying<'a>,
}

/// A layer that can be committed on top of others.
struct JudgedLayer {
    commit: LayerCommit,
    objects: usize,
    dropped: Vec<String>,
    misfits: Vec<Misfit>,
}

impl CommitJudge<'_> {
    /// Returns the commit that a layer becomes on top of those below, or why it is refused.
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
        forget_old_attributes(&mut ours.entries, "");
        let mut without: BTreeSet<String> = dropped.iter().cloned().chain(shared).collect();
        // An object that is not in the commit need not fit.
        let outcome = |without: &BTreeSet<String>| {
            let mut new = ours.clone();
            new.entries.retain(|key, _| !without.contains(key));
            forget_old_attributes(&mut new.entries, "");
            let mut all = Vec::with_capacity(below.len() + 1);
            all.extend_from_slice(below);
            all.push(new);
            (self.lay)(all)
        };
        let mut laid = outcome(&without)?;
        let mut misfits = laid.misfits();
        misfits.retain(|misfit| misfit.layer == below.len());
        if !misfits.is_empty() {
            if !self.wish.leave_out {
                return Err(CommitRefusal::Misfits(misfits));
            }
            without.extend(misfits.iter().map(|misfit| misfit.key.clone()));
            laid = outcome(&without)?;
        }
        let broken = laid.broken()?;
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
                base: base(&ours)?,
                ..LayerCommit::default()
            },
            dropped: dropped.into_iter().collect(),
            misfits,
        })
    }
}

/// A checkout that is to be committed. No other process of this host commits meanwhile.
pub struct Candidate<'a> {
    checkouts: &'a Checkouts,
    name: &'a str,
    storage: Arc<dyn Storage>,
    top: Dir,
    commits: Commits,
    /// The layers that a snapshot has.
    below: Vec<LayerFiles>,
    dir: Dir,
}

impl<'a> Candidate<'a> {
    /// Finds the checkout `name`; ENOENT if it does not exist.
    pub fn find(
        checkouts: &'a Checkouts,
        name: &'a str,
        storage: Arc<dyn Storage>,
    ) -> Result<Self> {
        check_name(name)?;
        // Only a failure needs another look at all commits, to say what there is instead.
        let explained = |e: Error| checkouts.find(name).err().unwrap_or(e);
        let missing = || Error::new(ErrorKind::NotFound, format!("no checkout {name}"));
        let top = match checkouts.is_local() {
            true => checkouts.opened()?.ok_or_else(missing),
            false => checkouts.make(&*storage),
        };
        let top = top.map_err(explained)?;
        let below = snapshot::read(&top).unwrap_or_default();
        let commits = Commits::lock_from(&top, storage.clone(), snapshot::last_of(&below));
        let commits = commits.map_err(explained)?;
        let layer = free_layer(name, snapshot::names(&below, commits.all()));
        let dir = match checkouts.is_local() {
            true => top.below(&layer).map_err(explained)?,
            false => top.make(&layer)?.0,
        };
        Ok(Self {
            checkouts,
            name,
            storage,
            top,
            commits,
            below,
            dir,
        })
    }

    /// Returns the directory of the layer, if a process of this host writes in it.
    pub fn held(&self) -> Result<Option<&Dir>> {
        let holder = LayerLock::look_here(&self.dir)?;
        Ok(holder.map(|_| &self.dir))
    }

    /// Commits the checkout: all later mounts of the store show it.
    ///
    /// Durable on success; on failure nothing is committed. EBUSY if a process writes in it. Objects that another
    /// commit has changed since are refused unless `side` decides, and so are objects that are incomplete or no longer
    /// fit the store, unless they are left out.
    pub fn commit(
        self,
        wish: &CommitOptions,
        is_group: IsGroup<'_>,
        lay: Laying<'_>,
    ) -> std::result::Result<Committed, CommitRefusal> {
        let Self {
            checkouts,
            name,
            storage,
            top,
            mut commits,
            below,
            dir,
        } = self;
        let mut lock = match LayerLock::take_begun(&dir) {
            Err(e) if e.kind == ErrorKind::NotFound => {
                let _ = remove_with(&dir, &[layer_lock::NAME]);
                return Err(checkouts.find(name).err().unwrap_or(e).into());
            }
            lock => lock?,
        };
        let mut upload = lock.upload(&dir);
        let changes = IndexChanges::read(&dir)?;
        let incomplete: Vec<KeptObject> = changes.incomplete.values().cloned().collect();
        if !incomplete.is_empty() && !wish.leave_out {
            return Err(CommitRefusal::Incomplete(incomplete));
        }
        let judge = CommitJudge {
            wish,
            is_group,
            lay,
        };
        if checkouts.is_local() {
            let own = dir.name();
            let taken = snapshot::names(&below, commits.all()).chain([own.as_str()]);
            remove_next(&top, &free_layer(name, taken))?;
        }
        let layer = CommittedLayer {
            name,
            dir: &dir,
            changes: &changes,
            below,
            upload: upload.as_mut(),
            is_tried: &mut false,
        };
        let Some(added) = layer.add(&top, &mut commits, &judge, &mut |_, _| Ok(()))? else {
            return Ok(Committed::default());
        };
        for member in incomplete.iter().flat_map(|object| &object.members) {
            // The file is no longer referred to.
            let _ = storage.remove(&dir, &member.file_name());
        }
        Ok(added.committed(&commits, incomplete))
    }
}

/// A layer that its writer commits.
pub(in crate::checkout) struct CommittedLayer<'a> {
    /// The name of the checkout.
    pub name: &'a str,
    /// The directory of the layer.
    pub dir: &'a Dir,
    /// The content of its index.
    pub changes: &'a IndexChanges,
    /// The layers below, as far as they were read before; others are read again.
    pub below: Vec<LayerFiles>,
    /// The upload, if the layer is in a bucket.
    pub upload: Option<&'a mut Upload>,
    /// Set while it is not known whether the commit exists: if `add` fails meanwhile, it may.
    pub is_tried: &'a mut bool,
}

/// A commit that was made.
pub(in crate::checkout) struct AddedCommit {
    judged: JudgedLayer,
    /// All committed layers, lowest first; the last one is that of the commit.
    pub layers: Vec<LayerFiles>,
}

impl AddedCommit {
    /// Returns the result for people.
    pub fn committed(self, commits: &Commits, incomplete: Vec<KeptObject>) -> Committed {
        Committed {
            number: Some(commits.all().len()),
            id: commits.all().last_id().unwrap_or_default().to_owned(),
            objects: self.judged.objects,
            dropped: self.judged.dropped,
            incomplete,
            misfits: self.judged.misfits,
        }
    }
}

impl CommittedLayer<'_> {
    /// Adds the commit of the layer, durably; `None` if the layer changes nothing. `prepare` is called once, when
    /// nothing but the disk can prevent the commit; if it fails, nothing is committed.
    pub fn add(
        mut self,
        top: &Dir,
        commits: &mut Commits,
        judge: &CommitJudge<'_>,
        prepare: &mut dyn FnMut(&Commits, &[LayerFiles]) -> Result<()>,
    ) -> std::result::Result<Option<AddedCommit>, CommitRefusal> {
        if self.changes.count_changed() == 0 {
            return Ok(None);
        }
        let mut below = std::mem::take(&mut self.below);
        snapshot::lay_on(top, commits, &mut below)?;
        if snapshot::is_folded(&below) && !self.changes.restored.is_empty() {
            snapshot::lay_in_full(top, commits, &mut below)?;
        }
        let mut ours = on_top(self.dir, self.changes.clone(), &below)?;
        check_files(&ours)?;
        let short = match self.upload {
            Some(_) => None,
            None => self.changes.short()?,
        };
        let mut content = None;
        let mut is_prepared = false;
        let judged = loop {
            // Another host had taken the checkout, or takes it now.
            let own = self.dir.name();
            if commits.all().read().iter().any(|other| other.layer == own) {
                let name = self.name;
                let why = format!("checkout {name} was committed by another process meanwhile");
                let stale = Error::new(ErrorKind::Stale, why).about(top.path().display());
                return Err(stale.into());
            }
            if snapshot::is_folded(&below) && !unseen(&ours, self.changes, &below).is_empty() {
                snapshot::lay_in_full(top, commits, &mut below)?;
                continue;
            }
            let mut judged = judge.judged(ours.clone(), self.changes, &below)?;
            if !std::mem::replace(&mut is_prepared, true) {
                prepare(commits, &below)?;
            }
            if let Some(upload) = &mut self.upload {
                match content {
                    None => content = Some(upload.content()?),
                    // Others were faster, which may have taken longer than a lease lasts.
                    Some(_) => upload.check_newest()?,
                }
            }
            judged.commit.changes.clone_from(&short);
            judged.commit.content.clone_from(&content);
            *self.is_tried = true;
            let is_made = commits.add(judged.commit.clone())?;
            *self.is_tried = false;
            if is_made {
                break judged;
            }
            // A process on another host was faster: the present state decides.
            snapshot::lay_on(top, commits, &mut below)?;
        };
        if let Some(upload) = &mut self.upload {
            upload.committed();
        }
        ours.entries
            .retain(|key, _| !judged.commit.without.contains(key));
        forget_old_attributes(&mut ours.entries, "");
        if let Some(commit) = commits.all().read().last() {
            ours.commit(CommitId::parse(&commit.id), commit.time);
        }
        below.push(ours);
        snapshot::keep(top, &below);
        Ok(Some(AddedCommit {
            judged,
            layers: below,
        }))
    }
}

/// Removes a layer in which a mount was to go on after a commit that was never made, because its process died.
fn remove_next(top: &Dir, name: &str) -> Result<()> {
    let dir = match top.below(name) {
        Err(e) if e.kind == ErrorKind::NotFound => return Ok(()),
        dir => dir?,
    };
    let _held = LayerLock::take(&dir)?;
    match IndexChanges::read(&dir)?.count_changed() {
        0 => top.remove_all(name),
        _ => Ok(()),
    }
}

/// Discards the checkout `name`, all at once. EBUSY if a process writes in it. EPERM if publications link to it, unless
/// `force`: then the unreadable publications are returned.
pub fn discard(
    checkouts: &Checkouts,
    name: &str,
    force: bool,
    storage: &dyn Storage,
) -> Result<Vec<PathBuf>> {
    check_name(name)?;
    let about = |e: std::io::Error| Error::from(e).about(checkouts.shown());
    checkouts.find(name)?;
    let top = checkouts.make(storage)?;
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
    // The checkout is discarded by now. Leftovers of dead processes are removed, too.
    for (name, _) in top.names().map_err(about)? {
        if let Some(name) = hidden(&name) {
            let _ = top.remove_all(&name);
        }
    }
    Ok(shown)
}

/// Returns the stores of a layer for the record of its commit.
pub(in crate::checkout) fn base(layer: &LayerFiles) -> Result<Option<Unread>> {
    match layer.stores.is_empty() {
        true => Ok(None),
        false => Unread::serialize(&layer.stores).map(Some),
    }
}

/// Returns the axes of a layer's objects, by key.
pub(in crate::checkout) fn axes(layer: &LayerFiles) -> BTreeMap<String, BTreeSet<AxisEntries>> {
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

/// Fails if a file of the layer is missing: all readers would miss it.
pub(in crate::checkout) fn check_files(layer: &LayerFiles) -> Result<()> {
    for (key, entry) in &layer.entries {
        if let Some((dir, stored)) = entry.file(&layer.dir) {
            let file = dir.size(&stored.name());
            file.map_err(|e| e.about(key))?;
        }
    }
    Ok(())
}

/// Returns the conflicts with commits that the layer has not seen.
fn unseen(ours: &LayerFiles, changes: &IndexChanges, below: &[LayerFiles]) -> Vec<Conflict> {
    let mut met = Vec::new();
    let first = usize::try_from(changes.first_seen()).unwrap_or(usize::MAX);
    for (at, theirs) in below.iter().enumerate().skip(first) {
        let is_unseen = |key: &str| changes.commits_below(key) <= at as u64;
        let found = conflicts(&ours.entries, &theirs.entries, at);
        met.extend(
            found
                .into_iter()
                .filter(|conflict| is_unseen(&conflict.ours)),
        );
    }
    met
}

/// Returns the conflicts with commits that the layer has not seen, and the empty groups that both created.
fn meet(
    ours: &LayerFiles,
    changes: &IndexChanges,
    below: &[LayerFiles],
    is_group: IsGroup<'_>,
) -> (Vec<Conflict>, BTreeSet<String>) {
    let mut met = unseen(ours, changes, below);
    // A group with attributes of its own is more than its name.
    let has_attributes = |key: &str| {
        let mut own = prefix::entries(&ours.entries, attribute::start(key));
        own.next().is_some()
    };
    let shared: BTreeSet<String> = met
        .iter()
        .filter(|c| !has_attributes(&c.ours))
        .filter(|c| c.ours == c.theirs && c.deleted == (false, false))
        .filter(|c| is_group(ours, &c.ours) && is_group(&below[c.commit], &c.theirs))
        .map(|c| c.ours.clone())
        .collect();
    // A group that both created conflicts only in its members.
    let is_shared = |c: &Conflict| {
        let ours_is = shared.contains(&c.ours) && (c.ours != c.theirs || !c.deleted.1);
        let theirs_is = shared.contains(&c.theirs) && !c.deleted.1;
        (ours_is && c.theirs.starts_with(&*c.ours)) || (theirs_is && c.ours.starts_with(&*c.theirs))
    };
    met.retain(|conflict| !is_shared(conflict));
    (met, shared)
}

/// The extended attribute of a mount's root that is set to ask for a commit.
pub const ATTRIBUTE: &str = "user.npyfs.commit";

/// The entry of `status.json` about the checkout that has the result.
pub const RESULT: &str = "committed";

/// A request for a commit.
#[derive(Debug, Serialize, Deserialize)]
pub struct CommitRequest {
    /// Distinguishes the request from others.
    pub request: String,
    /// The request.
    pub wish: CommitOptions,
}

/// The result for a request.
#[derive(Debug, Serialize, Deserialize)]
pub struct CommitReport {
    /// The request.
    pub request: String,
    /// The result.
    pub result: CommitResult,
}

/// The result of a commit.
#[derive(Debug, Serialize, Deserialize)]
pub enum CommitResult {
    /// The commit was made.
    Committed(Committed),
    /// The commit was refused: see [`CommitRefusal`].
    Conflicts(Vec<Conflict>),
    /// As above.
    Incomplete(Vec<KeptObject>),
    /// As above.
    Broken(Vec<String>),
    /// As above.
    Misfits(Vec<Misfit>),
    /// The commit failed, with this message.
    Failed(String),
}

impl From<std::result::Result<Committed, CommitRefusal>> for CommitResult {
    fn from(done: std::result::Result<Committed, CommitRefusal>) -> Self {
        match done {
            Ok(done) => Self::Committed(done),
            Err(CommitRefusal::Conflicts(met)) => Self::Conflicts(met),
            Err(CommitRefusal::Incomplete(objects)) => Self::Incomplete(objects),
            Err(CommitRefusal::Broken(lines)) => Self::Broken(lines),
            Err(CommitRefusal::Misfits(misfits)) => Self::Misfits(misfits),
            Err(CommitRefusal::Failed(e)) => Self::Failed(e.message),
        }
    }
}

impl From<CommitResult> for std::result::Result<Committed, CommitRefusal> {
    fn from(result: CommitResult) -> Self {
        Err(match result {
            CommitResult::Committed(done) => return Ok(done),
            CommitResult::Conflicts(met) => CommitRefusal::Conflicts(met),
            CommitResult::Incomplete(objects) => CommitRefusal::Incomplete(objects),
            CommitResult::Broken(lines) => CommitRefusal::Broken(lines),
            CommitResult::Misfits(misfits) => CommitRefusal::Misfits(misfits),
            CommitResult::Failed(message) => CommitRefusal::Failed(Error::damaged(message)),
        })
    }
}

#[cfg(test)]
pub(in crate::checkout) mod tests;
