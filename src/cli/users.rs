//! The users of a mount, and its owner: the processes that work in the mount, and the names of users and groups on this
//! host. A mount that cannot be looked into has a reason: it is dead, or it belongs to another user.
//!
//! Processes are looked for in `/proc`, never in the mount, which may be dead or stuck.

use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::{Group, Uid, User};
use serde::Serialize;

use crate::mount::fuse::table::{self, Mounted};

/// The number of processes that a message names.
const MOST_USERS: usize = 3;

/// The links in the directory of a process that lead to what it uses.
const LINKS: [&str; 3] = ["cwd", "root", "exe"];

/// A process that uses a mount.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct MountUser {
    /// The number.
    pub process: u32,
    /// The name of its program.
    pub program: String,
}

/// Returns the processes that have a file of a mount open or mapped, or work in its directories, as far as this user
/// may see them. Asks `/proc`, not the mount.
pub fn users_of(mount: &Path) -> Vec<MountUser> {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let user = |process: u32| {
        let dir = PathBuf::from(format!("/proc/{process}"));
        uses(&dir, mount).then(|| MountUser {
            process,
            program: std::fs::read_to_string(dir.join("comm"))
                .map_or_else(|_| "a program".to_owned(), |name| name.trim().to_owned()),
        })
    };
    let numbers = processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut users: Vec<MountUser> = numbers.filter_map(user).collect();
    users.sort_by_key(|user| user.process);
    users
}

/// Returns the names of these processes, of many the first.
pub fn names(users: &[MountUser]) -> String {
    let named = users.iter().take(MOST_USERS);
    let mut named: Vec<String> = named
        .map(|user| format!("{} (process {})", user.program, user.process))
        .collect();
    if users.len() > MOST_USERS {
        named.push(format!("{} more", users.len() - MOST_USERS));
    }
    named.join(", ")
}

/// Returns the part of a message that names these processes.
pub fn told(users: &[MountUser]) -> String {
    match users.len() {
        0 => "a program uses it".to_owned(),
        1 => format!("{} uses it", names(users)),
        _ => format!("{} use it", names(users)),
    }
}

/// Returns whether the process with this directory in `/proc` uses something of a mount.
fn uses(process: &Path, mount: &Path) -> bool {
    let leads_there = |link: &Path| std::fs::read_link(link).is_ok_and(|to| to.starts_with(mount));
    let maps = || {
        let maps = std::fs::read_to_string(process.join("maps")).unwrap_or_default();
        let path = |line: &str| line.find('/').map(|at| PathBuf::from(&line[at..]));
        maps.lines()
            .filter_map(path)
            .any(|path| path.starts_with(mount))
    };
    let open = || {
        let files = std::fs::read_dir(process.join("fd")).into_iter().flatten();
        files.flatten().any(|file| leads_there(&file.path()))
    };
    LINKS.iter().any(|link| leads_there(&process.join(link))) || open() || maps()
}

/// Returns the number of a user, if there is one of that name.
pub(super) fn user(name: &str) -> Option<u32> {
    Some(User::from_name(name).ok()??.uid.as_raw())
}

/// Returns the number of a group, if there is one of that name.
pub(super) fn group(name: &str) -> Option<u32> {
    Some(Group::from_name(name).ok()??.gid.as_raw())
}

/// Returns the name of a user, or the number if the user has no name.
pub(super) fn name_of_user(id: u32) -> String {
    match User::from_uid(Uid::from_raw(id)) {
        Ok(Some(user)) => user.name,
        _ => format!("user {id}"),
    }
}

/// Says why a mount cannot be looked into.
pub fn out_of_reach(at: &Path, e: &io::Error) -> String {
    let shown = at.display();
    match e.raw_os_error() {
        Some(libc::ENOTCONN | libc::ECONNABORTED) => format!(
            "{shown}: the process of this mount is gone (npyfs umount {shown} takes the mount away)"
        ),
        Some(libc::EACCES | libc::EPERM) => match table::at(at).ok().flatten() {
            Some(Mounted {
                owner: Some(owner), ..
            }) => {
                let owner = name_of_user(owner);
                let what = match at.metadata() {
                    Ok(_) => "who alone sees what it does",
                    Err(_) => "who alone may look into it: it was made without -o allow_other",
                };
                format!("{shown}: {e}: this is a mount of {owner}, {what}")
            }
            _ => format!("{shown}: {e}"),
        },
        _ => format!("{shown}: {e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_the_directory_of_an_open_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        assert_eq!(users_of(&path), []);
        let _file = std::fs::File::create(path.join("x")).unwrap();
        let users = users_of(&path);
        assert_eq!(users.len(), 1);
        let process = format!("(process {}) uses it", std::process::id());
        assert!(told(&users).ends_with(&process), "{users:?}");
        assert_eq!(told(&[]), "a program uses it");
    }
}
