//! The options of a mount, `-o a,b=c`: the table of all options, and the way from their text to values.
//!
//! The table has the line of each option in the help, and how its text becomes a value. A comma inside a value is
//! written `\\,`, or the value stands in double quotes, as mount(8) has it. Users and groups are looked up by name.
//! Never looks for stores or mount points.

use std::fmt::Write;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Arc, Once};
use std::time::Duration;

use reqwest::header::{HeaderName, HeaderValue};

use crate::cli::{say, users};
use npyfs_base::options::{External, FsOptions, RemoteSettings};
use npyfs_core::formats;
use npyfs_core::tree::suggestion::nearest;
use npyfs_io::remote::Address;
use npyfs_io::small_file;

/// The values of the mount options.
#[derive(Clone, Debug, Default)]
pub struct MountOptions {
    /// Other users are let in.
    pub allow_other: bool,
    /// Files that the store refers to may be shown to others, too.
    pub external_for_others: bool,
    /// The kernel enforces the permissions shown.
    pub default_permissions: bool,
    /// `rw` or `ro`, if one of them was given.
    pub writable: Option<bool>,
    /// The source shown in the mount table.
    pub fsname: Option<String>,
    /// The checkout to show or to write in.
    pub checkout: Option<String>,
    /// The directory of the checkouts.
    pub checkouts: Option<PathBuf>,
    /// The commit to show the store after.
    pub at: Option<String>,
    /// The options of the view of the store.
    pub fs: FsOptions,
    /// Values that are probably not meant so, a line each.
    pub doubts: Vec<String>,
}

/// The options whose values are sizes of so many bytes that few are a slip.
const ROOMS: [&str; 3] = ["cache_size", "keep", "disk_cache"];

/// Sizes from here on may be meant in bytes.
const MEANT_IN_BYTES: u64 = 1 << 20;

/// Returns the doubt about a size of few bytes that was given without a unit.
fn doubt(name: &str, value: &str) -> Option<String> {
    let bytes: u64 = value.parse().ok()?;
    let is_small = (1..MEANT_IN_BYTES).contains(&bytes);
    (ROOMS.contains(&name) && is_small).then(|| {
        format!("option {name}={value}: that is {bytes} bytes; {value}M is what has a unit")
    })
}

impl MountOptions {
    /// Says what is probably not meant so, once.
    pub fn warn(&self) {
        static SAID: Once = Once::new();
        SAID.call_once(|| self.doubts.iter().for_each(|doubt| say(doubt)));
    }

    /// Shows only a directory of the store, if one was named with the store.
    pub fn show_only(&mut self, inside: Option<PathBuf>) -> Result<(), String> {
        match (inside, &self.fs.subpath) {
            (None, _) => Ok(()),
            (Some(inside), Some(said)) if inside != *said => Err(format!(
                "STORE:{} and -o subpath={} say different things",
                inside.display(),
                said.display()
            )),
            (Some(inside), _) => {
                self.fs.subpath = Some(inside);
                Ok(())
            }
        }
    }
}

/// The options that may have secrets in their values.
const SECRET: [&str; 2] = ["endpoint", "header"];

/// Returns a list without its secrets, which this process remembers.
pub fn without_secrets(options: &str) -> String {
    let shown = |item| match name_and_value(item) {
        (name @ "endpoint", Some(value)) if value.contains('@') => {
            written(name, &Address::hide_user(&value).unwrap_or_default())
        }
        _ => item.to_owned(),
    };
    let items: Vec<String> = items(options).into_iter().map(shown).collect();
    items.join(",")
}

/// Parses option lists in the order given; of two equal options the last counts.
pub fn parse<'a>(lists: impl IntoIterator<Item = &'a str>) -> Result<MountOptions, String> {
    let mut options = MountOptions::default();
    for item in lists.into_iter().flat_map(items) {
        let (name, value) = name_and_value(item);
        if name == "remount" {
            return Err(
                "option remount: a mount of npyfs cannot be changed: unmount it, and mount it anew"
                    .to_owned(),
            );
        }
        if is_taken(name) {
            continue;
        }
        let known = find(name).ok_or_else(|| unknown(name))?;
        let value = value.as_deref();
        let value = match (known.placeholder, value) {
            (None, None) => "",
            (None, Some(_)) => return Err(format!("option {name} takes no value")),
            (Some(_), None) => {
                return Err(format!("option {name} needs a value: {}", known.spelling));
            }
            (Some(_), Some(value)) => value,
        };
        let refused = |expected| match SECRET.contains(&name) {
            true => format!("option {name}: {expected}"),
            false => format!("option {name}={value}: {expected}"),
        };
        set(&mut options, name, value).map_err(refused)?;
        options.doubts.extend(doubt(name, value));
    }
    let formats = formats::registry();
    if let Some(kind) = &options.fs.kind
        && !formats.iter().any(|format| format.name() == kind)
    {
        let names = formats.names();
        return Err(format!("option kind={kind}: expected auto, {names}"));
    }
    if options.fs.strict && options.fs.join.is_none() {
        return Err("option strict is for join=DIMENSION".to_owned());
    }
    // Other users are held to the permissions of the store, not to those of the files that the store refers to.
    if options.allow_other && options.fs.external == External::Allow && !options.external_for_others
    {
        return Err(format!(
            "external=allow with allow_other shows everybody whatever you may read and the store refers to: \
             say external={FOR_OTHERS} if that is meant"
        ));
    }
    Ok(options)
}

/// Returns a list without unknown options, and the names of those.
pub fn without_unknown(list: &str) -> (String, Vec<String>) {
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    for item in items(list) {
        let (name, _) = name_and_value(item);
        if find(name).is_some() || is_taken(name) || name == "remount" {
            known.push(item);
        } else {
            unknown.push(name.to_owned());
        }
    }
    (known.join(","), unknown)
}

/// Returns the help of the argument that is a store.
pub fn store_help() -> String {
    let formats = formats::registry().names();
    format!(
        "A file or directory that is a store ({formats}), or a directory with such, or the URL of one (https://, s3://, gs://, az://); \
         STORE:/PATH is a directory in it"
    )
}

/// Returns the names of the options, with = behind those that take a value, and what each does.
pub fn names() -> impl Iterator<Item = (String, String)> {
    all().map(|known| {
        let equals = if known.placeholder.is_some() { "=" } else { "" };
        (format!("{}{equals}", known.name), known.help.to_owned())
    })
}

/// Returns the section of the help text about mount options.
pub fn help() -> String {
    let mut text =
        "Mount options (-o, separated by commas; \\, is a comma inside a value):\n".to_owned();
    let formats = formats::registry().names();
    for known in all() {
        // Writing to a String cannot fail.
        let help = known.help.replace("FORMATS", &formats);
        let _ = writeln!(text, "  {:<20} {help}", known.spelling);
    }
    text.push_str(
        "SIZE is a number of bytes, or of K, M, G or T: powers of 1024.\n\
         Options of mount(8) for all types of file systems, such as nofail, noauto, user and x-..., are taken as well;\n\
         a mount is nosuid, nodev, noexec and noatime, whatever they say.",
    );
    text
}

/// Returns the message for an unknown option: with the one that was probably meant, or where all are listed.
fn unknown(name: &str) -> String {
    let known = all().map(|known| known.name.as_bytes().to_vec());
    let near = nearest(name.as_bytes(), known);
    let near = near.and_then(|near| find(std::str::from_utf8(&near).ok()?));
    match near {
        Some(near) => format!("unknown option {name:?}; did you mean {}?", near.spelling),
        None => format!("unknown option {name:?}; npyfs mount --help lists all"),
    }
}

/// The policy that shows all users the files that the mounting user may read.
const FOR_OTHERS: &str = "allow-for-others";

/// The refusal of an option that the list has and `set` does not know, which a test excludes.
const UNKNOWN: &str = "it is not known";

/// The options, a line each, as the help lists them: the spelling and what the option does. An option whose spelling
/// has no `=` takes no value. FORMATS stands for the names of the formats.
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
struct MountOption {
    name: &'static str,
    /// The name of the value in the help; `None` for an option without a value.
    placeholder: Option<&'static str>,
    /// The option as the help spells it.
    spelling: &'static str,
    help: &'static str,
}

/// Returns all options, in the order of the help.
fn all() -> impl Iterator<Item = MountOption> {
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
fn find(name: &str) -> Option<MountOption> {
    all().find(|known| known.name == name)
}

/// Sets an option to what a text means; for an option without a value the text is empty. The error says what was
/// expected.
fn set(to: &mut MountOptions, name: &str, text: &str) -> Result<(), &'static str> {
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
            let user = id(text).or_else(|| users::user(text));
            fs.uid = Some(user.ok_or("expected a user, by number or name")?);
        }
        "gid" => {
            let group = id(text).or_else(|| users::group(text));
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

/// Options of mount(8) that every type of file system takes. They change nothing here: most speak to mount(8), systemd
/// or udev, and a mount of npyfs is always nosuid, nodev, noexec and noatime.
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
fn is_taken(name: &str) -> bool {
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

/// Returns the options of a list, as they are written.
fn items(list: &str) -> Vec<&str> {
    let mut items = Vec::new();
    let mut rest = list;
    while !rest.is_empty() {
        let end = end_of_first(rest);
        items.push(&rest[..end]);
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    items.retain(|item| !item.is_empty());
    items
}

/// Returns where the first option of a list ends.
fn end_of_first(list: &str) -> usize {
    let quoted = list.find([',', '"', '\\']).and_then(|at| {
        let inside = list[..at]
            .ends_with('=')
            .then(|| list[at..].strip_prefix('"'))??;
        let close = at + 1 + inside.find('"')?;
        let ends = matches!(list.as_bytes().get(close + 1), None | Some(b','));
        ends.then_some(close + 1)
    });
    if let Some(end) = quoted {
        return end;
    }
    let mut bytes = list.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b',' => return at,
            // The escaped character does not end the option.
            b'\\' => _ = bytes.next(),
            _ => {}
        }
    }
    list.len()
}

/// Splits an option into its name and its value, without quotes and escapes.
fn name_and_value(item: &str) -> (&str, Option<String>) {
    match item.split_once('=') {
        Some((name, value)) => (name, Some(meaning(value))),
        None => (item, None),
    }
}

/// Returns an option as it is written.
pub fn written(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace(',', "\\,");
    format!("{name}={value}")
}

/// Removes the quotes around a value, or the backslashes in front of commas and backslashes.
fn meaning(value: &str) -> String {
    let inside = value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    if let Some(inside) = inside.filter(|inside| !inside.contains('"')) {
        return inside.to_owned();
    }
    let mut meaning = String::new();
    let mut characters = value.chars().peekable();
    while let Some(character) = characters.next() {
        let escaped = if character == '\\' {
            characters.next_if(|next| matches!(next, ',' | '\\'))
        } else {
            None
        };
        meaning.push(escaped.unwrap_or(character));
    }
    meaning
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(list: &str) -> String {
        parse([list]).unwrap_err()
    }

    #[test]
    fn every_option() {
        let options = parse([
            "ro,allow_other,,default_permissions,uid=7,gid=8,umask=027",
            "fsname=a\\,b\\\\c=d\\e,sep=@,xattrs,cache_size=64M,external=same-dir,text_limit=2GiB",
            "locales=24",
        ])
        .unwrap();
        assert!(options.allow_other && options.default_permissions && options.fs.xattrs);
        assert_eq!(
            (options.fs.uid, options.fs.gid, options.fs.umask),
            (Some(7), Some(8), Some(0o27))
        );
        assert_eq!(options.fsname.as_deref(), Some("a,b\\c=d\\e"));
        assert_eq!(
            (options.fs.sep, options.fs.external),
            (b'@', External::SameDir)
        );
        assert_eq!(
            (options.fs.cache_size, options.fs.text_limit),
            (64 << 20, Some(2 << 30))
        );
        assert_eq!(options.fs.locales, Some(24));
        for wrong in ["locales=0", "locales=-1", "locales=x", "locales"] {
            assert!(refusal(wrong).contains("locales"), "{wrong}");
        }
    }

    #[test]
    fn nothing_said_means_the_defaults_that_the_help_shows() {
        let (said, unsaid) = (
            parse(["cache_size=256M,kind=auto,external=deny"]).unwrap(),
            parse([""]).unwrap(),
        );
        assert_eq!(format!("{said:?}"), format!("{unsaid:?}"));
        assert!(unsaid.fsname.is_none() && !unsaid.allow_other);
    }

    #[test]
    fn a_size_of_few_bytes_without_a_unit_is_doubted() {
        let doubts = |list| parse([list]).unwrap().doubts;
        assert!(doubts("cache_size=256")[0].contains("256M"));
        assert_eq!(doubts("keep=5,disk_cache=7").len(), 2);
        for sure in [
            "cache_size=256M",
            "keep=0",
            "cache_size=1048576",
            "cache_size=256b",
            "uid=5",
        ] {
            assert!(doubts(sure).is_empty(), "{sure}");
        }
    }

    #[test]
    fn the_last_of_two_counts() {
        assert_eq!(parse(["uid=1,uid=2", "uid=3"]).unwrap().fs.uid, Some(3));
        assert_eq!(parse(["rw,ro"]).unwrap().writable, Some(false));
        assert_eq!(parse(["ro", "rw"]).unwrap().writable, Some(true));
    }

    #[test]
    fn refusals_name_the_option() {
        let unknown = refusal("uid=1,nonsense=3");
        let all = "unknown option \"nonsense\"; npyfs mount --help lists all";
        assert_eq!(unknown, all);
        let near = refusal("cash_size=3M");
        assert!(near.ends_with("did you mean cache_size=SIZE?"), "{near}");
        assert!(refusal("sep=\\,").contains("one ASCII character"));
        assert_eq!(refusal("xattrs=1"), "option xattrs takes no value");
        assert_eq!(refusal("uid"), "option uid needs a value: uid=USER");
        for bad in [
            "uid=",
            "uid=-1",
            "uid=4294967295",
            "gid=no such group",
            "checkout=",
            "checkouts=",
            "umask=8",
            "umask=1000",
            "umask=",
            "fsname=",
            "external=x",
            "subpath=",
            "view=",
            "view=npz",
        ] {
            assert!(
                refusal(bad).starts_with(&format!("option {bad}: expected")),
                "{bad}"
            );
        }
    }

    #[test]
    fn users_and_groups_by_name() {
        let options = parse(["uid=root,gid=root"]).unwrap();
        assert_eq!((options.fs.uid, options.fs.gid), (Some(0), Some(0)));
        // A number is never looked up.
        assert_eq!(
            parse(["uid=4000000001"]).unwrap().fs.uid,
            Some(4_000_000_001)
        );
    }

    #[test]
    fn checkouts() {
        assert_eq!(parse(["at=1b2c"]).unwrap().at.as_deref(), Some("1b2c"));
        let options = parse(["checkout=work,checkouts=/a\\,b"]).unwrap();
        assert_eq!(options.checkout.as_deref(), Some("work"));
        assert_eq!(options.checkouts.as_deref(), Some("/a,b".as_ref()));
    }

    #[test]
    fn options_of_every_file_system_are_taken() {
        let lists = [
            "defaults,nosuid,nodev,noexec,noatime,auto,noauto,user,nofail,_netdev,x-systemd.automount,comment=a b",
            "dev,suid,exec,users,X-mount.mkdir=0755,x-gvfs-show,user=me,relatime,lazytime,sync,silent,group,owner",
        ];
        let taken = parse(lists).unwrap();
        assert_eq!(format!("{taken:?}"), format!("{:?}", parse([]).unwrap()));
        for bad in ["x", "commentary", "nonofail", "nofails", "context=x"] {
            assert!(refusal(bad).contains("unknown option"), "{bad}");
        }
        assert!(refusal("ro,remount").contains("unmount it"));
    }

    #[test]
    fn the_unknown_can_be_left_out() {
        assert_eq!(
            without_unknown(r"ro,what=a\,b,nofail,fsname=c\,d,huh,uid=x"),
            (
                r"ro,nofail,fsname=c\,d,uid=x".to_owned(),
                vec!["what".to_owned(), "huh".to_owned()]
            )
        );
    }

    #[test]
    fn others_see_what_a_store_refers_to_only_where_that_is_said() {
        for bad in [
            "allow_other,external=allow",
            "external=allow-for-others,external=allow,allow_other",
        ] {
            assert!(
                parse([bad]).unwrap_err().contains("allow-for-others"),
                "{bad}"
            );
        }
        let said = parse(["allow_other,external=allow-for-others"]).unwrap();
        assert!(said.allow_other && said.fs.external == External::Allow);
        assert!(parse(["external=allow"]).is_ok());
        assert!(parse(["allow_other,external=same-dir"]).is_ok());
    }

    #[test]
    fn the_help_has_a_line_for_each_option() {
        let help = help();
        assert!(help.contains("\n  cache_size=SIZE      memory for decoded data [256M]\n"));
        let kind = help
            .lines()
            .find(|line| line.starts_with("  kind=KIND "))
            .unwrap();
        assert!(kind.contains("daf") && !help.contains("FORMATS"), "{kind}");
    }

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

    fn values(list: &str) -> Vec<String> {
        let value = |item| name_and_value(item).1.unwrap_or_default();
        items(list).into_iter().map(value).collect()
    }

    #[test]
    fn commas_inside_values() {
        assert_eq!(values(r"a=b\,c,d=\\,e=\x"), ["b,c", "\\", "\\x"]);
        assert_eq!(values(r#"a="b,c",d="e""#), ["b,c", "e"]);
        assert_eq!(values(r#"a="b,c=d\,e"#), ["\"b", "d,e"]);
        assert_eq!(values(r#"a="b"c,d=x"y,z"#), ["\"b\"c", "x\"y", ""]);
        assert_eq!(items(r",,a,,b\,c,"), ["a", r"b\,c"]);
        assert_eq!(items(r"a\"), [r"a\"]);
        assert!(items("").is_empty());
    }

    #[test]
    fn what_is_written_is_read_again() {
        for value in ["a", "a,b", r"\", r"a\,b", r"\x"] {
            assert_eq!(values(&written("a", value)), [value]);
        }
    }
}
