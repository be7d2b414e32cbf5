//! `npyfs new`: makes an empty store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::builder::PossibleValuesParser;

use crate::checkout::new_store::NewStore;
use crate::cli::progress::end_cleanly;
use crate::cli::{CliError, output};
use crate::formats;
use crate::hdf5::program::program;
use crate::io::content::{Content, InMemory};
use crate::printable;

/// Bytes of the largest file of an axis: it is held in memory.
const LARGEST_AXIS: u64 = 1 << 30;

/// Make an empty store, which its own library opens; write into it through a mount with --checkout.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The kind of store
    #[arg(value_parser = PossibleValuesParser::new(formats::registry().made().rev().map(|f| f.name())))]
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

/// Runs the command.
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
    let len = std::fs::metadata(path).map_err(|e| failed(&e))?.len();
    if len > LARGEST_AXIS {
        return Err(failed(&"larger than 1 GiB, the most that an axis may have"));
    }
    let bytes = std::fs::read(path).map_err(|e| failed(&e))?;
    Ok((name.to_owned(), Arc::new(InMemory(bytes))))
}
