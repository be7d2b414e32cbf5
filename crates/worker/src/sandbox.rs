//! The sandbox of workers: the rights that a process gives up before it looks at a file.
//!
//! Landlock forbids writing, and reading anything but the store (`admission`); seccomp allows only the system calls
//! that reading needs (`syscalls`). Both hold for the calling thread and all threads that it starts, and cannot be
//! undone. Neither reaches descriptors that are open already: a process closes the inherited ones first. If a kernel
//! lacks one of these, the others still apply; the missing one is reported, never silently skipped.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use rustix::time::{ClockId, clock_gettime};

use super::syscalls::{self, WorkerRole};
use npyfs_hdf5::protocol::Sandbox;

/// The address space of a worker, in bytes.
const ADDRESS_SPACE: u64 = 6 << 30;

/// The number of files that a worker may have open: its store files, and the sources of virtual datasets.
const MAX_DESCRIPTORS: u64 = 4096;

/// Closes every descriptor behind standard error. `exec` closes the daemon's own descriptors, but not those that a
/// shell or a service manager left open. Must be called before the program has opened any.
#[allow(unsafe_code)]
pub(super) fn close_inherited() -> Result<(), String> {
    const FIRST: libc::c_uint = 3;
    const NO_FLAGS: libc::c_uint = 0;
    // SAFETY: the call takes three integers. Nothing in this process owns a descriptor yet.
    let done = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, NO_FLAGS) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().to_string()),
    }
}

/// Enters the sandbox of a reading worker, which can read these files; `None` allows any file.
pub(super) fn enter(files: Option<Vec<OwnedFd>>) -> Sandbox {
    let read = |file| (file, AccessFs::ReadFile.into());
    let rights = files.map(|files| files.into_iter().map(read).collect());
    confine(WorkerRole::Read, Ok(rights))
}

/// Enters the sandbox of a writing worker, which can read and write existing files below `dir` but cannot create,
/// rename or remove any. Landlock alone keeps it from other files.
pub(super) fn enter_to_write(dir: &Path) -> Sandbox {
    confine(WorkerRole::Write, rights(dir, &[]))
}

/// Enters the sandbox of an editing worker: like that of a writing worker, and with read access to the files in
/// `readable`, and to those below the directories there.
pub(super) fn enter_to_edit(dir: &Path, readable: &[PathBuf]) -> Sandbox {
    confine(WorkerRole::Write, rights(dir, readable))
}

/// Enters the sandbox of the worker that writes tables: like that of a writing worker, and with file locks.
pub(super) fn enter_to_write_tables(dir: &Path) -> Sandbox {
    confine(WorkerRole::Tables, rights(dir, &[]))
}

/// Files and directories, with the rights to them and to everything below them.
type AccessRules = Vec<(OwnedFd, BitFlags<AccessFs>)>;

fn rights(dir: &Path, readable: &[PathBuf]) -> Result<Option<AccessRules>, String> {
    let open = |path: &Path| {
        PathFd::new(path)
            .map(|fd| fd.as_fd().try_clone_to_owned())
            .map_err(|e| e.to_string())?
            .map_err(|e| e.to_string())
    };
    let mut rights = vec![(open(dir)?, writing())];
    for path in readable {
        let may = match path.is_dir() {
            true => AccessFs::ReadFile | AccessFs::ReadDir,
            false => AccessFs::ReadFile.into(),
        };
        rights.push((open(path)?, may));
    }
    Ok(Some(rights))
}

fn confine(role: WorkerRole, rights: Result<Option<AccessRules>, String>) -> Sandbox {
    let mut sandbox = Sandbox::default();
    sandbox.note("limits", set_limits(role == WorkerRole::Read));
    sandbox.note("capabilities", drop_capabilities());
    match rights.and_then(restrict_files) {
        Ok(status) => note_files(&mut sandbox, status),
        Err(why) => sandbox.note("landlock", Err(why)),
    }
    sandbox.note("seccomp", syscalls::restrict(role));
    sandbox
}

/// Notes what Landlock enforces. Every version of it restricts which files are opened, and the daemon relies on that:
/// it sends a worker nothing but what the worker may open. What later versions add is missing by itself.
fn note_files(sandbox: &mut Sandbox, status: RulesetStatus) {
    match status {
        RulesetStatus::NotEnforced => {
            sandbox.note("landlock", Err("not in this kernel".into()));
        }
        RulesetStatus::PartiallyEnforced => {
            sandbox.note("landlock", Ok(()));
            sandbox.note("all of landlock", Err("the kernel is older".into()));
        }
        RulesetStatus::FullyEnforced => sandbox.note("landlock", Ok(())),
    }
}

fn writing() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate
}

fn limit(n: u64) -> Rlimit {
    Rlimit {
        current: Some(n),
        maximum: Some(n),
    }
}

/// Raises the limit of open files to the largest value that the process may set.
pub(super) fn raise_descriptors() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = Some(maximum.map_or(MAX_DESCRIPTORS, |most| most.min(MAX_DESCRIPTORS)));
    // This cannot fail: the soft limit is within the hard one.
    let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
}

fn set_limits(read_only: bool) -> Result<(), String> {
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    if read_only {
        setrlimit(Resource::Fsize, limit(0)).map_err(|e| format!("Fsize: {e}"))?;
    }
    for (resource, n) in [
        (Resource::As, ADDRESS_SPACE),
        (Resource::Core, 0),
        (Resource::Nofile, MAX_DESCRIPTORS.min(most)),
    ] {
        setrlimit(resource, limit(n)).map_err(|e| format!("{resource:?}: {e}"))?;
    }
    Ok(())
}

/// Allows the process this much more CPU time, in whole seconds; beyond it the kernel kills the process (SIGXCPU).
///
/// Called for each request: the limit applies to the whole life of a process, and a worker may live for months.
pub(super) fn limit_cpu(more: Duration) {
    let used = clock_gettime(ClockId::ProcessCPUTime).tv_sec;
    let until = u64::try_from(used).unwrap_or(0) + more.as_secs() + 1;
    let maximum = getrlimit(Resource::Cpu).maximum;
    let limit = Rlimit {
        current: Some(maximum.map_or(until, |most| until.min(most))),
        maximum,
    };
    // This cannot fail: the soft limit is within the hard one. The deadline stands in any case.
    let _ = setrlimit(Resource::Cpu, limit);
}

/// Drops all capabilities except the one to read any file, which root has in the daemon as well.
fn drop_capabilities() -> Result<(), String> {
    let said = |e: rustix::io::Errno| e.to_string();
    let kept = capabilities(None).map_err(said)?.permitted & CapabilitySet::DAC_READ_SEARCH;
    let sets = CapabilitySets {
        effective: kept,
        permitted: kept,
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, sets).map_err(said)
}

/// Forbids writing and TCP, and (unless `rights` is `None`) reading, with the exceptions listed in `rights`.
fn restrict_files(rights: Option<AccessRules>) -> Result<RulesetStatus, String> {
    let abi = ABI::V6;
    let said = |e: landlock::RulesetError| e.to_string();
    let access = match rights {
        Some(_) => AccessFs::from_all(abi),
        None => AccessFs::from_write(abi),
    };
    let mut rules = Ruleset::default()
        .handle_access(access)
        .and_then(|rules| rules.handle_access(AccessNet::from_all(abi)))
        .and_then(|rules| rules.scope(Scope::from_all(abi)))
        .and_then(|rules| rules.create())
        .map_err(said)?;
    for (below, rights) in rights.into_iter().flatten() {
        rules = rules
            .add_rule(PathBeneath::new(below, rights))
            .map_err(said)?;
    }
    Ok(rules.restrict_self().map_err(said)?.ruleset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, Permissions};
    use std::io::ErrorKind::PermissionDenied;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    #[test]
    fn an_older_landlock_restricts_files_too() {
        let noted = |status| {
            let mut sandbox = Sandbox::default();
            note_files(&mut sandbox, status);
            (sandbox.has("landlock"), sandbox.missing.len())
        };
        assert_eq!(noted(RulesetStatus::FullyEnforced), (true, 0));
        assert_eq!(noted(RulesetStatus::PartiallyEnforced), (true, 1));
        assert_eq!(noted(RulesetStatus::NotEnforced), (false, 1));
    }

    /// The variable that names a directory to the tests that run in their own process.
    const DIRECTORY: &str = "NPYFS_TEST_DIRECTORY";

    /// Runs one of the ignored tests below in its own process, as its effects cannot be undone.
    fn alone(test: &str) -> std::process::Output {
        let dir = tempfile::tempdir().unwrap();
        let (_, here) = module_path!().split_once("::").unwrap();
        let done = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--test-threads=1", "--nocapture"])
            .arg(format!("{here}::{test}"))
            .env(DIRECTORY, dir.path())
            .output()
            .unwrap();
        // The harness does not fail for a name that no test has.
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(said.contains("running 1 test"), "{said}");
        done
    }

    #[test]
    fn a_worker_can_do_nothing_but_read_the_store() {
        let done = alone("confined");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{}: {said}", done.status);
        eprint!("{said}");
    }

    #[test]
    #[ignore = "gives up the rights of its process: run by another test"]
    fn confined() {
        let Some(dir) = std::env::var_os(DIRECTORY).map(PathBuf::from) else {
            return;
        };
        let store = dir.join("store");
        let (path, elsewhere) = (store.join("file"), dir.join("elsewhere"));
        std::fs::create_dir(&store).unwrap();
        for path in [&path, &elsewhere] {
            std::fs::write(path, b"data").unwrap();
        }
        let sandbox = enter(Some(vec![File::open(&path).unwrap().into()]));
        for missing in &sandbox.missing {
            eprintln!("NOT TESTED: this kernel: {missing}");
        }
        let has = |what: &str| sandbox.has(what);
        assert!(has("limits") && has("capabilities"), "{sandbox:?}");
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
        let denied = |result: std::io::Result<()>| {
            assert_eq!(result.unwrap_err().kind(), PermissionDenied);
        };
        if has("landlock") {
            denied(File::open(&elsewhere).map(drop));
            denied(std::fs::read_dir("/").map(drop));
        }
        if has("landlock") || has("seccomp") {
            denied(File::create(store.join("new")).map(drop));
            denied(File::options().write(true).open(&path).map(drop));
            denied(
                File::options()
                    .read(true)
                    .append(true)
                    .open(&path)
                    .map(drop),
            );
            denied(std::fs::remove_file(&path));
            denied(std::fs::rename(&path, store.join("other")));
            denied(std::fs::create_dir(store.join("folder")));
            denied(std::net::TcpStream::connect("127.0.0.1:9").map(drop));
        }
        if has("seccomp") {
            denied(std::net::UdpSocket::bind("127.0.0.1:0").map(drop));
            denied(std::os::unix::net::UnixDatagram::unbound().map(drop));
            denied(std::os::unix::net::UnixStream::connect("/run/x").map(drop));
            denied(std::fs::set_permissions(
                &path,
                Permissions::from_mode(0o777),
            ));
            denied(Command::new("/bin/true").status().map(drop));
            let init = rustix::process::Pid::INIT;
            denied(rustix::process::test_kill_process(init).map_err(Into::into));
            let limit = getrlimit(Resource::Core);
            denied(
                rustix::process::prlimit(Some(init), Resource::Core, limit)
                    .map(drop)
                    .map_err(Into::into),
            );
        }
        // Capabilities can no longer be queried here: tests/test_workers.py looks at them from outside.
        assert_eq!(getrlimit(Resource::Fsize).current, Some(0));
        assert!(setrlimit(Resource::Fsize, limit(1)).is_err());
    }

    #[test]
    fn a_writing_worker_can_only_fill_files_of_its_checkout() {
        let done = alone("confined_to_write");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{}: {said}", done.status);
        eprint!("{said}");
    }

    #[test]
    #[ignore = "gives up the rights of its process: run by another test"]
    fn confined_to_write() {
        let Some(dir) = std::env::var_os(DIRECTORY).map(PathBuf::from) else {
            return;
        };
        let layer = dir.join("layer");
        let (path, elsewhere) = (layer.join("file"), dir.join("base"));
        std::fs::create_dir(&layer).unwrap();
        for path in [&path, &elsewhere] {
            std::fs::write(path, b"data").unwrap();
        }
        let sandbox = enter_to_write(&layer);
        for missing in &sandbox.missing {
            eprintln!("NOT TESTED: this kernel: {missing}");
        }
        let has = |what: &str| sandbox.has(what);
        assert!(has("limits") && has("capabilities"), "{sandbox:?}");
        let denied = |result: std::io::Result<()>| {
            assert_eq!(result.unwrap_err().kind(), PermissionDenied);
        };
        std::fs::write(&path, b"other").unwrap();
        if has("landlock") {
            denied(File::open(&elsewhere).map(drop));
            denied(File::options().write(true).open(&elsewhere).map(drop));
            denied(File::create(layer.join("new")).map(drop));
        }
        if has("landlock") || has("seccomp") {
            denied(std::fs::remove_file(&path));
            denied(std::fs::rename(&path, layer.join("other")));
            denied(std::net::TcpStream::connect("127.0.0.1:9").map(drop));
        }
        if has("seccomp") {
            denied(std::fs::set_permissions(
                &path,
                Permissions::from_mode(0o777),
            ));
            denied(Command::new("/bin/true").status().map(drop));
        }
    }

    #[test]
    fn time_on_the_cpu_ends_with_a_signal() {
        let done = alone("spins");
        assert_eq!(done.status.signal(), Some(libc::SIGXCPU));
    }

    #[test]
    #[ignore = "is killed by the kernel: run by another test"]
    fn spins() {
        if std::env::var_os(DIRECTORY).is_none() {
            return;
        }
        limit_cpu(Duration::ZERO);
        limit_cpu(Duration::ZERO); // renewed, not added up
        loop {
            std::hint::spin_loop();
        }
    }
}
