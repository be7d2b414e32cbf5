//! The system calls that workers may make; every other call is refused with EPERM.
//!
//! The list names allowed calls, so that calls of future kernels are refused as well. It covers the needs of Rust's
//! library, glibc and musl for memory, time, signals and their own process, and the needs of reading or writing files.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};

/// The purpose of a worker, which determines its list of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerRole {
    /// Reads files, and changes none.
    Read,
    /// Writes to existing files.
    Write,
    /// Writes to the tables of a repository, and takes locks on them.
    Tables,
}

/// Calls of all workers.
const COMMON: &[i64] = &[
    // Open files, and the socket on standard input.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    CACHESTAT,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_ppoll,
    // Names. Landlock decides which files may be opened.
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getcwd,
    libc::SYS_chdir,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Time.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    // The process itself.
    libc::SYS_futex,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_getrandom,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrlimit,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// `cachestat`, of Linux 6.5: the same number everywhere.
const CACHESTAT: i64 = 451;

/// Older forms of these calls, which only this architecture has.
#[cfg(target_arch = "x86_64")]
const COMMON_HERE: &[i64] = &[
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_poll,
    libc::SYS_time,
];
#[cfg(target_arch = "aarch64")]
const COMMON_HERE: &[i64] = &[];

/// Calls of workers that write.
const WRITING: &[i64] = &[
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_msync,
];

/// Calls that open files, with the position of the flags in their arguments.
#[cfg(target_arch = "x86_64")]
const OPENS: &[(i64, u8)] = &[(libc::SYS_openat, 2), (libc::SYS_open, 1)];
#[cfg(target_arch = "aarch64")]
const OPENS: &[(i64, u8)] = &[(libc::SYS_openat, 2)];

/// Flags with which a reader may not open files.
const CHANGES: i32 = libc::O_WRONLY
    | libc::O_RDWR
    | libc::O_CREAT
    | libc::O_TRUNC
    | (libc::O_TMPFILE & !libc::O_DIRECTORY);

/// The allowed commands of `fcntl`; no locks.
const FCNTL: [i32; 5] = [
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn argument(index: u8, operator: SeccompCmpOp, value: i32) -> Result<SeccompRule, BackendError> {
    let value = value.unsigned_abs().into();
    let condition = SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value)?;
    SeccompRule::new(vec![condition])
}

fn without(index: u8, bits: i32) -> Result<SeccompRule, BackendError> {
    argument(index, SeccompCmpOp::MaskedEq(bits.unsigned_abs().into()), 0)
}

fn rules(role: WorkerRole) -> Result<Rules, BackendError> {
    let plain = [COMMON, COMMON_HERE].into_iter().flatten();
    let mut rules: Rules = plain.map(|&call| (call, Vec::new())).collect();
    if role != WorkerRole::Read {
        rules.extend(WRITING.iter().map(|&call| (call, Vec::new())));
    }
    for &(open, flags) in OPENS {
        let rule = match role {
            WorkerRole::Read => vec![without(flags, CHANGES)?],
            WorkerRole::Write | WorkerRole::Tables => Vec::new(),
        };
        rules.insert(open, rule);
    }
    // No new code.
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![without(2, libc::PROT_EXEC)?]);
    }
    let fcntl = match role {
        WorkerRole::Tables => Vec::new(),
        WorkerRole::Read | WorkerRole::Write => FCNTL
            .into_iter()
            .map(|command| argument(1, SeccompCmpOp::Eq, command))
            .collect::<Result<_, _>>()?,
    };
    rules.insert(libc::SYS_fcntl, fcntl);
    if role == WorkerRole::Tables {
        rules.insert(libc::SYS_flock, Vec::new());
    }
    // The size of a page, and the other values that the kernel passed to the process at its start.
    const PR_GET_AUXV: i32 = 0x4155_5856;
    rules.insert(
        libc::SYS_prctl,
        vec![argument(0, SeccompCmpOp::Eq, PR_GET_AUXV)?],
    );
    // An aborting process signals itself, and a process that limits itself names itself as 0.
    let me = i32::try_from(std::process::id()).unwrap_or(0);
    rules.insert(libc::SYS_tgkill, vec![argument(0, SeccompCmpOp::Eq, me)?]);
    rules.insert(libc::SYS_prlimit64, vec![argument(0, SeccompCmpOp::Eq, 0)?]);
    Ok(rules)
}

/// Returns true if a call with this number is allowed for at least some arguments.
pub(super) fn is_allowed(role: WorkerRole, call: i64) -> bool {
    rules(role).is_ok_and(|rules| rules.contains_key(&call))
}

/// From now on, refuses every call that is not on the list of this role.
pub(super) fn restrict(role: WorkerRole) -> Result<(), String> {
    let arch = std::env::consts::ARCH
        .try_into()
        .map_err(|_| "not on this architecture".to_owned())?;
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let program: BpfProgram = rules(role)
        .and_then(|rules| SeccompFilter::new(rules, refuse, SeccompAction::Allow, arch))
        .and_then(TryInto::try_into)
        .map_err(|e| e.to_string())?;
    seccompiler::apply_filter(&program).map_err(|e| e.to_string())
}
