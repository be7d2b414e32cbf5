//! `npyfs info`: prints everything known of an object, as JSON or as lines for people.

mod cost;
mod description;

use std::path::PathBuf;

use crate::cli::CliError;
use crate::cli::output::print;
use crate::cli::store::{StoreArgs, find};
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
        (Ok(json), false) => description::describe(json).into_bytes(),
    };
    print(&text)
}
