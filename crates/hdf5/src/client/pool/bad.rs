//! Objects that crashed or stalled workers, which are not asked about again for a while.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::protocol::{H5Error, Request};

/// Objects of one file that may kill a worker before the whole file is marked bad.
const MAX_BAD: usize = 4;

/// The time for which an object stays marked: what crashed a worker, or stalled it, may have been the machine's want of something.
const MARK_LIFETIME: Duration = Duration::from_secs(600);

/// The objects that are marked bad, and when: by the serial number of their file, which a new version does not share,
/// and their address in it.
#[derive(Default)]
pub(super) struct BadObjects {
    files: HashMap<u64, HashMap<u64, Instant>>,
}

impl BadObjects {
    /// Refuses a request about an object that is marked, or about a file with too many of them.
    pub(super) fn check(&mut self, file: u64, request: &Request) -> Result<(), H5Error> {
        let Some(objects) = self.files.get_mut(&file) else {
            return Ok(());
        };
        objects.retain(|_, marked| marked.elapsed() < MARK_LIFETIME);
        let (what, library) = if objects.len() >= MAX_BAD {
            ("several objects of this file", request.library())
        } else if objects.contains_key(&request.object()) {
            ("this object", request.library())
        } else {
            return Ok(());
        };
        Err(H5Error::Damaged(format!(
            "{what} crashed or stalled {library}: it is not read any more"
        )))
    }

    /// Marks the object that a request is about.
    pub(super) fn mark(&mut self, file: u64, request: &Request) {
        let objects = self.files.entry(file).or_default();
        objects.insert(request.object(), Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_bad_objects_make_a_bad_file() {
        let mut bad = BadObjects::default();
        let map = |dataset| Request::Map {
            dataset,
            whole: false,
        };
        for dataset in 1..=MAX_BAD as u64 {
            assert!(bad.check(7, &map(99)).is_ok());
            assert!(bad.check(7, &map(dataset)).is_ok());
            bad.mark(7, &map(dataset));
            assert!(bad.check(7, &map(dataset)).is_err());
            assert!(bad.check(8, &map(dataset)).is_ok(), "another file");
        }
        assert!(bad.check(7, &map(99)).is_err());
    }
}
