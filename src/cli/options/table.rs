//! The mount options that there are: the line of each in the help, and how its text becomes a value.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{HeaderName, HeaderValue};

use super::MountOptions;
use crate::cli::accounts;
use npyfs_base::options::RemoteSettings;
use npyfs_io::remote::Address;
use npyfs_io::small_file;

/// The policy that shows all users the files that the mounting user may read.
pub(super) const FOR_OTHERS: &str = "allow-for-others";

/// The refusal of an option that the list has and `set` does not know, which a test excludes.
const UNKNOWN: &str = "it is not known";

/// The options, a line each, as the help lists them: the spelling and what the option does. An option whose spelling has no `=`
/// takes no value. FORMATS stands for the names of the formats.
const OPTIONS: &str = "\
ro                   read-only; of a checkout: shows it, and nobody can write in it meanwhile
rw                   writable; needs a checkout, and is read-only without one
checkout=NAME        as --checkout: what is written goes to the checkout NAME
checkouts=DIR        as --checkouts: directory or bucket of the checkouts [STORE.checkouts]
at=COMMIT            as --at: the store as it was after a commit
allow_other          let other users in, as far as the permissions shown allow
default_permissions  let the kernel enforce the permissions shown; part of allow_other
uid=USER             owner of every entry, by number or name [owner of the store]
gid=GROUP            group of every entry, by number or name [group of the store]
umask=OCTAL          permission bits to take away from every entry
fsname=NAME          source shown in the mount table [path of the store]
sep=CHAR             character shown instead of # in names
xattrs               HDF5 attributes as extended attributes; ls -l of many files becomes slow
cache_size=SIZE      memory for decoded data [256M]
keep=SIZE            bytes of disk for copies of arrays that were read whole, or again and again, of all together; 0: none [0; for remote stores that of disk_cache]
follow=SECONDS       show commits of others as they are made, and ask for new ones so often [only those that there are now]
external=POLICY      read files that the store refers to: deny, same-dir, allow or, with allow_other, allow-for-others [deny]
text_limit=SIZE      largest fixed-width form of text [4G; of packed text no more than 64 times what is stored]
aligned              headers of arrays fill a page of 4096 bytes, for random samples out of memory maps; read-only mounts
scheduling=WHICH     off: never look out for requests, serve a program on the processor it runs on, or share a chunk among threads [auto]
kind=KIND            show stores as KIND only, whatever they say: FORMATS [auto]
subpath=PATH         show the directory at PATH in the store only, as STORE:/PATH does
view=VIEW            show the store read-only under other names: zarr, zarr3, daf or arrow, as .npyfs/VIEW does
join=DIMENSION       in the views of Zarr, show the stores of a directory as one, joined along DIMENSION in order of their names
strict               with join=: refuse to leave out arrays of which some store lacks its own or has another one
locales=N            files that every set of Arkouda must have; one with fewer or more is an error [as many as there are]
endpoint=URL         address of the service that holds the bucket [that of the provider]
region=REGION        region of the bucket [AWS_REGION]
profile=NAME         credentials and region of this profile in ~/.aws [AWS_PROFILE]
anonymous            ask for objects without credentials
requester_pays       agree to pay for what is read
header=@FILE         lines NAME: VALUE that go with each request to a web server, and to no other host
check=SECONDS        time after which an open asks whether an object changed [5]
timeout=SECONDS      time after which a read of an object ends, whatever the server does [60]
nopack               do not look for a pack, STORE.npyfs-pack, beside a store
disk_cache=SIZE      bytes of objects that are kept on disk, of all together; 0: none [4G]
cache_dir=DIR        directory in which they are kept, and what keep= keeps [~/.cache/npyfs]
";

/// A mount option.
pub(super) struct MountOption {
    pub(super) name: &'static str,
    /// The name of the value in the help; `None` for an option without a value.
    pub(super) placeholder: Option<&'static str>,
    /// The option as the help spells it.
    pub(super) spelling: &'static str,
    pub(super) help: &'static str,
}

/// Returns all options, in the order of the help.
pub(super) fn all() -> impl Iterator<Item = MountOption> {
    OPTIONS.lines().map(|line| {
        let (spelling, help) = line.split_once(' ').unwrap_or((line, ""));
        let named = spelling.split_once('=');
        MountOption {
            name: named.map_or(spelling, |(name, _)| name),
            placeholder: named.map(|(_, placeholder)| placeholder),
            spelling,
            help: help.trim_start(),
        }
    })
}

/// Returns the option of this name.
pub(super) fn find(name: &str) -> Option<MountOption> {
    all().find(|known| known.name == name)
}

/// Sets an option to what a text means; for an option without a value the text is empty. The error says what was expected.
pub(super) fn set(to: &mut MountOptions, name: &str, text: &str) -> Result<(), &'static str> {
    let fs = &mut to.fs;
    match name {
        "ro" => to.writable = Some(false),
        "rw" => to.writable = Some(true),
        "checkout" => to.checkout = Some(not_empty(text)?),
        "checkouts" => to.checkouts = Some(not_empty(text)?.into()),
        "at" => to.at = Some(not_empty(text)?),
        "allow_other" => to.allow_other = true,
        "default_permissions" => to.default_permissions = true,
        "uid" => {
            let user = id(text).or_else(|| accounts::user(text));
            fs.uid = Some(user.ok_or("expected a user, by number or name")?);
        }
        "gid" => {
            let group = id(text).or_else(|| accounts::group(text));
            fs.gid = Some(group.ok_or("expected a group, by number or name")?);
        }
        "umask" => fs.umask = Some(umask(text)?),
        "fsname" => to.fsname = Some(not_empty(text)?),
        "sep" => fs.sep = separator(text)?,
        "xattrs" => fs.xattrs = true,
        "cache_size" => fs.cache_size = size(text)?,
        "keep" => fs.keep = Some(size(text)?),
        "follow" => fs.follow = Some(time(text)?),
        "external" => {
            to.external_for_others = text == FOR_OTHERS;
            let policy = match to.external_for_others {
                true => "allow",
                false => text,
            };
            let expected = "expected deny, same-dir, allow or, with allow_other, allow-for-others";
            fs.external = policy.parse().map_err(|_| expected)?;
        }
        "aligned" => fs.aligned = true,
        "text_limit" => fs.text_limit = Some(size(text)?),
        "scheduling" => {
            fs.scheduling = match text {
                "auto" => true,
                "off" => false,
                _ => return Err("expected auto or off"),
            }
        }
        "kind" => fs.kind = (text != "auto").then(|| text.to_owned()),
        "subpath" => fs.subpath = Some(not_empty(text)?.into()),
        "view" => fs.view = Some(text.parse()?),
        "join" => fs.join = Some(not_empty(text)?),
        "strict" => fs.strict = true,
        "locales" => {
            let count = text.parse().ok().filter(|&count| count > 0);
            fs.locales = Some(count.ok_or("expected a number of files")?);
        }
        _ => return set_remote(Arc::make_mut(&mut fs.remote), name, text),
    }
    Ok(())
}

/// Sets an option of stores in buckets and on web servers.
fn set_remote(to: &mut RemoteSettings, name: &str, text: &str) -> Result<(), &'static str> {
    match name {
        "endpoint" => {
            let shown = Address::hide_user(&not_empty(text)?);
            let shown = shown.filter(|shown| Address::is_service(shown));
            to.endpoint = Some(shown.ok_or("expected http(s)://HOST")?);
        }
        "region" => {
            let region = Some(text).filter(|text| Address::is_region(text));
            let region = region.ok_or("expected the name of a region, such as eu-central-1")?;
            to.region = Some(region.to_owned());
        }
        "profile" => to.profile = Some(not_empty(text)?),
        "anonymous" => to.anonymous = true,
        "requester_pays" => to.requester_pays = true,
        "header" => to.headers = headers(text)?,
        "check" => to.check = Duration::from_secs(seconds(text)?),
        "timeout" => to.timeout = time(text)?,
        "nopack" => to.packs = false,
        "disk_cache" => to.disk_cache = size(text)?,
        "cache_dir" => {
            let dir = std::path::absolute(not_empty(text)?).map_err(|_| "no such place")?;
            to.cache_dir = Some(dir);
        }
        _ => return Err(UNKNOWN),
    }
    Ok(())
}

/// Options of mount(8) that every type of file system takes. They change nothing here: most speak to mount(8), systemd or udev,
/// and a mount of npyfs is always nosuid, nodev, noexec and noatime.
const WITHOUT_EFFECT: &[&str] = &[
    "_netdev",
    "async",
    "atime",
    "auto",
    "comment",
    "defaults",
    "dev",
    "diratime",
    "dirsync",
    "exec",
    "group",
    "iversion",
    "lazytime",
    "loud",
    "mand",
    "noatime",
    "noauto",
    "nodev",
    "nodiratime",
    "noexec",
    "nofail",
    "nogroup",
    "noiversion",
    "nolazytime",
    "nomand",
    "noowner",
    "norelatime",
    "nostrictatime",
    "nosuid",
    "nouser",
    "nousers",
    "owner",
    "pamconsole",
    "relatime",
    "silent",
    "strictatime",
    "suid",
    "symfollow",
    "sync",
    "user",
    "users",
];

/// Returns whether an option is one of mount(8) and has no effect here.
pub(super) fn is_taken(name: &str) -> bool {
    WITHOUT_EFFECT.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
}

/// Bytes of a file with headers. Servers take 8 to 64 KiB.
const LARGEST_HEADERS: u64 = 64 << 10;

/// Returns the lines `NAME: VALUE` of a file.
fn headers(path: &str) -> Result<Vec<(String, String)>, &'static str> {
    const EXPECTED: &str = "expected @FILE, a regular file with lines NAME: VALUE";
    let path = path.strip_prefix('@').ok_or(EXPECTED)?;
    let text = small_file::read_text(path.as_ref(), LARGEST_HEADERS);
    let text = text.map_err(|e| match e.kind() {
        ErrorKind::InvalidInput | ErrorKind::InvalidData => EXPECTED,
        ErrorKind::FileTooLarge => "the file is larger than 64 KiB",
        _ => "the file cannot be read",
    })?;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let pair = |line: &str| {
        let (name, value) = line.split_once(':').ok_or(EXPECTED)?;
        let (name, value) = (name.trim(), value.trim());
        let is_header = name.parse::<HeaderName>().is_ok() && value.parse::<HeaderValue>().is_ok();
        let header = is_header.then(|| (name.to_owned(), value.to_owned()));
        header.ok_or(EXPECTED)
    };
    lines.map(pair).collect()
}

/// The seconds of 100 years.
const LONGEST_TIME: u64 = 100 * 365 * 24 * 60 * 60;

/// Parses the number of a user or group.
fn id(text: &str) -> Option<u32> {
    // The highest number means "no user" to the kernel.
    digits(text, 10)
        .and_then(|n| u32::try_from(n).ok())
        .filter(|&id| id != u32::MAX)
}

/// Parses permission bits.
fn umask(text: &str) -> Result<u32, &'static str> {
    digits(text, 8)
        .and_then(|n| u32::try_from(n).ok())
        .filter(|&bits| bits <= 0o777)
        .ok_or("expected permission bits in octal, such as 022")
}

/// Returns a text that must say something.
fn not_empty(text: &str) -> Result<String, &'static str> {
    if text.is_empty() || text.contains('\0') {
        Err("expected a name")
    } else {
        Ok(text.to_owned())
    }
}

/// Parses the character that stands for `#`.
fn separator(text: &str) -> Result<u8, &'static str> {
    match text.as_bytes() {
        &[byte] if byte.is_ascii_punctuation() && !b"/%,.".contains(&byte) => Ok(byte),
        _ => Err(
            "expected one ASCII character that is no letter or digit and none of / % , . or a space",
        ),
    }
}

/// Parses a number of bytes with a unit.
fn size(text: &str) -> Result<u64, &'static str> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => Some(0),
        "k" | "kb" | "kib" => Some(10),
        "m" | "mb" | "mib" => Some(20),
        "g" | "gb" | "gib" => Some(30),
        "t" | "tb" | "tib" => Some(40),
        _ => None,
    };
    shift
        .zip(digits(number, 10))
        .and_then(|(shift, number)| number.checked_mul(1 << shift))
        .ok_or("expected a size such as 64M or 2GiB")
}

/// Parses a number of seconds.
fn seconds(text: &str) -> Result<u64, &'static str> {
    // A time that far away can be added to any other.
    let seconds = digits(text, 10).filter(|&seconds| seconds <= LONGEST_TIME);
    seconds.ok_or("expected a number of seconds, at most 100 years")
}

/// Parses a time that is longer than none.
fn time(text: &str) -> Result<Duration, &'static str> {
    let seconds = seconds(text).ok().filter(|&seconds| seconds > 0);
    Ok(Duration::from_secs(seconds.ok_or("expected seconds")?))
}

/// Parses digits: no sign, unlike `from_str_radix`.
fn digits(text: &str, radix: u32) -> Option<u64> {
    if text.chars().all(|c| c.is_digit(radix)) {
        u64::from_str_radix(text, radix).ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_can_be_set() {
        for option in all() {
            let refused = set(&mut MountOptions::default(), option.name, "");
            assert_ne!(refused, Err(UNKNOWN), "{}", option.name);
        }
    }

    #[test]
    fn sizes() {
        let of = |text: &str| size(text).ok();
        assert_eq!(
            (of("0"), of("17"), of("17b"), of("3k")),
            (Some(0), Some(17), Some(17), Some(3072))
        );
        assert_eq!(
            (of("1MiB"), of("1mb"), of("1G"), of("1t")),
            (Some(1 << 20), Some(1 << 20), Some(1 << 30), Some(1 << 40))
        );
        for bad in [
            "",
            "M",
            "-1",
            "+1",
            "1.5G",
            "1 M",
            "1x",
            "1MiBs",
            "99999999999999999999",
            "99999999999T",
        ] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn separators() {
        for good in ["#", "@", "_", "-", "~", "\\"] {
            assert_eq!(separator(good).ok(), Some(good.as_bytes()[0]));
        }
        for bad in [
            "", "a", "7", "/", "%", ",", ".", " ", "\n", "\u{7f}", "##", "\u{e9}",
        ] {
            assert!(separator(bad).is_err(), "{bad:?}");
        }
    }
}
