//! Axes that are used or taken away at the moment.
//!
//! Whoever takes one away waits for those who store along it, and they for the answer; nobody waits for anything that is done
//! with another axis, or with none.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard};

/// All of them, by the keys of the axes. Any thread may use it.
#[derive(Default)]
pub(super) struct Axes {
    held: Mutex<BTreeMap<String, AxisHold>>,
    freed: Condvar,
}

/// The way in which an axis is held.
#[derive(Clone, Copy, Debug)]
enum AxisHold {
    Alone,
    Shared(usize),
}

/// Some axes are held as long as it lives.
pub(super) struct Holding<'a> {
    axes: &'a Axes,
    keys: Vec<String>,
}

impl Axes {
    fn held(&self) -> MutexGuard<'_, BTreeMap<String, AxisHold>> {
        self.held.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Waits until nobody takes one of these axes away, and keeps everybody from it.
    pub(super) fn share(&self, mut keys: Vec<String>) -> Holding<'_> {
        keys.sort_unstable();
        keys.dedup();
        if !keys.is_empty() {
            // All at once, so that two who want each other's do not wait for ever.
            let is_leaving = |held: &mut BTreeMap<String, AxisHold>| {
                let mut held = keys.iter().map(|key| held.get(key));
                held.any(|held| matches!(held, Some(AxisHold::Alone)))
            };
            let held = self.freed.wait_while(self.held(), is_leaving);
            let mut held = held.unwrap_or_else(|e| e.into_inner());
            for key in &keys {
                match held.get_mut(key) {
                    Some(AxisHold::Shared(count)) => *count += 1,
                    _ => drop(held.insert(key.clone(), AxisHold::Shared(1))),
                }
            }
        }
        Holding { axes: self, keys }
    }

    /// Waits until nobody uses an axis, and keeps everybody from doing so.
    pub(super) fn take(&self, key: &str) -> Holding<'_> {
        let is_held = |held: &mut BTreeMap<String, AxisHold>| held.contains_key(key);
        let held = self.freed.wait_while(self.held(), is_held);
        let mut held = held.unwrap_or_else(|e| e.into_inner());
        held.insert(key.to_owned(), AxisHold::Alone);
        drop(held);
        let keys = vec![key.to_owned()];
        Holding { axes: self, keys }
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        let mut held = self.axes.held();
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
        // These would hang.
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
        assert!(axes.held().is_empty());
        let (one, other) = (axes.share(vec!["a".into()]), axes.share(vec!["a".into()]));
        drop(one);
        assert!(!axes.held().is_empty());
        drop(other);
        assert!(axes.held().is_empty());
    }
}
