//! Tests a place before its first commit: it must create each object only once.
//!
//! If a place overwrites an existing object, one of two concurrent commits is lost without an error. Such servers
//! exist, and claim to support conditional requests.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use super::commit_place::{CommitPlace, Creation};
use super::record::write_id;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::thread;
use npyfs_io::pause::Pause;

/// The time after which a place without clear responses is given up.
const PATIENCE: Duration = Duration::from_secs(20);

/// Fails unless the place creates each object once: with two concurrent writers, and with a later one.
pub(super) fn probe(place: &Arc<dyn CommitPlace>) -> Result<()> {
    let name = format!(".probe-{}", write_id()?);
    let tried = try_with(place, &name);
    // The object is not a commit: no reader looks at what remains of it.
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
    // Without the second writer the first one would wait forever.
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

/// Returns whether an object was created.
fn created(place: &dyn CommitPlace, name: &str, text: &str) -> Result<bool> {
    let until = Instant::now() + PATIENCE;
    let mut pause = Pause::after_failure();
    loop {
        let error = match place.create(name, text.as_bytes())? {
            Creation::Made => return Ok(true),
            // An earlier attempt of this writer may have created it, and its response was lost.
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
