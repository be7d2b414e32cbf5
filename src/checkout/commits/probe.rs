//! The trial of a place before its first commit: it must create an object once, whoever asks.
//!
//! A place that overwrites what it was to create loses one of two commits and tells nobody. Such servers exist, and say that they
//! know conditions.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use super::place::{CommitPlace, Creation};
use super::record::write_id;
use crate::error::{Error, ErrorKind, Result};
use crate::io::pause::Pause;
use crate::io::thread;

/// The time after which a place that gives no clear answers is given up.
const PATIENCE: Duration = Duration::from_secs(20);

/// An error unless the place creates each object once: two writers at the same time, and one after them.
pub(super) fn probe(place: &Arc<dyn CommitPlace>) -> Result<()> {
    let name = format!(".probe-{}", write_id()?);
    let tried = try_with(place, &name);
    // It is no commit: what is left of it, nobody reads.
    let _ = place.remove(&name);
    tried
}

fn try_with(place: &Arc<dyn CommitPlace>, name: &str) -> Result<()> {
    let start = Arc::new(Barrier::new(2));
    let started = ["one", "two"].map(|text| {
        let (place, name, start) = (place.clone(), name.to_owned(), start.clone());
        thread::spawn("probe", move || {
            start.wait();
            created(&*place, &name, text)
        })
    });
    let [one, two] = started;
    // Without the second the first would wait for ever.
    let (one, two) = (one?, two?);
    let mut made = Vec::new();
    for (thread, text) in [(one, "one"), (two, "two")] {
        let done = thread.join().unwrap_or_else(|_| Err(ignores(&**place)))?;
        made.extend(done.then_some(text));
    }
    let third = created(&**place, name, "three")?;
    let there = place.read(name)?;
    match (made.as_slice(), there) {
        ([made], Some(there)) if !third && there == made.as_bytes() => Ok(()),
        _ => Err(ignores(&**place)),
    }
}

/// Returns whether an object was made.
fn created(place: &dyn CommitPlace, name: &str, text: &str) -> Result<bool> {
    let until = Instant::now() + PATIENCE;
    let mut pause = Pause::after_failure();
    loop {
        let error = match place.create(name, text.as_bytes())? {
            Creation::Made => return Ok(true),
            // By a try of its own whose answer was lost, perhaps.
            Creation::Taken => {
                let there = place.read(name)?;
                return Ok(there.is_some_and(|there| there == text.as_bytes()));
            }
            Creation::Unclear(e) => e,
        };
        if Instant::now() >= until {
            return Err(error);
        }
        pause.rest();
    }
}

fn ignores(place: &dyn CommitPlace) -> Error {
    let why = "it does not keep to \"create only what is not there\", so that of two commits at the same time one would be lost: \
               nothing can be committed here";
    Error::new(ErrorKind::Os(libc::EOPNOTSUPP), why).about(place.path(""))
}
