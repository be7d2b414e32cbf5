//! A probe of the sandbox: tries what a worker can still do in it.
//!
//! A hidden command for the tests, which enters the sandbox as a worker does and then acts as a subverted worker might.
//! It prints the outcome of each attempt. It can do no harm where the sandbox holds; where it does not, the attempts
//! affect files that the caller made for it.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::syscalls::{self, WorkerRole};
use super::{admission, sandbox};
use npyfs_hdf5::protocol::{Permit, Sandbox};

/// The largest number of a system call that is tried.
const LAST_CALL: i64 = 600;

/// Calls that are not tried since they end the process. The last two are `uretprobe` and `uprobe` on x86-64, which end
/// in SIGILL unless the kernel's own code makes them, and which no filter sees.
const FINAL: [i64; 5] = [
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    335,
    336,
];

/// `fchmodat2`, which some C libraries do not know yet; its number is the same everywhere.
const FCHMODAT2: i64 = 452;
const SETXATTRAT: i64 = 463;
const REMOVEXATTRAT: i64 = 466;
const FILE_SETATTR: i64 = 469;

/// The outcome of all attempts.
#[derive(Serialize)]
struct ProbeReport {
    sandbox: Sandbox,
    /// The result of each attempt: 0 on success, otherwise the errno.
    tried: BTreeMap<&'static str, i32>,
    /// The numbers of calls that are not refused for all arguments.
    reached: Vec<i64>,
    /// Those of the reached calls that are on no list.
    unlisted: Vec<i64>,
}

/// Tries everything and prints a JSON object.
pub(super) fn run() -> io::Result<()> {
    let closed = sandbox::close_inherited();
    let arguments: Vec<PathBuf> = std::env::args_os().skip(2).map(PathBuf::from).collect();
    let [role, file, elsewhere, inherited] = arguments.as_slice() else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let inherited = inherited.to_string_lossy().parse().unwrap_or(-1);
    let dir = file.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let (role, mut sandbox) = match role.as_os_str().as_bytes() {
        b"read" => {
            let admitted = admission::admit(&Permit::default(), Some(&File::open(file)?));
            (WorkerRole::Read, sandbox::enter(admitted.files))
        }
        b"write" => (WorkerRole::Write, sandbox::enter_to_write(dir)),
        b"tables" => (WorkerRole::Tables, sandbox::enter_to_write_tables(dir)),
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    sandbox.note("descriptors", closed);
    let tried = attempts(file, elsewhere, inherited);
    let mut reached = Vec::new();
    if sandbox.has("seccomp") {
        let calls = (0..=LAST_CALL).filter(|call| !FINAL.contains(call));
        reached.extend(calls.filter(|&n| call(n, [usize::MAX; 6]) != libc::EPERM));
    }
    let unlisted = reached.iter().copied();
    let unlisted = unlisted
        .filter(|&n| !syscalls::is_allowed(role, n))
        .collect();
    let report = ProbeReport {
        sandbox,
        tried,
        reached,
        unlisted,
    };
    let text = serde_json::to_string(&report).map_err(io::Error::other)?;
    println!("{text}");
    Ok(())
}

/// Makes a system call; returns its errno, or 0.
#[allow(unsafe_code)]
fn call(number: i64, arguments: [usize; 6]) -> i32 {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: nothing here trusts memory that such a call could change: it is made in a process of its own, which
    // only reports and ends. The pointers that callers pass are live.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => errno(),
        _ => 0,
    }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(-1)
}

fn outcome<T>(result: io::Result<T>) -> i32 {
    result.map_or_else(|e| e.raw_os_error().unwrap_or(-1), |_| 0)
}

fn c(text: &OsStr) -> CString {
    CString::new(text.as_bytes()).unwrap_or_default()
}

fn attempts(file: &Path, elsewhere: &Path, inherited: i32) -> BTreeMap<&'static str, i32> {
    let name = c(file.as_os_str());
    let path = name.as_ptr() as usize;
    let here = libc::AT_FDCWD as usize;
    let beside = file.with_file_name("beside");
    let opened = File::open(file);
    let fd = opened
        .as_ref()
        .map_or(usize::MAX, |file| file.as_raw_fd() as usize);
    // The room takes whatever a call reads or writes.
    let mut room = [0_u64; 64];
    let room = room.as_mut_ptr() as usize;
    let attribute = c(OsStr::new("user.npyfs"));
    let attribute = attribute.as_ptr() as usize;
    let write = |path: &Path| File::options().write(true).open(path);
    let create = |name: &str| File::create_new(file.with_file_name(name));
    let lock = [libc::LOCK_EX | libc::LOCK_NB, libc::F_SETLK, libc::F_WRLCK];
    let parent = std::os::unix::process::parent_id() as usize;
    const FS_IOC_SETFLAGS: usize = 0x4008_6602;
    let mut tried = BTreeMap::from([
        ("read the file", outcome(File::open(file))),
        ("read a file beside it", outcome(File::open(&beside))),
        ("read a file elsewhere", outcome(File::open(elsewhere))),
        (
            "list its directory",
            outcome(std::fs::read_dir(file.with_file_name(""))),
        ),
        ("list the root", outcome(std::fs::read_dir("/"))),
        (
            "read /proc/self/environ",
            outcome(File::open("/proc/self/environ")),
        ),
        ("write the file", outcome(write(file))),
        ("write a file elsewhere", outcome(write(elsewhere))),
        ("create a file", outcome(create("created"))),
        (
            "remove the file",
            outcome(std::fs::remove_file(file.with_file_name("doomed"))),
        ),
        (
            "rename the file",
            outcome(std::fs::rename(&beside, file.with_file_name("renamed"))),
        ),
        (
            "make a directory",
            outcome(std::fs::create_dir(file.with_file_name("made"))),
        ),
        (
            "make a link",
            outcome(std::os::unix::fs::symlink(
                "/",
                file.with_file_name("linked"),
            )),
        ),
        (
            "connect by TCP",
            outcome(std::net::TcpStream::connect("127.0.0.1:9")),
        ),
        (
            "read the inherited descriptor",
            call(libc::SYS_pread64, [inherited as usize, room, 8, 0, 0, 0]),
        ),
        ("lock the file by fcntl", {
            // l_type and l_whence are the first two halves of the first word.
            let record = [lock[2] as u64, 0, 0, 0];
            call(
                libc::SYS_fcntl,
                [fd, lock[1] as usize, record.as_ptr() as usize, 0, 0, 0],
            )
        }),
    ]);
    let calls: [(&str, i64, [usize; 6]); 44] = [
        ("chmod", libc::SYS_fchmodat, [here, path, 0o600, 0, 0, 0]),
        ("fchmod", libc::SYS_fchmod, [fd, 0o600, 0, 0, 0, 0]),
        ("fchmodat2", FCHMODAT2, [here, path, 0o600, 0, 0, 0]),
        (
            "chown",
            libc::SYS_fchownat,
            [here, path, usize::MAX, usize::MAX, 0, 0],
        ),
        ("utimensat", libc::SYS_utimensat, [here, path, 0, 0, 0, 0]),
        ("truncate", libc::SYS_truncate, [path, 4, 0, 0, 0, 0]),
        (
            "setxattr",
            libc::SYS_setxattr,
            [path, attribute, room, 1, 0, 0],
        ),
        (
            "fsetxattr",
            libc::SYS_fsetxattr,
            [fd, attribute, room, 1, 0, 0],
        ),
        (
            "setxattrat",
            SETXATTRAT,
            [here, path, 0, attribute, room, 16],
        ),
        (
            "removexattrat",
            REMOVEXATTRAT,
            [here, path, 0, attribute, 0, 0],
        ),
        ("file_setattr", FILE_SETATTR, [here, path, room, 24, 0, 0]),
        (
            "ioctl SETFLAGS",
            libc::SYS_ioctl,
            [fd, FS_IOC_SETFLAGS, room, 0, 0, 0],
        ),
        ("flock", libc::SYS_flock, [fd, lock[0] as usize, 0, 0, 0, 0]),
        ("openat2", libc::SYS_openat2, [here, path, room, 24, 0, 0]),
        (
            "open_by_handle_at",
            libc::SYS_open_by_handle_at,
            [here, room, 0, 0, 0, 0],
        ),
        (
            "name_to_handle_at",
            libc::SYS_name_to_handle_at,
            [here, path, room, room, 0, 0],
        ),
        (
            "socket",
            libc::SYS_socket,
            [
                libc::AF_INET as usize,
                libc::SOCK_DGRAM as usize,
                0,
                0,
                0,
                0,
            ],
        ),
        ("socketpair", libc::SYS_socketpair, [1, 1, 0, room, 0, 0]),
        (
            "shmget",
            libc::SYS_shmget,
            [0, 4096, 0o600 | libc::IPC_CREAT as usize, 0, 0, 0],
        ),
        (
            "semget",
            libc::SYS_semget,
            [0, 1, 0o600 | libc::IPC_CREAT as usize, 0, 0, 0],
        ),
        (
            "msgget",
            libc::SYS_msgget,
            [0, 0o600 | libc::IPC_CREAT as usize, 0, 0, 0, 0],
        ),
        ("mq_open", libc::SYS_mq_open, [attribute, 0, 0, 0, 0, 0]),
        (
            "memfd_create",
            libc::SYS_memfd_create,
            [attribute, 0, 0, 0, 0, 0],
        ),
        ("fanotify_init", libc::SYS_fanotify_init, [0, 0, 0, 0, 0, 0]),
        ("inotify_init1", libc::SYS_inotify_init1, [0, 0, 0, 0, 0, 0]),
        ("execve", libc::SYS_execve, [path, 0, 0, 0, 0, 0]),
        // No kernel accepts these flags together, so an allowed call starts nothing.
        (
            "clone",
            libc::SYS_clone,
            [libc::CLONE_THREAD as usize, 0, 0, 0, 0, 0],
        ),
        ("clone3", libc::SYS_clone3, [room, 0, 0, 0, 0, 0]),
        ("kill the parent", libc::SYS_kill, [parent, 0, 0, 0, 0, 0]),
        (
            "tgkill the parent",
            libc::SYS_tgkill,
            [parent, parent, 0, 0, 0, 0],
        ),
        ("ptrace", libc::SYS_ptrace, [0x4206, parent, 0, 0, 0, 0]),
        (
            "process_vm_readv",
            libc::SYS_process_vm_readv,
            [parent, 0, 0, 0, 0, 0],
        ),
        ("pidfd_open", libc::SYS_pidfd_open, [parent, 0, 0, 0, 0, 0]),
        (
            "limits of the parent",
            libc::SYS_prlimit64,
            [parent, 0, 0, room, 0, 0],
        ),
        (
            "io_uring_setup",
            libc::SYS_io_uring_setup,
            [1, room, 0, 0, 0, 0],
        ),
        ("userfaultfd", libc::SYS_userfaultfd, [1, 0, 0, 0, 0, 0]),
        ("bpf", libc::SYS_bpf, [0, room, 0, 0, 0, 0]),
        (
            "perf_event_open",
            libc::SYS_perf_event_open,
            [room, 0, 0, 0, 0, 0],
        ),
        ("keyctl", libc::SYS_keyctl, [0, 0, 0, 0, 0, 0]),
        ("mount", libc::SYS_mount, [path, path, path, 0, 0, 0]),
        (
            "unshare",
            libc::SYS_unshare,
            [libc::CLONE_NEWUSER as usize, 0, 0, 0, 0, 0],
        ),
        ("setns", libc::SYS_setns, [fd, 0, 0, 0, 0, 0]),
        (
            "personality",
            libc::SYS_personality,
            [0xffff_ffff, 0, 0, 0, 0, 0],
        ),
        (
            "memory to run code in",
            libc::SYS_mmap,
            [0, 4096, 7, 0x22, usize::MAX, 0],
        ),
    ];
    for (name, number, arguments) in calls {
        tried.insert(name, call(number, arguments));
    }
    tried
}
