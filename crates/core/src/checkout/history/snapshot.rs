//! What the layers of all commits say together, in one file: a commit and a mount then read what the layers of a store
//! hold, not all that they ever held.
//!
//! Where several layers have an entry for a key, the snapshot has that of the uppermost. It has every entry of an axis
//! and of a begun store, as what was written along the earlier ones depends on them. A view of such layers is that of
//! all, unless an object does not fit the store: an earlier one may be shown then, and the view reads all layers
//! (`unfolded`).
//!
//! The file is derived; the commits are authoritative. A missing, damaged or outdated snapshot, and one of another
//! history, is not used. Where it matters which commit changed what, as in a conflict, all layers are read. A bucket
//! has none: a commit takes ten times as long there anyway.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::commits::{self, CommitRecords, Commits};
use super::committed_layers::{add_layers, layers};
use crate::checkout::mirror::Mirror;
use crate::checkout::records::entry::{LayerEntry, StoredAgain};
use crate::checkout::records::fit::StoreIdentity;
use crate::checkout::records::form::Form;
use crate::checkout::records::index::{ObjectChange, StoredObject};
use crate::checkout::records::layer_files::{CommitId, LayerFiles, directory_of, note};
use crate::checkout::records::names::checkout_of;
use crate::checkout::records::record_log::{self, LogRecord};
use npyfs_base::error::{Error, Result};
use npyfs_io::dir::Dir;

/// The name of the file, beside the commits.
const NAME: &str = "snapshot";

const FORM: Form = Form {
    name: "npyfs snapshot",
    version: 1,
};

/// How many commits are made from one snapshot to the next.
const SPAN: usize = if cfg!(test) { 4 } else { 100 };

type Stores = Arc<BTreeMap<String, StoreIdentity>>;

/// The first record: the commits, oldest first.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FoldedCommits {
    /// Their ids, one after the other.
    ids: String,
    /// The names of their layers.
    layers: Vec<Arc<str>>,
    /// The number of records that follow.
    records: usize,
}

/// The stores that the layers from an index on were written over, up to the next such record.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoresFrom {
    from: usize,
    stores: Stores,
}

/// An entry of a layer. Without any of `stored` and `since` the object is deleted.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryAt {
    /// The index of the layer.
    at: usize,
    path: String,
    /// Features that a reader must know, as in an index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    needs: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stored: Option<Arc<StoredObject>>,
    /// The index of the layer whose object is restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    of: Option<usize>,
    /// The time since which the store's own object is restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since: Option<i64>,
}

/// The time of the last change of a directory, if none of the entries has it: one that was replaced, or a deletion.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DirectoryAt {
    directory: String,
    time: i64,
}

enum Record {
    Folded(FoldedCommits),
    Stores(StoresFrom),
    Directory(DirectoryAt),
    Entry(EntryAt),
}

impl LogRecord for Record {
    fn parse(json: &str) -> serde_json::Result<Self> {
        match json {
            _ if json.starts_with(r#"{"ids":"#) => serde_json::from_str(json).map(Self::Folded),
            _ if json.starts_with(r#"{"from":"#) => serde_json::from_str(json).map(Self::Stores),
            _ if json.starts_with(r#"{"directory":"#) => {
                serde_json::from_str(json).map(Self::Directory)
            }
            _ => serde_json::from_str(json).map(Self::Entry),
        }
    }

    fn print(&self) -> serde_json::Result<String> {
        match self {
            Self::Folded(folded) => serde_json::to_string(folded),
            Self::Stores(stores) => serde_json::to_string(stores),
            Self::Directory(directory) => serde_json::to_string(directory),
            Self::Entry(entry) => serde_json::to_string(entry),
        }
    }
}

/// The commits of a store and their layers, as far as they are read.
pub(in crate::checkout) struct KnownCommits {
    /// All commits, of which the first ones may be in `layers` alone.
    pub commits: CommitRecords,
    /// The layers of the first commits.
    pub layers: Vec<LayerFiles>,
}

impl KnownCommits {
    /// Reads the commits below `top`, the directory of a store's checkouts; the first ones from its snapshot.
    pub(in crate::checkout) fn read(top: &Dir) -> Result<Self> {
        if let Some(layers) = read(top)
            && let Some(last) = last_of(&layers)
            && let Some(commits) = commits::read_from(top, last)?
        {
            return Ok(Self { commits, layers });
        }
        Ok(Self {
            commits: commits::read(top)?.into(),
            layers: Vec::new(),
        })
    }

    /// Reads the commits, and all layers.
    pub(in crate::checkout) fn with_layers(top: &Dir) -> Result<Self> {
        let mut known = Self::read(top)?;
        let is_folded = is_folded(&known.layers);
        let more = known.commits.after(known.layers.len()).unwrap_or_default();
        match add_layers(top, more, &mut known.layers) {
            // A later layer restores an object that another replaced.
            Err(_) if is_folded => Self::in_full(top),
            added => added.map(|()| known),
        }
    }

    /// Reads all commits, and all layers with all their entries.
    pub(in crate::checkout) fn in_full(top: &Dir) -> Result<Self> {
        let commits = commits::read(top)?;
        let layers = layers(top, &commits)?;
        let commits = commits.into();
        Ok(Self { commits, layers })
    }

    /// Returns the names of all layers.
    pub(in crate::checkout) fn names(&self) -> impl Iterator<Item = &str> {
        names(&self.layers, &self.commits)
    }
}

/// Returns the names of the layers of all commits, of which the first ones are in `layers`.
pub(in crate::checkout) fn names<'a>(
    layers: &'a [LayerFiles],
    commits: &'a CommitRecords,
) -> impl Iterator<Item = &'a str> {
    let more = commits.after(layers.len()).unwrap_or(commits.read());
    let names = layers.iter().map(|layer| &*layer.name);
    names.chain(more.iter().map(|commit| commit.layer.as_str()))
}

/// Returns the number and the id of the commit of the last of these layers.
pub(in crate::checkout) fn last_of(layers: &[LayerFiles]) -> Option<(usize, CommitId)> {
    Some((layers.len(), layers.last()?.commit?))
}

/// Adds the layers of the commits that are not in `below` yet. If they cannot be added, all layers are read anew.
pub(in crate::checkout) fn lay_on(
    top: &Dir,
    commits: &mut Commits,
    below: &mut Vec<LayerFiles>,
) -> Result<()> {
    let all = commits.all();
    let are_those = below.is_empty() || last_of(below).is_some_and(|last| all.has(last));
    if let Some(more) = all.after(below.len()).filter(|_| are_those) {
        match add_layers(top, more, below) {
            // A later layer restores an object that another replaced.
            Err(_) if is_folded(below) => {}
            added => return added,
        }
    }
    lay_in_full(top, commits, below)
}

/// Reads all commits, and all entries of their layers.
pub(in crate::checkout) fn lay_in_full(
    top: &Dir,
    commits: &mut Commits,
    below: &mut Vec<LayerFiles>,
) -> Result<()> {
    commits.read_in_full()?;
    below.clear();
    add_layers(top, commits.all().read(), below)
}

/// Returns whether entries of some layers are missing.
pub(in crate::checkout) fn is_folded(layers: &[LayerFiles]) -> bool {
    layers.iter().any(|layer| layer.is_folded)
}

/// Returns the layers that a snapshot has, with all their entries.
pub(in crate::checkout) fn unfolded(folded: &[LayerFiles]) -> Result<Vec<LayerFiles>> {
    let own = folded.iter().find(|layer| !layer.entries.is_empty());
    let Some(top) = own.and_then(|layer| layer.dir.above()) else {
        return Err(Error::damaged("a snapshot without an entry"));
    };
    let mut commits = commits::read(top)?;
    commits.truncate(folded.len());
    let ids = folded.iter().map(|layer| layer.commit);
    let there = commits.iter().map(|commit| CommitId::parse(&commit.id));
    if !there.eq(ids) {
        let why = "the commits are not those that they were";
        return Err(Error::damaged(why).about(top.path().display()));
    }
    layers(top, &commits)
}

/// Reads the layers of a snapshot; `None` if there is none that can be used.
pub(in crate::checkout) fn read(top: &Dir) -> Option<Vec<LayerFiles>> {
    if Mirror::find(top).is_some() {
        return None;
    }
    let own = top.below(commits::NAME).ok()?;
    let records = record_log::read(&own, NAME, FORM).ok()??;
    laid(top, records)
}

fn laid(top: &Dir, records: Vec<Record>) -> Option<Vec<LayerFiles>> {
    let count = records.len().checked_sub(1)?;
    let mut records = records.into_iter();
    let Some(Record::Folded(folded)) = records.next() else {
        return None;
    };
    if folded.records != count || folded.ids.len() != folded.layers.len() * CommitId::DIGITS {
        return None;
    }
    let ids = folded.ids.as_bytes().chunks_exact(CommitId::DIGITS);
    // Most layers have no entry here: they share what they have.
    let bare = LayerFiles::bare(top, BTreeMap::new());
    let mut all = Vec::with_capacity(folded.layers.len());
    for (id, name) in ids.zip(folded.layers) {
        if !commits::is_layer(&name) {
            return None;
        }
        all.push(LayerFiles {
            name,
            commit: Some(CommitId::parse(std::str::from_utf8(id).ok()?)?),
            is_folded: true,
            ..bare.clone()
        });
    }
    let mut stores = Vec::new();
    let mut times = Vec::new();
    for record in records {
        match record {
            Record::Folded(_) => return None,
            Record::Stores(from) => stores.push(from),
            Record::Directory(last) => times.push((last.directory, last.time)),
            Record::Entry(entry) => {
                let said = match (entry.stored, entry.of, entry.since) {
                    (Some(stored), None, None) => LayerEntry::Stored(stored),
                    (Some(stored), Some(layer), None) if layer < entry.at => {
                        let dir = top.below_later(&all.get(layer)?.name);
                        LayerEntry::Again(StoredAgain { layer, dir, stored })
                    }
                    (None, None, Some(since)) => LayerEntry::Uncovered(since),
                    (None, None, None) => LayerEntry::Deleted,
                    _ => return None,
                };
                let layer = all.get_mut(entry.at)?;
                if layer.entries.is_empty() {
                    layer.dir = top.below_later(&layer.name);
                    layer.checkout = checkout_of(&layer.name).into();
                }
                layer.entries.insert(entry.path, said);
            }
        }
    }
    if let Some(lowest) = all.first_mut() {
        lowest.changed = times.into_iter().collect();
    }
    // From the top down: each layer has those of the last record before it.
    let mut end = all.len();
    for StoresFrom { from, stores } in stores.into_iter().rev() {
        for layer in all.get_mut(from..end)? {
            layer.stores = stores.clone();
        }
        end = from;
    }
    Some(all)
}

/// Writes a snapshot of all committed layers, if one is due. It need not succeed.
pub(in crate::checkout) fn keep(top: &Dir, layers: &[LayerFiles]) {
    if layers.len().is_multiple_of(SPAN) && Mirror::find(top).is_none() {
        // Commits need none.
        let _ = write(top, layers);
    }
}

fn write(top: &Dir, layers: &[LayerFiles]) -> Result<()> {
    let bytes = record_log::print(&records(layers)?, FORM)?;
    commits::replace(top, NAME, &bytes)
}

fn records(layers: &[LayerFiles]) -> Result<Vec<Record>> {
    let strange = || Error::damaged("a layer that is not committed");
    let ids = layers.iter().map(|layer| Some(layer.commit?.to_string()));
    let mut records = vec![Record::Folded(FoldedCommits {
        ids: ids.collect::<Option<_>>().ok_or_else(strange)?,
        layers: layers.iter().map(|layer| layer.name.clone()).collect(),
        records: 0,
    })];
    let mut known = &Stores::default();
    for (from, layer) in layers.iter().enumerate() {
        if layer.stores != *known {
            known = &layer.stores;
            let stores = known.clone();
            records.push(Record::Stores(StoresFrom { from, stores }));
        }
    }
    let mut latest: BTreeMap<&str, i64> = BTreeMap::new();
    for (directory, time) in layers.iter().flat_map(LayerFiles::changes) {
        note(&mut latest, directory, time);
    }
    let mut last: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, layer) in layers.iter().enumerate() {
        last.extend(layer.entries.keys().map(|key| (key.as_str(), at)));
    }
    for (at, layer) in layers.iter().enumerate() {
        for (path, entry) in &layer.entries {
            if last.get(path.as_str()) == Some(&at) || is_needed(path, entry) {
                let directory = directory_of(path);
                if latest.get(directory).copied() == entry.time() {
                    latest.remove(directory);
                }
                records.push(Record::Entry(entry_at(at, path, entry)));
            }
        }
    }
    records.extend(latest.into_iter().map(|(directory, time)| {
        let directory = directory.to_owned();
        Record::Directory(DirectoryAt { directory, time })
    }));
    let count = records.len() - 1;
    if let Some(Record::Folded(folded)) = records.first_mut() {
        folded.records = count;
    }
    Ok(records)
}

/// Returns whether an entry counts although a later layer has another one at its key: it is an axis, whose name ends
/// with `#`, or begins a store.
fn is_needed(path: &str, entry: &LayerEntry) -> bool {
    path.ends_with('#') || entry.stored().is_some_and(|stored| stored.begins.is_some())
}

fn entry_at(at: usize, path: &str, entry: &LayerEntry) -> EntryAt {
    let stored = entry.stored().cloned();
    EntryAt {
        at,
        path: path.to_owned(),
        needs: ObjectChange::new(path, stored.clone()).needs,
        stored,
        of: match entry {
            LayerEntry::Again(again) => Some(again.layer),
            _ => None,
        },
        since: match entry {
            LayerEntry::Uncovered(since) => Some(*since),
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_lines(lines: &[&str]) -> Option<Vec<LayerFiles>> {
        let line = |json: &&str| format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()));
        let text = lines.iter().map(line).collect::<String>();
        let records = record_log::parse_whole([FORM.first(), text].concat().as_bytes(), FORM);
        laid(&Dir::own(std::path::Path::new("/none")), records.ok()?)
    }

    #[test]
    fn what_refers_to_nothing_is_not_used() {
        let first = |records: usize| {
            let ids = "0123456789abcdef".repeat(4);
            format!(r#"{{"ids":"{ids}","layers":["a","b~2"],"records":{records}}}"#)
        };
        let stored = r#"{"at":1,"path":"x","stored":{"file":1,"time":2},"of":0}"#;
        let good = read_lines(&[&first(1), stored]).unwrap();
        assert!(matches!(good[1].entries["x"], LayerEntry::Again(ref again) if again.layer == 0));
        assert_eq!(
            (&*good[1].checkout, good[1].dir.name()),
            ("b", "b~2".to_owned())
        );
        assert!(read_lines(&[&first(0)]).is_some_and(|all| all.len() == 2));
        for bad in [
            vec![],
            vec![stored],
            vec![&first(1)],
            vec![&first(2), stored],
            vec![
                &first(1),
                r#"{"at":2,"path":"x","stored":{"file":1,"time":2}}"#,
            ],
            vec![
                &first(1),
                r#"{"at":1,"path":"x","stored":{"file":1,"time":2},"of":1}"#,
            ],
            vec![&first(1), r#"{"at":1,"path":"x","of":0}"#],
            vec![
                &first(1),
                r#"{"at":1,"path":"x","stored":{"file":1,"time":2},"since":1}"#,
            ],
            vec![&first(1), r#"{"at":1,"path":"x","needs":["wings"]}"#],
            vec![&first(1), r#"{"from":3,"stores":{}}"#],
            vec![
                &first(2),
                r#"{"from":1,"stores":{}}"#,
                r#"{"from":0,"stores":{}}"#,
            ],
            vec![&first(1), &first(0)],
            vec![&first(1), r#"{"directory":"x","time":1,"of":0}"#],
            vec![&first(0).replace("b~2", "../b")],
            vec![&first(0).replace("89ab", "8XYb")],
            vec![&first(0).replace("89ab", "")],
        ] {
            assert!(read_lines(&bad).is_none(), "{bad:?}");
        }
    }
}
