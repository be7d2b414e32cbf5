//! A thread that makes changes of a layer durable, soon after they were made and many at a time.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::checkout::layer::Layer;
use npyfs_base::error::{Error, Result};
use npyfs_base::thread;

/// The longest time that changes wait for others, and the time after which a failed sync is retried.
const DELAY: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_secs(5);

/// While this exists, changes of the layer are synced in the background. Dropping it syncs them.
pub struct Syncer {
    layer: Arc<Layer>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    /// Starts the thread. `tell` is called with failures; callers of `Layer::sync` get them, too.
    pub fn start(layer: &Arc<Layer>, tell: impl Fn(Error) + Send + 'static) -> Result<Self> {
        let own = layer.clone();
        let work = move || {
            let mut delay = DELAY;
            while own.wait_for_changes(delay) {
                delay = own.sync().map_or_else(
                    |e| {
                        tell(e);
                        PAUSE
                    },
                    |()| DELAY,
                );
            }
            if let Err(e) = own.sync() {
                tell(e);
            }
        };
        // Before the thread begins: it ends when nothing is deferred.
        layer.begin_deferring();
        let thread = thread::spawn("syncer", work);
        if thread.is_err() {
            layer.end_deferring();
        }
        Ok(Self {
            layer: layer.clone(),
            thread: Some(thread?),
        })
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.layer.end_deferring();
        if let Some(thread) = self.thread.take() {
            // The thread ends once everything is synced. If it panicked, the panic was reported already.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::time::{Instant, UNIX_EPOCH};

    use parking_lot::Mutex;

    use super::*;
    use crate::checkout::records::index::StoredObject;
    use crate::store::encode::store::{dataset, saved};
    use crate::store::object::PackScope;
    use npyfs_base::npy::dtype::DType;
    use npyfs_io::content::Content;
    use npyfs_io::dir::Dir;
    use npyfs_io::storage::faulty::Faulty;
    use npyfs_io::storage::{Disk, Storage};

    const ERRNO: i32 = libc::EIO;
    const MARK: u8 = 0xa0;

    fn open(dir: &Path, storage: Arc<dyn Storage>) -> Result<Arc<Layer>> {
        Layer::open(&Dir::own(dir), storage, npyfs_worker::creator_here()).map(Arc::new)
    }

    /// Stores four bytes with the value `MARK + value`, which is unique in a file: in a shared file, or its own.
    fn put(layer: &Layer, path: &str, value: u8, scope: Option<&str>) -> Result<()> {
        let file = saved(&DType::int(4), &[1], &[MARK + value; 4]);
        let mut new = dataset(path, &file)?;
        new.size = Some(file.len() as u64);
        new.scope = scope.map(|store| PackScope {
            store: store.to_owned(),
            path: path.split('/').map(str::to_owned).collect(),
        });
        layer.put(path, &new, UNIX_EPOCH).map(drop)
    }

    /// Returns the value of each object; an incomplete file has none.
    fn values(layer: &Layer) -> BTreeMap<String, Option<u8>> {
        let value = |path: &str, stored: Arc<StoredObject>| {
            let bytes = std::fs::read(layer.path(&stored)).unwrap();
            let known = STEPS.iter().chain(&[("alpha", 1)]);
            let mut known = known.filter(|(known, _)| *known == path);
            let is_there = |value| bytes.windows(4).any(|four| four == [MARK + value; 4]);
            known
                .find(|(_, value)| is_there(*value))
                .map(|(_, value)| *value)
        };
        let entries = layer.entries().into_iter();
        entries
            .map(|(path, s)| {
                let found = s.and_then(|stored| value(&path, stored));
                (path, found)
            })
            .collect()
    }

    const STEPS: [(&str, u8); 4] = [("alpha", 2), ("beta", 3), ("alpha", 4), ("gamma", 5)];

    /// Simulates failures after `close` has reported success: every call that changes the disk fails once, or from then
    /// on; a program syncs immediately, or the thread does.
    #[test]
    fn what_could_not_be_synced_is_named_and_nothing_else_is_lost() {
        let steps = STEPS;
        let run = |at, dead, wait: bool, scope| {
            let dir = tempfile::tempdir().unwrap();
            put(&open(dir.path(), Arc::new(Disk)).unwrap(), "alpha", 1, None).unwrap();
            let faulty = Arc::new(Faulty::new(at, ERRNO, dead));
            let Ok(layer) = open(dir.path(), faulty.clone()) else {
                return (faulty.calls(), false);
            };
            let told = Arc::new(Mutex::new(Vec::new()));
            let hears = told.clone();
            let tell = move |e: Error| hears.lock().push(e);
            let syncer = Syncer::start(&layer, tell).unwrap();
            let mut closed = BTreeMap::from([("alpha", 1)]);
            for (path, value) in steps {
                if put(&layer, path, value, scope).is_ok() {
                    closed.insert(path, value);
                }
            }
            let until = Instant::now() + Duration::from_secs(20);
            while wait && layer.is_waiting() && told.lock().is_empty() {
                assert!(Instant::now() < until);
                std::thread::sleep(Duration::from_millis(5));
            }
            // An object whose deletion failed exists, now and later.
            if closed.contains_key("beta") && layer.remove("beta").is_ok() {
                closed.remove("beta");
            } else if layer.lost().is_none() {
                let there = layer.entries().get("beta").is_some_and(Option::is_some);
                assert_eq!(there, closed.contains_key("beta"), "{at}");
            }
            let synced = layer.sync();
            let lost = layer.lost();
            if let Some(lost) = &lost {
                let again = [
                    layer.sync(),
                    put(&layer, "delta", 9, scope),
                    layer.remove("alpha"),
                ];
                for answer in again {
                    assert_eq!(answer.unwrap_err().message, lost.message);
                }
            }
            drop(syncer);
            drop(layer);
            let after = values(&open(dir.path(), Arc::new(Disk)).unwrap());
            let mut told: Vec<_> = told.lock().clone();
            told.extend(synced.clone().err());
            assert!(told.iter().all(|e| e.errno() == ERRNO), "{told:?}");
            let mut any = false;
            for (path, value) in closed {
                let there = after.get(path).copied().flatten();
                if there == Some(value) {
                    continue;
                }
                any = true;
                assert!(synced.is_err(), "{at} {dead} {wait}: {path} {there:?}");
                let list =
                    |e: &Error| e.message.contains("not on the disk") && e.message.contains(path);
                // A process that cannot write at all any more must report it.
                assert!(dead || told.iter().any(list), "{at}: {path}: {told:?}");
                let whole = there.is_none() || steps.contains(&(path, there.unwrap_or(0)));
                assert!(
                    whole || (path, there) == ("alpha", Some(1)),
                    "{at}: {path} {there:?}"
                );
            }
            (faulty.calls(), any)
        };
        for scope in [None, Some("plain:")] {
            let (all, lost) = run(u64::MAX, false, false, scope);
            assert!(all > 12 && !lost, "{all}");
            let mut lost = 0;
            for at in 0..all {
                for (dead, wait) in [(false, false), (false, true), (true, false)] {
                    lost += u32::from(run(at, dead, wait, scope).1);
                }
            }
            assert!(lost > 2, "{lost}");
        }
    }

    /// Objects written together share a file, which is removed with the last of them; readers see them at once.
    #[test]
    fn small_objects_share_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let layer = open(dir.path(), Arc::new(Disk)).unwrap();
        let syncer = Syncer::start(&layer, drop).unwrap();
        let scope = Some("plain:");
        for (path, value) in [("g/alpha", 2), ("beta", 3), ("g/gamma", 5)] {
            put(&layer, path, value, scope).unwrap();
        }
        let file = |path: &str| layer.entries().get(path).cloned().flatten().unwrap();
        let first = file("beta");
        let waiting = first.unwritten.get();
        assert_eq!(waiting.map(|object| object.len()), Some(132));
        // An object of the same name, a group at its path, and an object of another store.
        for (path, scope) in [
            ("beta", scope),
            ("beta/x", scope),
            ("delta", Some("plain:b.h5")),
        ] {
            put(&layer, path, 4, scope).unwrap();
            assert_ne!(file(path).file, first.file, "{path}");
        }
        layer.sync().unwrap();
        assert!(first.unwritten.get().is_none() && file("g/gamma").file == first.file);
        let is_there = || layer.path(&first).exists();
        layer.remove("g/alpha").unwrap();
        assert!(is_there());
        layer.remove("g/gamma").unwrap();
        assert!(!is_there() && layer.path(&file("beta")).exists());
        drop(syncer);
        drop(layer);
        let layer = open(dir.path(), Arc::new(Disk)).unwrap();
        let stored = layer.entries().into_values().flatten();
        assert!(stored.into_iter().all(|stored| stored.packed));
    }
}
