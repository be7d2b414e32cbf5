//! The mount options that there are.

use std::time::Duration;

use super::values::{id, not_empty, seconds, separator, size, umask};
use super::{FOR_OTHERS, MountOption, Setter};
use crate::cli::accounts;

/// The options, in the order in which the help lists them.
pub(super) const KNOWN: &[MountOption] = &[
    MountOption {
        name: "ro",
        set: Setter::Flag(|to| to.writable = Some(false)),
        help: "read-only; of a checkout: shows it, and nobody can write in it meanwhile",
    },
    MountOption {
        name: "rw",
        set: Setter::Flag(|to| to.writable = Some(true)),
        help: "writable; needs a checkout, and is read-only without one",
    },
    MountOption {
        name: "checkout",
        set: Setter::Value("NAME", |to, text| {
            to.checkout = Some(not_empty(text)?);
            Ok(())
        }),
        help: "as --checkout: what is written goes to the checkout NAME",
    },
    MountOption {
        name: "checkouts",
        set: Setter::Value("DIR", |to, text| {
            to.checkouts = Some(not_empty(text)?.into());
            Ok(())
        }),
        help: "as --checkouts: directory or bucket of the checkouts [STORE.checkouts]",
    },
    MountOption {
        name: "at",
        set: Setter::Value("ID", |to, text| {
            to.at = Some(not_empty(text)?);
            Ok(())
        }),
        help: "as --at: the store as it was after a commit",
    },
    MountOption {
        name: "allow_other",
        set: Setter::Flag(|to| to.allow_other = true),
        help: "let other users in, as far as the permissions shown allow",
    },
    MountOption {
        name: "default_permissions",
        set: Setter::Flag(|to| to.default_permissions = true),
        help: "let the kernel enforce the permissions shown; part of allow_other",
    },
    MountOption {
        name: "uid",
        set: Setter::Value("USER", |to, text| {
            let found = id(text).or_else(|| accounts::user(text));
            to.fs.uid = Some(found.ok_or("expected a user, by number or name")?);
            Ok(())
        }),
        help: "owner of every entry, by number or name [owner of the store]",
    },
    MountOption {
        name: "gid",
        set: Setter::Value("GROUP", |to, text| {
            let found = id(text).or_else(|| accounts::group(text));
            to.fs.gid = Some(found.ok_or("expected a group, by number or name")?);
            Ok(())
        }),
        help: "group of every entry, by number or name [group of the store]",
    },
    MountOption {
        name: "umask",
        set: Setter::Value("OCTAL", |to, text| {
            umask(text).map(|bits| to.fs.umask = Some(bits))
        }),
        help: "permission bits to take away from every entry",
    },
    MountOption {
        name: "fsname",
        set: Setter::Value("NAME", |to, text| {
            to.fsname = Some(not_empty(text)?);
            Ok(())
        }),
        help: "source shown in the mount table [path of the store]",
    },
    MountOption {
        name: "sep",
        set: Setter::Value("CHAR", |to, text| {
            separator(text).map(|character| to.fs.sep = character)
        }),
        help: "character shown instead of # in names",
    },
    MountOption {
        name: "xattrs",
        set: Setter::Flag(|to| to.fs.xattrs = true),
        help: "HDF5 attributes as extended attributes; ls -l of many files becomes slow",
    },
    MountOption {
        name: "cache_size",
        set: Setter::Value("SIZE", |to, text| {
            size(text).map(|bytes| to.fs.cache_size = bytes)
        }),
        help: "memory for decoded data [256M]",
    },
    MountOption {
        name: "keep",
        set: Setter::Value("SIZE", |to, text| {
            size(text).map(|bytes| to.fs.keep = Some(bytes))
        }),
        help: "bytes of disk for copies of arrays that were read whole, or again and again, of all together; 0: none [0; for remote stores that of disk_cache]",
    },
    MountOption {
        name: "follow",
        set: Setter::Value("SECONDS", |to, text| {
            let every = seconds(text).ok().filter(|&every| every > 0);
            to.fs.follow = Some(Duration::from_secs(every.ok_or("expected seconds")?));
            Ok(())
        }),
        help: "show commits of others as they are made, and ask for new ones so often [only those that there are now]",
    },
    MountOption {
        name: "external",
        set: Setter::Value("POLICY", |to, text| {
            to.external_for_others = text == FOR_OTHERS;
            let policy = if to.external_for_others {
                "allow"
            } else {
                text
            };
            to.fs.external = policy.parse().map_err(
                |_| "expected deny, same-dir, allow or, with allow_other, allow-for-others",
            )?;
            Ok(())
        }),
        help: "read files that the store refers to: deny, same-dir, allow or, with allow_other, allow-for-others [deny]",
    },
    MountOption {
        name: "text_limit",
        set: Setter::Value("SIZE", |to, text| {
            size(text).map(|bytes| to.fs.text_limit = Some(bytes))
        }),
        help: "largest fixed-width form of text [4G; of packed text no more than 64 times what is stored]",
    },
    MountOption {
        name: "scheduling",
        set: Setter::Value("WHICH", |to, text| {
            to.fs.scheduling = match text {
                "auto" => true,
                "off" => false,
                _ => return Err("expected auto or off"),
            };
            Ok(())
        }),
        help: "off: never look out for requests, serve a program on the processor it runs on, or share a chunk among threads [auto]",
    },
    MountOption {
        name: "kind",
        set: Setter::Value("KIND", |to, text| {
            to.fs.kind = (text != "auto").then(|| text.to_owned());
            Ok(())
        }),
        help: "show stores as KIND only, whatever they say: FORMATS [auto]",
    },
    MountOption {
        name: "subpath",
        set: Setter::Value("PATH", |to, text| {
            to.fs.subpath = Some(not_empty(text)?.into());
            Ok(())
        }),
        help: "show the directory at PATH in the store only, as STORE:/PATH does",
    },
    MountOption {
        name: "view",
        set: Setter::Value("VIEW", |to, text| {
            to.fs.view = Some(text.parse()?);
            Ok(())
        }),
        help: "show the store read-only under other names: zarr, zarr3 or daf, as .npyfs/VIEW does",
    },
    MountOption {
        name: "join",
        set: Setter::Value("DIMENSION", |to, text| {
            to.fs.join = Some(not_empty(text)?.to_owned());
            Ok(())
        }),
        help: "in the views of Zarr, show the stores of a directory as one, joined along DIMENSION in order of their names",
    },
    MountOption {
        name: "locales",
        set: Setter::Value("N", |to, text| {
            let count = text.parse().ok().filter(|&count| count > 0);
            to.fs.locales = Some(count.ok_or("expected a number of files")?);
            Ok(())
        }),
        help: "files that every set of Arkouda must have; one with fewer or more is an error [as many as there are]",
    },
];
