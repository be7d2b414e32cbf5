//! `npyfs demo`: writes small stores to try things on.

use std::path::PathBuf;

use crate::cli::{CliError, output};
use npyfs_base::printable;
use npyfs_core::formats::demo;
use npyfs_hdf5::program::program;

/// Write demonstration stores into a directory; files that are there already are left alone.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The directory; made if it does not exist
    dir: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    let written = demo::write_all(&args.dir, Some(program()))
        .map_err(|e| CliError::store(format!("{}: {e}", args.dir.display())))?;
    let mut text = String::new();
    for (path, made) in written {
        let what = if made { "written" } else { "left as it is" };
        let name = printable::name(path.as_os_str().as_encoded_bytes());
        text.push_str(&format!("{name} {what}\n"));
    }
    output::print(text.as_bytes())
}
