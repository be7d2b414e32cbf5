//! A checkout that a program writes in, without a mount.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use ndarray::{ArrayBase, Data, Dimension};
use parking_lot::Mutex;

use super::Error;
use super::element::WriteElement;
use npyfs_base::npy;
use npyfs_core::checkout::verbs::commit::{CommitOptions, Committed};
use npyfs_core::checkout::verbs::commit::{CommitReport, CommitRequest};
use npyfs_core::store::part::{Part, PartPlace};
use npyfs_core::store::target::{
    AttributeChange, Deletion, Role, StoreOutcome, Target, describe_incomplete,
};
use npyfs_io::content::InMemory;

/// A checkout of a store, opened to write in it, from [`OpenOptions::write`](super::OpenOptions::write).
///
/// The store itself is never changed. What was written is in the checkout, and in every later view of the store once it
/// is committed. No other process can write in the checkout meanwhile. Threads may share it.
///
/// ```standalone_crate
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # npyfs::worker_hook();
/// # let _directory = npyfs_core::formats::demo::enter()?;
/// use ndarray::{Array1, Array2};
///
/// let store = npyfs::Store::open("cells.h5df")?;
/// let scores: Array2<f32> = store.array("cell,gene#score")?.read()?;
/// let checkout = npyfs::Store::options().write("cells.h5df", "work")?;
/// checkout.write("cell#total", &scores.sum_axis(ndarray::Axis(1)))?;
/// checkout.remove("cell#age")?;
/// let commit = checkout.commit("totals")?;
/// assert!(commit.is_some());
/// let totals: Array1<f32> = npyfs::Store::open("cells.h5df")?.array("cell#total")?.read()?;
/// assert_eq!(totals.len(), 1000);
/// # Ok(())
/// # }
/// ```
pub struct Checkout {
    target: Arc<dyn Target>,
    path: PathBuf,
    /// Members of objects that are not complete, by the objects.
    waiting: Mutex<BTreeMap<String, Vec<Part>>>,
}

impl Checkout {
    pub(super) fn new(target: Arc<dyn Target>, path: PathBuf) -> Self {
        Self {
            target,
            path,
            waiting: Mutex::default(),
        }
    }

    /// Writes an array under its name in a mount, with or without `.npy`, in the place of what is there. A member of an
    /// object, such as `data` of a sparse matrix, is stored with the last of them.
    ///
    /// It is durable with the next [`sync`](Self::sync) or [`commit`](Self::commit).
    ///
    /// # Errors
    ///
    /// [`Error::Store`] with the reason for which a mount would refuse it. Members that were written before still wait
    /// for the rest of their object.
    pub fn write<T: WriteElement, S: Data<Elem = T>, D: Dimension>(
        &self,
        path: &str,
        array: &ArrayBase<S, D>,
    ) -> Result<(), Error> {
        let failed = |e| Error::about(path, e);
        let place = self.place(path)?;
        let (dtype, payload) = T::encode(array.iter());
        let shape: Vec<u64> = array.shape().iter().map(|&n| n as u64).collect();
        let bytes = [npy::header(&dtype, &shape), payload].concat();
        let part = Part {
            content: Arc::new(InMemory(bytes)),
            place,
            stored: false,
        };
        let object = part.place.object.clone();
        let mut waiting = self.waiting.lock();
        let mut parts = waiting.get(&object).cloned().unwrap_or_default();
        // The array as a whole, and its members, take the place of each other.
        let is_member = !part.place.member.is_empty();
        parts.retain(|old| is_member && !old.place.member.is_empty() && old.place != part.place);
        parts.push(part);
        match self.target.store(&object, &parts, SystemTime::now()) {
            Ok(StoreOutcome::Stored) => {
                waiting.remove(&object);
                Ok(())
            }
            Ok(StoreOutcome::Incomplete(_)) => {
                waiting.insert(object, parts);
                Ok(())
            }
            Err(e) => Err(failed(e)),
        }
    }

    /// Deletes an array, with all files of its object.
    ///
    /// # Errors
    ///
    /// [`Error::NotFound`], or [`Error::Store`] with the reason for which a mount would refuse it: an axis in use, for
    /// one.
    pub fn remove(&self, path: &str) -> Result<(), Error> {
        let place = self.place(path)?;
        let names = names(&npy_name(path));
        let found =
            npyfs_core::tree::path::find(&self.target.root(), None, &names.join(&b'/'), false);
        if found.is_err() {
            return Err(Error::NotFound {
                path: path.to_owned(),
            });
        }
        let failed = |e| Error::about(path, e);
        match self.target.deletion(&place).map_err(failed)? {
            Deletion::Object => {
                self.target.remove(&place.object).map_err(failed)?;
                self.waiting.lock().remove(&place.object);
                Ok(())
            }
            Deletion::Member(_) => Err(Error::Store {
                message: format!(
                    "{path}: a member of an object, which cannot be deleted alone here"
                ),
                errno: libc::EPERM,
            }),
        }
    }

    /// Sets an attribute of an array, a group, or of `/`, as `npyfs attr set` does: numbers and arrays of them as JSON,
    /// or text. Durable when it returns.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] with the reason for which a mount would refuse it.
    pub fn set_attribute(&self, path: &str, name: &str, value: &str) -> Result<(), Error> {
        let change = || AttributeChange::Set(value.as_bytes());
        let set = |path: &str| (self.target).set_attribute(&names(path), name.as_bytes(), change());
        let failed = |e| Error::about(path, e);
        match set(path) {
            Err(e) if e.errno() == libc::ENOENT => set(&npy_name(path)).map_err(failed),
            done => done.map_err(failed),
        }
    }

    /// Makes everything durable that was written so far.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if that fails; nothing that was durable before is lost.
    pub fn sync(&self) -> Result<(), Error> {
        let shown = self.path.display().to_string();
        self.target.sync().map_err(|e| Error::about(&shown, e))
    }

    /// Commits everything that was written so far, and goes on on top of the commit. Returns its id, or `None` if there
    /// was nothing to commit.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if an object lacks members, if another commit changed the same objects, or if the commit cannot
    /// be written. The checkout stays as it was.
    pub fn commit(&self, message: &str) -> Result<Option<String>, Error> {
        let shown = self.path.display();
        let refused = |why: String, errno| Error::Store {
            message: format!("{shown}: not committed: {why}"),
            errno,
        };
        let mut waiting = self.waiting.lock();
        while let Some(entry) = waiting.first_entry() {
            let (object, parts) = (entry.key(), entry.get());
            match self.target.store(object, parts, SystemTime::now()) {
                Ok(StoreOutcome::Stored) => drop(entry.remove()),
                Ok(StoreOutcome::Incomplete(missing)) => {
                    let why = describe_incomplete(object, &missing, None);
                    return Err(refused(why, libc::EINVAL));
                }
                Err(e) => return Err(refused(format!("{object}: {}", e.message), e.errno())),
            }
        }
        drop(waiting);
        let request = CommitRequest {
            request: String::new(),
            wish: CommitOptions {
                side: None,
                leave_out: false,
                message: message.to_owned(),
            },
        };
        let strange = |e: serde_json::Error| refused(e.to_string(), libc::EIO);
        let request = serde_json::to_value(request).map_err(strange)?;
        let report = self.target.commit(&request);
        let report = report.map_err(|e| refused(e.message.clone(), e.errno()))?;
        let report: CommitReport = serde_json::from_value(report).map_err(strange)?;
        let done: Result<Committed, _> = report.result.into();
        let done = done.map_err(|e| refused(e.to_string(), libc::EBUSY))?;
        Ok(done.number.map(|_| done.id))
    }

    /// Returns the place of an array in its store.
    fn place(&self, path: &str) -> Result<PartPlace, Error> {
        let role = self.target.role(&names(&npy_name(path)));
        match role.map_err(|e| Error::about(path, e))? {
            Role::Stored(place) => Ok(place),
            Role::Scratch => Err(Error::NotAnArray {
                path: path.to_owned(),
            }),
        }
    }
}

impl std::fmt::Debug for Checkout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkout")
            .field("path", &self.path)
            .finish()
    }
}

fn npy_name(path: &str) -> String {
    match path.ends_with(".npy") {
        true => path.to_owned(),
        false => format!("{path}.npy"),
    }
}

fn names(path: &str) -> Vec<Vec<u8>> {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.map(|name| name.as_bytes().to_vec()).collect()
}
