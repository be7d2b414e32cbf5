//! The daemon's end of a worker process: its start, the connection, one question at a time, its end.
//!
//! Nothing here decides which worker answers, or whether a request is tried again: see `pool`. A worker that failed
//! once is of no more use.

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::access::Access;
use crate::protocol::{
    Answer, Budget, Envelope, H5Error, MAX_BLOCK, Permit, Reply, Request, Sandbox, Sink, Wire,
};
use npyfs_base::error::Error;
use npyfs_base::thread;
use npyfs_io::file::StoreFile;

/// The time that a new worker may take to receive what it may open.
const GREETING_LIMIT: Duration = Duration::from_secs(10);

/// A worker process and the connection to it; dropping it kills the process.
pub(super) struct WorkerProcess {
    child: Child,
    wire: Wire,
    /// The sandbox as the worker reported it at its start; `None` until that message was received.
    sandbox: Option<Sandbox>,
    pub(super) access: Access,
}

/// The keeper of the count of workers, which is told when a worker waits for the network.
pub(super) trait Counter {
    /// A worker waits for the network from now on, and does not count.
    fn leave(&self) {}

    /// The worker counts again.
    fn come_back(&self) {}
}

impl Counter for () {}

/// A worker that waits for the network, until this is dropped.
struct AwayGuard<'a>(&'a dyn Counter);

impl<'a> AwayGuard<'a> {
    fn begin(counter: &'a dyn Counter) -> Self {
        counter.leave();
        Self(counter)
    }
}

impl Drop for AwayGuard<'_> {
    fn drop(&mut self) {
        self.0.come_back();
    }
}

/// The end of a worker that did not answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkerExit {
    /// The worker outlasted the deadline, or its limit of CPU time.
    Slow,
    /// An exit without being asked, or a signal such as SIGSEGV.
    Crashed,
    /// SIGKILL: the kernel for want of memory, or an administrator.
    Killed,
}

impl WorkerProcess {
    /// Starts `program` with an argument that makes it a worker and the directories it may use.
    pub(super) fn start<'a>(
        program: &Path,
        (argument, dirs): (&str, impl IntoIterator<Item = &'a Path>),
    ) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(program);
        command
            .arg(argument)
            .args(dirs)
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = thread::start(&mut command)?;
        Ok(Self {
            child,
            wire: Wire::new(ours),
            sandbox: None,
            access: Access::default(),
        })
    }

    /// Counts the chunk tables of its answers against this budget.
    pub(super) fn share_budget(&mut self, tables: &Arc<Budget>) {
        self.wire.tables = tables.clone();
    }

    /// Tells a new reading worker what it may open, and hands it the first file, if there is one. A failure shows in
    /// the first answer.
    pub(super) fn permit(&mut self, permit: &Permit, first: Option<&StoreFile>) -> io::Result<()> {
        self.access.everything = permit.anywhere;
        self.wire.deadline = Some(Instant::now() + GREETING_LIMIT);
        let first = first.filter(|first| first.far().is_none());
        let first = first.map(StoreFile::file).transpose()?;
        let _ = self
            .wire
            .send_permit(permit, first.as_ref().map(|held| &***held));
        Ok(())
    }

    /// Receives the worker's first message, once: its sandbox, and the files it may open.
    pub(super) fn greet(&mut self) -> io::Result<()> {
        if self.sandbox.is_some() {
            return Ok(());
        }
        let Reply::Hello(sandbox, inodes) = self.wire.receive_reply(&mut None)? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        // As root without capabilities the worker could not open files of the user.
        if let Some(why) = sandbox.is_not_owner() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        self.access.everything |= !sandbox.has("landlock");
        self.access.inodes.extend(inodes);
        self.sandbox = Some(sandbox);
        Ok(())
    }

    /// Returns the sandbox as the worker reported it; `None` before it was greeted.
    pub(super) fn sandbox(&self) -> Option<&Sandbox> {
        self.sandbox.as_ref()
    }

    /// Asks once. The outer error is one of the worker, which is of no more use then.
    pub(super) fn ask(
        &mut self,
        file: &StoreFile,
        request: &Request,
        sink: &mut Option<&mut Sink<'_>>,
        counter: &dyn Counter,
    ) -> io::Result<Result<Answer, H5Error>> {
        let limit = time_limit(request, file.identity.size);
        self.wire.deadline = Some(Instant::now() + limit);
        let mut envelope = Envelope {
            serial: file.serial,
            path: file.path.as_os_str().as_bytes().to_vec(),
            members: None,
            far: file.far().map(|_| file.identity),
            seconds: limit.as_secs(),
            request: Cow::Borrowed(request),
        };
        let at_once = match request {
            // A new file, which no worker knows.
            Request::Create(_) | Request::WriteChunks(_) | Request::Publish(_) => file.file().ok(),
            _ => None,
        };
        self.wire
            .send_request(&envelope, at_once.as_ref().map(|held| &***held))?;
        self.greet()?;
        let reply = match self.reply(file, sink, counter)? {
            Reply::NeedFile => {
                // The worker waits for a request, this one or another.
                let held = match file.file() {
                    Ok(held) => held,
                    Err(e) => return Ok(Err(H5Error::of_system("cannot open the file again", &e))),
                };
                envelope.members = file.layout().map(|layout| (**layout).clone());
                self.wire.send_request(&envelope, Some(&held))?;
                self.reply(file, sink, counter)?
            }
            reply => reply,
        };
        match reply {
            Reply::Done(answer) => Ok(answer),
            // The descriptor did not get there: the worker has none left.
            Reply::NeedFile => Ok(Err(H5Error::Machine(
                libc::EMFILE,
                "a worker has no descriptor left".into(),
            ))),
            Reply::Hello(..) | Reply::Bytes(_) | Reply::Map(..) | Reply::Fetch(..) => {
                Err(io::ErrorKind::InvalidData.into())
            }
        }
    }

    /// Receives the reply to a request, and gives the worker what it asks for of a file that lies elsewhere. While it
    /// waits for that, its deadline stands still.
    fn reply(
        &mut self,
        file: &StoreFile,
        sink: &mut Option<&mut Sink<'_>>,
        counter: &dyn Counter,
    ) -> io::Result<Reply> {
        loop {
            let ranges = match self.wire.receive_reply(sink)? {
                Reply::Fetch(ranges) => ranges,
                reply => return Ok(reply),
            };
            let begun = Instant::now();
            let away = AwayGuard::begin(counter);
            let fetched = fetched(file, &ranges)?;
            drop(away);
            self.wire.deadline = self.wire.deadline.map(|at| at + begun.elapsed());
            self.wire.send_fetched(fetched)?;
        }
    }

    /// Returns whether the process still runs.
    pub(super) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Returns the memory that the process occupies, in bytes; 0 where the system does not say.
    pub(super) fn resident(&self) -> u64 {
        let path = format!("/proc/{}/statm", self.child.id());
        let statm = std::fs::read_to_string(path).unwrap_or_default();
        let pages = statm.split(' ').nth(1).and_then(|n| n.parse().ok());
        pages.map_or(0, |pages: u64| {
            pages.saturating_mul(rustix::param::page_size() as u64)
        })
    }

    /// Ends a worker that failed with `error`, and returns what was wrong with it.
    pub(super) fn end(mut self, error: &io::Error) -> WorkerExit {
        if error.kind() == io::ErrorKind::TimedOut {
            return WorkerExit::Slow;
        }
        // The worker's end of the connection closes a moment before the process can be waited for.
        for _ in 0..20 {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    return match status.signal() {
                        Some(libc::SIGXCPU) => WorkerExit::Slow,
                        Some(libc::SIGKILL) => WorkerExit::Killed,
                        _ => WorkerExit::Crashed,
                    };
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Err(_) => break,
            }
        }
        WorkerExit::Crashed
    }
}

/// Returns the bytes of ranges of a file that lies elsewhere, one behind the other. The outer error is one of the
/// worker: it asks for ranges that it may not ask for.
fn fetched(file: &StoreFile, ranges: &[Range<u64>]) -> io::Result<Result<Vec<u8>, Error>> {
    let wrong = || io::Error::from(io::ErrorKind::InvalidData);
    let far = file.far().ok_or_else(wrong)?;
    let len = ranges.iter().try_fold(0_u64, |all, range| {
        let len = range.end.checked_sub(range.start)?;
        all.checked_add(len).filter(|&all| all <= MAX_BLOCK)
    });
    let len = usize::try_from(len.ok_or_else(wrong)?).map_err(|_| wrong())?;
    let mut bytes = vec![0; len];
    let mut rest = &mut bytes[..];
    let mut read = far.fetch(ranges);
    for range in ranges {
        // The sum of the lengths was checked above.
        let len = usize::try_from(range.end - range.start).map_err(|_| wrong())?;
        let (now, behind) = rest.split_at_mut(len);
        read = read.and_then(|()| Ok(file.read_exact_at(now, range.start)?));
        rest = behind;
    }
    Ok(read.map(|()| bytes))
}

/// Asks a worker that was kept or, if there is none or it has died since, a new one; returns it with the answer.
pub(super) fn ask_kept(
    kept: Option<WorkerProcess>,
    start: impl FnOnce() -> io::Result<WorkerProcess>,
    file: &StoreFile,
    request: &Request,
) -> io::Result<(WorkerProcess, Result<Answer, H5Error>)> {
    if let Some(mut worker) = kept
        && let Ok(answer) = worker.ask(file, request, &mut None, &())
    {
        return Ok((worker, answer));
    }
    let mut worker = start()?;
    let answer = worker.ask(file, request, &mut None, &())?;
    Ok((worker, answer))
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // The worker is idle, hanging or dead: no work is lost.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns how long a request may take: more for a large file, and for a pass over all of it.
fn time_limit(request: &Request, file_size: u64) -> Duration {
    const MIB: u64 = 1 << 20;
    const DAY: Duration = Duration::from_secs(86_400);
    if let Request::Collection(_) | Request::Tables(_) = request {
        // The bytes that workers write are not in the file yet.
        return Duration::from_secs(300);
    }
    let (rate, most) = match request {
        // Objects of any size are copied, and any number of links is made.
        Request::Edit { .. } | Request::Publish(_) => return DAY,
        Request::MeasureText { .. }
        | Request::Groups
        | Request::References
        | Request::Times
        | Request::List { .. }
        | Request::Scan { .. } => (2 * MIB, 600),
        _ => (8 * MIB, 120),
    };
    Duration::from_secs((10 + file_size / rate).min(most))
}
