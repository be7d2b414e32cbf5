//! The place of commits: the seam between the history of a store and its storage. It holds small objects that are
//! created once.
//!
//! In a directory, link(2) gives a complete, synced file its name, unless the name exists. No other operation is atomic
//! on every file system that hosts share. The file is first written under a temporary name and then briefly has two
//! names. If the process dies in between, the temporary name stays until it is tidied up. The place in a bucket is
//! `bucket`.
//!
//! A place is probed before its first commit: it must create each object only once. If a place overwrites an existing
//! object, one of two concurrent commits is lost without an error. Such servers exist, and claim to support conditional
//! requests.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use super::record::write_id;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::thread;
use npyfs_io::dir::Dir;
use npyfs_io::pause::Pause;
use npyfs_io::storage::Storage;

/// The outcome of an attempt to create an object.
#[derive(Debug)]
pub(super) enum Creation {
    /// It was created, durably.
    Made,
    /// An object of this name exists. An earlier attempt whose response was lost may have created it.
    Taken,
    /// It is unknown whether it was created, or a later attempt may succeed.
    Unclear(Error),
}

/// A place in which objects are created, each under a new name. Several programs on several hosts use it at the same
/// time, coordinated only by `create`.
pub(super) trait CommitPlace: Send + Sync {
    /// Returns the bytes of an object; `None` if it does not exist.
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>>;

    /// Fetches objects that will be read, many at a time, where a read of each would be a request of its own. What
    /// fails is left to the read.
    fn fetch(&self, _names: &[String]) {}

    /// Creates a complete, durable object, unless the name exists. On failure there is no object with these bytes.
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Creation>;

    /// Writes a derived object, replacing an existing one. It need not be durable.
    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()>;

    /// Removes an object, if it exists.
    fn remove(&self, name: &str) -> Result<()>;

    /// Returns the names of all objects from `name` on, in order.
    fn names_from(&self, name: &str) -> Result<Vec<String>>;

    /// Removes the leftovers of dead programs.
    fn tidy(&self) {}

    /// Waits between two attempts, in the time of the place.
    fn wait(&self, time: Duration) {
        std::thread::sleep(time);
    }

    /// Returns the name of an object in messages.
    fn path(&self, name: &str) -> String;
}

/// The most bytes of an object that are read.
const LONGEST: u64 = 1 << 30;

/// The age in seconds at which a temporary file is taken for that of a dead process.
const ABANDONED: i64 = 24 * 3600;

/// A directory as the place of commits.
pub(super) struct CommitDirectory {
    dir: Dir,
    storage: Arc<dyn Storage>,
}

impl CommitDirectory {
    /// Uses an open directory, which is changed through `storage`.
    pub(super) fn new(dir: Dir, storage: Arc<dyn Storage>) -> Self {
        Self { dir, storage }
    }

    /// Returns whether there is an object of this name, whatever is in it.
    pub(super) fn has(&self, name: &str) -> bool {
        self.dir.metadata_here(name).is_ok()
    }

    fn about(&self, error: io::Error, name: &str) -> Error {
        Error::from(error).about(self.path(name))
    }

    /// Writes a file under a name that no other process uses.
    fn written(&self, new: &str, bytes: &[u8], durable: bool) -> io::Result<File> {
        let file = self.storage.create(&self.dir, new)?;
        self.dir.rights().settle(&file)?;
        self.storage.write_at(&file, bytes, 0)?;
        if durable {
            self.storage.sync(&file)?;
        }
        Ok(file)
    }

    /// Gives a file a name, and returns whether the file now has it.
    fn name(&self, file: &File, new: &str, name: &str) -> io::Result<bool> {
        // On a network file system, a request whose response was lost may be repeated: then link(2) reports that the
        // name exists, although this file has it.
        let is_own = || {
            let has_two = file.metadata().is_ok_and(|meta| meta.nlink() > 1);
            has_two || self.dir.is_named(name, file)
        };
        let Err(e) = self.storage.name_once(&self.dir, new, name) else {
            return Ok(true);
        };
        if is_own() {
            return Ok(true);
        }
        if e.kind() == io::ErrorKind::AlreadyExists {
            return Ok(false);
        }
        // Without the temporary name, a delayed request on the server cannot take effect any more.
        let _ = self.storage.remove(&self.dir, new);
        match self.dir.is_named(name, file) {
            true => Ok(true),
            false => Err(e),
        }
    }
}

/// Returns the prefix of the temporary names for an object's name.
fn before(name: &str) -> String {
    format!(".{name}.")
}

impl CommitPlace for CommitDirectory {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let file = match self.dir.read_linked(name, &before(name)) {
            Err(e) if e.kind == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut bytes = Vec::new();
        let read = file.take(LONGEST + 1).read_to_end(&mut bytes);
        read.map_err(|e| self.about(e, name))?;
        if bytes.len() as u64 > LONGEST {
            let why = format!("longer than {LONGEST} bytes");
            return Err(Error::new(ErrorKind::TooLarge, why).about(self.path(name)));
        }
        Ok(Some(bytes))
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<Creation> {
        let new = format!("{}{}", before(name), write_id()?);
        let named = self
            .written(&new, bytes, true)
            .and_then(|file| self.name(&file, &new, name));
        let _ = self.storage.remove(&self.dir, &new);
        match named {
            Err(e) => Err(self.about(e, name)),
            Ok(false) => Ok(Creation::Taken),
            Ok(true) => {
                // Other processes may already have built on the commit: it stays, and the sync is retried.
                let sync = || self.storage.sync_dir(&self.dir);
                let synced = sync().or_else(|_| sync()).map_err(|e| {
                    let error = Error::from(e);
                    let why = format!("it is there, and it is not known whether it would survive a loss of power: {}", error.message);
                    Error::new(error.kind, why).about(self.path(name))
                });
                synced.map(|()| Creation::Made)
            }
        }
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let new = format!("{}{}", before(name), write_id()?);
        let done = self
            .written(&new, bytes, false)
            .and_then(|_| self.storage.rename(&self.dir, &new, name));
        done.map_err(|e| {
            let _ = self.storage.remove(&self.dir, &new);
            self.about(e, name)
        })
    }

    fn remove(&self, name: &str) -> Result<()> {
        match self.storage.remove(&self.dir, name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|e| self.about(e, name)),
        }
    }

    fn names_from(&self, name: &str) -> Result<Vec<String>> {
        let all = self.dir.names().map_err(|e| self.about(e, ""))?;
        let names = all
            .into_iter()
            .filter_map(|(name, _)| name.into_string().ok());
        let mut names: Vec<String> = names
            .filter(|other| !other.starts_with('.') && other.as_str() >= name)
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    fn tidy(&self) {
        // Both times come from the clock of the file server.
        let (Ok(now), Ok(names)) = (self.dir.own_metadata(), self.dir.names()) else {
            return;
        };
        for (name, _) in names {
            if let Some(name) = name.to_str().filter(|name| name.starts_with('.'))
                && let Ok(modified) = self.dir.modified(name)
                && now.mtime().saturating_sub(modified) > ABANDONED
            {
                let _ = self.storage.remove(&self.dir, name);
            }
        }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }
}

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
