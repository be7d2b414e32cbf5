//! The `npyfs` command: parses, runs, and turns an error into one line and an exit code.

use std::process::ExitCode;

use crate::cli::{self, Cli};
use crate::dataset::chunked;
use crate::hdf5::lmdb::writer as lmdb_writer;
use crate::hdf5::{editor, probe, reader, writer};
use crate::io::heap;
use clap::Parser;

/// Serves as a worker process that reads.
fn run_reader() -> std::io::Result<()> {
    reader::run(chunked::decode)
}

/// Runs the command, or the worker process, that the arguments of this process ask for.
pub fn main() -> ExitCode {
    let first = std::env::args_os().nth(1).unwrap_or_default();
    for (argument, run) in [
        (reader::ARGUMENT, run_reader as fn() -> std::io::Result<()>),
        (writer::ARGUMENT, writer::run),
        (editor::ARGUMENT, editor::run),
        (lmdb_writer::ARGUMENT, lmdb_writer::run),
        (probe::ARGUMENT, probe::run),
    ] {
        if first == argument {
            return match run() {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            };
        }
    }
    heap::return_large_blocks();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(refusal) if refusal.use_stderr() => {
            let text = refusal.to_string();
            let reason = text.split("\n\n").next().unwrap_or_default();
            let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
            let reason = reason.strip_prefix("error: ").unwrap_or(&reason);
            cli::say(&format!("{reason} (see npyfs --help)"));
            return ExitCode::from(cli::EXIT_USAGE);
        }
        Err(help) => {
            // Nothing is left to do when the terminal cannot take the text either.
            let _ = help.print();
            return ExitCode::SUCCESS;
        }
    };
    match cli.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}
