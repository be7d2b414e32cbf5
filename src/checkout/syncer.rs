//! A thread that makes the changes of a layer durable, soon after they were made and many at a time.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::layer::Layer;
use crate::error::{Error, Result};
use crate::io::thread;

/// The time for which changes may wait for others, and after which a failure is tried again.
const DELAY: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_secs(5);

/// As long as it lives, changes of the layer wait to be synced. Dropping it syncs them.
pub struct Syncer {
    layer: Arc<Layer>,
    thread: Option<JoinHandle<()>>,
}

impl Syncer {
    /// `tell` hears of failures; whoever calls `Layer::sync` gets them, too.
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
            // It ends once everything is synced; if it panicked, there is nothing to add.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::sync::Mutex;
    use std::time::{Instant, UNIX_EPOCH};

    use super::*;
    use crate::checkout::encode::store::{dataset, saved};
    use crate::checkout::object::PackScope;
    use crate::hdf5::Creator;
    use crate::io::content::Content;
    use crate::io::dir::Dir;
    use crate::io::storage::faulty::Faulty;
    use crate::io::storage::{Disk, Storage};
    use crate::npy::dtype::DType;

    const ERRNO: i32 = libc::EIO;
    const MARK: u8 = 0xa0;

    fn open(dir: &Path, storage: Arc<dyn Storage>) -> Result<Arc<Layer>> {
        Layer::open(&Dir::own(dir), storage, Creator::Local).map(Arc::new)
    }

    /// Stores four bytes that are all `MARK + value`, which nothing else in a file is: in a file with others, or its own.
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

    /// The value of each object; a file that is not whole has none.
    fn values(layer: &Layer) -> BTreeMap<String, Option<u8>> {
        let value = |path: &str, stored| {
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

    /// Leaves what a failure may leave behind after `close` has answered that all is well: every call that changes the disk
    /// fails once, or from then on; a program syncs at once, or the thread does.
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
            let tell = move |e: Error| hears.lock().unwrap().push(e);
            let syncer = Syncer::start(&layer, tell).unwrap();
            let mut closed = BTreeMap::from([("alpha", 1)]);
            for (path, value) in steps {
                if put(&layer, path, value, scope).is_ok() {
                    closed.insert(path, value);
                }
            }
            let until = Instant::now() + Duration::from_secs(20);
            while wait && layer.is_waiting() && told.lock().unwrap().is_empty() {
                assert!(Instant::now() < until);
                std::thread::sleep(Duration::from_millis(5));
            }
            // What could not be deleted is there, now and later.
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
            let mut told: Vec<_> = told.lock().unwrap().clone();
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
                // A process that cannot write at all any more says that it cannot.
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

    /// Objects that are written together are in one file, which goes with the last of them; who reads them has them at once.
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
        // One of its name, a group where it is, and one of another store.
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
