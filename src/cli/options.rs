//! The options of a mount: `-o a,b=c`, from text to values.
//!
//! Only the text is judged. Stores, users and mount points are not looked for.

use std::fmt::Write;

use crate::formats;
use crate::options::{External, FsOptions};

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
    /// The options of the view of the store.
    pub fs: FsOptions,
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

const KNOWN: &[MountOption] = &[
    MountOption {
        name: "ro",
        set: Setter::Flag(|to| to.writable = Some(false)),
        help: "read-only, with --checkout as well: shows that checkout",
    },
    MountOption {
        name: "rw",
        set: Setter::Flag(|to| to.writable = Some(true)),
        help: "writable; needs --checkout, and is read-only without",
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
        set: Setter::Value("N", |to, text| id(text).map(|id| to.fs.uid = Some(id))),
        help: "owner of every entry [owner of the store]",
    },
    MountOption {
        name: "gid",
        set: Setter::Value("N", |to, text| id(text).map(|id| to.fs.gid = Some(id))),
        help: "group of every entry [group of the store]",
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
            fsname(text).map(|name| to.fsname = Some(name))
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
        help: "off: never look out for requests, nor serve a program on the processor it runs on [auto]",
    },
    MountOption {
        name: "kind",
        set: Setter::Value("KIND", |to, text| {
            to.fs.kind = (text != "auto").then(|| text.to_owned());
            Ok(())
        }),
        help: "show stores as KIND only, whatever they say: FORMATS [auto]",
    },
];

/// The policy that shows everybody what the user who mounts may read.
const FOR_OTHERS: &str = "allow-for-others";

/// Parses option lists in the order given; of two equal options the last counts.
pub fn parse<'a>(lists: impl IntoIterator<Item = &'a str>) -> Result<MountOptions, String> {
    let mut options = MountOptions::default();
    for item in lists.into_iter().flat_map(split) {
        let (name, value) = match item.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (item.as_str(), None),
        };
        let known = KNOWN
            .iter()
            .find(|known| known.name == name)
            .ok_or_else(|| unknown(name))?;
        match (&known.set, value) {
            (Setter::Flag(set), None) => set(&mut options),
            (Setter::Flag(_), Some(_)) => return Err(format!("option {name} takes no value")),
            (Setter::Value(placeholder, _), None) => {
                return Err(format!("option {name} needs a value: {name}={placeholder}"));
            }
            (Setter::Value(_, set), Some(value)) => {
                set(&mut options, value)
                    .map_err(|expected| format!("option {name}={value}: {expected}"))?;
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

/// Returns the help of the argument that is a store.
pub fn store_help() -> String {
    let formats = formats::registry().names();
    format!("A file or directory that is a store ({formats}), or a directory with such")
}

/// Returns the section of the help text about mount options.
pub fn help() -> String {
    let mut text =
        "Mount options (-o, separated by commas; \\, is a comma inside a value):\n".to_owned();
    let formats = formats::registry().names();
    for known in KNOWN {
        // Writing to a String cannot fail.
        let help = known.help.replace("FORMATS", &formats);
        let _ = writeln!(text, "  {:<20} {help}", spelling(known));
    }
    text.push_str("SIZE is a number of bytes, or of K, M, G or T: powers of 1024.");
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
    let known: Vec<String> = KNOWN.iter().map(spelling).collect();
    format!("unknown option {name:?}; known: {}", known.join(", "))
}

/// Splits a list at commas. A backslash takes the special meaning from a comma or another backslash.
fn split(list: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    let mut characters = list.chars().peekable();
    while let Some(character) = characters.next() {
        if character == ',' {
            items.push(String::new());
            continue;
        }
        let escaped = if character == '\\' {
            characters.next_if(|next| matches!(next, ',' | '\\'))
        } else {
            None
        };
        if let Some(item) = items.last_mut() {
            item.push(escaped.unwrap_or(character));
        }
    }
    items.retain(|item| !item.is_empty());
    items
}

/// Parses the number of a user or group.
fn id(text: &str) -> Result<u32, &'static str> {
    // The highest number means "no user" to the kernel.
    digits(text, 10)
        .and_then(|n| u32::try_from(n).ok())
        .filter(|&id| id != u32::MAX)
        .ok_or("expected a number")
}

/// Parses permission bits.
fn umask(text: &str) -> Result<u32, &'static str> {
    digits(text, 8)
        .and_then(|n| u32::try_from(n).ok())
        .filter(|&bits| bits <= 0o777)
        .ok_or("expected permission bits in octal, such as 022")
}

/// Parses a source for the mount table.
fn fsname(text: &str) -> Result<String, &'static str> {
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
    use crate::options::External;

    fn refusal(list: &str) -> String {
        parse([list]).unwrap_err()
    }

    #[test]
    fn every_option() {
        let options = parse([
            "ro,allow_other,,default_permissions,uid=7,gid=8,umask=027",
            "fsname=a\\,b\\\\c=d\\e,sep=@,xattrs,cache_size=64M,external=same-dir,text_limit=2GiB",
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
        assert!(refusal("sep=\\,").contains("one ASCII character"));
    }

    #[test]
    fn refusals_name_the_option() {
        let unknown = refusal("uid=1,nonsense=3");
        assert!(
            unknown.contains("\"nonsense\"")
                && KNOWN.iter().all(|known| unknown.contains(known.name))
        );
        assert_eq!(refusal("xattrs=1"), "option xattrs takes no value");
        assert_eq!(refusal("uid"), "option uid needs a value: uid=N");
        for bad in [
            "uid=",
            "uid=-1",
            "uid=4294967295",
            "gid=root",
            "umask=8",
            "umask=1000",
            "umask=",
            "fsname=",
            "external=x",
        ] {
            assert!(
                refusal(bad).starts_with(&format!("option {bad}: expected")),
                "{bad}"
            );
        }
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
