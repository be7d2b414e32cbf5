//! A commit of the checkout that is being written: the mount goes on in a new layer on top of it.
//!
//! The layer is synced, and no change is made until the commit is. Before it is made the new layer is there, with the
//! members of incomplete objects. A process that dies before leaves the old layer as it was, and one that dies after
//! leaves the new one: nothing is in neither.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value as Json;

use super::{CurrentLayer, LayerTarget, creator};
use crate::checkout::history::checkouts::{free_layer, remove_with};
use crate::checkout::history::commits::{self, Commits};
use crate::checkout::history::snapshot;
use crate::checkout::layer::{Layer, lock};
use crate::checkout::records::index::{self, IndexChanges, LayerBase, nanoseconds};
use crate::checkout::records::layer_files::LayerFiles;
use crate::checkout::verbs::commit::{
    CommitJudge, CommitOptions, CommitRefusal, CommitReport, CommitRequest, Committed,
    CommittedLayer, Outcome,
};
use crate::checkout::view::is_empty_group;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::dir::Dir;
use npyfs_io::storage::{Disk, Storage};

/// Executes a request for a commit, and returns the report on it.
pub(super) fn answer(target: &LayerTarget, request: &Json) -> Result<Json> {
    let strange = |e: serde_json::Error| Error::new(ErrorKind::Os(libc::EINVAL), e.to_string());
    let asked: CommitRequest = serde_json::from_value(request.clone()).map_err(strange)?;
    let report = CommitReport {
        request: asked.request,
        result: target.commit_all(&asked.wish).into(),
    };
    serde_json::to_value(report).map_err(strange)
}

impl LayerTarget {
    /// Commits everything that is stored, durably, and goes on in a new layer. On failure nothing is committed, and
    /// the mount goes on as it was. Incomplete objects are not in the commit, but in the new layer.
    fn commit_all(&self, wish: &CommitOptions) -> std::result::Result<Committed, CommitRefusal> {
        let _alone = self.changing.write();
        let layer = self.layer();
        layer.sync()?;
        let changes = layer.recorded();
        let storage: Arc<dyn Storage> = Arc::new(Disk);
        let top = self.checkouts.make(&*storage)?;
        let base = self.checkouts.base_files();
        let mut below = self.view.layers();
        // The last layer is that of the checkout.
        below.pop();
        let mut commits = Commits::lock_from(&top, storage.clone(), snapshot::last_of(&below))?;
        let is_group = |layer: &LayerFiles, key: &str| {
            is_empty_group(layer, key, &|layer| self.view.with(vec![layer.clone()]))
        };
        let lay = |layers| Ok(Box::new(self.view.with(layers)) as Box<dyn Outcome>);
        let judge = CommitJudge {
            wish,
            is_group: &is_group,
            lay: &lay,
        };
        let (mut next, mut is_tried) = (None, false);
        let mut upload = layer.upload();
        let committed = CommittedLayer {
            name: &self.name,
            dir: layer.dir(),
            changes: &changes,
            below,
            upload: upload.as_deref_mut(),
            is_tried: &mut is_tried,
        };
        let done = committed.add(&top, &mut commits, &judge, &mut |commits, below| {
            layer.check_lock()?;
            let own = layer.dir().name();
            let taken = snapshot::names(below, commits.all()).chain([own.as_str()]);
            let name = free_layer(&self.name, taken);
            let begun = LayerBase {
                commits: commits.all().len() as u64 + 1,
                time: nanoseconds(SystemTime::now()),
                base: base.clone(),
                on: None,
            };
            next = Some(self.next((&top, &name), &layer, &changes, begun)?);
            Ok(())
        });
        drop(upload);
        let (mut added, next) = match (done, next) {
            (Ok(Some(added)), Some(next)) => (added, next),
            (Err(e), _) if is_tried && self.may_be_committed(&top, &layer) => {
                // Nothing may be written in a committed layer. The new one stays: a mount goes on in either.
                let why = "whether the checkout was committed is not known (mount again to write)";
                layer.close(&Error::new(ErrorKind::Os(libc::EIO), format!("{why}: {e}")));
                return Err(e);
            }
            (done, next) => {
                if let Some(next) = &next {
                    take_back(next);
                }
                let own = layer.dir().name();
                if commits
                    .all()
                    .read()
                    .iter()
                    .any(|commit| commit.layer == own)
                {
                    // Nothing may be written in a committed layer.
                    let why = "another host has committed this checkout (mount again to write)";
                    layer.close(&Error::new(ErrorKind::Stale, why));
                }
                return done.map(|_| Committed::default());
            }
        };
        // It was begun on this number of commits, unless another host was faster.
        let begun = next.layer.begin(LayerBase {
            commits: commits.all().len() as u64,
            on: commits.all().last_id().map(str::to_owned),
            time: nanoseconds(SystemTime::now()),
            base: base.clone(),
        });
        if let Err(e) = begun {
            // The commit is made, and what is below later changes is not recorded.
            next.layer.close(&e);
        }
        let files = LayerFiles::new(next.layer.dir(), next.layer.recorded());
        let mut layers = std::mem::take(&mut added.layers);
        layers.push(files);
        self.view.set_layers(layers);
        // The old layer is released when the lock of the commits is free.
        let old = std::mem::replace(&mut *self.current.write(), next);
        for member in changes.incomplete.values().flat_map(|o| &o.members) {
            let _ = storage.remove(old.layer.dir(), &member.file_name());
        }
        Ok(added.committed(&commits, Vec::new()))
    }

    /// Returns whether the commit of a layer may exist after an attempt that failed.
    fn may_be_committed(&self, top: &Dir, layer: &Layer) -> bool {
        // A bucket may have taken what it did not answer for.
        let all = commits::read(top)
            .ok()
            .filter(|_| self.checkouts.is_local());
        let own = layer.dir().name();
        all.is_none_or(|all| all.iter().any(|commit| commit.layer == own))
    }

    /// Makes the layer in which the checkout goes on, with the incomplete objects. After the commit nothing need be
    /// written.
    fn next(
        &self,
        (top, name): (&Dir, &str),
        old: &Layer,
        changes: &IndexChanges,
        begun: LayerBase,
    ) -> Result<CurrentLayer> {
        let (dir, _) = top.make(name)?;
        Disk.sync_dir(top)
            .map_err(|e| Error::from(e).about(top.path().display()))?;
        let layer = Layer::open(&dir, Arc::new(Disk), creator(&dir))?;
        let there = layer.recorded();
        if there.count_changed() > 0 {
            let why = "a checkout was begun there already";
            return Err(Error::damaged(why).about(dir.path().display()));
        }
        // A process that died before its commit may have left another state, and copies of members.
        layer.replace_all(IndexChanges::begun_on(begun))?;
        layer.number_after(old);
        if !changes.incomplete.is_empty() {
            layer.adopt(old.dir(), &changes.incomplete)?;
        }
        layer.sync()?;
        CurrentLayer::start(layer, &self.context)
    }
}

/// Removes a layer in which nothing goes on.
fn take_back(next: &CurrentLayer) {
    let layer = &next.layer;
    // Copies of members; the objects are in the old layer.
    let _ = layer.replace_all(IndexChanges::default());
    // If this fails, gc removes it.
    let _ = remove_with(layer.dir(), &[index::NAME, lock::NAME]);
}
