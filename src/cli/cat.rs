//! `npyfs cat`: writes the bytes of one virtual file to standard output.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;

use crate::cli::CliError;
use crate::cli::output;
use crate::cli::place::{Place, places};
use crate::cli::progress::Progress;
use crate::cli::store::StoreArgs;
use npyfs_core::tree::Node;
use npyfs_io::content::read;

/// The number of bytes that are read at a time.
const STEP: usize = 1 << 20;

/// Write virtual files to standard output, without mounting.
///
/// In the place of STORE and PATH also something in a mount, STORE:/PATH, STORE/PATH, or an .npy file.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,

    /// Files, as a mount would name them; * and ? are wildcards
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    for place in places(&args.store, &args.paths)? {
        write(&place)?;
    }
    Ok(())
}

/// Writes one file.
fn write(place: &Place) -> Result<(), CliError> {
    let failed = |e: npyfs_base::error::Error| place.failed(&e);
    let Node::File(file) = place.node(true)? else {
        return Err(place.failed(&"is a directory"));
    };
    let content = file.open().map_err(failed)?;
    let mut out = std::io::stdout().lock();
    // On a terminal, what is written is seen.
    let progress = (!out.is_terminal()).then(|| Progress::bytes("writing", content.len()));
    let pool = Arc::default();
    let mut at = 0;
    while at < content.len() {
        let data = read(&*content, at, STEP, &pool).map_err(failed)?;
        let bytes = data.as_ref();
        match out.write_all(bytes) {
            Ok(()) => {
                at += bytes.len() as u64;
                progress.iter().for_each(|progress| progress.set(at));
            }
            // The reader may have closed the pipe.
            outcome => return output::written(outcome),
        }
    }
    output::written(out.flush())
}
