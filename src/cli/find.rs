//! `npyfs find`: paths of what is in a store, by name, attributes, shape and type.
//!
//! A path is printed as soon as it is found, and no list of them is kept: a large group is looked at part by part. Only
//! what fits by its name is asked for more. Links are not followed.

use std::ffi::OsStr;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value as Json;

use crate::cli::output::{self, JsonList, Name, OutputFormat, kind};
use crate::cli::pattern::Pattern;
use crate::cli::place::{Place, places};
use crate::cli::store::StoreArgs;
use crate::cli::{CliError, say};
use npyfs_base::printable;
use npyfs_core::tree::name::SUFFIXES;
use npyfs_core::tree::{Directory, Node};

/// Find objects of a store by name, attributes, shape and type.
///
/// Patterns are those of shells. One without a slash is for names, with or without `.npy`; one with a slash is for
/// whole paths, in which * fits slashes, too, and **/ also nothing. All conditions must hold, and of several patterns
/// one. Paths are those that `npyfs show STORE` takes, and in a mount those that every program takes.
///
/// JSON is a list of {"kind": "file", "directory" or "link", "name"}, with --shape, --dtype and --attr also "dtype" and
/// "shape" of arrays, and "name_hex" for names that are no UTF-8.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// With this attribute; = and a pattern: with this value. Can be given several times
    #[arg(long = "attr", value_name = "NAME[=VALUE]")]
    attributes: Vec<String>,

    /// Arrays of this shape: 10,20; an axis of any length is *
    #[arg(long, value_name = "SHAPE")]
    shape: Option<String>,

    /// Arrays of this type: <f8, f8, float64 or a pattern
    #[arg(long, value_name = "TYPE")]
    dtype: Option<String>,

    #[command(flatten)]
    format: OutputFormat,

    #[command(flatten)]
    store: StoreArgs,

    /// What names are like, as in 'score*'; by default everything
    #[arg(value_name = "PATTERN")]
    patterns: Vec<String>,
}

/// A pattern for names or for paths.
struct NamePattern {
    pattern: Pattern,
    is_of_paths: bool,
}

impl NamePattern {
    fn new(text: &str) -> Self {
        Self {
            pattern: Pattern::new(text.trim_start_matches('/').as_bytes()),
            is_of_paths: text.contains('/'),
        }
    }

    fn fits(&self, path: &[u8]) -> bool {
        let name = match self.is_of_paths {
            true => path,
            false => path.rsplit(|&byte| byte == b'/').next().unwrap_or(path),
        };
        let bare = || {
            SUFFIXES
                .iter()
                .find_map(|suffix| name.strip_suffix(*suffix))
        };
        self.pattern.matches(name) || bare().is_some_and(|bare| self.pattern.matches(bare))
    }
}

/// The search.
struct Criteria {
    names: Vec<NamePattern>,
    attributes: Vec<(String, Option<Pattern>)>,
    /// The lengths of axes; `None`: any.
    shape: Option<Vec<Option<u64>>>,
    dtype: Option<Pattern>,
}

impl Criteria {
    fn parse(args: &Args) -> Result<Self, CliError> {
        let attribute = |text: &String| match text.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(Pattern::new(value.as_bytes()))),
            None => (text.clone(), None),
        };
        let shape = args.shape.as_deref().map(lengths).transpose();
        Ok(Self {
            names: args
                .patterns
                .iter()
                .map(|text| NamePattern::new(text))
                .collect(),
            attributes: args.attributes.iter().map(attribute).collect(),
            shape: shape.map_err(CliError::usage)?,
            dtype: args
                .dtype
                .as_ref()
                .map(|text| Pattern::new(text.as_bytes())),
        })
    }

    /// Returns whether more than the name is looked at.
    fn asks(&self) -> bool {
        !self.attributes.is_empty() || self.wants_arrays()
    }

    fn wants_arrays(&self) -> bool {
        self.shape.is_some() || self.dtype.is_some()
    }

    fn fits_name(&self, path: &[u8]) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| name.fits(path))
    }

    /// Returns whether an object is what its report says of what is wanted.
    fn fits(&self, info: &Json) -> bool {
        let has = |(name, value): &(String, Option<Pattern>)| match info["attributes"].get(name) {
            None => false,
            Some(found) => value.as_ref().is_none_or(|value| is_like(found, value)),
        };
        let is_typed = |pattern: &Pattern| {
            let descr = info["dtype"].as_str().unwrap_or_default();
            let name = numpy_name(descr).unwrap_or_default();
            let bare = descr.trim_start_matches(['<', '>', '|', '=']);
            !descr.is_empty()
                && [descr, bare, &name]
                    .iter()
                    .any(|text| pattern.matches(text.as_bytes()))
        };
        let is_shaped = |wanted: &Vec<Option<u64>>| {
            let dims = info["shape"].as_array();
            dims.is_some_and(|dims| {
                let mut pairs = dims.iter().zip(wanted);
                dims.len() == wanted.len()
                    && pairs.all(|(dim, len)| len.is_none_or(|len| dim.as_u64() == Some(len)))
            })
        };
        self.attributes.iter().all(has)
            && self.shape.as_ref().is_none_or(is_shaped)
            && self.dtype.as_ref().is_none_or(is_typed)
    }
}

/// Returns what NumPy calls a type: `float64` for `<f8`.
fn numpy_name(descr: &str) -> Option<String> {
    let bare = descr.get(1..)?;
    let size = || bare.get(1..)?.parse::<u32>().ok();
    let named = |name: &str| Some(format!("{name}{}", size()?.checked_mul(8)?));
    match bare.chars().next()? {
        'b' => Some("bool".to_owned()),
        'i' => named("int"),
        'u' => named("uint"),
        'f' => named("float"),
        'c' => named("complex"),
        'M' => Some(format!("datetime64{}", bare.get(2..)?)),
        'm' => Some(format!("timedelta64{}", bare.get(2..)?)),
        'S' => Some("bytes".to_owned()),
        'U' => Some("str".to_owned()),
        _ => None,
    }
}

/// Returns whether a value is like a pattern; of a list one of them.
fn is_like(found: &Json, value: &Pattern) -> bool {
    match found {
        Json::String(text) => value.matches(text.as_bytes()),
        Json::Array(list) => list.iter().any(|one| is_like(one, value)),
        // Of many values the first are there.
        Json::Object(map) if map.contains_key("first") => is_like(&map["first"], value),
        other => {
            let text = other.to_string();
            value.matches(text.as_bytes())
                || text
                    .strip_suffix(".0")
                    .is_some_and(|whole| value.matches(whole.as_bytes()))
        }
    }
}

/// Returns the lengths of the axes that a shape names.
fn lengths(text: &str) -> Result<Vec<Option<u64>>, String> {
    let inner = text.trim().trim_start_matches('(').trim_end_matches(')');
    let axes = inner.split([',', 'x']).map(str::trim);
    let named = axes.filter(|axis| !axis.is_empty());
    let length = |axis: &str| match axis {
        "*" => Ok(None),
        number => number.parse().map(Some).map_err(|_| {
            format!("--shape {text}: expected lengths with commas between them, such as 10,* or ()")
        }),
    };
    named.map(length).collect()
}

/// An object in the JSON. The fields stand in the order of their names.
#[derive(Serialize)]
struct FoundObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    dtype: Option<Json>,
    kind: &'static str,
    #[serde(flatten)]
    path: Name,
    #[serde(skip_serializing_if = "Option::is_none")]
    shape: Option<Json>,
}

/// A search in progress.
struct Search {
    wanted: Criteria,
    out: BufWriter<StdoutLock<'static>>,
    format: OutputFormat,
    json: JsonList,
    /// Paths are to be seen at once.
    is_terminal: bool,
    /// The prefix of each path.
    prefix: PathBuf,
    failures: u64,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    let wanted = Criteria::parse(args)?;
    let places = places(&args.store, &[])?;
    let mut search = Search {
        wanted,
        out: BufWriter::new(io::stdout().lock()),
        format: args.format,
        json: JsonList::default(),
        is_terminal: io::stdout().is_terminal(),
        prefix: PathBuf::new(),
        failures: 0,
    };
    let searched = search.places(&places);
    // The list is whole, whatever could not be found.
    let ended = match args.format.json {
        true => search.json.end(&mut search.out),
        false => Ok(()),
    };
    let ended = ended.and_then(|()| search.out.flush());
    output::written(searched?.and(ended))?;
    match search.failures {
        0 => Ok(()),
        1 => Err(CliError::object(
            "what is in one object could not be found out",
        )),
        count => Err(CliError::object(format!(
            "what is in {count} objects could not be found out"
        ))),
    }
}

impl Search {
    /// Searches what was asked for; the inner result is that of writing.
    fn places(&mut self, places: &[Place]) -> Result<io::Result<()>, CliError> {
        for place in places {
            let node = place.node(true)?;
            let written = match (&node, place.on_disk()) {
                (Node::Directory(dir), None) => self.directory(dir, &place.path),
                (Node::Directory(dir), Some(above)) => {
                    self.prefix = above.to_owned();
                    self.directory(dir, Path::new(""))
                }
                (node, above) => self.object(above.unwrap_or(&place.path), node),
            };
            if written.is_err() {
                return Ok(written);
            }
        }
        Ok(Ok(()))
    }

    fn directory(&mut self, dir: &Arc<dyn Directory>, path: &Path) -> io::Result<()> {
        let mut written = Ok(());
        let seen = dir.each(&mut |name, node| {
            let path = path.join(OsStr::from_bytes(name));
            written = self.object(&path, node).and_then(|()| match node {
                Node::Directory(below) => self.directory(below, &path),
                Node::File(_) | Node::Symlink(_) => Ok(()),
            });
            match written {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        });
        match seen {
            Ok(damage) => damage
                .iter()
                .for_each(|why| self.failed(&path.join(why), &"left out")),
            Err(e) => self.failed(path, &e),
        }
        written
    }

    /// Prints the path of an object, if it is wanted.
    fn object(&mut self, path: &Path, node: &Node) -> io::Result<()> {
        if !self.wanted.fits_name(path.as_os_str().as_bytes()) {
            return Ok(());
        }
        let mut known = Json::Null;
        if self.wanted.asks() {
            let info = match node {
                Node::File(file) => file.info(),
                Node::Directory(_) if self.wanted.wants_arrays() => return Ok(()),
                Node::Directory(dir) => dir.info(),
                Node::Symlink(_) => return Ok(()),
            };
            match info {
                Ok(info) if self.wanted.fits(&info) => known = info,
                Ok(_) => return Ok(()),
                Err(e) => {
                    self.failed(path, &e);
                    return Ok(());
                }
            }
        }
        let path = self.prefix.join(path);
        let bytes = path.as_os_str().as_bytes();
        let OutputFormat { null, json } = self.format;
        match (json, null) {
            (true, _) => self.print_json(bytes, node, &known)?,
            (_, true) => {
                self.out.write_all(bytes)?;
                self.out.write_all(b"\0")?;
            }
            _ => writeln!(self.out, "{}", printable::name(bytes))?,
        }
        match self.is_terminal {
            true => self.out.flush(),
            false => Ok(()),
        }
    }

    /// Prints an object of the JSON list.
    fn print_json(&mut self, path: &[u8], node: &Node, known: &Json) -> io::Result<()> {
        let is_array = matches!(node, Node::File(_));
        let fact = |key: &str| known.get(key).filter(|fact| is_array && !fact.is_null());
        let found = FoundObject {
            dtype: fact("dtype").cloned(),
            kind: kind(node),
            path: Name::new(path),
            shape: fact("shape").cloned(),
        };
        self.json.add(&mut self.out, &found)
    }

    fn failed(&mut self, path: &Path, why: &dyn std::fmt::Display) {
        self.failures += 1;
        let path = match path.as_os_str().is_empty() {
            true => Path::new("."),
            false => path,
        };
        say(&format!("{}: {why}", path.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_lengths_of_axes() {
        assert_eq!(lengths("10,20"), Ok(vec![Some(10), Some(20)]));
        assert_eq!(lengths("(3,)"), Ok(vec![Some(3)]));
        assert_eq!(lengths("*,5"), Ok(vec![None, Some(5)]));
        assert_eq!(lengths("()"), Ok(vec![]));
        assert!(lengths("a").unwrap_err().contains("--shape a"));
    }

    #[test]
    fn types_have_the_names_of_numpy() {
        let names = ["<f8", "|b1", ">i2", "<c16", "<M8[ns]", "|S7", "<U3"].map(numpy_name);
        let names = names.map(Option::unwrap_or_default);
        let known = [
            "float64",
            "bool",
            "int16",
            "complex128",
            "datetime64[ns]",
            "bytes",
            "str",
        ];
        assert_eq!(names, known);
        assert_eq!(numpy_name(""), None);
    }

    #[test]
    fn a_name_is_known_with_and_without_its_suffix() {
        let fits = |pattern: &str, path: &str| NamePattern::new(pattern).fits(path.as_bytes());
        assert!(fits("score", "g/score.npy") && fits("score.npy", "score.npy"));
        assert!(fits("g/*", "g/h/x.npy") && fits("/g/x", "g/x.npy"));
        assert!(!fits("g", "g/x.npy") && !fits("score", "scores.npy"));
    }
}
