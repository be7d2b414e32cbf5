//! A prefix of a bucket with write access. It holds whole objects, most of which are created once and never changed.
//!
//! Each request is retried until a response comes or its time limit is over. The response to a request that creates an
//! object may be lost; the object's content then tells which process made it.

use std::fs::File;
use std::future::Future;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Error as StoreError, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
};

use super::address::Address;
use super::error::RemoteError;
use super::freshness::PATIENCE;
use super::origin::{in_words, objects_of, reasons};
use super::runtime::wait;
use crate::pause::Pause;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::options::RemoteSettings;

/// Bytes of a file that are sent or fetched in one request.
const PART: u64 = 16 << 20;

/// The most bytes of an object that is read as a whole.
const LONGEST: u64 = 1 << 30;

/// The most objects that are uploaded, or read, at the same time.
const AT_A_TIME: usize = 16;

/// The most bytes of an object that is read together with others.
const SHORT: u64 = 4 << 20;

/// An object as a listing names it.
#[derive(Clone, Debug)]
pub struct ListedObject {
    /// Its name below the prefix.
    pub name: String,
    /// The size in bytes.
    pub size: u64,
    /// The time of its last change, by the bucket's clock.
    pub modified: SystemTime,
}

/// The outcome of an attempt to create an object.
#[derive(Debug)]
pub enum CreationOutcome {
    /// This request created the object.
    Made,
    /// An object of this name exists. If the response to an earlier attempt was lost, that attempt may have created it.
    Taken,
    /// No response tells whether the object was created.
    Unclear(Error),
}

/// A prefix of a bucket. Clones share the connection.
#[derive(Clone)]
pub struct Prefix {
    objects: Arc<dyn ObjectStore>,
    path: Path,
    /// The address, for messages.
    address: String,
    timeout: Duration,
}

/// The outcome of one request.
enum RequestOutcome<T> {
    Answered(T),
    /// There is no such object.
    Missing,
    /// The condition of the request does not hold.
    Taken,
    /// The request is refused, and a retry would be, too.
    Refused(Error),
    /// A retry may succeed. Whether this request took effect is not known.
    Failed(Error),
}

impl std::fmt::Debug for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Prefix").field(&self.address).finish()
    }
}

impl Prefix {
    /// Returns the prefix of this address; sends no request yet.
    ///
    /// # Errors
    ///
    /// The address is not that of a bucket, or there are no credentials for it.
    pub fn open(address: &Address, settings: &RemoteSettings) -> Result<Self> {
        let objects = objects_of(address, settings)?;
        let path = Path::from(address.key().trim_end_matches('/'));
        let shown = address.to_string();
        Ok(Self::new(objects, path, shown, settings.timeout))
    }

    /// Uses the objects of a store below a path.
    pub fn new(
        objects: Arc<dyn ObjectStore>,
        path: Path,
        address: String,
        timeout: Duration,
    ) -> Self {
        let address = address.trim_end_matches('/').to_owned();
        Self {
            objects,
            path,
            address,
            timeout,
        }
    }

    /// Returns the prefix of a name below this one.
    pub fn below(&self, name: &str) -> Self {
        Self {
            path: self.path.clone().join(name),
            address: format!("{}/{name}", self.address),
            ..self.clone()
        }
    }

    /// Returns what an object is called in messages.
    pub fn address(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    fn path(&self, name: &str) -> Path {
        name.split('/')
            .fold(self.path.clone(), |path, part| path.join(part))
    }

    /// Sends one request, and waits no longer than the time limit.
    fn once<T: Send + 'static, F>(&self, name: &str, asked: F) -> Result<RequestOutcome<T>>
    where
        F: Future<Output = std::result::Result<T, StoreError>> + Send + 'static,
    {
        let limit = self.timeout;
        let answer = wait(async move { tokio::time::timeout(limit, asked).await });
        let answer = answer.map_err(|e| Error::from(e).about(self.address(name)))?;
        Ok(match answer {
            Ok(Ok(answer)) => RequestOutcome::Answered(answer),
            Ok(Err(e)) => match e {
                StoreError::NotFound { .. } => RequestOutcome::Missing,
                StoreError::AlreadyExists { .. } | StoreError::Precondition { .. } => {
                    RequestOutcome::Taken
                }
                e => self.failed(&e, name),
            },
            Err(_) => {
                let late = Error::from(RemoteError::late(limit));
                RequestOutcome::Failed(late.about(self.address(name)))
            }
        })
    }

    fn failed<T>(&self, error: &StoreError, name: &str) -> RequestOutcome<T> {
        let about = |kind| Error::new(kind, in_words(error)).about(self.address(name));
        match error {
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
                RequestOutcome::Refused(about(ErrorKind::Denied))
            }
            StoreError::NotSupported { .. } | StoreError::NotImplemented { .. } => {
                RequestOutcome::Refused(about(ErrorKind::Os(libc::EOPNOTSUPP)))
            }
            _ => match status(&reasons(error)) {
                Some(404) => RequestOutcome::Missing,
                Some(code) if (400..500).contains(&code) && !matches!(code, 408 | 429) => {
                    RequestOutcome::Refused(about(ErrorKind::Unreached(libc::EIO)))
                }
                _ => RequestOutcome::Failed(about(ErrorKind::Unreached(libc::EIO))),
            },
        }
    }

    /// Retries until there is a response; `None` if there is no such object.
    fn ask<T: Send + 'static, F>(&self, name: &str, ask: impl Fn() -> F) -> Result<Option<T>>
    where
        F: Future<Output = std::result::Result<T, StoreError>> + Send + 'static,
    {
        let until = Instant::now() + self.timeout;
        let mut pause = Pause::after_failure();
        loop {
            let failure = match self.once(name, ask())? {
                RequestOutcome::Answered(answer) => return Ok(Some(answer)),
                RequestOutcome::Missing => return Ok(None),
                RequestOutcome::Refused(e) => return Err(e),
                RequestOutcome::Failed(e) => e,
                RequestOutcome::Taken => {
                    let why = "the bucket refuses a condition that was not made";
                    return Err(
                        Error::new(ErrorKind::Unreached(libc::EIO), why).about(self.address(name))
                    );
                }
            };
            if Instant::now() >= until {
                return Err(failure);
            }
            pause.rest();
        }
    }

    /// Returns the bytes of an object; `None` if it does not exist.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let bytes = self.ask(name, || {
            let (objects, path) = (self.objects.clone(), self.path(name));
            async move {
                let found = objects.get(&path).await?;
                match found.meta.size <= LONGEST {
                    true => found.bytes().await.map(Some),
                    false => Ok(None),
                }
            }
        })?;
        match bytes {
            None => Ok(None),
            Some(Some(bytes)) => Ok(Some(bytes.into())),
            Some(None) => {
                let why = format!("longer than {LONGEST} bytes");
                Err(Error::new(ErrorKind::TooLarge, why).about(self.address(name)))
            }
        }
    }

    /// Reads several objects concurrently, and calls `got` with each that came within a few seconds. Those that are
    /// long, and those of requests that failed, are left to [`Self::read`].
    pub fn read_short(&self, names: &[String], mut got: impl FnMut(&str, &[u8])) {
        let deadline = tokio::time::Instant::now() + PATIENCE.min(self.timeout);
        for some in names.chunks(AT_A_TIME) {
            let gets = some.iter().map(|name| {
                let (objects, path) = (self.objects.clone(), self.path(name));
                let get = async move {
                    let found = objects.get(&path).await.ok()?;
                    match found.meta.size <= SHORT {
                        true => found.bytes().await.ok(),
                        false => None,
                    }
                };
                async move { tokio::time::timeout_at(deadline, get).await.ok()? }
            });
            let gets = futures_util::future::join_all(gets.collect::<Vec<_>>());
            let answers = wait(gets).unwrap_or_default();
            for (name, bytes) in some.iter().zip(answers) {
                if let Some(bytes) = bytes {
                    got(name, &bytes);
                }
            }
        }
    }

    /// Tries once to create a whole object, unless one of this name exists.
    pub fn create(&self, name: &str, bytes: &[u8]) -> Result<CreationOutcome> {
        let (objects, path) = (self.objects.clone(), self.path(name));
        let payload = bytes.to_vec();
        let put = async move {
            let options = PutOptions::from(PutMode::Create);
            objects.put_opts(&path, payload.into(), options).await
        };
        Ok(match self.once(name, put)? {
            RequestOutcome::Answered(_) => CreationOutcome::Made,
            RequestOutcome::Taken => CreationOutcome::Taken,
            RequestOutcome::Refused(e) => return Err(e),
            RequestOutcome::Failed(e) => CreationOutcome::Unclear(e),
            RequestOutcome::Missing => {
                let why = "the bucket is not there";
                return Err(Error::new(ErrorKind::NotFound, why).about(self.address(name)));
            }
        })
    }

    /// Creates an object with content that no other process writes. Returns false if another object has this name.
    pub fn create_own(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        let until = Instant::now() + self.timeout;
        let mut pause = Pause::after_failure();
        loop {
            let failure = match self.create(name, bytes)? {
                CreationOutcome::Made => return Ok(true),
                CreationOutcome::Taken => {
                    let there = self.read(name)?;
                    return Ok(there.is_some_and(|there| there == bytes));
                }
                CreationOutcome::Unclear(e) => e,
            };
            if Instant::now() >= until {
                return Err(failure);
            }
            pause.rest();
        }
    }

    /// Puts an object, which replaces an existing one.
    pub fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let put = self.ask(name, || {
            let (objects, path) = (self.objects.clone(), self.path(name));
            let payload = bytes.to_vec();
            async move { objects.put(&path, payload.into()).await }
        })?;
        self.there(name, put).map(drop)
    }

    /// Puts several objects concurrently. On failure some of them exist.
    pub fn put_all(&self, objects: &[(String, Vec<u8>)]) -> Result<()> {
        for some in objects.chunks(AT_A_TIME) {
            let puts = some.iter().map(|(name, bytes)| {
                let (objects, path) = (self.objects.clone(), self.path(name));
                let payload = bytes.clone();
                async move { objects.put(&path, payload.into()).await.is_ok() }
            });
            let puts = futures_util::future::join_all(puts.collect::<Vec<_>>());
            let limit = self.timeout;
            let done = wait(async move { tokio::time::timeout(limit, puts).await });
            let done = done.map_err(|e| Error::from(e).about(self.address("")))?;
            let done = done.unwrap_or_default();
            for (at, (name, bytes)) in some.iter().enumerate() {
                if !done.get(at).copied().unwrap_or(false) {
                    self.put(name, bytes)?;
                }
            }
        }
        Ok(())
    }

    fn there<T>(&self, name: &str, answer: Option<T>) -> Result<T> {
        answer.ok_or_else(|| {
            let why = "the bucket is not there";
            Error::new(ErrorKind::NotFound, why).about(self.address(name))
        })
    }

    /// Uploads the first `size` bytes of a file. `seen` is called with all bytes, in order, each once.
    pub fn put_file(
        &self,
        name: &str,
        file: &File,
        size: u64,
        mut seen: impl FnMut(&[u8]),
    ) -> Result<()> {
        let about = |e: std::io::Error| Error::from(e).about(self.address(name));
        let read = |at: u64| {
            let len = usize::try_from(PART.min(size - at)).unwrap_or(0);
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, at).map(|()| bytes)
        };
        if size <= PART {
            let bytes = read(0).map_err(about)?;
            seen(&bytes);
            return self.put(name, &bytes);
        }
        let begun = self.ask(name, || {
            let (objects, path) = (self.objects.clone(), self.path(name));
            async move { objects.put_multipart(&path).await }
        })?;
        let mut upload = self.there(name, begun)?;
        let mut at = 0;
        while at < size {
            let bytes = read(at).map_err(about)?;
            seen(&bytes);
            at += bytes.len() as u64;
            if let Err(e) = self.put_part(name, &mut upload, bytes) {
                let _ = wait(async move { upload.abort().await });
                return Err(e);
            }
        }
        let limit = self.timeout;
        let done = wait(async move { tokio::time::timeout(limit, upload.complete()).await });
        match done.map_err(about)? {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(e)) => match self.failed::<()>(&e, name) {
                RequestOutcome::Failed(e) | RequestOutcome::Refused(e) => Err(e),
                _ => Ok(()),
            },
            Err(_) => {
                let late = Error::from(RemoteError::late(limit));
                Err(late.about(self.address(name)))
            }
        }
    }

    fn put_part(
        &self,
        name: &str,
        upload: &mut Box<dyn MultipartUpload>,
        bytes: Vec<u8>,
    ) -> Result<()> {
        let asked = upload.put_part(bytes.into());
        match self.once(name, asked)? {
            RequestOutcome::Answered(()) => Ok(()),
            RequestOutcome::Failed(e) | RequestOutcome::Refused(e) => Err(e),
            RequestOutcome::Missing | RequestOutcome::Taken => {
                let why = "the bucket has forgotten the upload";
                Err(Error::new(ErrorKind::Unreached(libc::EIO), why).about(self.address(name)))
            }
        }
    }

    /// Copies an object of this size into a file, and calls `seen` with all bytes, in order, each once. False if the
    /// object does not exist.
    pub fn fetch(
        &self,
        name: &str,
        size: u64,
        to: &File,
        mut seen: impl FnMut(&[u8]),
    ) -> Result<bool> {
        let mut at = 0;
        while at < size {
            let range = at..size.min(at + PART);
            let bytes = self.ask(name, || {
                let (objects, path, range) = (self.objects.clone(), self.path(name), range.clone());
                async move { objects.get_range(&path, range).await }
            })?;
            let Some(bytes) = bytes else {
                return Ok(false);
            };
            if bytes.len() as u64 != range.end - range.start {
                let why = "it is shorter than it was";
                return Err(Error::damaged(why).about(self.address(name)));
            }
            let written = to.write_all_at(&bytes, at);
            written.map_err(|e| Error::from(e).about(self.address(name)))?;
            seen(&bytes);
            at = range.end;
        }
        Ok(true)
    }

    /// Removes an object, if it exists.
    pub fn remove(&self, name: &str) -> Result<()> {
        let removed = self.ask(name, || {
            let (objects, path) = (self.objects.clone(), self.path(name));
            async move { objects.delete(&path).await }
        });
        removed.map(drop)
    }

    /// Returns the time of an object's last change, by the bucket's clock; `None` if it does not exist.
    pub fn modified(&self, name: &str) -> Result<Option<SystemTime>> {
        let meta = self.ask(name, || {
            let (objects, path) = (self.objects.clone(), self.path(name));
            async move { objects.head(&path).await }
        })?;
        Ok(meta.map(|meta| meta.last_modified.into()))
    }

    /// Returns the objects and the names of the prefixes directly below the prefix, in order.
    pub fn list(&self) -> Result<(Vec<ListedObject>, Vec<String>)> {
        let listed = self.ask("", || {
            let (objects, path) = (self.objects.clone(), self.path.clone());
            async move { objects.list_with_delimiter(Some(&path)).await }
        })?;
        let Some(listed) = listed else {
            return Ok(Default::default());
        };
        let object = |meta: object_store::ObjectMeta| {
            Some(ListedObject {
                name: meta.location.filename()?.to_owned(),
                size: meta.size,
                modified: meta.last_modified.into(),
            })
        };
        let mut objects: Vec<_> = listed.objects.into_iter().filter_map(object).collect();
        objects.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let prefixes = listed.common_prefixes.iter();
        let mut prefixes: Vec<_> = prefixes
            .filter_map(|path| path.filename().map(str::to_owned))
            .collect();
        prefixes.sort_unstable();
        Ok((objects, prefixes))
    }

    /// Returns the names of the objects directly below the prefix that sort after `name`, in order.
    pub fn names_behind(&self, name: &str) -> Result<Vec<String>> {
        let listed = self.ask(name, || {
            let (objects, path) = (self.objects.clone(), self.path.clone());
            let offset = self.path(name);
            async move {
                let listed = objects.list_with_offset(Some(&path), &offset);
                listed.try_collect::<Vec<_>>().await
            }
        })?;
        let own = |meta: &object_store::ObjectMeta| {
            let mut parts = meta.location.prefix_match(&self.path)?;
            let name = parts.next()?.as_ref().to_owned();
            parts.next().is_none().then_some(name)
        };
        let mut names: Vec<String> = listed.unwrap_or_default().iter().filter_map(own).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Returns whether any object has a name that begins with the prefix.
    pub fn is_used(&self) -> Result<bool> {
        let found = self.ask("", || {
            let (objects, path) = (self.objects.clone(), self.path.clone());
            async move { objects.list(Some(&path)).next().await.transpose() }
        })?;
        Ok(found.flatten().is_some())
    }
}

/// Returns the response status that a failure mentions. Only its text has it.
fn status(reasons: &str) -> Option<u16> {
    let (_, code) = reasons.split_once("status code: ")?;
    code.get(..3)?.parse().ok()
}
