//! Axes that are in use or being removed.
//!
//! A thread that removes an axis waits for threads that store objects along it, and the latter wait for the result.
//! Operations on other axes, or on none, do not wait.

use std::collections::BTreeMap;

use parking_lot::{Condvar, Mutex};

/// All axes in use, by key. Usable from any thread.
#[derive(Default)]
pub(in crate::checkout) struct Axes {
    held: Mutex<BTreeMap<String, AxisHold>>,
    freed: Condvar,
}

/// How an axis is held.
#[derive(Clone, Copy, Debug)]
enum AxisHold {
    Alone,
    Shared(usize),
}

/// A hold on some axes; released on drop.
pub(in crate::checkout) struct Holding<'a> {
    axes: &'a Axes,
    keys: Vec<String>,
}

impl Axes {
    /// Waits until none of these axes is being removed, and prevents their removal.
    pub(in crate::checkout) fn share(&self, mut keys: Vec<String>) -> Holding<'_> {
        keys.sort_unstable();
        keys.dedup();
        if !keys.is_empty() {
            // All at once, so that two threads cannot deadlock over each other's axes.
            let is_leaving = |held: &mut BTreeMap<String, AxisHold>| {
                let mut held = keys.iter().map(|key| held.get(key));
                held.any(|held| matches!(held, Some(AxisHold::Alone)))
            };
            let mut held = self.held.lock();
            self.freed.wait_while(&mut held, is_leaving);
            for key in &keys {
                match held.get_mut(key) {
                    Some(AxisHold::Shared(count)) => *count += 1,
                    _ => drop(held.insert(key.clone(), AxisHold::Shared(1))),
                }
            }
        }
        Holding { axes: self, keys }
    }

    /// Waits until an axis is not in use, and prevents its use.
    pub(in crate::checkout) fn take(&self, key: &str) -> Holding<'_> {
        let is_held = |held: &mut BTreeMap<String, AxisHold>| held.contains_key(key);
        let mut held = self.held.lock();
        self.freed.wait_while(&mut held, is_held);
        held.insert(key.to_owned(), AxisHold::Alone);
        drop(held);
        let keys = vec![key.to_owned()];
        Holding { axes: self, keys }
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        let mut held = self.axes.held.lock();
        for key in &self.keys {
            match held.get_mut(key) {
                Some(AxisHold::Shared(count)) if *count > 1 => *count -= 1,
                _ => drop(held.remove(key)),
            }
        }
        drop(held);
        self.axes.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_who_stores_along_an_axis_waits_for_its_deletion() {
        let axes = Axes::default();
        let leaving = axes.take("d/cell#");
        // These would block forever.
        drop(axes.share(vec!["d/gene#".into(), "e/cell#".into()]));
        drop(axes.take("d/gene#"));
        thread::scope(|scope| {
            let (done, heard) = channel();
            for keys in [["d/cell#", "d/gene#"], ["d/cell#", "d/cell#"]] {
                let (axes, done) = (&axes, done.clone());
                scope.spawn(move || {
                    let _held = axes.share(keys.map(str::to_owned).to_vec());
                    done.send(()).unwrap();
                });
            }
            assert!(heard.recv_timeout(Duration::from_millis(50)).is_err());
            drop(leaving);
            heard.recv().unwrap();
            heard.recv().unwrap();
        });
        assert!(axes.held.lock().is_empty());
        let (one, other) = (axes.share(vec!["a".into()]), axes.share(vec!["a".into()]));
        drop(one);
        assert!(!axes.held.lock().is_empty());
        drop(other);
        assert!(axes.held.lock().is_empty());
    }
}
