//! What a worker gives up before it looks at a file: all that reading does not need.
//!
//! Landlock forbids writing, and reading outside the store; seccomp forbids writing as well, every kind of
//! socket, other programs and processes, and the corners of the kernel that few programs use. Both hold for
//! the calling thread and all it starts, and cannot be undone. A kernel that lacks one of them leaves the
//! others; what is missing is reported, never silently skipped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use rustix::time::{ClockId, clock_gettime};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use serde::{Deserialize, Serialize};

use crate::options::External;

/// Address space of a worker, in bytes.
const ADDRESS_SPACE: u64 = 6 << 30;

/// Files a worker may have open: its store files, and the sources of virtual datasets.
const DESCRIPTORS: u64 = 4096;

/// What holds a worker back, in words for `status.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// What is in force.
    pub enforced: Vec<String>,
    /// What this kernel does not have, or refused.
    pub missing: Vec<String>,
}

impl Sandbox {
    fn note(&mut self, what: &str, done: Result<(), String>) {
        match done {
            Ok(()) => self.enforced.push(what.into()),
            Err(why) => self.missing.push(format!("{what}: {why}")),
        }
    }
}

/// The directory below which workers may read; `None` if files anywhere may have to be read.
///
/// For a store that is one file this is the directory it is in: the file may be replaced.
pub fn readable(store: &Path, external: External) -> Option<PathBuf> {
    match external {
        External::Allow => None,
        _ if store.is_dir() => Some(store.to_owned()),
        _ => store.parent().map(Path::to_owned),
    }
}

/// Gives everything up; files are read below `readable` only, unless it is empty.
pub fn enter(readable: &[PathBuf]) -> Sandbox {
    let mut sandbox = Sandbox::default();
    sandbox.note("limits", set_limits(true));
    sandbox.note("capabilities", drop_capabilities());
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    sandbox.note("landlock", restrict_files(&allow(readable, read)));
    sandbox.note("seccomp", restrict_calls(true));
    sandbox
}

/// Gives everything up but reading and writing files that exist below `dir`; none can be made, renamed or
/// removed. Landlock alone keeps it from other files.
pub fn enter_to_write(dir: &Path) -> Sandbox {
    let mut sandbox = Sandbox::default();
    sandbox.note("limits", set_limits(false));
    sandbox.note("capabilities", drop_capabilities());
    sandbox.note("landlock", restrict_files(&[(dir.to_owned(), writing())]));
    sandbox.note("seccomp", restrict_calls(false));
    sandbox
}

/// The same; and files below `readable` can be read.
pub fn enter_to_edit(dir: &Path, readable: &[PathBuf]) -> Sandbox {
    let mut sandbox = Sandbox::default();
    sandbox.note("limits", set_limits(false));
    sandbox.note("capabilities", drop_capabilities());
    let mut rights = allow(readable, AccessFs::ReadFile | AccessFs::ReadDir);
    rights.push((dir.to_owned(), writing()));
    sandbox.note("landlock", restrict_files(&rights));
    sandbox.note("seccomp", restrict_calls(false));
    sandbox
}

fn writing() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate
}

fn allow(dirs: &[PathBuf], rights: BitFlags<AccessFs>) -> Vec<(PathBuf, BitFlags<AccessFs>)> {
    dirs.iter().map(|dir| (dir.clone(), rights)).collect()
}

fn limit(n: u64) -> Rlimit {
    Rlimit {
        current: Some(n),
        maximum: Some(n),
    }
}

fn set_limits(read_only: bool) -> Result<(), String> {
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    if read_only {
        setrlimit(Resource::Fsize, limit(0)).map_err(|e| format!("Fsize: {e}"))?;
    }
    for (resource, n) in [
        (Resource::As, ADDRESS_SPACE),
        (Resource::Core, 0),
        (Resource::Nofile, DESCRIPTORS.min(most)),
    ] {
        setrlimit(resource, limit(n)).map_err(|e| format!("{resource:?}: {e}"))?;
    }
    Ok(())
}

/// Lets the process use this much more CPU time, to whole seconds; past it the kernel kills it (SIGXCPU).
///
/// Called for each request: the limit is on the life of a process, and a worker may live for months.
pub fn limit_cpu(more: Duration) {
    let used = clock_gettime(ClockId::ProcessCPUTime).tv_sec;
    let until = u64::try_from(used).unwrap_or(0) + more.as_secs() + 1;
    let maximum = getrlimit(Resource::Cpu).maximum;
    let limit = Rlimit {
        current: Some(maximum.map_or(until, |most| until.min(most))),
        maximum,
    };
    // It cannot fail: the soft limit is within the hard one. The deadline stands in any case.
    let _ = setrlimit(Resource::Cpu, limit);
}

/// Root keeps the right to read any file, which it has as the daemon; an ordinary user has none to lose.
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

/// Writing, TCP, and (unless `below` is empty) reading; below those paths there are these rights.
fn restrict_files(below: &[(PathBuf, BitFlags<AccessFs>)]) -> Result<(), String> {
    let abi = ABI::V6;
    let said = |e: landlock::RulesetError| e.to_string();
    let access = match below {
        [_, ..] => AccessFs::from_all(abi),
        [] => AccessFs::from_write(abi),
    };
    let mut rules = Ruleset::default()
        .handle_access(access)
        .and_then(|rules| rules.handle_access(AccessNet::from_all(abi)))
        .and_then(|rules| rules.scope(Scope::from_all(abi)))
        .and_then(|rules| rules.create())
        .map_err(said)?;
    for (path, rights) in below {
        let below = PathFd::new(path).map_err(|e| e.to_string())?;
        rules = rules
            .add_rule(PathBeneath::new(below, *rights))
            .map_err(said)?;
    }
    match rules.restrict_self().map_err(said)?.ruleset {
        RulesetStatus::FullyEnforced => Ok(()),
        RulesetStatus::PartiallyEnforced => Err("only in part: the kernel is older".into()),
        RulesetStatus::NotEnforced => Err("not in this kernel".into()),
    }
}

/// System calls that are refused with EPERM whatever their arguments.
const REFUSED: &[i64] = &[
    // Network and sockets of every family; the one on standard input is there already.
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    // Other programs and processes.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    // Changing files: Landlock forbids most of it, but not modes, owners, attributes and times.
    libc::SYS_openat2,
    libc::SYS_open_by_handle_at,
    libc::SYS_truncate,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    // The system as a whole, and doors that few programs use and many exploits do.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
];

/// Older spellings that only this architecture has.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: &[i64] = &[
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_creat,
    libc::SYS_unlink,
    libc::SYS_rmdir,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_link,
    libc::SYS_symlink,
    libc::SYS_mkdir,
    libc::SYS_mknod,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
];
/// `renameat`, which the `libc` crate does not list for this architecture (asm-generic/unistd.h).
#[cfg(target_arch = "aarch64")]
const REFUSED_HERE: &[i64] = &[38];

/// `open` with its place in the arguments of the flags.
#[cfg(target_arch = "x86_64")]
const OPENS: &[(i64, u8)] = &[(libc::SYS_openat, 2), (libc::SYS_open, 1)];
#[cfg(target_arch = "aarch64")]
const OPENS: &[(i64, u8)] = &[(libc::SYS_openat, 2)];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn rules(read_only: bool) -> Result<Rules, seccompiler::BackendError> {
    let mut rules: Rules = REFUSED
        .iter()
        .chain(REFUSED_HERE)
        .map(|&call| (call, Vec::new()))
        .collect();
    // The same calls under the numbers of the x32 interface, should the kernel have it.
    if cfg!(target_arch = "x86_64") {
        const X32: i64 = 0x4000_0000;
        let plain: Vec<i64> = rules.keys().copied().chain([libc::SYS_openat, 2]).collect();
        let own = 512..=547;
        rules.extend(plain.into_iter().chain(own).map(|n| (n | X32, Vec::new())));
    }
    let argument = |index, operator, value| {
        let condition = SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value)?;
        SeccompRule::new(vec![condition])
    };
    let bits = |n: i32| n.unsigned_abs().into();
    for &(open, flags) in OPENS.iter().filter(|_| read_only) {
        let set = |n| argument(flags, SeccompCmpOp::MaskedEq(bits(n)), bits(n));
        let all = [libc::O_WRONLY, libc::O_RDWR, libc::O_CREAT, libc::O_TRUNC];
        let any: Result<_, _> = all.into_iter().map(set).collect();
        rules.insert(open, any?);
    }
    // A process that aborts signals itself, and one that limits itself names itself as 0.
    let me = std::process::id().into();
    rules.insert(libc::SYS_tgkill, vec![argument(0, SeccompCmpOp::Ne, me)?]);
    rules.insert(libc::SYS_prlimit64, vec![argument(0, SeccompCmpOp::Ne, 0)?]);
    Ok(rules)
}

fn restrict_calls(read_only: bool) -> Result<(), String> {
    let arch = std::env::consts::ARCH
        .try_into()
        .map_err(|_| "not on this architecture".to_owned())?;
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let program: seccompiler::BpfProgram = rules(read_only)
        .and_then(|rules| SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch))
        .and_then(TryInto::try_into)
        .map_err(|e| e.to_string())?;
    seccompiler::apply_filter(&program).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, Permissions};
    use std::io::ErrorKind::PermissionDenied;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// Names a directory to the tests that run in a process of their own.
    const DIRECTORY: &str = "NPYFS_TEST_DIRECTORY";

    /// Runs one of the ignored tests below in a process of its own, as what it does cannot be undone.
    fn alone(test: &str) -> std::process::Output {
        let dir = tempfile::tempdir().unwrap();
        Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "--test-threads=1", "--nocapture"])
            .arg(format!("h5::sandbox::tests::{test}"))
            .env(DIRECTORY, dir.path())
            .output()
            .unwrap()
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
        let sandbox = enter(std::slice::from_ref(&store));
        for missing in &sandbox.missing {
            eprintln!("NOT TESTED on this kernel: {missing}");
        }
        let has = |what: &str| sandbox.enforced.iter().any(|held| held == what);
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
        let kept = capabilities(None).unwrap().effective;
        assert!((kept - CapabilitySet::DAC_READ_SEARCH).is_empty());
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
            eprintln!("NOT TESTED on this kernel: {missing}");
        }
        let has = |what: &str| sandbox.enforced.iter().any(|held| held == what);
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

    #[test]
    fn what_workers_may_read_is_the_store_and_what_replaces_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.h5");
        let below = Some(dir.path().to_owned());
        assert_eq!(readable(dir.path(), External::Deny), below);
        assert_eq!(readable(&file, External::Deny), below);
        assert_eq!(readable(&file, External::SameDir), below);
        assert_eq!(readable(&file, External::Allow), None);
    }
}
