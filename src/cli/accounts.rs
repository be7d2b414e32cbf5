//! Users and groups by name, as this host knows them.

use nix::unistd::{Group, Uid, User};

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
