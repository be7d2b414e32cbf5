//! Locks of files, and the names of processes that hold them: host, process, program and mount point, for messages of
//! all commands.
//!
//! The writer of a checkout stores its name in the lock file, where other hosts find it, too. Holders of shared or
//! short locks do not: they are found in the kernel's lock table. Names are for people, and no decision depends on
//! them.

use std::fs::File;
use std::io;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock, major, minor};
use rustix::io::Errno;

/// The pause between attempts to lock a file: those that look who has it hold it briefly.
pub const MOMENT: Duration = Duration::from_millis(50);

/// How long a lock is tried: a process that was unmounted or killed has it until its last write has returned, and its
/// files are closed one after the other.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// The longest name that is read.
const LONGEST: u64 = 1000;

/// The most holders of a shared lock that are named.
const MOST: usize = 3;

/// The kernel's table of locks.
const LOCKS: &str = "/proc/locks";

/// The task of this process, for its name.
static TASK: OnceLock<Task> = OnceLock::new();

/// The task of a process, as shown to others.
struct Task {
    name: String,
    tell: fn(&str),
}

/// Sets, once, the task of this process, such as `npyfs mount at /mnt`, and how its user is told which process it waits
/// for.
pub fn begin(name: String, tell: fn(&str)) {
    let _ = TASK.set(Task { name, tell });
}

/// Tells the user of this process a message, if there is a way.
pub fn tell_user(message: &str) {
    if let Some(task) = TASK.get() {
        (task.tell)(message);
    }
}

/// Returns the name of this process.
pub fn process_name() -> String {
    let task = TASK.get().map(|task| task.name.as_str());
    named(std::process::id(), task)
}

fn named(process: u32, task: Option<&str>) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let task = task.map_or_else(String::new, |task| format!(" ({task})"));
    format!("host {}, process {process}{task}", host.trim())
}

/// Returns whether the lock of a file was available.
pub fn lock(file: &File, operation: FlockOperation) -> io::Result<bool> {
    match flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Takes the exclusive lock of a file; false if another process has it for a second.
pub fn lock_soon(file: &File) -> io::Result<bool> {
    let since = Instant::now();
    while !lock(file, FlockOperation::NonBlockingLockExclusive)? {
        if since.elapsed() > PATIENCE {
            return Ok(false);
        }
        std::thread::sleep(MOMENT);
    }
    Ok(true)
}

/// Writes the name of this process into the file of a lock that it holds.
pub fn write(file: &File) -> io::Result<()> {
    file.set_len(0)?;
    file.write_all_at(format!("{}\n", process_name()).as_bytes(), 0)
}

/// Writes the same name again, to the disk: fails if a server no longer takes writes of this host.
pub fn write_again(file: &File) -> io::Result<()> {
    file.write_all_at(process_name().as_bytes(), 0)?;
    file.sync_data()
}

/// Reads the name of the process that holds an exclusive lock.
pub fn read(mut file: &File) -> String {
    let mut who = String::new();
    match (&mut file).take(LONGEST).read_to_string(&mut who) {
        Ok(_) if !who.trim().is_empty() => who.trim().to_owned(),
        _ => "another process".to_owned(),
    }
}

/// Returns whether the last exclusive holder of a lock was a process of this host, according to its name, or one that
/// had not written its name yet.
pub fn was_here(file: &File) -> bool {
    let host = |name: &str| name.split(',').next().map(str::to_owned);
    let is_unnamed = file.metadata().is_ok_and(|meta| meta.len() == 0);
    is_unnamed || host(&read(file)) == host(&process_name())
}

/// Returns the names of processes of this host that hold a lock on a file, as far as the kernel reports them.
pub fn all(file: &File) -> Vec<String> {
    let (Ok(meta), Ok(table)) = (file.metadata(), std::fs::read_to_string(LOCKS)) else {
        return Vec::new();
    };
    let place = (major(meta.dev()), minor(meta.dev()), meta.ino());
    let mut processes = locking(&table, place);
    processes.sort_unstable();
    processes.dedup();
    let more = processes.len().saturating_sub(MOST);
    processes.truncate(MOST);
    let mut names: Vec<String> = processes
        .into_iter()
        .map(|process| named(process, task_of(process).as_deref()))
        .collect();
    if more > 0 {
        names.push(format!("{more} more"));
    }
    names
}

/// Returns the processes that hold a lock on the file with this device and inode: `1: FLOCK  ADVISORY  READ 345
/// 08:01:6789 0 EOF`.
fn locking(table: &str, place: (u32, u32, u64)) -> Vec<u32> {
    let line = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        // A waiting process has an arrow in front.
        fields.next().filter(|kind| *kind == "FLOCK")?;
        let process = fields.nth(2)?.parse().ok().filter(|&process| process > 0)?;
        let mut file = fields.next()?.split(':');
        let mut device = || u32::from_str_radix(file.next()?, 16).ok();
        let device = (device()?, device()?);
        let inode = file.next()?.parse().ok()?;
        ((device.0, device.1, inode) == place).then_some(process)
    };
    table.lines().filter_map(line).collect()
}

/// Returns the task of a process from its command line: `npyfs mount at mnt`, or the name of the program.
fn task_of(process: u32) -> Option<String> {
    let line = std::fs::read(format!("/proc/{process}/cmdline")).ok()?;
    let line = String::from_utf8_lossy(&line);
    let words: Vec<&str> = line.split_terminator('\0').collect();
    let (program, words) = words.split_first()?;
    let program = Path::new(program).file_name()?.to_string_lossy();
    let (command, words) = match words.split_first() {
        Some((command, words)) if !command.starts_with('-') => (*command, words),
        _ => return Some(program.into_owned()),
    };
    Some(match (command, words.last()) {
        ("mount", Some(mount_point)) => format!("{program} mount at {mount_point}"),
        _ => format!("{program} {command}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_found_in_the_table_of_locks() {
        let table = "1: FLOCK  ADVISORY  READ 345 08:1f:6789 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 346 08:1f:678 0 EOF\n\
                     3: POSIX  ADVISORY  READ 347 08:1f:6789 0 EOF\n\
                     4: FLOCK  ADVISORY  READ 348 08:1f:6789 0 EOF\n\
                     4: -> FLOCK  ADVISORY  WRITE 349 08:1f:6789 0 EOF\n\
                     5: FLOCK  ADVISORY  READ -1 08:1f:6789 0 EOF\n\
                     6: FLOCK\n";
        assert_eq!(locking(table, (8, 31, 6789)), [345, 348]);
        assert_eq!(locking(table, (8, 31, 1)), [0; 0]);
    }

    #[test]
    fn a_name_is_read_as_it_was_written() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(read(&file), "another process");
        write(&file).unwrap();
        assert_eq!(read(&file), process_name());
        assert!(process_name().contains(&format!("process {}", std::process::id())));
    }
}
