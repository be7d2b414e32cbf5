//! The life of one mount in this process: mount, serve, and end by a signal or by an unmount from outside.
//!
//! Assumes a resolved mount point that the caller has checked. The session handles signals from just before it mounts:
//! signals that ask a process to end unmount, and no other catchable signal ends the process. Unless killed, the
//! process never leaves a mount behind that is not served.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use rustix::fs::Dev;
use signal_hook::consts::{
    SIGALRM, SIGHUP, SIGINT, SIGIO, SIGPIPE, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2,
    SIGVTALRM, SIGXCPU, SIGXFSZ,
};
use signal_hook::iterator::Signals;

use crate::mount::fs::Fs;
use crate::mount::fuse::adapter::{Adapter, Link};
use crate::mount::fuse::inherited::Inherited;
use crate::mount::fuse::read_ahead::ReadAhead;
use crate::mount::fuse::scheduling::threads;
use crate::mount::fuse::table::{self, unmount};
use npyfs_base::thread;

/// How long a stopped session waits for users of the mount before it detaches the mount.
const GRACE: Duration = Duration::from_secs(3);

/// The pause between two attempts to unmount a busy mount.
const RETRY: Duration = Duration::from_millis(200);

/// Signals that end the mount.
const ENDING: [i32; 5] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGXCPU];

/// Signals that end a process by default, and are ignored here. A file that would become too large (SIGXFSZ) is an
/// error of that write.
const OTHERS: [i32; 8] = [
    SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGPIPE, SIGXFSZ,
];

/// The options of a mount.
#[derive(Clone, Debug)]
pub struct Appearance {
    /// The source shown in the mount table.
    pub fsname: String,
    /// Whether other users have access, and the kernel checks the permissions of entries.
    pub allow_other: bool,
    /// Whether the kernel checks permissions.
    pub default_permissions: bool,
    /// Whether files may be written.
    pub writable: bool,
}

enum Event {
    Signal,
    Ended(io::Result<()>),
}

/// A mounted view that serves the kernel.
pub struct Session {
    place: Place,
    read_ahead: Result<u64, String>,
    events: Receiver<Event>,
    over: bool,
}

/// The mount that a session serves.
enum Place {
    /// A mount of its own.
    Own { mount_point: PathBuf, device: Dev },
    /// A mount of another program, which remains when the session ends.
    Others(Arc<Fs>),
}

impl Session {
    /// Mounts `fs` and starts serving it.
    pub fn mount(fs: Fs, mount_point: &Path, appearance: &Appearance) -> io::Result<Self> {
        let (sender, events) = channel();
        // Before there is a mount: a signal that arrives in between waits for `run`.
        forward_signals(sender.clone())?;
        let (note, window) = (fs.read_ahead().clone(), fs.window());
        let adapter = Adapter::new(fs);
        let link = adapter.link().clone();
        let serving = fuser::Session::new(adapter, mount_point, &config(appearance))?;
        link.set(&serving)?;
        let mounted = table::at(mount_point)?
            .filter(table::Mounted::is_ours)
            .ok_or_else(|| io::Error::other("the new mount is not in the mount table"))?;
        let read_ahead = raise_read_ahead(&link, mounted.device, window >> 10);
        let _ = note.set(read_ahead.clone());
        let serving = serving.spawn()?;
        let session = Self {
            place: Place::Own {
                mount_point: mount_point.to_owned(),
                device: mounted.device,
            },
            read_ahead,
            events,
            over: false,
        };
        watch(serving, sender)?;
        Ok(session)
    }

    /// Starts serving `fs` on a mount that another program created, with that program's options.
    pub fn serve(fs: Fs, inherited: Inherited) -> io::Result<Self> {
        let (sender, events) = channel();
        forward_signals(sender.clone())?;
        let (note, window) = (fs.read_ahead().clone(), fs.window());
        let adapter = Adapter::new(fs);
        let (link, fs) = (adapter.link().clone(), adapter.fs.clone());
        let mut config = Config::default();
        config.n_threads = Some(threads());
        let Inherited { descriptor, device } = inherited;
        // The mount has decided which users have access: the kernel sends no requests of others.
        let serving = fuser::Session::from_fd(adapter, descriptor, SessionACL::All, config)
            .map_err(|e| match e.kind() {
                io::ErrorKind::PermissionDenied => io::Error::other("nothing is mounted with it"),
                _ => e,
            })?;
        link.set(&serving)?;
        let read_ahead = match device {
            Some(device) => raise_read_ahead(&link, device, window >> 10),
            None => Err("the kernel does not tell which mount it is".to_owned()),
        };
        let _ = note.set(read_ahead.clone());
        let serving = serving.spawn()?;
        let session = Self {
            place: Place::Others(fs),
            read_ahead,
            events,
            over: false,
        };
        watch(serving, sender)?;
        Ok(session)
    }

    /// Returns the device number of the mount, if this session created it.
    pub fn device(&self) -> Option<Dev> {
        match &self.place {
            Place::Own { device, .. } => Some(*device),
            Place::Others(_) => None,
        }
    }

    /// Returns the kernel's read-ahead in KiB, or why it could not be raised.
    pub fn read_ahead(&self) -> Result<u64, &str> {
        self.read_ahead.as_ref().copied().map_err(String::as_str)
    }

    /// Serves until the mount ends: unmounted from outside, or by this session after a signal. `at_end` is called when
    /// the end begins.
    pub fn run(mut self, at_end: impl FnOnce()) -> io::Result<()> {
        let event = self.events.recv();
        at_end();
        match event {
            Ok(Event::Signal) => {
                self.stop();
                Ok(())
            }
            Ok(Event::Ended(Ok(()))) => {
                self.over = true;
                Ok(())
            }
            Ok(Event::Ended(Err(failure))) => Err(failure),
            Err(_) => Err(io::Error::other("nothing serves the mount any more")),
        }
    }

    /// Unmounts. Users of the mount have a moment to finish; a second signal ends the wait. A mount of another program
    /// stays: its pending writes are stored.
    fn stop(&mut self) {
        let mount_point = match &self.place {
            Place::Own { mount_point, .. } => mount_point,
            Place::Others(fs) => {
                // No caller is left to receive an error; the target logs it.
                let _ = fs.close();
                return;
            }
        };
        let deadline = Instant::now() + GRACE;
        let mut unmounted = false;
        loop {
            unmounted = unmounted || (self.on_top() && unmount(mount_point, false).is_ok());
            let left = deadline.saturating_duration_since(Instant::now());
            match self
                .events
                .recv_timeout(if unmounted { left } else { left.min(RETRY) })
            {
                Ok(Event::Ended(_)) => {
                    self.over = true;
                    return;
                }
                Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
                _ => break,
            }
        }
        // A copy of the mount in another namespace may keep the connection to the kernel alive after this mount is
        // gone.
        self.over = unmounted;
    }

    fn on_top(&self) -> bool {
        let Place::Own {
            mount_point,
            device,
        } = &self.place
        else {
            return false;
        };
        table::at(mount_point).is_ok_and(|top| top.is_some_and(|top| top.device == *device))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Place::Own { mount_point, .. } = &self.place
            && !self.over
            && self.on_top()
        {
            // No caller is left to receive an error, and there is nothing stronger to try.
            let _ = unmount(mount_point, true);
        }
    }
}

fn config(appearance: &Appearance) -> Config {
    let mut config = Config::default();
    let fsname = if rustix::process::geteuid().is_root() {
        appearance.fsname.clone()
    } else {
        // The helper receives it in a comma-separated list.
        appearance.fsname.replace('\\', "\\\\").replace(',', "\\,")
    };
    config.mount_options = vec![
        MountOption::FSName(fsname),
        // fuser's own `Subtype` gets lost when root mounts without the helper.
        MountOption::CUSTOM("subtype=npyfs".to_owned()),
        if appearance.writable {
            MountOption::RW
        } else {
            MountOption::RO
        },
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoExec,
        MountOption::NoAtime,
    ];
    if appearance.default_permissions || appearance.allow_other {
        config.mount_options.push(MountOption::DefaultPermissions);
    }
    config.acl = if appearance.allow_other {
        SessionACL::All
    } else {
        SessionACL::Owner
    };
    config.n_threads = Some(threads());
    config
}

fn raise_read_ahead(link: &Link, device: Dev, kib: u64) -> Result<u64, String> {
    link.set_read_ahead(ReadAhead::raise(device, kib)?);
    Ok(kib)
}

fn forward_signals(sender: Sender<Event>) -> io::Result<()> {
    // Caught rather than ignored: child programs would inherit ignored signals.
    let of_power = [libc::SIGPWR, libc::SIGSTKFLT];
    let real_time = libc::SIGRTMIN()..=libc::SIGRTMAX();
    let others = OTHERS.into_iter().chain(of_power).chain(real_time);
    let mut signals = Signals::new(ENDING.into_iter().chain(others))?;
    thread::spawn("signals", move || {
        for signal in signals.forever() {
            if ENDING.contains(&signal) && sender.send(Event::Signal).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

/// Reports the end of serving, and keeps fuser from unmounting: dropping its handle unmounts by path, even if the mount
/// is gone already, and would hit a new mount at the same place.
fn watch(mut serving: BackgroundSession, sender: Sender<Event>) -> io::Result<()> {
    let placeholder = thread::spawn("end", || Ok(()))?;
    let threads = std::mem::replace(&mut serving.guard, placeholder);
    std::mem::forget(serving);
    thread::spawn("end", move || {
        let result = threads
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("serving the mount panicked")));
        let _ = sender.send(Event::Ended(result));
    })?;
    Ok(())
}
