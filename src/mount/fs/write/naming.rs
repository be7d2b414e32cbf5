//! Names that are being changed, or whose files are being stored: a thread waits only for threads with the same names.
//! A file is stored under its name, so the name must not go to another file meanwhile, and must not come back.
//!
//! A change may wait for the disk. Changes of other names go on meanwhile, and reach the disk together with it.

use std::sync::{Condvar, Mutex, MutexGuard};

use super::pending::Path;

/// The names that are being changed. Any thread may use this set.
#[derive(Default)]
pub(super) struct Naming {
    busy: Mutex<Vec<Path>>,
    freed: Condvar,
}

/// The exclusive right to change some names, as long as the guard lives.
pub(super) struct Changing<'a> {
    naming: &'a Naming,
    paths: Vec<Path>,
}

impl Naming {
    fn busy(&self) -> MutexGuard<'_, Vec<Path>> {
        self.busy.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Waits until no other thread changes any of these paths, or a path above or below them.
    pub(super) fn change(&self, paths: Vec<Path>) -> Changing<'_> {
        let meets = |busy: &Path| {
            let mut paths = paths.iter();
            paths.any(|path| path.starts_with(busy) || busy.starts_with(path))
        };
        // All names are taken at once, so that two threads that want each other's names do not deadlock.
        let busy = self
            .freed
            .wait_while(self.busy(), |busy| busy.iter().any(meets));
        let mut busy = busy.unwrap_or_else(|e| e.into_inner());
        busy.extend(paths.iter().cloned());
        drop(busy);
        Changing {
            naming: self,
            paths,
        }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let mut busy = self.naming.busy();
        for path in &self.paths {
            if let Some(at) = busy.iter().position(|known| known == path) {
                busy.swap_remove(at);
            }
        }
        drop(busy);
        self.naming.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn path(text: &str) -> Path {
        text.split('/').map(|name| name.as_bytes().into()).collect()
    }

    #[test]
    fn a_change_waits_for_those_that_it_meets_and_for_no_others() {
        let naming = Naming::default();
        let first = naming.change(vec![path("d/a"), path("e/b")]);
        // Without the drops above, these calls would hang.
        drop(naming.change(vec![path("d/b"), path("e/a"), path("d/aa")]));
        thread::scope(|scope| {
            let (done, heard) = channel();
            for met in ["d/a", "e", "e/b/c"] {
                let (naming, done) = (&naming, done.clone());
                scope.spawn(move || {
                    let _changing = naming.change(vec![path("f"), path(met)]);
                    done.send(met).unwrap();
                });
            }
            let waits = heard.recv_timeout(Duration::from_millis(50));
            assert!(waits.is_err(), "{waits:?}");
            drop(first);
            for _ in 0..3 {
                heard.recv().unwrap();
            }
        });
        assert!(naming.busy().is_empty());
    }
}
