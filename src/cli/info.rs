//! `npyfs info`: prints everything known of an object, as JSON or as lines for people.

use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use serde_json::Value as Json;

use crate::cli::CliError;
use crate::cli::store::{StoreArgs, find};
use crate::printable::line;
use crate::tree::Node;
use crate::tree::control::render;

/// Describe a store or an object in it, without mounting.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The JSON that a mount shows below .npyfs/info
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,

    /// A file or directory in the store; by default its root
    path: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    let fs = args.store.open()?;
    let path = args.path.clone().unwrap_or_default();
    let info = match find(&fs, &path, false)? {
        Node::Directory(dir) => dir.info(),
        Node::File(file) => file.info(),
        Node::Symlink(link) => Ok(serde_json::json!({
            "link": String::from_utf8_lossy(&link.target),
        })),
    };
    let text = match (&info, args.json) {
        (Err(e), _) => return Err(CliError::object(format!("{}: {e}", path.display()))),
        (Ok(_), true) => render(&info),
        (Ok(json), false) => {
            let mut text = String::new();
            lines(json, 0, &mut text);
            text.into_bytes()
        }
    };
    match std::io::stdout().write_all(&text) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(CliError::object(format!("standard output: {e}")))
        }
        _ => Ok(()),
    }
}

/// Adds a line `key: value` for each entry, those of deeper objects indented. Null and what is empty is left out.
fn lines(json: &Json, depth: usize, out: &mut String) {
    let Json::Object(map) = json else {
        return;
    };
    let indent = "  ".repeat(depth);
    for (key, value) in map {
        match value {
            Json::Null => {}
            Json::Array(list) if list.is_empty() && key != "shape" => {}
            Json::Object(map) if map.is_empty() => {}
            Json::Object(_) => {
                out.push_str(&format!("{indent}{}:\n", line(key)));
                lines(value, depth + 1, out);
            }
            Json::Array(list) if list.iter().any(Json::is_object) => {
                out.push_str(&format!("{indent}{}:\n", line(key)));
                for item in list {
                    out.push_str(&format!("{indent}  {}\n", line(&item.to_string())));
                }
            }
            Json::String(text) => {
                out.push_str(&format!("{indent}{}: {}\n", line(key), line(text)));
            }
            other => {
                out.push_str(&format!(
                    "{indent}{}: {}\n",
                    line(key),
                    line(&other.to_string())
                ));
            }
        }
    }
}
