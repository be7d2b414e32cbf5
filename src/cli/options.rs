//! The options of a mount: `-o a,b=c`, from text to values.
//!
//! Judges the text, and looks up users and groups that are named. Stores and mount points are not looked for.

mod generic;
mod known;
mod list;
mod remote;
mod values;

use std::fmt::Write;
use std::path::PathBuf;

use crate::formats;
use crate::io::remote::Address;
use crate::options::{External, FsOptions};
use known::KNOWN;

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
}

impl MountOptions {
    /// Has only a directory of the store shown, if one was named beside the store.
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

/// A mount option: its name, its effect and its line in the help.
struct MountOption {
    name: &'static str,
    set: Setter,
    help: &'static str,
}

/// The effect of an option.
enum Setter {
    /// An option without a value.
    Flag(fn(&mut MountOptions)),
    /// An option with a value: the name of the value in the help, and a function that returns what it expected if it
    /// refuses.
    Value(
        &'static str,
        fn(&mut MountOptions, &str) -> Result<(), &'static str>,
    ),
}

/// The policy that shows everybody what the user who mounts may read.
const FOR_OTHERS: &str = "allow-for-others";

/// The options that may have secrets in their values.
const SECRET: [&str; 2] = ["endpoint", "header"];

/// Returns a list without what may be secret in it, which this process remembers.
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
        if generic::is_taken(name) {
            continue;
        }
        let known = find(name).ok_or_else(|| unknown(name))?;
        let value = value.as_deref();
        match (&known.set, value) {
            (Setter::Flag(set), None) => set(&mut options),
            (Setter::Flag(_), Some(_)) => return Err(format!("option {name} takes no value")),
            (Setter::Value(placeholder, _), None) => {
                return Err(format!("option {name} needs a value: {name}={placeholder}"));
            }
            (Setter::Value(_, set), Some(value)) => {
                let refused = |expected| match SECRET.contains(&name) {
                    true => format!("option {name}: {expected}"),
                    false => format!("option {name}={value}: {expected}"),
                };
                set(&mut options, value).map_err(refused)?;
            }
        }
    }
    let formats = formats::registry();
    if let Some(kind) = &options.fs.kind
        && !formats.iter().any(|format| format.name() == kind)
    {
        let names = formats.names();
        return Err(format!("option kind={kind}: expected auto, {names}"));
    }
    // The permissions that others are held to are those of the store, not those of the files it refers to.
    if options.allow_other && options.fs.external == External::Allow && !options.external_for_others
    {
        return Err(format!(
            "external=allow with allow_other shows everybody whatever you may read and the store refers to: \
             say external={FOR_OTHERS} if that is meant"
        ));
    }
    Ok(options)
}

/// Returns all options.
fn all() -> impl Iterator<Item = &'static MountOption> {
    KNOWN.iter().chain(remote::REMOTE)
}

/// Returns the option of this name.
fn find(name: &str) -> Option<&'static MountOption> {
    all().find(|known| known.name == name)
}

/// Returns a list without the options that nobody knows, and the names of these.
pub fn without_unknown(list: &str) -> (String, Vec<String>) {
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    for item in list::items(list) {
        let (name, _) = list::name_and_value(item);
        if find(name).is_some() || generic::is_taken(name) || name == "remount" {
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

/// Returns the section of the help text about mount options.
pub fn help() -> String {
    let mut text =
        "Mount options (-o, separated by commas; \\, is a comma inside a value):\n".to_owned();
    let formats = formats::registry().names();
    for known in all() {
        // Writing to a String cannot fail.
        let help = known.help.replace("FORMATS", &formats);
        let _ = writeln!(text, "  {:<20} {help}", spelling(known));
    }
    text.push_str(
        "SIZE is a number of bytes, or of K, M, G or T: powers of 1024.\n\
         Options of mount(8) for all types of file systems, such as nofail, noauto, user and x-..., are taken as well;\n\
         a mount is nosuid, nodev, noexec and noatime, whatever they say.",
    );
    text
}

/// Returns an option as the help spells it.
fn spelling(known: &MountOption) -> String {
    match known.set {
        Setter::Flag(_) => known.name.to_owned(),
        Setter::Value(placeholder, _) => format!("{}={placeholder}", known.name),
    }
}

/// Returns the message for an unknown option.
fn unknown(name: &str) -> String {
    let known: Vec<String> = all().map(spelling).collect();
    format!("unknown option {name:?}; known: {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::External;

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
    fn the_last_of_two_counts() {
        assert_eq!(parse(["uid=1,uid=2", "uid=3"]).unwrap().fs.uid, Some(3));
        assert_eq!(parse(["rw,ro"]).unwrap().writable, Some(false));
        assert_eq!(parse(["ro", "rw"]).unwrap().writable, Some(true));
    }

    #[test]
    fn refusals_name_the_option() {
        let unknown = refusal("uid=1,nonsense=3");
        assert!(
            unknown.contains("\"nonsense\"") && all().all(|known| unknown.contains(known.name))
        );
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
    fn the_help_lists_every_option() {
        assert!(
            KNOWN
                .iter()
                .all(|known| help().contains(&format!("  {}", spelling(known))))
        );
    }
}
