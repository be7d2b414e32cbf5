//! The options of stores in buckets and on web servers.

use std::sync::Arc;
use std::time::Duration;

use super::values::{not_empty, seconds, size};
use super::{MountOption, MountOptions, Setter};
use crate::io::remote::Address;
use crate::options::RemoteSettings;

fn settings(to: &mut MountOptions) -> &mut RemoteSettings {
    Arc::make_mut(&mut to.fs.remote)
}

/// Returns the lines `NAME: VALUE` of a file.
fn headers(path: &str) -> Result<Vec<(String, String)>, &'static str> {
    const EXPECTED: &str = "expected @FILE, a file with lines NAME: VALUE";
    let path = path.strip_prefix('@').ok_or(EXPECTED)?;
    let text = std::fs::read_to_string(path).map_err(|_| "the file cannot be read")?;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let pair = |line: &str| {
        let (name, value) = line.split_once(':').ok_or(EXPECTED)?;
        Ok((name.trim().to_owned(), value.trim().to_owned()))
    };
    lines.map(pair).collect()
}

/// The options.
pub(super) const REMOTE: &[MountOption] = &[
    MountOption {
        name: "endpoint",
        set: Setter::Value("URL", |to, text| {
            let shown = Address::hide_user(&not_empty(text)?);
            settings(to).endpoint = Some(shown.ok_or("expected http(s)://HOST")?);
            Ok(())
        }),
        help: "address of the service that holds the bucket [that of the provider]",
    },
    MountOption {
        name: "region",
        set: Setter::Value("REGION", |to, text| {
            settings(to).region = Some(not_empty(text)?);
            Ok(())
        }),
        help: "region of the bucket [AWS_REGION]",
    },
    MountOption {
        name: "profile",
        set: Setter::Value("NAME", |to, text| {
            settings(to).profile = Some(not_empty(text)?);
            Ok(())
        }),
        help: "credentials and region of this profile in ~/.aws [AWS_PROFILE]",
    },
    MountOption {
        name: "anonymous",
        set: Setter::Flag(|to| settings(to).anonymous = true),
        help: "ask for objects without credentials",
    },
    MountOption {
        name: "requester_pays",
        set: Setter::Flag(|to| settings(to).requester_pays = true),
        help: "agree to pay for what is read",
    },
    MountOption {
        name: "header",
        set: Setter::Value("@FILE", |to, text| {
            settings(to).headers = headers(text)?;
            Ok(())
        }),
        help: "lines NAME: VALUE that go with each request to a web server, and to no other host",
    },
    MountOption {
        name: "check",
        set: Setter::Value("SECONDS", |to, text| {
            settings(to).check = Duration::from_secs(seconds(text)?);
            Ok(())
        }),
        help: "time after which an open asks whether an object changed [5]",
    },
    MountOption {
        name: "timeout",
        set: Setter::Value("SECONDS", |to, text| {
            let timeout = seconds(text).ok().filter(|&seconds| seconds > 0);
            settings(to).timeout = Duration::from_secs(timeout.ok_or("expected seconds")?);
            Ok(())
        }),
        help: "time after which a read of an object ends, whatever the server does [60]",
    },
    MountOption {
        name: "nopack",
        set: Setter::Flag(|to| settings(to).packs = false),
        help: "do not look for a pack, STORE.npyfs-pack, beside a store",
    },
    MountOption {
        name: "disk_cache",
        set: Setter::Value("SIZE", |to, text| {
            size(text).map(|bytes| settings(to).disk_cache = bytes)
        }),
        help: "bytes of objects that are kept on disk, of all together; 0: none [4G]",
    },
    MountOption {
        name: "cache_dir",
        set: Setter::Value("DIR", |to, text| {
            let dir = std::path::absolute(not_empty(text)?).map_err(|_| "no such place")?;
            settings(to).cache_dir = Some(dir);
            Ok(())
        }),
        help: "directory in which they are kept, and what keep= keeps [~/.cache/npyfs]",
    },
];
