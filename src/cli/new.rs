//! New stores: `npyfs new` makes an empty one, `npyfs demo` writes small ones to try things on.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::builder::PossibleValuesParser;

use crate::cli::progress::end_cleanly;
use crate::cli::{CliError, output};
use npyfs_base::printable;
use npyfs_core::formats::{self, demo};
use npyfs_core::store::new_store::NewStore;
use npyfs_hdf5::program::program;
use npyfs_io::content::{Content, InMemory};
use npyfs_io::small_file;

/// Bytes of the largest file of an axis: it is held in memory.
const LARGEST_AXIS: u64 = 1 << 30;

/// Make an empty store, which its own library opens; write into it through a mount with --checkout.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The kind of store
    #[arg(value_parser = PossibleValuesParser::new(formats::registry().creatable().rev().map(|f| f.name())))]
    kind: String,

    /// Its path, which nothing has yet
    path: PathBuf,

    /// daf: an axis, and the file of its entries, a vector of strings; may be given several times
    #[arg(long, value_name = "NAME=FILE.npy")]
    axis: Vec<String>,

    /// hangar: the name of the author of its commits
    #[arg(long, requires = "email")]
    name: Option<String>,

    /// hangar: the author's address
    #[arg(long, requires = "name")]
    email: Option<String>,
}

/// Runs `npyfs new`.
pub fn run(args: &Args) -> Result<(), CliError> {
    let registry = formats::registry();
    let format = registry.named(&args.kind);
    let axes = args.axis.iter().map(|axis| read_axis(axis));
    let new = NewStore {
        path: &args.path,
        axes: axes.collect::<Result<_, _>>()?,
        author: args.name.clone().zip(args.email.clone()),
        program: program(),
    };
    end_cleanly().map_err(|e| CliError::store(e.to_string()))?;
    format
        .create(&new)
        .map_err(|e| CliError::store(format!("{}: {e}", args.path.display())))?;
    let path = printable::name(args.path.as_os_str().as_encoded_bytes());
    output::print(format!("{path}: an empty {} store\n", args.kind).as_bytes())
}

fn read_axis(given: &str) -> Result<(String, Arc<dyn Content>), CliError> {
    let Some((name, file)) = given.split_once('=').filter(|(name, _)| !name.is_empty()) else {
        return Err(CliError::usage(format!(
            "--axis {given}: not of the form NAME=FILE.npy"
        )));
    };
    let failed = |e: &dyn std::fmt::Display| CliError::store(format!("{file}: {e}"));
    let path = Path::new(file);
    let bytes = small_file::read(path, LARGEST_AXIS).map_err(|e| match e.kind() {
        ErrorKind::FileTooLarge => failed(&"larger than 1 GiB, the most that an axis may have"),
        _ => failed(&e),
    })?;
    Ok((name.to_owned(), Arc::new(InMemory(bytes))))
}

/// Write demonstration stores into a directory; files that are there already are left alone.
#[derive(clap::Args, Debug)]
pub struct DemoArgs {
    /// The directory; made if it does not exist
    dir: PathBuf,
}

/// Runs `npyfs demo`.
pub fn demo(args: &DemoArgs) -> Result<(), CliError> {
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
