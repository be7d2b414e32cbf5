//! The options of a mount: `-o a,b=c`, from text to values.
//!
//! Parses the text, and looks up users and groups by name. Never looks for stores or mount points.

mod list;
mod table;

pub use list::written;

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Once;

use crate::cli::say;
use npyfs_base::options::{External, FsOptions};
use npyfs_core::formats;
use npyfs_core::tree::suggestion::nearest;
use npyfs_io::remote::Address;
use table::{FOR_OTHERS, all, find, is_taken};

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
    let shown = |item| match list::name_and_value(item) {
        (name @ "endpoint", Some(value)) if value.contains('@') => {
            list::written(name, &Address::hide_user(&value).unwrap_or_default())
        }
        _ => item.to_owned(),
    };
    let items: Vec<String> = list::items(options).into_iter().map(shown).collect();
    items.join(",")
}

/// Parses option lists in the order given; of two equal options the last counts.
pub fn parse<'a>(lists: impl IntoIterator<Item = &'a str>) -> Result<MountOptions, String> {
    let mut options = MountOptions::default();
    for item in lists.into_iter().flat_map(list::items) {
        let (name, value) = list::name_and_value(item);
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
        table::set(&mut options, name, value).map_err(refused)?;
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
    for item in list::items(list) {
        let (name, _) = list::name_and_value(item);
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

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_base::options::External;

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
}
