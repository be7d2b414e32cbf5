//! `npyfs cat`: writes the bytes of one virtual file to standard output.

use std::io::{ErrorKind, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;

use crate::cli::CliError;
use crate::cli::progress::Progress;
use crate::cli::store::{StoreArgs, find};
use crate::io::content::read;
use crate::tree::Node;

/// The number of bytes that are read at a time.
const STEP: usize = 1 << 20;

/// Write a virtual file to standard output, without mounting.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,

    /// The file, as a mount would name it
    path: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<(), CliError> {
    let fs = args.store.open()?;
    let shown = args.path.display();
    let failed = |e: crate::error::Error| CliError::object(format!("{shown}: {e}"));
    let Node::File(file) = find(&fs, &args.path, true)? else {
        return Err(CliError::object(format!("{shown}: is a directory")));
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
            // Whoever reads has seen enough.
            Err(e) if e.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(e) => return Err(CliError::object(format!("standard output: {e}"))),
        }
    }
    match out.flush() {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(CliError::object(format!("standard output: {e}")))
        }
        _ => Ok(()),
    }
}
